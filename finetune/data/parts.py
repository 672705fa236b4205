"""Rows of several columns of text: a pair of sentences, or a title, a body and a comment.

Raw rows then have ``texts``, the parts that the model reads, beside ``text``, in which people and
the bag of words read them joined by line breaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from datasets import Dataset, DatasetDict, Features, List, Value
from datasets.fingerprint import Hasher

from finetune.data.digests import TEXTS
from finetune.data.encoding import Read
from finetune.errors import UserError


def combined(dataset: DatasetDict, columns: Sequence[str]) -> DatasetDict:
    """Return ``dataset`` with ``text`` and ``texts`` instead of ``columns``.

    Args:
        dataset: Splits whose ``columns`` are texts, none missing.
        columns: In the order in which the model reads them.
    """
    return DatasetDict({name: _combined(rows, list(columns)) for name, rows in dataset.items()})


def _combined(rows: Dataset, columns: list[str]) -> Dataset:
    others = {name: kind for name, kind in rows.features.items() if name not in columns}
    options: dict[str, Any] = dict(
        batched=True,
        remove_columns=columns,
        fn_kwargs={"columns": columns},
        features=Features({**others, "text": Value("string"), TEXTS: List(Value("string"))}),
        new_fingerprint=Hasher.hash([rows._fingerprint, columns, "parts"]),
        desc="combining columns",
    )
    try:
        return rows.map(_parts, **options)
    except pa.ArrowInvalid:  # what the library has cached is damaged
        return rows.map(_parts, **options, load_from_cache_file=False)


def _parts(batch: dict[str, list[Any]], columns: list[str]) -> dict[str, list[Any]]:
    parts = list(zip(*(batch[name] for name in columns), strict=True))
    return {"text": ["\n".join(row) for row in parts], TEXTS: [list(row) for row in parts]}


def refuse_others(dataset: DatasetDict, *, several: bool) -> None:
    """Refuse rows that are not read as the options of the recipe say.

    Raises:
        UserError: If rows have several columns of text and ``text_columns`` is not set, or if they
            have one and it is.
    """
    for rows in dataset.values():
        if (TEXTS in rows.column_names) != several:
            raise UserError(
                f"the recipe loads rows with{'out' if several else ''} the column '{TEXTS}' of "
                "several texts: it needs --text_columns, and a load() that calls labelled()"
            )


def read_by_model(rows: dict[str, list[Any]] | Dataset, *, several: bool) -> list[Read]:
    """Return what the model reads of raw rows: their ``text``, or their ``texts``.

    Args:
        rows: Raw rows.
        several: Whether several columns of text are read.

    Raises:
        UserError: If ``text`` and ``texts`` differ: a recipe has changed one of them.
    """
    if not several:
        return list(rows["text"][:])
    parts = list(rows[TEXTS][:])
    for text, row in zip(rows["text"][:], parts, strict=True):
        if text != "\n".join(row):
            raise UserError(
                f"the recipe changes 'text' to {text[:40]!r}, but several columns are tokenized "
                f"from '{TEXTS}', {row[0][:40]!r} and so on: change both, or use one column"
            )
    return parts
