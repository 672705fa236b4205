"""The table of metrics: name, function, direction, scale and kind of labels.

Values are those of scikit-learn with ``zero_division=0``. Metrics that are not in the table are
estimated in the same way by :func:`custom_replicates`, on the scale of any number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, astuple, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.data.labels import list_names
from finetune.statistics import estimates, functions
from finetune.statistics.estimates import (
    AGREEMENT,
    CORRELATION,
    ERROR,
    EXPLAINED,
    PROPORTION,
    SHARE,
    Estimate,
    Scale,
    share,
    shares,
)
from finetune.statistics.functions import Function
from finetune.statistics.probabilities import PRECISION, ROC
from finetune.statistics.scored import Kind, ScoredLabels, ScoredRows

if TYPE_CHECKING:
    from transformers import EvalPrediction

#: Rows of a class, and of the others, below which it is rare, and the share of rare classes above
#: which a mean over classes has no interval: it would cover less than 93% (benchmarks/coverage.py).
FEWEST_OF_CLASS, MOST_RARE, FEWEST_WRONG = 5, 0.1, 10
#: Co-occurrences and confusions of more classes are not written: they would be most of the file.
MOST_CONFUSED, MOST_TOGETHER = 200, 100
#: The share of the squared error from which on a single row is named.
_OF_SQUARES, _DOMINANT = ("r2", "mse", "rmse", "pearson"), 0.5
Compute = Callable[["EvalPrediction"], dict[str, float]]
#: The arguments of local metrics, by their names.
Scoring = Mapping[str, Mapping[str, Any]]
#: The key of the folder in ``metrics/`` among the arguments of a metric of another name.
MODULE = "module"


@dataclass(frozen=True)
class Metric:
    """A row of the table."""

    name: str  # of the score; of those with averages, f1_macro
    kind: Kind  # of the labels
    direction: int  # 1 where more is better, -1 where less is
    scale: Scale  # on which it is estimated
    function: Function  # from rows to replicates, shape (1 + groups,)
    of_class: int | None = None  # the number of the class that it is of, if of one alone


Metrics = Mapping[str, Metric]
AVERAGED = ("precision", "recall", "f1")


def _averaged(name: str, average: str, number: int = 1) -> Metric:
    """Return the row of precision, recall or F1."""
    of_class = number if average == "binary" else None
    function = functions.of_classes(name, average, number)
    return Metric(f"{name}_{average}", "classes", 1, SHARE, function, of_class)


def _errors(function: Callable[[np.ndarray], np.ndarray]) -> Function:
    return functions.over_targets(lambda labels, values: function(values - labels))


_ROWS = (
    Metric("accuracy", "classes", 1, PROPORTION, functions.right),
    *(_averaged(n, average) for n in AVERAGED for average in ("binary", "macro", "weighted")),
    # of one class a row, all of the three are the accuracy
    *(Metric(f"{name}_micro", "classes", 1, PROPORTION, functions.right) for name in AVERAGED),
    Metric("matthews_correlation", "classes", 1, AGREEMENT, functions.matthews_correlation),
    Metric("quadratic_kappa", "classes", 1, AGREEMENT, functions.quadratic_kappa),
    Metric("mean_absolute_error", "classes", -1, ERROR, functions.mean_absolute_error),
    Metric("roc_auc", "classes", 1, SHARE, functions.mean_area(ROC)),
    Metric("average_precision", "classes", 1, SHARE, functions.mean_area(PRECISION)),
    Metric("log_loss", "classes", -1, ERROR, functions.log_loss),
    Metric("brier_score", "classes", -1, ERROR, functions.brier_score),
    Metric("roc_area", "classes", 1, SHARE, functions.mean_area(ROC)),
    Metric("f1_micro", "labels", 1, SHARE, functions.f1_of_labels("micro")),
    Metric("f1_macro", "labels", 1, SHARE, functions.f1_of_labels("macro")),
    Metric("f1_samples", "labels", 1, SHARE, functions.f1_of_rows),
    Metric("subset_accuracy", "labels", 1, PROPORTION, functions.right),
    Metric("average_precision", "labels", 1, SHARE, functions.mean_area(PRECISION)),
    Metric("hamming_loss", "labels", -1, SHARE, functions.hamming_loss),
    Metric("log_loss", "labels", -1, ERROR, functions.log_loss_of_labels),
    Metric("r2", "numbers", 1, EXPLAINED, functions.over_targets(functions.r2)),
    Metric("mae", "numbers", -1, ERROR, _errors(lambda error: abs(error).mean(axis=0))),
    Metric("rmse", "numbers", -1, ERROR, _errors(lambda error: np.sqrt((error**2).mean(axis=0)))),
    Metric("mse", "numbers", -1, ERROR, _errors(lambda error: (error**2).mean(axis=0))),
    Metric("pearson", "numbers", 1, CORRELATION, functions.over_targets(functions.pearson)),
    Metric("spearman", "numbers", 1, CORRELATION, functions.over_targets(functions.spearman)),
)
METRICS: Mapping[tuple[str, str], Metric] = {(row.kind, row.name): row for row in _ROWS}
#: Reported of every recipe, beside its own.
_STANDARD = {
    "classes": ("log_loss", "brier_score", "roc_area"),
    "labels": tuple(row.name for row in _ROWS if row.kind == "labels"),
    "numbers": (),
}
#: Means over classes of scores that a class with few rows hardly has.
_AREAS = ("roc_auc", "roc_area", "average_precision")
_OVER_CLASSES = (*(f"{name}_macro" for name in AVERAGED), *_AREAS)
#: 1 where more is better, -1 where less is, by the name of a score.
DIRECTIONS: Mapping[str, int] = {
    **{row.name: row.direction for row in _ROWS if not row.name.endswith("_binary")},
    **{name: 1 for score in AVERAGED for name in (score, f"{score}_samples")},
}


def module_of(name: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the folder in ``metrics/`` of a metric, and the arguments of its ``compute``."""
    options = {key: value for key, value in arguments.items() if key != MODULE}
    return str(arguments.get(MODULE, name)), options


