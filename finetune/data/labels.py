"""Brings the labels of any source to one ``ClassLabel``, in an order that depends on no luck."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features

from finetune.errors import UserError


def class_names(rows: Dataset) -> list[str]:
    """Return the names of the classes by number; none where the label is a number."""
    feature = rows.features["label"]
    return list(feature.names) if isinstance(feature, ClassLabel) else []


def listed(names: Sequence[str]) -> str:
    """Return the first five names, quoted, and how many more there are."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(f"'{name}'" for name in names[:5]) + more


def encode(dataset: DatasetDict, names: Sequence[str]) -> DatasetDict:
    """Return ``dataset`` with its ``label``, none missing, as a ``ClassLabel`` of all splits.

    A source whose labels have the ``names`` of the recipe (or some of them) takes their order; any
    other is sorted, numbers as numbers. Numbers get no names that nobody gave them: ``1`` is
    called ``1``.

    Raises:
        UserError: if the labels are numbers with a fraction.
    """
    values = {split: _as_names(rows) for split, rows in dataset.items()}
    present: set[str] = set().union(*values.values())
    theirs = class_names(dataset["train"])
    if present <= set(names):
        ordered = [name for name in names if name in present or set(theirs) == set(names)]
    else:
        ordered = theirs + sorted(present - set(theirs), key=_natural)
    return DatasetDict(
        {split: _with_label(rows, ordered, values[split]) for split, rows in dataset.items()}
    )


def renumbered(rows: Dataset, names: Sequence[str]) -> Dataset:
    """Return ``rows`` with the numbers that a model has for the names of their labels.

    Raises:
        UserError: if there are names that the model does not know.
    """
    values = _as_names(rows)
    if unknown := sorted(set(values) - set(names), key=_natural):
        raise UserError(
            f"the data has labels that the model does not know: {listed(unknown)} "
            f"(it knows: {', '.join(names)})"
        )
    return _with_label(rows, names, values)


def _with_label(rows: Dataset, names: Sequence[str], values: list[str]) -> Dataset:
    """``rows`` whose labels have the names ``values``, with the numbers that ``names`` has."""
    label = ClassLabel(names=list(names))
    if rows.features["label"] == label:
        return rows
    if not values:  # a column cannot be added to an empty selection
        features = Features({**rows.features, "label": label})
        return Dataset.from_dict({name: [] for name in features}, features=features)
    numbers = np.array(label.str2int(values), dtype=np.int64)
    return rows.remove_columns("label").add_column("label", numbers).cast_column("label", label)


def _as_names(rows: Dataset) -> list[str]:
    feature, values = rows.features["label"], rows["label"][:]
    if isinstance(feature, ClassLabel):
        return [feature.names[value] for value in values]
    if any(isinstance(value, float) and not value.is_integer() for value in values):
        example = next(value for value in values if not float(value).is_integer())
        raise UserError(
            f"the labels are numbers with a fraction ({example}): expected classes; "
            "is --label_column the right column?"
        )
    return [str(int(value)) if isinstance(value, float) else str(value) for value in values]


def _natural(name: str) -> tuple[int, float, str]:
    try:
        value = float(name)
    except ValueError:
        return (1, 0.0, name)
    return (0, value, name) if math.isfinite(value) else (1, 0.0, name)  # nan sorts anywhere
