"""What the column ``label`` of raw rows holds, by its feature alone; and findings about rows.

=============================  ================================================
``ClassLabel``                 one class
``List(ClassLabel)``           any number of classes, by their numbers, sorted
``Value("float32")``           a number
``List(Value("float32"), k)``  ``k`` numbers
=============================  ================================================
"""

from collections.abc import Sequence, Set
from typing import Any

import numpy as np
import pandas as pd
from datasets import ClassLabel, Dataset, List

from finetune.data import ROW, arrow
from finetune.errors import Finding, Report, Severity, Suspect, counted

#: The share of the rows above which something that is normal in a few of them is suspicious.
_SUSPICIOUS_SHARE = 0.01
#: Rows that a finding lists as suspects.
MOST_SUSPECTS = 1000
#: What to do about rows: ``check`` writes them to a file, which a training takes.
EXCLUDE = "check --suspects FILE.csv, then --exclude FILE.csv, leaves them out"
RELABEL = "check --suspects FILE.csv, then --relabel FILE.csv, corrects their labels"


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
    has = np.zeros((len(labels), classes), dtype=bool)
    rows = np.repeat(np.arange(len(labels)), [len(label) for label in labels])
    has[rows, np.concatenate([*labels, []]).astype(np.int64)] = True
    return has


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


def report_rows(
    report: Report,
    name: str,
    description: str,
    fix: str,
    positions: np.ndarray | pd.Series,
    rows: Dataset,
    split: str,
    *,
    examined: int | None = None,
    severity: Severity | None = None,
    suspects: Sequence[Sequence[Any]] = (),
) -> None:
    """Report the rows of a split at some positions; nothing if there are no such rows.

    ``description`` follows "3 of 100 train rows". The severity is "warning" by default if the rows
    are more than 1% of those ``examined``, by default all; else "info". ``suspects`` say why each
    row is one, which labels they should have and how surely, a sequence each. The others are
    attributes of the finding.
    """
    count = len(positions)
    total = len(rows) if examined is None else examined
    if not count:
        return
    sampled = f" looked at (of {len(rows):,})" if total < len(rows) else ""
    numbers = source_rows(rows)[np.asarray(positions)[:MOST_SUSPECTS]].tolist()
    report.add(
        Finding(
            name=name,
            severity=severity or ("warning" if count > _SUSPICIOUS_SHARE * total else "info"),
            message=f"{count:,} of {counted(total, f'{split} row')}{sampled} {description}",
            fix=fix,
            split=split,
            rows=numbers,
            count=count,
            examined=total,
            suspects=[*map(Suspect, numbers, *(suspects or [[description] * len(numbers)]))],
        )
    )


def refuse_or_drop(
    report: Report,
    description: str,
    fix: str,
    positions: Any,
    rows: Dataset,
    split: str,
    drop: bool,
) -> None:
    """Report rows that cannot be used, as :func:`report_rows` does: an error, or a warning if they
    are left out. None of them is a suspect: there is no label to correct.
    """
    name = "dropped_rows" if drop else "refused"
    severity: Severity = "warning" if drop else "error"
    fix = "left out" if drop else fix
    place = (positions, rows, split)
    report_rows(report, name, description, fix, *place, severity=severity, suspects=[[]])
