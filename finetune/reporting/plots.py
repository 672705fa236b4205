"""The plots of a report; one that so few steps or rows cannot support is left out: it is None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator
from sklearn.metrics import (
    ConfusionMatrixDisplay,
    PrecisionRecallDisplay,
    PredictionErrorDisplay,
    RocCurveDisplay,
    precision_recall_curve,
    roc_curve,
)

from finetune.reporting.figure import (
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    INK,
    MARKERS,
    ORANGE,
    SHADES,
    WIDTH,
    Plot,
    columns,
    figure_of,
    short,
    styled,
    titled,
)
from finetune.statistics import estimates
from finetune.statistics.scored import ScoredRows

#: Fewer points are no curve: those that are logged every few steps, and those of evaluations.
_FEWEST_LOGGED, _FEWEST_EVALUATIONS = 3, 2
#: Test rows below which curves over groups of them are noise, and rows of a class likewise.
_FEWEST_ROWS, _FEWEST_OF_CLASS = 100, 10
_MOST_CELLS_WITH_NUMBERS, _FEWEST_BINS = 12 * 12, 3
_MOST_CURVES, _MOST_POINTS = 5, 501


@styled
def learning_curves(history: Sequence[Mapping[str, float]], best_step: int | None) -> Plot | None:
    """Plot the losses of training and validation, and the metrics of the evaluations."""
    trained = [entry for entry in history if entry.get("loss") is not None]
    validated = [entry for entry in history if entry.get("eval_loss") is not None]
    has_metrics = len(validated) >= _FEWEST_EVALUATIONS
    if len(trained) < _FEWEST_LOGGED and not has_metrics:
        return None
    figure, panels = figure_of(1 + has_metrics, height=2.5 + 1.9 * has_metrics, share_x=True)
    alt = []
    if len(trained) >= _FEWEST_LOGGED:
        panels[0].plot(*columns(trained, "loss"), color=BLUE, label="training")
        alt.append(f"training loss from {trained[0]['loss']:.3f} to {trained[-1]['loss']:.3f}")
    if validated:
        steps, values = columns(validated, "eval_loss")
        panels[0].plot(steps, values, color=ORANGE, marker="o", label="validation")
        alt.append(f"final validation loss {values[-1]:.3f}")
    titled(panels[0], "Loss", legend=True)
    if has_metrics:
        speeds = ("loss", "runtime", "_per_second", "_time")
        last = {name: value for name, value in validated[-1].items() if value is not None}
        names = [name for name in last if name.startswith("eval_") and not name.endswith(speeds)]
        for name, colour, marker in zip(names, (GREEN, *COLOURS[3:]), MARKERS, strict=False):
            label = name.removeprefix("eval_")
            panels[1].plot(*columns(validated, name), color=colour, marker=marker, label=label)
            alt.append(f"final validation {label} {last[name]:.3f}")
        if best_step:
            for axes in panels:
                axes.axvline(best_step, color=GREY, linestyle=":", linewidth=1.5)
            alt.append(f"best checkpoint at step {best_step} (dotted)")
        titled(panels[1], "Validation metrics", legend=bool(names))
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
    figure, (axes,) = figure_of(1, height=0.9 * side, width=max(side, WIDTH))
    ConfusionMatrixDisplay(shares, display_labels=[short(name, 18) for name in names]).plot(
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
        axis.set_ticks(ticks, [short(names[index], 18) for index in ticks])
    axes.spines[:].set_visible(False)
    titled(axes, "Confusion matrix", x="predicted class", y="true class")
    axes.grid(visible=False)
    alt = f"Shares of each true class; {np.trace(numbers) / max(1, numbers.sum()):.1%} of the rows "
    alt += "are on the diagonal."
    confusions = shares - np.diag(np.diag(shares))
    true, predicted = np.unravel_index(confusions.argmax(), confusions.shape)
    if confusions.any():
        alt += f" The most frequent confusion: {confusions[true, predicted]:.0%} of "
        alt += f"'{names[true]}' are predicted as '{names[predicted]}'."
    return Plot("confusion", alt, figure, wide=figure.get_figwidth() > WIDTH)


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
    names = predicted.names
    supports = np.bincount(predicted.labels, minlength=len(names))
    has_enough = np.minimum(supports, len(predicted) - supports) >= _FEWEST_OF_CLASS
    numbers = np.flatnonzero(has_enough).tolist()
    if len(names) == 2:
        numbers = [positive] if has_enough.all() else []
    if not numbers:
        return []
    return [
        _curves(predicted, name, {number: classes[names[number]][area] for number in numbers})
        for name, area in (("roc", "roc_area"), ("precision_recall", "pr_area"))
    ]


@styled
def _curves(predicted: ScoredRows, name: str, areas: Mapping[int, Mapping[str, float]]) -> Plot:
    """Plot a kind of curve of the classes with the lowest of these areas."""
    names, is_roc = predicted.names, name == "roc"
    lowest = sorted(areas, key=lambda number: areas[number]["value"])
    curves = sorted(lowest[:_MOST_CURVES])
    figure, (axes,) = figure_of(1, height=4.4 + 0.1 * len(curves))
    for number, colour in zip(curves, COLOURS, strict=False):
        true, scores = predicted.labels == number, predicted.probabilities.column(number)
        style: dict[str, Any] = {"ax": axes, "name": short(names[number], 16)}
        style["curve_kwargs"] = {"color": colour}
        if is_roc:
            x, y, _ = roc_curve(true, scores)
            x, y = _thin(x, y)
            RocCurveDisplay(fpr=x, tpr=y, roc_auc=areas[number]["value"]).plot(**style)
        else:
            y, x, _ = precision_recall_curve(true, scores, drop_intermediate=True)
            x, y = _thin(x, y)
            area = areas[number]["value"]
            style["curve_kwargs"]["label"] = f"{style.pop('name')} (AP = {area:.2f})"
            PrecisionRecallDisplay(precision=y, recall=x).plot(**style)
    if is_roc:
        axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1.5)
    title, label = ("ROC curve", "ROC AUC") if is_roc else ("Precision-recall curve", "AP")
    x_label, y_label = ("false positive rate", "true positive rate")
    if not is_roc:
        x_label, y_label = "recall", "precision"
    titled(axes, title, x=x_label, y=y_label)
    if (legend := axes.get_legend()) is not None:
        legend.remove()
    figure.legend(loc="outside lower left")
    values = [f"'{names[number]}' {areas[number]['value']:.3f}" for number in lowest]
    note = f"; the {_MOST_CURVES} lowest of {len(areas)} are drawn" * (len(areas) > _MOST_CURVES)
    listed = ", ".join(values[:_MOST_CURVES])
    return Plot(name, f"{label} of a class against the rest: {listed}{note}.", figure)


def _thin(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return at most 501 points of a curve, with its ends."""
    chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MOST_POINTS)).astype(int))
    return x[chosen], y[chosen]


