"""The row index: a pandas frame with a line for each row of a source, before any is selected.

=========  ==========================================================================
``split``  the split of the source
``row``    the number of the row in it
``label``  a code of the label: equal labels have equal codes
``group``  a code of the group, -1 for none; only with ``--group_column``
``time``   a number that orders rows; only with ``--time_column``
=========  ==========================================================================
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, DatasetDict

from finetune.data import ROW, arrow, targets
from finetune.data.digests import NOT_BLANK
from finetune.data.plan import Plan
from finetune.data.row_findings import describe_rows
from finetune.data.times import read_times
from finetune.errors import Report, UserError, suggestion

#: Each split is cleared of rows that a split before it has.
ORDER = ("test", "validation", "train")
_SHOWN = 3


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
    if plan.group_column is not None:
        index = _add_groups(index, dataset, plan, report)
    if plan.time_column is not None:
        index = _add_times(index, dataset, plan, report)
    return index


def _add_groups(
    index: pd.DataFrame, dataset: DatasetDict, plan: Plan, report: Report
) -> pd.DataFrame:
    column, flag = str(plan.group_column), f"--group_column {plan.group_column}"
    _require_column(dataset["train"], column, flag)
    splits = index["split"].cat.categories
    names = [_group_names(dataset[split], column, flag) for split in splits]
    for split in splits:
        if column not in dataset[split].column_names:
            report.info(f"{flag}: the {split} data has no such column, and is used as it is")
    groups = pa.concat_arrays(names).dictionary_encode().indices.fill_null(-1)
    index["group"] = np.asarray(groups, dtype=np.int64)
    is_missing = (index["split"] == "train") & (index["group"] < 0)
    index = _leave_out(index, is_missing, f"with no '{column}'", dataset, plan, report)
    codes = index["split"].cat.codes
    is_shared = (index["group"] >= 0) & (codes > codes.groupby(index["group"]).transform("min"))
    for split in splits:
        report.add(
            *describe_rows(
                "dropped_rows",
                f"whose '{column}' held-out data has too",
                "left out",
                index.loc[is_shared & (index["split"] == split), "row"].to_numpy(),
                dataset[split],
                split,
            )
        )
    return index[~is_shared]


def _group_names(rows: Dataset, column: str, flag: str) -> pa.Array:
    """Return the groups of rows as texts, null where there is none."""
    if column not in rows.column_names:
        return pa.nulls(len(rows), pa.string())
    values = arrow.column(rows, column).combine_chunks()
    if pa.types.is_nested(values.type) or pa.types.is_binary(values.type):
        raise UserError(f"{flag}: the column holds {values.type}; expected a text or a number")
    texts = values.cast(pa.string())
    if isinstance(rows.features[column], ClassLabel):
        return texts
    has_text = pc.match_substring_regex(texts, NOT_BLANK).fill_null(False)
    return pc.if_else(has_text, texts, pa.scalar(None, pa.string()))


def _add_times(
    index: pd.DataFrame, dataset: DatasetDict, plan: Plan, report: Report
) -> pd.DataFrame:
    column, flag = str(plan.time_column), f"--time_column {plan.time_column}"
    rows = dataset["train"]
    _require_column(rows, column, flag)
    if {"validation", "test"} <= {*dataset}:
        report.info(f"{flag} splits nothing: the data has validation and test splits")
    is_train = index["split"] == "train"
    index["time"] = np.nan
    index.loc[is_train, "time"] = read_times(rows, column, report)[index.loc[is_train, "row"]]
    is_missing = is_train & index["time"].isna()
    values = arrow.column(rows, column).take(pa.array(index.loc[is_missing, "row"])).unique()
    words = [f"'{value}'" for value in values.to_pylist() if str(value or "").strip()]
    shown = f" (but {', '.join(words[:_SHOWN])}{', ...' * (len(words) > _SHOWN)})" if words else ""
    return _leave_out(
        index, is_missing, f"with no time in '{column}'{shown}", dataset, plan, report
    )


def _require_column(rows: Dataset, column: str, flag: str) -> None:
    names = [name for name in rows.column_names if name != ROW]
    if column not in names:
        raise UserError(
            f"{flag}: no column '{column}' in the train data{suggestion(column, names)} "
            f"(available: {', '.join(names)})"
        )


def _leave_out(
    index: pd.DataFrame,
    is_missing: pd.Series,
    description: str,
    dataset: DatasetDict,
    plan: Plan,
    report: Report,
) -> pd.DataFrame:
    """Return the index without training rows that lack a value, or refuse them."""
    findings = describe_rows(
        "dropped_rows",
        description,
        "left out" if plan.drop else "--drop_invalid leaves them out",
        index.loc[is_missing, "row"].to_numpy(),
        dataset["train"],
        "train",
        severity="info" if plan.drop else "error",
    )
    report.add(*findings)
    report.raise_errors()
    return index[~is_missing]
