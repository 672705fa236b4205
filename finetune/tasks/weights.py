"""``--class_weights``: how much the rows of each class count in the loss of training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from finetune.data.comma_list import split_values
from finetune.data.label_columns import list_names
from finetune.errors import UserError, suggestion

#: Beside ``NAME=WEIGHT,NAME=WEIGHT``.
BALANCED, NONE = "balanced", "none"
#: Between these, weights and their sums are far from the ends of float32.
_LEAST, _MOST = 1e-6, 1e6


def of_classes(text: str, names: Sequence[str], labels: np.ndarray) -> np.ndarray | None:
    """Return the weight of each class, on average 1 over the training rows.

    Balanced weights are those of scikit-learn's ``compute_class_weight``, the rows divided by the
    rows of a class and the number of classes that occur. A class that does not occur, or is not
    named, has the weight 1 before the mean is made 1; that mean changes no loss that is divided by
    the sum of the weights.

    Args:
        text: Of the option.
        names: Of the classes.
        labels: The class of each training row, shape ``(rows,)``.

    Returns:
        Shape ``(classes,)``, float64; None if there are no weights.

    Raises:
        UserError: one line for each mistake in ``text``.
    """
    rows = np.bincount(labels, minlength=len(names))
    if text == NONE:
        return None
    if text == BALANCED:
        return np.where(rows, len(labels) / (np.count_nonzero(rows) * np.maximum(rows, 1)), 1.0)
    weights = _parse_weights(text, names, rows)
    return np.asarray(weights * len(labels) / float(weights @ rows))


def of_positives(text: str, names: Sequence[str], targets: np.ndarray) -> np.ndarray | None:
    """Return how much the rows that have a label count in its loss; those without count 1.

    Balanced weights are the rows without a label divided by those with it, as in torch's
    ``BCEWithLogitsLoss``; 1 for a label that no row has, or that every row has.

    Args:
        text: Of the option.
        names: Of the labels.
        targets: Which labels each training row has, 0 or 1, shape ``(rows, labels)``.

    Returns:
        Shape ``(labels,)``, float64; None if there are no weights.

    Raises:
        UserError: one line for each mistake in ``text``.
    """
    rows = np.count_nonzero(targets, axis=0)
    if text == NONE:
        return None
    if text == BALANCED:
        negatives = len(targets) - rows
        return np.where(rows * negatives, negatives / np.maximum(rows, 1), 1.0)
    return _parse_weights(text, names, rows)


def _parse_weights(text: str, names: Sequence[str], rows: np.ndarray) -> np.ndarray:
    """Return the weights that ``text`` names, 1 for the others, shape ``(classes,)``."""
    weights, mistakes = np.ones(len(names)), list[str]()
    places, named_classes = {name: place for place, name in enumerate(names)}, set[str]()
    for part in split_values(text) or [text]:
        name, _, written = part.rpartition("=")
        name = name if name in places else name.strip()
        try:
            weight = float(written)
        except ValueError:
            weight = 0.0
        if name not in places:
            hint = suggestion(name, names) if name else suggestion(written, (BALANCED, NONE))
            problem = f"no class '{name or written}'{hint}"
        elif name in named_classes:
            problem = f"'{name}' has two weights"
        elif not rows[places[name]]:
            problem = f"no training row is of the class '{name}'"
        elif not _LEAST <= weight <= _MOST:
            problem = f"'{written}' is no weight from {_LEAST} to {_MOST:.0f}"
        else:
            weights[places[name]] = weight
            named_classes.add(name)
            continue
        mistakes.append(
            f"--class_weights {part.strip()}: {problem} (expected balanced, none or "
            f"NAME=WEIGHT,NAME=WEIGHT with {list_names(names)})"
        )
    if mistakes:
        raise UserError(*mistakes)
    return weights
