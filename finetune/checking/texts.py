"""Texts that were damaged on their way into the file: read in the wrong encoding, cut off, empty of
words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from finetune.checking.finding import MUCH, Finding, Severity, of_rows
from finetune.data import arrow
from finetune.data.labels import Places

#: Rows of a split that are looked at: of more, this many drawn at random.
MOST_ROWS = 100_000
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


@dataclass(frozen=True, kw_only=True)
class _Damage:
    """A kind of damage: what a finding says of it, and whether few rows of it are suspicious."""

    what: str
    mend: str
    is_rare: bool = False


_DAMAGES = {
    "mojibake": _Damage(
        what="with UTF-8 that was read in another encoding, like 'Ã©' for 'é'",
        mend="export the file again as UTF-8, or repair the texts (the package ftfy does)",
        is_rare=True,
    ),
    "replacement_characters": _Damage(
        what="with '\ufffd', which stands for characters that are lost",
        mend="export the file again in its own encoding",
        is_rare=True,
    ),
    "control_characters": _Damage(
        what="with control characters such as null bytes",
        mend="remove them: is it the right column?",
    ),
    "no_words": _Damage(
        what="without a letter, only digits, marks or symbols",
        mend="is it the right column? else leave such rows out",
    ),
}


def findings(rows: Dataset, split: str, column: str, places: Places) -> list[Finding]:
    """Return what is wrong with the texts of a split.

    Args:
        rows: With ``id``; missing texts are not looked at.
        split: The name of the split in the source.
        column: That of the texts.
        places: Returns the positions of rows of a split, by their ``id``.
    """
    wanted = None
    if len(rows) > MOST_ROWS:
        wanted = np.sort(np.random.default_rng(0).choice(len(rows), MOST_ROWS, replace=False))
    looked_at = len(rows) if wanted is None else len(wanted)
    tell = partial(of_rows, rows=rows, split=split, places=places, looked_at=looked_at)
    seen: dict[str, list[np.ndarray]] = {name: [] for name in _DAMAGES}
    sizes, numbers = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for some, values in arrow.pieces(rows, column, wanted):
        if not arrow.is_text(values.type):
            continue
        there = pc.fill_null(values, "")
        numbers.append(some)
        sizes.append(pc.utf8_length(there).to_numpy(zero_copy_only=False))
        for name, hits in _damaged(there).items():
            seen[name].append(some[hits])
    found: list[Finding] = []
    for name, damage in _DAMAGES.items():
        which = np.concatenate([*seen[name], np.empty(0, np.int64)])
        severity: Severity | None = "warning" if damage.is_rare else None
        found += tell(name, damage.what, damage.mend, np.sort(which), severity=severity)
    every, lengths = np.concatenate(numbers), np.concatenate(sizes)
    for cut in _cut_at(lengths):
        found += tell(
            "cut_off",
            f"of exactly {cut:,} characters, and few just below: they were probably cut off when "
            "the data was exported",
            "export the whole texts",
            np.sort(every[lengths == cut]),
            severity="warning",
        )
    return found


def _damaged(texts: pa.Array) -> dict[str, np.ndarray]:
    """Return which texts have each damage, each of shape ``(texts,)``, of booleans."""

    def matching(pattern: str) -> np.ndarray:
        return np.asarray(pc.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False))

    misread = matching(_CANDIDATE)
    for place in np.flatnonzero(misread).tolist():
        misread[place] = is_misread(texts[place].as_py())
    return {
        "mojibake": misread,
        "replacement_characters": matching("\ufffd"),
        "control_characters": matching(_CONTROL),
        "no_words": matching("(?s).") & ~matching(_WORD),
    }


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
        fewest = max(_FEWEST_CUT, _TIMES * below / _BELOW, MUCH / 10 * len(lengths))
        if length >= _SHORTEST_CUT and there >= fewest and there > below:
            found.append(length)
    return found
