"""What ``metrics.json`` says of a finished run: scores, intervals, baselines, calibration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from transformers import EvalPrediction

from finetune.statistics import calibration, classification, counts, intervals
from finetune.statistics.scored import ScoredRows

#: Of so many rows a whole evaluation takes too long to be repeated as often.
_MANY_ROWS, _FEWER_DRAWS = 5_000, 200
Compute = Callable[[EvalPrediction], dict[str, float]]


def of_classes(
    predicted: ScoredRows,
    outputs: np.ndarray,
    scoring: Mapping[str, Mapping[str, Any]],
    compute: Compute,
    baselines: Mapping[str, np.ndarray],
    *,
    ordered: bool,
    temperature: float | None,
) -> dict[str, Any]:
    """The statistics of a classifier and its baselines on the same rows.

    Args:
        predicted: The test rows.
        outputs: Of the model, or logarithms of the probabilities, shape ``(rows, classes)``.
        scoring: The arguments of each local metric that ``compute`` is made of; empty if it is
            the recipe's own.
        compute: The metrics of the recipe.
        baselines: What each says, shape ``(rows, classes)``.
        ordered: Whether the classes have an order.
        temperature: Fitted on the validation rows, if there is one.
    """
    metrics = of_counts(scoring)
    found = classification.of(predicted, metrics, ordered=ordered)
    beyond = {}
    for name, said in baselines.items():
        classes = said.argmax(axis=1)
        beyond[name] = classification.beyond(
            predicted.labels, classes, predicted.classes, len(predicted.names), metrics
        )
    if has_others(scoring, metrics):
        own = of_outputs(outputs, predicted.labels, compute, baselines)
        found["metrics"] = {**own["metrics"], **found["metrics"]}
        beyond = {name: {**own["beyond"][name], **each} for name, each in beyond.items()}
    if temperature is not None:
        mended = ScoredRows(
            predicted.names,
            predicted.labels,
            calibration.scaled(predicted.probabilities, temperature),
        )
        found["calibration"] |= {
            "temperature": temperature,
            "after": classification.calibrated(mended),
        }
    return {**found, "beyond": beyond}


def of_numbers(
    outputs: np.ndarray, labels: np.ndarray, compute: Compute, baselines: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """The same of a regression: intervals of the recipe's own metrics.

    Args:
        outputs: Of the model, shape ``(rows, 1)``.
        labels: Shape ``(rows,)``.
        compute: The metrics of the recipe.
        baselines: What each says, shape ``(rows, 1)``.
    """
    return {"rows": len(labels), **of_outputs(outputs, labels, compute, baselines)}


def of_counts(
    scoring: Mapping[str, Mapping[str, Any]],
) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """Those of the local metrics that are functions of confusion matrices."""
    found = {name: counts.metric(name, arguments) for name, arguments in scoring.items()}
    return {name: metric for name, metric in found.items() if metric is not None}


def has_others(scoring: Mapping[str, Any], metrics: Mapping[str, Any]) -> bool:
    """Whether a recipe has metrics that are none of counts: its own, of which nothing is known, or
    local ones with arguments under which they are none.
    """
    return not scoring or len(metrics) < len(scoring)


def of_outputs(
    outputs: np.ndarray, labels: np.ndarray, compute: Compute, baselines: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Intervals of metrics of which nothing is known: each draw is a whole evaluation.

    Metrics that are no single number are left out; so are draws for which one is not defined,
    because a class is missing in them.
    """
    said = {"": outputs, **baselines}
    whole = compute(EvalPrediction(predictions=outputs, label_ids=labels))
    names = [name for name, value in whole.items() if np.ndim(value) == 0]

    def evaluated(predictions: np.ndarray, truth: np.ndarray) -> list[float]:
        try:
            found = compute(EvalPrediction(predictions=predictions, label_ids=truth))
        except ValueError:  # how scikit-learn refuses a draw without some class
            return [float("nan")] * len(names)
        return [float(found[name]) for name in names]

    def scores(drawn: np.ndarray) -> np.ndarray:
        """Of the model, then what it has beyond each baseline, on the same drawn rows."""
        of_each = np.array(
            [[evaluated(each[rows], labels[rows]) for each in said.values()] for rows in drawn]
        )  # shape (draws, model and baselines, metrics)
        of_each[:, 1:] = of_each[:, :1] - of_each[:, 1:]
        return of_each.reshape(len(drawn), -1).T

    rows = len(labels)
    draws = intervals.DRAWS if rows <= _MANY_ROWS else _FEWER_DRAWS
    found = [asdict(each) for each in intervals.of_rows(scores, rows, draws)] if names else []
    by_source = {
        name: dict(zip(names, found[index * len(names) :], strict=False))
        for index, name in enumerate(said)
    }
    return {"metrics": by_source.pop(""), "beyond": by_source}
