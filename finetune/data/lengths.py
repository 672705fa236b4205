"""What becomes of long texts, as the start of a run says it: how many are cut, how many windows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import shorten

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import DatasetDict

from finetune.data.encoding import Encoder, Read, Rows
from finetune.data.labels import Places
from finetune.errors import UserError, counted, row_numbers

#: Rows that are tokenized again, at most, to learn whether they are cut.
_SAMPLE = 1000
#: Of the windows of a training, the share of one document from which it is worth a word.
_MUCH = 0.05


def cut(rows: Rows, lengths: np.ndarray, encoder: Encoder) -> str:
    """Return what share of the texts is cut; "about" if that is estimated from 1,000 of them.

    Args:
        rows: Returns what the model reads of the rows of these numbers.
        lengths: Their tokens after truncation, shape ``(rows,)``.
        encoder: Has truncated them.
    """
    max_length = encoder.max_length
    full = np.flatnonzero(lengths >= max_length)  # some of them may be just as long
    looked_at = full
    if len(full) > _SAMPLE:  # drawn: evenly spaced rows may be of one kind
        looked_at = np.sort(np.random.default_rng(0).choice(full, _SAMPLE, replace=False))
    roomier, longer = dataclasses.replace(encoder, max_length=max_length + 1), 0
    if len(looked_at):
        longer = sum(len(each) > max_length for each in roomier(rows(looked_at))["input_ids"])
    if not longer:
        return f"none of the training texts is longer than --max_length {max_length}"
    share = longer / len(looked_at) * len(full) / len(lengths)
    about = "about " if len(looked_at) < len(full) else ""
    exactly = "" if about else f" ({longer:,} of {len(lengths):,})"
    return (
        f"{about}{_percent(share)} of the training texts{exactly} cut at --max_length {max_length}"
    )


def in_windows(documents: np.ndarray, max_length: int, shared: int, pooling: str) -> str:
    """Return how many windows the documents have.

    Args:
        documents: The document of each window, shape ``(windows,)``.
        max_length: Tokens of a window.
        shared: Tokens that neighbouring windows share.
        pooling: ``mean`` or ``max``.
    """
    windows = np.unique(documents, return_counts=True)[1]
    return (
        f"{len(documents):,} training windows of up to {max_length} tokens, {shared} shared with "
        f"the next: {windows.mean():.1f} a document on average, at most {windows.max():,}; logits "
        f"pooled by {pooling}"
    )


def dominating(documents: np.ndarray, ids: Sequence[object]) -> str | None:
    """Return a sentence if one document has a large share of the windows that are trained on.

    Args:
        documents: The document of each window, shape ``(windows,)``.
        ids: Of the documents.
    """
    numbers, windows = np.unique(documents, return_counts=True)
    most = int(windows.argmax())
    if len(numbers) < 2 or windows[most] <= _MUCH * len(documents) or windows[most] < 10:
        return None
    return (
        f"--long_texts windows: {windows[most]:,} of {counted(len(documents), 'training window')} "
        f"({_percent(windows[most] / len(documents))}) are of the document with id "
        f"{ids[int(numbers[most])]}, and each counts as a row in training; shorten it if it should "
        "not weigh so much"
    )


def refuse_longer(
    prepared: DatasetDict,
    ids: Mapping[str, Sequence[object]],
    most: int,
    model: str,
    places: Places = row_numbers,
) -> None:
    """Refuse rows that nothing has truncated to what the model has positions for.

    Args:
        prepared: Splits as a recipe has prepared them.
        ids: Of the rows of each split before that, where they are known.
        most: Positions of the model.
        model: Its name.
        places: Returns where rows are, by their ids.

    Raises:
        UserError: with the first such row of a split.
    """
    for split, counts in _counts(prepared, _lengths):
        wrong = np.flatnonzero(counts > most)
        if len(wrong):
            first = int(wrong[0])
            raise UserError(
                f"{_named(split, first, len(counts), ids, places)} has {counts[first]:,} tokens, "
                f"--model {model} has {most:,} positions "
                f"({counted(len(wrong), 'such row')}): truncate in prepare() of the recipe, with "
                "tokenizer(..., truncation=True, max_length=self.max_length)"
            )


def refuse_ends_inside(
    prepared: DatasetDict,
    ids: Mapping[str, Sequence[object]],
    end: int,
    token: str,
    places: Places = row_numbers,
) -> None:
    """Refuse rows that have the token that ends a text more often than others.

    The heads of encoder-decoders read a text at that token, and fail where rows of a batch have it
    more or less often. Tokenizers of SentencePiece find it in a text that spells it out.

    Args:
        prepared: Splits as a recipe has prepared them.
        ids: Of the rows of each split before that, where they are known.
        end: The number of the token.
        token: How it is spelt.
        places: Returns where rows are, by their ids.

    Raises:
        UserError: with the first such row of a split.
    """
    for split, counts in _counts(prepared, functools.partial(_occurrences, end)):
        fewest = counts.min(initial=np.iinfo(counts.dtype).max)
        wrong = np.flatnonzero(counts > fewest)
        if len(wrong):
            named = _named(split, int(wrong[0]), len(counts), ids, places)
            raise UserError(
                f"{named} spells out '{token}', the token that ends a text for this model "
                f"({counted(len(wrong), 'such row')}): take it out of the texts"
            )
        if not fewest:
            raise UserError(
                f"the rows of {split} do not end in '{token}', where this model reads a text: "
                "expected a tokenizer that adds it"
            )


def refuse_end_in_texts(
    tokens: Sequence[Sequence[int]], texts: Sequence[Read], end: tuple[int, str], encoder: Encoder
) -> None:
    """Refuse texts as :func:`refuse_ends_inside` does, where they have no number.

    Args:
        tokens: Of each text, or of windows of them.
        texts: As many.
        end: The number of the token and how it is spelt.
        encoder: What made the tokens.

    Raises:
        UserError: with the beginning of the first such text.
    """
    number, token = end
    usual: Read = "a" if isinstance(texts[0], str) else ["a"] * len(texts[0])
    most = encoder([usual])["input_ids"][0].count(number)
    for row, text in zip(tokens, texts, strict=True):
        if row.count(number) > most:
            beginning = shorten(text if isinstance(text, str) else " ".join(text), 60)
            raise UserError(
                f"the text '{beginning}' spells out '{token}', the token that ends a text for this "
                "model: take it out of the texts"
            )


def _counts(
    prepared: DatasetDict, count: Callable[[pa.ListArray], np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of each split that has tokens, and a number for each of its rows.

    Args:
        prepared: Splits as a recipe has prepared them.
        count: From the tokens of some rows to the numbers, shape ``(rows,)``.
    """
    for split, rows in prepared.items():
        if "input_ids" in rows.column_names:
            tables = rows.select_columns("input_ids").with_format("arrow").iter(batch_size=10_000)
            found = [count(chunk) for table in tables for chunk in table.column("input_ids").chunks]
            yield split, np.concatenate([np.empty(0, dtype=np.int64), *found])


def _lengths(tokens: pa.ListArray) -> np.ndarray:
    return np.asarray(pc.list_value_length(tokens), dtype=np.int64)


def _occurrences(token: int, tokens: pa.ListArray) -> np.ndarray:
    """Return how often a token is in each row, shape ``(rows,)``."""
    rows = np.repeat(np.arange(len(tokens)), _lengths(tokens))
    return np.bincount(rows[np.asarray(tokens.flatten()) == token], minlength=len(tokens))


def _named(
    split: str, number: int, rows: int, ids: Mapping[str, Sequence[object]], places: Places
) -> str:
    """Return how a message names a text: by where it is, if the ids of all rows are known."""
    known = ids.get(split, ())
    where = f"row {number + 1} as prepared"
    if len(known) == rows:
        own = known[number]
        where = places(split, [own]) if isinstance(own, int) else f"id {own}"
    return f"a text of the {split} data ({where})"


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else "less than 0.1%"
