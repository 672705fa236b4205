"""The plots of a report. Plots that need more steps or rows than a run has are left out.

A page may be light or dark, and as narrow as a phone: figures have no background, their text has
the colour of the page's text, and they are narrow enough not to be scaled down.
"""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from sklearn.metrics import precision_recall_curve, roc_curve

from finetune.reporting.tables import AREAS
from finetune.runs.records import Manifest
from finetune.runtime.formats import visible
from finetune.statistics.scored import ScoredRows

#: Similar to the colours of Okabe and Ito (2008), which colour-blind readers can distinguish; each
#: has a contrast of 3 to 1 on white and on the dark background of the page.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#BC5E92", "#A87400", "#3C8FC4")
BLUE = COLOURS[0]
GREY = "#7F7F7F"
INK = "#010203"  # a placeholder, replaced by the colour of the page's text
#: From transparent for 0 to a blue for 1 on which both light and dark text is legible.
SHADES = LinearSegmentedColormap.from_list("shades", [f"{BLUE}00", f"{BLUE}CC"])
WIDTH = 4.6  # inches
#: The style for ``matplotlib.rc_context``, in which plots are drawn and written.
STYLE: Any = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
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
#: With fewer test rows, or fewer rows of a class, curves are noise.
_MIN_ROWS = 100
_MIN_ROWS_OF_CLASS = 10
_MAX_CLASSES_WITH_NUMBERS = 12
_MAX_CURVES = 5
_MAX_DOTS = 1000


@dataclass(frozen=True)
class Plot:
    """A plot of a report."""

    name: str  # of its file, without .png
    alt: str  # a description, for the caption and for screen readers
    figure: Figure

    @property
    def is_wide(self) -> bool:
        """Whether the plot scrolls on a narrow page, because it would be too small if scaled."""
        return self.figure.get_figwidth() > WIDTH

    def svg(self) -> str:
        """Return an SVG element without background; its text has the colour of the page's text."""
        file = io.StringIO()
        if engine := self.figure.get_layout_engine():  # with one, each savefig draws twice
            engine.execute(self.figure)
            self.figure.set_layout_engine(None)
        self.figure.savefig(file, format="svg", dpi=100, transparent=True, metadata={"Date": None})
        element = file.getvalue()
        element = element[element.index("<svg") :].replace(INK, "currentColor")
        return re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)


