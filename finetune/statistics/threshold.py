"""From which probability on the positive one of two classes is best predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from sklearn.metrics import roc_curve

from finetune.statistics import counts, pairs
from finetune.statistics.scored import ScoredRows

#: Validation rows of each class; of fewer a threshold is an accident.
_FEWEST_ROWS = 20
Metric = Callable[[np.ndarray], np.ndarray]


def positive_class(scoring: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the number of the positive one of two classes: the ``pos_label`` of a metric, or 1."""
    return next((int(each["pos_label"]) for each in scoring.values() if "pos_label" in each), 1)


def chosen(
    name: str, metric: Metric, validated: ScoredRows, tested: ScoredRows, positive: int
) -> dict[str, Any] | None:
    """Choose the threshold on validation rows, and say what it gives on the test rows.

    Args:
        name: Of the metric.
        metric: Of :func:`finetune.statistics.counts.metric`, from tallies.
        validated: The validation rows, the only ones that the threshold is chosen on.
        tested: The test rows.
        positive: The number of the class that is predicted from the threshold on.

    Returns:
        ``metric``; ``class``, its name; ``value``, the threshold; ``validation`` and
        ``validation_at_half``, the metric there with it and with 0.5; ``test``, the 95% confidence
        interval of the difference that it makes on the test rows. None of too few rows.
    """
    if np.bincount(validated.labels, minlength=2).min() < _FEWEST_ROWS:
        return None
    cuts, matrices = _candidates(validated, positive)
    scores = metric(counts.tallies(matrices))
    best = np.flatnonzero(scores == scores.max())
    value = float(cuts[best[np.abs(cuts[best] - 0.5).argmin()]])
    predicted = np.where(tested.column(positive) >= value, positive, 1 - positive)
    gain = pairs.difference({name: metric}, tested.labels, tested.classes, predicted, 2)[name]
    return {
        "metric": name,
        "class": tested.names[positive],
        "value": value,
        "validation": float(scores.max()),
        "validation_at_half": float(scores[cuts == 0.5].max()),
        "test": asdict(gain),
    }


def _candidates(rows: ScoredRows, positive: int) -> tuple[np.ndarray, np.ndarray]:
    """Return every threshold that predicts other classes, halfway between two probabilities or 0.5
    where that is between them, shape ``(thresholds,)``, and the confusion matrices that it makes,
    shape ``(thresholds, 2, 2)``.
    """
    true, scores = rows.labels == positive, rows.column(positive)
    false_rate, true_rate, reached = roc_curve(true, scores, drop_intermediate=False)
    high, low = np.append(1.0 + 1e-9, reached[1:]), np.append(reached[1:], 0.0)
    cuts = np.where((low < 0.5) & (high >= 0.5), 0.5, (high + low) / 2)
    hits, alarms = np.rint(true_rate * true.sum()), np.rint(false_rate * (~true).sum())
    matrices = np.empty((len(cuts), 2, 2), dtype=np.int64)
    matrices[:, positive, positive], matrices[:, positive, 1 - positive] = hits, true.sum() - hits
    matrices[:, 1 - positive, positive] = alarms
    matrices[:, 1 - positive, 1 - positive] = (~true).sum() - alarms
    return cuts, matrices
