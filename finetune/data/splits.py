"""Make the splits ``train``, ``validation`` and ``test``.

Exact duplicates (ignoring white space) are dropped, missing splits are split off the training rows,
then rows are sampled. The result depends on ``--split_seed`` only, so that runs with different
training seeds stay comparable. These steps work on the row index, a DataFrame with one line per row
of the source; each split is selected once, at the end.

=========  ==========================================================================
``split``  the split of the source
``row``    the number of the row in its split
``label``  a code of the label: equal labels have equal codes
``group``  a code of the group, NaN for none; only with ``--group_column``
``time``   a number that orders training rows; only with ``--time_column``
=========  ==========================================================================
"""

import json
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import DatasetDict
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components

from finetune.data import arrow, targets
from finetune.data.columns import describe_columns, names_of_missing, similar_names
from finetune.data.digests import drop_repeated
from finetune.data.files_of_splits import guess_split
from finetune.data.labels import list_names
from finetune.data.prediction_columns import OF_DATA
from finetune.data.times import read_times
from finetune.errors import Findings, UserError, counted

#: The splits that are split off the training rows, in this order.
HELD_OUT = ("test", "validation")
#: Columns that other programs read the split of a row from.
_SPLIT_COLUMNS = ("split", "subset", "set", "partition")
#: A row that is in several splits is dropped from the later ones in this order.
ORDER = (*HELD_OUT, "train")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of a recipe that decide how rows are split."""

    split_seed: int = 42
    train_samples: int | None = None
    eval_samples: int | None = None
    keep_contradictions: str = "none"
    drop_duplicates: str = "exact"
    drop_overlap: str = "exact"
    validation_size: float | None = None
    test_size: float | None = None
    group_column: str | None = None
    time_column: str | None = None
    time_format: str | None = None
    drop_invalid: bool = False


def index_rows(dataset: DatasetDict, splits: list[str]) -> pd.DataFrame:
    """Return the row index of some splits, in this order: the columns ``split`` and ``row``."""
    sizes = [len(dataset[name]) for name in splits]
    return pd.DataFrame(
        {
            "split": pd.Categorical(np.repeat(splits, sizes), splits, ordered=True),
            "row": np.concatenate(list(map(np.arange, sizes))),
        }
    )


def build_index(dataset: DatasetDict, plan: Plan, report: Findings) -> pd.DataFrame:
    """Return the row index of a source, without training rows that lack a group or time, and
    without rows whose group is in an earlier split; they are reported as ``dropped_rows``.

    Args:
        dataset: The splits of the source.
        plan: How rows are split.
        report: Gets the findings.

    Raises:
        UserError: If the column is missing or unreadable, or, without ``drop_invalid``, if a
            training row lacks a group or time.
    """
    splits = [name for name in ORDER if name in dataset]
    index = index_rows(dataset, splits)
    labels: list[str] = []
    for name in splits:
        labels += map(str, targets.comparable(dataset[name]))
    index["label"] = pd.factorize(np.array(labels, dtype=object))[0]
    column = plan.group_column or plan.time_column
    kind = "group" if plan.group_column else "time"
    if column is None:
        return index
    flag = f"--{kind}_column {column}"
    train = dataset["train"]
    if f"{column}{OF_DATA}" in train.column_names:
        column += OF_DATA
    if column not in train.column_names:
        columns = describe_columns(train, column)
        raise UserError(f"{flag}: no column '{column}' in the train data{columns}")
    is_train = index["split"] == "train"
    description = f"with no {kind} in '{column}'"
    fix = "--drop_invalid leaves them out"
    if kind == "time":
        texts = _read_texts(dataset, "train", column, flag, report)
        times = read_times(texts, plan.time_format, flag, report)
        index.loc[is_train, "time"] = index["row"].map(times)
        if len(unreadable := texts[times.isna()].dropna()):
            description += f", or one like {unreadable.iloc[0]!r}"
            expected = plan.time_format or "numbers, or dates like 2024-01-31"
            fix = f"{flag} takes {expected} (--time_format %d.%m.%Y reads other forms); {fix}"
    else:
        groups = [_read_texts(dataset, split, column, flag, report) for split in splits]
        codes, names = pd.factorize(pd.concat(groups))
        _report_names(names, flag, report)
        index["group"] = np.where(codes < 0, np.nan, codes)
    is_unusable = is_train & index[kind].isna()
    rows = index["row"][is_unusable]
    targets.refuse_or_drop(report, description, fix, rows, train, "train", plan.drop_invalid)
    report.raise_errors()
    index = index[~is_unusable]
    if kind == "time":
        return index
    codes = index["split"].cat.codes
    is_shared = codes > codes.groupby(index["group"]).transform("min")
    description = f"whose '{column}' is also in held-out data"
    for split, rows in index["row"][is_shared].groupby(index["split"], observed=True):
        targets.report_rows(
            report, "dropped_rows", description, "left out", rows, dataset[split], split
        )
    return index[~is_shared]


def _report_names(names: pd.Index, flag: str, report: Findings) -> None:
    """Add a warning to ``report`` if groups differ only by case, blanks and the like, or have the
    name of a missing value.
    """
    for name in names_of_missing(names):
        report.warning(
            f"{flag}: all rows with {name!r} are one group, but it may be a missing value",
            fix="if it is one, leave the field empty, and --drop_invalid leaves these rows out",
        )
    similar = similar_names(names)
    if not similar:
        return
    examples = [" and ".join(map(ascii, spellings)) for spellings in similar[:3]]
    report.warning(
        f"{flag}: {counted(len(similar), 'group')} with several spellings, which may be in "
        f"different splits, such as {'; '.join(examples)}",
        "similar_groups",
        fix="if they are the same, make them identical in the data",
    )


def _read_texts(
    dataset: DatasetDict, split: str, column: str, flag: str, report: Findings
) -> pd.Series:
    """Return a column as texts, 3.0 as 3; blank ones are missing, and so are all if a held-out
    split has no such column.
    """
    rows = dataset[split]
    if column not in rows.column_names:
        report.info(f"{flag}: the {split} data has no such column; no rows are left out")
        return pd.Series(index=range(len(rows)), dtype=object)
    values = arrow.column(rows, column)
    if pa.types.is_nested(values.type) or pa.types.is_binary(values.type):
        raise UserError(f"{flag}: expected texts, numbers or dates, found {values.type}")
    texts: pd.Series = values.cast(pa.large_string()).to_pandas()
    if pa.types.is_floating(values.type):  # Arrow writes 4.915e+12
        numbers = values.to_pandas()
        texts = texts.where(numbers % 1 != 0, numbers.map("{:.0f}".format, na_action="ignore"))
    if isinstance(values.type, pa.JsonType):  # 1 and "1" are one group
        texts = texts.map(lambda text: str(json.loads(text)), na_action="ignore")
    texts = texts.where(texts.str.strip() != "")
    # as pandas writes whole numbers beside missing ones, databases numbers, and both dates
    texts = texts.str.replace(r"^(-?\d+)\.0+$", r"\1", regex=True)
    return texts.str.replace(r" 00:00:00(\.0+)?$", "", regex=True)


def make_splits(dataset: DatasetDict, plan: Plan, column: str, report: Findings) -> DatasetDict:
    """Return the three splits, with rows in the order of the source.

    Missing splits are split off the training rows.

    Args:
        dataset: The splits of the source.
        plan: How rows are split.
        column: The column that the model reads: rows with the same value are duplicates.
        report: Gets a finding about dropped rows, and how the rows were split.

    Raises:
        UserError: If no training rows are left, or if the rows cannot be split as the plan says.
    """
    _report_split_column(dataset, report)
    index = drop_repeated(build_index(dataset, plan, report), dataset, column, plan, report)
    if not (index["split"] == "train").any():
        reasons = (finding.message for finding in report.findings if finding.split == "train")
        raise UserError(f"no training rows are left: {'; '.join(reasons)}")
    if plan.time_column and set(HELD_OUT) <= dataset.keys():
        reason = "the data has all splits, so no rows are split off by time"
        report.info(f"--time_column {plan.time_column}: {reason}")
    if not targets.are_classes(dataset["train"]):
        index = _join_texts(index)
    strata = {name: targets.strata(rows) for name, rows in dataset.items()}
    parts, report.facts.split_how = _divide(index, dataset, plan, strata["train"])
    splits = DatasetDict()
    for name in ("train", *reversed(HELD_OUT)):
        source = name if name in dataset else "train"
        rows = index.loc[parts == name, "row"].to_numpy()
        most = plan.train_samples if name == "train" else plan.eval_samples
        if most is not None and most < len(rows):
            rows = rows[draw_rows(strata[source][rows], most, plan.split_seed + 2)]
        splits[name] = dataset[source].select(rows)
    return splits


def _report_split_column(dataset: DatasetDict, report: Findings) -> None:
    """Add a warning to ``report`` if a column names the split of each row, which is not read."""
    if len(dataset) > 1:
        return
    rows = dataset["train"]
    for column in rows.column_names:
        if column.lower() not in _SPLIT_COLUMNS:
            continue
        cells = arrow.column(rows, column)
        if not arrow.is_text(cells.type):
            continue
        values = pc.unique(cells).to_pylist()
        splits = {guess_split(value or "") for value in values}
        if len(splits) > 1 and None not in splits:
            names = list_names([value for value in values if value])
            report.warning(
                f"the column '{column}' names splits ({names}), but is not used: rows are split "
                "anew",
                fix="for these splits, write a file for each: train.csv, validation.csv, test.csv",
            )


def _join_texts(index: pd.DataFrame) -> pd.DataFrame:
    """Set groups or times in the index so that all rows with the same text stay in one split."""
    rows = index[index["split"] == "train"]
    if not rows["digest"].duplicated().any():
        return index
    if "time" in index:
        return index.assign(time=rows.groupby("digest")["time"].transform("min"))
    groups = pd.factorize(rows["group" if "group" in index else "digest"])[0]
    texts = pd.factorize(rows["digest"])[0] + groups.max() + 1
    # groups with a text in common become one
    links = coo_array((np.ones(len(rows)), (groups, texts)), (texts.max() + 1,) * 2)
    components = connected_components(links, directed=False)[1]
    return index.assign(group=pd.Series(components[groups], rows.index))


def _divide(
    index: pd.DataFrame, dataset: DatasetDict, plan: Plan, strata: np.ndarray
) -> tuple[pd.Series, str]:
    """Return the new split of each row of the index, and a description for people."""
    parts = index["split"].astype(object)
    left = train = index[index["split"] == "train"]
    kind = next((name for name in ("group", "time") if name in index), None)
    column = plan.group_column or plan.time_column
    requests = {"test": plan.test_size, "validation": plan.validation_size}
    shares = []
    for name in HELD_OUT:
        if name in dataset:
            if requests[name] is not None:
                raise UserError(f"--{name}_size: the data has a {name} split: leave the flag out")
            continue
        size = _size_of_split(name, requests, len(train), len(left))
        seed = plan.split_seed + (name == "validation")
        is_chosen = _choose_rows(left, kind, strata[left["row"]], size, seed)
        if kind and not is_chosen.any():
            noun, flag = (kind, f"--{kind}_column {column}: ") if column else ("text", "")
            raise UserError(
                f"{flag}{size:,} rows cannot be split off for {name}: the {len(left):,} rows that "
                f"are left have {counted(left[kind].nunique(), noun)}, and rows of one {noun} stay "
                "together; use more rows, another column, or a file for each split"
            )
        parts[left.index[is_chosen]] = name
        shares.append(f"{name} {is_chosen.sum() / len(train):.1%}")
        left = left[~is_chosen]
    if not shares:
        return parts, ""
    description = f"of {len(train):,} training rows split off: {', '.join(shares)}"
    if kind == "time":
        return parts, f"{description}, the newest by '{column}'"
    description += ", stratified" if strata.any() else ", at random"
    if kind == "group":
        description += f", no {column or 'text'} in two splits"
    return parts, f"{description} (seed {plan.split_seed})"


def _size_of_split(name: str, requests: dict[str, float | None], rows: int, rows_left: int) -> int:
    """Return how many of the training rows that are left are split off for ``name``."""
    requested = requests[name]
    if requested is None:
        share = 0.2 * rows if name == "test" else min(0.1 * rows_left, 10_000)
        return round(share)
    if requested < 1:
        requested *= rows
    size = round(requested)
    if not 1 < size < rows_left:
        flags = [f"--{split}_size {share:g}" for split, share in requests.items() if share]
        raise UserError(
            f"{' and '.join(flags)}: {name} would take {size:,} rows, and {rows_left:,} of "
            f"{rows:,} training rows are left; expected at least 2, and fewer"
        )
    return size


def _choose_rows(
    left: pd.DataFrame, kind: str | None, labels: np.ndarray, size: int, seed: int
) -> np.ndarray:
    """Return a mask of the rows to split off, ``size`` of them or about as many."""
    if kind == "group":
        return _split_groups(labels, pd.factorize(left["group"], sort=True)[0], size, seed)
    if kind == "time":
        # rows of one time stay together, so only about `size` rows are split off
        rows_since = left["time"].value_counts().sort_index(ascending=False).cumsum().iloc[:-1]
        newest = (rows_since - size).abs().idxmin() if len(rows_since) else np.inf
        return np.asarray(left["time"] >= newest)
    # the first row of each class stays in training, which must know every class
    is_set = labels.ndim == 2
    first = labels.argmax(axis=0) if is_set else np.unique(labels, return_index=True)[1]
    spare = np.delete(np.arange(len(labels)), first)
    is_chosen = np.zeros(len(labels), dtype=bool)
    is_chosen[spare[draw_rows(labels[spare], min(size, len(spare)), seed)]] = True
    return is_chosen


def draw_rows(labels: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Return the sorted indices of ``size`` random rows, stratified by class.

    The numbers per class follow the largest-remainder method (Hamilton's). The splitters of
    scikit-learn reject classes with a single row, and samples with fewer rows than classes.

    Args:
        labels: Class ids, shape ``(rows,)``, or indicators, shape ``(rows, classes)``.
        size: At most the number of rows.
        seed: The seed of the random numbers.
    """
    if not size:
        return np.empty(0, dtype=int)
    if labels.ndim == 2:
        return _draw_iteratively(labels, size, seed)
    generator = np.random.default_rng(seed)
    _, counts = np.unique(labels, return_counts=True)
    shares = counts * (size / len(labels))
    quota = np.floor(shares).astype(int)
    remainders = np.argsort(quota - shares, kind="stable")
    quota[remainders[: size - quota.sum()]] += 1
    members = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
    chosen = [generator.permutation(rows)[:take] for rows, take in zip(members, quota, strict=True)]
    return np.sort(np.concatenate(chosen))


