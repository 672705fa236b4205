"""The languages that texts are written in, by the package ``py3langid``."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
from datasets import Dataset, DatasetDict

from finetune.checking.finding import EXCLUDE, MOST_SUSPECTS
from finetune.data import ROW
from finetune.errors import Finding, Suspect
from finetune.statistics import intervals

#: Rows of a split that are looked at: of more, this many drawn at random.
SAMPLE = 2000
#: Letters below which a text tells no language, and how many times as likely as the next one a
#: language has to be, as a logarithm.
_SHORTEST, _LIKELY = 20, 7.0
#: The share of the texts whose language is certain below which they are no prose, but codes, names
#: or single words, of which nothing is told.
_PROSE = 0.5
_NO_LETTERS = re.compile(r"[\W\d_]+")
#: The share of the texts from which on another language is told, from how many texts on, and from
#: which share on it is suspicious.
_TOLD, _FEWEST, _MUCH = 0.002, 5, 0.05
#: How many times as frequent a language is in the test rows as in training, to be suspicious.
_TIMES = 3


@dataclass(frozen=True)
class _Sample:
    """Rows of a split that were looked at: their numbers, and the language of each, or ''."""

    rows: Dataset
    numbers: np.ndarray
    languages: np.ndarray

    @functools.cached_property
    def counts(self) -> Counter[str]:
        """How many texts are in each language; none where they are no prose."""
        found = Counter(each for each in self.languages.tolist() if each)
        return found if found.total() >= _PROSE * len(self.languages) else Counter()


def findings(splits: DatasetDict, column: str) -> list[Finding]:
    """Return whether some texts are in another language than most, or test rows than training rows.

    Args:
        splits: Training and test rows.
        column: Of the texts.
    """
    train, test = (_sample(splits[name], column) for name in ("train", "test"))
    return [*_of_training(train), *_of_test(train, test)]


def _sample(rows: Dataset, column: str) -> _Sample:
    numbers = np.arange(len(rows))
    if len(rows) > SAMPLE:
        numbers = np.sort(np.random.default_rng(0).choice(len(rows), SAMPLE, replace=False))
    texts = rows.select(numbers)[column][:]
    return _Sample(rows, numbers, np.array([language(text) for text in texts], dtype=object))


def language(text: str) -> str:
    """Return the language of a text, by ISO 639; empty where it is not certain."""
    from py3langid import rank

    letters = _NO_LETTERS.sub(" ", text).strip()
    if len(letters) < _SHORTEST:
        return ""
    # those of three letters are dialects and pidgins, which jargon is taken for
    usual = (each for each in rank(letters) if len(each[0]) == 2)
    (best, score), (_, second) = itertools.islice(usual, 2)
    return str(best) if score - second >= _LIKELY else ""


def _of_training(sample: _Sample) -> list[Finding]:
    ordered = sample.counts.most_common()
    if not ordered:
        return []
    (usual, _), *rare = ordered
    known = sum(count for _, count in ordered)
    others = sum(count for _, count in rare)
    if others < max(_FEWEST, _TOLD * known):
        return []
    which = np.flatnonzero((sample.languages != usual) & (sample.languages != ""))
    numbers = sample.numbers[which][:MOST_SUSPECTS]
    ids = [int(each) for each in sample.rows.select(numbers)[ROW][:]]
    shown = ", ".join(f"'{name}' {count:,}" for name, count in rare[:5])
    return [
        Finding(
            name="languages",
            severity="warning" if others > _MUCH * known else "info",
            message=f"{others:,} of {known:,} training texts looked at are in another language "
            f"than '{usual}': {shown}{', ...' * (len(rare) > 5)}",
            fix=f"unless the model knows these languages, {EXCLUDE}",
            count=others,
            split="train",
            rows=ids,
            examined=known,
            suspects=[
                Suspect(row=number, reason=f"language '{sample.languages[place]}'")
                for number, place in zip(ids, which.tolist(), strict=False)
            ],
        )
    ]


def _of_test(train: _Sample, test: _Sample) -> list[Finding]:
    """Return which languages are far more frequent among test rows than among training rows."""
    trained, tested = train.counts, test.counts
    known, there = trained.total(), tested.total()
    if not (known and there):
        return []
    found = []
    for name, count in tested.most_common():
        theirs = intervals.of_share(float(count), there)
        ours = intervals.of_share(float(trained[name]), known)
        if count < _FEWEST or theirs.low < _TOLD or theirs.low <= _TIMES * ours.high:
            continue
        found.append(
            Finding(
                name="languages_of_test",
                severity="warning",
                message=f"{theirs.value:.1%} of the test texts looked at, and {ours.value:.1%} of "
                f"the training texts, are in the language '{name}'",
                fix="train on texts of that language, or test on those that are trained on",
                count=count,
                examined=there,
            )
        )
    return found