def learning_curves(manifest: Manifest) -> list[Plot]:
    """Plot training and validation losses, and validation metrics, by step."""
    logged = pd.DataFrame([*manifest.history, {"step": np.nan}]).set_index("step")
    names = [str(name) for name in logged if logged[name].count() > 1]  # one point is no curve
    excluded = ("loss", "runtime", "_per_second", "_time")
    losses = [name for name in names if name in ("loss", "eval_loss")]
    metrics = [name for name in names if name.startswith("eval_") and not name.endswith(excluded)]
    curves = []
    if losses:
        curves.append(("Loss", losses))
    if metrics:
        curves.append(("Validation metrics", metrics))
    if not curves:
        return []
    figure, axes_of_curves = panels(len(curves), height=0.6 + 1.9 * len(curves))
    for axes, (title, names) in zip(axes_of_curves, curves, strict=True):
        for name, colour, marker in zip(names, COLOURS, "os^Dvx", strict=False):
            values = logged[name].dropna().astype(float)  # a value that is not finite is null
            label = name.replace("eval_", "validation ")
            if label == "loss":
                label = "training loss"
            axes.plot(values, color=colour, marker="" if name == "loss" else marker, label=label)
        if manifest.best_step:
            axes.axvline(manifest.best_step, color=GREY, linestyle=":", linewidth=1.5)
        label_axes(axes, title)
    alt = "Learning curves by step"
    if manifest.best_step:
        alt += f"; the dotted line is the best checkpoint, step {manifest.best_step:,}"
    axes_of_curves[-1].set_xlabel("step")
    axes_of_curves[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return [Plot("learning_curves", f"{alt}.", figure)]


def confusion(counts: np.ndarray, names: Sequence[str]) -> Plot:
    """Plot a confusion matrix, shape ``(true, predicted)``, as shares of each true class."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    classes = len(names)
    is_numbered = classes <= _MAX_CLASSES_WITH_NUMBERS
    side = 2.0 + 0.5 * classes if is_numbered else 8.0
    figure, (axes,) = panels(1, height=0.9 * side, width=max(side, WIDTH))
    axes.imshow(shares, cmap=SHADES, vmin=0, vmax=1)
    if is_numbered:
        for (row, column), share in np.ndenumerate(shares):
            axes.text(column, row, f"{share:.0%}", ha="center", va="center", size=9)
    ticks = range(0, classes, -(-classes // 50))
    labels = [_shorten(names[index], 18) for index in ticks]
    axes.set_xticks(ticks, labels, rotation="vertical" if classes > 4 else "horizontal")
    axes.set_yticks(ticks, labels)
    axes.spines[:].set_visible(False)
    label_axes(axes, "Confusion matrix", x="predicted class", y="true class")
    axes.grid(visible=False)
    return Plot(
        "confusion",
        "Share of each true class by predicted class; correct predictions are on the diagonal.",
        figure,
    )


def ranking(predicted: ScoredRows, classes: Mapping[str, Mapping[str, Any]]) -> list[Plot]:
    """Plot ROC and precision-recall curves of the positive class, if there are two classes.

    With more classes, plot the one-vs-rest curves of those with the lowest areas under the curve,
    which are in ``classes``, the statistics of each class by name.
    """
    supports = predicted.supports
    names = predicted.names
    plots = []
    has_enough = np.minimum(supports, len(predicted) - supports) >= _MIN_ROWS_OF_CLASS
    numbers = np.flatnonzero(has_enough).tolist()
    if len(names) == 2:  # either both have enough rows, or none
        numbers = [number for number in numbers if number == predicted.positive]
    if not numbers:
        return []
    for area, measure in AREAS.items():
        areas = {number: classes[names[number]][area]["value"] for number in numbers}
        lowest = sorted(areas, key=areas.__getitem__)[:_MAX_CURVES]
        figure, (axes,) = panels(1, height=4.4 + 0.1 * len(lowest))
        if is_roc := area == "roc_area":
            label_axes(axes, "ROC curve", x="false positive rate", y="true positive rate")
            axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1.5)
        else:
            label_axes(axes, "Precision-recall curve", x="recall", y="precision")
        for number, colour in zip(sorted(lowest), COLOURS, strict=False):
            true = predicted.labels == number
            scores = predicted.probabilities.column(number)
            if is_roc:
                x, y, _ = roc_curve(true, scores)
            else:
                y, x, _ = precision_recall_curve(true, scores, drop_intermediate=True)
            label = f"{_shorten(names[number], 16)} ({measure} = {areas[number]:.2f})"
            style = "default" if is_roc else "steps-post"
            axes.plot(x, y, drawstyle=style, color=colour, label=label)
        axes.set(aspect="equal", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
        figure.legend(loc="outside lower left")
        values = ", ".join(f"'{names[number]}' {areas[number]:.3f}" for number in lowest)
        plots.append(
            Plot(
                "roc" if is_roc else "precision_recall",
                f"One-vs-rest {measure} (at most the {_MAX_CURVES} lowest): {values}.",
                figure,
            )
        )
    return plots


def reliability(calibration: Mapping[str, Any]) -> list[Plot]:
    """Plot accuracy by confidence."""
    bins = pd.DataFrame(calibration["bins"])
    if bins["rows"].sum() < _MIN_ROWS:
        return []
    figure, (axes,) = panels(1, height=4.0)
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1.5, label="perfect")
    axes.plot(bins["confidence"], bins["accuracy"], color=BLUE, marker="o", label="model")
    axes.set_ylim(0, 1.02)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1))
    label_axes(axes, "Calibration: accuracy by confidence", x="confidence")
    return [
        Plot(
            "reliability",
            "Accuracy by confidence; they are equal for a calibrated model (dotted).",
            figure,
        )
    ]


def predicted_and_true(labels: np.ndarray, predicted: np.ndarray, name: str, suffix: str) -> Plot:
    """Plot true against predicted values of a target, for 1,000 rows at most.

    Args:
        labels: The true values, shape ``(rows,)``.
        predicted: The predicted values, shape ``(rows,)``.
        name: The name of the target.
        suffix: The end of the name of the file, if there are several targets.
    """
    figure, (axes,) = panels(1, height=4.0)
    rows = np.random.default_rng(0).permutation(len(labels))[:_MAX_DOTS]
    values = np.concatenate([labels, predicted])
    ends = [values.min(), values.max()]
    axes.plot(ends, ends, color=GREY, linestyle=":")
    axes.scatter(predicted[rows], labels[rows], color=BLUE, alpha=0.4, s=9, rasterized=True)
    label_axes(axes, "Predicted and true value", x=f"predicted {_shorten(name)}", y="true value")
    error = f"{np.median(np.abs(labels - predicted)):.3g}"
    return Plot(
        f"predictions{suffix}",
        f"Predicted and true {name}. The median absolute error is {error}.",
        figure,
    )


def panels(rows: int, *, height: float, width: float = WIDTH) -> tuple[Figure, list[Axes]]:
    """Return a figure of ``rows`` panels below each other that share the horizontal axis."""
    figure = Figure(figsize=(width, height), dpi=72, layout="constrained")
    FigureCanvasSVG(figure)  # the layout measures text as in the page, in units of 1/72 inch
    return figure, list(figure.subplots(rows, sharex=True, squeeze=False)[:, 0])


def label_axes(axes: Axes, title: str, *, x: str = "", y: str = "") -> None:
    """Add title, axis labels, grid and legend."""
    axes.set(title=title, xlabel=x, ylabel=y, axisbelow=True)
    axes.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.6)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()


def _shorten(name: str, max_length: int = 22) -> str:
    """Cut the middle out of a long name: its start or its end may distinguish it from others."""
    name = visible(name, "")
    if len(name) > max_length:
        half = max_length // 2
        name = f"{name[: half - 1].rstrip()}…{name[-half:].lstrip()}"
    return name.replace("$", r"\$")  # matplotlib reads text between two of them as a formula
