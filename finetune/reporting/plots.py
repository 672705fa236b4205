"""The plots of a report; one that so few steps or rows cannot support is left out: it is None.

The page may be light or dark and as narrow as a phone. So nothing in a figure has a background, its
text takes the colour of the page's, and it is drawn narrow, so that it need not shrink.
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
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from sklearn.metrics import (
    ConfusionMatrixDisplay,
    PrecisionRecallDisplay,
    PredictionErrorDisplay,
    RocCurveDisplay,
    precision_recall_curve,
    roc_curve,
)

from finetune.runtime.files import replacing
from finetune.runtime.formats import visible
from finetune.statistics import estimates
from finetune.statistics.scored import ScoredRows

#: Nearly those of Okabe and Ito (2008), which colour-blind readers can tell apart; each has a
#: contrast of 3 to 1 on white and on the page's dark background.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#7F7F7F"
COLOURS = (BLUE, ORANGE, GREEN, "#BC5E92", "#A87400", "#3C8FC4")
MARKERS = "os^Dv<"
INK = "#010203"  # stands for the colour of the page's text, whichever it is
#: Shares from nothing, which is the background, to a blue on which text of either mode is legible.
SHADES = LinearSegmentedColormap.from_list("shades", [f"{BLUE}00", f"{BLUE}CC"])
WIDTH = 4.6  # inches
STYLE: Any = {
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "font.size": 10,
    "font.family": "sans-serif",
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "svg.hashsalt": "finetune",
}
#: Draws what a function draws in the style of the report.
styled = matplotlib.rc_context(STYLE)
#: Fewer points are no curve: those that are logged every few steps, and those of evaluations.
_FEWEST_LOGGED, _FEWEST_EVALUATIONS = 3, 2
#: Test rows below which curves over groups of them are noise, and rows of a class likewise.
_FEWEST_ROWS, _FEWEST_OF_CLASS = 100, 10
_MOST_CELLS_WITH_NUMBERS, _FEWEST_BINS = 12 * 12, 3
_MOST_CURVES, _MOST_POINTS = 5, 501


@dataclass(frozen=True)
class Plot:
    """A figure.

    Attributes:
        name: Of its file.
        alt: What it shows, for whoever does not see it.
        figure: What is drawn.
    """

    name: str
    alt: str
    figure: Figure

    @property
    def is_wide(self) -> bool:
        """Whether it has too much in it to shrink with a narrow page, which scrolls it instead."""
        return self.figure.get_figwidth() > WIDTH

    @styled
    def svg(self) -> str:
        """Return an element for a page: no background, the text in the colour of the page's."""
        written = io.StringIO()
        self.figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
        self.figure.set_layout_engine("none")  # it is laid out; doing it again takes as long again
        element = written.getvalue()
        element = element[element.index("<svg") :].replace(INK, "currentColor")
        return re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)

    @styled
    def save(self, path: Path) -> None:
        """Write it as PNG, dark on white."""
        with replacing(path) as new:
            self.figure.savefig(new, format="png", dpi=200, facecolor="white")


@styled
def learning_curves(history: Sequence[Mapping[str, float]], best_step: int | None) -> Plot | None:
    """Plot the losses of training and validation, and the metrics of the evaluations."""
    trained, validated = _logged(history, "loss"), _logged(history, "eval_loss")
    has_metrics = len(validated) >= _FEWEST_EVALUATIONS
    if len(trained) < _FEWEST_LOGGED and not has_metrics:
        return None
    figure, panels = _panels(1 + has_metrics, height=2.5 + 1.9 * has_metrics)
    curves = [(panels[0], "validation loss", validated, ORANGE, "o")]
    if len(trained) >= _FEWEST_LOGGED:
        curves.insert(0, (panels[0], "training loss", trained, BLUE, ""))
    if has_metrics:
        speeds = ("loss", "runtime", "_per_second", "_time")
        logged = dict.fromkeys(name for entry in history for name in entry)
        names = [name for name in logged if name.startswith("eval_") and not name.endswith(speeds)]
        for name, colour, marker in zip(names, (GREEN, *COLOURS[3:]), MARKERS, strict=False):
            label = f"validation {name.removeprefix('eval_')}"
            curves.append((panels[1], label, _logged(history, name), colour, marker))
    alt = []
    for axes, label, values, colour, marker in curves:
        if len(values):
            axes.plot(*values.T, color=colour, marker=marker, label=label)
            alt.append(f"{label} from {values[0, 1]:.3f} to {values[-1, 1]:.3f}")
    if has_metrics and best_step:
        for axes in panels:
            axes.axvline(best_step, color=GREY, linestyle=":", linewidth=1.5)
        alt.append(f"best checkpoint at step {best_step} (dotted)")
    for axes, title in zip(panels, ("Loss", "Validation metrics"), strict=False):
        _title(axes, title)
    panels[-1].set_xlabel("step")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return Plot("learning_curves", f"Learning curves: {'; '.join(alt)}.", figure)


