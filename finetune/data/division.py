"""Which rows of training become the validation and test splits that a source lacks.

They are drawn by class, by group (no group is in two splits) or by time (the newest rows are the
test set, the next newest the validation set).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, DatasetDict

from finetune.data import arrow, stratification, times
from finetune.data.digests import NOT_BLANK
from finetune.data.labels import Places, row_numbers
from finetune.errors import UserError, counted, suggestion

#: By split: the numbers of its rows in their source, sorted.
Numbers = dict[str, np.ndarray]
TEST_SHARE = 0.2
VALIDATION_SHARE = 0.1
MOST_VALIDATION_ROWS = 10_000
_HELD_OUT = ("test", "validation")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How rows are split.

    Attributes:
        seed: Decides which rows go where.
        train_samples: Rows to train on, or None for all.
        eval_samples: Maximum rows of validation and of test, or None for all.
        keep_contradictions: Which training rows to keep of those with the same value but different
            classes: ``none`` or the ``first``. Numeric labels do not contradict each other.
        validation_size: Of the training rows of the source, a share below 1 or a number of rows;
            None for 10% of those left beside the test set, at most 10,000.
        test_size: Likewise; None for 20%.
        group_column: Of which no value is in two splits.
        time_column: By which the newest rows are the test set.
        drop: Whether rows without a group or a time are left out instead of refused.
        places: Returns the positions of rows of a split, by their ``id``.
    """

    seed: int = 42
    train_samples: int | None = None
    eval_samples: int | None = None
    keep_contradictions: str = "none"
    validation_size: float | None = None
    test_size: float | None = None
    group_column: str | None = None
    time_column: str | None = None
    drop: bool = False
    places: Places = row_numbers

    def size(self, name: str, rows: int, others: int = 0) -> int:
        """Return the rows of a split to be made of ``rows``, ``others`` of which are taken."""
        size = self.test_size if name == "test" else self.validation_size
        if size is not None:
            return round(size * rows) if size < 1 else int(size)
        if name == "test":
            return round(TEST_SHARE * rows)
        return min(round(VALIDATION_SHARE * (rows - others)), MOST_VALIDATION_ROWS)


def missing(dataset: Mapping[str, Dataset]) -> list[str]:
    """Return the splits that a source lacks, in the order in which they are split off."""
    return [name for name in _HELD_OUT if name not in dataset]


def refuse_sizes(dataset: DatasetDict, plan: Plan) -> None:
    """Refuse sizes of splits that the source has, and of more rows than there are.

    Raises:
        UserError: one line for each mistake.
    """
    rows, mistakes, taken = len(dataset["train"]), list[str](), 0
    for name in _HELD_OUT:
        size = plan.test_size if name == "test" else plan.validation_size
        flag = f"--{name}_size {size:g}" if size is not None else ""
        if name in dataset:
            if size is not None:
                mistakes.append(
                    f"{flag}: the data has a {name} split of {counted(len(dataset[name]), 'row')}, "
                    "which is used; leave the flag out (--eval_samples evaluates on fewer rows)"
                )
            continue
        count = plan.size(name, rows, taken)
        taken += count
        if size is not None and count < 2:
            mistakes.append(f"{flag}: {counted(count, 'row')} of {rows:,}; expected 2 or more")
        elif size is not None and taken >= rows:
            beside = f" beside {taken - count:,} of the test set" if taken > count else ""
            mistakes.append(
                f"{flag}: {counted(count, 'row')}{beside}, and the training data has {rows:,}; "
                "expected fewer, so that rows are left to train on"
            )
    if mistakes:
        raise UserError(*mistakes)


