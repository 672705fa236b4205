"""Bring the labels of any source to one ``ClassLabel``, in a deterministic order."""

from __future__ import annotations

import ast
import contextlib
import json
import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, Json, Value

from finetune.data import targets
from finetune.data.several import values_in
from finetune.data.targets import class_names
from finetune.errors import UserError, counted

_EMOJI = "\ufe0f"  # follows a character that is shown as an emoji
_STRAY = 0.05  # labels of at most this share of the rows can be strays


def listed(names: Sequence[str]) -> str:
    """Return the first five names, quoted, and the number of others."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(f"'{name}'" for name in names[:5]) + more


def encode(
    dataset: DatasetDict,
    names: Sequence[str],
    note: Callable[[str], None] = lambda sentence: None,
) -> DatasetDict:
    """Return ``dataset`` with its ``label``, none missing, as one ``ClassLabel`` for all splits.

    If all labels are among the ``names`` of the recipe, the classes take their order; otherwise
    they are sorted, numbers as numbers. Numbers are not given other names: ``1`` is called ``1``.

    Args:
        dataset: Splits with ``label``.
        names: Those of the recipe; may be empty.
        note: Called with a sentence if the values are not the names of the classes.

    Raises:
        UserError: if the labels are lists, numbers with a fraction, or 1 and "1" in one split.
    """
    values = {split: _as_names(rows) for split, rows in dataset.items()}
    for sentence in dict.fromkeys(filter(None, map(_naming, dataset.values()))):
        note(sentence)
    present: set[str] = set().union(*values.values())
    theirs = class_names(dataset["train"])
    if present <= set(names):
        ordered = [name for name in names if name in present or set(theirs) == set(names)]
    else:
        ordered = theirs + sorted(present - set(theirs), key=natural)
    return DatasetDict(
        {split: _with_label(rows, ordered, values[split]) for split, rows in dataset.items()}
    )


def mapping(text: str) -> dict[str, str]:
    """Return the names that ``--label_map`` gives, by the labels they stand for.

    Raises:
        UserError: if it is not ``LABEL=NAME,LABEL=NAME``.
    """
    found: dict[str, str] = {}
    for part in values_in(text, empty=True):
        label, equals, name = (each.strip() for each in part.partition("="))
        if not (label and equals and name):
            raise UserError(f"--label_map {text}: expected LABEL=NAME,LABEL=NAME, found '{part}'")
        if label in found:
            raise UserError(f"--label_map {text}: '{label}' is given two names")
        found[label] = name
    return found


def mapped(dataset: DatasetDict, names: Mapping[str, str]) -> tuple[DatasetDict, list[str]]:
    """Return ``dataset`` with other names for some labels, and those of ``names`` it lacks."""
    if not names:
        return dataset, []
    values = {split: _as_names(rows) for split, rows in dataset.items()}
    present: set[str] = set().union(*values.values())
    renamed = {
        split: rows.remove_columns("label").add_column(
            "label", [names.get(value, value) for value in values[split]], feature=Value("string")
        )
        for split, rows in dataset.items()
    }
    return DatasetDict(renamed), sorted(names.keys() - present)


def refuse_unmapped(unmapped: Sequence[str], dataset: DatasetDict) -> None:
    """Refuse names in ``--label_map`` that the data to train on lacks; other data may lack them.

    Raises:
        UserError: with the labels there are.
    """
    if unmapped:
        raise UserError(
            f"--label_map: no label {listed(unmapped)} in the data (labels: "
            f"{listed(class_names(dataset['train']))})"
        )


def remarks(dataset: DatasetDict) -> list[str]:
    """Return sentences about classes that look like mistakes, with advice; none are merged.

    Args:
        dataset: Splits with one common feature ``label``.
    """
    if not (names := class_names(dataset["train"])):
        return []
    present_in = (targets.labels_of(rows) for rows in dataset.values())
    counts = Counter(label for labels in present_in for label in labels)
    present = {names[label]: count for label, count in counts.items() if 0 <= label < len(names)}
    alike: dict[float | str, list[str]] = {}
    for name in sorted(present):
        is_word, value, word = natural(_visible(name))
        alike.setdefault(word if is_word else value, []).append(name)
    found = []
    if several := [" and ".join(map(_shown, each)) for each in alike.values() if len(each) > 1]:
        found.append(
            f"similar labels kept as separate classes: {'; '.join(several[:5])}"
            f"{', ...' * (len(several) > 5)}; to merge them, make them identical in the data"
        )
    numbers = {name for name in present if not natural(name)[0]}  # not words
    for strays, usual in ((numbers, "words"), (set(present) - numbers, "numbers")):
        rows = sum(present[name] for name in strays)
        if 0 < rows <= _STRAY * sum(present.values()):
            found.append(
                f"labels are {usual} except in {counted(rows, 'row')}: {listed(sorted(strays))}; "
                "if these are mistakes, correct them in the data"
            )
    if single := sorted(name for name, count in present.items() if count == 1):
        found.append(
            f"{len(single)} class{'es' * (len(single) > 1)} with a single row: {listed(single)}; "
            "one row cannot serve both training and evaluation: add rows, or remove such classes"
        )
    return found


def _visible(name: str) -> str:
    """Return a name without case, spaces, invisible characters and Unicode's ways to write it."""
    composed = unicodedata.normalize("NFKC", name)
    seen = (each for each in composed if each.isprintable() or each.isspace())
    return " ".join("".join(seen).replace(_EMOJI, "").split()).casefold()


