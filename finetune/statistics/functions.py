"""The table of metrics: name, kind of labels, direction, scale and function.

A function takes rows and returns replicates, shape ``(1 + groups,)``. Values equal those of
scikit-learn with ``zero_division=0``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from finetune.statistics.estimates import Scale, leave_out, replicate, replicate_mean
from finetune.statistics.scored import PRECISION, ROC, Kind, ScoredLabels, ScoredRows

SHARE = Scale(0.0, 1.0)
AGREEMENT = Scale(-1.0, 1.0)
CORRELATION = Scale(-1.0, 1.0, np.arctanh, np.tanh)
ERROR = Scale(0.0, math.inf, np.log, np.exp)
EXPLAINED = Scale(-math.inf, 1.0, lambda value: np.log(1 - value), lambda log: 1 - np.exp(log))
NUMBER = Scale(-math.inf, math.inf, np.positive)
Function = Callable[[Any], np.ndarray]


def divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return the quotient; 0 where the denominator is 0."""
    return np.where(denominator == 0, 0.0, numerator / np.where(denominator == 0, 1, denominator))


def _mean(function: Function) -> Function:
    """Return a metric: the mean over the rows of ``function``, which returns a value for each."""
    return lambda rows: replicate_mean(function(rows), rows.groups)


def _averaged(name: str, average: str) -> Function:
    """Return precision, recall or F1 as a metric: ``binary``, of the positive class; ``macro``,
    the mean over all labels, or over the classes that occur (one that only occurs in the group left
    out keeps its score); ``weighted`` by the rows of a class; ``micro``, over all entries.
    """

    def function(rows: Any) -> np.ndarray:
        correct, true, predicted = rows.tallies
        denominator = {"precision": predicted, "recall": true, "f1": (true + predicted) / 2}[name]
        scores = divide(correct, denominator)
        occurs = true + predicted > 0
        if average == "micro":
            scores = divide(correct.sum(axis=1), denominator.sum(axis=1))
        elif average == "binary":
            scores = scores[:, rows.positive]
        elif average == "weighted":
            scores = divide((scores * true).sum(axis=1), true.sum(axis=1))
        elif rows.kind == "labels":
            scores = scores.mean(axis=1)
        else:
            scores = np.where(occurs, scores, scores[0])[:, occurs[0]].mean(axis=1)
        return scores

    return function


def _matthews_correlation(rows: ScoredRows) -> np.ndarray:
    """Return Matthews correlation for several classes (Gorodkin, Comput. Biol. Chem., 2004)."""
    correct, true, predicted = rows.tallies
    count = true.sum(axis=1)
    covariance = correct.sum(axis=1) * count - (true * predicted).sum(axis=1)
    variances = (count**2 - (predicted**2).sum(axis=1)) * (count**2 - (true**2).sum(axis=1))
    return divide(covariance, np.sqrt(variances))


def _quadratic_kappa(rows: ScoredRows) -> np.ndarray:
    """Return Cohen's kappa with quadratic weights (Psychological Bulletin 70, 1968); NaN if one
    class is the true and the predicted class of all rows.
    """
    _, true, predicted = rows.tallies
    off_squared = leave_out(np.bincount(rows.groups, rows.class_distance**2))
    classes = np.arange(true.shape[1])
    count = true.sum(axis=1)
    # the sum of true_i predicted_j (i - j)^2 / count over all pairs, multiplied out
    squares = (true * classes**2).sum(axis=1) + (predicted * classes**2).sum(axis=1)
    products = (true * classes).sum(axis=1) * (predicted * classes).sum(axis=1)
    expected = squares - 2 * divide(products, count)
    is_undefined = expected <= 1e-9 * squares  # zero but for rounding
    kappa = 1 - off_squared / np.where(is_undefined, 1, expected)
    return np.where(is_undefined, np.nan, kappa)


