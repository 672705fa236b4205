"""Tokenize texts, truncated or cut into windows but not padded, for training and prediction.

A row is one text or several parts. Two parts are a pair if the tokenizer supports pairs, with its
separators and token types; otherwise parts are joined by the separator token. The longest part is
truncated first.

A text of more than ``max_length`` tokens can instead be cut into overlapping windows of exactly
``max_length`` tokens, special tokens included. Neighbouring windows share ``stride`` tokens; the
last window ends with the text and shares more. Each window is a row, the column :data:`COLUMN` has
the number of its document, and the outputs of the model are pooled. The windows are those of
``return_overflowing_tokens``, except the last: it is the row of ``truncation_side="left"``.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from finetune.errors import UserError, counted

Tokenizer = Any  # a ``PreTrainedTokenizerBase``, or that of an export, which has no transformers
#: The input of the model in a row: a text, or its parts.
Read = str | Sequence[str]
Columns = dict[str, list[int]]  # a tokenized row: ``input_ids``, ``attention_mask`` and so on
#: The tokens of ``head_tail`` from the start of a text, among those that the model reads: 128 of
#: 510 (Sun et al., How to Fine-Tune BERT for Text Classification?, 2019).
_HEAD_SHARE = 128 / 510
#: Texts per call of the tokenizer, which needs 100 times the bytes of the texts.
_TEXTS_PER_CALL = 64
#: The column of prepared rows with the number of the document in its split.
COLUMN = "document"
#: The options of a tokenizer that returns token ids only.
IDS_ONLY: Mapping[str, Any] = dict(
    add_special_tokens=False,
    return_attention_mask=False,
    return_token_type_ids=False,
    verbose=False,
)
_SAMPLE = "a b c d e f g h i j k l m n o p q r s t u v w x y z"


def is_pair(tokenizer: Tokenizer, columns: int) -> bool:
    """Return whether there are two text columns and the tokenizer supports pairs."""
    special = tokenizer.num_special_tokens_to_add
    return columns == 2 and special(pair=True) > special(pair=False)


def token_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[list[int]]:
    """Yield the token ids of each text, without special tokens and truncation."""
    for start in range(0, len(texts), _TEXTS_PER_CALL):
        yield from tokenizer(texts[start : start + _TEXTS_PER_CALL], **IDS_ONLY)["input_ids"]


class Frame:
    """The special tokens that a tokenizer adds to a text or a pair.

    Raises:
        UserError: If the tokens of a text change when special tokens are added.
    """

    def __init__(self, tokenizer: Tokenizer, texts: int) -> None:
        self._example: Columns = dict(tokenizer(*[_SAMPLE] * texts, verbose=False))
        ids = self._example["input_ids"]
        (sample,) = token_ids(tokenizer, [_SAMPLE])
        size = len(sample)
        starts = [n for n in range(len(ids)) if ids[n : n + size] == sample]
        if len(starts) != texts:
            name = type(tokenizer).__name__
            hint = "use --long_texts cut, --truncation head or tail, and one --text_column"
            raise UserError(f"{name} changes tokens when it adds special tokens: {hint}")
        self._spans = [slice(start, start + size) for start in starts]  # where the texts are

    @property
    def start(self) -> int:
        """The number of special tokens before the text."""
        return self._spans[0].start

    def row(self, *texts: list[int]) -> Columns:
        """Return the token ids of the text, or of both texts of a pair, with special tokens."""
        row = {name: list(values) for name, values in self._example.items()}
        spans = zip(texts, self._spans, strict=True)
        for text, span in reversed(list(spans)):  # the spans before stay valid
            for name, values in row.items():
                values[span] = text if name == "input_ids" else values[span][:1] * len(text)
        return row


@dataclass(frozen=True)
class Encoder:
    """Tokenizes rows.

    Attributes:
        tokenizer: The tokenizer of the model; its ``truncation_side`` applies.
        max_length: Longer rows are truncated to this many tokens, special tokens included.
        parts: The number of texts per row.
        is_head_tail: Whether to keep the start and the end of a long text, not one of them.

    Raises:
        UserError: If ``max_length`` has no room for one token of each part.
    """

    tokenizer: Tokenizer
    max_length: int
    parts: int
    is_head_tail: bool

    def __post_init__(self) -> None:
        fewest = self.special_tokens + self.parts
        if self.max_length < fewest:
            texts = f"{counted(self.parts, 'text')} and special tokens"
            raise UserError(f"--max_length {self.max_length}: {texts} need at least {fewest}")

    def __call__(self, rows: Sequence[Read]) -> Mapping[str, list[Any]]:
        """Return the columns of the tokenized rows."""
        columns = self._columns(rows)
        if self.parts == 1 and not self.is_head_tail:
            return dict(self.tokenizer(*columns, truncation=True, max_length=self.max_length))
        # a fast tokenizer would also return all combinations of the overflowing tokens of a pair
        return to_columns([self.frame.row(*self._cut(texts)) for texts in self._tokens(columns)])

    def whole_rows(self, rows: Sequence[Read]) -> Iterator[list[int]]:
        """Yield the token ids of each row, without special tokens and truncation."""
        return (list(itertools.chain(*texts)) for texts in self._tokens(self._columns(rows)))

    @functools.cached_property
    def _is_pair(self) -> bool:
        return is_pair(self.tokenizer, self.parts)

    @functools.cached_property
    def frame(self) -> Frame:
        """The special tokens of a text or a pair."""
        return Frame(self.tokenizer, 2 if self._is_pair else 1)

    @functools.cached_property
    def _separator(self) -> tuple[str, list[int]]:
        """The separator of parts that are no pair, a special token or a line break, and its ids."""
        if self.parts == 1 or self._is_pair:
            return "", []
        text = str(self.tokenizer.sep_token or self.tokenizer.eos_token or "\n")
        return text, next(token_ids(self.tokenizer, [text]))

    @property
    def special_tokens(self) -> int:
        """The number of special tokens of a row, including those between its parts."""
        special = self.tokenizer.num_special_tokens_to_add(pair=self._is_pair)
        return int(special) + (self.parts - 1) * len(self._separator[1])

    def _columns(self, rows: Sequence[Read]) -> list[list[str]]:
        """Return the parts of rows as columns of texts; a single text is one part."""
        parts = ([row] if isinstance(row, str) else row for row in rows)
        columns = list(map(list, zip(*parts, strict=True)))
        if columns and len(columns) != self.parts:
            hint = f"expected {self.parts}: set --text_columns, and call labelled() in load()"
            raise UserError(f"the recipe loads rows of {len(columns)} texts, {hint}")
        return columns

    def _tokens(self, columns: Sequence[Sequence[str]]) -> Iterator[list[list[int]]]:
        """Yield the token ids of each part of each row, without special tokens and truncation.

        Joined parts after the first are tokenized together with the separator, because a
        SentencePiece tokenizer marks the beginning of the first part only.
        """
        separator, ids_of_separator = self._separator
        texts = list(columns[:1])
        for column in columns[1:]:
            texts.append([separator + text for text in column])
        parts = [token_ids(self.tokenizer, column) for column in texts]
        for first, *rest in zip(*parts, strict=True):
            yield [first, *(ids[len(ids_of_separator) :] for ids in rest)]

    def _cut(self, parts: Sequence[list[int]]) -> list[list[int]]:
        """Return the parts of a pair, or all parts joined, truncated to ``max_length``. The longest
        part is truncated first; if parts are equally long, the last one keeps more.
        """
        room = self.max_length - self.special_tokens
        lengths = list(map(len, parts))
        if not self._is_pair:
            lengths = [min(length, room) for length in lengths]
        shortened = list(parts)
        for place, number in enumerate(sorted(range(len(parts)), key=lengths.__getitem__)):
            ids = parts[number]
            share = min(lengths[number], room // (len(parts) - place))
            head = 0 if self.tokenizer.truncation_side == "left" else share
            if self.is_head_tail:
                head = round(share * _HEAD_SHARE)
            shortened[number] = ids[:head] + ids[len(ids) - share + head :]
            room -= share
        if self._is_pair:
            return shortened
        joined, *rest = shortened
        for ids in rest:
            joined = [*joined, *self._separator[1], *ids]
        return [joined]


def to_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return rows as columns; every row has the names of the first."""
    columns = {}
    for name in rows[0]:
        columns[name] = [row[name] for row in rows]
    return columns


