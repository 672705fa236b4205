"""The plots of a report, as matplotlib figures: for the page as SVG, beside it as PNG.

The colours are those of Okabe and Ito (2008), which colour-blind readers can tell apart.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from finetune.results import wording

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#7F7F7F"
_COLOURS = (BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9")
_INK = "#010203"  # stands for the colour of the page's text, whichever it is
_WIDTH = 7.2  # inches
_LONGEST_NAME = 24
_MOST_CELLS_WITH_NUMBERS = 12 * 12
_STYLE: Any = {
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "font.size": 9,
    "font.family": "sans-serif",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "finetune",
}


@dataclass(frozen=True)
class Plot:
    """A figure with the words that say the same.

    Attributes:
        title: For the heading.
        alt: What it shows, for whoever does not see it.
        figure: Of matplotlib.
    """

    title: str
    alt: str
    figure: Figure

    def svg(self) -> str:
        """An element for a page: no background, the text in the colour of the page's."""
        written = io.StringIO()
        with matplotlib.rc_context(_STYLE):
            self.figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
        self.figure.set_layout_engine("none")  # it is laid out; doing it again takes as long again
        element = written.getvalue()
        element = element[element.index("<svg") :].replace(_INK, "currentColor")
        return re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)

    def save(self, path: Path) -> None:
        """As PNG, dark on white."""
        with matplotlib.rc_context(_STYLE):
            self.figure.savefig(path, dpi=150, facecolor="white")


def learning_curves(history: Sequence[Mapping[str, float]], best_step: int | None) -> Plot | None:
    """Loss of training and validation, the metrics of validation, and the learning rate."""
    trained = [entry for entry in history if "loss" in entry]
    validated = [entry for entry in history if "eval_loss" in entry]
    if not trained:
        return None
    figure, (losses, scores, rates) = _figure(3, height=6.4, share_x=True)
    losses.plot(*_columns(trained, "loss"), color=BLUE, label="training")
    alt = f"Training loss from {trained[0]['loss']:.3f} to {trained[-1]['loss']:.3f}"
    if validated:
        losses.plot(*_columns(validated, "eval_loss"), color=ORANGE, marker="o", label="validation")
        alt += f"; validation loss at last {validated[-1]['eval_loss']:.3f}"
    _titled(losses, "Loss (nats)", legend=True)
    names = [
        name
        for name in (validated[0] if validated else {})
        if name.startswith("eval_")
        and not name.endswith(("loss", "runtime", "_per_second", "_time"))
    ]
    for name, colour, marker in zip(names, (GREEN, ORANGE, BLUE, GREY), "os^D", strict=False):
        label = wording.name(name.removeprefix("eval_"))
        scores.plot(*_columns(validated, name), color=colour, marker=marker, label=label)
        alt += f"; {label} at last {validated[-1][name]:.3f}"
    if best_step:
        for axes in (losses, scores):
            axes.axvline(best_step, color=GREY, linestyle=":", linewidth=1)
        alt += f"; the best step was {best_step}"
    _titled(
        scores,
        "Validation" + (" (dotted: the step that was kept)" if best_step else ""),
        legend=bool(names),
    )
    rates.plot(*_columns(trained, "learning_rate"), color=GREY)
    rates.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    _titled(rates, "Learning rate")
    rates.set_xlabel("step")
    return Plot("Learning curves", alt + ".", figure)


def overlaid(histories: Mapping[str, Sequence[Mapping[str, float]]], metric: str) -> Plot | None:
    """Training loss, validation loss and a metric of several runs.

    Args:
        histories: By the name of the run.
        metric: As the history has it, like ``eval_f1``.
    """
    figure, panels = _figure(3, height=6.4, share_x=True)
    names = {"loss": "Training loss (nats)", "eval_loss": "Validation loss (nats)"}
    names[metric] = f"Validation {wording.name(metric.removeprefix('eval_'))}"
    last = []
    for number, (run, history) in enumerate(histories.items()):
        colour, marker = _COLOURS[number % len(_COLOURS)], "os^Dv"[number % 5]
        for axes, name in zip(panels, names, strict=True):
            steps, values = _columns(history, name)
            axes.plot(steps, values, color=colour, marker=marker, markersize=3, label=run)
        if values:
            last.append(f"{run} at last {values[-1]:.3f}")
    if not last:
        return None
    for number, (axes, title) in enumerate(zip(panels, names.values(), strict=True)):
        _titled(axes, title, legend=number == 0)
    panels[-1].set_xlabel("step")
    alt = f"{names[metric]}: {', '.join(last)}."
    return Plot("Curves", alt, figure)


