"""Words of a text: where they are, and windows of their tokens.

The words of a plain text are what is between blanks and punctuation, as in BERT; each punctuation
mark, and each letter of a script without spaces, is a word. Of a word only the first token is
labelled. A text of more than ``max_length`` tokens is cut into overlapping windows. Each word is
labelled in one window only, where its first token has the most context.

Neither ``datasets`` nor pyarrow is imported with it: an export answers without them.
"""

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from finetune.data.encoding import COLUMN, IDS_ONLY, Columns, Windows
from finetune.errors import UserError

Place = tuple[int, int]  # the first character of a word, and the one after it
Word = dict[str, int]  # a word of a row: its ``start``, ``end`` and ``tag``
#: The label of tokens that have none, as in ``transformers``, and of the separator after a row.
UNLABELLED = -100
#: The pooling of the windows of a text whose words are labelled: each word is in one of them.
POOLING = "words"
#: Scripts without spaces between words: each letter is a word.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"


@functools.cache
def _splitter() -> Any:
    from tokenizers import Regex, pre_tokenizers

    letters = pre_tokenizers.Split(Regex(f"[{UNSPACED}]"), "isolated")
    return pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), letters])


def split_words(text: str) -> list[Place]:
    """Return start and end of each word of a text, in characters."""
    return [place for _, place in _splitter().pre_tokenize_str(text)]


def join_words(words: Sequence[str]) -> tuple[str, list[Place]]:
    """Return words as a text with a blank between them, and start and end of each."""
    places = []
    start = 0
    for word in words:
        places.append((start, start + len(word)))
        start += len(word) + 1
    return " ".join(words), places


def label_words(places: Sequence[Place], tags: Iterable[int] = itertools.repeat(0)) -> list[Word]:
    """Return the label of a row: start, end and tag of each word, by default 0."""
    words = zip(places, tags, strict=False)
    return [{"start": start, "end": end, "tag": tag} for (start, end), tag in words]


def without_tags(values: Sequence[str | Sequence[str]]) -> tuple[list[str], list[list[Word]]]:
    """Return the text of each value, a text or words, and its words outside of every entity."""
    texts, labels = [], []
    for value in values:
        if isinstance(value, str):
            text, places = value, split_words(value)
        else:
            text, places = join_words(value)
        texts.append(text)
        labels.append(label_words(places))
    return texts, labels


def words_in(text: str, label: Sequence[Word]) -> list[str]:
    """Return the words of a text; ``label`` has the place of each."""
    return [text[word["start"] : word["end"]] for word in label]


def may_be_words(cell: Any) -> bool:
    """Return whether a cell has a text, words or nothing, not a number, or objects as of spans."""
    if isinstance(cell, list | np.ndarray):
        return all(isinstance(word, str) for word in cell)
    return cell is None or isinstance(cell, str)


class WordWindows(Windows):
    """Tokenizes words, in one window or several.

    Raises:
        UserError: If the tokenizer cannot say which word a token is of.
    """

    def rows(self, texts: Sequence[str], labels: Any = None) -> Iterator[tuple[int, Columns]]:
        """Yield for each window the number of its text, and the tokenized row with ``labels``, the
        tag of each word at its first token.

        Args:
            texts: The texts.
            labels: The words of each text.
        """
        frame = self.encoder.frame
        for number, (text, words) in enumerate(zip(texts, labels, strict=True)):
            ids = self._ids(words_in(text, words))
            tokens: list[int] = []
            tags: list[int] = []
            for word, ids_of_word in zip(words, ids, strict=True):
                tokens += ids_of_word
                tags += [word["tag"]] + [UNLABELLED] * (len(ids_of_word) - 1)
            starts = self.starts(len(tokens))
            middles = [0]  # of the tokens that two windows share
            for before, start in itertools.pairwise(starts):
                middles.append((before + self.room + start) // 2)
            middles.append(len(tokens))
            for start, (first, end) in zip(starts, itertools.pairwise(middles), strict=True):
                row = frame.row(tokens[start : start + self.room])
                row["labels"] = [UNLABELLED] * len(row["input_ids"])
                place = frame.start + first - start
                row["labels"][place : place + end - first] = tags[first:end]
                yield number, row

    def _ids(self, words: list[str]) -> list[list[int]]:
        """Return the ids of each word, at least one."""
        tokenizer = self.encoder.tokenizer
        if not getattr(tokenizer, "is_fast", False):
            raise UserError(
                f"{type(tokenizer).__name__} does not say which word a token is of: expected a "
                "model with a fast tokenizer (tokenizer.json)"
            )
        ids: list[list[int]] = [[] for _ in words]
        if words:
            encoded = tokenizer(words, is_split_into_words=True, **IDS_ONLY)[0]
            for token, word in zip(encoded.ids, encoded.word_ids, strict=True):
                ids[word].append(token)
        unknown = tokenizer.unk_token_id
        if unknown is None:
            unknown = tokenizer.pad_token_id
        # a control character, for instance, has no token
        return [tokens or [unknown] for tokens in ids]


def labels_of(rows: Any) -> np.ndarray:
    """Return the tags of prepared rows, with a separator after each row: int64, ``(places,)``."""
    from finetune.data import arrow  # imports datasets

    tags, windows = _labelled(rows)
    documents = np.asarray(arrow.column(rows, COLUMN))
    return join_rows(tags, windows, documents[windows], int(documents[-1]) + 1, UNLABELLED)


def tags_of(rows: Any) -> np.ndarray:
    """Return the tags of the words that prepared rows label: int64, shape ``(words,)``."""
    return _labelled(rows)[0]


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
    from finetune.data import arrow  # imports datasets

    labels = arrow.column(rows, "labels").combine_chunks()
    flat = np.asarray(labels.flatten(), dtype=np.int64)
    windows = np.repeat(np.arange(len(labels)), labels.value_lengths())
    is_labelled = flat != UNLABELLED
    return flat[is_labelled], windows[is_labelled]


def join_rows(
    values: np.ndarray, windows: np.ndarray, rows: np.ndarray, count: int, separator: float
) -> np.ndarray:
    """Return values of words in the order of the rows, with a separator after those of each row.

    Args:
        values: Shape ``(words, ...)``, those of a window in its order.
        windows: The window of each word, in the order of the text, shape ``(words,)``.
        rows: The row of each word, shape ``(words,)``.
        count: The number of rows; those without words have a separator, too.
        separator: The value at a separator.
    """
    order = np.lexsort((windows, rows))
    ends = np.searchsorted(rows[order], np.arange(count), side="right")
    return np.insert(values[order], ends, separator, axis=0)


def find_entities(tags: np.ndarray) -> np.ndarray:
    """Return first place, end and type of each entity: int64, shape ``(entities, 3)``.

    Args:
        tags: Shape ``(places,)``; a separator is 0 or :data:`UNLABELLED`.
    """
    types, begins = parse_tags(tags)
    is_last = np.append(begins[1:], True) | (types != np.append(types[1:], -1))
    first, last = np.flatnonzero(begins), np.flatnonzero((types >= 0) & is_last)
    return np.stack([first, last + 1, types[first]], axis=1)


def parse_tags(tags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the type at each place, -1 outside of entities, and whether an entity begins there."""
    types = (np.maximum(tags, 0) + 1) // 2 - 1
    is_new = types != np.append(-1, types[:-1])
    return types, (types >= 0) & ((tags % 2 == 1) | is_new)
