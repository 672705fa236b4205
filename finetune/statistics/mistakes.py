"""Analyze mistakes: confident ones, labels that may be wrong, slices with a low accuracy. Measure
the calibration of probabilities, and fit temperature and thresholds on validation rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar
from scipy.special import chdtri, expit, log_softmax

from finetune.statistics.entities import ScoredEntities
from finetune.statistics.estimates import Estimate, share
from finetune.statistics.metrics import METRICS, score_entities
from finetune.statistics.scored import ScoredLabels, ScoredRows, slices

_BINS = 15  # of the calibration
_MIN_IN_SLICE = 20  # rows or labelled entities
#: Fewer predictions, or a larger share of wrong ones: no label is suspected.
_MIN_ROWS, _MAX_WRONG = 100, 1 / 3
_MIN_TEMPERATURE, _MAX_TEMPERATURE = 0.05, 20.0


class Suspicion(NamedTuple):
    """The result of :func:`suspicion`: labels that may be wrong."""

    rows: np.ndarray  # indices of rows, or of mistakes; the most confident prediction first
    confident: int  # the number of predictions that were examined, the most confident ones
    wrong: Estimate  # the share of these with another label; at most about this share of all labels


def most_confident(rows: ScoredRows) -> np.ndarray:
    """Return the row indices of wrong predictions, the most probable prediction first."""
    wrong = np.flatnonzero(~rows.is_correct)
    return wrong[np.argsort(-rows.summary.confidence[wrong], kind="stable")]


def farthest(rows: ScoredLabels) -> np.ndarray:
    """Return the indices of rows with a wrong prediction, the most confident mistake first."""
    wrong = np.flatnonzero(~rows.is_correct)
    is_wrong = rows.decided[wrong] != rows.labels[wrong]
    gaps = np.abs(rows.probabilities.rows(wrong) - 0.5) * is_wrong
    return wrong[np.argsort(-gaps.max(axis=1, initial=0), kind="stable")]


def suspicion(rows: Any) -> Suspicion | None:
    """Return the labels that may be wrong: the most confident predictions contradict them.

    More confident predictions are wrong less often, but labels are not. So in the tenth of the rows
    with the most confident predictions, most labels that differ from the prediction are wrong
    (docs/decisions/suspected-labels.md). Returns None with fewer than 100 rows, or with an accuracy
    below 2/3: then too many of the most confident predictions are wrong.

    Of entities, it returns the indices of :attr:`ScoredEntities.mistakes`; these and the right
    entities are ranked. It returns None, too, if mistakes are not rarer in the tenth.

    Args:
        rows: Rows with a class each, or with entities.
    """
    correct_count = 0
    if rows.kind == "entities":
        confidence = rows.confidence[rows.is_right]
        correct_count = len(confidence)
        confidence = np.append(confidence, [mistake.confidence for mistake in rows.mistakes])
        wrong = np.arange(len(confidence)) >= correct_count
    else:
        confidence, wrong = rows.summary.confidence, ~rows.is_correct
    if len(wrong) < _MIN_ROWS or wrong.mean() > _MAX_WRONG:
        return None
    confident = len(wrong) // 10
    order = np.argsort(-confidence, kind="stable")[:confident]
    suspected = order[wrong[order]]
    if rows.kind == "entities" and len(suspected) > wrong.mean() * confident:
        return None
    return Suspicion(suspected - correct_count, confident, share(len(suspected), confident))


def _slice_names(tokens: pd.Series[int] | None, table: pd.DataFrame) -> list[pd.Series[str]]:
    """Return for each way to slice rows, by tokens and by columns, the name of each row's slice."""
    names = []
    if tokens is not None:
        quarters = tokens.groupby(pd.qcut(tokens, 4, labels=False, duplicates="drop"), dropna=False)
        names.append(quarters.transform(lambda part: f"{part.min():,} to {part.max():,} tokens"))
    for column in table.columns:
        if 1 < table[column].nunique() <= 30:
            names.append(f"{column} = " + table[column].astype("string"))
    return names


