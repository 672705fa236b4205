"""Texts that were cut off when they were exported, by how many have which length."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from finetune.checking.finding import MUCH
from finetune.data import arrow

#: Lengths of columns of databases and of cells of spreadsheets.
_LIMITS = (255, 256, 500, 512, 1000, 1023, 1024, 2000, 4000, 4096, 8000, 8192, 32767, 65535)
#: The shortest texts that may have been cut off, how many have just that length, and how many times
#: as many as have one of the twenty lengths below it.
_SHORTEST, _FEWEST, _TIMES, _BELOW = 50, 10, 3, 20
#: How texts end that a program shortened between words; the share of the longest that have to, and
#: that of all others that may.
_ELLIPSIS = r"(\.\.\.|\x{2026}|\[\.\.\.\])\s*$"
_MOST_OF_LONGEST, _FEW_OF_OTHERS = 0.8, 0.2
_UNITS = {"characters": pc.utf8_length, "bytes": pc.binary_length}


class Lengths:
    """The lengths of texts, in characters and in bytes, and which end in an ellipsis."""

    def __init__(self) -> None:
        self._lengths = {unit: [np.empty(0, np.int64)] for unit in _UNITS}
        self._ends = [np.empty(0, bool)]
        self._are_words = False

    def add(self, texts: pa.Array) -> None:
        """Count texts; a missing one is empty."""
        self._ends.append(arrow.matching(texts, _ELLIPSIS))
        self._are_words = self._are_words or bool(arrow.matching(texts, r"\s").any())
        for unit, length in _UNITS.items():
            self._lengths[unit].append(length(texts).to_numpy(zero_copy_only=False))

    @property
    def characters(self) -> np.ndarray:
        """Of each text, shape ``(texts,)``."""
        return np.concatenate(self._lengths["characters"])

    def cut(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield what shows that texts were cut off, and which were, shape ``(texts,)``."""
        ends = np.concatenate(self._ends)
        told = np.zeros(len(ends), dtype=bool)
        for unit, parts in self._lengths.items():
            lengths = np.concatenate(parts)
            for length in _piled(lengths) if self._are_words else ():  # sequences may have one
                is_cut = (lengths == length) & ~told
                told |= is_cut
                if is_cut.sum() >= _FEWEST:  # characters of ASCII are bytes, and told
                    yield (
                        f"of exactly {length:,} {unit}, and few just below: they were probably cut "
                        "off when the data was exported",
                        is_cut,
                    )
        lengths = self.characters
        longest = lengths > max(lengths.max(initial=0) - _BELOW, _SHORTEST)
        is_cut = longest & ends & ~told
        if (
            is_cut.sum() >= _FEWEST
            and ends[longest].mean() >= _MOST_OF_LONGEST
            and ends[~longest & (lengths > 0)].mean() <= _FEW_OF_OTHERS
        ):
            yield (
                "that end in '...' like most of the longest, and few others: they were cut",
                is_cut,
            )


def _piled(lengths: np.ndarray) -> list[int]:
    """Return the lengths at which texts were cut off: the greatest, and those that programs cut at,
    if far more texts have it than have one of those just below it.
    """
    found = []
    for length in sorted({int(lengths.max(initial=0)), *_LIMITS}):
        there = int((lengths == length).sum())
        below = int(((lengths < length) & (lengths >= length - _BELOW)).sum())
        fewest = max(_FEWEST, _TIMES * below / _BELOW, MUCH / 10 * len(lengths))
        if length >= _SHORTEST and there >= fewest and there > below:
            found.append(length)
    return found