def _shown(name: str) -> str:
    """Return a quoted name, escaped if that is the only way to tell it from another one."""
    usual = unicodedata.is_normalized("NFC", name) and _EMOJI not in name
    return repr(name) if usual else ascii(name)


def refusal_of_lists(value: Any) -> str:
    """Return why lists and objects are refused as labels, to follow "holds"."""
    if isinstance(value, dict):
        return f"objects, such as {value!r}: expected one label per row"
    return (
        f"lists, such as {value!r}: several labels per row are --task multi_label; expected one "
        "label per row"
    )


def renumbered(rows: Dataset, names: Sequence[str], place: Callable[[int], str]) -> Dataset:
    """Return ``rows`` with labels renumbered to the class indices of a model.

    Args:
        rows: Of other data.
        names: Of the classes of the model.
        place: Returns where a row is in its source, by its ``id``.

    Raises:
        UserError: if there are labels that the model does not know.
    """
    values = _as_names(rows)
    refuse_unknown(rows, [[each] for each in values], names, place)
    return _with_label(rows, names, values)


def refuse_unknown(
    rows: Dataset, cells: list[list[str]], names: Sequence[str], place: Callable[[int], str]
) -> None:
    """Refuse labels of rows, by name, that a model does not know; see :func:`renumbered`.

    Raises:
        UserError: with those there are, and where the first is.
    """
    unknown = {each for cell in cells for each in cell} - set(names)
    if unknown:
        row = next(row for row, cell in enumerate(cells) if not unknown.isdisjoint(cell))
        first = place(int(rows[row]["id"]))
        raise UserError(
            "the data has labels that the model does not know: "
            f"{listed(sorted(unknown, key=natural))}{first and ', first in '}{first} (it knows: "
            f"{listed(names)})"
        )


def _with_label(rows: Dataset, names: Sequence[str], values: list[str]) -> Dataset:
    """Return ``rows`` with the labels ``values``, encoded by their index in ``names``."""
    label = ClassLabel(names=list(names))
    if rows.features["label"] == label:
        return rows
    if not values:  # a column cannot be added to an empty selection
        features = Features({**rows.features, "label": label})
        return Dataset.from_dict({name: [] for name in features}, features=features)
    numbers = np.array(label.str2int(values), dtype=np.int64)
    return rows.remove_columns("label").add_column("label", numbers, feature=label)


def _as_names(rows: Dataset) -> list[str]:
    feature, values = rows.features["label"], rows["label"][:]
    if isinstance(feature, ClassLabel):
        return [feature.names[value] for value in values]
    distinct: dict[str, Any] = {}
    for value in {(type(each), str(each)): each for each in values}.values():
        other = distinct.setdefault(name_of(value), value)
        if type(other) is not type(value):
            raise UserError(
                f"the label column holds both {other!r} and {value!r}: expected one type; write "
                "one class in one way"
            )
    if infinite := [value for value in distinct.values() if value in (math.inf, -math.inf)]:
        raise UserError(f"the label column holds {infinite[0]}: expected classes")
    for name, value in distinct.items():
        if isinstance(value, (list, dict)) or (name.startswith("[") and is_list(name)):
            raise UserError(f"the label column holds {refusal_of_lists(value)}")
    numbers = [natural(name)[:2] for name in distinct]
    floats = any(isinstance(value, float) for value in distinct.values())
    if (floats or not any(is_word for is_word, _ in numbers)) and (
        fractions := [value for _, value in numbers if not value.is_integer()]
    ):
        raise UserError(
            f"the labels are numbers with a fraction ({fractions[0]}): expected classes; "
            "is --label_column the right column?"
        )
    return [name_of(value) for value in values]


def name_of(value: Any) -> str:
    """Return what a label is called: 1.0 is ``1``."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _naming(rows: Dataset) -> str:
    """Return a sentence if labels are neither words nor whole numbers; else an empty one."""
    feature = rows.features["label"]
    kind = "json" if isinstance(feature, Json) else str(feature.dtype).rstrip("0123456789")
    return {
        "bool": "labels are booleans: the classes are called 'False' and 'True'",
        "float": "labels are floating-point numbers: the class of 1.0 is called '1'",
        "json": "labels are of several types: true is called 'True', 1 is called '1'",
    }.get(kind, "")


def number(value: Any) -> float | None:
    """Return a label that is a number, or the text of one; None of any other."""
    if isinstance(value, (bool, list, dict)) or value is None:
        return float(value) if isinstance(value, bool) else None
    try:
        return float(value)
    except ValueError:
        return None


def is_list(word: str) -> bool:
    """Return whether a CSV cell holds a list in JSON or Python syntax."""
    for parse in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return isinstance(parse(word), list)
    return False


def are_numbers(names: Sequence[str]) -> bool:
    """Return whether all names of classes are numbers."""
    return not any(is_word for is_word, *_ in map(natural, names))


def in_order(names: Sequence[str], known: Sequence[str]) -> bool:
    """Return whether the order of classes is known: they are among those that have one, ``known``,
    or numbers that ascend.
    """
    numbers = are_numbers(names) and list(names) == sorted(names, key=natural)
    return set(names) <= set(known) or numbers


def natural(name: str) -> tuple[int, float, str]:
    """Return a key that sorts names: numbers first, as numbers."""
    try:
        value = float(name)
    except ValueError:
        return (1, 0.0, name)
    return (0, value, name) if math.isfinite(value) else (1, 0.0, name)  # nan sorts anywhere