def _draw_iteratively(has: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Return the indices of ``size`` rows for multi-label data, by iterative stratification.

    Sechidis, Tsoumakas and Vlahavas, On the Stratification of Multi-Label Data, ECML PKDD 2011.
    The package ``iterative-stratification`` is as good and as fast, but its sizes are not exact.
    """
    generator = np.random.default_rng(seed)
    remaining = has.sum(axis=0).astype(np.int64)
    # how many rows, and rows of each label, are still to be drawn, and to be left
    missing = np.array([size, len(has) - size])
    missing_labels = np.outer(missing / len(has), remaining)
    order = generator.permutation(len(has))
    lots = generator.random(len(has)) < 0.5
    is_left = np.ones(len(has), dtype=bool)
    is_drawn = ~is_left
    while remaining.any():
        label = int(np.argmin(np.where(remaining > 0, remaining, len(has) + 1)))
        for row in order[is_left[order] & has[order, label]]:
            need, other_need = zip(missing > 0, missing_labels[:, label], missing, strict=True)
            is_drawn[row] = need > other_need or (need == other_need and lots[row])
            is_left[row] = False
            place = 1 - int(is_drawn[row])
            missing[place] -= 1
            missing_labels[place, has[row]] -= 1
            remaining[has[row]] -= 1
    unlabelled = order[is_left[order]]
    is_drawn[unlabelled[: max(0, missing[0])]] = True
    return np.flatnonzero(is_drawn)


def _split_groups(labels: np.ndarray, groups: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Return a mask of about ``size`` rows to split off, stratified, with whole groups only.

    A greedy algorithm (0.4 s, ``StratifiedGroupKFold`` takes 20.7 s). Groups with the same number
    of rows of each class are one kind. From the largest kind to the smallest, it splits off as many
    groups of a kind as bring the rows of their classes closest to their share of the rows seen so
    far. A class never loses its last group in training; if every group has all rows of a class, no
    group is split off. ``groups`` are numbers from 0 without gaps.
    """
    if labels.ndim == 1:
        rows = np.arange(len(labels))
        classes = np.unique(labels, return_inverse=True)[1]
    else:
        rows, classes = np.nonzero(labels)
    # the size of a group is treated as one more class, the last one, that every row has
    rows = np.append(rows, np.arange(len(labels)))
    classes = np.append(classes, np.full(len(labels), classes.max(initial=-1) + 1))
    counts = csr_array((np.ones(len(rows), dtype=np.int64), (groups[rows], classes)))
    kinds: dict[tuple[bytes, bytes], list[int]] = {}
    for group in np.random.default_rng(seed).permutation(counts.shape[0]).tolist():
        cells = slice(counts.indptr[group], counts.indptr[group + 1])
        kind = counts.indices[cells].tobytes(), counts.data[cells].tobytes()
        kinds.setdefault(kind, []).append(group)
    sizes = np.bincount(groups)
    totals = counts.sum(axis=0)
    left = totals.copy()
    share = size / len(labels)
    totals_so_far, chosen_rows = np.zeros((2, len(totals)))
    chosen: list[int] = []
    for members in sorted(kinds.values(), key=lambda groups_of_kind: -sizes[groups_of_kind[0]]):
        cells = slice(counts.indptr[members[0]], counts.indptr[members[0] + 1])
        columns, numbers = counts.indices[cells], counts.data[cells]
        totals_so_far[columns] += numbers * len(members)
        missing = numbers @ (share * totals_so_far[columns] - chosen_rows[columns])
        most = min(len(members), int(((left[columns] - 1) // numbers).min()))
        number = max(0, min(most, round(missing / (numbers @ numbers))))
        chosen_rows[columns] += numbers * number
        left[columns] -= numbers * number
        chosen += members[:number]
    if not chosen:  # the group closest to `size` that does not have all rows of a class
        cells = counts.tocoo()
        has_all = np.isin(np.arange(len(sizes)), cells.row[cells.data >= totals[cells.col]])
        spare = np.flatnonzero(~has_all)
        chosen = spare[np.abs(sizes[spare] - size).argsort(kind="stable")[:1]].tolist()
    return np.isin(groups, chosen)
