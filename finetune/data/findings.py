"""Find everything that is wrong with the data, before any model is loaded."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, DatasetDict

from finetune.data import ROW, arrow, class_labels, headers, targets
from finetune.data.digests import NOT_BLANK
from finetune.data.labels import Places, listed, place, refusal_of_lists, row_numbers
from finetune.data.numeric_names import number
from finetune.data.prediction_columns import LABEL, PROBABILITY, is_own
from finetune.data.several import as_text, values_in
from finetune.errors import UserError, suggestion

_AT_ONCE = 1000  # rows in memory


def require_columns(dataset: DatasetDict, wanted: Mapping[str, Sequence[str]]) -> None:
    """Refuse missing columns, listing the available ones, and columns of the wrong type.

    Args:
        dataset: As it was read.
        wanted: The columns by the flags that name them: ``--text_column``, ``--label_columns``.

    Raises:
        UserError: if a column is missing or holds the row numbers, if it is named twice, or if
            texts are not strings.
    """
    named = [(flag, column) for flag, columns in wanted.items() for column in columns]
    flags: dict[str, str] = {}
    mistakes = []
    for flag, column in named:
        if column in flags:
            both = f"{flags[column]} and {flag} are both" if flags[column] != flag else f"{flag}:"
            twice = "" if flags[column] != flag else " is there twice"
            mistakes.append(f"{both} '{column}'{twice}")
            continue
        flags[column] = flag
        lacking = [split for split, rows in dataset.items() if column not in rows.column_names]
        if lacking:
            there = [name for name in dataset[lacking[0]].column_names if name != ROW]
            mistakes.append(
                f"{flag}: no column '{column}' in the {' and '.join(lacking)} data"
                f"{headers.separator_hint(there) or suggestion(column, there)} "
                f"(available: {', '.join(there)}){headers.hint_of_names(there)}"
            )
        elif column == ROW:
            mistakes.append(
                f"{flag} id: the toolkit numbers rows in a column of that name; rename yours"
            )
        else:
            mistakes += _of_another_kind(dataset, flag, column)
    if mistakes:
        raise UserError(*mistakes)


def _of_another_kind(dataset: DatasetDict, flag: str, column: str) -> list[str]:
    """Return a line for the first split whose column holds lists, or numbers instead of texts."""
    for split, rows in dataset.items():
        feature, where = rows.features[column], f"{flag}: the column '{column}' of the {split} data"
        nested = isinstance(feature, (dict, datasets.Sequence, datasets.LargeList))
        kind = str(getattr(feature, "dtype", "string"))
        some = [value for value in rows[:_AT_ONCE][column] if value not in (None, [])]
        if not some:
            continue
        if flag.startswith("--label_column"):
            if isinstance(some[0], dict):
                return [f"{where} holds {refusal_of_lists(some[0])}"]
            if "binary" in kind:
                return [
                    f"{where} holds bytes, such as {some[0]!r}: expected text or whole numbers; "
                    "decode them"
                ]
            continue
        if nested:
            kind = "objects" if isinstance(some[0], dict) else "lists"
        elif kind in ("string", "large_string"):
            if split != "train" or not _are_numbers(rows, column):
                continue
            kind = "numbers only"
        return [
            f"{where} holds {kind}, such as {some[0]!r}: expected text; is it the right column?"
        ]
    return []


def _are_numbers(rows: Dataset, column: str) -> bool:
    """Return whether all texts of a column are numbers; looks no further than the first other."""
    pieces = (values.drop_null() for _, values in arrow.pieces(rows, column))
    texts = (text.as_py() for values in pieces for text in values)
    return all(value is not None and math.isfinite(value) for value in map(number, texts))


def names_in(flag: str, words: Any) -> list[str]:
    """Return the columns that a flag names, by a text or a list; none if it is None.

    Raises:
        UserError: if it names fewer than two.
    """
    found = values_in(as_text(words, "NAME,NAME", flag) or "")
    if words is not None and len(found) < 2:
        raise UserError(f"{flag} {words}: expected two columns or more, separated by commas")
    return found


def without_clashes(
    dataset: DatasetDict,
    named: Sequence[str],
    split_by: Mapping[str, str] | None = None,
    *,
    note: Callable[[str], None],
) -> DatasetDict:
    """Return ``dataset`` without columns that only some splits have or that the toolkit writes.

    Args:
        dataset: Splits with the columns that are ``named``.
        named: Those of the texts and the labels.
        split_by: The columns that training rows are split by, by the options that name them; other
            splits may lack them.
        note: Called with sentences about the columns that are dropped.

    Raises:
        UserError: if training rows cannot be split by such a column.
    """
    split_by = split_by or {}
    _refuse_split_by(split_by, named, dataset["train"])
    shared = set.intersection(*(set(rows.column_names) for rows in dataset.values()))
    chosen = {ROW, *named}
    others = [name for name in dataset["train"].column_names if name not in chosen]
    taken = [name for name in others if is_own(name)]
    alone = {*shared, *taken, *split_by.values()}
    single = [name for name in others if name not in alone]
    if taken:
        note(
            f"dropped from the data: {listed(taken)} (the toolkit writes "
            f"{'a column' if len(taken) == 1 else 'columns'} of that name; rename to keep)"
        )
    if LABEL in named and PROBABILITY in taken:
        note("'label' beside 'probability' is what predict writes: are the labels predictions?")
    if single:
        note(f"dropped from the data: {listed(single)} (not in every split)")
    kept = [name for name in dataset["train"].column_names if name not in {*taken, *single}]
    return DatasetDict(
        {
            split: rows.select_columns([name for name in kept if name in rows.column_names])
            for split, rows in dataset.items()
        }
    )


def _refuse_split_by(split_by: Mapping[str, str], named: Sequence[str], rows: Dataset) -> None:
    there = [name for name in rows.column_names if name != ROW]
    mistakes = []
    for flag, column in split_by.items():
        if column in named:
            mistakes.append(f"{flag} {column}: the column holds the texts or the labels")
        elif is_own(column):
            mistakes.append(f"{flag} {column}: the toolkit writes a column of that name; rename it")
        elif column not in there:
            mistakes.append(
                f"{flag}: no column '{column}' in the train data{suggestion(column, there)} "
                f"(available: {', '.join(there)})"
            )
    if mistakes:
        raise UserError(*mistakes)


def only_valid(
    dataset: DatasetDict,
    *,
    drop: bool,
    note: Callable[[str], None],
    places: Places,
    texts: Sequence[str] = ("text",),
    labels: Sequence[str] = ("label",),
    hint: str = "",
    names: Mapping[str, str] | None = None,
) -> DatasetDict:
    """Return ``dataset`` without rows one of whose ``texts`` or ``labels`` is missing.

    Args:
        dataset: Splits with these columns.
        drop: Whether to drop such rows instead of refusing them.
        note: Called with a sentence about the rows dropped.
        places: Returns the positions of rows of a split, by their row number.
        texts: The columns of texts; none of images, which are looked at elsewhere.
        labels: The columns of labels.
        hint: Said of missing labels besides.
        names: What the user calls columns, where they were renamed.

    Raises:
        UserError: if there are such rows and ``drop`` is false; it counts and locates them.
    """
    mistakes, kept = [], {}
    for split, rows in dataset.items():
        valid = np.ones(len(rows), dtype=bool)
        for column in (*texts, *labels):
            valid_here = _are_labels(rows, column) if column in labels else _are_texts(rows, column)
            if bad := np.flatnonzero(~valid_here).tolist():
                some = rows.select(bad[:_AT_ONCE])
                usual = str | int | float | None if column in labels else str | None
                other = [value for value in some[column] if not isinstance(value, usual)]
                such = f" (but {other[0]!r})" if other else ""
                numbers = some[ROW][:] if ROW in some.column_names else bad
                where = places(split, numbers if isinstance(numbers[0], int) else bad)
                named = f"text in '{column}'" if len(texts) > 1 and column in texts else column
                own = (names or {}).get(column, column)
                without = f"without a {named}" + (f" in '{own}'" if own != column else "")
                if len(labels) > 1 and column in labels:
                    without = f"with no value in column '{column}'"
                is_hidden = column in labels and len(bad) == len(rows) and split != "train"
                mistakes.append(
                    f"{len(bad):,} of {len(rows):,} {split} rows {without}{such}: {where}"
                    f"{hint * (column in labels)}{_hidden(split) * is_hidden}"
                )
            valid &= valid_here
        kept[split] = rows if valid.all() else rows.select(np.flatnonzero(valid))
    if mistakes and not drop:
        hint = "; --drop_invalid leaves them out" * all(len(rows) for rows in kept.values())
        raise UserError(*(f"{each}{hint}" for each in mistakes))
    for each in mistakes:
        note(f"dropped {each}")
    return DatasetDict(kept)


def refuse_unlabelled(dataset: DatasetDict, column: str) -> None:
    """Refuse raw data without the input ``column``, with labels of an unsupported type, or with
    numbers of classes that have no name.

    Raises:
        UserError: for the first that is so.
    """
    for split, rows in dataset.items():
        there = ", ".join(name for name in rows.column_names if name != ROW)
        for wanted in (column, "label"):
            if wanted not in rows.column_names:
                raise UserError(f"no column '{wanted}' in the {split} data (available: {there})")
        feature = rows.features["label"]
        if not targets.is_known(feature):
            raise UserError(
                f"the column 'label' of the {split} data is neither a ClassLabel nor a floating-"
                f"point number, nor a list of these, but {feature}: this recipe only reads data in "
                "its own format"
            )
        where = functools.partial(place, rows, split, row_numbers)
        class_labels.refuse_nameless(rows, "label", "label", where)


def refuse_unusable(dataset: DatasetDict, notes: Sequence[str] = ()) -> None:
    """Refuse raw data with an empty split or a single class; ``notes`` may say why it is empty.

    Raises:
        UserError: one line for each mistake.
    """
    why = _because(notes)
    mistakes = [
        f"the {split} data has no rows{why}" for split, rows in dataset.items() if not len(rows)
    ]
    if len(dataset["train"]):
        names, seen = targets.class_names(dataset["train"]), targets.occurring(dataset["train"])
        one = ", ".join(names[each] for each in seen) if names else ""
        if targets.is_set(dataset["train"]):
            if not seen:
                mistakes.append("no training row has a label: all lists of labels are empty")
            elif targets.all_alike(dataset["train"]):
                mistakes.append(f"all training rows have the same labels ({one})")
        elif names and len(seen) < 2:
            mistakes.append(f"the training data has one class only ('{one}'): expected two or more")
    if mistakes:
        raise UserError(*mistakes)


def refuse_untrainable(
    dataset: DatasetDict,
    notes: Sequence[str] = (),
    places: Places = lambda split, rows: "",
    column: str = "label",
    renames: bool = False,
    split_by: Mapping[str, str] | None = None,
) -> None:
    """Refuse splits without rows, and those with classes that training does not have.

    Args:
        dataset: The three splits.
        notes: What the user was to be told so far: it says which rows were left out.
        places: Returns the positions of rows of a split, by their row number.
        column: What the user calls that of the labels.
        renames: Whether there is ``--label_map``.
        split_by: The columns that rows were split by, by the options that name them.

    Raises:
        UserError: one line for each mistake.
    """
    by = " ".join(" ".join(pair) for pair in (split_by or {}).items())
    names, trained = targets.class_names(dataset["train"]), targets.occurring(dataset["train"])
    other = "write them as training does, by --label_map OLD=NEW, " if renames else ""
    mistakes = []
    if len(names) > 1 and len(trained) < 2 and not targets.is_set(dataset["train"]):
        one = ", ".join(names[each] for each in trained)
        mistakes.append(
            f"the rows left for training have one class only ('{one}'){_because(notes)}"
        )
    for split in ("validation", "test"):
        if not len(dataset[split]):
            mistakes.append(f"no rows are left for {split}: {_why_none(dataset)}{_because(notes)}")
        occurring = targets.occurring(dataset[split])
        unknown = sorted(occurring - trained) if names else []
        is_hidden = set(unknown) == occurring and not by  # in all rows -1, say
        if unknown:
            mistakes.append(
                f"the {split} data has labels in '{column}' that the training data does not have: "
                f"{listed([names[label] for label in unknown])}"
                f"{_first(split, dataset[split], unknown, places)} "
                f"({by and f'the rows are split by {by}; '}{other}add training rows for them, or "
                f"leave them out){_hidden(split) * is_hidden}"
            )
    if mistakes:
        raise UserError(*mistakes)


def remarks(dataset: DatasetDict) -> list[str]:
    """Return a sentence for each held-out split of a single row."""
    return [
        f"the {split} data has one row: a score on it says nothing of other rows"
        for split in ("validation", "test")
        if len(dataset[split]) == 1
    ]


def _why_none(dataset: DatasetDict) -> str:
    """Return why no rows could be split off for evaluation."""
    rows = dataset["train"]
    classes = len(targets.occurring(rows))
    if targets.class_names(rows) and not targets.is_set(rows) and classes == len(rows):
        return f"each of the {classes:,} labels occurs once, and training needs that row"
    return "the data is too small"


def _first(split: str, rows: Dataset, unknown: Sequence[int], places: Places) -> str:
    """Return where the first row is that has one of these labels."""
    if ROW not in rows.column_names:
        return ""
    cells = arrow.column(rows, "label").to_pylist()
    lists = (each if isinstance(each, list) else [each] for each in cells)
    row = next(row for row, cell in enumerate(lists) if not set(unknown).isdisjoint(cell))
    return f", first in {shown}" if (shown := places(split, [rows[row][ROW]])) else ""


def _because(notes: Sequence[str]) -> str:
    return f" ({'; '.join(notes)})" if notes else ""


def _are_texts(rows: Dataset, column: str) -> np.ndarray:
    """Return which rows have a text that is not empty, shape ``(rows,)``."""
    valid = np.zeros(len(rows), dtype=bool)
    for numbers, values in arrow.pieces(rows, column):
        if arrow.is_text(values.type):
            is_there = pc.match_substring_regex(values, NOT_BLANK).fill_null(False)
            valid[numbers] = is_there.to_numpy(zero_copy_only=False)
        else:
            found = rows.select(numbers)[column]
            valid[numbers] = [isinstance(each, str) and bool(each.strip()) for each in found]
    return valid


def _are_labels(rows: Dataset, column: str) -> np.ndarray:
    """Return which rows have a label, shape ``(rows,)``."""
    feature, stored = rows.features[column], rows.data.column(column)
    if arrow.is_text(stored.type):
        return _are_texts(rows, column)
    if arrow.is_number(stored.type) or pa.types.is_boolean(stored.type):
        values = arrow.column(rows, column)
        valid = pc.is_valid(values)
        if isinstance(feature, ClassLabel):  # -1 is no class
            valid = pc.and_(valid, pc.greater_equal(values, 0).fill_null(False))
        elif pa.types.is_floating(values.type):
            valid = pc.and_(valid, pc.invert(pc.is_nan(values).fill_null(True)))
        return np.asarray(valid.to_numpy())
    if targets.are_sets(feature):
        cells = arrow.column(rows, column).to_pylist()
        return np.array([_is_label(each) and min(each, default=0) >= 0 for each in cells], bool)
    return np.fromiter(map(_is_label, rows[column][:]), dtype=bool, count=len(rows))


def _is_label(value: Any) -> bool:
    if isinstance(value, list):  # also an empty one: a row that has none of the labels
        return None not in value
    is_nan = isinstance(value, float) and np.isnan(value)
    return not is_nan and value is not None and bool(str(value).strip())


def _hidden(split: str) -> str:
    return f"; if its labels are hidden, --dataset_splits {split}=none does not read the split"