@styled
def reliability(calibration: Mapping[str, Any]) -> Plot | None:
    """Plot accuracy by confidence, before and after the temperature, and where the rows are."""
    if sum(row["rows"] for row in calibration["bins"]) < _FEWEST_ROWS:
        return None
    if len(calibration["bins"]) < _FEWEST_BINS:
        return None
    error = calibration["expected_calibration_error"]
    curves = [("uncalibrated", error, calibration["bins"], BLUE, "o")]
    if after := calibration.get("after"):
        name, error = f"temperature {calibration['temperature']:.2f}", "expected_calibration_error"
        curves.append((name, after[error], after["bins"], ORANGE, "s"))
    figure, (axes, rows) = figure_of(2, height=4.6, ratios=(3, 1), share_x=True)
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1.5, label="perfect")
    for number, (label, _, bins, colour, marker) in enumerate(curves):
        confidences = np.array([row["confidence"] for row in bins])
        accuracies = [row["accuracy"] for row in bins]
        axes.plot(confidences, accuracies, color=colour, marker=marker, label=label)
        places, counts = confidences + (number - 0.5) * 0.014, [row["rows"] for row in bins]
        rows.bar(places, counts, width=0.014, color=colour)
    axes.set_ylim(0, 1.02)
    titled(axes, "Calibration: accuracy by confidence", legend=True, percent="xy")
    titled(rows, "Rows", x="confidence (probability of the predicted class)", percent="x")
    alt = ", ".join(f"{error:.3f} {label}" for label, error, *_ in curves)
    return Plot("reliability", f"Expected calibration error {alt}.", figure)


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
    lengths_seen = np.minimum(tokens, np.quantile(tokens, 0.995))
    histogram.hist(lengths_seen, bins="auto", color=BLUE)
    alt = f"Median length {np.median(tokens):,.0f} tokens"
    if max_length and max_length < tokens.max():
        for axes in (histogram, accuracy):
            axes.axvline(max_length, color=ORANGE, linestyle="--", linewidth=1.2)
        share = (tokens > max_length).mean()
        alt += f"; {share:.1%} of the texts are truncated at {max_length:,} (dashed)"
    titled(histogram, "Texts by length")
    edges = np.unique(np.quantile(lengths_seen, np.linspace(0, 1, 9)))
    if len(edges) > 1:
        group = np.clip(np.searchsorted(edges, lengths_seen, side="right") - 1, 0, len(edges) - 2)
        groups, counts = np.unique(group, return_counts=True)
        hits = [int(right[group == number].sum()) for number in groups]
        scores = [estimates.share(*pair) for pair in zip(hits, counts, strict=True)]
        values = np.array([score.value for score in scores])
        ends = np.array([[score.low, score.high] for score in scores]).T
        reach = np.maximum(0, [values - ends[0], ends[1] - values])
        places = ((edges[:-1] + edges[1:]) / 2)[groups]
        accuracy.errorbar(places, values, yerr=reach, color=GREEN, marker="o", capsize=2)
        alt += f"; accuracy {values[0]:.1%} on the shortest eighth, {values[-1]:.1%} on the longest"
    titled(accuracy, "Accuracy by length, 95% confidence intervals", x="tokens", percent="y")
    return Plot("length", alt + ".", figure)


