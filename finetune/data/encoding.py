"""From texts to tokens: truncated, not padded, the same in training and prediction.

A row is one text, or several parts. Two parts are a pair where the tokenizer knows pairs, with its
own separators and token types; else parts are joined by its separator token. The longest part is
truncated first.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from transformers import BatchEncoding, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from finetune.data.shortening import counts, shortened, without_middle
from finetune.errors import UserError

Truncation = Literal["head", "tail", "head_tail"]
#: What the model reads of a row: a text, or its parts.
Read = str | Sequence[str]
#: Returns it of the rows of these numbers.
Rows = Callable[[np.ndarray], Sequence[Read]]
_BATCH = 1000
#: The share of the tokens that ``head_tail`` keeps from the beginning (Sun et al., 2019, "How to
#: fine-tune BERT for text classification": 128 of 512).
_HEAD = 4
_WHOLE: dict[str, Any] = {"verbose": False, "return_special_tokens_mask": True}


def characters(text: Read) -> int:
    """Return how many characters a text has, or its parts together."""
    return len(text) if isinstance(text, str) else sum(map(len, text))


def knows_pairs(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the tokenizer puts a special token between the two texts of a pair."""
    special = tokenizer.num_special_tokens_to_add
    return special(pair=True) > special(pair=False)


def separator(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return what joins parts that are no pair: a special token, or a line break without any."""
    return str(tokenizer.sep_token or tokenizer.eos_token or "\n")


def allotted(lengths: Sequence[int], budget: int) -> list[int]:
    """Return how many tokens to keep of each part if the longest is truncated first.

    Args:
        lengths: Tokens of the parts.
        budget: To keep in all. Where it cannot be divided evenly, the longest part gets more; of
            equally long ones the last. So do the tokenizers of the library.
    """
    kept, left = [0] * len(lengths), budget
    shortest_first = sorted(range(len(lengths)), key=lambda number: lengths[number])
    for place, number in enumerate(shortest_first):
        kept[number] = min(lengths[number], left // (len(lengths) - place))
        left -= kept[number]
    return kept


@dataclass(frozen=True)
class Encoder:
    """Tokenizes rows.

    Attributes:
        tokenizer: Of the model; its ``truncation_side`` says which end of a text is lost.
        max_length: Longer rows are truncated to this many tokens, special tokens included.
        truncation: ``head_tail`` keeps the first quarter of them and the rest from the end.
    """

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    truncation: Truncation = "head"

    def __call__(self, rows: Sequence[Read]) -> Mapping[str, list[Any]]:
        """Return the outputs of the tokenizer for rows, all of the same number of parts."""
        if not rows or isinstance(rows[0], str):
            texts = [str(row) for row in rows]
            return self._both_ends(texts) if self.truncation == "head_tail" else self._cut(texts)
        parts = [list(column) for column in zip(*rows, strict=True)]
        return self._pairs(parts) if self._is_pair(len(parts)) else self._joined(parts)

    def kept_apart(self, parts: int) -> str:
        """Return how several parts are told apart, in words."""
        if self._is_pair(parts):
            return "a pair of the tokenizer"
        return f"joined by {separator(self.tokenizer)!r}"

    def refuse_too_short(self, parts: int) -> None:
        """Refuse a ``max_length`` that has no room for a token of each of several parts.

        Raises:
            UserError: with the fewest tokens that have.
        """
        if self.max_length < (fewest := self._special(parts) + parts):
            raise UserError(
                f"--max_length {self.max_length}: {parts} columns, with the special tokens around "
                f"and between them, need {fewest} tokens or more"
            )

    def whole_lengths(self, rows: Rows, lengths: np.ndarray) -> np.ndarray:
        """Return the token counts of rows without truncation, from their truncated lengths.

        Only rows of ``max_length`` tokens are tokenized again, and counted as by
        :func:`~finetune.data.shortening.counts`.

        Args:
            rows: Returns what the model reads of the rows of these numbers.
            lengths: Tokens of all rows after truncation, shape ``(rows,)``.
        """
        result = lengths.copy()
        again = np.flatnonzero(lengths == self.max_length)
        for start in range(0, len(again), _BATCH):
            numbers = again[start : start + _BATCH]
            parts = [[row] if isinstance(row, str) else list(row) for row in rows(numbers)]
            found = counts(list(itertools.chain(*parts)), self.tokenizer)
            bounds = np.cumsum([0, *map(len, parts)])[:-1]
            result[numbers] = np.add.reduceat(found, bounds) + self._special(len(parts[0]))
        return result

    def _is_pair(self, parts: int) -> bool:
        return parts == 2 and knows_pairs(self.tokenizer)

    def _special(self, parts: int) -> int:
        """Return the number of tokens around and between parts."""
        special = self.tokenizer.num_special_tokens_to_add
        if self._is_pair(parts):
            return special(pair=True)
        return special() + (parts - 1) * (self._separator_length if parts > 1 else 0)

    @functools.cached_property
    def _separator_length(self) -> int:
        return counts([separator(self.tokenizer)], self.tokenizer)[0]

    def _cut(self, texts: list[str]) -> BatchEncoding:
        short = shortened(texts, self.tokenizer, self.max_length)
        encoded: BatchEncoding = self.tokenizer(short, truncation=True, max_length=self.max_length)
        return encoded

    def _both_ends(self, texts: list[str]) -> dict[str, list[Any]]:
        short = without_middle(texts, self.tokenizer, self.max_length)
        encoded = self.tokenizer(short, **_WHOLE)
        head = self.max_length // _HEAD

        def lost(number: int, own: list[int]) -> list[int]:
            tail = self.max_length - self._special(1) - head
            return own[head : len(own) - tail]

        return self._without(encoded, lost)

    def _pairs(self, parts: list[list[str]]) -> Mapping[str, list[Any]]:
        """Return what the tokenizer makes of pairs, truncated longest first.

        A fast tokenizer would keep what it truncates, for two long texts in all combinations.
        """
        if not isinstance(self.tokenizer, PreTrainedTokenizerFast):
            limit: dict[str, Any] = {"truncation": "longest_first", "max_length": self.max_length}
            encoded: BatchEncoding = self.tokenizer(*parts, **limit)
            return encoded
        short = [shortened(texts, self.tokenizer, self.max_length) for texts in parts]
        encoded = self.tokenizer(*short, **_WHOLE)
        budget = self.max_length - self._special(2)

        def lost(number: int, own: list[int]) -> list[int]:
            sides = encoded.sequence_ids(number)
            groups = [[place for place in own if sides[place] == side] for side in (0, 1)]
            lengths = [len(group) for group in groups]
            both = [texts[number] for texts in parts]
            if min(lengths) > budget // 2 and both != [texts[number] for texts in short]:
                # the longer text gets an odd token, and only whole ones say which it is
                lengths = counts(both, self.tokenizer)
            return self._beyond(groups, allotted(lengths, budget))

        return self._without(encoded, lost)

    def _beyond(self, groups: Sequence[list[int]], kept: Sequence[int]) -> list[int]:
        """Return the places of the tokens of each part that are truncated."""
        from_left = self.tokenizer.truncation_side == "left"
        return [
            place
            for group, most in zip(groups, kept, strict=True)
            for place in (group[: len(group) - most] if from_left else group[most:])
        ]

    def _joined(self, parts: list[list[str]]) -> dict[str, list[Any]]:
        short = [shortened(texts, self.tokenizer, self.max_length) for texts in parts]
        between = separator(self.tokenizer)
        rows = list(zip(*short, strict=True))
        is_fast = isinstance(self.tokenizer, PreTrainedTokenizerFast)
        texts = [between.join(row) for row in rows]
        encoded = self.tokenizer(texts, return_offsets_mapping=is_fast, **_WHOLE)

        def lost(number: int, own: list[int]) -> list[int]:
            if is_fast:
                starts = [encoded["offset_mapping"][number][place][0] for place in own]
                groups = _by_character(own, starts, [len(text) for text in rows[number]], between)
            else:
                groups = self._by_count(own, rows[number])
            budget = self.max_length - (len(encoded["input_ids"][number]) - sum(map(len, groups)))
            # what is beyond the budget was perhaps left out already, and must not count
            return self._beyond(groups, allotted([min(len(g), budget) for g in groups], budget))

        return self._without(encoded, lost)

    def _by_count(self, own: list[int], row: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each part, for tokenizers that know no characters."""
        groups, start = [], 0
        for length in counts(row, self.tokenizer):
            groups.append(own[start : start + length])
            start += length + self._separator_length
        return groups

    def _without(self, encoded: BatchEncoding, lost: Any) -> dict[str, list[Any]]:
        """Return ``encoded`` with long rows truncated.

        Args:
            encoded: Whole, with masks of the special tokens.
            lost: Takes the number of a row and the places of its tokens that are not special;
                returns those to leave out.
        """
        names = [name for name in encoded if name not in ("special_tokens_mask", "offset_mapping")]
        result = {name: list(encoded[name]) for name in names}
        for number, mask in enumerate(encoded["special_tokens_mask"]):
            if len(mask) > self.max_length:
                gone = set(lost(number, [place for place, each in enumerate(mask) if not each]))
                for name in names:
                    values = result[name][number]
                    result[name][number] = [v for p, v in enumerate(values) if p not in gone]
        return result


def _by_character(
    own: list[int], starts: list[int], lengths: list[int], between: str
) -> list[list[int]]:
    """Return the tokens of each part of a joined text, separators left out.

    Args:
        own: Places of the tokens that are not special.
        starts: The character at which each of them begins.
        lengths: Characters of the parts.
        between: The separator.
    """
    edges, end = [], 0
    for length in lengths:  # of a part, and of the separator after it
        edges += [end + length, end + length + len(between)]
        end = edges[-1]
    groups: list[list[int]] = [[] for _ in lengths]
    for place, start in zip(own, starts, strict=True):
        number, after = divmod(bisect.bisect_right(edges, start), 2)
        if not after and number < len(groups):
            groups[number].append(place)
    return groups