def speed(history: Sequence[Mapping[str, float]]) -> Plot | None:
    """Rows a second, and memory, over the steps."""
    metered = [entry for entry in history if "rows_per_second" in entry]
    if not metered:
        return None
    figure, (rows, memory) = _figure(2, height=4.0, share_x=True)
    rows.plot(*_columns(metered, "rows_per_second"), color=BLUE)
    rows.set_ylim(bottom=0)
    _titled(rows, "Rows a second, all processes")
    memory.plot(*_columns(metered, "memory_mib"), color=GREEN)
    memory.set_ylim(bottom=0)
    _titled(memory, "Memory of rank 0 (MiB)")
    memory.set_xlabel("step")
    middle = float(np.median([entry["rows_per_second"] for entry in metered]))
    most = max(entry["memory_mib"] for entry in metered)
    return Plot(
        "Speed and memory",
        f"{middle:,.1f} rows a second in the median; at most {most:,.0f} MiB of memory.",
        figure,
    )


def confusion(matrix: Sequence[Sequence[int]], names: Sequence[str]) -> Plot:
    """True by predicted class: the shares of each true class, with the counts where they fit."""
    numbers = np.asarray(matrix)
    shares = numbers / np.maximum(numbers.sum(axis=1, keepdims=True), 1)
    classes = len(names)
    side = min(_WIDTH, 2.6 + 0.55 * classes)
    figure, (axes,) = _figure(1, height=side * 0.92, width=side)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="equal")
    ticks = range(0, classes, -(-classes // 25))
    shown = [_short(names[index]) for index in ticks]
    upright = classes > 4 or max(map(len, shown)) > 12
    axes.set_xticks(ticks, shown, rotation=90 if upright else 0)
    axes.set_yticks(ticks, shown)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.spines[:].set_visible(False)
    if classes**2 <= _MOST_CELLS_WITH_NUMBERS:
        size = 9 if classes <= 6 else 7
        for (row, column), count in np.ndenumerate(numbers):
            dark = shares[row, column] > 0.5
            axes.text(
                column,
                row,
                f"{count:,}",
                ha="center",
                va="center",
                fontsize=size,
                color="white" if dark else "#222222",
            )
    with matplotlib.rc_context(_STYLE):
        bar = figure.colorbar(image, ax=axes, shrink=0.8, format=PercentFormatter(1))
    bar.outline.set_visible(False)
    _titled(axes, "Share of the true class")
    axes.grid(visible=False)
    right = np.trace(numbers) / max(1, numbers.sum())
    apart = shares - np.diag(np.diag(shares))
    true, said = np.unravel_index(apart.argmax(), apart.shape)
    worst = (
        f" The most frequent confusion: of '{names[true]}' {apart[true, said]:.0%} were taken for "
        f"'{names[said]}'."
        if apart.any()
        else ""
    )
    return Plot("Confusion matrix", f"{right:.1%} of the rows are on the diagonal.{worst}", figure)


def classes(found: Mapping[str, Mapping[str, Any]]) -> Plot:
    """F1 of each class with its interval, the worst first where there are many."""
    names = sorted(found, key=lambda name: found[name]["f1"]["value"])
    many = len(names) > 30
    shown = names[:30] if many else list(found)
    scores = [found[name]["f1"] for name in shown]
    values = [each["value"] for each in scores]
    reach = [
        [max(0, each["value"] - each["low"]) for each in scores],
        [max(0, each["high"] - each["value"]) for each in scores],
    ]
    figure, (axes,) = _figure(1, height=1.2 + 0.26 * len(shown))
    places = np.arange(len(shown))
    axes.barh(places, values, xerr=reach, color=BLUE, ecolor=_INK, height=0.7, capsize=2)
    axes.set_yticks(places, [f"{_short(name)} ({found[name]['support']:,})" for name in shown])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("F1, with the interval of 95%; in brackets the rows of the class")
    _titled(axes, f"The 30 lowest of {len(names)} classes" if many else "F1 of each class")
    worst, best = names[0], names[-1]
    return Plot(
        "Classes",
        f"F1 is lowest for '{worst}' ({found[worst]['f1']['value']:.3f}) and highest for '{best}' "
        f"({found[best]['f1']['value']:.3f}).",
        figure,
    )


def reliability(calibration: Mapping[str, Any]) -> Plot:
    """Accuracy against confidence, before and after the temperature, and where the rows are."""
    figure, (axes, rows) = _figure(2, height=5.2, ratios=(3, 1), share_x=True)
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1, label="calibrated")
    alt = f"Expected calibration error {calibration['expected_calibration_error']:.3f}"
    curves = [("as it is", calibration["bins"], BLUE, "o")]
    if after := calibration.get("after"):
        hot = calibration["temperature"]
        curves.append((f"at temperature {hot:.2f}", after["bins"], ORANGE, "s"))
        alt += f", {after['expected_calibration_error']:.3f} at temperature {hot:.2f}"
    for number, (label, bins, colour, marker) in enumerate(curves):
        sure = [each["confidence"] for each in bins]
        axes.plot(
            sure, [each["accuracy"] for each in bins], color=colour, marker=marker, label=label
        )
        counts = [each["rows"] for each in bins]
        rows.bar(np.array(sure) + (number - 0.5) * 0.014, counts, width=0.014, color=colour)
    axes.set_ylim(0, 1.02)
    _titled(axes, "Accuracy of the rows with this confidence", legend=True)
    _titled(rows, "Rows")
    rows.set_xlabel("probability of the predicted class")
    return Plot("Calibration", alt + ".", figure)


def coverage(points: Sequence[Mapping[str, float]]) -> Plot:
    """What the accuracy is if the model abstains where it is least sure."""
    figure, (axes,) = _figure(1, height=2.8)
    axes.plot(
        [each["coverage"] for each in points],
        [each["accuracy"] for each in points],
        color=BLUE,
        marker="o",
    )
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel("share of the rows that are answered, the surest first")
    _titled(axes, "Accuracy on these")
    first, last = points[0], points[-1]
    return Plot(
        "Abstaining",
        f"Accuracy {first['accuracy']:.1%} on the surest {first['coverage']:.0%} of the rows, "
        f"{last['accuracy']:.1%} on all.",
        figure,
    )


def lengths(tokens: np.ndarray, right: np.ndarray, max_length: int | None) -> Plot:
    """How long the texts are, where they are truncated, and the accuracy by length.

    Args:
        tokens: Of each row before truncation, shape ``(rows,)``.
        right: Whether the prediction is right, shape ``(rows,)``.
        max_length: Tokens that the model sees; None if unknown.
    """
    figure, (histogram, accuracy) = _figure(2, height=4.8, share_x=True)
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
        histogram.annotate(
            f"{cut:.0%} truncated",
            (max_length, 0.92),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
        )
    _titled(
        histogram,
        "Texts by length" + (f" (the longest 0.5% at {top:,.0f})" if tokens.max() > top else ""),
    )
    edges = np.unique(np.quantile(seen, np.linspace(0, 1, 9)))
    if len(edges) > 1:
        group = np.clip(np.searchsorted(edges, seen, side="right") - 1, 0, len(edges) - 2)
        kinds, counts = np.unique(group, return_counts=True)
        shares = np.array([right[group == each].mean() for each in kinds])
        middle = ((edges[:-1] + edges[1:]) / 2)[kinds]
        deviation = np.sqrt(shares * (1 - shares) / counts)
        accuracy.errorbar(middle, shares, yerr=1.96 * deviation, color=GREEN, marker="o", capsize=2)
        alt += f"; accuracy {shares[0]:.1%} on the shortest eighth, {shares[-1]:.1%} on the longest"
    accuracy.yaxis.set_major_formatter(PercentFormatter(1))
    _titled(accuracy, "Accuracy by length, in eighths of the rows, with intervals of 95%")
    accuracy.set_xlabel("tokens")
    return Plot("Length", alt + ".", figure)


def numbers(labels: np.ndarray, predicted: np.ndarray) -> Plot:
    """Predicted against true value of a regression."""
    figure, (axes,) = _figure(1, height=5.0, width=5.6)
    shown = np.random.default_rng(0).permutation(len(labels))[:2000]
    axes.scatter(labels[shown], predicted[shown], s=9, color=BLUE, alpha=0.4, rasterized=True)
    ends = [min(labels.min(), predicted.min()), max(labels.max(), predicted.max())]
    axes.plot(ends, ends, color=GREY, linestyle=":", linewidth=1)
    axes.set_xlabel("true")
    axes.set_ylabel("predicted")
    _titled(
        axes,
        "Predicted and true value"
        + (f" (2,000 of {len(labels):,} rows)" if len(labels) > 2000 else ""),
    )
    correlation = float(np.corrcoef(labels, predicted)[0, 1])
    return Plot(
        "Predictions", f"Correlation of predicted and true value {correlation:.3f}.", figure
    )


def _figure(
    rows: int,
    *,
    height: float,
    width: float = _WIDTH,
    ratios: Sequence[float] | None = None,
    share_x: bool = False,
) -> tuple[Figure, list[Axes]]:
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, sharex=share_x, height_ratios=ratios, squeeze=False)
    return figure, list(axes[:, 0])


def _titled(axes: Axes, title: str, *, legend: bool = False) -> None:
    with matplotlib.rc_context(_STYLE):
        axes.set_title(title)
        axes.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.6)
        axes.set_axisbelow(True)
        if legend:
            axes.legend()


def _columns(entries: Sequence[Mapping[str, float]], name: str) -> tuple[list[float], list[float]]:
    there = [entry for entry in entries if name in entry]
    return [entry["step"] for entry in there], [entry[name] for entry in there]


def _short(name: str) -> str:
    """Both ends of a long name: what tells it from others may be at either."""
    if len(name) <= _LONGEST_NAME:
        return name
    half = _LONGEST_NAME // 2
    return f"{name[: half - 1].rstrip()}…{name[-half:].lstrip()}"
