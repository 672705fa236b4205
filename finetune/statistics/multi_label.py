"""What the predictions of a model that gives each row any number of labels are worth, as it stands
in ``metrics.json``.

The values are those of scikit-learn with ``zero_division=0``.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from finetune.statistics import average_precision, intervals, pairs
from finetune.statistics.classification import f1_of_class
from finetune.statistics.counts import divide
from finetune.statistics.intervals import Interval
from finetune.statistics.pairs import McNemar
from finetune.statistics.scored import ScoredLabels

#: Rows that have a label, below which the interval of its average precision is not given: of fewer
#: it covers less than 93% (see tests/test_multi_label_statistics.py).
FEWEST_POSITIVES = 20
#: Co-occurrences of more labels are not written down: they would be most of ``metrics.json``.
MOST_TOGETHER = 100


def of(rows: ScoredLabels) -> dict[str, Any]:
    """Return all of it: facts by name.

    An interval is ``{"value": ..., "low": ..., "high": ...}`` with a confidence of 95%.
    """
    together = rows.labels.T.astype(np.int64) @ rows.labels
    return {
        "rows": len(rows),
        "metrics": scores(rows),
        "classes": of_labels(rows),
        "together": together.tolist() if len(together) <= MOST_TOGETHER else None,
    }


def scores(rows: ScoredLabels) -> dict[str, Any]:
    """Return each metric with its interval: F1 in three averages, the share of rows that are right
    in every label, the mean average precision, the share of wrong labels, and the log loss of a
    label in nats.
    """
    of_rows = _of_rows(rows)
    found = {
        **_f1(rows.labels, rows.decided),
        "f1_samples": intervals.of_mean(of_rows["f1_samples"]),
        "subset_accuracy": intervals.of_share(int(rows.right.sum()), len(rows)),
        "average_precision": average_precision.mean(rows) or Interval(0.0, 0.0, 1.0),
        "hamming_loss": intervals.of_mean(of_rows["hamming_loss"]),
        "log_loss": intervals.of_mean(of_rows["log_loss"]),
    }
    return {name: asdict(each) for name, each in found.items()}


def of_labels(rows: ScoredLabels) -> dict[str, Any]:
    """Return precision, recall, F1, average precision and support of each label, by name.

    The average precision is left out where no row, or every row, has the label, and its interval,
    ``pr_area``, where fewer than :data:`FEWEST_POSITIVES` have it.
    """
    decided, found = rows.decided, {}
    for index, name in enumerate(rows.names):
        has, given = rows.labels[:, index], decided[:, index]
        right, true, said = (int(each.sum()) for each in (has & given, has, given))
        found[name] = {
            "precision": asdict(intervals.of_share(right, said)),
            "recall": asdict(intervals.of_share(right, true)),
            "f1": asdict(f1_of_class(right, true, said)),
            "support": true,
        }
        if 0 < true < len(rows):
            area = average_precision.of_label(rows.probabilities[:, index], has)
            found[name] |= {"average_precision": area.value}
            if true >= FEWEST_POSITIVES:
                found[name] |= {"pr_area": asdict(area)}
    return found


def differences(first: ScoredLabels, second: ScoredLabels) -> dict[str, Any]:
    """Return how much more of each metric the second model has than the first on the same rows."""
    one, other = _of_rows(first), _of_rows(second)
    found = {
        **_f1(first.labels, first.decided, second.decided),
        **{name: intervals.of_mean(other[name] - one[name]) for name in one},
        "subset_accuracy": pairs.accuracy_difference(
            np.ones(len(first)), first.right.astype(int), second.right.astype(int)
        ),
        "average_precision": average_precision.difference(first, second)
        or Interval(0.0, -1.0, 1.0),
    }
    return {name: asdict(each) for name, each in found.items()}


def test(first: ScoredLabels, second: ScoredLabels) -> McNemar:
    """Return the test for a difference in the share of rows that are right in every label."""
    ones = np.ones(len(first), dtype=int)
    return pairs.mcnemar(ones, first.right.astype(int), second.right.astype(int))


def threshold(probabilities: np.ndarray, has: np.ndarray) -> float:
    """Return the probability above which giving a label is best for F1 over all entries.

    It lies half-way between two probabilities that occur; one half if no entry is positive.

    Args:
        probabilities: Any shape.
        has: Whether the label is there, of the same shape.
    """
    order = np.argsort(-probabilities, axis=None, kind="stable")
    sure, right = probabilities.ravel()[order], has.ravel()[order]
    if not right.any():
        return 0.5
    given = np.arange(1, len(sure) + 1)
    f1 = 2 * np.cumsum(right) / (given + right.sum())
    f1[:-1][sure[:-1] == sure[1:]] = -1  # no threshold lies between equal ones
    best = int(np.argmax(f1))
    below = sure[best + 1] if best + 1 < len(sure) else 0.0
    return float((sure[best] + below) / 2)


def _of_rows(rows: ScoredLabels) -> dict[str, np.ndarray]:
    """Return the metrics that are means over rows, shape ``(rows,)`` each."""
    has, given = rows.labels, rows.decided
    both = (has & given).sum(axis=1)
    of_truth = np.where(has, rows.probabilities, 1 - rows.probabilities)
    return {
        "f1_samples": divide(2 * both, has.sum(axis=1) + given.sum(axis=1)),
        "hamming_loss": (has != given).mean(axis=1),
        "log_loss": -np.log(np.maximum(of_truth, np.finfo(np.float64).eps)).mean(axis=1),
    }


def _f1(has: np.ndarray, *given: np.ndarray) -> dict[str, Interval]:
    """Return micro and macro F1 of one model; of two, how much more the second has."""
    both = np.concatenate([has, *given], axis=1)
    kinds, numbers = np.unique(both, axis=0, return_counts=True)
    true, *said = np.split(kinds.astype(np.float64), 1 + len(given), axis=1)
    tallies = np.concatenate([true, *(part for one in said for part in (one, one * true))], axis=1)

    def metrics(drawn: np.ndarray) -> np.ndarray:
        sums = np.asarray(drawn @ tallies).reshape(len(drawn), 1 + 2 * len(given), -1)
        each = []
        for index in range(len(given)):
            right, all_of = sums[:, 2 + 2 * index], sums[:, 0] + sums[:, 1 + 2 * index]
            micro = divide(2 * right.sum(axis=-1), all_of.sum(axis=-1))
            each.append(np.stack([micro, divide(2 * right, all_of).mean(axis=-1)]))
        return np.asarray(each[-1] - each[0] if len(each) > 1 else each[0])

    found = intervals.of_counts(metrics, numbers, tallies.shape[1])
    return dict(zip(("f1_micro", "f1_macro"), found, strict=True))


def farthest(rows: ScoredLabels) -> np.ndarray:
    """Return the indices of rows that are wrong in a label, the most confident mistakes first."""
    wrong = rows.decided != rows.labels
    gap = np.where(wrong, np.abs(rows.probabilities - 0.5), 0).max(axis=1)
    order = np.argsort(-gap, kind="stable")
    return np.asarray(order[wrong[order].any(axis=1)])
