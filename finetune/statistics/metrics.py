"""The metrics of a recipe, estimated on rows, and of one model beside another.

Metrics that are not in the table are estimated in the same way, on the scale of any number.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, astuple, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.data.labels import list_names
from finetune.statistics import estimates
from finetune.statistics.estimates import Estimate, share, shares
from finetune.statistics.functions import AVERAGED, NUMBER, PROPORTION, ROWS, SHARE, Metric, binary
from finetune.statistics.scored import PRECISION, ROC, Kind, NamedRows, ScoredRows

if TYPE_CHECKING:
    from transformers import EvalPrediction

#: Rows of a class, and of the others, below which it is rare, and the share of rare classes above
#: which a mean over classes has no interval: it would cover less than 93% (benchmarks/coverage.py).
FEWEST_OF_CLASS, MOST_RARE, FEWEST_WRONG = 5, 0.1, 10
MOST_CONFUSED = 200  # classes: the confusions of more would be most of metrics.json
#: The share of the squared error from which on a single row is named.
_OF_SQUARES, _DOMINANT = ("r2", "mse", "rmse", "pearson"), 0.5
_NONE = np.array([np.nan])  # replicates of a metric that is not defined
Compute = Callable[["EvalPrediction"], dict[str, float]]
#: The arguments of local metrics, by their names.
Scoring = Mapping[str, Mapping[str, Any]]
#: The key of the folder in ``metrics/`` among the arguments of a metric of another name.
MODULE = "module"
Metrics = Mapping[str, Metric]
METRICS: Mapping[tuple[str, str], Metric] = {(row.kind, row.name): row for row in ROWS}
#: Reported of every recipe, beside its own.
_STANDARD = {
    "classes": ("log_loss", "brier_score", "roc_area"),
    "labels": tuple(row.name for row in ROWS if row.kind == "labels"),
    "numbers": (),
}
#: Means over classes of scores that a class with few rows hardly has.
_AREAS = ("roc_auc", "roc_area", "average_precision")
_OVER_CLASSES = (*(f"{name}_macro" for name in AVERAGED), *_AREAS)
#: 1 where more is better, -1 where less is, by the name of a score.
DIRECTIONS: Mapping[str, int] = {
    **{row.name: row.direction for row in ROWS if not row.name.endswith("_binary")},
    **{name: 1 for score in AVERAGED for name in (score, f"{score}_samples")},
}


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What the test rows say beyond the metrics of the recipe.

    An interval is ``{"value": ..., "low": ..., "high": ...}``, a 95% confidence interval; its ends
    are NaN, null in the file, where there are too few rows. What does not apply, as classes in a
    regression, is None.
    """

    rows: int
    metrics: dict[str, Any]  # an interval for each
    #: By baseline: intervals of the difference in each metric.
    beyond: dict[str, dict[str, Any]] = field(default_factory=dict)
    classes: dict[str, Any] | None = None  # precision, recall, F1, areas and support of each
    confusion: list[list[int]] | None = None  # counts, true by predicted; up to 200 classes
    top_k: dict[str, Any] | None = None  # how often the true class is among the k most probable
    calibration: dict[str, Any] | None = None  # error, bins; temperature, None if none helps
    ordered: dict[str, Any] | None = None  # metrics of classes that have an order
    targets: dict[str, Any] | None = None  # of several numbers: the metrics of each
    thresholds: dict[str, float] | None = None  # by label, fitted on validation rows and folded in
    together: list[list[int]] | None = None  # rows that have both of two labels; up to 100 labels
    notes: list[str] = field(default_factory=list)  # what was bounded, left out or went wrong

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]