def find_metrics(kind: Kind, scoring: Scoring) -> dict[str, Metric]:
    """Return the metrics of a scoring that are in the table, by its names for them."""
    metrics = {name: _find(kind, *module_of(name, options)) for name, options in scoring.items()}
    return {name: metric for name, metric in metrics.items() if metric is not None}


def _find(kind: Kind, module: str, arguments: dict[str, Any]) -> Metric | None:
    """Return a row by the folder in ``metrics/`` and arguments of ``compute``; None of others."""
    name, options = module, dict(arguments)
    if module in AVERAGED:
        name = f"{module}_{options.pop('average', 'binary')}"
        positive = int(options.pop("pos_label", 1))
        if name.endswith("_binary") and kind == "classes" and not options:
            return _averaged(module, "binary", positive)
    elif module in ("roc_auc", "average_precision") and options == {"average": "macro"}:
        options = {}
    elif module == "accuracy" and kind == "labels":
        name = "subset_accuracy"
    return None if options else METRICS.get((kind, name))


def with_standard(kind: Kind, metrics: Metrics) -> dict[str, Metric]:
    """Return metrics with those that are reported of every recipe."""
    return dict(metrics) | {name: METRICS[kind, name] for name in _STANDARD[kind]}


def estimate(rows: Any, metrics: Metrics) -> dict[str, dict[str, float]]:
    """Return the estimate of each metric as ``{"value": ..., "low": ..., "high": ...}``."""
    scores = {}
    for name, metric in metrics.items():
        if metric.scale is PROPORTION:
            score = share(int(rows.right.sum()), len(rows))
        elif metric.name in _OVER_CLASSES and rare_classes(rows):
            score = Estimate(float(metric.function(rows)[0]))
        else:
            most = _most_rows(rows, metric)
            score = estimates.estimate(metric.function(rows), metric.scale, most)
        scores[name] = asdict(score)
    return scores


def _most_rows(rows: Any, metric: Metric) -> float:
    """Return the most independent rows that the value of a metric may rest on.

    Of a class or label, twice the rows that have it; of other shares all rows, and no bound where
    enough rows are right and wrong for the jackknife to see how far values scatter.
    """
    if metric.of_class is not None:
        return float(min(len(rows), 2 * rows.supports[metric.of_class]))
    if metric.name in _AREAS:
        fewer = np.minimum(rows.supports, len(rows) - rows.supports)
        is_binary = rows.kind == "classes" and len(fewer) == 2
        return float(2 * fewer[int(is_binary) :].sum())
    if rows.kind == "numbers":
        return float(len(rows))
    right = np.count_nonzero(rows.right)
    return float(len(rows)) if min(right, len(rows) - right) < FEWEST_WRONG else math.inf


def rare_classes(rows: ScoredRows | ScoredLabels) -> list[str]:
    """Return the classes with too few rows for the interval of a mean over classes; none where they
    are so small a part of all that it holds.
    """
    is_rare = np.minimum(rows.supports, len(rows) - rows.supports) < FEWEST_OF_CLASS
    is_few = is_rare.mean() > MOST_RARE
    return [rows.names[number] for number in np.flatnonzero(is_rare)] if is_few else []


def estimate_difference(first: Any, second: Any, metrics: Metrics) -> dict[str, dict[str, float]]:
    """Return how much more of each metric the second model has than the first on the same rows;
    those that are not defined of both are left out.
    """
    gaps = {}
    for name, metric in metrics.items():
        if metric.scale is PROPORTION:
            gaps[name] = estimates.newcombe(first.right, second.right)
            continue
        before, after = metric.function(first), metric.function(second)
        if metric.name in _OVER_CLASSES and rare_classes(first):
            gaps[name] = Estimate(float(after[0] - before[0]))
            continue
        different = None
        if first.kind == "classes" and metric.name not in _STANDARD["classes"]:
            different = int((first.classes != second.classes).sum())
        scale, rows = metric.scale, len(first)
        gaps[name] = estimates.difference(before, after, scale, rows, different)
    return {name: asdict(gap) for name, gap in gaps.items() if not np.isnan(gap.value)}


