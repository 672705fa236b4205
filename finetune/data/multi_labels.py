"""Labels of which a row has any number: cells that hold several, or a column for each."""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from datasets import ClassLabel, Dataset, DatasetDict, Features, List

from finetune.data import labels
from finetune.errors import UserError

#: Where the values of a column of 0 and 1 are found, whatever they were written as.
_TRUTH: Mapping[str, bool] = {
    **dict.fromkeys(("1", "1.0", "true", "yes"), True),
    **dict.fromkeys(("0", "0.0", "false", "no"), False),
}
Places = Callable[[str, Sequence[int]], str]


def _rows(split: str, rows: Sequence[int]) -> str:
    return f"row{'s' * (len(rows) > 1)} {', '.join(str(each + 1) for each in rows[:5])}"


def encode(
    dataset: DatasetDict,
    columns: Sequence[str],
    *,
    names: Sequence[str],
    renamed: Mapping[str, str],
    separator: str | None,
    shown: Sequence[str] = (),
    places: Places = _rows,
) -> tuple[DatasetDict, list[str]]:
    """Return ``dataset`` with a ``label`` that lists the classes of each row by their numbers.

    An empty list, or a row of zeros, is a row that has none of the labels. The classes take the
    order of the recipe if all are among its ``names``, that of the columns, or that of the source
    if it has names; else they are sorted, numbers as numbers.

    Args:
        dataset: Splits with these columns, nothing missing in them.
        columns: ``label`` alone, whose cells hold lists, or columns of 0 and 1.
        names: Of the classes, those of the recipe; may be empty.
        renamed: Other names for labels.
        separator: Between the labels in a cell of text; a list in JSON is one with it, too.
        shown: What the user calls the columns, if not that.
        places: Returns the positions of rows of a split, by their ``id``.

    Returns:
        The splits, and those of ``renamed`` that do not occur.

    Raises:
        UserError: if a cell cannot be read so; it names the column and the first such row.
            Also if no row has a label, or labels are numbers with a fraction.
    """
    several = len(columns) > 1
    called = list(shown) or list(columns)
    read = {}
    for split, rows in dataset.items():
        where = functools.partial(_place, rows, split, places)
        read[split] = list(
            _of_columns(rows, columns, called, where)
            if several
            else _of_cells(rows, separator, called[0], where)
        )
    present = {each for cells in read.values() for cell in cells for each in cell}
    theirs = list(columns) if several else _names(dataset["train"])
    known = [renamed.get(each, each) for each in theirs]
    merged = {renamed.get(each, each) for each in present}
    if merged <= set(names):
        ordered = list(names)
    else:
        ordered = [*dict.fromkeys(known), *sorted(merged - set(known), key=labels.natural)]
    if not ordered:
        raise UserError(f"--label_column: no row has a label in '{called[0]}', all lists are empty")
    number = {name: index for index, name in enumerate(ordered)}
    feature = List(ClassLabel(names=ordered))
    encoded = {}
    for split, cells in read.items():
        numbers = [sorted({number[renamed.get(each, each)] for each in cell}) for cell in cells]
        rest = dataset[split].remove_columns(list(columns))
        if cells:
            encoded[split] = rest.add_column("label", numbers, feature=feature)
        else:  # a column cannot be added to an empty selection
            features = Features({**rest.features, "label": feature})
            encoded[split] = Dataset.from_dict({name: [] for name in features}, features=features)
    return DatasetDict(encoded), sorted(renamed.keys() - present - set(theirs))


def renumbered(rows: Dataset, names: Sequence[str], place: Callable[[int], str]) -> Dataset:
    """Return ``rows`` with the classes numbered as a model numbers them.

    Args:
        rows: Of other data.
        names: Of the classes of the model.
        place: Returns where a row is in its source, by its ``id``.

    Raises:
        UserError: if there are labels that the model does not know.
    """
    theirs = _names(rows)
    cells = [[theirs[each] for each in cell] for cell in rows["label"][:]]
    labels.refuse_unknown(rows, cells, names, place)
    number = {name: index for index, name in enumerate(names)}
    numbers = [sorted(number[each] for each in cell) for cell in cells]
    feature = List(ClassLabel(names=list(names)))
    return rows.remove_columns("label").add_column("label", numbers, feature=feature)


def _names(rows: Dataset) -> list[str]:
    feature = rows.features["label"]
    inner = feature.feature if isinstance(feature, List) else None
    return list(inner.names) if isinstance(inner, ClassLabel) else []


def _place(rows: Dataset, split: str, places: Places, row: int) -> str:
    """Return the place of a row in its file."""
    number = int(rows[row]["id"]) if "id" in rows.column_names else row
    return f"{split} data, {places(split, [number])}"


def _of_columns(
    rows: Dataset, columns: Sequence[str], called: Sequence[str], where: Callable[[int], str]
) -> Iterator[list[str]]:
    """Yield the names of the columns that hold a 1 in each row."""
    held = {}
    for name, known in zip(columns, called, strict=True):
        truth = {str(each): _TRUTH.get(str(each).strip().lower()) for each in rows[name]}
        if other := next((each for each, value in truth.items() if value is None), None):
            row = list(map(str, rows[name])).index(other)
            raise UserError(
                f"--label_columns: '{known}' holds {other!r} ({where(row)}): expected 0 and 1"
            )
        held[name] = [truth[str(each)] for each in rows[name]]
    for truths in zip(*held.values(), strict=True):
        yield [name for name, has in zip(columns, truths, strict=True) if has]


def _of_cells(
    rows: Dataset, separator: str | None, called: str, where: Callable[[int], str]
) -> Iterator[list[str]]:
    """Yield the names in each cell."""
    theirs, types, first = _names(rows), dict[str, Any](), None
    for row, cell in enumerate(rows["label"]):
        found = _listed(cell, separator)
        if found is None or any(isinstance(each, (list, dict)) or each is None for each in found):
            instead = "" if separator else "; labels separated by commas are --label_separator ','"
            raise UserError(
                f"--label_column: '{called}' holds {cell!r} ({where(row)}): expected a "
                f"list of labels{instead}"
            )
        if theirs:
            yield [theirs[each] for each in found]
            continue
        for each in found:
            if isinstance(each, float) and not each.is_integer():
                raise UserError(
                    f"--label_column: '{called}' holds {each!r} ({where(row)}), a number with a "
                    "fraction: expected labels; numbers to be predicted are --task regression"
                )
            first = each if first is None else first
            other = types.setdefault(labels.name_of(each), each)
            if isinstance(first, str) != isinstance(each, str):
                other = first
            if type(other) is not type(each):
                raise UserError(
                    f"--label_column: '{called}' holds both {other!r} and {each!r} "
                    f"({where(row)}): expected one type; write one label in one way"
                )
        yield [name for each in found if (name := labels.name_of(each).strip())]


def _listed(cell: Any, separator: str | None) -> list[Any] | None:
    """Return the labels in a cell; None if it holds no list."""
    if isinstance(cell, list):
        return cell
    if separator is not None and not labels.is_list(str(cell)):
        return str(cell).split(separator)
    for parse in (json.loads, ast.literal_eval):
        try:
            found = parse(str(cell))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        return found if isinstance(found, list) else None
    return None
