"""Plots of a regression: predicted against true numbers, and what is left of them."""

from __future__ import annotations

import numpy as np

from finetune.reporting.figure import BLUE, GREY, ORANGE, Plot, figure_of, short, styled, titled
from finetune.statistics.functions import pearson

#: Points of a scatter plot, and rows below which bars of groups are noise.
_MOST_POINTS, _FEWEST_ROWS = 2000, 30
#: Groups of rows by their prediction, each with a median.
_GROUPS = 8


def of_target(labels: np.ndarray, predicted: np.ndarray, name: str = "") -> dict[str, Plot | None]:
    """Return the three plots of a target by name.

    Args:
        labels: Shape ``(rows,)``.
        predicted: Of the same shape.
        name: Of the target, if there are several.
    """
    return {
        "predictions": numbers(labels, predicted, name),
        "residuals": residuals(labels, predicted, name),
        "errors": histogram(labels, predicted, name),
    }


@styled
def numbers(labels: np.ndarray, predicted: np.ndarray, name: str = "") -> Plot:
    """Plot predicted against true value, of 2,000 rows at most."""
    figure, (axes,) = figure_of(1, height=4.2)
    sample = _sample(len(labels))
    axes.scatter(labels[sample], predicted[sample], s=9, color=BLUE, alpha=0.4, rasterized=True)
    ends = [min(labels.min(), predicted.min()), max(labels.max(), predicted.max())]
    axes.plot(ends, ends, color=GREY, linestyle=":", linewidth=1.5)
    titled(
        axes,
        f"Predicted and true value{_part(labels)}",
        x=f"true {short(name)}",
        y=f"predicted {short(name)}",
    )
    with np.errstate(all="ignore"):
        correlation = float(pearson(*(v.astype(float)[:, None] for v in (labels, predicted)))[0])
    said = f"{correlation:.3f}" if np.isfinite(correlation) else "undefined, one is constant"
    return Plot(f"Correlation of predicted and true value{_of(name)}: {said}.", figure)


@styled
def residuals(labels: np.ndarray, predicted: np.ndarray, name: str = "") -> Plot:
    """Plot predicted minus true value against the predicted one, with medians of groups."""
    figure, (axes,) = figure_of(1, height=3.6)
    errors, sample = predicted - labels, _sample(len(labels))
    axes.scatter(predicted[sample], errors[sample], s=9, color=BLUE, alpha=0.4, rasterized=True)
    axes.axhline(0, color=GREY, linestyle=":", linewidth=1.5)
    alt = f"Errors{_of(name)} by predicted value."
    order = np.argsort(predicted, kind="stable")
    if len(labels) >= _FEWEST_ROWS:
        groups = np.array_split(order, _GROUPS)
        places, medians = (
            [np.median(values[group]) for group in groups] for values in (predicted, errors)
        )
        axes.plot(
            places, medians, color=ORANGE, marker="o", label="median of an eighth of the rows"
        )
        alt += f" The median error is {medians[0]:.3g} where the lowest values are predicted, "
        alt += f"{medians[-1]:.3g} where the highest are."
    titled(
        axes,
        f"Errors by predicted value{_part(labels)}",
        x=f"predicted {short(name)}",
        y="error (predicted - true)",
        legend=len(labels) >= _FEWEST_ROWS,
    )
    return Plot(alt, figure)


@styled
def histogram(labels: np.ndarray, predicted: np.ndarray, name: str = "") -> Plot | None:
    """Plot how the errors are distributed; the 0.5% at each end are counted in the last bars."""
    if len(labels) < _FEWEST_ROWS:
        return None
    errors = predicted - labels
    low, high = np.quantile(errors, [0.005, 0.995])
    figure, (axes,) = figure_of(1, height=3.0)
    bins = min(40, 5 + len(labels) // 20) if low < high else 1
    axes.hist(np.clip(errors, low, high), bins=bins, color=BLUE)
    axes.axvline(0, color=GREY, linestyle=":", linewidth=1.5)
    titled(
        axes,
        "Distribution of the errors",
        x=f"error of {short(name)}" if name else "error",
        y="rows",
    )
    below, above = np.quantile(errors, [0.05, 0.95])
    return Plot(
        f"The mean error{_of(name)} is {errors.mean():.3g}; 90% of the errors are between "
        f"{below:.3g} and {above:.3g}.",
        figure,
    )


def _sample(rows: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(rows)[:_MOST_POINTS]


def _part(labels: np.ndarray) -> str:
    rows = len(labels)
    return f" ({_MOST_POINTS:,} of {rows:,} rows)" if rows > _MOST_POINTS else ""


def _of(name: str) -> str:
    return f" of {short(name)}" if name else ""
