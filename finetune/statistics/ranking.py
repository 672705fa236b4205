"""How well the probabilities rank the rows: areas under the ROC and the precision-recall curve.

Of several classes each is taken against the rest, and the mean over the classes is unweighted.
Classes share their rows, so what a row adds to the error is added up over them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from finetune.data.label_columns import list_names
from finetune.statistics import blocks
from finetune.statistics.counts import divide
from finetune.statistics.estimates import UNDEFINED, Estimate, Measured
from finetune.statistics.scored import ScoredLabels, ScoredRows

#: Rows that have a label, and that have not, below which an area has no interval.
FEWEST_ROWS = 5
#: By the names of the folders in ``metrics/``.
METRICS = ("roc_auc", "average_precision")


@dataclass(frozen=True)
class Area:
    """The mean of an area over labels.

    Attributes:
        measured: None if no label has both rows with and rows without it.
        rows: The most rows that it can rest on.
        rarest: The rows of the rarest label, or those without the most frequent one.
    """

    measured: Measured | None
    rows: float
    rarest: int

    def estimate(self) -> Estimate:
        """Return it with its interval."""
        if self.measured is None:
            return UNDEFINED
        if self.rarest < FEWEST_ROWS:
            return Estimate(self.measured.value)
        return self.measured.bounded(self.rows)

    def minus(self, other: Area) -> Estimate:
        """Return how much larger it is than that of another model on the same rows."""
        if self.measured is None or other.measured is None:
            return UNDEFINED
        gap = self.measured - other.measured
        return Estimate(gap.value) if self.rarest < FEWEST_ROWS else gap.difference(widest=1.0)


@dataclass(frozen=True)
class Areas:
    """The areas of labels.

    Attributes:
        labels: Of each label, by the name of the metric; None of one that no row, or every row,
            has.
        means: By the name of the metric.
    """

    labels: list[dict[str, Estimate] | None]
    means: dict[str, Area]


def of_classes(rows: ScoredRows) -> Areas:
    """Return the areas of classes; of two, the mean is that of the second."""
    columns = enumerate(blocks.columns(rows.probabilities))
    first = 1 if len(rows.names) == 2 else 0
    return _sweep(((scores, rows.labels == number) for number, scores in columns), first)


def of_labels(rows: ScoredLabels) -> Areas:
    """Return the areas of labels, of which a row has any number."""
    return _sweep(zip(rows.probabilities.T, rows.labels.T, strict=True))


def remarks(name: str, areas: Areas, names: list[str]) -> list[str]:
    """Return what to know of a mean: labels that it leaves out, or that have too few rows.

    Args:
        name: Of the metric.
        areas: Of all labels.
        names: Of the labels.
    """
    mean = areas.means["roc_auc"]
    if mean.measured is None:
        return [f"{name} is not defined: no label is that of some test rows and not of others"]
    sentences = []
    if missing := [names[n] for n, label in enumerate(areas.labels) if label is None]:
        sentences.append(
            f"{name} is the mean over {len(names) - len(missing):,} of {len(names):,} labels: "
            f"every test row, or none, has {list_names(missing)}"
        )
    if mean.rarest < FEWEST_ROWS:
        sentences.append(
            f"{name} has no confidence interval: fewer than {FEWEST_ROWS} test rows have, or have "
            "not, a label"
        )
    return sentences


def _sweep(columns: Iterable[tuple[np.ndarray, np.ndarray]], first: int = 0) -> Areas:
    """Return the areas of labels, given the scores of rows and whether they have the label."""
    labels, counts = list[dict[str, Estimate] | None](), list[int]()
    values: dict[str, list[float]] = {name: [] for name in METRICS}
    errors: dict[str, np.ndarray | float] = dict.fromkeys(METRICS, 0.0)
    for number, (scores, has) in enumerate(columns):
        count = min(int(has.sum()), int((~has).sum()))
        if not count:
            labels.append(None)
            continue
        measured = {"roc_auc": roc_auc(scores, has), "average_precision": precision(scores, has)}
        labels.append(
            {name: Area(area, 2.0 * count, count).estimate() for name, area in measured.items()}
        )
        if number >= first:
            counts.append(count)
            for name, area in measured.items():
                values[name].append(area.value)
                errors[name] = errors[name] + area.errors
    if not counts:
        return Areas(labels, dict.fromkeys(METRICS, Area(None, 0, 0)))
    size = len(counts)
    rows = 2 * size**2 / float((1 / np.array(counts)).sum())
    means = {
        name: Measured(float(np.mean(values[name])), np.asarray(errors[name]) / size)
        for name in METRICS
    }
    return Areas(labels, {name: Area(mean, rows, min(counts)) for name, mean in means.items()})


def roc_auc(scores: np.ndarray, has: np.ndarray) -> Measured:
    """Return how probable it is that a row with the label has a higher score than one without, ties
    as halves, with the influences of DeLong, DeLong and Clarke-Pearson (Biometrics 44, 1988).

    Args:
        scores: That rank the rows, shape ``(rows,)``.
        has: Whether a row has the label, shape ``(rows,)``; some have it, some have not.
    """
    with_label, without = np.sort(scores[has]), np.sort(scores[~has])
    below = _share_below(without, scores[has])
    above = 1 - _share_below(with_label, scores[~has])
    area = float(below.mean())
    influences = np.empty(len(scores))
    influences[has] = (below - area) / np.sqrt(len(below) * max(1, len(below) - 1))
    influences[~has] = (above - area) / np.sqrt(len(above) * max(1, len(above) - 1))
    return Measured(area, influences)


def _share_below(ordered: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the share of ordered numbers below each score, equal ones as halves."""
    less, up_to = (np.searchsorted(ordered, scores, side) for side in ("left", "right"))
    return np.asarray((less + up_to) / (2 * len(ordered)))


def precision(scores: np.ndarray, has: np.ndarray) -> Measured:
    """Return the average precision as scikit-learn has it; the jackknife leaves out each row, which
    takes a few sums after one sort. Arguments are those of :func:`roc_auc`.
    """
    ranked = np.sort(scores[has])
    levels, gained = np.unique(ranked, return_counts=True)  # equal scores are one threshold
    total = len(ranked)
    positive = (total - np.searchsorted(ranked, levels)).astype(np.float64)
    # the levels at or below each row: without the row, so many thresholds have one row fewer
    reached = np.searchsorted(levels, scores, "right")
    above = len(scores) - np.cumsum(np.bincount(reached, minlength=len(levels)))[: len(levels)]
    parts = gained * positive / above
    higher = np.append(np.cumsum(parts[::-1])[::-1], 0.0)

    def below(numerators: np.ndarray) -> np.ndarray:
        """Sum over the levels before each one; the last has them all."""
        return np.append(0.0, np.cumsum(divide(gained * numerators, above - 1.0)))

    place = np.arange(len(levels))
    equal = divide((gained - 1) * (positive - 1), above - 1.0)
    of_positive = below(positive - 1)[place] + equal + higher[place + 1]
    value = float(parts.sum() / total)
    without = (below(positive) + higher)[reached] / total
    without[has] = of_positive[reached[has] - 1] / (total - 1) if total > 1 else value
    return Measured.of_jackknife(value, without)
