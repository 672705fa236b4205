"""Scores as a reader meets them: numbers, names and sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from finetune.statistics.metrics import DIRECTIONS
from finetune.training.manifest import Manifest, Statistics

_WORDS = {
    "f1": "F1",
    "mse": "MSE",
    "mae": "MAE",
    "rmse": "RMSE",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "r2": "R²",
    "log_loss": "log loss (nats)",
    "brier_score": "Brier score",
    "roc_area": "ROC AUC (macro average)",
    "matthews_correlation": "Matthews correlation",
    "mean_absolute_error": "mean absolute error (classes)",
    "quadratic_kappa": "quadratic weighted kappa",
    "within_one": "within one class",
}
_AVERAGES = ("macro", "micro", "weighted", "samples")
_HUGE = 1e9


def speed(rates: Mapping[str, Any]) -> str:
    """Return the throughput of the steps of a run, from ``speed`` of its ``run.json``."""
    if not rates:
        return "no step was done"
    text = f"{rates['rows_per_second']:,.1f} samples/s"
    if rates.get("tokens_per_second") is not None:
        text += f", {rates['tokens_per_second']:,.0f} tokens/s"
    return text


def score(value: float, signed: bool = False, digits: int | None = None) -> str:
    """Return a score with that many digits after the point; without a number four. A large value
    has four in all then, and a huge one always.
    """
    if math.isnan(value):
        return "undefined"
    text = f"{value:.4f}" if abs(value) < 1000 else f"{value:,.4g}"
    if digits is not None and abs(value) < _HUGE:
        text = f"{value:,.{digits}f}"
    return f"+{text}" if signed and value > 0 else text.replace("-", "\N{MINUS SIGN}")


def digits(interval: Mapping[str, float]) -> int | None:
    """Return the digits after the point that a score is worth, by its 95% confidence interval.

    A unit of the last one is a third of what the interval reaches to either side, or less; a score
    below 10 has two at least. None if the interval has no width.
    """
    reach = (interval["high"] - interval["low"]) / 2
    if not 0 < reach < math.inf:
        return None
    return max(2 if abs(interval["value"]) < 10 else 0, math.ceil(-math.log10(reach / 3)))


def column_digits(intervals: Iterable[Mapping[str, float]]) -> int | None:
    """Return the digits of a column of scores: the most that one of them is worth."""
    return max((number for number in map(digits, intervals) if number is not None), default=None)


def rounded(
    interval: Mapping[str, float], signed: bool = False, to: int | None = None
) -> tuple[str, str, str]:
    """Return value and ends of a 95% confidence interval, in the digits that they are worth, or
    in those of their column or row.
    """
    to = digits(interval) if to is None else to
    value, low, high = (score(interval[end], signed, to) for end in ("value", "low", "high"))
    return value, low, high


def interval(estimate: Mapping[str, float], signed: bool = False) -> str:
    """Return a figure with its 95% confidence interval, in the digits that they are worth."""
    value, low, high = rounded(estimate, signed)
    if math.isnan(estimate["value"]):
        return value
    if math.isnan(estimate["low"]):
        return f"{value}, too few rows for an interval"
    return f"{value}, 95% CI {low} to {high}"


def percent(value: float) -> str:
    """Return a share in percent, with one digit after the point."""
    return f"{value:.1%}"


def name(metric: str) -> str:
    """Return what a reader calls a score."""
    base, _, average = metric.rpartition("_")
    if average in _AVERAGES:
        return f"{_WORDS.get(base, base)} ({average} average)"
    return _WORDS.get(metric, metric.replace("_", " "))


def directions(manifest: Manifest) -> dict[str, int]:
    """Return :data:`DIRECTIONS`, and that of the metric by which the run chose its checkpoint."""
    arguments = manifest.arguments
    chosen = str(arguments.get("metric_for_best_model")).removeprefix("eval_")
    is_lower_better = str(arguments.get("greater_is_better")) == "False"
    return {chosen: -1 if is_lower_better else 1, **DIRECTIONS}


def verdict(
    statistics: Statistics, headline: Sequence[str], better: Mapping[str, int] = DIRECTIONS
) -> str:
    """Return the scores of the headline, and whether the model beats each baseline.

    The first metric of the headline decides, the one that the best checkpoint was chosen by; any
    other that is significantly worse is named.

    Args:
        statistics: Of the test rows.
        headline: The metrics, see :attr:`~finetune.runs.run.Run.headline`.
        better: See :func:`directions`.
    """
    if not headline:
        return "The recipe computes no metric that is a number."
    scores = "; ".join(
        f"{name(metric)} {interval(statistics.metrics[metric])}" for metric in headline
    )
    judged = [
        against(*comparison, headline, better) for comparison in _compared(statistics, headline)
    ]
    return " ".join([f"{scores[0].upper()}{scores[1:]}.", *judged])


def unbeaten(
    statistics: Statistics, headline: Sequence[str], better: Mapping[str, int] = DIRECTIONS
) -> list[str]:
    """Return a sentence for each baseline that fine-tuning does not beat, or only in some of the
    metrics of the headline.
    """
    return [
        against(baseline, gaps, headline, better)
        for baseline, gaps in _compared(statistics, headline)
        if _sign(gaps, headline[0], better) in (0, -1) or _worse(gaps, headline, better)
    ]


def beats_a_baseline(
    statistics: Statistics, headline: Sequence[str], better: Mapping[str, int] = DIRECTIONS
) -> bool:
    """Return whether the model is significantly better than some baseline, by the first metric of
    the headline of which it is known whether more is better.
    """
    directed = [metric for metric in headline if metric in better][:1]
    return any(_sign(gaps, directed[0], better) == 1 for _, gaps in _compared(statistics, directed))


def against(
    baseline: str,
    gaps: Mapping[str, Mapping[str, float]],
    headline: Sequence[str],
    better: Mapping[str, int] = DIRECTIONS,
) -> str:
    """Return whether fine-tuning beats a baseline, by the intervals of the differences."""
    other = f"the baseline '{baseline}'"
    verbs = {1: "beats", -1: "is worse than", 0: "does not beat", None: "Difference to"}
    return _judged("Fine-tuning", verbs, other, gaps, headline, better)


def between(
    second: str,
    first: str,
    gaps: Mapping[str, Mapping[str, float]],
    headline: Sequence[str],
    better: Mapping[str, int] = DIRECTIONS,
) -> str:
    """Return whether one run is better than another, by the intervals of the differences."""
    verbs = {
        1: "is better than",
        -1: "is worse than",
        0: "is not significantly different from",
        None: f"Difference of {second} to",
    }
    return _judged(second, verbs, first, gaps, headline, better)


def _judged(
    subject: str,
    verbs: Mapping[int | None, str],
    other: str,
    gaps: Mapping[str, Mapping[str, float]],
    headline: Sequence[str],
    better: Mapping[str, int],
) -> str:
    metric = headline[0]
    if metric not in gaps or math.isnan(gaps[metric]["value"]):
        return f"{verbs[None]} {other}: {name(metric)} is not defined."
    sign, gap = _sign(gaps, metric, better), gaps[metric]
    amount = f"{name(metric)} {interval(gap, signed=True)}"
    if sign is None:
        return f"{verbs[None]} {other}: {amount}."
    worse = _worse(gaps, headline, better, also=sign == -1)
    if gap["low"] == gap["high"] == 0:
        return f"{subject} scores the same {name(metric)} as {other}.{worse}"
    chance = "" if sign else "; the difference may be chance"
    return f"{subject} {verbs[sign]} {other} (difference in {amount}){chance}.{worse}"


def _compared(
    statistics: Statistics, headline: Sequence[str]
) -> list[tuple[str, Mapping[str, Mapping[str, float]]]]:
    """Return the baselines that the first metric of the headline was compared with."""
    compared = statistics.beyond.items() if headline else ()
    return [(baseline, gaps) for baseline, gaps in compared if headline[0] in gaps]


def _worse(
    gaps: Mapping[str, Mapping[str, float]],
    headline: Sequence[str],
    better: Mapping[str, int],
    *,
    also: bool = False,
) -> str:
    """Return a sentence on the other metrics that are significantly worse, if there are any."""
    listed = [
        f"{name(metric)} ({interval(gaps[metric], signed=True)})"
        for metric in headline[1:]
        if metric in gaps and _sign(gaps, metric, better) == -1
    ]
    return (
        f" It is {'also ' * also}significantly worse in {' and '.join(listed)}." if listed else ""
    )


def _sign(
    gaps: Mapping[str, Mapping[str, float]], metric: str, better: Mapping[str, int]
) -> int | None:
    """1 if the whole interval is on the better side, -1 if on the worse, 0 if on both; None where
    there is none, and of a metric of which it is not known whether more is better.
    """
    if metric not in better or math.isnan(gaps[metric]["low"]):
        return None
    if gaps[metric]["low"] > 0:
        return better[metric]
    return -better[metric] if gaps[metric]["high"] < 0 else 0
