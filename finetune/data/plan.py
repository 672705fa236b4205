"""How the rows of a source are to be split."""

from __future__ import annotations

from dataclasses import dataclass

from datasets import DatasetDict

from finetune.errors import UserError, counted

_TEST_SHARE, _VALIDATION_SHARE, _MOST_VALIDATION_ROWS = 0.2, 0.1, 10_000
#: The splits that are split off, in this order.
HELD_OUT = ("test", "validation")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How rows are split.

    Attributes:
        seed: Decides which rows go where.
        train_samples: Rows to train on, or None for all.
        eval_samples: Maximum rows of validation and of test, or None for all.
        keep_contradictions: Which training rows to keep of those with the same text and different
            labels: ``first``, or ``none``; labels that are numbers are all kept with ``none``.
        drop_duplicates: Which training rows to leave out because others are the same: ``exact``
            ones, white space aside, or also ``near`` ones, see :mod:`finetune.data.near`.
        drop_overlap: Which to leave out because held-out rows of the source are, likewise.
        validation_size: Of the training rows of the source, a share below 1 or a number of rows;
            None for 10% of those left beside the test set, at most 10,000.
        test_size: Likewise; None for 20%.
        group_column: Of which no value is in two splits.
        time_column: By which the newest rows are the test set.
        drop: Whether rows without a group or a time are left out instead of refused.
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

    def size(self, name: str, rows: int, taken: int) -> int:
        """Return how many of ``rows``, ``taken`` of which are in a split, go to ``name``."""
        size = self.test_size if name == "test" else self.validation_size
        if size is not None:
            return round(size * rows) if size < 1 else int(size)
        if name == "test":
            return round(_TEST_SHARE * rows)
        return min(round(_VALIDATION_SHARE * (rows - taken)), _MOST_VALIDATION_ROWS)

    def check_sizes(self, dataset: DatasetDict) -> None:
        """Refuse sizes of splits that the source has, and of too few or too many rows.

        Raises:
            UserError: One line for each mistake.
        """
        rows, mistakes, taken = len(dataset["train"]), list[str](), 0
        for name in HELD_OUT:
            size = self.test_size if name == "test" else self.validation_size
            flag = f"--{name}_size {size:g}" if size is not None else ""
            if name in dataset:
                if flag:
                    mistakes.append(f"{flag}: the data has a {name} split; leave the flag out")
                continue
            count = self.size(name, rows, taken)
            taken += count
            if flag and (count < 2 or taken >= rows):
                mistakes.append(
                    f"{flag}: {counted(count, 'row')} of {rows:,}, of which {taken - count:,} are "
                    "taken; expected 2 or more, and fewer than are left"
                )
        if mistakes:
            raise UserError(*mistakes)