def worst_slices(
    rows: ScoredRows, tokens: pd.Series[int] | None, table: pd.DataFrame, most: int
) -> list[dict[str, Any]]:
    """Return the slices with the lowest accuracy, of 20 rows or more: by tokens, by the values of a
    column, and by class.

    Args:
        rows: The rows with labels and probabilities.
        tokens: The tokens of each row; None if it is no text.
        table: Columns of the data; those with 2 to 30 values are used.
        most: The number of slices.

    Returns:
        For each slice ``name``, ``rows``, ``accuracy``, and ``lower``: whether the interval of its
        accuracy is below the accuracy of all rows.
    """
    names = _slice_names(tokens, table)
    names.append(pd.Series([f"true class '{rows.names[label]}'" for label in rows.labels]))
    facts_of_slices: list[dict[str, Any]] = []
    overall = float(rows.is_correct.mean())
    for slice_of_row in names:
        by_slice = pd.Series(rows.is_correct).groupby(slice_of_row.to_numpy(), sort=False)
        for name, correct in by_slice:
            if _MIN_IN_SLICE <= len(correct) < len(rows):
                accuracy = share(int(correct.sum()), len(correct))
                facts_of_slices.append(
                    {
                        "name": name,
                        "rows": len(correct),
                        "accuracy": asdict(accuracy),
                        "lower": accuracy.high < overall,
                    }
                )
    return sorted(facts_of_slices, key=lambda facts: float(facts["accuracy"]["value"]))[:most]