def module_of(name: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the folder in ``metrics/`` of a metric, and the arguments of its ``compute``."""
    options = {key: value for key, value in arguments.items() if key != MODULE}
    return str(arguments.get(MODULE, name)), options


def find_metrics(kind: Kind, scoring: Scoring) -> dict[str, Metric]:
    """Return the metrics of a scoring that are in the table, by its names for them."""
    metrics = {}
    for name, arguments in scoring.items():
        module, options = module_of(name, arguments)
        row = module
        number = 1
        if module in AVERAGED:
            row = f"{module}_{options.pop('average', 'binary')}"
            number = int(options.pop("pos_label", 1))
        elif module in ("roc_auc", "average_precision") and options == {"average": "macro"}:
            options = {}
        elif module == "accuracy" and kind == "labels":
            row = "subset_accuracy"
        metric = METRICS.get((kind, row))
        if metric is not None and not options:
            metrics[name] = metric if metric.of_class is None else binary(module, number)
    return metrics


def recipe_metrics(rows: Any, scoring: Scoring, compute: Compute) -> dict[str, Metric]:
    """Return the metrics of a recipe: those of the table, and the others as rows of it.

    Args:
        rows: For which ``compute`` is called: it names its numbers.
        scoring: The arguments of each local metric; empty if the recipe computes its own.
        compute: The metrics that are not in the table.
    """
    metrics = find_metrics(rows.kind, scoring)
    if not scoring or len(metrics) < len(scoring):
        replicates = functools.cache(functools.partial(_replicate_custom, compute))
        for name in replicates(rows):
            function = functools.partial(lambda key, rows: replicates(rows).get(key, _NONE), name)
            metrics[name] = Metric("", rows.kind, 1, NUMBER, function)
    return metrics


def _replicate_custom(compute: Compute, rows: Any) -> dict[str, np.ndarray]:
    """Return the replicates of each number that ``compute`` returns, by name.

    Where it fails without a group, because a class is missing, the replicate is NaN.
    """
    from transformers import EvalPrediction

    outputs, labels = rows.outputs, rows.labels
    if outputs.dtype == np.float16:  # of a file, and not of a model
        outputs = outputs.astype(np.float32)
    labels = labels.astype(np.float32) if labels.dtype == bool else labels  # as a batch has them
    scores = compute(EvalPrediction(predictions=outputs, label_ids=labels))
    names = [name for name, value in scores.items() if np.ndim(value) == 0]

    def evaluate(predictions: np.ndarray, label_ids: np.ndarray) -> list[float]:
        try:
            scores = compute(EvalPrediction(predictions=predictions, label_ids=label_ids))
        except Exception:  # all rows could be evaluated: these lack a class
            return [np.nan] * len(names)
        return [float(scores[name]) for name in names]

    # an evaluation may take seconds: at most 64
    values = estimates.replicate(evaluate, rows.groups % estimates.GROUPS, outputs, labels)
    return dict(zip(names, values.T, strict=True))


def with_standard(kind: Kind, metrics: Metrics) -> dict[str, Metric]:
    """Return metrics with those that are reported of every recipe."""
    standard = {name: METRICS[kind, name] for name in _STANDARD[kind] if name not in metrics}
    return {**metrics, **standard}


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
    if metric.scale is NUMBER or rows.kind == "numbers":
        return float(len(rows))
    right = np.count_nonzero(rows.right)
    return float(len(rows)) if min(right, len(rows) - right) < FEWEST_WRONG else math.inf


def rare_classes(rows: NamedRows) -> list[str]:
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
        if first.kind == "classes" and metric.name not in ("", *_STANDARD["classes"]):
            different = int((first.classes != second.classes).sum())
        gaps[name] = estimates.difference(before, after, metric.scale, len(first), different)
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
        parts = squares / np.maximum(squares.sum(axis=0), np.finfo(np.float64).tiny)
        sentences += [
            f"one test row (label {rows.targets[row, target]:.6g}) makes up "
            f"{parts[row, target]:.0%} of the squared error: the confidence intervals of "
            f"{', '.join(squared)} say little"
            for row, target in np.argwhere(parts > _DOMINANT)
        ]
    return sentences


def describe_classes(rows: NamedRows) -> dict[str, Any]:
    """Return by class precision, recall, F1, areas under the curves, and support.

    F1 is 2 J / (1 + J), where the Jaccard index J is the share of the rows with the class, true or
    predicted, that have it as both. Areas are left out where no row, or every row, has the class.
    """
    right, true, predicted, *_ = (sums[0] for sums in rows.tallies)
    jaccard = shares(right, true + predicted - right)
    scores = {
        "precision": shares(right, predicted),
        "recall": shares(right, true),
        "f1": [Estimate(*(2 * end / (1 + end) for end in astuple(ends))) for ends in jaccard],
    }
    areas = {"roc_area": ROC} if rows.kind == "classes" else {}
    areas |= {"pr_area": PRECISION}
    table: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(rows.names):
        table[name] = {score: asdict(column[number]) for score, column in scores.items()}
        fewer = min(true[number], len(rows) - true[number])
        for area, place in areas.items() if fewer else ():
            score = estimates.estimate(rows.areas[place][:, number], SHARE, 2 * fewer)
            table[name][area] = asdict(score if fewer >= FEWEST_OF_CLASS else Estimate(score.value))
        table[name]["support"] = int(true[number])
    return table


def describe_top_k(rows: ScoredRows) -> dict[str, Any]:
    """Return how often the true class is among the k most probable ones, for k below the classes;
    those that are as probable as it come before it or after it by chance.
    """
    above, ties = rows.summary.above, rows.summary.ties
    return {
        str(k): asdict(share(float(np.clip((k - above) / ties, 0, 1).sum()), len(rows)))
        for k in (2, 3, 5)
        if k < len(rows.names)
    }


def describe_order(rows: ScoredRows) -> dict[str, Any]:
    """Return how far off predictions are of classes that have an order, like stars."""
    near = asdict(share(int((rows.off <= 1).sum()), len(rows)))
    scoring: Scoring = {"mean_absolute_error": {}, "quadratic_kappa": {}}
    return estimate(rows, find_metrics("classes", scoring)) | {"within_one": near}
