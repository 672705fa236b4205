"""The words of the training and test texts, as what is looked for in labels needs them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import DatasetDict

from finetune.data import targets
from finetune.statistics import baseline, blocks

_SEED = 0


@dataclass(frozen=True)
class Bag:
    """Texts with one class each, and a bag of words over them, with the classifier of the baseline.

    Attributes:
        splits: Training and test rows, after rows were left out.
        column: Of the texts.
    """

    splits: DatasetDict
    column: str

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """The training rows that are looked at: of many a sample, for which there is memory for
        the probabilities of all classes.
        """
        found = np.random.default_rng(_SEED).permutation(len(self.splits["train"]))
        most = min(baseline.MOST_ROWS, baseline.MOST_SCORES // self._classes)
        return np.sort(found[:most])

    @functools.cached_property
    def texts(self) -> list[str]:
        """Those of :attr:`rows`."""
        found: list[str] = self.splits["train"].select(self.rows)[self.column][:]
        return found

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """Their classes, shape ``(rows,)``."""
        found: np.ndarray = targets.strata(self.splits["train"])[self.rows]
        return found

    @functools.cached_property
    def _terms(self) -> tuple[Any, Any] | None:
        """TF-IDF of training and test texts; terms of a single row of training say nothing."""
        found = baseline.terms_of(
            self.texts,
            self.splits["test"][self.column][:],
            _SEED,
            len(self.texts),
            baseline.bounds(self._classes)[1],
        )
        if found is None:
            return None
        train = found.train[np.argsort(found.rows)]
        several = np.flatnonzero(train.getnnz(axis=0) > 1)
        return (train[:, several], found.test[:, several]) if len(several) else None

    def predicted(self) -> np.ndarray | None:
        """Return the most probable class of each test row, shape ``(rows,)``; None if the texts
        hold no words.
        """
        if self._terms is None:
            return None
        train, test = self._terms
        predict, found = self._fitted(train, self.labels), np.zeros(test.shape[0], np.int64)
        for some in blocks.slices(len(found), self._classes):
            found[some] = predict(test[some]).argmax(1)
        return found

    def out_of_fold(self, folds: int) -> np.ndarray | None:
        """Return the probabilities of the classes of :attr:`rows`, each from a model that has not
        seen it, shape ``(rows, classes)``; None likewise.
        """
        if self._terms is None:
            return None
        train, _ = self._terms
        fold = np.random.default_rng(_SEED).permutation(len(self.labels)) % folds
        found = np.zeros((len(self.labels), self._classes))
        for number in range(folds):
            own = fold == number
            found[own] = self._fitted(train[~own], self.labels[~own])(train[own])
        return found

    @property
    def _classes(self) -> int:
        return len(targets.class_names(self.splits["train"]))

    def _fitted(self, train: Any, labels: np.ndarray) -> Callable[[Any], np.ndarray]:
        """Return what predicts the probabilities of the classes of rows, ``(rows, classes)``."""
        from threadpoolctl import threadpool_limits

        with threadpool_limits(1):  # more threads wait for each other, three times as long
            return baseline.classifier(train, labels, self._classes)
