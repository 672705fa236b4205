"""What the column ``label`` of raw rows holds: its feature alone says it.

=============================  ================================================
``ClassLabel``                 one class
``List(ClassLabel)``           any number of classes, by their numbers, sorted
``Value("float32")``           a number
``List(Value("float32"), k)``  ``k`` numbers
=============================  ================================================
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, List
from scipy.sparse import csr_array

from finetune.data import ROW, arrow


def class_names(rows: Dataset) -> list[str]:
    """Return the names of the classes by their numbers; none if the labels are numbers."""
    feature = rows.features["label"]
    return list(getattr(feature.feature if isinstance(feature, List) else feature, "names", ()))


def is_set(rows: Dataset) -> bool:
    """Return whether a row has any number of classes."""
    feature = rows.features["label"]
    return isinstance(feature, List) and isinstance(feature.feature, ClassLabel)


def are_classes(rows: Dataset) -> bool:
    """Return whether a row has a class or any number of them, rather than numbers."""
    return is_set(rows) or isinstance(rows.features["label"], ClassLabel)


def values(rows: Dataset) -> list[Any]:
    """Return the label of each row, as ``rows["label"][:]`` does, without reading row by row."""
    return list(arrow.column(rows, "label").to_pylist())


def indicators(labels: Any, classes: int) -> np.ndarray:
    """Return which of so many classes each row has, shape ``(rows, classes)``, of booleans."""
    ends = np.cumsum([0, *map(len, labels)])
    numbers = np.concatenate([*labels, []]).astype(np.int64)
    shape = len(labels), classes
    return np.asarray(csr_array((np.ones(len(numbers), bool), numbers, ends), shape).toarray())


def strata(rows: Dataset) -> np.ndarray:
    """Return what splits are stratified by: the class of each row, shape ``(rows,)``; which
    classes it has, shape ``(rows, classes)``; or a single class if the labels are numbers.
    """
    if is_set(rows):
        return indicators(values(rows), len(class_names(rows)))
    return _class_numbers(rows) if are_classes(rows) else np.zeros(len(rows), dtype=int)


def counts(rows: Dataset) -> dict[int, int]:
    """Return how often each class occurs, by their numbers; none if the labels are numbers."""
    if not are_classes(rows):
        return {}
    numbers, frequencies = np.unique(_class_numbers(rows), return_counts=True)
    return dict(zip(numbers.tolist(), frequencies.tolist(), strict=True))


def _class_numbers(rows: Dataset) -> np.ndarray:
    """Return the classes of all rows, one after the other."""
    labels = arrow.column(rows, "label").combine_chunks()
    numbers = labels.flatten() if is_set(rows) else labels
    return np.asarray(numbers.to_numpy(zero_copy_only=False), dtype=np.int64)


def source_rows(rows: Dataset) -> np.ndarray:
    """Return the number of each row in its split of the source, int64, shape ``(rows,)``."""
    if ROW not in rows.column_names:
        return np.arange(len(rows))
    return np.asarray(arrow.column(rows, ROW).to_numpy(), dtype=np.int64)


def first_row(rows: Dataset, classes: Set[int]) -> list[int]:
    """Return the number, in the source, of the first row with a class, as a list of one."""
    labels = values(rows) if is_set(rows) else zip(values(rows), strict=True)
    pairs = zip(source_rows(rows).tolist(), labels, strict=True)
    return [next(row for row, label in pairs if not classes.isdisjoint(label))]
