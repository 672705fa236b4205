"""Estimate the metrics of a recipe, and the differences between two models.

Custom metrics are estimated in the same way, without limits on their values.
"""

import functools
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, astuple
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.data.labels import list_names
from finetune.statistics import estimates
from finetune.statistics.estimates import Estimate, share, shares
from finetune.statistics.functions import AVERAGED, NUMBER, ROWS, SHARE, TOP, Metric, divide
from finetune.statistics.scored import PRECISION, ROC, Kind, NamedRows

if TYPE_CHECKING:
    from transformers import EvalPrediction

#: A class is rare if fewer than ``MIN_ROWS_OF_CLASS`` rows have it, or lack it. If the share of
#: rare classes is above ``MAX_RARE_SHARE``, a mean over classes has no interval: it would cover
#: less than 93% (benchmarks/coverage.py). A jackknife needs ``MIN_WRONG_ROWS`` rows that are
#: right, and wrong.
MIN_ROWS_OF_CLASS, MAX_RARE_SHARE, MIN_WRONG_ROWS = 5, 0.1, 10
#: With more classes, the confusion matrix would be most of ``metrics.json``.
MAX_CLASSES_OF_CONFUSION = 200
#: NamedMetrics of the squared error. A row is reported if its share of it is above ``_DOMINANT``.
_OF_SQUARES, _DOMINANT = ("r2", "mse", "rmse", "pearson"), 0.5
_NAN = np.array([np.nan])  # replicates of a metric that is not defined
Compute = Callable[["EvalPrediction"], dict[str, float]]
#: The arguments of each local metric by its name.
MetricArguments = Mapping[str, Mapping[str, Any]]
#: The argument of a metric that names its folder in ``metrics/``, if its own name is different.
MODULE = "module"
NamedMetrics = Mapping[str, Metric]
METRICS: Mapping[tuple[str, str], Metric] = {(row.kind, row.name): row for row in ROWS}
#: The metrics that are reported for every recipe.
_STANDARD = {
    "classes": ("log_loss", "brier_score", "roc_area"),
    "labels": tuple(row.name for row in ROWS if row.kind == "labels"),
}
#: Of two classes, the scores of the positive one.
_BINARY = (*(f"{name}_binary" for name in AVERAGED), "average_precision")
#: With more classes, every table of scores has the top-5 accuracy.
_MAX_CLASSES_WITHOUT_TOP = 10
#: Means over classes, which are unreliable if many classes are rare.
_AREAS = ("roc_auc", "roc_area", "average_precision")
_OVER_CLASSES = (*(f"{name}_macro" for name in AVERAGED), *_AREAS)
#: 1 if higher is better, -1 if lower is better, by the name of a score.
DIRECTIONS = {row.name: row.direction for row in ROWS}
for _name in AVERAGED:
    DIRECTIONS |= {_name: 1, f"{_name}_samples": 1}


