"""Plots of the test rows: where a model is right, how sure it is, and on which rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from numpy.typing import ArrayLike

from finetune.reporting.figure import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    STYLE,
    WIDTH,
    Plot,
    figure_of,
    titled,
)
from finetune.statistics import intervals

_LONGEST_NAME = 24
_MOST_CELLS_WITH_NUMBERS = 12 * 12


def confusion(numbers: np.ndarray, names: Sequence[str]) -> Plot:
    """Plot true by predicted class: shares of each true class, with counts where they fit.

    Args:
        numbers: Counts, shape ``(classes, classes)``.
        names: Of the classes.
    """
    shares = numbers / np.maximum(numbers.sum(axis=1, keepdims=True), 1)
    classes = len(names)
    side = min(WIDTH, 2.6 + 0.55 * classes)
    figure, (axes,) = figure_of(1, height=side * 0.92, width=side)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="equal")
    ticks = range(0, classes, -(-classes // 25))
    shown = [_short(names[index]) for index in ticks]
    upright = classes > 4 or max(map(len, shown)) > 12
    axes.set_xticks(ticks, shown, rotation=90 if upright else 0)
    axes.set_yticks(ticks, shown)
    axes.spines[:].set_visible(False)
    if classes**2 <= _MOST_CELLS_WITH_NUMBERS:
        style: dict[str, Any] = {"ha": "center", "va": "center", "size": 9 if classes <= 6 else 7}
        for (row, column), count in np.ndenumerate(numbers):
            colour = "white" if shares[row, column] > 0.5 else "#222222"
            axes.text(column, row, f"{count:,}", color=colour, **style)
    with matplotlib.rc_context(STYLE):
        bar = figure.colorbar(image, ax=axes, shrink=0.8, format=PercentFormatter(1))
    bar.outline.set_visible(False)
    titled(axes, "Share of the true class", x="predicted", y="true")
    axes.grid(visible=False)
    right = np.trace(numbers) / max(1, numbers.sum())
    apart = shares - np.diag(np.diag(shares))
    true, said = np.unravel_index(apart.argmax(), apart.shape)
    alt = f"{right:.1%} of the rows are on the diagonal."
    if apart.any():
        alt += f" The most frequent confusion: of '{names[true]}' {apart[true, said]:.0%} were "
        alt += f"taken for '{names[said]}'."
    return Plot(alt, figure)


def classes(found: Mapping[str, Mapping[str, Any]]) -> Plot:
    """Plot F1 of each class with its interval, the worst first where there are many."""
    names = sorted(found, key=lambda name: found[name]["f1"]["value"])
    many = len(names) > 30
    shown = names[:30] if many else list(found)
    scores = [found[name]["f1"] for name in shown]
    values = [each["value"] for each in scores]
    figure, (axes,) = figure_of(1, height=1.2 + 0.26 * len(shown))
    places = np.arange(len(shown))
    axes.barh(places, values, xerr=_reach(scores), color=BLUE, ecolor=INK, height=0.7, capsize=2)
    axes.set_yticks(places, [f"{_short(name)} ({found[name]['support']:,})" for name in shown])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    title = f"The 30 lowest of {len(names)} classes" if many else "F1 of each class"
    titled(axes, title, x="F1, with the interval of 95%; in brackets the rows of the class")
    worst, best = names[0], names[-1]
    return Plot(
        f"F1 is lowest for '{worst}' ({found[worst]['f1']['value']:.3f}) and highest for '{best}' "
        f"({found[best]['f1']['value']:.3f}).",
        figure,
    )


def reliability(calibration: Mapping[str, Any]) -> Plot:
    """Plot accuracy by confidence, before and after the temperature, and where the rows are."""
    figure, (axes, rows) = figure_of(2, height=5.2, ratios=(3, 1), share_x=True)
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1, label="calibrated")
    alt = f"Expected calibration error {calibration['expected_calibration_error']:.3f}"
    curves = [("as it is", calibration["bins"], BLUE, "o")]
    if after := calibration.get("after"):
        hot = calibration["temperature"]
        curves.append((f"at temperature {hot:.2f}", after["bins"], ORANGE, "s"))
        alt += f", {after['expected_calibration_error']:.3f} at temperature {hot:.2f}"
    for number, (label, bins, colour, marker) in enumerate(curves):
        sure = [each["confidence"] for each in bins]
        right, counts = ([each[name] for each in bins] for name in ("accuracy", "rows"))
        axes.plot(sure, right, color=colour, marker=marker, label=label)
        rows.bar(np.array(sure) + (number - 0.5) * 0.014, counts, width=0.014, color=colour)
    axes.set_ylim(0, 1.02)
    titled(axes, "Accuracy of the rows with this confidence", legend=True)
    titled(rows, "Rows", x="probability of the predicted class")
    return Plot(alt + ".", figure)


def coverage(points: Sequence[Mapping[str, Any]]) -> Plot:
    """Plot what the accuracy is if the model abstains where it is least sure."""
    figure, (axes,) = figure_of(1, height=2.8)
    _with_bars(axes, [each["coverage"] for each in points], [e["accuracy"] for e in points], BLUE)
    answered = "share of the rows that are answered, the surest first"
    titled(axes, "Accuracy on these, with intervals of 95%", x=answered, percent="xy")
    first, last = points[0], points[-1]
    return Plot(
        f"Accuracy {first['accuracy']['value']:.1%} on the surest {first['coverage']:.0%} of the "
        f"rows, {last['accuracy']['value']:.1%} on all.",
        figure,
    )


def lengths(tokens: np.ndarray, right: np.ndarray, max_length: int | None) -> Plot:
    """Plot how long the texts are, where they are truncated, and the accuracy by length.

    Args:
        tokens: Of each row before truncation, shape ``(rows,)``.
        right: Whether the prediction is right, shape ``(rows,)``.
        max_length: Tokens that the model sees; None if unknown.
    """
    figure, (histogram, accuracy) = figure_of(2, height=4.8, share_x=True)
    top = max(float(np.quantile(tokens, 0.995)), float(tokens.min()) + 1)
    seen = np.minimum(tokens, top)
    wide = max(1, round((top - tokens.min()) / 40))  # whole tokens: others would leave gaps
    histogram.hist(seen, bins=list(np.arange(tokens.min(), top + wide + 1, wide) - 0.5), color=BLUE)
    alt = f"The median text has {np.median(tokens):,.0f} tokens"
    if max_length and max_length < top:
        for axes in (histogram, accuracy):
            axes.axvline(max_length, color=ORANGE, linestyle="--", linewidth=1.2)
        cut = (tokens > max_length).mean()
        alt += f"; {cut:.1%} are truncated at {max_length:,}"
        place: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        histogram.annotate(f"{cut:.0%} truncated", (max_length, 0.92), xytext=(4, 0), **place)
    beyond = f" (the longest 0.5% at {top:,.0f})" if tokens.max() > top else ""
    titled(histogram, f"Texts by length{beyond}")
    edges = np.unique(np.quantile(seen, np.linspace(0, 1, 9)))
    if len(edges) > 1:
        group = np.clip(np.searchsorted(edges, seen, side="right") - 1, 0, len(edges) - 2)
        kinds, counts = np.unique(group, return_counts=True)
        found = [
            asdict(intervals.of_share(right[group == each].sum(), count))
            for each, count in zip(kinds, counts, strict=True)
        ]
        _with_bars(accuracy, ((edges[:-1] + edges[1:]) / 2)[kinds], found, GREEN)
        shortest, longest = found[0]["value"], found[-1]["value"]
        alt += f"; accuracy {shortest:.1%} on the {counts[0]:,} shortest, {longest:.1%} on the "
        alt += f"{counts[-1]:,} longest"
    titled(accuracy, "Accuracy by length, with intervals of 95%", x="tokens", percent="y")
    return Plot(alt + ".", figure)


def numbers(labels: np.ndarray, predicted: np.ndarray) -> Plot:
    """Plot predicted against true value of a regression, of 2,000 rows at most."""
    figure, (axes,) = figure_of(1, height=5.0, width=5.6)
    shown = np.random.default_rng(0).permutation(len(labels))[:2000]
    axes.scatter(labels[shown], predicted[shown], s=9, color=BLUE, alpha=0.4, rasterized=True)
    ends = [min(labels.min(), predicted.min()), max(labels.max(), predicted.max())]
    axes.plot(ends, ends, color=GREY, linestyle=":", linewidth=1)
    part = f" (2,000 of {len(labels):,} rows)" if len(labels) > 2000 else ""
    titled(axes, f"Predicted and true value{part}", x="true", y="predicted")
    correlation = float(np.corrcoef(labels, predicted)[0, 1])
    return Plot(f"Correlation of predicted and true value {correlation:.3f}.", figure)


def _with_bars(
    axes: Axes, places: ArrayLike, scores: Sequence[Mapping[str, float]], colour: str
) -> None:
    """Draw a line of values with their intervals."""
    values = [each["value"] for each in scores]
    axes.errorbar(places, values, yerr=_reach(scores), color=colour, marker="o", capsize=2)


def _reach(scores: Sequence[Mapping[str, float]]) -> list[list[float]]:
    """How far intervals go below their values and above them, as error bars want it."""
    return [
        [max(0.0, each["value"] - each["low"]) for each in scores],
        [max(0.0, each["high"] - each["value"]) for each in scores],
    ]


def _short(name: str) -> str:
    """Both ends of a long name: what tells it from others may be at either."""
    if len(name) > _LONGEST_NAME:
        half = _LONGEST_NAME // 2
        name = f"{name[: half - 1].rstrip()}…{name[-half:].lstrip()}"
    return name.replace("$", r"\$")  # two of them would be a formula
