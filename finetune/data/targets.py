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
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, List, Value
from scipy.sparse import csr_array

from finetune.data import arrow


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
    return are_sets(rows.features["label"])


def are_sets(feature: Any) -> bool:
    """Return whether a feature is that of rows with any number of classes."""
    return isinstance(feature, List) and isinstance(feature.feature, ClassLabel)


def values(rows: Dataset) -> list[Any]:
    """Return the label of each row, as ``rows["label"][:]`` does, without reading row by row."""
    return list(arrow.column(rows, "label").to_pylist())


def are_classes(rows: Dataset) -> bool:
    """Return whether a row has a class or any number of them, rather than numbers."""
    return is_set(rows) or isinstance(rows.features["label"], ClassLabel)


def indicators(labels: Any, classes: int) -> np.ndarray:
    """Return which classes each row has, shape ``(rows, classes)``, of booleans.

    Args:
        labels: The numbers of the classes of each row.
        classes: How many there are.
    """
    ends = np.cumsum([0, *map(len, labels)])
    return _indicators(np.concatenate([*labels, []]).astype(np.int64), ends, classes)


def _indicators(columns: np.ndarray, ends: np.ndarray, classes: int) -> np.ndarray:
    shape = len(ends) - 1, classes
    return np.asarray(csr_array((np.ones(len(columns), bool), columns, ends), shape).toarray())


def strata(rows: Dataset) -> np.ndarray:
    """Return what splits are stratified by: the class of each row, shape ``(rows,)``; which
    classes it has, shape ``(rows, classes)``; or a single class if the labels are numbers.
    """
    if not are_classes(rows):
        return np.zeros(len(rows), dtype=int)
    labels = arrow.column(rows, "label").combine_chunks()
    if not is_set(rows):
        return _integers(labels)
    ends = np.cumsum([0, *pc.list_value_length(labels).to_numpy(zero_copy_only=False)])
    return _indicators(_integers(labels.flatten()), ends, len(class_names(rows)))


def _integers(labels: pa.Array) -> np.ndarray:
    return np.asarray(labels.to_numpy(zero_copy_only=False), dtype=np.int64)


def all_alike(rows: Dataset) -> bool:
    """Return whether all rows have the same classes."""
    found = strata(rows)
    return not len(found) or bool((found == found[0]).all())


def occurring(rows: Dataset) -> set[Any]:
    """Return the different classes, by their numbers, or the different labels that are numbers."""
    if not are_classes(rows):
        return set(labels_of(rows))
    return set(np.unique(_numbers_of(rows)).tolist())


def counts(rows: Dataset) -> dict[int, int]:
    """Return how often each class occurs, by their numbers; none if the labels are numbers."""
    if not are_classes(rows):
        return {}
    found, many = np.unique(_numbers_of(rows), return_counts=True)
    return dict(zip(found.tolist(), many.tolist(), strict=True))


def labels_of(rows: Dataset) -> list[Any]:
    """Return the classes of all rows, or their labels that are numbers, one after the other."""
    if are_classes(rows):
        return list(_numbers_of(rows).tolist())
    labels = arrow.column(rows, "label").to_pylist()
    return [tuple(each) if isinstance(each, list) else each for each in labels]


def _numbers_of(rows: Dataset) -> np.ndarray:
    """Return the classes of all rows, one after the other."""
    labels = arrow.column(rows, "label").combine_chunks()
    return _integers(labels.flatten() if is_set(rows) else labels)
