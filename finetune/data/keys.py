"""Which rows can be split, and the groups or times that they are split by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, DatasetDict

from finetune.data import ROW, arrow, times
from finetune.data.digests import NOT_BLANK
from finetune.data.plan import HELD_OUT, Plan
from finetune.errors import UserError, counted, suggestion

#: By split: the numbers of its rows in their source, sorted.
Numbers = dict[str, np.ndarray]
_GROUP, _TIME = "--group_column", "--time_column"


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

        Training rows of a group that a held-out split of the source has too are left out, as those
        with the same text are.

        Args:
            dataset: The splits of the source.
            plan: Names the columns.
            note: Called with sentences about rows left out.

        Raises:
            UserError: what is wrong with the columns.
        """
        keys = cls({name: np.arange(len(rows)) for name, rows in dataset.items()})
        if (column := plan.group_column) is not None:
            _refuse_lacking(dataset["train"], column, _GROUP)
            names = {
                name: group_names(rows, column)
                for name, rows in dataset.items()
                if column in rows.column_names
            }
            lacking = np.asarray(names["train"].is_null().to_numpy())
            keys._leave_out(
                lacking, f"with no '{column}'", f"{_GROUP} {column}", dataset, plan, note
            )
            keys._take_groups(names, column, note)
            for name in [each for each in dataset if each not in names]:
                note(f"{_GROUP} {column}: the {name} data has no such column, and is used as it is")
        if (column := plan.time_column) is not None:
            _refuse_lacking(dataset["train"], column, _TIME)
            found = times.parsed(dataset["train"], column, _TIME)
            lacking = np.isnan(found.values)
            keys._leave_out(lacking, found.lacking, f"{_TIME} {column}", dataset, plan, note)
            keys.times, keys.shown = found.values, found.shown
            if found.remark:
                note(found.remark)
            keys._compare_times(dataset, column, note)
        return keys

    def _take_groups(
        self, names: dict[str, pa.ChunkedArray], column: str, note: Callable[[str], None]
    ) -> None:
        codes = names["train"].combine_chunks().dictionary_encode().indices.fill_null(0)
        self.groups = np.asarray(codes.to_numpy(zero_copy_only=False), dtype=np.int64)
        held = pa.array([], pa.string())
        for name in (*HELD_OUT, "train"):  # each is cleared of the groups held out so far
            if name not in names:
                continue
            shared = pc.is_in(names[name], value_set=held).to_numpy()[self.numbers[name]]
            if count := shared.sum():
                rows = "training row" if name == "train" else f"{name} row"
                note(f"dropped {counted(count, rows)} whose '{column}' held-out data has too")
                self.numbers[name] = self.numbers[name][~shared]
            held = pa.concat_arrays([held, names[name].drop_null().unique()])
        if not len(self.numbers["train"]):
            raise UserError(
                f"{_GROUP} {column}: no training rows would be left, as every value of '{column}' "
                "is in the validation or test data too; leave the flag out, name another column, "
                "or split off other test rows by --dataset_splits test=none,validation=none"
            )

    def _compare_times(
        self, dataset: DatasetDict, column: str, note: Callable[[str], None]
    ) -> None:
        """Tell of training rows that are not older than held-out rows of the source."""
        assert self.times is not None
        given = [name for name in HELD_OUT if name in dataset]
        if len(given) == len(HELD_OUT):
            note(f"{_TIME} {column} splits nothing: the data has validation and test splits")
        own = self.times[self.numbers["train"]]
        for name in given:
            if column not in dataset[name].column_names:
                continue
            theirs = times.parsed(dataset[name], column, _TIME).values
            oldest = theirs[~np.isnan(theirs)].min(initial=np.inf)
            if newer := int((own >= oldest).sum()):
                note(
                    f"{newer:,} of {counted(len(own), 'training row')} not older than the oldest "
                    f"{name} row by '{column}': the {name} data is used as it is"
                )

    def _leave_out(
        self,
        lacking: np.ndarray,
        what: str,
        flag: str,
        dataset: DatasetDict,
        plan: Plan,
        note: Callable[[str], None],
    ) -> None:
        """Refuse training rows that lack a value, or leave them out."""
        rows, bad = dataset["train"], np.flatnonzero(lacking)
        if not len(bad):
            return
        if len(bad) == len(rows):
            raise UserError(f"{flag}: all {len(rows):,} training rows are {what}")
        ids = rows.select(bad[:1000])[ROW][:] if ROW in rows.column_names else bad.tolist()
        where = plan.places("train", [int(each) for each in ids])
        sentence = f"{len(bad):,} of {len(rows):,} training rows {what}" + (where and f": {where}")
        if not plan.drop:
            raise UserError(f"{flag}: {sentence}; --drop_invalid leaves them out")
        note(f"dropped {sentence}")
        self.numbers["train"] = self.numbers["train"][~lacking[self.numbers["train"]]]


def _refuse_lacking(rows: Dataset, column: str, flag: str) -> None:
    """Refuse training rows without a column."""
    there = [name for name in rows.column_names if name != ROW]
    if column not in there:
        raise UserError(
            f"{flag}: no column '{column}' in the train data{suggestion(column, there)} "
            f"(available: {', '.join(there)})"
        )


def group_names(rows: Dataset, column: str) -> pa.ChunkedArray:
    """Return the groups of rows as texts, null where there is none."""
    stored, feature = arrow.column(rows, column), rows.features[column]
    if pa.types.is_nested(stored.type) or pa.types.is_binary(stored.type):
        kind = "lists or objects" if pa.types.is_nested(stored.type) else "bytes"
        raise UserError(f"{_GROUP} {column}: the column holds {kind}; expected a text or a number")
    texts = stored.cast(pa.string())
    if isinstance(feature, ClassLabel):
        return texts
    is_there = pc.match_substring_regex(texts, NOT_BLANK)
    return pc.if_else(is_there.fill_null(False), texts, pa.scalar(None, pa.string()))
