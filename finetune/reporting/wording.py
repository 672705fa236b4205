"""Scores as a reader meets them: numbers, names and sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from finetune.training.manifest import Statistics

_WORDS = {
    "f1": "F1",
    "mse": "MSE",
    "r2": "R²",
    "log_loss": "log loss (nats)",
    "brier_score": "Brier score",
    "roc_area": "ROC AUC (macro average)",
    "matthews_correlation": "Matthews correlation",
    "mean_absolute_error": "mean absolute error (classes)",
    "quadratic_kappa": "quadratic weighted kappa",
    "within_one": "within one class",
}
_HIGHER_IS_BETTER = (
    *("accuracy", "f1", "precision", "recall", "matthews_correlation", "r2", "roc_area"),
    "quadratic_kappa",
)
_LOWER_IS_BETTER = ("mse", "rmse", "mae", "log_loss", "brier_score", "mean_absolute_error")


def speed(found: Mapping[str, Any]) -> str:
    """Return the throughput of the steps of a run, from ``speed`` of its ``run.json``."""
    if not found:
        return "no step was done"
    text = f"{found['rows_per_second']:,.1f} samples/s"
    if found["tokens_per_second"] is not None:
        text += f", {found['tokens_per_second']:,.0f} tokens/s"
    if "share_of_peak" in found:
        flops = found["model_flops_per_second"]
        unit, size = ("TFLOP/s", 1e12) if flops >= 1e12 else ("GFLOP/s", 1e9)
        text += (
            f"; {flops / size:,.1f} {unit}, {found['share_of_peak']:.0%} of measured matmul peak"
        )
    return text


def score(value: float, signed: bool = False, digits: int | None = None) -> str:
    """Return a score with that many digits after the point; without a number four, or four in all
    where the value is large.
    """
    text = f"{value:.4f}" if abs(value) < 1000 else f"{value:,.4g}"
    if digits is not None:
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
    return max((each for each in map(digits, intervals) if each is not None), default=None)


def rounded(
    interval: Mapping[str, float], signed: bool = False, to: int | None = None
) -> tuple[str, str, str]:
    """Return value and ends of a 95% confidence interval, in the digits that they are worth, or
    in those of their column or row.
    """
    to = digits(interval) if to is None else to
    value, low, high = (score(interval[end], signed, to) for end in ("value", "low", "high"))
    return value, low, high


def percent(value: float) -> str:
    """Return a share in percent, with one digit after the point."""
    return f"{value:.1%}"


def name(metric: str) -> str:
    """Return what a reader calls a score."""
    return _WORDS.get(metric, metric.replace("_", " "))


def verdict(statistics: Statistics, headline: Sequence[str]) -> str:
    """Tell the scores of the headline, and whether the model beats what it has to by the first."""
    if not headline:
        return "The recipe computes no metric that is a number."
    own = {name(each): statistics.metrics[each] for each in headline}
    said = ", ".join(
        f"{each} {found['value']:.3f} ({found['low']:.3f} to {found['high']:.3f})"
        for each, found in own.items()
    )
    judged = [
        against(baseline, scores[headline[0]], headline[0])
        for baseline, scores in statistics.beyond.items()
        if headline[0] in scores
    ]
    return " ".join([f"{said[0].upper()}{said[1:]}.", *judged])


def unbeaten(statistics: Statistics, metric: str) -> list[str]:
    """A sentence for each baseline that fine-tuning does not beat."""
    return [
        against(baseline, scores[metric], metric)
        for baseline, scores in statistics.beyond.items()
        if metric in scores and _sign(scores[metric], metric) in (0, -1)
    ]


def against(baseline: str, gap: Mapping[str, float], metric: str) -> str:
    """Whether fine-tuning beats a baseline, by the interval of the difference in one metric."""
    amount, sign = _amount(gap, metric), _sign(gap, metric)
    if sign is None:
        return f"Against the baseline '{baseline}': {amount}."
    verb = {1: "beats", -1: "is worse than", 0: "does not beat"}[sign]
    chance = "" if sign else "; the difference may be chance"
    return f"Fine-tuning {verb} the baseline '{baseline}' ({amount}){chance}."


def between(second: str, first: str, gap: Mapping[str, float], metric: str) -> str:
    """Whether one run is better than another, by the interval of the difference in one metric."""
    amount, sign = _amount(gap, metric), _sign(gap, metric)
    if sign is None:
        return f"{second} against {first}: {amount}."
    verb = {1: "is better than", -1: "is worse than", 0: "cannot be told from"}[sign]
    return f"{second} {verb} {first} ({amount})."


def _amount(gap: Mapping[str, float], metric: str) -> str:
    return f"{name(metric)} {gap['value']:+.3f}, {gap['low']:+.3f} to {gap['high']:+.3f}"


def _sign(gap: Mapping[str, float], metric: str) -> int | None:
    """1 if the whole interval is on the better side, -1 if on the worse, 0 if on both; None of a
    metric of which it is not known whether more is better.
    """
    if metric not in (*_HIGHER_IS_BETTER, *_LOWER_IS_BETTER):
        return None
    better = -1 if metric in _LOWER_IS_BETTER else 1
    if gap["low"] > 0:
        return better
    return -better if gap["high"] < 0 else 0
