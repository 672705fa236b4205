"""Words and columns that nearly determine the label: what is known of a row once it is labelled.

A word is reported if nearly all texts with it have one class, and it is in much of that class: what
people write about a film tells less. A column is, if its values predict the label of rows that they
were not counted on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from finetune.checking.bag import Bag
from finetune.data import ROW, arrow, digests, targets
from finetune.errors import Finding, counted
from finetune.statistics import intervals

#: How many of the rows with a word have one class, at the lower end of an interval of 99.9%, and
#: how much of the class has the word: one of these pairs at least.
_RULES = ((0.95, 0.2), (0.9, 0.5))
_DEVIATIONS = 3.29
_FEWEST_TEXTS = 20
#: How many words or columns a finding names.
_SHOWN = 5
#: The share of mistakes of a constant guess that a column has to save.
_SAVED = 0.8
#: Values of a number above which it is taken by twentieths of its range.
_MOST_NUMBERS, _BINS = 50, 20
#: A word or a sign; the first are also taken two at a time.
_WORD = r"(?u)\w+|[^\w\s]+"
_OWN = {ROW, "label", "text", digests.TEXTS}


def findings(bag: Bag, read: Sequence[str]) -> list[Finding]:
    """Return the words and columns that nearly determine the class of training rows.

    Args:
        bag: Of rows with one class each.
        read: The columns of the data that the model reads.
    """
    return [*_of_words(bag), *_of_columns(bag, read)]


@dataclass(frozen=True)
class _Rule:
    """Of the ``texts`` with a word ``hits`` have a class; it has so many ``rows``."""

    word: str
    label: int
    texts: int
    hits: int
    rows: int

    def told(self, names: Sequence[str]) -> str:
        return (
            f"'{self.word}' is in {self.hits / self.rows:.0%} of the training texts of "
            f"'{names[self.label]}', and {self.hits / self.texts:.1%} of the "
            f"{self.texts:,} with it are '{names[self.label]}'"
        )


def _of_words(bag: Bag) -> list[Finding]:
    from sklearn.feature_extraction.text import CountVectorizer

    names = targets.class_names(bag.splits["train"])
    vectorizer = CountVectorizer(
        binary=True, ngram_range=(1, 2), min_df=_FEWEST_TEXTS, token_pattern=_WORD
    )
    try:
        terms = vectorizer.fit_transform(bag.texts)
    except ValueError as error:  # of scikit-learn, which has no other way to tell
        if "vocabulary" not in str(error) and "no terms remain" not in str(error):
            raise
        return []
    rules = _rules(terms, bag.labels, vectorizer.get_feature_names_out(), len(names))
    if not rules:
        return []
    shown = _different(rules, terms, vectorizer.vocabulary_)
    more = len(rules) - len(shown)
    return [
        Finding(
            name="revealing_words",
            severity="warning",
            message="; ".join(each.told(names) for each in shown)
            + (f"; and {counted(more, 'term')} like these" if more else ""),
            fix="if a text has it only because its label was known, remove it from the texts",
            count=max(each.texts for each in shown),
            examined=len(bag.labels),
        )
    ]


def _rules(terms: Any, labels: np.ndarray, words: np.ndarray, classes: int) -> list[_Rule]:
    """Return the words that tell a class, those that tell most rows first."""
    rows = np.bincount(labels, minlength=classes)
    texts = np.asarray(terms.sum(axis=0), dtype=np.int64).ravel()
    found = []
    for label in np.flatnonzero(rows).tolist():
        hits = np.asarray(terms[labels == label].sum(axis=0), dtype=np.int64).ravel()
        low, _ = intervals.ends_of_shares(hits, texts, _DEVIATIONS)
        # or it tells no more than the share of the class does
        high = np.maximum(low - rows[label] / len(labels), 0) > (1 - rows[label] / len(labels)) / 2
        tells = np.zeros(len(texts), bool)
        for precision, coverage in _RULES:
            tells |= (low >= precision) & (hits >= coverage * rows[label])
        found += [
            _Rule(str(words[term]), label, int(texts[term]), int(hits[term]), int(rows[label]))
            for term in np.flatnonzero(tells & high).tolist()
        ]
    return sorted(found, key=lambda rule: (-rule.hits, rule.word))


def _different(rules: Sequence[_Rule], terms: Any, places: dict[str, int]) -> list[_Rule]:
    """Return a few rules whose words are not mostly in the same texts."""
    shown: list[_Rule] = []
    for rule in rules:
        own = terms[:, places[rule.word]]
        both = [own.multiply(terms[:, places[each.word]]).sum() for each in shown]
        if len(shown) < _SHOWN and max(both, default=0) < rule.texts / 2:
            shown.append(rule)
    return shown


def _of_columns(bag: Bag, read: Sequence[str]) -> list[Finding]:
    rows = bag.splits["train"].select(bag.rows)
    columns = {name: _codes(rows, name) for name in rows.column_names if name not in _OWN}
    if digests.TEXTS in rows.column_names:
        parts = pc.list_flatten(arrow.column(rows, digests.TEXTS).combine_chunks())
        for place, name in enumerate(read):
            columns[name] = _of_texts(parts.take(pa.array(range(place, len(parts), len(read)))))
    found = []
    for name, codes in columns.items():
        if codes is None:
            continue
        right = _predicted(codes, bag.labels) == bag.labels
        constant = float(np.bincount(bag.labels).max()) / len(bag.labels)
        share = intervals.of_share(float(right.sum()), len(right))
        if constant == 1 or share.low - constant < _SAVED * (1 - constant):
            continue
        is_read = name in read
        found.append(
            Finding(
                name="revealing_column",
                severity="warning" if is_read else "info",
                message=f"the column '{name}' alone tells the label of {share.value:.1%} of the "
                f"training rows (95% CI {share.low:.1%} to {share.high:.1%}; the most frequent "
                f"class is {constant:.1%})" + ("" if is_read else "; the model does not read it"),
                fix="leave it out of --text_columns, unless it is known before the label is"
                if is_read
                else "is the label made of it? then a rule may do",
                count=int(right.sum()),
                examined=len(right),
            )
        )
    return found


def _codes(rows: Dataset, name: str) -> np.ndarray | None:
    """Return the number of the value of each row; None of lists, images and the like."""
    stored = arrow.column(rows, name).combine_chunks()
    if arrow.is_text(stored.type):
        with contextlib.suppress(pa.ArrowInvalid):  # numbers, as a file of text has them
            stored = stored.cast(pa.float64())
    if arrow.is_number(stored.type):
        numbers = stored.cast(pa.float64()).to_numpy(zero_copy_only=False)
        there = np.isfinite(numbers)
        values = np.unique(numbers[there])
        if len(values) > _MOST_NUMBERS:
            inner = np.linspace(0, 1, _BINS + 1)[1:-1]
            values = np.unique(np.quantile(numbers[there], inner))
        return np.where(there, np.searchsorted(values, numbers), len(values) + 1)
    is_plain = pa.types.is_boolean(stored.type) or pa.types.is_temporal(stored.type)
    return _of_texts(stored) if arrow.is_text(stored.type) or is_plain else None


def _of_texts(values: pa.Array) -> np.ndarray:
    codes = values.dictionary_encode().indices
    return np.asarray(codes.fill_null(len(values)).to_numpy(zero_copy_only=False), dtype=np.int64)


def _predicted(codes: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the most frequent class of the value of each row, in the half that it is not in."""
    half = np.random.default_rng(0).permutation(len(labels)) % 2
    codes = np.unique(codes, return_inverse=True)[1]
    classes, found = int(labels.max()) + 1, np.zeros(len(labels), np.int64)
    for own in (0, 1):
        others = half != own
        pairs, counts = np.unique(codes[others] * classes + labels[others], return_counts=True)
        order = np.argsort(counts, kind="stable")  # the most frequent one is written last
        best = np.full(int(codes.max()) + 1, int(np.bincount(labels[others]).argmax()))
        best[pairs[order] // classes] = pairs[order] % classes
        found[half == own] = best[codes[half == own]]
    return found
