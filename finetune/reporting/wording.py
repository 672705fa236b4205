"""Sentences about scores: whether a model is better than another, by the intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from finetune.reporting.html import interval, number
from finetune.statistics.metrics import DIRECTIONS
from finetune.training.manifest import Manifest, Statistics

_VERBS = {1: "is better than", -1: "is worse than", 0: "is not better than"}


def speed(rates: Mapping[str, Any]) -> str:
    """Return the throughput of the steps of a run, from ``speed`` of its ``run.json``."""
    if not rates:
        return "no step was done"
    text = f"{rates['rows_per_second']:,.1f} samples/s"
    if rates.get("tokens_per_second") is not None:
        text += f", {rates['tokens_per_second']:,.0f} tokens/s"
    return text


def score(metric: str, estimate: Mapping[str, float], *, signed: bool = False) -> str:
    """Return a score with its 95% confidence interval."""
    ends = interval(estimate, signed=signed)
    return f"{metric} {number(estimate['value'], signed=signed)}" + f", 95% CI {ends}" * bool(ends)


def directions(manifest: Manifest) -> dict[str, int]:
    """Return 1 where more is better and -1 where less is, by metric: those of
    :data:`DIRECTIONS`, and the one by which the run chose its checkpoint.
    """
    arguments = manifest.arguments
    chosen = str(arguments.get("metric_for_best_model")).removeprefix("eval_")
    is_lower_better = str(arguments.get("greater_is_better")) == "False"
    return {chosen: -1 if is_lower_better else 1, **DIRECTIONS}


def verdicts(
    statistics: Statistics, headline: Sequence[str], better: Mapping[str, int]
) -> list[str]:
    """Return a sentence for each baseline: whether the model beats it.

    The first metric of the headline decides, the one that the best checkpoint was chosen by; any
    other that is significantly worse is named.

    Args:
        statistics: Of the test rows.
        headline: The metrics, see :attr:`~finetune.runs.run.Run.headline`.
        better: See :func:`directions`.
    """
    return [
        judge("The model", f"the baseline '{baseline}'", gaps, headline, better)
        for baseline, gaps in statistics.beyond.items()
        if headline and headline[0] in gaps
    ]


def beats_a_baseline(
    statistics: Statistics, headline: Sequence[str], better: Mapping[str, int]
) -> bool:
    """Return whether the model is significantly better than some baseline, by the first metric of
    the headline of which it is known whether more is better.
    """
    metric = next((name for name in headline if name in better), None)
    gaps = [gaps[metric] for gaps in statistics.beyond.values() if metric in gaps]
    return metric is not None and any(sign(gap) == better[metric] for gap in gaps)


def judge(
    subject: str,
    other: str,
    gaps: Mapping[str, Mapping[str, float]],
    headline: Sequence[str],
    better: Mapping[str, int],
    *,
    is_chance: bool = False,
) -> str:
    """Return whether one model is better than another, by the intervals of the differences.

    Args:
        subject: The one.
        other: The other.
        gaps: How much more of each metric the one has.
        headline: The metrics, of which the first decides.
        better: See :func:`directions`.
        is_chance: Whether the difference may be chance although its interval is without 0.
    """
    metric = headline[0]
    gap = gaps.get(metric, {"value": math.nan, "low": math.nan, "high": math.nan})
    amount = score(metric, gap, signed=True)
    if metric not in better or math.isnan(gap["low"]):
        return f"{subject} against {other}: difference in {amount}."
    verdict = 0 if is_chance else sign(gap) * better[metric]
    worse = [
        score(name, gaps[name], signed=True)
        for name in headline[1:]
        if name in gaps and name in better and sign(gaps[name]) == -better[name]
    ]
    chance = "; the difference may be chance" * (verdict == 0)
    sentence = f"{subject} {_VERBS[verdict]} {other} (difference in {amount}){chance}."
    return sentence + f" It is significantly worse in {' and '.join(worse)}." * bool(worse)


def sign(gap: Mapping[str, float]) -> int:
    """Return 1 or -1 if the whole interval is above or below 0, else 0."""
    return int(gap["low"] > 0) - int(gap["high"] < 0)
