"""Turn the outputs of a model into the columns of predictions.

Only NumPy is imported: an export answers without the libraries of training.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from finetune.data.prediction_columns import (
    LABEL,
    PREDICTION,
    PROBABILITY,
    of_target,
    probability_of,
)

#: Turns logits into probabilities; None if the outputs are predicted numbers.
Function = Literal["softmax", "sigmoid"] | None


def probabilities(outputs: np.ndarray, function: Function, temperature: float = 1.0) -> np.ndarray:
    """Return probabilities, or predicted numbers unchanged: float64, shape ``(rows, outputs)``."""
    values = np.atleast_2d(outputs.T).T.astype(np.float64)  # (rows,) if there is one number
    if function == "softmax":
        values = values / temperature
        values = np.exp(values - values.max(axis=1, keepdims=True))
        return np.asarray(values / values.sum(axis=1, keepdims=True))
    if function == "sigmoid":
        return (1 + np.tanh(values / 2)) / 2
    return values


def predicted(
    outputs: np.ndarray,
    labels: list[str],
    function: Function,
    temperature: float = 1.0,
    *,
    all_labels: bool,
) -> dict[str, Any]:
    """Return the columns that ``predict`` adds, by name.

    Args:
        outputs: Logits or predicted numbers, shape ``(rows, outputs)``.
        labels: The names of the classes or of the targets.
        function: That of the task.
        temperature: Divides the logits of a softmax.
        all_labels: Whether to add the probability of every label.
    """
    values = probabilities(outputs, function, temperature)
    columns: dict[str, Any] = {}
    if function is None:
        names = [of_target(PREDICTION, name) for name in labels] or [PREDICTION]
        columns.update(zip(names, values.T, strict=True))
    elif function == "softmax":
        columns[LABEL] = [labels[index] for index in values.argmax(axis=1).tolist()]
        columns[PROBABILITY] = values.max(axis=1)
    else:
        columns[LABEL] = label_sets(values > 0.5, labels)
    if all_labels and function:
        columns.update(zip(map(probability_of, labels), values.T, strict=True))
    for name, column in columns.items():
        if name != LABEL:  # as float32: 0.9812, not 0.9811999797821045
            columns[name] = column.astype(np.float32).astype(str).astype(np.float64)
    return columns


def label_sets(is_positive: np.ndarray, labels: Sequence[str]) -> list[list[str]]:
    """Return the names of the labels of each row; ``is_positive`` is ``(rows, labels)``."""
    sets = []
    for row in is_positive:
        sets.append([labels[index] for index in np.flatnonzero(row).tolist()])
    return sets
