"""Texts that were damaged on their way into the file: read in the wrong encoding, cut off, empty of
words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from finetune.checking.finding import Finding, Severity, Suspect
from finetune.data import arrow
from finetune.data.labels import Places
from finetune.errors import counted

#: Rows of a split that are looked at: of more, this many drawn at random.
MOST_ROWS = 100_000
#: A share of the rows from which on something that may be usual is suspicious.
_MUCH = 0.01
#: Rows that a finding hands on as suspects.
MOST_SUSPECTS = 1000
#: UTF-8 that was read as Windows-1252: the first of two to four bytes, and those that follow.
_MISREAD = re.compile(r"[\xc2-\xf4][^\x00-\x7f]{1,3}")
_CANDIDATE = r"[\x{c2}-\x{f4}][^\x00-\x7f]"
#: First bytes of Western letters, signs and emoji; others are letters of the West themselves, which
#: may stand before a quotation mark, and count from the second on.
_USUAL = "\xc2\xc3\xe2\xf0"
_WORD = r"\p{L}"
_CONTROL = r"[\x00-\x08\x0e-\x1f]"
#: Characters of the shortest texts that may have been cut off, how many have just that length,
#: and how many times as many as have one of the twenty lengths below it.
_SHORTEST_CUT, _FEWEST_CUT, _TIMES = 50, 10, 3
_BELOW = 20
#: Lengths of columns of databases and of cells of spreadsheets.
_LIMITS = (255, 256, 500, 512, 1000, 1023, 1024, 2000, 4000, 4096, 8000, 8192, 32767, 65535)


@dataclass
class _Seen:
    """The numbers of the rows with some damage."""

    misread: list[int] = field(default_factory=list)
    replaced: list[int] = field(default_factory=list)
    control: list[int] = field(default_factory=list)
    wordless: list[int] = field(default_factory=list)


def findings(rows: Dataset, split: str, columns: Sequence[str], places: Places) -> list[Finding]:
    """Return what is wrong with the texts of a split.

    Args:
        rows: With ``id``; missing texts are not looked at.
        split: The name of the split in the source.
        columns: Those of the texts.
        places: Returns the positions of rows of a split, by their ``id``.
    """
    wanted = None
    if len(rows) > MOST_ROWS:
        wanted = np.sort(np.random.default_rng(0).choice(len(rows), MOST_ROWS, replace=False))
    looked_at = len(rows) if wanted is None else len(wanted)
    found: list[Finding] = []
    for column in columns:
        seen, lengths = _looked_through(rows, column, wanted)
        named = f"the column '{column}' of the {split} data" if len(columns) > 1 else split
        tell = _Teller(rows, split, named, looked_at, places)
        found += tell.all_of(seen)
        for cut in _cut_at(lengths[:, 1]):
            numbers = lengths[lengths[:, 1] == cut, 0]
            found.append(tell.cut(numbers.tolist(), cut))
    return found


def _looked_through(
    rows: Dataset, column: str, wanted: np.ndarray | None
) -> tuple[_Seen, np.ndarray]:
    """Return what is wrong with texts, and the number and the length of each in characters, shape
    ``(rows, 2)``.
    """
    seen, lengths = _Seen(), [np.empty((0, 2), dtype=np.int64)]
    for numbers, values in arrow.pieces(rows, column, wanted):
        if not arrow.is_text(values.type):
            continue
        there = pc.fill_null(values, "")

        def matching(
            pattern: str, there: pa.Array = there, numbers: np.ndarray = numbers
        ) -> list[int]:
            hits = pc.match_substring_regex(there, pattern).to_numpy(zero_copy_only=False)
            return [int(number) for number in numbers[hits]]

        size = pc.utf8_length(there).to_numpy(zero_copy_only=False)
        lengths.append(np.stack([numbers, size], axis=1))
        candidates = pc.match_substring_regex(there, _CANDIDATE).to_numpy(zero_copy_only=False)
        seen.misread += [
            int(numbers[place])
            for place in np.flatnonzero(candidates)
            if is_misread(there[int(place)].as_py())
        ]
        hits = pc.match_substring(there, "\ufffd").to_numpy(zero_copy_only=False)
        seen.replaced += numbers[hits].tolist()
        seen.control += matching(_CONTROL)
        has_words = pc.match_substring_regex(there, _WORD).to_numpy(zero_copy_only=False)
        seen.wordless += numbers[~has_words & (size > 0)].tolist()
    return seen, np.concatenate(lengths)


def is_misread(text: str) -> bool:
    """Return whether a text holds UTF-8 that was decoded as Windows-1252: ``Ã©`` for ``é``."""
    found = [match[0][0] for match in _MISREAD.finditer(text) if _is_utf8(match[0])]
    return len(found) > 1 or any(first in _USUAL for first in found)


def _is_utf8(characters: str) -> bool:
    """Return whether characters, or the first of them, are the bytes of one character."""
    try:
        encoded = b"".join(_byte(each) for each in characters)
    except UnicodeEncodeError:
        return False
    needed = 2 if encoded[0] < 0xE0 else 3 if encoded[0] < 0xF0 else 4
    try:
        return len(encoded) >= needed and len(encoded[:needed].decode()) == 1
    except UnicodeDecodeError:
        return False


def _byte(character: str) -> bytes:
    """Return the byte that Windows-1252, or Latin-1 where that has none, reads as a character."""
    try:
        return character.encode("cp1252")
    except UnicodeEncodeError:
        return character.encode("latin-1")


def _cut_at(lengths: np.ndarray) -> list[int]:
    """Return the lengths at which texts were cut off: the greatest, and those that programs cut at,
    if far more texts have it than have one of those just below it.
    """
    found = []
    for length in sorted({int(lengths.max(initial=0)), *_LIMITS}):
        there = int((lengths == length).sum())
        below = int(((lengths < length) & (lengths >= length - _BELOW)).sum())
        fewest = max(_FEWEST_CUT, _TIMES * below / _BELOW, _MUCH / 10 * len(lengths))
        if length >= _SHORTEST_CUT and there >= fewest and there > below:
            found.append(length)
    return found


@dataclass(frozen=True)
class _Teller:
    """Makes findings of the rows of a split."""

    rows: Dataset
    split: str
    named: str
    looked_at: int
    places: Places

    def all_of(self, seen: _Seen) -> Iterator[Finding]:
        """Yield a finding for each kind of damage that was seen."""
        if seen.misread:
            yield self._finding(
                "mojibake",
                "warning",
                seen.misread,
                "with UTF-8 that was read in another encoding, like 'Ã©' for 'é'",
                "export the file again as UTF-8, or repair the texts (the package ftfy does)",
            )
        if seen.replaced:
            yield self._finding(
                "replacement_characters",
                "warning",
                seen.replaced,
                "with '\ufffd', which stands for characters that are lost",
                "export the file again in its own encoding",
            )
        if seen.control:
            yield self._finding(
                "control_characters",
                self._if_many(seen.control),
                seen.control,
                "with control characters such as null bytes",
                "remove them: is it the right column?",
            )
        if seen.wordless:
            yield self._finding(
                "no_words",
                self._if_many(seen.wordless),
                seen.wordless,
                "without a letter, only digits, marks or symbols",
                "is it the right column? else leave such rows out",
            )

    def _if_many(self, numbers: Sequence[int]) -> Severity:
        return "warning" if len(numbers) > _MUCH * self.looked_at else "info"

    def cut(self, numbers: Sequence[int], length: int) -> Finding:
        """Return the finding of texts that were cut off at a length."""
        return self._finding(
            "cut_off",
            "warning",
            numbers,
            f"of exactly {length:,} characters, and few just below: they were probably cut off "
            "when the data was exported",
            "export the whole texts",
        )

    def _finding(
        self, name: str, severity: Severity, numbers: Sequence[int], what: str, mend: str
    ) -> Finding:
        some = sorted(numbers)[:MOST_SUSPECTS]
        ids = self.rows.select(some)["id"][:]
        drawn = f" looked at, of {len(self.rows):,}" * (self.looked_at < len(self.rows))
        where = self.places(self.split, ids)
        return Finding(
            name=name,
            severity=severity,
            message=f"{len(numbers):,} of {counted(self.looked_at, f'{self.named} row')}{drawn} "
            f"{what}{where and f': {where}'}",
            mend=mend,
            count=len(numbers),
            rows=self.looked_at,
            suspects=[Suspect(split=self.split, id=int(each), why=name) for each in ids],
        )
