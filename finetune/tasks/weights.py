"""``--class_weights``: how much the rows of each class count in the loss of training."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from finetune.data.comma_list import split_values
from finetune.data.label_columns import list_names
from finetune.errors import UserError, suggestion

#: Beside ``NAME=WEIGHT,NAME=WEIGHT``.
BALANCED, NONE = "balanced", "none"
#: Classes that a note names.
_MOST_NAMED = 12


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
    weights = _named(text, names, rows)
    with np.errstate(over="ignore", invalid="ignore"):  # which is refused
        return _usable(weights * len(labels) / float(weights @ rows), text)


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
    return _usable(_named(text, names, rows), text)


def note(text: str, names: Sequence[str], weights: np.ndarray) -> str:
    """Return what the user is told of the weights."""
    descriptions = [f"{name} {weight:.4g}" for name, weight in zip(names, weights, strict=True)]
    rest = f" and {len(descriptions) - _MOST_NAMED} more" if len(descriptions) > _MOST_NAMED else ""
    suffix = " (balanced)" if text == BALANCED else ""
    return (
        f"class weights{suffix}: {', '.join(descriptions[:_MOST_NAMED])}{rest}; the evaluation "
        "loss is not weighted"
    )


def _named(text: str, names: Sequence[str], rows: np.ndarray) -> np.ndarray:
    """Return the weights that ``text`` names, 1 for the others, shape ``(classes,)``."""
    weights, mistakes, named_labels = np.ones(len(names)), list[str](), set[str]()
    numbers = {name: index for index, name in enumerate(names)}
    for part in split_values(text) or [""]:
        name, equals, written = part.rpartition("=")
        name, written = name if name in numbers else name.strip(), written.strip()
        if not (name and equals and written):
            text_of_part = part.strip()
            hint = "" if text_of_part in names else suggestion(text_of_part, (BALANCED, NONE))
            mistakes.append(
                f"--class_weights {text}: '{text_of_part}' stands alone or is left out"
                if text_of_part in (BALANCED, NONE)
                else f"--class_weights {text}: expected balanced, none or NAME=WEIGHT,NAME=WEIGHT, "
                f"found '{text_of_part}'{hint}"
            )
            continue
        if name not in numbers:
            mistakes.append(
                f"--class_weights: there is no class '{name}'{suggestion(name, names)} "
                f"(classes: {list_names(names)})"
            )
        elif name in named_labels:
            mistakes.append(f"--class_weights: '{name}' is given two weights")
        elif not rows[numbers[name]]:
            mistakes.append(f"--class_weights: no training row is of the class '{name}'")
        elif (weight := _number(written)) is None:
            mistakes.append(
                f"--class_weights {part.strip()}: expected a finite weight above 0, found "
                f"'{written}'"
            )
        else:
            weights[numbers[name]] = weight
        named_labels.add(name)
    if mistakes:
        raise UserError(*mistakes)
    return weights


def _usable(weights: np.ndarray, text: str) -> np.ndarray:
    """Return weights; refuse those that the loss, in float32, would take for 0 or for infinite."""
    with np.errstate(over="ignore", under="ignore"):
        single = weights.astype(np.float32)
    if not (np.isfinite(single) & (single > 0)).all():
        raise UserError(
            f"--class_weights {text}: too far apart or too large for float32, in which a weight "
            "would be 0 or infinite; expected weights like 0.5 or 20"
        )
    return weights


def _number(written: str) -> float | None:
    """Return a weight; None if it is not a finite number above 0."""
    try:
        weight = float(written)
    except ValueError:
        return None
    return weight if 0 < weight < math.inf else None


def refuse_own_loss(text: str) -> None:
    """Refuse weights that are arguments of a loss beside a loss of the recipe's own.

    Args:
        text: ``--class_weights``.

    Raises:
        UserError: if there are any.
    """
    if text != "none":
        raise UserError(
            f"--class_weights {text}: the recipe has a loss of its own, and of several labels a "
            "row the weights are part of the loss: weigh the labels in loss()"
        )
