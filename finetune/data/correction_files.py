"""What a file of corrections wants: ``suspects.csv``, edited by a person."""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, List

from finetune.data import targets
from finetune.data.read import ReadOptions, existing, read_file
from finetune.data.sources import Source
from finetune.errors import UserError, suggestion

FILE = "suspects.csv"
#: What a person writes into the last column for a row that is to be left out.
DROP = "drop"
_KEYS = ("split", "id", "digest")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A row of a file: which row it is about, and what is to become of it.

    Attributes:
        number: Its own in the file, from 0.
        split: The split of the source that the row was in.
        id: Of the row there.
        digest: Of what the model reads of it.
        text: What the file shows of it.
        label: The label that it had; None where the file does not say.
        new: The label that it shall have; None if it is left out.
    """

    number: int
    split: str
    id: str
    digest: str
    text: str
    label: str | None
    new: str | None  # None: left out


class File:
    """A file of corrections.

    Args:
        flag: The option that names it.
        name: As typed.
    """

    def __init__(self, flag: str, name: str) -> None:
        self.flag, self._path, self.called = flag, existing(name), f"{flag} {name}"
        #: The rows of the last call of :meth:`wanted` that have no ``new_label``.
        self.untouched: list[Wanted] = []
        if self._path.is_dir():
            raise UserError(f"{self.called} is a directory; name {Path(name) / FILE}")

    def place(self, *numbers: int) -> str:
        """Return the position of rows, for messages."""
        return Source(str(self._path)).locate("train", numbers)

    def wanted(self, rows: Dataset) -> tuple[list[Wanted], str]:
        """Return what it wants, and the run whose suspects these are; empty if it names none.

        Args:
            rows: With the labels that there are.

        Raises:
            UserError: if it is not such a file, or wants nothing.
        """
        found, run, names = list[Wanted](), "", targets.class_names(rows)
        seen: dict[tuple[str, str], Wanted] = {}
        needed = [*_KEYS, *(["new_label"] if self.flag == "--relabel" else [])]
        for number, row in enumerate(read_file(self._path, ReadOptions())):
            if lacking := [each for each in needed if each not in row]:
                raise UserError(
                    f"{self.called}: no column '{lacking[0]}' (columns: {', '.join(row)}); "
                    f"expected a {FILE} of report or check, of which only 'new_label' is edited"
                )
            run = run or str(row.get("run") or "")
            new = (row.get("new_label") or "").strip()
            if self.flag == "--relabel" and not new:
                self.untouched.append(_asked(number, row, None))
                continue
            if not row["digest"]:
                raise UserError(
                    f"{self.called}, {self.place(number)}: 'digest' must be as it was written: "
                    "rows are found by it"
                )
            leaves_out = self.flag == "--exclude" or (new == DROP and DROP not in names)
            each = _asked(
                number, row, None if leaves_out else self._label(number, new, rows, names)
            )
            other = seen.setdefault((each.split, each.id), each)
            if other.new != each.new:
                raise UserError(
                    f"{self.called}, {self.place(number)} and {self.place(other.number)} want "
                    "different things of one row"
                )
            if other is each:
                found.append(each)
        if not found:
            raise UserError(
                f"{self.called}: no row has a 'new_label': write the right label there, or {DROP} "
                "to leave the row out; no other column is read for it"
            )
        return found, run

    def _label(self, number: int, new: str, rows: Dataset, names: Sequence[str]) -> str:
        """Return the name of a label, or a number as it is written.

        Raises:
            UserError: if there is no such label.
        """
        where = f"{self.called}, {self.place(number)}"
        if names and new not in names and new.startswith("'"):  # before "=" and the like
            new = new.removeprefix("'")
        if names:
            for each in several(new) if targets.is_set(rows) else [new]:
                if each not in names:
                    raise UserError(
                        f"{where}: there is no label '{each}'{suggestion(each, list(names))} "
                        f"(labels: {', '.join(names[:10])}{', ...' * (len(names) > 10)}); {DROP} "
                        "leaves the row out"
                    )
            return new
        if isinstance(rows.features["label"], List):
            raise UserError(f"{where}: a row has several numbers, which only {DROP} corrects")
        try:
            if math.isfinite(float(new)):
                return new
        except ValueError:
            pass
        raise UserError(f"{where}: expected a number in 'new_label', found {new!r}")


def _asked(number: int, row: Mapping[str, Any], new: str | None) -> Wanted:
    return Wanted(
        number=number,
        split=str(row["split"]),
        id=str(row["id"]),
        digest=str(row["digest"]).strip(),
        text=str(row.get("text") or ""),
        label=row.get("label"),
        new=new,
    )


def is_edited(written: str | None, label: str) -> bool:
    """Return whether a label in a file is another one, however a spreadsheet writes that.

    Args:
        written: In the file.
        label: Of the row in the data, as it was written there.
    """
    if written is None or not written.strip():
        return False
    one, other = (sorted(map(str.strip, several(each))) for each in (written, label))
    words = [[each.removeprefix("'").casefold() for each in some] for some in (one, other)]
    if words[0] == words[1] or len(one) != 1 or len(other) != 1:
        return words[0] != words[1]
    try:
        return not math.isclose(float(words[0][0]), float(words[1][0]), rel_tol=1e-6)
    except ValueError:
        return True


def digest_of(text: str) -> str:
    """Return the digest of a text; a spreadsheet takes it for a word, not for a number."""
    return f"x{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def may_be_edited(asked: Wanted) -> bool:
    """Return whether the text of a row of a file is not that which its digest is of."""
    ways = (asked.text, asked.text.removeprefix("'"))
    return bool(asked.text) and asked.digest not in map(digest_of, ways)


def edited_texts(
    asked: Sequence[Wanted],
    at: Mapping[tuple[str, str], tuple[str, int]],
    splits: Mapping[str, Dataset],
) -> list[int]:
    """Return the numbers of the rows of a file whose text a person has edited.

    Args:
        asked: Rows of the file.
        at: The split of the row that each is about and its number there, by ``split`` and ``id``.
        splits: With ``text``.
    """
    found = []
    for each in asked:
        if (place := at.get((each.split, each.id))) is None:
            continue
        text = splits[place[0]][place[1]]["text"]
        if each.digest == digest_of(text) and _is_another(each.text, text):
            found.append(each.number)
    return sorted(found)


def _is_another(written: str, text: str) -> bool:
    """Return whether a text was edited by a person, as far as can be seen: a spreadsheet cuts long
    ones off, writes other spaces and line ends, numbers and dates in its own way, and ``?`` for
    letters that the encoding of the file lacks.
    """
    pattern = "[A-Za-z0-9]" if written.count("?") > text.count("?") else r"[^\W_]"
    one, other = (
        "".join(re.findall(pattern, unicodedata.normalize("NFKC", each)))
        for each in (written, text)
    )
    return bool(re.search(r"[^\W\d_]", text)) and not other.startswith(one)


def several(cell: str) -> list[str]:
    """Return the labels of a row that has several: a JSON list."""
    try:
        found = json.loads(cell)
    except ValueError:
        return [cell]
    return [str(each) for each in found] if isinstance(found, list) else [cell]
