"""Turn the outputs of a model into the columns of predictions.

Only NumPy is imported: an export answers without the libraries of training.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from finetune.data import words
from finetune.data.prediction_columns import (
    ENTITIES,
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


def entity_types(tags: Sequence[str]) -> list[str]:
    """Return the types of IOB2 tags: ``O``, then ``B-TYPE`` and ``I-TYPE`` of each."""
    return [name.removeprefix("B-") for name in tags[1::2]]


def predicted_entities(
    outputs: np.ndarray, labels: Sequence[str], values: Sequence[Any]
) -> dict[str, Any]:
    """Return the column that ``predict`` adds to texts whose words are labelled, by name.

    Args:
        outputs: The logits of the words of each value, and of a separator after them, shape
            ``(places, tags)``.
        labels: The IOB2 tags.
        values: Texts, or lists of words; None where one is missing.
    """
    _, words_of_rows = words.without_tags([value or "" for value in values])
    tags = np.argmax(outputs, axis=1)
    return {ENTITIES: spans(tags, words_of_rows, confidence(outputs), entity_types(labels))}


def confidence(outputs: np.ndarray) -> np.ndarray:
    """Return the probability of each predicted tag, shape ``(places,)``."""
    return np.asarray(probabilities(outputs, "softmax").max(axis=1, initial=0))


def spans(
    tags: np.ndarray,
    labels: Sequence[Sequence[words.Word]],
    confidence: np.ndarray,
    types: Sequence[str],
) -> list[list[dict[str, Any]]]:
    """Return start, end, label and probability of the entities of each row.

    Args:
        tags: Shape ``(places,)``, a separator after the words of each row.
        labels: The words of each row, with start and end.
        confidence: The probability of each predicted tag; that of an entity is their mean.
        types: The names of the types.
    """
    places: list[Any] = []  # the row, start and end of each word
    for number, row in enumerate(labels):
        places += [(number, word["start"], word["end"]) for word in row]
        places.append(None)
    spans: list[list[dict[str, Any]]] = [[] for _ in labels]
    for first, end, kind in words.find_entities(tags).tolist():
        row, start, _ = places[first]
        probability = np.float32(confidence[first:end].mean())
        span = {
            "start": start,
            "end": places[end - 1][-1],
            "label": types[kind],
            "probability": float(str(probability)),  # 0.9812, not 0.98119997
        }
        spans[row].append(span)
    return spans
