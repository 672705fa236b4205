"""Plots of the test rows: where a model is right, how confident it is, and on which rows.

A plot that so few rows cannot support is left out: then the function returns None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.ticker import PercentFormatter
from numpy.typing import ArrayLike

from finetune.reporting import wording
from finetune.reporting.figure import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    SHADES,
    WIDTH,
    Plot,
    figure_of,
    short,
    styled,
    titled,
)
from finetune.statistics.estimates import share

#: Test rows below which curves over groups of them are noise, and bars of classes are.
_FEWEST_ROWS, _FEWEST_OF_CLASSES = 100, 30
_MOST_CELLS_WITH_NUMBERS = 12 * 12
_MOST_BARS, _FEWEST_BINS = 30, 3


@styled
def confusion(numbers: np.ndarray, names: Sequence[str]) -> Plot:
    """Plot true by predicted class: shares of each true class, with counts where they fit.

    Args:
        numbers: Counts, shape ``(classes, classes)``.
        names: Of the classes.
    """
    shares = numbers / np.maximum(numbers.sum(axis=1, keepdims=True), 1)
    classes, numbered = len(names), numbers.size <= _MOST_CELLS_WITH_NUMBERS
    side = 2.0 + 0.45 * classes if numbered else 8.0
    figure, (axes,) = figure_of(1, height=0.9 * side, width=max(side, WIDTH))
    # few rows of a class are visible, too, where no numbers tell them
    shading = PowerNorm(1.0 if numbered else 0.5, vmin=0, vmax=1)
    image = axes.imshow(shares, cmap=SHADES, norm=shading, aspect="equal")
    ticks = range(0, classes, -(-classes // 50))
    labels = [short(names[index], 18) for index in ticks]
    upright = classes > 4 or max(map(len, labels)) > 10
    size = 10 if classes <= 25 else 8
    axes.set_xticks(ticks, labels, rotation=90 if upright else 0, size=size)
    axes.set_yticks(ticks, labels, size=size)
    axes.spines[:].set_visible(False)
    for place in np.arange(1, classes) - 0.5 if numbered else ():
        axes.axhline(place, color=GREY, linewidth=0.4, alpha=0.5)
        axes.axvline(place, color=GREY, linewidth=0.4, alpha=0.5)
    if numbered:
        for (row, column), count in np.ndenumerate(numbers):
            axes.text(column, row, f"{count:,}", ha="center", va="center", size=10 - classes // 5)
    else:
        bar = figure.colorbar(image, ax=axes, shrink=0.6, format=PercentFormatter(1))
        bar.outline.set_visible(False)
        if bar.solids is not None:
            bar.solids.set_rasterized(True)
    titled(axes, "Confusion matrix", x="predicted class", y="true class")
    axes.grid(visible=False)
    right = np.trace(numbers) / max(1, numbers.sum())
    confusions = shares - np.diag(np.diag(shares))
    true, predicted = np.unravel_index(confusions.argmax(), confusions.shape)
    alt = f"Shaded by the share of the true class; {right:.1%} of the rows are on the diagonal."
    if confusions.any():
        alt += f" The most frequent confusion: {confusions[true, predicted]:.0%} of "
        alt += f"'{names[true]}' are predicted as '{names[predicted]}'."
    return Plot(alt, figure, wide=figure.get_figwidth() > WIDTH)


@styled
def classes(scores_of_classes: Mapping[str, Mapping[str, Any]], kind: str = "class") -> Plot | None:
    """Plot F1 of each class, or label, with its interval, the worst only where there are many."""
    if sum(score["support"] for score in scores_of_classes.values()) < _FEWEST_OF_CLASSES:
        return None
    names = sorted(scores_of_classes, key=lambda name: scores_of_classes[name]["f1"]["value"])
    shown_names = names[:_MOST_BARS] if len(names) > _MOST_BARS else list(scores_of_classes)
    scores = [scores_of_classes[name]["f1"] for name in shown_names]
    values = [score["value"] for score in scores]
    figure, (axes,) = figure_of(1, height=1.0 + 0.24 * len(shown_names))
    places = np.arange(len(shown_names))
    axes.barh(places, values, xerr=_reach(scores), color=BLUE, ecolor=INK, height=0.7, capsize=2)
    axes.set_yticks(
        places,
        [f"{short(name, 18)} ({scores_of_classes[name]['support']:,})" for name in shown_names],
    )
    axes.set(xlim=(0, 1), ylim=(len(shown_names) - 0.5, -0.5))
    lowest = f" (lowest {_MOST_BARS} of {len(names)})" if len(names) > _MOST_BARS else ""
    titled(axes, f"F1 by {kind}{lowest}", x="F1, 95% confidence interval; (rows)")
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color=GREY, alpha=0.25, linewidth=0.6)
    worst, best = names[0], names[-1]
    low, high = (wording.rounded(scores_of_classes[name]["f1"])[0] for name in (worst, best))
    return Plot(
        f"F1 is lowest for '{worst}' ({low}) and highest for '{best}' ({high}).",
        figure,
    )


@styled
def together(counts: np.ndarray, names: Sequence[str]) -> Plot | None:
    """Plot of the rows that have one label how many have another.

    Args:
        counts: Rows that have both, shape ``(labels, labels)``; on the diagonal, those of one.
        names: Of the labels.
    """
    if len(names) < 2 or not counts.any():
        return None
    shares = counts / np.maximum(np.diag(counts)[:, None], 1)
    side = 2.0 + min(8.0, 0.45 * len(names))
    figure, (axes,) = figure_of(1, height=0.9 * side, width=max(side, WIDTH))
    image = axes.imshow(shares, cmap=SHADES, vmin=0, vmax=1, aspect="equal")
    ticks = range(0, len(names), -(-len(names) // 50))
    labels = [short(names[index], 18) for index in ticks]
    axes.set_xticks(ticks, labels, rotation=90)
    axes.set_yticks(ticks, labels)
    axes.spines[:].set_visible(False)
    if counts.size <= _MOST_CELLS_WITH_NUMBERS:
        for (row, column), count in np.ndenumerate(counts):
            axes.text(column, row, f"{count:,}", ha="center", va="center", size=9)
    else:
        figure.colorbar(image, ax=axes, shrink=0.6, format=PercentFormatter(1))
    titled(axes, "Labels of the same rows", x="that have this label, too", y="rows with this label")
    axes.grid(visible=False)
    overlaps = shares - np.diag(np.diag(shares))
    first, other = map(int, np.unravel_index(overlaps.argmax(), overlaps.shape))
    return Plot(
        f"Of the rows with '{names[first]}', {shares[first, other]:.0%} have '{names[other]}' too, "
        "the largest such share.",
        figure,
    )


@styled
def reliability(calibration: Mapping[str, Any]) -> Plot | None:
    """Plot accuracy by confidence, before and after the temperature, and where the rows are."""
    curves = [("uncalibrated", calibration["bins"], BLUE, "o")]
    alt = f"Expected calibration error {calibration['expected_calibration_error']:.3f}"
    if after := calibration.get("after"):
        hot = calibration["temperature"]
        curves.append((f"temperature {hot:.2f}", after["bins"], ORANGE, "s"))
        alt += f", {after['expected_calibration_error']:.3f} at temperature {hot:.2f}"
    bins = calibration["bins"]
    if sum(bin_["rows"] for bin_ in bins) < _FEWEST_ROWS or len(bins) < _FEWEST_BINS:
        return None
    figure, (axes, rows) = figure_of(2, height=4.6, ratios=(3, 1), share_x=True)
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1.5, label="perfect")
    for number, (label, bins, colour, marker) in enumerate(curves):
        confidences = [bin_["confidence"] for bin_ in bins]
        right, counts = ([bin_[name] for bin_ in bins] for name in ("accuracy", "rows"))
        axes.plot(confidences, right, color=colour, marker=marker, label=label)
        rows.bar(np.array(confidences) + (number - 0.5) * 0.014, counts, width=0.014, color=colour)
    axes.set_ylim(0, 1.02)
    titled(axes, "Calibration: accuracy by confidence", legend=True, percent="xy")
    titled(rows, "Rows", x="confidence (probability of the predicted class)", percent="x")
    return Plot(alt + ".", figure)


@styled
def lengths(tokens: np.ndarray, right: np.ndarray, max_length: int | None) -> Plot | None:
    """Plot how long the texts are, where they are truncated, and the accuracy by length.

    Args:
        tokens: Of each row before truncation, shape ``(rows,)``.
        right: Whether the prediction is right, shape ``(rows,)``.
        max_length: Tokens that the model sees; None if unknown.
    """
    if len(tokens) < _FEWEST_ROWS:
        return None
    figure, (histogram, accuracy) = figure_of(2, height=4.6, share_x=True)
    top = max(float(np.quantile(tokens, 0.995)), float(tokens.min()) + 1)
    lengths_seen = np.minimum(tokens, top)
    wide = max(1, round((top - tokens.min()) / 40))  # whole tokens: others would leave gaps
    histogram.hist(
        lengths_seen, bins=list(np.arange(tokens.min(), top + wide + 1, wide) - 0.5), color=BLUE
    )
    alt = f"Median length {np.median(tokens):,.0f} tokens"
    if max_length and max_length < top:
        for axes in (histogram, accuracy):
            axes.axvline(max_length, color=ORANGE, linestyle="--", linewidth=1.2)
        cut = (tokens > max_length).mean()
        alt += f"; {cut:.1%} of the texts are truncated at {max_length:,}"
        place: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        histogram.annotate(f"{cut:.0%} truncated", (max_length, 0.92), xytext=(4, 0), **place)
    remark = f" (longest 0.5% at {top:,.0f})" if tokens.max() > top else ""
    titled(histogram, f"Texts by length{remark}")
    edges = np.unique(np.quantile(lengths_seen, np.linspace(0, 1, 9)))
    if len(edges) > 1:
        group = np.clip(np.searchsorted(edges, lengths_seen, side="right") - 1, 0, len(edges) - 2)
        kinds, counts = np.unique(group, return_counts=True)
        found = [
            asdict(share(int(right[group == kind].sum()), count))
            for kind, count in zip(kinds, counts, strict=True)
        ]
        _with_bars(accuracy, ((edges[:-1] + edges[1:]) / 2)[kinds], found, GREEN)
        shortest, longest = found[0]["value"], found[-1]["value"]
        alt += f"; accuracy {shortest:.1%} on the {counts[0]:,} shortest, {longest:.1%} on the "
        alt += f"{counts[-1]:,} longest"
    titled(accuracy, "Accuracy by length", x="tokens", percent="y")
    return Plot(alt + ".", figure)


def _with_bars(
    axes: Axes, places: ArrayLike, scores: Sequence[Mapping[str, float]], colour: str
) -> None:
    """Draw a line of values with their intervals."""
    values = [score["value"] for score in scores]
    axes.errorbar(places, values, yerr=_reach(scores), color=colour, marker="o", capsize=2)


def _reach(scores: Sequence[Mapping[str, float]]) -> list[list[float]]:
    """Return how far intervals go below their values and above them, as error bars want it."""
    return [
        [max(0.0, score["value"] - score["low"]) for score in scores],
        [max(0.0, score["high"] - score["value"]) for score in scores],
    ]
