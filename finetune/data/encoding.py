"""From texts to tokens: truncated, not padded, the same in training and prediction.

A row is one text, or several parts. Two parts are a pair where the tokenizer has pairs, with its
own separators and token types; other parts are joined by its separator token. The longest part is
truncated first.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any, Literal

import numpy as np
from transformers import PreTrainedTokenizerBase

from finetune.errors import UserError

Truncation = Literal["head", "tail", "head_tail"]
#: What the model reads of a row: a text, or its parts.
Read = str | Sequence[str]
#: Returns it for the rows of these numbers.
Rows = Callable[[np.ndarray], Sequence[Read]]
#: A row as the tokenizer returns it: ``input_ids``, ``attention_mask`` and the like.
Columns = dict[str, list[int]]
#: ``head_tail`` keeps a quarter of the tokens from the beginning (Sun et al., 2019, "How to
#: fine-tune BERT for text classification": 128 of 512).
_HEAD = 4
#: A text is cut to so many characters a token, and no fewer in all, before it is tokenized: most
#: have 3 to 6 a token, and a text of 5 MB takes 4 s.
_CHARACTERS_PER_TOKEN, _FEWEST_CHARACTERS = 32, 2**14
#: Characters that are tokenized in one call, about: a tokenizer needs 100 times as many bytes.
_CHARACTERS_PER_CALL = 2**20
#: Characters by which the tokens of a longer text are estimated.
_COUNTED = 200_000
_SAMPLE = "a b c d e f g h i j k l m n o p q r s t u v w x y z"


def characters(text: Read) -> int:
    """Return how many characters a text has, or its parts together."""
    return len(text) if isinstance(text, str) else sum(map(len, text))


def is_pair(tokenizer: PreTrainedTokenizerBase, columns: int) -> bool:
    """Return whether so many texts are a pair, between which the tokenizer puts special tokens."""
    special = tokenizer.num_special_tokens_to_add
    return columns == 2 and special(pair=True) > special(pair=False)


def separator(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return what joins parts that are no pair: a special token, or a line break without any."""
    return str(tokenizer.sep_token or tokenizer.eos_token or "\n")


