"""How well probabilities rank the rows: areas under the ROC and the precision-recall curve."""

from __future__ import annotations

import numpy as np

from finetune.statistics.estimates import leave_out
from finetune.statistics.probabilities import Probabilities

#: The places of the areas in what :func:`area_replicates` returns.
ROC, PRECISION = 0, 1


def area_replicates(
    probabilities: Probabilities, labels: np.ndarray, groups: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the replicates of the areas of each class against the rest.

    The area under the ROC curve is the probability that a row of the class has a higher probability
    of it than another row; that under the precision-recall curve is the average precision, which of
    a random order is the share of the class.

    Args:
        probabilities: Shape ``(rows, classes)``.
        labels: The true classes, ``(rows,)``, or which labels each row has, ``(rows, classes)``.
        groups: The group of each row.

    Returns:
        ROC areas and average precisions, shape ``(1 + groups, classes)``, NaN where no row, or
        every row, is of the class.
    """
    rows, classes = probabilities.shape
    shape = (2 + int(groups.max(initial=-1)), classes)
    roc, precision = np.full(shape, np.nan), np.full(shape, np.nan)
    for chosen, block in probabilities.column_blocks():
        for number, scores in enumerate(block, start=chosen.start):
            has = labels[:, number] if labels.ndim == 2 else labels == number
            if 0 < np.count_nonzero(has) < rows:
                roc[:, number], precision[:, number] = _areas(scores, has, groups)
    return roc, precision


def _areas(
    scores: np.ndarray, has: np.ndarray, groups: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the replicates of both areas of one class.

    Only its own rows are sorted, since of many classes each has few; equal scores are one level.
    """
    levels, places = np.unique(scores[has], return_inverse=True)
    width, count = len(levels) + 1, int(groups.max()) + 1

    def reached(side: str) -> np.ndarray:
        """Count the rows of each group above each level, those at it included if right."""
        level = np.searchsorted(levels, scores, side)  # type: ignore[call-overload]
        counts = np.bincount(groups * width + level, minlength=count * width).reshape(count, width)
        return leave_out(np.cumsum(counts[:, :0:-1], axis=1)[:, ::-1])

    at_least, beyond_level = reached("right"), reached("left")
    cells = groups[has] * (width - 1) + places
    at_level = np.bincount(cells, minlength=count * (width - 1)).reshape(count, width - 1)
    positives = leave_out(at_level)
    own_at_least = np.cumsum(positives[:, ::-1], axis=1)[:, ::-1]
    total = own_at_least[:, 0]
    rest = leave_out(np.bincount(groups, minlength=count)) - total
    # rows of the rest at or above a level, and above it: ties count as halves
    beaten = rest[:, None] - (at_least - own_at_least + beyond_level - own_at_least + positives) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        roc = (positives * beaten).sum(axis=1) / (total * rest)
        precisions = np.where(at_least > 0, own_at_least / at_least, 0.0)
        precision = (positives * precisions).sum(axis=1) / total
    # a class that is lost with a group keeps its value
    return np.where(total * rest > 0, roc, roc[0]), np.where(total > 0, precision, precision[0])
