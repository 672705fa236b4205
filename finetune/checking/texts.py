"""Texts that were damaged on their way into the file: read in the wrong encoding, cut off, empty of
words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from finetune.checking import cuts
from finetune.checking.finding import EXCLUDE, of_rows
from finetune.data import arrow
from finetune.data.digests import TEXTS
from finetune.errors import Finding, Severity

#: Rows of a split that are looked at: of more, this many drawn at random.
MOST_ROWS = 100_000
#: UTF-8 that was read as Windows-1252: the first of two to four bytes, and those that follow.
_MISREAD = re.compile(r"[\xc2-\xf4][^\x00-\x7f]{1,3}")
_CANDIDATE = r"[\x{c2}-\x{f4}][^\x00-\x7f]"
#: First bytes of Western letters, signs and emoji; others are letters of the West themselves, which
#: may stand before a quotation mark, and count from the second on.
_USUAL = "\xc2\xc3\xe2\xf0"
_WORD = r"\p{L}"
#: Characters from which on a text is far longer than others, if it is so many times the median.
LONG, _TIMES_LONGER = 100_000, 100
_CONTROL = r"[\x00-\x08\x0e-\x1f]"


@dataclass(frozen=True, kw_only=True)
class _Damage:
    """A kind of damage: what a finding says of it, what to do before rows are left out, and whether
    few rows of it are suspicious.
    """

    what: str
    fix: str
    is_rare: bool = False


_DAMAGES = {
    "mojibake": _Damage(
        what="with UTF-8 that was read in another encoding, like 'Ã©' for 'é'",
        fix="export the file again as UTF-8, or repair the texts (the package ftfy does); else",
        is_rare=True,
    ),
    "replacement_characters": _Damage(
        what="with '\ufffd', which stands for characters that are lost",
        fix="export the file again in its own encoding; else",
        is_rare=True,
    ),
    "null_bytes": _Damage(
        what="with null bytes, which no text has unless its file was damaged",
        fix="export it again, or remove these bytes; else",
        is_rare=True,
    ),
    "control_characters": _Damage(
        what="with control characters",
        fix="is it the right column? If so, remove the characters; else",
    ),
    "no_words": _Damage(
        what="without a letter, only digits, marks or symbols",
        fix="is it the right column? If so,",
    ),
}


def findings(rows: Dataset, split: str, columns: Sequence[str]) -> Iterator[Finding]:
    """Yield what is wrong with the texts of a split.

    Args:
        rows: With ``id`` and ``text``, and ``texts`` if the model reads several columns; missing
            texts are not looked at.
        split: The name of the split in the source.
        columns: What the columns are called in the data.
    """
    wanted = None
    if len(rows) > MOST_ROWS:
        wanted = np.sort(np.random.default_rng(0).choice(len(rows), MOST_ROWS, replace=False))
    tell = partial(
        of_rows,
        rows=rows,
        split=split,
        examined=len(rows) if wanted is None else len(wanted),
    )
    are_several = TEXTS in rows.column_names
    stored = TEXTS if are_several else "text"
    for part, column in enumerate(columns if stored in rows.column_names else ()):
        where = f" in '{column}'" if are_several else ""
        numbers, lengths = [np.empty(0, np.int64)], cuts.Lengths()
        hits: dict[str, list[np.ndarray]] = {name: [np.empty(0, np.int64)] for name in _DAMAGES}
        for some, values in arrow.pieces(rows, stored, wanted):
            texts = pc.list_element(values, part) if are_several else values
            if not arrow.is_text(texts.type):
                continue
            texts = pc.fill_null(texts, "")
            numbers.append(some)
            lengths.add(texts)
            for name, is_damaged in _damaged(texts).items():
                hits[name].append(some[is_damaged])
        for name, damage in _DAMAGES.items():
            severity: Severity | None = "warning" if damage.is_rare else None
            which = np.sort(np.concatenate(hits[name]))
            fix = f"{damage.fix} {EXCLUDE}"
            yield from tell(name, damage.what + where, fix, which, severity=severity)
        every = np.concatenate(numbers)
        characters = lengths.characters
        is_long, usual = far_longer(characters)
        yield from tell(
            "far_longer",
            f"far longer than the others{where}, up to {characters.max(initial=0):,} characters, "
            f"where half have {usual:,} or fewer",
            "did rows run together, by a quotation mark that is never closed for instance? If so, "
            f"correct them; else {EXCLUDE}",
            np.sort(every[is_long]),
            severity="warning",
        )
        for what, is_cut in lengths.cut():
            which, fix = np.sort(every[is_cut]), f"export the whole texts; else {EXCLUDE}"
            yield from tell("cut_off", what + where, fix, which, severity="warning")


def far_longer(characters: np.ndarray) -> tuple[np.ndarray, int]:
    """Return which texts are far longer than the others, shape ``(texts,)``, and what half of those
    that are not empty have or fewer.

    Args:
        characters: How many each has, likewise.
    """
    usual = int(np.median(characters[characters > 0])) if characters.any() else 0
    return characters > max(LONG, _TIMES_LONGER * usual), usual


def _damaged(texts: pa.Array) -> dict[str, np.ndarray]:
    """Return which texts have each damage, each of shape ``(texts,)``, of booleans."""
    misread = arrow.matching(texts, _CANDIDATE)
    for place in np.flatnonzero(misread).tolist():
        misread[place] = is_misread(texts[place].as_py())
    control = arrow.matching(texts, _CONTROL)
    null = control & arrow.matching(texts, r"\x00") if control.any() else control
    return {
        "mojibake": misread,
        "replacement_characters": arrow.matching(texts, "\ufffd"),
        "null_bytes": null,
        "control_characters": control & ~null,
        "no_words": arrow.matching(texts, "(?s).") & ~arrow.matching(texts, _WORD),
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