def module_of(name: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the folder in ``metrics/`` of a metric, and the arguments for its ``compute``."""
    options = {key: value for key, value in arguments.items() if key != MODULE}
    return str(arguments.get(MODULE, name)), options


def find_metrics(kind: Kind, scoring: MetricArguments) -> dict[str, Metric]:
    """Return those metrics of ``scoring`` that are in the table, by their names in ``scoring``."""
    metrics = {}
    for name, arguments in scoring.items():
        module, options = module_of(name, arguments)
        row = module
        if module in AVERAGED:
            row = f"{module}_{options.pop('average', 'binary')}"
        elif module in ("roc_auc", "average_precision") and options == {"average": "macro"}:
            options = {}
        elif module == "accuracy" and kind == "labels":
            row = "subset_accuracy"
        if (kind, row) in METRICS and not options:
            metrics[name] = METRICS[kind, row]
    return metrics


def recipe_metrics(rows: Any, scoring: MetricArguments, compute: Compute) -> dict[str, Metric]:
    """Return the metrics of a recipe by name, from the table or from ``compute``.

    Args:
        rows: Rows on which ``compute`` is called once to get the names of its metrics.
        scoring: The arguments of each local metric; empty if the recipe computes its own.
        compute: The ``compute_metrics`` of the recipe.
    """
    metrics = find_metrics(rows.kind, scoring)
    is_custom = not scoring or len(metrics) < len(scoring)
    if scoring:
        metrics |= extra_metrics(rows.kind, len(rows.names))
    if is_custom:
        replicates = functools.cache(functools.partial(_replicate_custom, compute))
        for name in replicates(rows):
            function = functools.partial(lambda key, rows: replicates(rows).get(key, _NAN), name)
            metrics.setdefault(name, Metric("", rows.kind, 1, NUMBER, function))
    return metrics


def _replicate_custom(compute: Compute, rows: Any) -> dict[str, np.ndarray]:
    """Return the replicates of each number that ``compute`` returns, by name.

    If it fails without a group, e.g. because a class is missing, that replicate is NaN.
    """
    from transformers import EvalPrediction

    outputs, labels = rows.outputs, rows.labels
    if outputs.dtype == np.float16:  # as in the file of outputs; models return float32
        outputs = outputs.astype(np.float32)
    labels = labels.astype(np.float32) if labels.dtype == bool else labels  # as in a batch
    scores = compute(EvalPrediction(predictions=outputs, label_ids=labels))
    names = [name for name, value in scores.items() if np.ndim(value) == 0]

    def evaluate(predictions: np.ndarray, label_ids: np.ndarray) -> list[float]:
        try:
            scores = compute(EvalPrediction(predictions=predictions, label_ids=label_ids))
        except Exception:  # it worked on all rows, so these lack e.g. a class
            return [np.nan] * len(names)
        return [float(scores[name]) for name in names]

    # one call may take seconds: at most 64 groups
    values = estimates.replicate(evaluate, rows.groups % estimates.GROUPS, outputs, labels)
    return dict(zip(names, values.T, strict=True))


def extra_metrics(kind: Kind, classes: int) -> dict[str, Metric]:
    """Return the metrics that are computed beside those of ``--metrics``."""
    if kind == "classes" and classes > _MAX_CLASSES_WITHOUT_TOP:
        name = f"top_{TOP}_accuracy"
        return {name: METRICS[kind, name]}
    return {}


def with_standard(rows: Any, metrics: NamedMetrics) -> dict[str, Metric]:
    """Return ``metrics`` and the metrics that are reported for every recipe."""
    standard = dict(metrics)
    names = _STANDARD.get(rows.kind, ())
    if rows.kind == "classes" and len(rows.names) == 2:
        names += _BINARY
    for name in (*names, *extra_metrics(rows.kind, len(rows.names))):
        standard.setdefault(name, METRICS[rows.kind, name])
    return standard


def estimate(rows: Any, metrics: NamedMetrics) -> dict[str, dict[str, float]]:
    """Return the estimate of each metric as ``{"value": ..., "low": ..., "high": ...}``."""
    scores = {}
    for name, metric in metrics.items():
        if metric.hits:
            score = share(int(metric.hits(rows).sum()), len(rows))
        elif metric.name.endswith("_binary"):
            score = _score_classes(rows)[metric.name.removesuffix("_binary")][rows.positive]
        else:
            limit = max_effective_rows(rows, metric)
            score = estimates.estimate(metric.function(rows), metric.scale, limit)
        scores[name] = asdict(score)
    return scores


def has_interval(rows: Any, metric: Metric) -> bool:
    """Return False for a mean over classes if too many of them are rare."""
    return not (metric.name in _OVER_CLASSES and rare_classes(rows))


def max_effective_rows(rows: Any, metric: Metric) -> float:
    """Return the upper limit of the effective sample size of a metric; 0 if it has no interval.

    For areas it is twice the smaller side of each class. For other shares it is all rows, entities
    or words, or infinite with enough right and wrong ones for a reliable jackknife.
    """
    if not has_interval(rows, metric):
        return 0.0
    if metric.name in _AREAS:
        fewer = np.minimum(rows.supports, len(rows) - rows.supports)
        is_binary = rows.kind == "classes" and len(fewer) == 2
        return float(2 * fewer[int(is_binary) :].sum())
    if metric.scale is NUMBER or rows.kind == "numbers":
        return float(len(rows))
    correct, total = np.count_nonzero(rows.is_correct), len(rows)
    if rows.kind == "entities":
        correct, total = rows.counts(of_words=metric.name == "accuracy")
    if min(correct, total - correct) < MIN_WRONG_ROWS:
        return float(total)
    return math.inf


def rare_classes(rows: NamedRows) -> list[str]:
    """Return the names of the rare classes if a mean over classes has no interval because of them;
    otherwise an empty list.
    """
    fewer = rows.supports
    if rows.kind != "entities":  # of which a row may have several
        fewer = np.minimum(fewer, len(rows) - fewer)
    is_rare = fewer < MIN_ROWS_OF_CLASS
    if is_rare.mean() > MAX_RARE_SHARE:
        return [rows.names[number] for number in np.flatnonzero(is_rare)]
    return []


def estimate_difference(
    first: Any, second: Any, metrics: NamedMetrics
) -> dict[str, dict[str, float]]:
    """Return the estimate of each metric of the second model minus that of the first.

    Args:
        first: The rows with the outputs of the first model.
        second: The same rows with the outputs of the second model.
        metrics: The metrics; those that are not defined for both are left out.
    """
    gaps = {}
    for name, metric in metrics.items():
        if metric.hits:
            gaps[name] = estimates.newcombe(metric.hits(first), metric.hits(second))
            continue
        before, after = metric.function(first), metric.function(second)
        if not has_interval(first, metric):
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
    """Return a sentence for each metric that is undefined or has no interval, and for each target
    whose squared error is mostly that of a single row.

    Args:
        rows: The test rows with the outputs of the model.
        names: The names of the metrics.
        scores: Their estimates by name.
    """
    sentences = []
    for name in names:
        if np.isnan(scores[name]["value"]):
            sentences.append(f"{name} is not defined on these {len(rows):,} test rows")
        elif np.isnan(scores[name]["low"]):
            reason = f"{len(rows):,} test rows"
            if rows.kind != "numbers" and (rare := rare_classes(rows)):
                reason = f"fewer than {MIN_ROWS_OF_CLASS} have, or lack, {list_names(rare)}"
            sentences.append(f"{name} has no confidence interval, too few rows: {reason}")
    squared = [name for name in names if rows.kind == "numbers" and name in _OF_SQUARES]
    if squared and len(rows) >= estimates.MIN_ROWS:
        squares = (rows.outputs.astype(np.float64) - rows.targets) ** 2
        shares_of_error = squares / np.maximum(squares.sum(axis=0), np.finfo(np.float64).tiny)
        for row, target in np.argwhere(shares_of_error > _DOMINANT):
            sentences.append(
                f"one test row (label {rows.targets[row, target]:.6g}) makes up "
                f"{shares_of_error[row, target]:.0%} of the squared error: the confidence "
                f"intervals of {', '.join(squared)} are unreliable"
            )
    return sentences


def score_counts(
    correct: np.ndarray, true: np.ndarray, predicted: np.ndarray
) -> dict[str, list[Estimate]]:
    """Return precision, recall and F1 of each class, or of each part of the rows, with Wilson's
    intervals, from how often it is correctly predicted, true and predicted.

    F1 is 2 J / (1 + J). The Jaccard index J is a share: of the rows whose true or predicted class
    is this one, those where both are.
    """
    f1 = []
    for jaccard in shares(correct, true + predicted - correct):
        f1.append(Estimate(*(2 * end / (1 + end) for end in astuple(jaccard))))
    return {
        "precision": shares(correct, predicted),
        "recall": shares(correct, true),
        "f1": f1,
    }


def score_entities(
    correct: np.ndarray, true: np.ndarray, predicted: np.ndarray
) -> dict[str, list[Estimate]]:
    """Return precision, recall and F1 of each type of entities, or of those of each part of the
    rows, with intervals over rows: several entities of one row are often missed together.

    Args:
        correct: Replicates of how many are predicted correctly, float64, ``(1 + groups, types)``.
        true: Replicates of how many there are, of the same shape.
        predicted: Replicates of how many are predicted, of the same shape.
    """
    scores: dict[str, list[Estimate]] = {}
    parts = {"precision": predicted, "recall": true, "f1": (true + predicted) / 2}
    for name, total in parts.items():
        scores[name] = []
        columns = zip(divide(correct, total).T, correct[0], total[0], strict=True)
        for replicates, hits, count in columns:
            limit = max(1.0, count)
            if min(hits, count - hits) >= MIN_WRONG_ROWS:
                limit = math.inf
            scores[name].append(estimates.estimate(replicates, SHARE, limit))
    return scores


def _score_classes(rows: Any) -> dict[str, list[Estimate]]:
    if rows.kind == "entities":
        return score_entities(*rows.tallies)
    return score_counts(*(sums[0] for sums in rows.tallies))


def describe_classes(rows: Any) -> dict[str, Any]:
    """Return precision, recall, F1, areas under the curves, and support of each class, by name.

    Areas are left out if no row, or every row, has the class.
    """
    supports = rows.supports.tolist()
    scores = _score_classes(rows)
    areas = {"roc_area": ROC} if rows.kind == "classes" else {}
    if rows.kind != "entities":
        areas |= {"pr_area": PRECISION}
    table = {}
    for number, name in enumerate(rows.names):
        table[name] = {score: asdict(column[number]) for score, column in scores.items()}
        fewer = min(supports[number], len(rows) - supports[number])
        if fewer:
            for area, curve in areas.items():
                limit = 0
                if fewer >= MIN_ROWS_OF_CLASS:
                    limit = 2 * fewer
                score = estimates.estimate(rows.areas[curve][:, number], SHARE, limit)
                table[name][area] = asdict(score)
        table[name]["support"] = supports[number]
    return table