@styled
def confusion(numbers: np.ndarray, names: Sequence[str]) -> Plot:
    """Plot true by predicted class, as shares of each true class.

    Args:
        numbers: Counts, shape ``(classes, classes)``.
        names: Of the classes.
    """
    shares = numbers / np.maximum(numbers.sum(axis=1, keepdims=True), 1)
    classes, is_numbered = len(names), numbers.size <= _MOST_CELLS_WITH_NUMBERS
    side = 2.0 + 0.5 * classes if is_numbered else 8.0
    figure, (axes,) = _panels(1, height=0.9 * side, width=max(side, WIDTH))
    ConfusionMatrixDisplay(shares, display_labels=[_short(name, 18) for name in names]).plot(
        ax=axes,
        cmap=SHADES,
        include_values=is_numbered,
        values_format=".0%",
        colorbar=False,
        xticks_rotation="vertical" if classes > 4 else "horizontal",
        im_kw={"vmin": 0, "vmax": 1},
        text_kw={"color": INK, "size": 9},
    )
    ticks = range(0, classes, -(-classes // 50))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, [_short(names[index], 18) for index in ticks])
    axes.spines[:].set_visible(False)
    _title(axes, "Confusion matrix", x="predicted class", y="true class")
    axes.grid(visible=False)
    alt = f"Shares of each true class; {np.trace(numbers) / max(1, numbers.sum()):.1%} of the rows "
    alt += "are on the diagonal."
    return Plot("confusion", alt, figure)


def ranking(
    predicted: ScoredRows, classes: Mapping[str, Mapping[str, Any]], positive: int
) -> list[Plot]:
    """Plot ROC and precision-recall curves: of two classes those of the positive one, of several
    those of the classes with the lowest areas, each against the rest.

    Args:
        predicted: The test rows.
        classes: The statistics of each class, by name.
        positive: The positive one of two classes.
    """
    supports = predicted.supports
    has_enough = np.minimum(supports, len(predicted) - supports) >= _FEWEST_OF_CLASS
    numbers = np.flatnonzero(has_enough).tolist()
    if len(predicted.names) == 2:
        numbers = [positive] if has_enough.all() else []
    plots = []
    for area in ("roc_area", "pr_area") if numbers else ():
        areas = {number: classes[predicted.names[number]][area]["value"] for number in numbers}
        plots.append(_curves(predicted, area, areas))
    return plots


@styled
def _curves(predicted: ScoredRows, area: str, areas: Mapping[int, float]) -> Plot:
    """Plot a kind of curve of the classes with the lowest of these areas."""
    lowest = sorted(areas, key=lambda number: areas[number])[:_MOST_CURVES]
    name = "ROC AUC" if area == "roc_area" else "average precision"
    figure, (axes,) = _panels(1, height=4.4 + 0.1 * len(lowest))
    for number, colour in zip(sorted(lowest), COLOURS, strict=False):
        true, scores = predicted.labels == number, predicted.probabilities.column(number)
        label = f"{_short(predicted.names[number], 16)} ({name} = {areas[number]:.2f})"
        style = {"color": colour, "label": label}
        if area == "roc_area":
            x, y = _thin(*roc_curve(true, scores)[:2])
            RocCurveDisplay(fpr=x, tpr=y).plot(ax=axes, curve_kwargs=style)
        else:
            y, x = _thin(*precision_recall_curve(true, scores, drop_intermediate=True)[:2])
            PrecisionRecallDisplay(precision=y, recall=x).plot(ax=axes, curve_kwargs=style)
    if area == "roc_area":
        axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1.5)
        _title(axes, "ROC curve", x="false positive rate", y="true positive rate")
    else:
        _title(axes, "Precision-recall curve", x="recall", y="precision")
    if (legend := axes.get_legend()) is not None:
        legend.remove()
    figure.legend(loc="outside lower left")
    listed = ", ".join(f"'{predicted.names[number]}' {areas[number]:.3f}" for number in lowest)
    note = f"; the {_MOST_CURVES} lowest of {len(areas)} are drawn" * (len(areas) > _MOST_CURVES)
    alt = f"{name} of a class against the rest: {listed}{note}."
    return Plot("roc" if area == "roc_area" else "precision_recall", alt, figure)


@styled
def reliability(calibration: Mapping[str, Any]) -> Plot | None:
    """Plot accuracy by confidence, before and after the temperature, and where the rows are."""
    bins, after = calibration["bins"], calibration.get("after")
    if sum(row["rows"] for row in bins) < _FEWEST_ROWS or len(bins) < _FEWEST_BINS:
        return None
    curves = [("uncalibrated", calibration, BLUE, "o")]
    if after:
        curves.append((f"temperature {calibration['temperature']:.2f}", after, ORANGE, "s"))
    figure, (axes, rows) = _panels(2, height=4.6, ratios=(3, 1))
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1.5, label="perfect")
    errors = []
    for number, (label, curve, colour, marker) in enumerate(curves):
        confidences, accuracies, counts = (
            np.array([row[name] for row in curve["bins"]])
            for name in ("confidence", "accuracy", "rows")
        )
        axes.plot(confidences, accuracies, color=colour, marker=marker, label=label)
        rows.bar(confidences + (number - 0.5) * 0.014, counts, width=0.014, color=colour)
        errors.append(f"{curve['expected_calibration_error']:.3f} {label}")
    axes.set_ylim(0, 1.02)
    _title(axes, "Calibration: accuracy by confidence", percent="xy")
    _title(rows, "Rows", x="confidence (probability of the predicted class)", percent="x")
    return Plot("reliability", f"Expected calibration error {', '.join(errors)}.", figure)


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
    figure, (histogram, accuracy) = _panels(2, height=4.6)
    lengths_seen = np.minimum(tokens, np.quantile(tokens, 0.995))
    histogram.hist(lengths_seen, bins=min(40, 1 + int(np.ptp(lengths_seen))), color=BLUE)
    alt = f"Median length {np.median(tokens):,.0f} tokens"
    if max_length and max_length < tokens.max():
        for axes in (histogram, accuracy):
            axes.axvline(max_length, color=ORANGE, linestyle="--", linewidth=1.2)
        share = (tokens > max_length).mean()
        alt += f"; {share:.1%} of the texts are truncated at {max_length:,} (dashed)"
    _title(histogram, "Texts by length")
    edges = np.unique(np.quantile(lengths_seen, np.linspace(0, 1, 9)))
    if len(edges) > 1:
        group = np.clip(np.searchsorted(edges, lengths_seen, side="right") - 1, 0, len(edges) - 2)
        groups, counts = np.unique(group, return_counts=True)
        scores = estimates.shares(np.bincount(group, right)[groups], counts)
        values, low, high = np.array([(score.value, score.low, score.high) for score in scores]).T
        places = ((edges[:-1] + edges[1:]) / 2)[groups]
        reach = np.maximum(0, [values - low, high - values])
        accuracy.errorbar(places, values, yerr=reach, color=GREEN, marker="o", capsize=2)
        alt += f"; accuracy {values[0]:.1%} on the shortest eighth, {values[-1]:.1%} on the longest"
    _title(accuracy, "Accuracy by length, 95% confidence intervals", x="tokens", percent="y")
    return Plot("length", alt + ".", figure)


