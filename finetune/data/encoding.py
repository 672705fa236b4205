"""From texts to tokens: truncated, not padded, the same in training and prediction.

A row is one text, or several parts. Two parts are a pair where the tokenizer knows pairs, with its
own separators and token types; else parts are joined by its separator token. The longest part is
truncated first.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from transformers import BatchEncoding, PreTrainedTokenizerBase

from finetune.errors import UserError

Truncation = Literal["head", "tail", "head_tail"]
#: What the model reads of a row: a text, or its parts.
Read = str | Sequence[str]
#: Returns it for the rows of these numbers.
Rows = Callable[[np.ndarray], Sequence[Read]]
#: A row as the tokenizer returns it: ``input_ids``, ``attention_mask`` and the like.
Columns = dict[str, list[int]]
#: The share of the tokens that ``head_tail`` keeps from the beginning (Sun et al., 2019, "How to
#: fine-tune BERT for text classification": 128 of 512).
_HEAD = 4
#: A text is cut to so many characters a token, and no fewer in all, before it is tokenized: a text
#: of 5 MB takes 4 s otherwise. Most have 3 to 6 a token; one of too few tokens is tokenized whole.
_CHARACTERS_PER_TOKEN, _FEWEST_CHARACTERS = 32, 2**14
#: Characters that are tokenized in one call, about: a tokenizer needs 100 times as many bytes.
_CHARACTERS_PER_CALL = 2**20
#: Characters by which the tokens of a longer text are estimated.
_COUNTED = 200_000
_SAMPLE = "a b c d e f g h i j k l m n o p q r s t u v w x y z"


def characters(text: Read) -> int:
    """Return how many characters a text has, or its parts together."""
    return len(text) if isinstance(text, str) else sum(map(len, text))


def knows_pairs(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the tokenizer puts a special token between the two texts of a pair."""
    special = tokenizer.num_special_tokens_to_add
    return special(pair=True) > special(pair=False)


def is_pair(tokenizer: PreTrainedTokenizerBase, columns: int) -> bool:
    """Return whether so many texts are a pair of the tokenizer; else several are joined."""
    return columns == 2 and knows_pairs(tokenizer)