def to_rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return columns, as :class:`Encoder` returns them, as rows."""
    values = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in values]


class Windows:
    """Cuts texts into overlapping windows of ``encoder.max_length`` tokens.

    Neighbouring windows share at least ``stride`` tokens; None is a quarter of ``max_length``.
    """

    def __init__(self, encoder: Encoder, stride: int | None) -> None:
        self.encoder = encoder
        self.room = encoder.max_length - encoder.special_tokens  # tokens of text
        self.shared = min(encoder.max_length // 4, self.room - 1) if stride is None else stride

    def require_stride(self) -> None:
        """Raise a ``UserError`` if there is no room for the shared tokens."""
        if not 0 <= self.shared < self.room:
            limit = f"expected 0 to {self.room - 1} with --max_length {self.encoder.max_length}"
            raise UserError(f"--stride {self.shared}: {limit}")

    def starts(self, size: int) -> list[int]:
        """Return the first token of each window of a text of ``size`` tokens."""
        last = max(0, size - self.room)
        return [*range(0, last, self.room - self.shared), last]

    def rows(self, texts: Sequence[str], labels: Any = None) -> Iterator[tuple[int, Columns]]:
        """Yield for each window the number of its text, and the tokenized row.

        Args:
            texts: The texts.
            labels: Those of the texts; only the windows of words read them.
        """
        for number, ids in enumerate(token_ids(self.encoder.tokenizer, texts)):
            for start in self.starts(len(ids)):
                yield number, self.encoder.frame.row(ids[start : start + self.room])


def documents_of(rows: Any) -> np.ndarray | None:
    """Return the document of each prepared row, shape ``(rows,)``; None without windows."""
    features = getattr(rows, "features", None) or {}  # a recipe's own column may have the name
    if COLUMN in features and features[COLUMN].dtype == "int64":
        return np.asarray(rows.with_format("numpy")[COLUMN][:])
    return None


def tokens_read(rows: Any) -> np.ndarray:
    """Return how many tokens of each document the model reads, in all of its windows."""
    from finetune.data import arrow  # imports datasets

    lengths = np.asarray(arrow.column(rows, "length").to_numpy())
    documents = documents_of(rows)
    if documents is None:
        return lengths
    return np.bincount(documents, lengths).astype(np.int64)


def pooled(outputs: np.ndarray, documents: np.ndarray, pooling: str) -> np.ndarray:
    """Return the pooled outputs of each document, float32, shape ``(documents, ...)``.

    Args:
        outputs: The outputs of all windows, in any order, shape ``(windows, ...)``.
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
