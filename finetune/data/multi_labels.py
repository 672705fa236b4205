"""Labels of which a row has any number: cells that hold several, or a column for each."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from datasets import ClassLabel, Dataset, DatasetDict, List

from finetune.data import ROW, arrow, class_labels, labels, numeric_names
from finetune.data.cells import SEPARATORS, list_in, printed, separated
from finetune.errors import UserError

#: What a cell of a column of 0 and 1 may be, in lower case if it is text.
_TRUTH: Mapping[float | str, bool] = {
    **dict.fromkeys((1.0, "true", "yes"), True),
    **dict.fromkeys((0.0, "false", "no"), False),
}
#: What to write instead of labels in one cell that cannot be read.
AS_JSON = 'write a JSON list, ["a", "b"], or a;b and --label_separator \';\''
AS_COLUMNS = "a column of 0 and 1 for each label and --label_columns"
#: Names of classes that are rather truth values: where each row has as many, one for each label.
_BITS = ({"0", "1"}, {"False", "True"})


def truth(value: Any) -> bool | None:
    """Return what a cell of a column of 0 and 1 says; None of other values."""
    number = numeric_names.number(value)
    return _TRUTH.get(str(value).strip().lower() if number is None else number)


def encode(
    dataset: DatasetDict,
    columns: Sequence[str],
    *,
    names: Sequence[str],
    renamed: Mapping[str, str],
    separator: str | None,
    shown: Sequence[str] = (),
    places: labels.Places = labels.row_numbers,
    note: Callable[[str], None] = lambda sentence: None,
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
        places: Returns the positions of rows of a split, by their row number.
        note: Called with a sentence if the separator separates nothing.

    Returns:
        The splits, and those of ``renamed`` that do not occur.

    Raises:
        UserError: if a cell cannot be read so; it names the column and the first such row.
            Also if labels are numbers with a fraction.
    """
    several = len(columns) > 1
    called = list(shown) or list(columns)
    read = {}
    for split, rows in dataset.items():
        where = functools.partial(labels.place, rows, split, places)
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
        ordered = [*dict.fromkeys(known), *sorted(merged - set(known), key=numeric_names.natural)]
    if separator is not None and several:
        note("--label_separator has no effect: a cell of --label_columns holds 0 or 1")
    elif separator is not None:
        _tell_of_no_separator(dataset, separator, called[0], note)
    number = {name: index for index, name in enumerate(ordered)}
    feature = List(ClassLabel(names=ordered))
    encoded = {}
    for split, cells in read.items():
        numbers = [sorted({number[renamed.get(each, each)] for each in cell}) for cell in cells]
        rest = dataset[split].remove_columns(list(columns))
        column = pa.array(numbers, pa.list_(pa.int64()))
        encoded[split] = arrow.with_column(rest, "label", column, feature)
    return DatasetDict(encoded), sorted(renamed.keys() - present - set(theirs))


def renumbered(rows: Dataset, names: Sequence[str], place: Callable[[int], str]) -> Dataset:
    """Return ``rows`` with the classes numbered as a model numbers them.

    Args:
        rows: Of other data.
        names: Of the classes of the model.
        place: Returns where a row is in its source, by its row number.

    Raises:
        UserError: if there are labels that the model does not know.
    """
    cells = class_labels.named(rows, ["label"], ["label"], lambda row: place(int(rows[row][ROW])))[
        "label"
    ][:]
    labels.refuse_unknown(rows, cells, names, place)
    number = {name: index for index, name in enumerate(names)}
    numbers = [sorted(number[each] for each in cell) for cell in cells]
    feature = List(ClassLabel(names=list(names)))
    column = pa.array(numbers, pa.list_(pa.int64()))
    return arrow.with_column(rows.remove_columns("label"), "label", column, feature)


def _names(rows: Dataset) -> list[str]:
    feature = rows.features["label"]
    inner = feature.feature if isinstance(feature, List) else None
    return list(inner.names) if isinstance(inner, ClassLabel) else []


