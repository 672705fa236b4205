"""The row index: a pandas frame with a line for each row of a source, before any is selected.

=========  ==========================================================================
``split``  the split of the source
``row``    the number of the row in it
``label``  a code of the label: equal labels have equal codes
``group``  a code of the group, NaN for none; only with ``--group_column``
``time``   a number that orders rows; only with ``--time_column``
=========  ==========================================================================
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict

from finetune.data import ROW, arrow, targets
from finetune.data.digests import NOT_BLANK
from finetune.data.plan import Plan
from finetune.data.row_findings import describe_rows
from finetune.data.times import read_times
from finetune.errors import Report, UserError, suggestion

#: Each split is cleared of rows that a split before it has.
ORDER = ("test", "validation", "train")


def build_index(dataset: DatasetDict, plan: Plan, report: Report) -> pd.DataFrame:
    """Return the index of a source, without rows that have no group or time, or a held-out group.

    Args:
        dataset: Splits with ``_row``, ``label`` and the columns that the plan names.
        plan: How rows are split.
        report: Gets a finding ``dropped_rows`` about rows that are left out.

    Raises:
        UserError: If a column is missing, or does not hold groups or times.
    """
    splits = [name for name in ORDER if name in dataset]
    sizes = [len(dataset[name]) for name in splits]
    labels = [
        tuple(label) if isinstance(label, list) else label
        for name in splits
        for label in targets.values(dataset[name])
    ]
    index = pd.DataFrame(
        {
            "split": pd.Categorical(np.repeat(splits, sizes), categories=splits),
            "row": np.concatenate([np.arange(size) for size in sizes]),
            "label": pd.factorize(pd.Series(labels, dtype=object))[0],
        }
    )
    for kind, column in (("group", plan.group_column), ("time", plan.time_column)):
        names = [name for name in dataset["train"].column_names if name != ROW]
        if column is not None and column not in names:
            raise UserError(
                f"--{kind}_column {column}: no column '{column}' in the train data"
                f"{suggestion(column, names)} (available: {', '.join(names)})"
            )
    if plan.group_column is not None:
        groups = [_read_groups(dataset[name], name, plan.group_column, report) for name in splits]
        codes = pa.concat_arrays(groups).dictionary_encode().indices
        index["group"] = codes.to_numpy(zero_copy_only=False)
        index = _leave_out_missing(
            index, "group", plan.group_column, dataset["train"], plan, report
        )
        index = _leave_out_shared(index, dataset, plan, report)
    if plan.time_column is not None:
        if {"validation", "test"} <= {*dataset}:
            report.info("--time_column splits nothing: the data has validation and test splits")
        is_train = index["split"] == "train"
        index.loc[is_train, "time"] = read_times(dataset["train"], plan.time_column, report)
        index = _leave_out_missing(index, "time", plan.time_column, dataset["train"], plan, report)
    return index


def sort_by_time(index: pd.DataFrame) -> pd.DataFrame:
    """Return the index with the oldest rows first, as it is if it has no times."""
    return index.sort_values("time", kind="stable") if "time" in index else index


def select_rows(rows: Dataset, numbers: npt.ArrayLike) -> Dataset:
    """Return ``rows.select(numbers)``, or the same rows if that is all of them."""
    numbers = np.asarray(numbers)
    is_whole = len(numbers) == len(rows) and np.array_equal(numbers, np.arange(len(rows)))
    return rows if is_whole else rows.select(numbers)


def _read_groups(rows: Dataset, split: str, column: str, report: Report) -> pa.Array:
    """Return the groups of rows as texts, null where there is none."""
    flag = f"--group_column {column}"
    if column not in rows.column_names:
        report.info(f"{flag}: the {split} data has no such column, and is used as it is")
        return pa.nulls(len(rows), pa.string())
    values = arrow.column(rows, column).combine_chunks()
    if pa.types.is_nested(values.type) or pa.types.is_binary(values.type):
        raise UserError(f"{flag}: the column holds {values.type}; expected a text or a number")
    texts = values.cast(pa.string())
    is_blank = pc.invert(pc.match_substring_regex(texts, NOT_BLANK))
    return pc.if_else(is_blank, pa.scalar(None, pa.string()), texts)


def _leave_out_missing(
    index: pd.DataFrame, kind: str, column: str, rows: Dataset, plan: Plan, report: Report
) -> pd.DataFrame:
    """Return the index without training rows that lack a group or time, or refuse them."""
    is_missing = (index["split"] == "train") & index[kind].isna()
    report.add(
        *describe_rows(
            "dropped_rows",
            f"with no {kind} in '{column}'",
            "left out" if plan.drop else "--drop_invalid leaves them out",
            index["row"][is_missing],
            rows,
            "train",
            severity="info" if plan.drop else "error",
        )
    )
    report.raise_errors()
    return index[~is_missing]


def _leave_out_shared(
    index: pd.DataFrame, dataset: DatasetDict, plan: Plan, report: Report
) -> pd.DataFrame:
    """Return the index without rows whose group a split before theirs has."""
    codes = index["split"].cat.codes
    is_shared = codes > codes.groupby(index["group"]).transform("min")
    for split, rows in index["row"][is_shared].groupby(index["split"], observed=True):
        description = f"whose '{plan.group_column}' held-out data has too"
        report.add(
            *describe_rows("dropped_rows", description, "left out", rows, dataset[split], split)
        )
    return index[~is_shared]
