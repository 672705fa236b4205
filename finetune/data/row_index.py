"""The row index: a pandas frame with a line for each row of a source, before any is selected.

=========  ==========================================================================
``split``  the split of the source
``row``    the number of the row in it
``label``  a code of the label: equal labels have equal codes
``group``  a code of the group, NaN for none; only with ``--group_column``
``time``   a number that orders training rows; only with ``--time_column``
=========  ==========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict

from finetune.data import arrow, targets
from finetune.data.columns import describe_columns
from finetune.data.row_findings import report_rows
from finetune.errors import Report, UserError

#: The splits that are split off, in this order.
HELD_OUT = ("test", "validation")
#: Each split is cleared of rows that a split before it has.
ORDER = (*HELD_OUT, "train")
_TIMES = "expected numbers, or dates like 2024-01-31"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How rows are split: the options of a recipe that have these names.

    Attributes:
        seed: ``--split_seed``.
        drop: ``--drop_invalid``: rows without a group or a time are left out instead of refused.
    """

    seed: int = 42
    train_samples: int | None = None
    eval_samples: int | None = None
    keep_contradictions: str = "none"
    drop_duplicates: str = "exact"
    drop_overlap: str = "exact"
    validation_size: float | None = None
    test_size: float | None = None
    group_column: str | None = None
    time_column: str | None = None
    drop: bool = False


def build_index(dataset: DatasetDict, plan: Plan, report: Report) -> pd.DataFrame:
    """Return the index of a source, without rows that have no group or time, or a held-out group.

    ``report`` gets a finding ``dropped_rows`` about rows that are left out.

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
    column, kind = plan.group_column or plan.time_column, "group" if plan.group_column else "time"
    if column is None:
        return index
    flag, train = f"--{kind}_column {column}", dataset["train"]
    if column not in train.column_names:
        columns = describe_columns(train, column)
        raise UserError(f"{flag}: no column '{column}' in the train data{columns}")
    is_train = index["split"] == "train"
    if kind == "group":
        index["group"] = _read_groups(dataset, column, flag, report)
    else:
        index.loc[is_train, "time"] = _read_times(train, column, flag)
    is_missing = is_train & index[kind].isna()
    report_dropped = partial(report_rows, report, "dropped_rows")
    description, positions = f"with no {kind} in '{column}'", index["row"][is_missing]
    if plan.drop:
        report_dropped(description, "left out", positions, train, "train", severity="info")
    else:
        fix = "--drop_invalid leaves them out"
        report_dropped(description, fix, positions, train, "train", severity="error")
    report.raise_errors()
    index = index[~is_missing]
    if kind == "time":
        return index
    codes = index["split"].cat.codes
    is_shared = codes > codes.groupby(index["group"]).transform("min")
    description = f"whose '{column}' held-out data has too"
    for split, rows in index["row"][is_shared].groupby(index["split"], observed=True):
        report_dropped(description, "left out", rows, dataset[split], split)
    return index[~is_shared]


def _read_groups(dataset: DatasetDict, column: str, flag: str, report: Report) -> np.ndarray:
    """Return a code of the group of each row, NaN where there is none."""
    groups = []
    for split, rows in ((name, dataset[name]) for name in ORDER if name in dataset):
        if column in rows.column_names:
            groups.append(_read_texts(rows, column, flag, "expected texts or numbers"))
        else:
            report.info(f"{flag}: the {split} data has no such column, and is used as it is")
            groups.append(pa.nulls(len(rows), pa.string()))
    codes = pa.concat_arrays(groups).dictionary_encode().indices
    return np.asarray(codes.to_numpy(zero_copy_only=False))


def _read_texts(rows: Dataset, column: str, flag: str, expected: str) -> pa.StringArray:
    """Return a column as texts; those of blanks are missing."""
    values = arrow.column(rows, column).combine_chunks()
    if pa.types.is_nested(values.type) or pa.types.is_binary(values.type):
        raise UserError(f"{flag}: holds {values.type}; {expected}")
    texts = values.cast(pa.string())
    has_text = pc.not_equal(pc.utf8_trim_whitespace(texts), "")
    return pc.if_else(has_text, texts, pa.scalar(None, pa.string()))


def _read_times(rows: Dataset, column: str, flag: str) -> np.ndarray:
    """Return the time of each row, shape ``(rows,)``: numbers as they are, dates in microseconds.

    Texts are numbers, or dates of ISO 8601. A missing time, or one of few texts that are neither,
    is NaN.
    """
    kind = rows.data.schema.field(column).type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _microseconds(pd.to_datetime(arrow.column(rows, column).to_pandas(), utc=True))
    codes, distinct = pd.factorize(_read_texts(rows, column, flag, _TIMES).to_pandas())
    texts = pd.Series(distinct, dtype=object).str.strip()
    times = pd.to_numeric(texts, errors="coerce").to_numpy(np.float64, copy=True)
    times[~np.isfinite(times)] = np.nan
    is_sorted_wrong = False
    if np.isnan(times).any() and arrow.is_text(kind):
        times = _microseconds(pd.to_datetime(texts, format="ISO8601", utc=True, errors="coerce"))
    else:  # numbers like 31012024, which are dates, would be sorted by their day
        forms = ("%Y%m%d", "%d%m%Y", "%m%d%Y")
        dates = [pd.to_datetime(texts.str.zfill(8), format=f, errors="coerce") for f in forms]
        is_iso, *are_others = (date.dt.year.between(1900, 2100).all() for date in dates)
        is_sorted_wrong = not is_iso and any(are_others)
    if len(texts) and (is_sorted_wrong or 2 * np.isfinite(times).sum() <= len(texts)):
        raise UserError(f"{flag}: holds {texts[0]!r}; {_TIMES}")
    return np.append(times, np.nan)[codes]  # the code of a missing text is -1


def _microseconds(dates: pd.Series) -> np.ndarray:
    times = dates.dt.as_unit("us").astype("int64").where(dates.notna())
    return np.array(times, dtype=np.float64)
