"""Brings the labels of any source to one ``ClassLabel``: by name, in an order that never depends
on luck.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features

from finetune.errors import UserError


def class_names(rows: Dataset) -> list[str]:
    """The names of the classes in the order of their numbers; none where the label is a number."""
    feature = rows.features["label"]
    return list(feature.names) if isinstance(feature, ClassLabel) else []


def encode(dataset: DatasetDict, names: Sequence[str]) -> DatasetDict:
    """``dataset`` with its column ``label`` as a ``ClassLabel`` that all splits share.

    A source whose labels have the ``names`` of the recipe (or some of them) takes their order; any
    other is sorted, numbers as numbers. Numbers get no names that nobody gave them: ``1`` is
    called ``1``.

    Args:
        dataset: Splits with a column ``label`` without missing values.
        names: The names that the recipe knows, in its order.

    Raises:
        UserError: if the labels are numbers with a fraction.
    """
    values = {split: _as_names(rows) for split, rows in dataset.items()}
    present = set().union(*(set(each) for each in values.values()))
    feature = dataset["train"].features["label"]
    if present <= set(names):
        ordered = [name for name in names if name in present or set(_names(feature)) == set(names)]
    else:
        ordered = _names(feature) or sorted(present, key=_natural)
        ordered += sorted(present - set(ordered), key=_natural)
    label = ClassLabel(names=ordered)
    number = {name: index for index, name in enumerate(ordered)}
    return DatasetDict(
        {
            split: _with_label(rows, label, [number[each] for each in values[split]])
            for split, rows in dataset.items()
        }
    )


def renumbered(rows: Dataset, names: Sequence[str]) -> Dataset:
    """``rows`` with the numbers that a model has for the names of their labels.

    Args:
        rows: With ``label``, a ``ClassLabel``.
        names: Of the classes of the model, in the order of their numbers.

    Raises:
        UserError: if there are names that the model does not know.
    """
    values, number = _as_names(rows), {name: index for index, name in enumerate(names)}
    if unknown := sorted(set(values) - set(names), key=_natural):
        shown = ", ".join(f"'{name}'" for name in unknown[:5])
        raise UserError(
            f"the data has labels that the model does not know: {shown}"
            f"{f' and {len(unknown) - 5} more' if len(unknown) > 5 else ''} "
            f"(it knows: {', '.join(names)})"
        )
    return _with_label(rows, ClassLabel(names=list(names)), [number[name] for name in values])


def _with_label(rows: Dataset, label: ClassLabel, numbers: list[int]) -> Dataset:
    if rows.features["label"] == label:
        return rows
    if not numbers:  # a column cannot be added to an empty selection
        features = Features({**rows.features, "label": label})
        return Dataset.from_dict({name: [] for name in features}, features=features)
    rows = rows.remove_columns("label").add_column("label", np.array(numbers, dtype=np.int64))
    return rows.cast_column("label", label)


def _names(feature: Any) -> list[str]:
    return list(feature.names) if isinstance(feature, ClassLabel) else []


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