@styled
def numbers(labels: np.ndarray, predicted: np.ndarray, name: str, suffix: str) -> Plot:
    """Plot predicted against true numbers, of 1,000 rows at most.

    Args:
        labels: Shape ``(rows,)``.
        predicted: Of the same shape.
        name: Of the target.
        suffix: Of the name of the plot.
    """
    figure, (axes,) = _panels(1, height=4.0)
    PredictionErrorDisplay.from_predictions(
        labels,
        predicted,
        kind="actual_vs_predicted",
        ax=axes,
        random_state=0,
        scatter_kwargs={"color": BLUE, "alpha": 0.4, "s": 9, "rasterized": True},
        line_kwargs={"color": GREY, "linestyle": ":"},
    )
    _title(axes, "Predicted and true value", x=f"predicted {_short(name)}", y="true value")
    alt = f"Predicted and true {name}: half of the predictions are at most "
    alt += f"{np.median(np.abs(labels - predicted)):.3g} off."
    return Plot(f"predictions{suffix}", alt, figure)


def _panels(
    rows: int, *, height: float, width: float = WIDTH, ratios: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """Return a figure of so many panels one below the other, with one horizontal axis."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, sharex=True, height_ratios=ratios, squeeze=False)
    return figure, list(axes[:, 0])


def _title(axes: Axes, title: str, *, x: str = "", y: str = "", percent: str = "") -> None:
    """Give a panel its title, the names of its axes and lines, and a quiet grid; ``percent`` names
    the axes of shares, like ``"xy"``.
    """
    axes.set(title=title, xlabel=x, ylabel=y, axisbelow=True)
    axes.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.6)
    for name in percent:
        getattr(axes, f"{name}axis").set_major_formatter(PercentFormatter(1))
    if axes.get_legend_handles_labels()[0]:
        axes.legend()


def _logged(history: Sequence[Mapping[str, float]], name: str) -> np.ndarray:
    """Return steps and values of what was logged under a name, shape ``(entries, 2)``."""
    finite = [entry for entry in history if entry.get(name) is not None]  # null: not finite
    return np.array([(entry["step"], entry[name]) for entry in finite]).reshape(-1, 2)


def _thin(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return at most 501 points of a curve, with its ends."""
    chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MOST_POINTS)).astype(int))
    return x[chosen], y[chosen]


def _short(name: str, longest: int = 22) -> str:
    """Return both ends of a long name: what tells it from others may be at either."""
    name = visible(name, "")
    if len(name) > longest:
        half = longest // 2
        name = f"{name[: half - 1].rstrip()}…{name[-half:].lstrip()}"
    return name.replace("$", r"\$")  # two of them would be a formula