@dataclass
class Keys:
    """The rows that can be used, and what they are split by.

    Attributes:
        numbers: Of the rows of each split of the source.
        groups: The number of the group of each training row, shape ``(rows,)``, or None.
        times: The time of each training row, likewise.
        shown: Returns a time as the source has it, by a training row.
    """

    numbers: Numbers
    groups: np.ndarray | None = None
    times: np.ndarray | None = None
    shown: Callable[[int], str] = field(default=str)

    @classmethod
    def of(cls, dataset: DatasetDict, plan: Plan, note: Callable[[str], None]) -> Keys:
        """Return those of a source; rows without a group or time are refused or left out.

        Raises:
            UserError: what is wrong with the columns.
        """
        keys = cls({name: np.arange(len(rows)) for name, rows in dataset.items()})
        if plan.group_column is not None:
            keys._take_groups(dataset, plan.group_column, plan, note)
        if plan.time_column is not None:
            keys._take_times(dataset, plan.time_column, plan, note)
        return keys

    def _take_groups(
        self, dataset: DatasetDict, column: str, plan: Plan, note: Callable[[str], None]
    ) -> None:
        flag = "--group_column"
        refuse_lacking(dataset["train"], column, flag)
        names = {
            name: _names(rows, column, flag)
            for name, rows in dataset.items()
            if column in rows.column_names
        }
        lacking = _blank(names["train"])
        self._leave_out(dataset, column, lacking, f"without a {column}", flag, plan, note)
        codes = names["train"].combine_chunks().dictionary_encode().indices.fill_null(0)
        self.groups = np.asarray(codes.to_numpy(zero_copy_only=False), dtype=np.int64)
        for name, held in (
            ("validation", ["test"]), ("train", ["test", "validation"])
        ):  # fmt: skip
            theirs = [names[each] for each in held if each in names and each in dataset]
            if name not in names or not theirs:
                continue
            values = pa.chunked_array([chunk for each in theirs for chunk in each.chunks])
            shared = pc.is_in(names[name], value_set=values.drop_null()).to_numpy()
            shared = shared[self.numbers[name]]
            if shared.any():
                where = " or ".join(each for each in reversed(held) if each in names)
                note(
                    f"dropped {counted(shared.sum(), f'{name} row')} of a {column} that the "
                    f"{where} data has too"
                )
                self.numbers[name] = self.numbers[name][~shared]
        if not len(self.numbers["train"]):
            raise UserError(
                f"{flag} {column}: every {column} of the training data is in the held-out data "
                "too, so that no row is left to train on"
            )

    def _take_times(
        self, dataset: DatasetDict, column: str, plan: Plan, note: Callable[[str], None]
    ) -> None:
        flag, rows = "--time_column", dataset["train"]
        refuse_lacking(rows, column, flag)
        found = times.parsed(rows, column, flag)
        lacking = np.isnan(found.values)
        self._leave_out(dataset, column, lacking, found.lacking, flag, plan, note)
        self.times, self.shown = found.values, found.shown
        if found.remark:
            note(found.remark)
        for name in _HELD_OUT:
            if name not in dataset or column not in dataset[name].column_names:
                continue
            theirs = times.parsed(dataset[name], column, flag).values
            oldest = np.nanmin(theirs) if not np.isnan(theirs).all() else np.inf
            newer = int((self.times[self.numbers["train"]] >= oldest).sum())
            if newer:
                note(
                    f"{counted(newer, 'training row')} of {len(self.numbers['train']):,} not older "
                    f"than the oldest {name} row ({column}): the {name} split is used as it is"
                )

    def _leave_out(
        self,
        dataset: DatasetDict,
        column: str,
        lacking: np.ndarray,
        what: str,
        flag: str,
        plan: Plan,
        note: Callable[[str], None],
    ) -> None:
        """Refuse training rows that lack a value, or leave them out."""
        bad = np.flatnonzero(lacking)
        if not len(bad):
            return
        rows = dataset["train"]
        ids = rows.select(bad[:1000])["id"][:] if "id" in rows.column_names else bad.tolist()
        sentence = f"{len(bad):,} of {len(rows):,} training rows {what}"
        where = plan.places("train", [int(each) for each in ids])
        sentence += f": {where}" if where else ""
        if len(bad) == len(rows):
            raise UserError(f"{flag} {column}: all {len(rows):,} training rows are {what}")
        if not plan.drop:
            raise UserError(f"{flag} {column}: {sentence}; --drop_invalid leaves them out")
        note(f"dropped {sentence}")
        numbers = self.numbers["train"]
        self.numbers["train"] = numbers[~lacking[numbers]]


