"""Split off ``train``, ``validation`` and ``test``, so that selection never sees the test set.

Exact duplicates (white space aside) are dropped, the splits are split off, then rows are sampled.
Of many rows of which few are wanted, they are sampled first, and duplicates dropped among those.
The result depends only on a seed of its own, not on the training seed, so that runs with other
seeds stay comparable.

All of it works on numbers of rows; each split is selected once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from datasets import DatasetDict

from finetune.data import digests, near, targets
from finetune.data.division import divided
from finetune.data.keys import Keys, Numbers
from finetune.data.plan import Plan, missing, refuse_sizes
from finetune.data.repeats import Held, Values
from finetune.data.stratification import stratified
from finetune.errors import UserError, counted

#: Of a source with more rows than these, only those are checked for duplicates that are sampled.
CHECKED_WHOLE = 100_000
#: How many more rows than are wanted are sampled before duplicates are dropped: a share, and rows.
_MARGIN, _SPARE = 0.05, 10
#: The splits that a leaked row of this split was also found in.
_LEAKED_TO = {"validation": "the test set", "train": "the validation or test set"}
_NAMES = {"train": "training", "validation": "validation", "test": "test"}
_SPLITS = ("train", "validation", "test")


def three_way(
    dataset: DatasetDict, plan: Plan, *, column: str, note: Callable[[str], None]
) -> tuple[DatasetDict, str]:
    """Return the three splits, each in the order of its source, and how they were split.

    Args:
        dataset: A ``train`` split, and ``validation`` and ``test`` where the source has them, with
            ``column`` and ``label``. What is missing is split off, see
            :func:`~finetune.data.division.divided`.
        plan: How.
        column: Rows with the same value here are duplicates, also if texts differ in white space;
            the first is kept, or the oldest where the plan has a column of times. Training rows
            that also occur in the source's own test or validation set are dropped too, and so are
            validation rows that occur in its test set. The test set is left as it is.
        note: Called with sentences about the rows dropped.

    Raises:
        UserError: if no training rows are left, or if the rows cannot be split so.
    """
    refuse_sizes(dataset, plan)
    keys = Keys.of(dataset, plan, note)
    chosen, how = _Splitter(dataset, plan, column, keys).chosen(note)
    return DatasetDict(
        {
            name: digests.select(dataset[name if name in dataset else "train"], numbers)
            for name, numbers in chosen.items()
        }
    ), how


class _Splitter:
    """Decides which rows go where.

    Args:
        dataset: See :func:`three_way`.
        plan: How.
        column: Of the values.
        keys: The rows that can be used, with their groups and times.
    """

    def __init__(self, dataset: DatasetDict, plan: Plan, column: str, keys: Keys) -> None:
        self._dataset, self._plan, self._column, self._keys = dataset, plan, column, keys
        self._strata = {name: targets.strata(rows) for name, rows in dataset.items()}
        self._caps = {"train": plan.train_samples}
        self._caps |= dict.fromkeys(("validation", "test"), plan.eval_samples)
        #: The splits that are made of the rows of training, itself among them.
        self._own = ["train", *missing(dataset)]

    def chosen(self, note: Callable[[str], None]) -> tuple[Numbers, str]:
        """Return the numbers of the rows of each split, and how they were split.

        Raises:
            UserError: if no training rows are left, or if they cannot be split so.
        """
        if not self._samples_first():
            kept = self._cleaned(self._keys.numbers, note)
            pools, how = self._divided(kept["train"])
            kept |= pools
        else:
            kept, how = self._sampled(note)
        return {name: self._capped(name, kept[name]) for name in _SPLITS}, how

    def _samples_first(self) -> bool:
        """Return whether so few of many rows are wanted that the others need not be checked."""
        rows, wanted = len(self._keys.numbers["train"]), self._caps["train"]
        if rows <= CHECKED_WHOLE or wanted is None:
            return False
        taken = 0
        for name in self._own[1:]:
            size, cap = self._plan.size(name, rows, taken), self._caps[name]
            taken += size
            wanted += size if cap is None else min(cap, size)
        return 2 * wanted <= rows

    def _sampled(self, note: Callable[[str], None]) -> tuple[Numbers, str]:
        """Return as :meth:`chosen` does rows of which only those sampled were checked."""
        pools, how = self._divided(self._keys.numbers["train"])
        pools = {**self._keys.numbers, **pools}
        margin, are_enough = _MARGIN, False
        while not are_enough:
            notes: list[str] = []
            drawn = {name: self._with_margin(name, pools[name], margin) for name in _SPLITS}
            together = np.sort(np.concatenate([drawn[name] for name in self._own]))
            kept = self._cleaned({**drawn, "train": together}, notes.append)
            clean = kept["train"]
            kept |= {name: np.intersect1d(drawn[name], clean) for name in self._own}
            are_enough = all(
                cap is None or len(kept[name]) >= cap or len(drawn[name]) == len(pools[name])
                for name, cap in self._caps.items()
            )
            margin *= 4
        note(
            f"duplicates were looked for among the rows sampled ({len(together):,} of "
            f"{len(self._keys.numbers['train']):,} training rows)"
        )
        for sentence in notes:
            note(sentence)
        return kept, how

    def _divided(self, numbers: np.ndarray) -> tuple[Numbers, str]:
        return divided(numbers, self._strata["train"], self._own, self._keys, self._plan)

    def _drawn(self, name: str, numbers: np.ndarray, size: int) -> np.ndarray:
        source = "train" if name in self._own else name
        drawn = stratified(self._strata[source][numbers], size, self._plan.seed + 2)
        return np.asarray(numbers[drawn])

    def _with_margin(self, name: str, numbers: np.ndarray, margin: float) -> np.ndarray:
        """Return somewhat more rows than are wanted of a split, all where there are no more."""
        cap = self._caps[name]
        size = len(numbers) if cap is None else math.ceil((1 + margin) * cap) + _SPARE
        return numbers if size >= len(numbers) else self._drawn(name, numbers, size)

    def _capped(self, name: str, numbers: np.ndarray) -> np.ndarray:
        cap = self._caps[name]
        is_open = cap is None or cap >= len(numbers)
        return numbers if is_open or cap is None else self._drawn(name, numbers, cap)

    def _cleaned(self, numbers: Numbers, note: Callable[[str], None]) -> Numbers:
        """Return the rows of each source that can be used: no duplicates, no leaks.

        Raises:
            UserError: if no training rows are left.
        """
        held, dropped, kept = Held(), list[str](), dict[str, np.ndarray]()
        for name in ("test", "validation", "train"):  # each is cleared of what is held out so far
            if name not in self._dataset:
                continue
            rows = numbers[name]
            plain = digests.digests(self._dataset[name], self._column, rows).plain[rows]
            hashes, labels = digests.packed(plain), targets.row_keys(self._strata[name][rows])
            values = Values(hashes, labels, held)
            kept[name] = rows[self._kept(values, name, rows, dropped.append)]
            kept[name] = self._unlike(kept, name, dropped.append)
            held.add(hashes, labels)
        for sentence in dropped:
            note(sentence)
        if not len(kept["train"]):
            raise UserError(f"no training rows are left: {'; '.join(dropped)}")
        return kept

    def _kept(
        self, values: Values, name: str, rows: np.ndarray, note: Callable[[str], None]
    ) -> np.ndarray:
        """Return whether to keep each row of a split, shape ``(rows,)``."""
        leaked, contradictory = values.leaked, values.contradictory
        if count := leaked.sum():
            note(
                f"dropped {counted(count, f'{_NAMES[name]} row')} also found in {_LEAKED_TO[name]}"
                + (f" ({other:,} with a different label)" if (other := values.relabelled) else "")
            )
        several = counted(contradictory.sum(), f"{_NAMES[name]} row")
        number = len(np.unique(values.codes[contradictory]))
        same = f"same {self._column} but different labels"
        same += f" ({counted(number, self._column.removesuffix('s'))})"
        if name != "train":
            if contradictory.any():
                note(f"{several} with the {same}: no model can be right on all of them")
            return ~leaked
        times = self._keys.times
        order = None if times is None else np.argsort(times[rows], kind="stable")
        repeated = values.repeated(order) & ~leaked
        keep_first = self._plan.keep_contradictions == "first"
        if contradictory.any() and keep_first:
            lost = counted((repeated & contradictory).sum(), "row")
            note(f"{several} with the {same}: the first of each is kept, {lost} dropped")
        elif contradictory.any():
            note(
                f"dropped {several} with the {same}; --keep_contradictions first keeps one of each"
            )
        if count := (repeated & ~contradictory).sum():
            note(f"dropped {counted(count, 'exact duplicate')}")
        return np.asarray(~leaked & ~(repeated if keep_first else repeated | contradictory))

    def _unlike(self, kept: Numbers, name: str, note: Callable[[str], None]) -> np.ndarray:
        """Return the rows of a split that are not nearly the same as others, where that counts.

        Args:
            kept: The rows of this split and of those that are held out before it.
            name: Of the split.
            note: Called with sentences about the rows dropped.
        """
        before = [each for each in kept if each != name]
        held = before if self._plan.drop_overlap == "near" else []
        within = self._plan.drop_duplicates == "near" and name == "train"
        if not (held or within):
            return kept[name]
        own, times = kept[name], self._keys.times
        if times is not None and name == "train":
            own = own[np.argsort(times[own], kind="stable")]
        parts = [near.Part(self._dataset[each], kept[each]) for each in held]
        found = near.resembling(
            parts, near.Part(self._dataset[name], own), self._column, within=within
        ).row
        labels = [targets.row_keys(self._strata[each][kept[each]]) for each in held]
        mine = targets.row_keys(self._strata[name][own])
        differs = np.concatenate([*labels, mine])[found] != mine
        outside = sum(map(len, labels))
        leaked, repeated = (found >= 0) & (found < outside), found >= outside
        if count := leaked.sum():
            other = (
                f" ({lost:,} with a different label)" if (lost := (differs & leaked).sum()) else ""
            )
            note(
                f"dropped {counted(count, f'{_NAMES[name]} row')} nearly the same as rows of "
                f"{_LEAKED_TO[name]}{other}"
            )
        if count := repeated.sum():
            lost = (differs & repeated).sum()
            other = f" ({lost:,} with a different label than the row that is kept)" if lost else ""
            note(f"dropped {counted(count, 'near-duplicate')}{other}")
        return np.sort(own[found < 0])
