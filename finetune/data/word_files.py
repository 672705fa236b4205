"""Read files with a word and its fields a line, and blank lines between sentences: CoNLL."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets.utils.py_utils import iter_batched

from finetune.data.read_text import ROWS_AT_ONCE
from finetune.errors import UserError

_DOCUMENT = "-DOCSTART-"


def sentences(path: Path, lines: Iterable[str]) -> Iterator[pa.Table]:
    """Yield the sentences of a file with a word a line, and blank lines between sentences.

    Fields are separated by tabs if the first word has one, else by blanks. The columns are ``1``,
    ``2`` and so on, lists with an item for each word; ``line``, the first of the sentence; and if
    the file begins with a line ``-DOCSTART-``, ``document`` with the number of these lines so far.

    Raises:
        UserError: With the line that has an empty word, or more or fewer fields than the first.
    """
    separator: str | None = None
    width: int | None = None
    document: int | None = None
    rows: list[dict[str, Any]] = []
    words: list[list[str]] = []

    def finish() -> None:
        if words:
            row: dict[str, Any] = {"line": first_line}
            for place, column in enumerate(zip(*words, strict=True), start=1):
                row[str(place)] = list(column)
            if document is not None:
                row["document"] = str(document)
            rows.append(row)
            words.clear()

    first_line = 0
    for number, line in enumerate(lines, start=1):
        content = line.strip()
        if not content:
            finish()
        elif content.split()[0] == _DOCUMENT:
            finish()
            if width is None or document is not None:
                document = (document or 0) + 1
        else:
            if width is None and "\t" in content:
                separator = "\t"
            fields = [field.strip() for field in line.rstrip("\r\n").split(separator)]
            width = width or len(fields)
            if len(fields) != width or not fields[0]:
                kind = "tabs" if separator else "blanks"
                raise UserError(
                    f"{path}, line {number}: expected a word and {width - 1} more fields, "
                    f"separated by {kind} as in the first line, found {content[:40]!r}"
                )
            if not words:
                first_line = number
            words.append(fields)
    finish()
    for batch in iter_batched(rows, ROWS_AT_ONCE):
        yield pa.Table.from_pylist(list(batch))
