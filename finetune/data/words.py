"""Words of a text: where they are, and windows of their tokens.

The words of a plain text are what is between blanks and punctuation, as in BERT; each punctuation
mark, and each letter of a script without spaces, is a word. Of a word only the first token is
labelled. A text of more than ``max_length`` tokens is cut into overlapping windows at words. Each
word is labelled in one window only, where it has the most context.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from finetune.data import arrow
from finetune.data.digests import UNSPACED
from finetune.data.encoding import COLUMN, Windows, to_columns
from finetune.errors import UserError

#: The label of tokens that have none, as in ``transformers``, and of the separator after a row.
UNLABELLED = -100
#: The pooling of the windows of a text whose words are labelled: each word is in one of them.
POOLING = "words"
Word = Mapping[str, int]  # ``start`` and ``end`` in the text, and the ``tag`` if it is known


@functools.cache
def _splitter() -> Any:
    from tokenizers import Regex, pre_tokenizers

    letters = pre_tokenizers.Split(Regex(f"[{UNSPACED}]"), "isolated")
    return pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), letters])


def split_words(text: str) -> list[tuple[int, int]]:
    """Return start and end of each word of a text, in characters."""
    return [place for _, place in _splitter().pre_tokenize_str(text)]


def join_words(words: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Return words as a text with a blank between them, and start and end of each."""
    places = []
    start = 0
    for word in words:
        places.append((start, start + len(word)))
        start += len(word) + 1
    return " ".join(words), places


def read_words(value: str | Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Return a text, or words joined to one, and start and end of each word."""
    if isinstance(value, str):
        return value, split_words(value)
    return join_words(value)


class WordWindows(Windows):
    """Tokenizes words, in one window or several.

    Raises:
        UserError: If the tokenizer cannot say which word a token is of.
    """

    @functools.cached_property
    def _tokenizer(self) -> Any:
        tokenizer = self.encoder.tokenizer
        if not getattr(tokenizer, "is_fast", False):
            raise UserError(
                f"{type(tokenizer).__name__} does not say which word a token is of: expected a "
                "model with a fast tokenizer (tokenizer.json)"
            )
        return tokenizer

    def columns(self, batch: Mapping[str, Sequence[Any]], numbers: Sequence[int]) -> dict[str, Any]:
        """Return the columns of the tokenizer for a batch of rows, with ``labels``, the tag of each
        word at its first token, and :data:`COLUMN`.

        Args:
            batch: With ``text``, and with ``label``, the words of each row.
            numbers: The number of each row in its split.
        """
        rows, documents = [], []
        for number, text, words in zip(numbers, batch["text"], batch["label"], strict=True):
            for row in self._windows_of(text, words):
                rows.append(row)
                documents.append(number)
        return {**to_columns(rows), COLUMN: documents}

    def _windows_of(self, text: str, words: Sequence[Word]) -> Iterator[dict[str, Any]]:
        ids = self._ids([text[word["start"] : word["end"]] for word in words])
        tags = [word["tag"] for word in words]
        for first, end, owned in self._cut(list(map(len, ids))):
            tokens, labels = [], []
            for number in range(first, end):
                tag = tags[number] if number in owned else UNLABELLED
                tokens += ids[number]
                labels += [tag] + [UNLABELLED] * (len(ids[number]) - 1)
            row: dict[str, Any] = dict(self.encoder.frame.row(tokens))
            start = self.encoder.frame.start
            after = len(row["input_ids"]) - start - len(labels)
            row["labels"] = [UNLABELLED] * start + labels + [UNLABELLED] * after
            yield row

    def _ids(self, words: list[str]) -> list[list[int]]:
        """Return the ids of each word, at least one and no more than a window has."""
        names = ("add_special_tokens", "return_attention_mask", "return_token_type_ids", "verbose")
        options: dict[str, Any] = dict.fromkeys(names, False)
        if not words:
            return []
        encoded = self._tokenizer(words, is_split_into_words=True, **options)
        ids: list[list[int]] = [[] for _ in words]
        for token, word in zip(encoded["input_ids"], encoded.word_ids(), strict=True):
            if len(ids[word]) < self.room:
                ids[word].append(token)
        unknown = self._tokenizer.unk_token_id
        if unknown is None:
            unknown = self._tokenizer.pad_token_id
        return [tokens or [unknown] for tokens in ids]  # of a control character, for instance

    def _cut(self, sizes: Sequence[int]) -> Iterator[tuple[int, int, range]]:
        """Yield first word and end of each window, and the words that are labelled in it.

        The words that two windows share are divided in the middle.
        """
        if not sizes:
            yield 0, 0, range(0)
            return
        ends = np.cumsum(sizes)
        starts = ends - sizes
        spans: list[tuple[int, int]] = []
        first = end = 0
        while end < len(sizes):
            if spans:  # the next window shares words with the one before
                first = int(np.searchsorted(starts, ends[end - 1] - self.shared))
                first = min(max(first, spans[-1][0] + 1), end)
            if ends[-1] - starts[first] <= self.room:  # the last one has as much before as it can
                first = int(np.searchsorted(starts, ends[-1] - self.room))
            end = int(np.searchsorted(ends, starts[first] + self.room, side="right"))
            spans.append((first, end))
        owned = 0
        for place, (first, end) in enumerate(spans):
            owned_end = end
            if place + 1 < len(spans):
                following = spans[place + 1][0]
                middle = (starts[following] + ends[end - 1]) / 2
                owned_end = min(max(int(np.searchsorted(starts, middle)), following), end)
            yield first, end, range(owned, owned_end)
            owned = owned_end


def labels_of(rows: Any) -> np.ndarray:
    """Return the tags of prepared rows, with a separator after each row: int64, ``(places,)``."""
    tags, windows = _labelled(rows)
    documents = np.asarray(arrow.column(rows, COLUMN))
    return join_rows(tags, documents[windows], int(documents[-1]) + 1, UNLABELLED)


def count_labelled(rows: Any, weights: Sequence[float]) -> np.ndarray:
    """Return the sum of the weights of the words that each prepared row labels, ``(rows,)``.

    Args:
        rows: Prepared rows.
        weights: The weight of each tag; empty if all are 1.
    """
    tags, windows = _labelled(rows)
    weights_of_words = None
    if weights:
        weights_of_words = np.asarray(weights)[tags]
    return np.bincount(windows, weights_of_words, minlength=len(rows))


def _labelled(rows: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the tag of each labelled word, and the number of its prepared row."""
    labels = arrow.column(rows, "labels").combine_chunks()
    flat = np.asarray(labels.flatten(), dtype=np.int64)
    windows = np.repeat(np.arange(len(labels)), np.asarray(labels.value_lengths()))
    is_labelled = flat != UNLABELLED
    return flat[is_labelled], windows[is_labelled]


def join_rows(values: np.ndarray, rows: np.ndarray, count: int, separator: float) -> np.ndarray:
    """Return values of words with a separator after those of each row.

    Args:
        values: Shape ``(words, ...)``, in the order of the rows.
        rows: The row of each word, ascending, shape ``(words,)``.
        count: The number of rows; those without words have a separator, too.
        separator: The value at a separator.
    """
    ends = np.searchsorted(rows, np.arange(count), side="right")
    return np.insert(values, ends, separator, axis=0)