@styled
def numbers(labels: np.ndarray, predicted: np.ndarray, name: str, suffix: str) -> list[Plot]:
    """Plot predicted against true numbers, and their errors, of 1,000 rows at most.

    Args:
        labels: Shape ``(rows,)``.
        predicted: Of the same shape.
        name: Of the target.
        suffix: Of the names of the plots.
    """
    residuals, plots = labels - predicted, []
    for kind, plot, alt in (
        ("actual_vs_predicted", "predictions", f"Predicted and true {name}."),
        (
            "residual_vs_predicted",
            "residuals",
            f"Residuals of {name}: mean {residuals.mean():.3g}, half of them at most "
            f"{np.median(np.abs(residuals)):.3g} off.",
        ),
    ):
        figure, (axes,) = figure_of(1, height=4.0)
        PredictionErrorDisplay.from_predictions(
            labels,
            predicted,
            kind=kind,
            ax=axes,
            random_state=0,
            scatter_kwargs={"color": BLUE, "alpha": 0.4, "s": 9, "rasterized": True},
            line_kwargs={"color": GREY, "linestyle": ":"},
        )
        title = (
            "Predicted and true value" if plot == "predictions" else "Residuals by predicted value"
        )
        titled(axes, title, x=f"predicted {short(name)}", y=axes.get_ylabel().lower())
        plots.append(Plot(f"{plot}{suffix}", alt, figure))
    return plots