def _mean_area(curve: int) -> Function:
    """Return an area under a curve, :data:`ROC` or :data:`PRECISION`, as a metric: the mean over
    the classes for which it is defined, or with two classes that of the positive one.
    """

    def function(rows: Any) -> np.ndarray:
        areas = rows.areas[curve]
        if rows.kind == "classes" and areas.shape[1] == 2:
            areas = areas[:, [rows.positive]]
        defined = areas[:, ~np.isnan(areas[0])]
        return defined.mean(axis=1) if defined.size else np.full(len(areas), np.nan)

    return function


def _f1_of_rows(rows: ScoredLabels) -> np.ndarray:
    """Return the F1 of each row, shape ``(rows,)``; 0 without true and predicted labels."""
    entries = rows.labels.sum(axis=1) + rows.decided.sum(axis=1)
    return divide(2 * (rows.labels & rows.decided).sum(axis=1), entries)


def _log_losses(rows: ScoredLabels) -> np.ndarray:
    """Return the log loss of each row, averaged over the labels, in nats, shape ``(rows,)``."""
    losses = []
    for block, probabilities in rows.probabilities.row_blocks():
        of_label = np.where(rows.labels[block], probabilities, 1 - probabilities)
        losses.append(-np.log(np.maximum(of_label, np.finfo(np.float64).eps)).mean(axis=1))
    return np.concatenate(losses)


def _squared_errors(rows: ScoredLabels) -> np.ndarray:
    """Return the squared error of the probabilities, averaged over the labels, ``(rows,)``."""
    errors = []
    for block, probabilities in rows.probabilities.row_blocks():
        errors.append(np.square(probabilities - rows.labels[block]).mean(axis=1))
    return np.concatenate(errors)