def divided(
    numbers: np.ndarray, strata: np.ndarray, names: Sequence[str], keys: Keys, plan: Plan
) -> tuple[Numbers, str]:
    """Return which training rows go into which split, and how they were split, for people.

    Args:
        numbers: The rows to be divided, sorted.
        strata: What the rows of the source are stratified by, see
            :func:`~finetune.data.targets.strata`.
        names: The splits to be made of them, ``train`` first.
        keys: The groups and times of the rows of the source.
        plan: How.

    Raises:
        UserError: if groups or times leave a split without rows.
    """
    whole, left, found = len(numbers), numbers, Numbers()
    begins = {}
    for step, name in enumerate(names[1:]):
        size, seed = plan.size(name, whole, whole - len(left)), plan.seed + (name == "validation")
        labels = strata[left]
        if keys.groups is not None:
            _, groups = np.unique(keys.groups[left], return_inverse=True)
            taken = stratification.apart_by_group(labels, groups, size, seed)
            if not taken.any():
                raise UserError(_too_few_groups(plan, name, len(names) - step, groups))
        elif keys.times is not None:
            taken = stratification.apart_by_time(keys.times[left], size)
            if not taken.any():
                raise UserError(
                    f"--time_column {plan.time_column}: all {len(left):,} rows that are left have "
                    f"the same time ({keys.shown(int(left[0]))}), so that none can be split off "
                    f"for {name}: expected several times"
                )
            newest = left[taken]
            begins[name] = keys.shown(int(newest[np.argmin(keys.times[newest])]))
        else:
            taken = stratification.apart(labels, size, seed)
        found[name], left = left[taken], left[~taken]
    return {"train": left, **found}, _told(found, plan, whole, begins, strata)


def refuse_lacking(rows: Dataset, column: str, flag: str) -> None:
    """Refuse training rows without a column.

    Raises:
        UserError: with the columns there are.
    """
    there = [name for name in rows.column_names if name != "id"]
    if column not in there:
        raise UserError(
            f"{flag}: no column '{column}' in the train data{suggestion(column, there)} "
            f"(available: {', '.join(there)})"
        )


def _names(rows: Dataset, column: str, flag: str) -> pa.ChunkedArray:
    """Return the groups of rows as texts, null where there is none."""
    stored, feature = arrow.column(rows, column), rows.features[column]
    if pa.types.is_nested(stored.type) or pa.types.is_binary(stored.type):
        kind = "lists or objects" if pa.types.is_nested(stored.type) else "bytes"
        raise UserError(f"{flag} {column}: the column holds {kind}; expected a text or a number")
    texts = stored.cast(pa.string())
    if isinstance(feature, ClassLabel):
        return texts
    is_there = pc.match_substring_regex(texts, NOT_BLANK)
    return pc.if_else(is_there.fill_null(False), texts, pa.scalar(None, pa.string()))


def _blank(values: pa.ChunkedArray) -> np.ndarray:
    return np.asarray(values.is_null().to_numpy())


def _too_few_groups(plan: Plan, name: str, needed: int, groups: np.ndarray) -> str:
    """Return why no group can be split off."""
    count = int(groups.max()) + 1
    why = (
        f"{counted(count, 'group')} for {needed} splits"
        if count < needed
        else (f"of {count} groups each has all rows of some class")
    )
    return (
        f"--group_column {plan.group_column}: no rows are left for {name}: {why}; "
        "choose another column, or give the splits as files"
    )


def _told(
    found: Numbers, plan: Plan, rows: int, begins: Mapping[str, str], strata: np.ndarray
) -> str:
    """Return how rows were split, for people; empty if nothing was split off."""
    if not found:
        return ""
    parts = [
        f"{name} {len(each) / rows:.1%}" + (f" from {begins[name]} on" if name in begins else "")
        for name, each in found.items()
    ]
    how = f"of {rows:,} training rows split off: {', '.join(parts)}"
    if plan.time_column is not None:
        return f"{how}, the newest by '{plan.time_column}'"
    alike = "stratified" if strata.any() else "at random"
    if plan.group_column is not None:
        return f"{how}, {alike}, no '{plan.group_column}' in two splits (seed {plan.seed})"
    return f"{how}, {alike} (seed {plan.seed})"