def token_ids(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], **options: Any
) -> Iterator[list[int]]:
    """Yield the tokens of texts without special tokens and truncation, a megabyte in a call."""
    for name in ("add_special_tokens", "return_attention_mask", "return_token_type_ids", "verbose"):
        options[name] = False
    calls = (np.cumsum([len(text) for text in texts]) // _CHARACTERS_PER_CALL).tolist()
    for _, group in itertools.groupby(zip(calls, texts, strict=True), key=lambda pair: pair[0]):
        yield from tokenizer([text for _, text in group], **options)["input_ids"]


class Frame:
    """The special tokens that a tokenizer puts around a text, or around the two of a pair.

    Args:
        tokenizer: Of the model.
        texts: 1, or 2 for a pair.

    Attributes:
        size: How many special tokens there are.

    Raises:
        UserError: If the tokens of a text are not among those with special tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, texts: int = 1) -> None:
        self._example: Columns = dict(tokenizer(*[_SAMPLE] * texts, verbose=False))
        ids, (sample_ids,) = self._example["input_ids"], token_ids(tokenizer, [_SAMPLE])
        self.size = len(ids) - texts * len(sample_ids)
        self._bounds = [0]  # where the texts begin and end in the example
        for _ in range(texts):
            begin, size = self._bounds[-1], len(sample_ids)
            while ids[begin : begin + size] != sample_ids or not size:
                if begin == len(ids):
                    raise UserError(
                        f"{type(tokenizer).__name__} does not put its special tokens around those "
                        "of the text: use --long_texts cut, --truncation head, one --text_column"
                    )
                begin += 1
            self._bounds += [begin, begin + size]

    def row(self, *texts: list[int]) -> Columns:
        """Return the row of the tokens of as many texts."""
        row = {}
        for name, values in self._example.items():
            column, position = list[int](), 0
            for text, begin, end in zip(texts, self._bounds[1::2], self._bounds[2::2], strict=True):
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
        end: Number and spelling of the token at which the heads of encoder-decoders read a text;
            they fail where a text has it inside, as tokenizers of SentencePiece find it there.
    """

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    truncation: Truncation = "head"
    end: tuple[int, str] | None = None

    def __call__(self, rows: Sequence[Read]) -> Mapping[str, list[Any]]:
        """Return the outputs of the tokenizer for rows, all of the same number of parts.

        Raises:
            UserError: If a text spells out the token that ends it.
        """
        columns = _columns(rows)
        encoded = self._encode(columns)
        if rows and self.end is not None:
            (example,) = self._encode([["a"]] * len(columns))["input_ids"]
            self.refuse_ends(rows, encoded["input_ids"], example.count(self.end[0]))
        return encoded

    def refuse_ends(self, rows: Sequence[Read], tokens: Sequence[list[int]], count: int) -> None:
        """Refuse rows whose tokens have the token that ends a text more than ``count`` times."""
        for row, ids in zip(rows, tokens, strict=True):
            if self.end is not None and ids.count(self.end[0]) > count:
                text = shorten(row if isinstance(row, str) else " ".join(row), 60)
                raise UserError(
                    f"the text '{text}' spells out '{self.end[1]}', the token that ends a text for "
                    "this model: take it out of the texts"
                )

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
        fewest = self._frame_size(parts) + parts
        if self.max_length < fewest:
            raise UserError(
                f"--max_length {self.max_length}: {parts} columns, with the special tokens around "
                f"and between them, need {fewest} tokens or more"
            )

    def whole_lengths(self, rows: Sequence[Read]) -> np.ndarray:
        """Return the tokens of rows without truncation, special tokens included, shape ``(rows,)``.

        Those of a text of more than 200,000 characters are estimated from its beginning.
        """
        columns = _columns(rows)
        beginnings = [[text[:_COUNTED] for text in texts] for texts in columns]
        lengths = np.full(len(rows), self._frame_size(len(columns)), dtype=np.int64)
        for number, parts in enumerate(self._tokens(beginnings)):
            for ids, texts in zip(parts, columns, strict=True):
                lengths[number] += round(len(ids) * max(1, len(texts[number]) / _COUNTED))
        return lengths

    def _encode(self, columns: Sequence[Sequence[str]]) -> Mapping[str, list[Any]]:
        """Return the outputs of the tokenizer for columns of texts."""
        columns = [[self._clip(str(text)) for text in column] for column in columns]
        if len(columns) == 1 and (self.truncation != "head_tail" or not columns[0]):
            limit: dict[str, Any] = {"truncation": True, "max_length": self.max_length}
            encoded: Mapping[str, list[Any]] = self.tokenizer(*columns, **limit)
            return encoded
        # a fast tokenizer would make all combinations of what it truncates of both texts of a pair
        are_pair = is_pair(self.tokenizer, len(columns))
        frame = Frame(self.tokenizer, 2) if are_pair else self.frame
        room, rows = self.max_length - self._frame_size(len(columns)), []
        for parts in self._tokens(columns):
            lengths = [len(ids) for ids in parts]
            if self.truncation == "head_tail":
                (ids,), head = parts, self.max_length // _HEAD
                tail = max(head, len(ids) - room + head)
                rows.append(frame.row(ids[:head] + ids[tail:]))
            elif are_pair:
                rows.append(frame.row(*self._truncate(parts, lengths, room)))
            else:
                first, *rest = self._truncate(parts, [min(n, room) for n in lengths], room)
                joined = itertools.chain(first, *([*self._separator, *ids] for ids in rest))
                rows.append(frame.row([*joined]))
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _clip(self, text: str) -> str:
        """Return a long text without most of what truncation leaves out; the whole text if the rest
        has so few tokens that others might be kept.
        """
        size = max(_CHARACTERS_PER_TOKEN * self.max_length, _FEWEST_CHARACTERS)
        if len(text) <= 2 * size:
            return text
        clipped = text[-size:] if self.tokenizer.truncation_side == "left" else text[:size]
        if self.truncation == "head_tail":
            clipped = f"{text[:size]} {text[-size:]}"
        (ids,) = token_ids(self.tokenizer, [clipped])
        return clipped if len(ids) >= 2 * self.max_length else text

    @functools.cached_property
    def frame(self) -> Frame:
        """The special tokens around a text."""
        return Frame(self.tokenizer)

    @functools.cached_property
    def _separator(self) -> list[int]:
        """The tokens between parts that are joined."""
        (ids,) = token_ids(self.tokenizer, [separator(self.tokenizer)], split_special_tokens=False)
        return ids

    def _frame_size(self, parts: int) -> int:
        """Return how many special tokens are around and between parts."""
        are_pair = is_pair(self.tokenizer, parts)
        separators = 0 if parts == 1 or are_pair else (parts - 1) * len(self._separator)
        return int(self.tokenizer.num_special_tokens_to_add(pair=are_pair)) + separators

    def _tokens(self, columns: Sequence[Sequence[str]]) -> Iterator[list[list[int]]]:
        """Yield the tokens of the parts of each row, without special tokens and truncation.

        Of parts that are joined, all but the first are tokenized behind the separator: a tokenizer
        of SentencePiece marks the beginning of the first part only.
        """
        prefix, size, options = "", 0, dict[str, Any]()
        if len(columns) > 1 and not is_pair(self.tokenizer, len(columns)):
            prefix, size = separator(self.tokenizer), len(self._separator)
            options = {"split_special_tokens": False}
        texts = [*columns[:1], *([prefix + text for text in column] for column in columns[1:])]
        parts = [token_ids(self.tokenizer, column, **options) for column in texts]
        for first, *rest in zip(*parts, strict=True):
            yield [first, *(ids[size:] for ids in rest)]

    def _truncate(
        self, parts: Sequence[list[int]], lengths: Sequence[int], room: int
    ) -> list[list[int]]:
        """Return the parts with ``room`` tokens in all, the longest truncated first; of equally
        long ones the last has more, as with ``longest_first`` of fast tokenizers.
        """
        shortest_first, shortened = sorted(range(len(parts)), key=lambda n: lengths[n]), [*parts]
        for place, number in enumerate(shortest_first):
            ids, share = parts[number], min(lengths[number], room // (len(parts) - place))
            is_left = self.tokenizer.truncation_side == "left"
            shortened[number] = ids[len(ids) - share :] if is_left else ids[:share]
            room -= share
        return shortened


def _columns(rows: Sequence[Read]) -> list[Sequence[str]]:
    """Return the texts of rows, or each of their parts, as columns."""
    if not rows or isinstance(rows[0], str):
        return [[row for row in rows if isinstance(row, str)]]
    return [*zip(*rows, strict=True)]