def _over_targets(function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Function:
    """Return a metric: the mean over the targets of ``function``, which takes the true and the
    predicted numbers, both ``(rows, targets)``, and returns shape ``(targets,)``.
    """

    def replicates(rows: Any) -> np.ndarray:
        with np.errstate(all="ignore"):
            values = replicate(function, rows.groups, rows.targets, rows.outputs.astype(np.float64))
        return np.asarray(values.mean(axis=1))

    return replicates


def _errors(function: Callable[[np.ndarray], np.ndarray]) -> Function:
    return _over_targets(lambda labels, values: function(values - labels))


def _r2(labels: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the coefficient of determination; NaN if all labels of a target are equal."""
    return np.asarray(1 - ((values - labels) ** 2).mean(axis=0) / _spread(labels) ** 2)


def _pearson(labels: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the Pearson correlation; NaN if the labels or the predictions are constant."""
    products = (labels - labels.mean(axis=0)) * (values - values.mean(axis=0))
    correlations = products.mean(axis=0) / (_spread(labels) * _spread(values))
    return np.asarray(np.clip(correlations, -1, 1))


def _spearman(labels: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the Spearman correlation; ties have their mean rank."""
    return _pearson(*(pd.DataFrame(table).rank().to_numpy() for table in (labels, values)))


def _spread(numbers: np.ndarray) -> np.ndarray:
    """Return the standard deviation of each target; NaN if it is 0 but for rounding."""
    spread = numbers.std(axis=0)
    return np.where(spread > 1e-12 * np.abs(numbers).max(axis=0), spread, np.nan)


@dataclass(frozen=True)
class Metric:
    """A row of the table of metrics."""

    name: str  # with its average, e.g. ``f1_macro``; empty for a custom metric
    kind: Kind  # the kind of labels
    direction: int  # 1 if higher is better, -1 if lower is better
    scale: Scale  # its range and transformation for intervals
    function: Function
    #: Of a share of the rows: whether each counts, bool, ``(rows,)``. It needs no jackknife.
    hits: Function | None = None


def _share(name: str, kind: Kind, hits: Function) -> Metric:
    return Metric(name, kind, 1, SHARE, _mean(hits), hits)


AVERAGED = ("precision", "recall", "f1")


TOP = 5  # classes, of the accuracy beside that of the most probable one


def _is_correct(rows: Any) -> np.ndarray:
    return np.asarray(rows.is_correct)


_log_loss = _mean(lambda r: -np.log(np.maximum(r.summary.of_label, np.finfo(np.float64).tiny)))
_wrong_entries = _mean(lambda rows: (rows.labels != rows.decided).mean(axis=1))
ROWS = (
    _share("accuracy", "classes", _is_correct),
    *(
        Metric(f"{name}_{average}", "classes", 1, SHARE, _averaged(name, average))
        for name, average in product(AVERAGED, ("binary", "macro", "weighted"))
        if (name, average) != ("recall", "weighted")
    ),
    # with one class for each row, these equal the accuracy
    *(_share(f"{name}_micro", "classes", _is_correct) for name in AVERAGED),
    _share("recall_weighted", "classes", _is_correct),
    _share(f"top_{TOP}_accuracy", "classes", lambda rows: rows.summary.rank < TOP),
    Metric("matthews_correlation", "classes", 1, AGREEMENT, _matthews_correlation),
    Metric("quadratic_kappa", "classes", 1, AGREEMENT, _quadratic_kappa),
    Metric("mean_absolute_error", "classes", -1, ERROR, _mean(lambda rows: rows.class_distance)),
    Metric("roc_auc", "classes", 1, SHARE, _mean_area(ROC)),
    Metric("average_precision", "classes", 1, SHARE, _mean_area(PRECISION)),
    Metric("log_loss", "classes", -1, ERROR, _log_loss),
    Metric("brier_score", "classes", -1, ERROR, _mean(lambda rows: rows.summary.squared_error)),
    Metric("roc_area", "classes", 1, SHARE, _mean_area(ROC)),
    Metric("f1_micro", "labels", 1, SHARE, _averaged("f1", "micro")),
    Metric("f1_macro", "labels", 1, SHARE, _averaged("f1", "macro")),
    Metric("f1_samples", "labels", 1, SHARE, _mean(_f1_of_rows)),
    _share("subset_accuracy", "labels", _is_correct),
    Metric("average_precision", "labels", 1, SHARE, _mean_area(PRECISION)),
    Metric("hamming_loss", "labels", -1, SHARE, _wrong_entries),
    Metric("log_loss", "labels", -1, ERROR, _mean(_log_losses)),
    Metric("brier_score", "labels", -1, ERROR, _mean(_squared_errors)),
    *(
        Metric(f"{name}_{average}", "entities", 1, SHARE, _averaged(name, average))
        for name, average in product(AVERAGED, ("micro", "macro", "weighted"))
    ),
    Metric("accuracy", "entities", 1, SHARE, lambda rows: rows.token_accuracy),
    Metric("r2", "numbers", 1, EXPLAINED, _over_targets(_r2)),
    Metric("mae", "numbers", -1, ERROR, _errors(lambda error: abs(error).mean(axis=0))),
    Metric("rmse", "numbers", -1, ERROR, _errors(lambda error: np.sqrt((error**2).mean(axis=0)))),
    Metric("mse", "numbers", -1, ERROR, _errors(lambda error: (error**2).mean(axis=0))),
    Metric("pearson", "numbers", 1, CORRELATION, _over_targets(_pearson)),
    Metric("spearman", "numbers", 1, CORRELATION, _over_targets(_spearman)),
)
_ANY_CLASSES = (*AVERAGED, "accuracy", "matthews_correlation", "roc_auc", "average_precision")
#: The folders in ``metrics/`` for each task; ``--metrics`` refuses others.
MODULES = {
    "single_label": _ANY_CLASSES,
    "ordinal": (*_ANY_CLASSES, "quadratic_kappa", "mean_absolute_error"),
    "multi_label": (*AVERAGED, "accuracy", "roc_auc", "average_precision"),
    "tokens": (*AVERAGED, "accuracy"),
    "regression": ("r2", "mae", "rmse", "pearson", "spearman", "mse"),
}
