"""Read the column ``label`` of raw rows, whose feature tells its kind, and report rows.

=============================  ================================================
``ClassLabel``                 one class
``List(ClassLabel)``           any number of classes, sorted by id
``Value("float32")``           a number
``List(Value("float32"), k)``  ``k`` numbers
``List({..., "tag": ...})``    words with tags; the classes are the entity types
=============================  ================================================
"""

from collections.abc import Sequence, Set
from typing import Any

import numpy as np
import pandas as pd
from datasets import ClassLabel, Dataset, List

from finetune.data import ROW, arrow
from finetune.errors import Finding, Findings, Severity, Suspect, counted

#: The tag of words outside of entities; the others are ``B-TYPE`` and ``I-TYPE`` of each type.
OUTSIDE = "O"
#: The share of rows above which a finding is a warning instead of a fact.
_SUSPICIOUS_SHARE = 0.01
#: The number of rows that a finding lists as suspects.
MAX_SUSPECTS = 1000
#: Hints: ``check`` writes suspects to a file, which a training reads.
EXCLUDE = "check --suspects FILE.csv, then --exclude FILE.csv, leaves them out"
RELABEL = "check --suspects FILE.csv, then --relabel FILE.csv, corrects their labels"


def class_names(rows: Dataset, column: str = "label") -> list[str]:
    """Return the class names in the order of their ids; [] if the column has no ``ClassLabel``."""
    feature = rows.features[column]
    if isinstance(feature, List):
        feature = feature.feature
    if isinstance(feature, dict):
        names = getattr(feature.get("tag"), "names", ())
        return [name.removeprefix("B-") for name in names[1::2]]
    return list(getattr(feature, "names", ()))


def is_tagged(rows: Dataset) -> bool:
    """Return whether the labels are words with tags, see :mod:`finetune.data.tags`."""
    feature = rows.features["label"]
    return isinstance(feature, List) and isinstance(feature.feature, dict)


def is_set(rows: Dataset) -> bool:
    """Return whether the data is multi-label: a row has any number of classes."""
    feature = rows.features["label"]
    return isinstance(feature, List) and isinstance(feature.feature, ClassLabel)


def are_classes(rows: Dataset) -> bool:
    """Return whether the labels are classes, one or several per row, not numbers."""
    return is_set(rows) or is_tagged(rows) or isinstance(rows.features["label"], ClassLabel)


def values(rows: Dataset) -> list[Any]:
    """Return the label of each row; faster than ``rows["label"][:]``."""
    return list(arrow.column(rows, "label").to_pylist())


def comparable(rows: Dataset) -> list[Any]:
    """Return the label of each row such that rows with the same text, white space aside, and the
    same label have equal ones: the places of words depend on white space.
    """
    labels = values(rows)
    if is_tagged(rows):
        return [[word["tag"] for word in row] for row in labels]
    return labels


def indicators(labels: Any, classes: int) -> np.ndarray:
    """Return lists of class ids as boolean indicators, shape ``(rows, classes)``."""
    has = np.zeros((len(labels), classes), dtype=bool)
    rows = np.repeat(np.arange(len(labels)), list(map(len, labels)))
    has[rows, np.concatenate([*labels, []]).astype(np.int64)] = True
    return has


def strata(rows: Dataset) -> np.ndarray:
    """Return the labels to stratify by: class ids, shape ``(rows,)``; indicators, shape
    ``(rows, classes)``, for several classes a row; zeros if the labels are numbers.
    """
    if not are_classes(rows):
        return np.zeros(len(rows), dtype=int)
    positions, classes = _class_ids(rows)
    if not (is_set(rows) or is_tagged(rows)):
        return classes
    has = np.zeros((len(rows), len(class_names(rows))), dtype=bool)
    has[positions, classes] = True
    return has


def counts(rows: Dataset) -> dict[int, int]:
    """Return the number of rows of each class id that occurs; {} if the labels are numbers."""
    if not are_classes(rows):
        return {}
    numbers, frequencies = np.unique(_class_ids(rows)[1], return_counts=True)
    return dict(zip(numbers.tolist(), frequencies.tolist(), strict=True))


def _class_ids(rows: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the position of a row and a class id for each class that each row has, both int64;
    the classes of words with tags are the types of the entities.
    """
    labels = arrow.column(rows, "label").combine_chunks()
    positions = np.arange(len(labels))
    if is_set(rows) or is_tagged(rows):
        positions = np.repeat(positions, labels.value_lengths())
        labels = labels.flatten()
    if is_tagged(rows):
        tags = np.asarray(labels.field("tag"))
        types = (tags - 1) // 2
        positions, types = np.unique([positions[tags > 0], types[tags > 0]], axis=1)
        return positions, types
    return positions, np.asarray(labels, dtype=np.int64)


def source_rows(rows: Dataset) -> np.ndarray:
    """Return the row numbers in the split of the source, int64, shape ``(rows,)``."""
    if ROW not in rows.column_names:
        return np.arange(len(rows))
    return np.asarray(arrow.column(rows, ROW).to_numpy(), dtype=np.int64)


def first_row(rows: Dataset, classes: Set[int]) -> list[int]:
    """Return the source row number of the first row with one of ``classes``, in a list."""
    positions, numbers = _class_ids(rows)
    first = positions[np.isin(numbers, list(classes))][0]
    return [int(source_rows(rows)[first])]


def report_rows(
    report: Findings,
    name: str,
    description: str,
    fix: str,
    positions: np.ndarray | pd.Series | Sequence[int],
    rows: Dataset,
    split: str,
    *,
    examined: int | None = None,
    severity: Severity | None = None,
    suspects: Sequence[Sequence[Any]] = (),
) -> None:
    """Add a finding about some rows of a split; nothing if there are none.

    Args:
        report: Gets the finding.
        name: The kind of finding.
        description: The message is "3 of 100 train rows" and the description.
        fix: The flag to type or the edit to make.
        positions: The positions of the rows in the split.
        rows: All rows of the split.
        split: The name of the split.
        examined: The number of rows that were checked; None for all rows.
        severity: None for "warning" if it is more than 1% of the examined rows, else "info".
        suspects: Reasons, suggested labels and scores of the rows; the default reason is
            ``description``.
    """
    count = len(positions)
    if not count:
        return
    total = len(rows) if examined is None else examined
    if severity is None:
        severity = "warning" if count > _SUSPICIOUS_SHARE * total else "info"
    sampled = ""
    if total < len(rows):
        sampled = f" looked at (of {len(rows):,})"
    numbers = source_rows(rows)[np.asarray(positions)[:MAX_SUSPECTS]].tolist()
    report.add(
        Finding(
            name=name,
            severity=severity,
            message=f"{count:,} of {counted(total, f'{split} row')}{sampled} {description}",
            fix=fix,
            split=split,
            rows=numbers,
            count=count,
            examined=total,
            suspects=list(map(Suspect, numbers, *(suspects or [[description] * len(numbers)]))),
        )
    )


def refuse_or_drop(
    report: Findings,
    description: str,
    fix: str,
    positions: Any,
    rows: Dataset,
    split: str,
    drop: bool,
) -> None:
    """Add a finding about rows that cannot be used, as :func:`report_rows` does: an error, or with
    ``drop`` a warning. They are no suspects: there is no label to correct.
    """
    name = "refused"
    severity: Severity = "error"
    if drop:
        name, severity, fix = "dropped_rows", "warning", "left out"
    report_rows(
        report, name, description, fix, positions, rows, split, severity=severity, suspects=[[]]
    )
