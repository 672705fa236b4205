"""What the column ``label`` of raw rows holds: its feature alone says it.

=============================  ================================================
``ClassLabel``                 one class
``List(ClassLabel)``           any number of classes, by their numbers, sorted
``Value("float32")``           a number
``List(Value("float32"), k)``  ``k`` numbers
=============================  ================================================
"""

from __future__ import annotations

from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, List, Value
from scipy.sparse import csr_array


def is_known(feature: Any) -> bool:
    """Return whether a feature is one of these four."""
    inner = feature.feature if isinstance(feature, List) else feature
    is_number = isinstance(inner, Value) and inner.dtype.startswith("float")
    return isinstance(inner, ClassLabel) or is_number


def class_names(rows: Dataset) -> list[str]:
    """Return the names of the classes by their numbers; none if the labels are numbers."""
    feature = rows.features["label"]
    inner = feature.feature if isinstance(feature, List) else feature
    return list(inner.names) if isinstance(inner, ClassLabel) else []


def is_set(rows: Dataset) -> bool:
    """Return whether a row has any number of classes."""
    feature = rows.features["label"]
    return isinstance(feature, List) and isinstance(feature.feature, ClassLabel)


def indicators(labels: Any, classes: int) -> np.ndarray:
    """Return which classes each row has, shape ``(rows, classes)``, of booleans.

    Args:
        labels: The numbers of the classes of each row.
        classes: How many there are.
    """
    ends = np.cumsum([0, *map(len, labels)])
    columns = np.concatenate([*labels, []]).astype(np.int64)
    shape = len(ends) - 1, classes
    return np.asarray(csr_array((np.ones(len(columns), bool), columns, ends), shape).toarray())


def strata(rows: Dataset) -> np.ndarray:
    """Return what splits are stratified by: the class of each row, shape ``(rows,)``; which
    classes it has, shape ``(rows, classes)``; or a single class if the labels are numbers.
    """
    if is_set(rows):
        return indicators(rows["label"][:], len(class_names(rows)))
    if class_names(rows):
        return np.asarray(rows["label"][:])
    return np.zeros(len(rows), dtype=int)


def row_keys(rows: Dataset) -> np.ndarray:
    """Return what two rows of the same text contradict each other by, shape ``(rows,)``: their
    classes; numbers never do.
    """
    found = strata(rows)
    if found.ndim == 1:
        return found
    packed = np.packbits(found, axis=1)
    return np.array([row.tobytes().hex() for row in packed], dtype=object)


def occurring(rows: Dataset) -> set[Any]:
    """Return the different classes, by their numbers, or the different labels that are numbers."""
    return set(labels_of(rows))


def labels_of(rows: Dataset) -> list[Any]:
    """Return the classes of all rows, or their labels that are numbers, one after the other."""
    labels = rows["label"][:]
    if is_set(rows):
        return [each for row in labels for each in row]
    return [tuple(each) if isinstance(each, list) else each for each in labels]