def describe_gaps(
    rows: Any, names: Collection[str], scores: Mapping[str, Mapping[str, float]]
) -> list[str]:
    """Return a sentence for each metric of a recipe that is not defined or has no interval, and for
    each target of which one row makes up most of the squared error.
    """
    sentences = []
    for name in names:
        if np.isnan(scores[name]["value"]):
            sentences.append(f"{name} is not defined on these {len(rows):,} test rows")
        elif np.isnan(scores[name]["low"]):
            reason = f"{len(rows):,} test rows"
            if rows.kind != "numbers" and (rare := rare_classes(rows)):
                reason = f"fewer than {FEWEST_OF_CLASS} are of {list_names(rare)}, or not of it"
            sentences.append(f"{name} has no confidence interval, too few rows: {reason}")
    squared = [name for name in names if rows.kind == "numbers" and name in _OF_SQUARES]
    if squared and len(rows) >= estimates.FEWEST_ROWS:
        squares = (rows.outputs.astype(np.float64) - rows.targets) ** 2
        largest, total = squares.argmax(axis=0), np.finfo(np.float64).tiny + squares.sum(axis=0)
        for target, part in enumerate(squares.max(axis=0) / total):
            if part > _DOMINANT:
                sentences.append(
                    f"one test row (label {rows.targets[largest[target], target]:.6g}) makes up "
                    f"{part:.0%} of the squared error: the confidence intervals of "
                    f"{', '.join(squared)} say little"
                )
    return sentences


def describe_classes(rows: ScoredRows | ScoredLabels) -> dict[str, Any]:
    """Return by class precision, recall, F1, areas under the curves, and support.

    F1 is 2 J / (1 + J), where the Jaccard index J is the share of the rows with the class, true or
    predicted, that have it as both. Areas are left out where no row, or every row, has the class.
    """
    right, true, predicted, *_ = (sums[0] for sums in rows.tallies)
    scores = {
        "precision": shares(right, predicted),
        "recall": shares(right, true),
        "f1": [
            Estimate(*(2 * end / (1 + end) for end in astuple(jaccard)))
            for jaccard in shares(right, true + predicted - right)
        ],
    }
    table: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(rows.names):
        table[name] = {score: asdict(column[number]) for score, column in scores.items()}
        fewer = min(true[number], len(rows) - true[number])
        areas = ("roc_area", "pr_area") if fewer and rows.kind == "classes" else ("pr_area",)
        for area in areas if fewer else ():
            replicates = rows.areas[PRECISION if area == "pr_area" else ROC][:, number]
            area_estimate = estimates.estimate(replicates, SHARE, 2 * fewer)
            if fewer < FEWEST_OF_CLASS:
                area_estimate = Estimate(area_estimate.value)
            table[name][area] = asdict(area_estimate)
        table[name]["support"] = int(true[number])
    return table


def describe_top_k(rows: ScoredRows) -> dict[str, Any]:
    """Return how often the true class is among the k most probable ones, for k below the classes.

    Classes that are as probable as the true one come before it or after it by chance.
    """
    above, ties = rows.summary.above, rows.summary.ties
    return {
        str(k): asdict(share(float(np.clip((k - above) / ties, 0, 1).sum()), len(rows)))
        for k in (2, 3, 5)
        if k < len(rows.names)
    }


def describe_order(rows: ScoredRows) -> dict[str, Any]:
    """Return how far off predictions are of classes that have an order, like stars."""
    names = ("mean_absolute_error", "quadratic_kappa")
    near = asdict(share(int((np.abs(rows.classes - rows.labels) <= 1).sum()), len(rows)))
    return estimate(rows, {name: METRICS["classes", name] for name in names}) | {"within_one": near}


def custom_replicates(
    compute: Compute, outputs: np.ndarray, labels: np.ndarray, groups: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the replicates of metrics of a recipe that are not in the table, by name.

    Metrics that are not a single number are left out. Where one fails without a group, because a
    class is missing, the replicate is NaN.
    """
    from transformers import EvalPrediction

    names = list[str]()

    def evaluate(predictions: np.ndarray, label_ids: np.ndarray) -> list[float]:
        if predictions.dtype == np.float16:  # of a file, and not of a model
            predictions = predictions.astype(np.float32)
        try:
            scores = compute(EvalPrediction(predictions=predictions, label_ids=label_ids))
        except Exception:
            if not names:
                raise
            return [np.nan] * len(names)  # all rows could be evaluated: these lack a class
        names[:] = names or [name for name, value in scores.items() if np.ndim(value) == 0]
        return [float(scores[name]) for name in names]

    # an evaluation may take seconds: at most 64
    values = estimates.replicate(evaluate, groups % estimates.GROUPS, outputs, labels)
    return dict(zip(names, values.T, strict=True))
