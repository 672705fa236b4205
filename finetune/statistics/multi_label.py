"""What the predictions of a model that gives each row any number of labels are worth, as it stands
in ``metrics.json``.

The values are those of scikit-learn with ``zero_division=0``: F1 is 0 of a label that no row has or
is given, and of a row that neither has nor is given a label, though it is right.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np

from finetune.statistics import average_precision, intervals, label_f1, pairs
from finetune.statistics.classification import f1_of_class
from finetune.statistics.counts import divide
from finetune.statistics.intervals import Interval
from finetune.statistics.pairs import McNemar
from finetune.statistics.scored import ScoredLabels

#: Rows that each label has, below which macro F1 has no interval: it would cover 90 to 93% only.
FEWEST_OF_EACH = 2
_MOST_NAMED = 5
#: Co-occurrences of more labels are not written down: they would be most of ``metrics.json``.
MOST_TOGETHER = 100


def of(rows: ScoredLabels) -> dict[str, Any]:
    """Return all of it but :func:`scores`: facts by name.

    An interval is ``{"value": ..., "low": ..., "high": ...}`` with a confidence of 95%.
    """
    together = rows.labels.T.astype(np.int64) @ rows.labels
    return {
        "rows": len(rows),
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
        **_f1(rows, rows.decided),
        "f1_samples": _of_shares(of_rows["f1_samples"]),
        "subset_accuracy": intervals.of_share(int(rows.right.sum()), len(rows)),
        "average_precision": average_precision.mean(rows),
        "hamming_loss": _of_shares(of_rows["hamming_loss"]),
        "log_loss": intervals.of_mean(of_rows["log_loss"]),
    }
    return {name: asdict(each) for name, each in found.items()}


def of_labels(rows: ScoredLabels) -> dict[str, Any]:
    """Return precision, recall, F1, average precision and support of each label, by name.

    The average precision is left out where no row, or every row, has the label, and its interval,
    ``pr_area``, where fewer than :data:`average_precision.FEWEST_ROWS` have it.
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
            if true >= average_precision.FEWEST_ROWS:
                found[name] |= {"pr_area": asdict(area)}
    return found


def differences(first: ScoredLabels, second: ScoredLabels) -> dict[str, Any]:
    """Return how much more of each metric the second model has than the first on the same rows."""
    one, other = _of_rows(first), _of_rows(second)
    found = {
        **_f1(first, first.decided, second.decided),
        **{name: intervals.of_mean(other[name] - one[name]) for name in one},
        "subset_accuracy": pairs.accuracy_difference(
            np.ones(len(first)), first.right.astype(int), second.right.astype(int)
        ),
        "average_precision": average_precision.difference(first, second),
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


def _of_shares(values: np.ndarray) -> Interval:
    """Return the interval of the mean of a share of each row: Wilson's where all are the same."""
    if (values == values[0]).all():
        return intervals.of_share(float(values.sum()), len(values))
    return intervals.of_mean(values)


def _f1(rows: ScoredLabels, *given: np.ndarray) -> dict[str, Interval]:
    """Return micro and macro F1 of one model; of two, how much more the second has."""
    macro = label_f1.macro(rows.labels, *given)
    if _rare(rows):
        macro = Interval(macro.value, math.nan, math.nan)
    return {"f1_micro": label_f1.micro(rows.labels, *given), "f1_macro": macro}


def _rare(rows: ScoredLabels) -> dict[str, int]:
    """Return the labels that fewer than :data:`FEWEST_OF_EACH` rows have, and how many do."""
    support = dict(zip(rows.names, rows.labels.sum(axis=0).tolist(), strict=True))
    return {name: count for name, count in support.items() if count < FEWEST_OF_EACH}


def without_interval(name: str, rows: ScoredLabels) -> list[str]:
    """Return what to know of macro F1, of that name, where it has no interval."""
    if not (rare := _rare(rows)):
        return []
    named = ", ".join(f"'{name}' {count}" for name, count in [*rare.items()][:_MOST_NAMED])
    more = f" and {len(rare) - _MOST_NAMED} more" if len(rare) > _MOST_NAMED else ""
    return [
        f"{name} has no confidence interval: a label needs {FEWEST_OF_EACH} rows that have it, "
        f"and of these there are {named}{more}"
    ]


def farthest(rows: ScoredLabels) -> np.ndarray:
    """Return the indices of rows that are wrong in a label, the most confident mistakes first."""
    wrong = rows.decided != rows.labels
    gap = np.where(wrong, np.abs(rows.probabilities - 0.5), 0).max(axis=1)
    order = np.argsort(-gap, kind="stable")
    return np.asarray(order[wrong[order].any(axis=1)])
