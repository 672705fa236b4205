"""Brings the labels of any source to one ``ClassLabel``, in an order that depends on no luck."""

from __future__ import annotations

import ast
import contextlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features

from finetune.errors import UserError, counted

_STRAY = 0.05  # the most of the rows whose labels can be strays


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
        UserError: if the labels are lists, or numbers with a fraction.
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


def remarks(dataset: DatasetDict) -> list[str]:
    """Return sentences about classes that are probably not meant, with what to do; none is merged.

    Args:
        dataset: Splits with ``label``, one ``ClassLabel`` of them all.
    """
    names = class_names(dataset["train"])
    counts = Counter(label for rows in dataset.values() for label in rows["label"][:])
    present = {names[label]: count for label, count in counts.items() if 0 <= label < len(names)}
    alike: dict[float | str, list[str]] = {}
    for name in sorted(present):
        is_word, value, word = _natural(" ".join(name.split()).casefold())
        alike.setdefault(word if is_word else value, []).append(name)
    found = []
    if several := [" and ".join(map(repr, each)) for each in alike.values() if len(each) > 1]:
        found.append(
            f"classes of their own though alike: {'; '.join(several[:5])}"
            f"{', ...' * (len(several) > 5)}: make their labels the same in the data to merge them"
        )
    numbers = {name for name in present if not _natural(name)[0]}  # not words
    for strays, usual in ((numbers, "words"), (set(present) - numbers, "numbers")):
        rows = sum(present[name] for name in strays)
        if 0 < rows <= _STRAY * sum(present.values()):
            found.append(
                f"labels are {usual} but for {counted(rows, 'row')}: {listed(sorted(strays))}; "
                "correct these in the data if they are mistakes"
            )
    if single := sorted(name for name, count in present.items() if count == 1):
        found.append(
            f"{len(single)} class{'es' * (len(single) > 1)} of one row: {listed(single)}; never "
            "both trained and evaluated: add rows, or leave such rows out"
        )
    return found


def refusal_of_lists(value: Any) -> str:
    """Return why labels that are no single value are refused, after "holds"."""
    if isinstance(value, dict):
        return f"objects, such as {value!r}: expected one label per row"
    return (
        f"lists, such as {value!r}: several labels per row (multi-label) are not supported yet; "
        "expected one label per row"
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
    distinct = {str(value): value for value in values}
    for name, value in distinct.items():
        if isinstance(value, (list, dict)) or (name.startswith("[") and _is_list(name)):
            raise UserError(f"the column of the labels holds {refusal_of_lists(value)}")
    numbers = [_natural(name)[:2] for name in distinct]
    floats = any(isinstance(value, float) for value in distinct.values())
    if (floats or not any(is_word for is_word, _ in numbers)) and (
        fractions := [value for _, value in numbers if not value.is_integer()]
    ):
        raise UserError(
            f"the labels are numbers with a fraction ({fractions[0]}): expected classes; "
            "is --label_column the right column?"
        )
    return [str(int(value)) if isinstance(value, float) else str(value) for value in values]


def _is_list(word: str) -> bool:
    """Whether a cell of a CSV holds a list, as JSON or Python writes it."""
    for parse in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return isinstance(parse(word), list)
    return False


def _natural(name: str) -> tuple[int, float, str]:
    try:
        value = float(name)
    except ValueError:
        return (1, 0.0, name)
    return (0, value, name) if math.isfinite(value) else (1, 0.0, name)  # nan sorts anywhere
