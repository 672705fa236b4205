"""The row index: a pandas frame with a line for each row of a source, before any is selected.

=========  ==========================================================================
``split``  the split of the source
``row``    the number of the row in it
``label``  a code of the label: equal labels have equal codes
``group``  a code of the group, -1 for none; only with ``--group_column``
``time``   a number that orders rows; only with ``--time_column``
``digest`` a code of the text or image, white space aside, from :func:`drop_repeated`
=========  ==========================================================================
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, DatasetDict

from finetune.data import ROW, arrow, digests, near, targets
from finetune.data.digests import NOT_BLANK
from finetune.data.plan import Plan
from finetune.data.times import read_times
from finetune.errors import Report, UserError, counted, suggestion

#: Each split is cleared of rows that a split before it has.
ORDER = ("test", "validation", "train")
_LEAKED_TO = {"validation": "the test set", "train": "the validation or test set"}
_NAMES = {"train": "training", "validation": "validation", "test": "test"}
_SHOWN = 3


def build_index(dataset: DatasetDict, plan: Plan, report: Report) -> pd.DataFrame:
    """Return the index of a source, without rows that have no group or time, or a held-out group.

    Args:
        dataset: Splits with ``label`` and the columns that the plan names.
        plan: How rows are split.
        report: Gets a fact about rows that are left out.

    Raises:
        UserError: If a column is missing, or does not hold groups or times.
    """
    splits = [name for name in ORDER if name in dataset]
    sizes = [len(dataset[name]) for name in splits]
    index = pd.DataFrame(
        {
            "split": pd.Categorical(np.repeat(splits, sizes), categories=splits),
            "row": np.concatenate([np.arange(size) for size in sizes]),
            "label": _label_codes([dataset[name] for name in splits]),
        }
    )
    if plan.group_column is not None:
        index = _add_groups(index, dataset, plan, report)
    if plan.time_column is not None:
        index = _add_times(index, dataset, plan, report)
    return index


def _label_codes(parts: list[Dataset]) -> np.ndarray:
    keys: list[object] = []
    for rows in parts:
        if not targets.are_classes(rows):
            keys += targets.labels_of(rows)
        elif (strata := targets.strata(rows)).ndim == 1:
            keys += strata.tolist()
        else:
            keys += [packed.tobytes() for packed in np.packbits(strata, axis=1)]
    return pd.factorize(pd.Series(keys, dtype=object))[0]


def _add_groups(
    index: pd.DataFrame, dataset: DatasetDict, plan: Plan, report: Report
) -> pd.DataFrame:
    column, flag = str(plan.group_column), f"--group_column {plan.group_column}"
    _require_column(dataset["train"], column, flag)
    names = []
    for split in index["split"].cat.categories:
        if column in dataset[split].column_names:
            names.append(_group_names(dataset[split], column, flag))
        else:
            names.append(pa.nulls(len(dataset[split]), pa.string()))
            report.info(f"{flag}: the {split} data has no such column, and is used as it is")
    groups = pa.chunked_array(names).combine_chunks().dictionary_encode().indices
    index["group"] = groups.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    is_lacking = (index["split"] == "train") & (index["group"] < 0)
    index = _leave_out(index, is_lacking, f"with no '{column}'", flag, dataset, plan, report)
    for number, split in enumerate(index["split"].cat.categories):
        earlier = index.loc[index["split"].cat.codes < number, "group"]
        is_shared = (index["split"] == split) & index["group"].isin(earlier[earlier >= 0])
        if is_shared.any():
            rows = counted(is_shared.sum(), f"{_NAMES[split]} row")
            report.info(f"dropped {rows} whose '{column}' held-out data has too")
            index = index[~is_shared]
    if not (index["split"] == "train").any():
        raise UserError(
            f"{flag}: no training rows would be left, as every value of '{column}' is in the "
            "validation or test data too; leave the flag out, name another column, or split off "
            "other test rows by --dataset_splits test=none,validation=none"
        )
    return index


def _add_times(
    index: pd.DataFrame, dataset: DatasetDict, plan: Plan, report: Report
) -> pd.DataFrame:
    column, flag = str(plan.time_column), f"--time_column {plan.time_column}"
    rows = dataset["train"]
    _require_column(rows, column, flag)
    if {"validation", "test"} <= {*dataset}:
        report.info(f"{flag} splits nothing: the data has validation and test splits")
    is_train = index["split"] == "train"
    times = read_times(rows, column, report)
    index["time"] = np.nan
    index.loc[is_train, "time"] = times[index.loc[is_train, "row"]]
    is_lacking = is_train & index["time"].isna()
    values = arrow.column(rows, column).take(pa.array(index.loc[is_lacking, "row"])).unique()
    words = [f"'{value}'" for value in values.to_pylist() if str(value or "").strip()]
    what = f"with no time in '{column}'"
    if words:
        what += f" (but {', '.join(words[:_SHOWN])}{', ...' * (len(words) > _SHOWN)})"
    return _leave_out(index, is_lacking, what, flag, dataset, plan, report)


def _require_column(rows: Dataset, column: str, flag: str) -> None:
    names = [name for name in rows.column_names if name != ROW]
    if column not in names:
        raise UserError(
            f"{flag}: no column '{column}' in the train data{suggestion(column, names)} "
            f"(available: {', '.join(names)})"
        )


def _group_names(rows: Dataset, column: str, flag: str) -> pa.Array:
    """Return the groups of rows as texts, null where there is none."""
    values = arrow.column(rows, column).combine_chunks()
    if pa.types.is_nested(values.type) or pa.types.is_binary(values.type):
        raise UserError(f"{flag}: the column holds {values.type}; expected a text or a number")
    texts = values.cast(pa.string())
    if isinstance(rows.features[column], ClassLabel):
        return texts
    has_text = pc.match_substring_regex(texts, NOT_BLANK).fill_null(False)
    return pc.if_else(has_text, texts, pa.scalar(None, pa.string()))


def _leave_out(
    index: pd.DataFrame,
    is_lacking: pd.Series,
    what: str,
    flag: str,
    dataset: DatasetDict,
    plan: Plan,
    report: Report,
) -> pd.DataFrame:
    """Return the index without training rows that lack a value, or refuse them."""
    total, count = int((index["split"] == "train").sum()), int(is_lacking.sum())
    if not count:
        return index
    if count == total:
        raise UserError(f"{flag}: all {total:,} training rows are {what}")
    rows, numbers = dataset["train"], index.loc[is_lacking, "row"].to_numpy()[:1000]
    if ROW in rows.column_names:
        numbers = rows.select(numbers).with_format("numpy")[ROW][:]
    message = f"{count:,} of {total:,} training rows {what}"
    details = {"split": "train", "rows": numbers.tolist(), "count": count, "examined": total}
    if not plan.drop:
        report.fail(f"{flag}: {message}", fix="--drop_invalid leaves them out", **details)
    report.info(f"dropped {message}", **details)
    return index[~is_lacking]


def drop_repeated(
    index: pd.DataFrame, dataset: DatasetDict, column: str, plan: Plan
) -> tuple[pd.DataFrame, list[str]]:
    """Return the index without leaks, duplicates and contradictions, and what was dropped.

    Validation rows that the test set has are dropped, and training rows that either has. Of
    training rows with the same text and label the first stays, or the oldest. Those with the same
    text and different labels are contradictions: see ``keep_contradictions``. Numbers are no
    classes, and rows of one text that have different numbers stay by default.

    Args:
        index: Of the rows that are looked at.
        dataset: The source.
        column: What the model reads.
        plan: What to keep, and whether near duplicates are dropped too.

    Raises:
        UserError: If no training rows are left.
    """
    index = index.assign(digest=_digest_codes(index, dataset, column))
    messages: list[str] = []
    for number, split in enumerate(index["split"].cat.categories):
        held = index[index["split"].cat.codes < number]
        rows = index[index["split"] == split]
        is_leaked = rows["digest"].isin(held["digest"])
        if is_leaked.any():
            messages.append(_leak_message(rows[is_leaked], held, split))
        rows = rows[~is_leaked]
        labels = rows.groupby("digest")["label"].transform("nunique")
        is_contradictory = labels > 1
        if split == "train":
            are_numbers = not targets.are_classes(dataset[split])
            rows = _drop_duplicates(rows, is_contradictory, column, plan, are_numbers, messages)
        elif is_contradictory.any() and targets.are_classes(dataset[split]):
            messages.append(
                f"{_contradictions(rows[is_contradictory], split, column, 'labels')}: no model can "
                "be right on all of them"
            )
        rows = _drop_near(rows, held, split, dataset, column, plan, messages)
        index = pd.concat([index[index["split"] != split], rows]).sort_index()
    if not (index["split"] == "train").any():
        raise UserError(f"no training rows are left: {'; '.join(messages)}")
    return index, messages


def _digest_codes(index: pd.DataFrame, dataset: DatasetDict, column: str) -> np.ndarray:
    hashes = [
        digests.packed(
            digests.digests(
                dataset[split], column, index.loc[index["split"] == split, "row"].to_numpy()
            ).plain
        )
        for split in index["split"].cat.categories
    ]
    return np.asarray(pa.concat_arrays(hashes).dictionary_encode().indices)


def _leak_message(rows: pd.DataFrame, held: pd.DataFrame, split: str) -> str:
    labels = pd.MultiIndex.from_frame(held[["digest", "label"]])
    differing = int((~pd.MultiIndex.from_frame(rows[["digest", "label"]]).isin(labels)).sum())
    other = f" ({differing:,} with a different label)" if differing else ""
    count = counted(len(rows), f"{_NAMES[split]} row")
    return f"dropped {count} also found in {_LEAKED_TO[split]}{other}"


def _contradictions(rows: pd.DataFrame, split: str, column: str, labels: str) -> str:
    texts = counted(rows["digest"].nunique(), column.removesuffix("s"))
    count = counted(len(rows), f"{_NAMES[split]} row")
    return f"{count} with the same {column} but different {labels} ({texts})"


def _drop_duplicates(
    rows: pd.DataFrame,
    is_contradictory: pd.Series,
    column: str,
    plan: Plan,
    are_numbers: bool,
    messages: list[str],
) -> pd.DataFrame:
    """Return training rows without duplicates and contradictions, as far as the plan says so."""
    keep_first = plan.keep_contradictions == "first"
    keep_all = are_numbers and not keep_first
    ordered = rows.sort_values("time", kind="stable") if "time" in rows else rows
    is_repeated = ordered.duplicated(["digest", "label"] if keep_all else "digest").loc[rows.index]
    message = _contradictions(
        rows[is_contradictory], "train", column, "numbers" if are_numbers else "labels"
    )
    is_duplicate = is_repeated & (keep_all | ~is_contradictory)
    is_dropped = is_repeated
    if not is_contradictory.any():
        pass
    elif keep_all:
        messages.append(
            f"{message}: all are kept, in the same split; --keep_contradictions first keeps one "
            "of each"
        )
    elif keep_first:
        lost = counted(int((is_repeated & is_contradictory).sum()), "row")
        messages.append(f"{message}: the first of each is kept, {lost} dropped")
    else:
        is_dropped = is_repeated | is_contradictory
        messages.append(f"dropped {message}; --keep_contradictions first keeps one of each")
    if is_duplicate.any():
        messages.append(f"dropped {counted(int(is_duplicate.sum()), 'exact duplicate')}")
    return rows[~is_dropped]


def _drop_near(
    rows: pd.DataFrame,
    held: pd.DataFrame,
    split: str,
    dataset: DatasetDict,
    column: str,
    plan: Plan,
    messages: list[str],
) -> pd.DataFrame:
    """Return rows of a split that are not nearly the same as others, if the plan says so."""
    if plan.drop_overlap != "near":
        held = held[:0]
    within = plan.drop_duplicates == "near" and split == "train"
    if not (len(held) or within):
        return rows
    if "time" in rows:
        rows = rows.sort_values("time", kind="stable")
    parts = [
        near.Part(dataset[name], part["row"].to_numpy())
        for name, part in held.groupby("split", observed=True)
    ]
    match = near.resembling(
        parts, near.Part(dataset[split], rows["row"].to_numpy()), column, within=within
    ).row
    labels = np.concatenate([held["label"], rows["label"]])
    differs = labels[match] != rows["label"].to_numpy()
    is_leaked, is_repeated = (match >= 0) & (match < len(held)), match >= len(held)
    for is_near, what, where in (
        (is_leaked, f"{_NAMES[split]} row", f" nearly the same as rows of {_LEAKED_TO.get(split)}"),
        (is_repeated, "near-duplicate", ""),
    ):
        if is_near.any():
            differing = int((differs & is_near).sum())
            other = f" ({differing:,} with a different label than the row that is kept)"
            messages.append(
                f"dropped {counted(int(is_near.sum()), what)}{where}{other if differing else ''}"
            )
    return rows[match < 0].sort_index()