def entity_slices(
    rows: ScoredEntities,
    seen: Sequence[Sequence[bool]],
    tokens: pd.Series[int] | None,
    table: pd.DataFrame,
    most: int,
) -> list[dict[str, Any]]:
    """Return what is found of the entities that training rows have and of others, and the slices
    with the lowest F1, of 20 labelled entities or more: by tokens, and by the values of a column.

    Args:
        rows: The rows with their entities.
        seen: Whether the training rows have each labelled entity of a row, in their order.
        tokens: The tokens of each row.
        table: Columns of the data; those with 2 to 30 values are used.
        most: The number of slices.

    Returns:
        For each slice ``name``, ``entities``, the labelled ones, scores by name, and ``lower``:
        whether the interval of its F1, or of its recall if it has no F1, is below that of all rows.
    """
    overall = score_entities(*(sums.sum(axis=1, keepdims=True) for sums in rows.tallies))

    def describe(
        names: Iterable[str], counts: Sequence[np.ndarray], scores: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        estimates = score_entities(*counts)
        for number, name in enumerate(names):
            facts = {"name": name, "entities": int(counts[1][0, number])}
            for score in scores:
                estimate = estimates[score][number]
                facts[score] = asdict(estimate)
                facts["lower"] = estimate.high < overall[score][0].value  # of the last score
            yield facts

    is_new = ~np.array(list(itertools.chain.from_iterable(seen)), dtype=bool)
    labelled = rows.tally(rows.labels[:, 0], is_new, 2)
    hits = rows.tally(rows.labels[rows.is_found, 0], is_new[rows.is_found], 2)
    names = ["entities of the training rows", "other entities"]
    known = []
    for facts in describe(names, [hits, labelled, labelled], ["recall"]):
        if facts["entities"]:
            known.append(facts)
    parts = []
    for slice_of_row in _slice_names(tokens, table):
        codes, slices_of_rows = pd.factorize(slice_of_row)
        counts = []
        for entities in (rows.predicted[rows.is_right], rows.labels, rows.predicted):
            numbers = entities[:, 0]
            # the first column has rows without a value
            sums = rows.tally(numbers, codes[numbers] + 1, len(slices_of_rows) + 1)
            counts.append(sums[:, 1:])
        for facts in describe(slices_of_rows, counts, ["precision", "recall", "f1"]):
            if _MIN_IN_SLICE <= facts["entities"] < len(rows.labels):
                parts.append(facts)
    return known + sorted(parts, key=lambda facts: float(facts["f1"]["value"]))[:most]


def describe_calibration(confidence: np.ndarray, correct: np.ndarray) -> dict[str, Any]:
    """Return the expected calibration error and the bins that it is computed from.

    The error is the mean distance of accuracy and confidence over bins of equal width, weighted by
    their rows (Guo et al., On Calibration of Modern Neural Networks, ICML 2017). It is never 0 on
    few rows: a calibrated model with these confidences stays below ``calibrated`` in 95% of test
    sets with this number of rows.

    Args:
        confidence: The probability of each prediction, a row or an entity, shape ``(rows,)``.
        correct: Whether it is correct, bool, the same shape.
    """
    count = len(confidence)
    bin_of_row = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = np.bincount(bin_of_row, correct - confidence, _BINS)
    variances = np.bincount(bin_of_row, confidence * (1 - confidence), _BINS)
    normal = np.random.default_rng(0).normal(size=(2000, _BINS))
    gaps_by_chance = np.abs(normal * np.sqrt(np.maximum(variances, 0))).sum(axis=1)
    table = pd.DataFrame({"confidence": confidence, "accuracy": correct.astype(float), "rows": 1})
    bins = table.groupby(bin_of_row).agg({"confidence": "mean", "accuracy": "mean", "rows": "sum"})
    return {
        "expected_calibration_error": float(np.abs(gaps).sum()) / count,
        "calibrated": float(np.quantile(gaps_by_chance, 0.95)) / count,
        "bins": bins.to_dict("records"),
    }


def describe_temperature(rows: ScoredRows, temperature: float) -> dict[str, Any]:
    """Return what dividing the logits of test rows by a temperature changes: the expected
    calibration error and the log loss, in nats, ``before`` and ``after``.
    """
    probabilities = replace(rows.probabilities, temperature=temperature)
    scores = {}
    for name, scored in (("before", rows), ("after", replace(rows, probabilities=probabilities))):
        calibration = describe_calibration(scored.summary.confidence, scored.is_correct)
        error = calibration["expected_calibration_error"]
        log_loss = float(METRICS["classes", "log_loss"].function(scored)[0])
        scores[name] = {"expected_calibration_error": error, "log_loss": log_loss}
    return {"temperature": temperature, **scores}


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float | None:
    """Return the temperature with the lowest log loss on validation rows (Guo et al., 2017).

    ``logits`` have shape ``(rows, classes)`` and are divided by the temperature; it is above 1 if
    the model is overconfident. Returns 1 if the gain is not significant in a likelihood-ratio test
    at 5%, and None if the best temperature is at an end of the range from 0.05 to 20: then no
    temperature calibrates the probabilities.
    """

    def loss(logarithm: float) -> float:
        total = 0.0
        for rows in slices(*logits.shape):
            logs = log_softmax(logits[rows].astype(np.float64) / np.exp(logarithm), axis=1)
            total -= float(np.take_along_axis(logs, labels[rows, None], axis=1).sum())
        return total / len(labels)

    best = minimize_scalar(
        loss, bounds=(np.log(_MIN_TEMPERATURE), np.log(_MAX_TEMPERATURE)), method="bounded"
    )
    temperature = float(np.exp(best.x))
    if not _MIN_TEMPERATURE * 1.01 < temperature < _MAX_TEMPERATURE / 1.01:
        return None
    gain = 2 * len(labels) * (loss(0.0) - float(best.fun))
    return temperature if gain > chdtri(1, 0.05) else 1.0


def fit_threshold(logits: np.ndarray, is_positive: np.ndarray) -> float:
    """Return the probability threshold with the best F1 over all entries of ``logits``, midway
    between two that occur; 0.5 if no entry is positive. ``is_positive`` is bool, the same shape.
    """
    from sklearn.metrics import precision_recall_curve

    if not is_positive.any():
        return 0.5
    precision, recall, levels = precision_recall_curve(is_positive.ravel(), logits.ravel())
    f1 = 2 * precision * recall / np.maximum(precision + recall, np.finfo(np.float64).tiny)
    f1 = f1[:-1].round(12)  # the last one has no level; equal ones may differ by rounding
    best = np.flatnonzero(f1 == f1.max())[-1]  # of equal ones the highest threshold
    next_lower = levels[best - 1] if best else -np.inf
    return float(expit(np.array([levels[best], next_lower], dtype=np.float64)).mean())
