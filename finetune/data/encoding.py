"""From texts to tokens: truncated, not padded, the same in training and prediction.

A row is one text, or several parts. Two parts are a pair where the tokenizer has pairs, with its
own separators and token types; other parts are joined by its separator token. The longest part is
truncated first.

Or a text of more than ``max_length`` tokens is cut into overlapping windows of exactly so many,
special tokens included, which share ``stride`` tokens with the next; the last one ends with the
text, and shares more. Each is a row, and a column :data:`COLUMN` has the number of its document;
the outputs of a model for them are pooled. With a fast tokenizer these are the windows of its
``return_overflowing_tokens`` but for the last, which is what ``truncation_side="left"`` keeps.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any, Literal

import numpy as np
from transformers import PreTrainedTokenizerBase

from finetune.errors import UserError

Truncation = Literal["head", "tail", "head_tail"]
#: What the model reads of a row: a text, or its parts.
Read = str | Sequence[str]
#: A row as the tokenizer returns it: ``input_ids``, ``attention_mask`` and the like.
Columns = dict[str, list[int]]
#: ``head_tail`` keeps a quarter of the tokens from the beginning (Sun et al., 2019, "How to
#: fine-tune BERT for text classification": 128 of 512).
_HEAD = 4
#: A text is cut to so many characters a token, and no fewer in all, before it is tokenized: most
#: have 3 to 6 a token, and a text of 5 MB takes 4 s.
_CHARACTERS_PER_TOKEN = 32
_FEWEST_CHARACTERS = 2**14
#: Characters that are tokenized in one call, about: a tokenizer needs 100 times as many bytes.
_CHARACTERS_PER_CALL = 2**20
#: The column of prepared rows with the number of their document in its split.
COLUMN = "document"
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
    """The ``size`` special tokens that a tokenizer puts around a text, or those of a pair.

    Raises:
        UserError: If the tokens of a text are not among those with special tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, texts: int = 1) -> None:
        self._example: Columns = dict(tokenizer(*[_SAMPLE] * texts, verbose=False))
        ids = self._example["input_ids"]
        (sample,) = token_ids(tokenizer, [_SAMPLE])
        size = len(sample)
        starts = [n for n in range(len(ids)) if ids[n : n + size] == sample] if size else []
        if len(starts) != texts:
            raise UserError(
                f"{type(tokenizer).__name__} does not put special tokens around the text: expected "
                "--long_texts cut, --truncation head, one --text_column"
            )
        self._spans = [(start, start + size) for start in starts]  # of the texts in the example
        self.size = len(ids) - texts * size

    def row(self, *texts: list[int]) -> Columns:
        """Return the row of the tokens of as many texts."""
        row = {}
        for name, values in self._example.items():
            column: list[int] = []
            position = 0
            for text, (begin, end) in zip(texts, self._spans, strict=True):
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
        reads_end: Whether the head reads a text at its end token, as those of encoder-decoders do.
    """

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    truncation: Truncation = "head"
    reads_end: bool = False

    def __call__(self, rows: Sequence[Read]) -> Mapping[str, list[Any]]:
        """Return the outputs of the tokenizer for rows, all of the same number of parts."""
        columns = [[self._clip(text) for text in column] for column in _columns(rows)]
        self.refuse_end_tokens(itertools.chain(*columns))
        if len(columns) == 1 and self.truncation != "head_tail":
            return dict(self.tokenizer(*columns, truncation=True, max_length=self.max_length))
        # a fast tokenizer would make all combinations of what it truncates of both texts of a pair
        are_pair = is_pair(self.tokenizer, len(columns))
        frame = Frame(self.tokenizer, 2) if are_pair else self.frame
        room = self.max_length - self._frame_size(len(columns))
        encoded_rows = [
            frame.row(*self._cut(parts, room, are_pair)) for parts in self._tokens(columns)
        ]
        return {name: [row[name] for row in encoded_rows] for name in encoded_rows[0]}

    def refuse_end_tokens(self, texts: Iterable[str]) -> None:
        """Refuse a text in which the tokenizer finds the end token: the head would read there."""
        end = self.tokenizer.eos_token
        suspects = [text for text in texts if self.reads_end and end in text]
        for text, ids in zip(suspects, token_ids(self.tokenizer, suspects), strict=True):
            if self.tokenizer.eos_token_id in ids:
                place = f"the text '{shorten(text, 60)}'"
                raise UserError(f"{place} has '{end}', which ends a text of this model: remove it")

    def refuse_too_short(self, parts: int) -> None:
        """Refuse a ``max_length`` that has no room for a token of each of several parts."""
        fewest = self._frame_size(parts) + parts
        if self.max_length < fewest:
            expected = f"expected {fewest} or more for {parts} columns"
            raise UserError(f"--max_length {self.max_length}: {expected} and special tokens")

    def whole_lengths(self, rows: Sequence[Read]) -> np.ndarray:
        """Return how many tokens rows have, special ones too, not truncated, shape ``(rows,)``."""
        columns = _columns(rows)
        frame_size = self._frame_size(len(columns))
        return np.array([frame_size + sum(map(len, parts)) for parts in self._tokens(columns)])

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
        (ids,) = token_ids(self.tokenizer, [separator(self.tokenizer)], split_special_tokens=False)
        return ids

    def _frame_size(self, parts: int) -> int:
        are_pair = is_pair(self.tokenizer, parts)
        separators = 0 if parts == 1 or are_pair else (parts - 1) * len(self._separator)
        return int(self.tokenizer.num_special_tokens_to_add(pair=are_pair)) + separators

    def _tokens(self, columns: Sequence[Sequence[str]]) -> Iterator[list[list[int]]]:
        """Yield the tokens of the parts of each row, without special tokens and truncation.

        Of parts that are joined, all but the first are tokenized behind the separator: a tokenizer
        of SentencePiece marks the beginning of the first part only.
        """
        are_joined = len(columns) > 1 and not is_pair(self.tokenizer, len(columns))
        prefix = separator(self.tokenizer) if are_joined else ""
        size = len(self._separator) if are_joined else 0
        options: dict[str, Any] = {"split_special_tokens": False} if are_joined else {}
        texts = [*columns[:1], *([prefix + text for text in column] for column in columns[1:])]
        parts = [token_ids(self.tokenizer, column, **options) for column in texts]
        for first, *rest in zip(*parts, strict=True):
            yield [first, *(ids[size:] for ids in rest)]

    def _cut(self, parts: Sequence[list[int]], room: int, are_pair: bool) -> list[list[int]]:
        """Return the two parts of a pair, or all joined, with ``room`` tokens in all. The longest
        is truncated first; of equally long ones the last has more, as with fast tokenizers.
        """
        if self.truncation == "head_tail":  # of one text
            (ids,) = parts
            head = self.max_length // _HEAD
            return [ids[:head] + ids[max(head, len(ids) - room + head) :]]
        lengths = [len(ids) if are_pair else min(len(ids), room) for ids in parts]
        shortened = [*parts]
        for place, number in enumerate(sorted(range(len(parts)), key=lengths.__getitem__)):
            ids = parts[number]
            share = min(lengths[number], room // (len(parts) - place))
            is_left = self.tokenizer.truncation_side == "left"
            shortened[number] = ids[len(ids) - share :] if is_left else ids[:share]
            room -= share
        if are_pair:
            return shortened
        first, *rest = shortened
        return [[*itertools.chain(first, *([*self._separator, *ids] for ids in rest))]]


def _columns(rows: Sequence[Read]) -> list[Sequence[str]]:
    parts = ([row] if isinstance(row, str) else row for row in rows)
    return [*zip(*parts, strict=True)]


class Windows:
    """Cuts texts into windows of the ``max_length`` of an encoder.

    Neighbouring ones share ``stride`` tokens, or more; None for a quarter of ``max_length``.
    """

    def __init__(self, encoder: Encoder, stride: int | None = None) -> None:
        self.encoder = encoder
        self.room = encoder.max_length - encoder.frame.size  # tokens of text
        self.shared = min(encoder.max_length // 4, self.room - 1) if stride is None else stride
        if not 0 <= self.shared < self.room:
            raise UserError(
                f"--stride {self.shared}: expected 0 or more and less than {self.room}, the tokens "
                f"of text in a window of --max_length {encoder.max_length}"
            )

    def rows(self, texts: Sequence[str]) -> Iterator[tuple[int, Columns]]:
        """Yield the number of its text for each window, and what the tokenizer returns for it."""
        self.encoder.refuse_end_tokens(texts)
        for number, ids in enumerate(token_ids(self.encoder.tokenizer, texts)):
            starts = range(0, len(ids) - self.room, self.room - self.shared)
            for start in (*starts, max(0, len(ids) - self.room)):
                yield number, self.encoder.frame.row(ids[start : start + self.room])


def documents_of(rows: Any) -> np.ndarray | None:
    """Return the document of each prepared row, shape ``(rows,)``; None if rows are documents."""
    if COLUMN not in (getattr(rows, "column_names", None) or ()):
        return None
    is_ours = rows.features[COLUMN].dtype == "int64"  # and not one that a recipe has called so
    return np.asarray(rows.with_format("numpy")[COLUMN][:]) if is_ours else None


def first_lengths(rows: Any) -> np.ndarray:
    """Return the tokens of each document, or of its first window, shape ``(documents,)``."""
    lengths = np.asarray(rows.with_format("numpy")["length"][:])
    documents = documents_of(rows)
    return lengths if documents is None else lengths[np.unique(documents, return_index=True)[1]]


def pooled(outputs: np.ndarray, documents: np.ndarray, pooling: str) -> np.ndarray:
    """Return the outputs of documents, in the order of their numbers, from those of windows.

    Args:
        outputs: Of windows in any order, shape ``(windows, ...)``.
        documents: The document of each window, shape ``(windows,)``.
        pooling: ``mean`` or ``max``.
    """
    order = np.argsort(documents, kind="stable")
    _, starts, counts = np.unique(documents[order], return_index=True, return_counts=True)
    combine = np.add if pooling == "mean" else np.maximum
    combined = combine.reduceat(outputs[order].astype(np.float64), starts, axis=0)
    if pooling == "mean":
        combined /= counts.reshape(-1, *[1] * (combined.ndim - 1))
    return combined.astype(np.float32)