def _tell_of_no_separator(
    dataset: DatasetDict, separator: str, called: str, note: Callable[[str], None]
) -> None:
    columns = (rows["label"][:] for rows in dataset.values())
    distinct = {each for column in columns for each in column if isinstance(each, str)}
    if not distinct or any(separator in each or list_in(each) for each in distinct):
        return
    other = separated(sorted(distinct))
    instead = f"; {other[1]!r} looks like --label_separator '{other[0]}'" if other else ""
    note(
        f"--label_separator '{separator}': no cell of '{called}' has it, so that no row has more "
        f"than one label{instead}"
    )


def _of_columns(
    rows: Dataset, columns: Sequence[str], called: Sequence[str], where: Callable[[int], str]
) -> Iterator[list[str]]:
    """Yield the names of the columns that hold a 1 in each row."""
    held = {}
    for name, known in zip(columns, called, strict=True):
        values = rows[name][:]
        held[name] = [truth(value) for value in values]
        if None in held[name]:
            row = held[name].index(None)
            raise UserError(
                f"--label_columns: '{known}' holds {str(values[row])!r} ({where(row)}): expected 0 "
                "and 1"
            )
    for truths in zip(*held.values(), strict=True):
        yield [name for name, has in zip(columns, truths, strict=True) if has]


def _of_cells(
    rows: Dataset, separator: str | None, called: str, where: Callable[[int], str]
) -> Iterator[list[str]]:
    """Yield the names in each cell."""
    theirs, types, first = _names(rows), dict[str, Any](), None
    column, read = rows["label"][:], list[list[str]]()
    for row, cell in enumerate(column):
        found = _listed(cell, separator)
        if found is None or any(isinstance(each, (list, dict)) or each is None for each in found):
            raise UserError(
                f"--label_column: '{called}' holds {cell!r} ({where(row)}): "
                f"{_expected(cell, separator, found or [], column)}"
            )
        if theirs:
            if beyond := [each for each in found if not 0 <= each < len(theirs)]:
                raise UserError(labels.refusal_of_number(beyond[0], theirs, called, where(row)))
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
        read.append([name for each in found if (name := labels.name_of(each).strip())])
        yield read[-1]
    if (bits := _repeated_bit(read)) is not None:
        raise UserError(
            f"--label_column: '{called}' holds {column[bits]!r} ({where(bits)}), a 0 or 1 for each "
            f"label: expected the names of the labels that a row has, or {AS_COLUMNS}"
        )


def _expected(cell: Any, separator: str | None, found: Sequence[Any], column: Sequence[Any]) -> str:
    """Return what was expected instead of a cell that holds no list of labels.

    Args:
        cell: What it holds.
        separator: Between labels, or None.
        found: The labels in it; none if it holds no list.
        column: All cells.
    """
    if None in found:
        return "a null is no label; leave it out of the list"
    if found:
        return "expected a list of labels, not of lists or objects"
    if form := printed(cell):
        return f"that is {form}; {AS_JSON}"
    lists = [each for each in map(list_in, column) if each is not None]
    if lists:
        others = [*itertools.chain(*lists)]
        are_words = any(isinstance(each, str) for each in others)
        signs = SEPARATORS if isinstance(cell, str) else ()
        sign = next((each for each in signs if each in cell), None)
        labels = [each.strip() for each in cell.split(sign)] if sign else [cell]
        written = json.dumps(list(map(str, labels)) if are_words else labels, ensure_ascii=False)
        return f"expected a list like the others; write {written}"
    if not isinstance(cell, str):
        return "expected a list of labels; one label a row is --task single_label"
    instead = "" if separator else "; labels separated by commas are --label_separator ','"
    return f"expected a list of labels{instead}"


def _repeated_bit(read: Sequence[Sequence[str]]) -> int | None:
    """Return a row that has a label twice, where all lists have a 0 or 1 for each label."""
    if len(set(map(len, read))) != 1 or {*itertools.chain(*read)} not in _BITS:
        return None
    return next((row for row, names in enumerate(read) if len({*names}) < len(names)), None)


def _listed(cell: Any, separator: str | None) -> list[Any] | None:
    """Return the labels in a cell; None if it holds no list."""
    found = list_in(cell)
    if found is None and separator is not None and not printed(cell):
        return str(cell).split(separator)
    return found
