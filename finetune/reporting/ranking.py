"""How well the probabilities rank the test rows: ROC and precision-recall curves.

Of two classes they are those of the positive one, of several those of each class against the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.metrics import precision_recall_curve, roc_curve

from finetune.reporting import wording
from finetune.reporting.figure import (
    COLOURS,
    GREY,
    Plot,
    figure_of,
    short,
    styled,
    titled,
)
from finetune.statistics.scored import ScoredRows

#: Rows of a class, and of the others, below which its curve is a few steps.
_FEWEST_ROWS = 10
_MOST_CLASSES, _MOST_IN_MEAN = 5, 50
#: Where curves of more points, and the mean of several curves, are evaluated.
_GRID = np.linspace(0, 1, 501)


@dataclass(frozen=True)
class _Kind:
    """A kind of curve: its words, and the name of its area in the statistics of a class."""

    title: str
    x: str
    y: str
    area: str
    words: str


_KINDS = {
    "roc": _Kind("ROC curve", "false positive rate", "true positive rate", "roc_area", "ROC AUC"),
    "precision_recall": _Kind(
        "Precision-recall curve", "recall", "precision", "pr_area", "Average precision"
    ),
}


def plots(
    predicted: ScoredRows,
    classes: Mapping[str, Mapping[str, Any]],
    positive: int,
) -> dict[str, Plot | None]:
    """Plot both kinds of curves.

    Args:
        predicted: The test rows.
        classes: The statistics of each class, by name.
        positive: The positive one of two classes.

    Returns:
        By name; None if there are too few rows of each class.
    """
    supports = np.bincount(predicted.labels, minlength=len(predicted.names))
    has_enough = np.minimum(supports, len(predicted) - supports) >= _FEWEST_ROWS
    if len(predicted.names) == 2:
        chosen = [positive] if has_enough.all() else []
    else:
        chosen = list(np.flatnonzero(has_enough))
    return {
        name: _plot(kind, predicted, classes, chosen) if chosen else None
        for name, kind in _KINDS.items()
    }


@styled
def _plot(
    kind: _Kind,
    predicted: ScoredRows,
    classes: Mapping[str, Mapping[str, Any]],
    chosen: list[int],
) -> Plot:
    names = predicted.names
    areas = {
        number_of_class: classes[names[number_of_class]][kind.area] for number_of_class in chosen
    }
    lowest = sorted(chosen, key=lambda number_of_class: float(areas[number_of_class]["value"]))[
        :_MOST_CLASSES
    ]
    plotted = sorted(lowest)
    figure, (axes,) = figure_of(1, height=4.4 + 0.1 * len(plotted))
    is_binary, title = len(names) == 2, kind.title
    for number, number_of_class in enumerate(plotted):
        label = f"{short(names[number_of_class], 16)} {_value(areas[number_of_class])}"
        if is_binary:
            value, low, high = wording.rounded(areas[number_of_class])
            title = f"{kind.title} of '{short(names[number_of_class], 18)}'"
            label = f"{kind.words} {value} (95% CI {low} to {high})"
        axes.plot(*_curve(kind, predicted, number_of_class), color=COLOURS[number], label=label)
    averaged = [number for number in chosen if number not in plotted]
    averaged = averaged[:: -(-len(averaged) // _MOST_IN_MEAN) or 1]
    if averaged:
        curves = [
            np.interp(_GRID, *_curve(kind, predicted, number_of_class))
            for number_of_class in averaged
        ]
        mean = np.mean(curves, axis=0)
        label = f"mean of {len(averaged)} others"
        axes.plot(_GRID, mean, color=GREY, linestyle="--", label=label)
    if kind.area == "roc_area":
        axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1.5)
    elif is_binary:
        share = float((predicted.labels == plotted[0]).mean())
        axes.axhline(share, color=GREY, linestyle=":", linewidth=1.5)
    axes.set(xlim=(-0.01, 1.01), ylim=(0, 1.02))
    titled(axes, title, x=kind.x, y=kind.y)
    figure.legend(loc="outside lower left", ncols=1 if is_binary else 2)
    return Plot(_alt(kind, names, areas, len(averaged)), figure)


def _curve(kind: _Kind, predicted: ScoredRows, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the curve of a class against the rest, from left to right, of 501 points at most."""
    true, scores = predicted.labels == number, predicted.probabilities.column(number)
    if kind.area == "roc_area":
        x, y, _ = roc_curve(true, scores)
    else:
        precision, recall, _ = precision_recall_curve(true, scores, drop_intermediate=True)
        x, y = recall[::-1], precision[::-1]
    return (x, y) if len(x) <= len(_GRID) else (_GRID, np.interp(_GRID, x, y))


def _alt(
    kind: _Kind, names: list[str], areas: Mapping[int, Mapping[str, float]], count: int
) -> str:
    ranked = sorted(areas, key=lambda number: areas[number]["value"])
    worst, best = ranked[0], ranked[-1]
    if worst == best:
        return f"{kind.words} of '{names[best]}': {_value(areas[best])}."
    least = f" (the {_MOST_CLASSES} lowest of {len(areas)}, and the mean of {count} others)"
    return (
        f"{kind.words} of each class against the rest{least * bool(count)}: lowest for "
        f"'{names[worst]}' ({_value(areas[worst])}), highest for '{names[best]}' "
        f"({_value(areas[best])})."
    )


def _value(interval: Mapping[str, float]) -> str:
    return wording.rounded(interval)[0]
