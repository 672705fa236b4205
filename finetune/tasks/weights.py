"""``--class_weights``: how much the rows of each class count in the loss of training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from finetune.data.comma_list import split_values
from finetune.data.labels import list_names
from finetune.errors import UserError, suggestion

#: Beside ``NAME=WEIGHT,NAME=WEIGHT``.
BALANCED, NONE = "balanced", "none"
#: Between these, weights and their sums are far from the ends of float32.
_LEAST, _MOST = 1e-6, 1e6


def class_weights(text: str, names: Sequence[str], targets: np.ndarray) -> np.ndarray | None:
    """Return how much each class, or each label, counts in the loss of training.

    Of one class a row, balanced weights are those of scikit-learn's ``compute_class_weight``: the
    rows divided by the rows of a class and the number of classes that occur. Weights are then
    scaled to the mean 1 over the training rows, which changes no loss that is divided by their sum.

    Of any number of labels, a weight is that of the rows that have the label, and those without
    count 1. Balanced weights are the rows without a label divided by those with it, as in torch's
    ``BCEWithLogitsLoss``; 1 for a label that no row has, or that every row has.

    Args:
        text: Of the option. What it does not name has the weight 1.
        names: Of the classes or labels.
        targets: The class of each training row, ``(rows,)``, or 0 and 1, ``(rows, labels)``.

    Returns:
        Shape ``(names,)``, float64; None if there are no weights.

    Raises:
        UserError: one line for each mistake in ``text``.
    """
    if text == NONE:
        return None
    has_one_class = targets.ndim == 1
    if has_one_class:
        rows = np.bincount(targets, minlength=len(names))
    else:
        rows = np.count_nonzero(targets, axis=0)
    if text == BALANCED:
        total, fewest = len(targets), np.maximum(rows, 1)
        if has_one_class:
            return np.where(rows, total / (np.count_nonzero(rows) * fewest), 1.0)
        return np.where(rows * (total - rows), (total - rows) / fewest, 1.0)
    weights = _parse_weights(text, names, rows)
    return weights * len(targets) / float(weights @ rows) if has_one_class else weights


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