def separator(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return what joins parts that are no pair: a special token, or a line break without any."""
    return str(tokenizer.sep_token or tokenizer.eos_token or "\n")


def token_ids(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], **options: Any
) -> Iterator[list[int]]:
    """Yield the tokens of texts without special tokens and truncation, made a megabyte at once."""
    for name in ("add_special_tokens", "return_attention_mask", "return_token_type_ids", "verbose"):
        options[name] = False
    calls = (np.cumsum([len(text) for text in texts]) // _CHARACTERS_PER_CALL).tolist()
    for _, group in itertools.groupby(zip(calls, texts, strict=True), key=lambda pair: pair[0]):
        yield from tokenizer([text for _, text in group], **options)["input_ids"]


def allotted(lengths: Sequence[int], budget: int) -> list[int]:
    """Return how many tokens to keep of each part if the longest is truncated first.

    Args:
        lengths: Tokens of the parts.
        budget: To keep in all. Where it cannot be divided evenly, the longest part gets more; of
            equally long ones the last. So do the tokenizers of the library.
    """
    shares, left = [0] * len(lengths), budget
    shortest_first = sorted(range(len(lengths)), key=lambda number: lengths[number])
    for place, number in enumerate(shortest_first):
        shares[number] = min(lengths[number], left // (len(lengths) - place))
        left -= shares[number]
    return shares


@dataclass(frozen=True)
class Frame:
    """The special tokens that a tokenizer puts around a text, or around the two of a pair.

    Attributes:
        example: What it returns for texts of sample words.
        bounds: Where the texts begin and end in the example, one after the other.
    """

    example: Columns
    bounds: tuple[int, ...]

    @classmethod
    def of_tokenizer(cls, tokenizer: PreTrainedTokenizerBase, texts: int = 1) -> Frame:
        """Find it.

        Args:
            tokenizer: Of the model.
            texts: 1, or 2 for a pair.

        Raises:
            UserError: If the tokens of a text are not found among those with special tokens.
        """
        example = dict(tokenizer(*[_SAMPLE] * texts, verbose=False))
        ids, (plain,) = example["input_ids"], token_ids(tokenizer, [_SAMPLE])
        bounds, size = [0], len(plain)
        for _ in range(texts):
            starts = range(bounds[-1], len(ids) - size + 1)
            begin = next((start for start in starts if ids[start : start + size] == plain), None)
            if begin is None or not plain:
                raise UserError(
                    f"{type(tokenizer).__name__} does not put its special tokens around those of "
                    "the text: use --long_texts cut, --truncation head and one --text_column"
                )
            bounds += [begin, begin + size]
        return cls(example, tuple(bounds[1:]))

    @property
    def size(self) -> int:
        """The number of special tokens."""
        inside = sum(self.bounds[1::2]) - sum(self.bounds[::2])
        return len(self.example["input_ids"]) - inside

    def row(self, *texts: list[int]) -> Columns:
        """Return the row of the tokens of as many texts."""
        row = {}
        for name, values in self.example.items():
            column, position = list[int](), 0
            for text, begin, end in zip(texts, self.bounds[::2], self.bounds[1::2], strict=True):
                column += values[position:begin]
                column += text if name == "input_ids" else [values[begin]] * len(text)
                position = end
            row[name] = column + values[position:]
        return row


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
        if not rows or (isinstance(rows[0], str) and self.truncation != "head_tail"):
            return self._truncated([str(row) for row in rows])
        framed = [self._frame(rows[0]).row(*self._shortened(row)) for row in self._tokens(rows)]
        return {name: [row[name] for row in framed] for name in framed[0]}

    def describe_joining(self, parts: int) -> str:
        """Return in words how several parts become one row."""
        if is_pair(self.tokenizer, parts):
            return "a pair of the tokenizer"
        return f"joined by {separator(self.tokenizer)!r}"

    def refuse_too_short(self, parts: int) -> None:
        """Refuse a ``max_length`` that has no room for a token of each of several parts.

        Raises:
            UserError: With the fewest tokens that have.
        """
        row = [""] * parts
        between = 0 if self._is_pair(row) else (parts - 1) * len(self._separator)
        fewest = self._frame(row).size + between + parts
        if self.max_length < fewest:
            raise UserError(
                f"--max_length {self.max_length}: {parts} columns, with the special tokens around "
                f"and between them, need {fewest} tokens or more"
            )

    def whole_lengths(self, rows: Sequence[Read]) -> np.ndarray:
        """Return the tokens of rows without truncation, special tokens included, shape ``(rows,)``.

        Those of a text of more than 200,000 characters are estimated from its beginning.
        """
        beginnings = [
            row[:_COUNTED] if isinstance(row, str) else [text[:_COUNTED] for text in row]
            for row in rows
        ]
        lengths = np.zeros(len(rows), dtype=np.int64)
        for number, tokens in enumerate(self._tokens(beginnings, whole=True) if rows else ()):
            scale = characters(rows[number]) / max(1, characters(beginnings[number]))
            special = self._frame(rows[number]).size
            lengths[number] = round(sum(map(len, tokens)) * scale) + special
        return lengths

    def _is_pair(self, row: Read) -> bool:
        return not isinstance(row, str) and is_pair(self.tokenizer, len(row))

    def _frame(self, row: Read) -> Frame:
        return self._frames[self._is_pair(row)]

    @functools.cached_property
    def _frames(self) -> tuple[Frame, Frame]:
        """Around a text, and around a pair."""
        texts = 2 if knows_pairs(self.tokenizer) else 1
        return Frame.of_tokenizer(self.tokenizer), Frame.of_tokenizer(self.tokenizer, texts)

    @functools.cached_property
    def _separator(self) -> list[int]:
        """The tokens between parts that are joined."""
        (ids,) = token_ids(self.tokenizer, [separator(self.tokenizer)], split_special_tokens=False)
        return ids

    def _tokens(self, rows: Sequence[Read], *, whole: bool = False) -> list[list[list[int]]]:
        """Return the tokens of the parts of rows, as many of each as may be kept.

        The second and later of joined parts begin with the tokens of the separator: a tokenizer of
        SentencePiece marks the beginning of the first part only.
        """
        if isinstance(rows[0], str):
            columns: list[list[str]] = [[str(row) for row in rows]]
        else:
            columns = [list(column) for column in zip(*rows, strict=True)]
        is_joined = len(columns) > 1 and not self._is_pair(rows[0])
        between = separator(self.tokenizer) if is_joined else ""
        options = {"split_special_tokens": False} if is_joined else {}
        tokens = []
        for number, texts in enumerate(columns):
            prefix = between if number else ""
            short = texts if whole else [self._clipped(text) for text in texts]
            ids = [*token_ids(self.tokenizer, [prefix + text for text in short], **options)]
            for place, text in enumerate(texts):
                if short[place] is not text and len(ids[place]) < 2 * self.max_length:
                    (ids[place],) = token_ids(self.tokenizer, [prefix + text], **options)
            tokens.append(ids)
        return [list(parts) for parts in zip(*tokens, strict=True)]

    def _clipped(self, text: str) -> str:
        """Return a long text without most of what truncation leaves out."""
        size = max(_CHARACTERS_PER_TOKEN * self.max_length, _FEWEST_CHARACTERS)
        if len(text) <= 2 * size:
            return text
        if self.truncation == "head_tail":
            return f"{text[:size]} {text[-size:]}"
        return text[-size:] if self.tokenizer.truncation_side == "left" else text[:size]

    def _truncated(self, texts: list[str]) -> Mapping[str, list[Any]]:
        """Return what the tokenizer itself makes of single texts."""
        limit: dict[str, Any] = {"truncation": True, "max_length": self.max_length}
        short = [self._clipped(text) for text in texts]
        encoded: BatchEncoding = self.tokenizer(short, **limit)
        for number, text in enumerate(texts):
            is_clipped = short[number] is not text
            if is_clipped and len(encoded["input_ids"][number]) < self.max_length:
                for name, values in self.tokenizer(text, **limit).items():
                    encoded[name][number] = values
        return encoded

    def _shortened(self, parts: list[list[int]]) -> list[list[int]]:
        """Return the tokens of a row that are kept: of a text, of joined parts, or of a pair."""
        are_pair = is_pair(self.tokenizer, len(parts))
        budget = self.max_length - self._frames[are_pair].size
        if self.truncation == "head_tail":
            (ids,) = parts
            head = self.max_length // _HEAD
            return [ids if len(ids) <= budget else ids[:head] + ids[len(ids) - budget + head :]]
        if are_pair:
            shares = allotted([len(ids) for ids in parts], budget)
            return [self._one_end(ids, share) for ids, share in zip(parts, shares, strict=True)]
        between = len(self._separator)
        bare = [ids[between:] if number else ids for number, ids in enumerate(parts)]
        budget -= between * (len(parts) - 1)
        shares = allotted([min(len(ids), budget) for ids in bare], budget)
        row = self._one_end(bare[0], shares[0])
        for ids, share in zip(bare[1:], shares[1:], strict=True):
            row = [*row, *self._separator, *self._one_end(ids, share)]
        return [row]

    def _one_end(self, ids: list[int], share: int) -> list[int]:
        return ids[len(ids) - share :] if self.tokenizer.truncation_side == "left" else ids[:share]
