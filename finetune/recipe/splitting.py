"""How rows become training, validation and test splits, and how they are corrected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from finetune.errors import UserError
from finetune.recipe.declaration import Declared
from finetune.recipe.options import option

if TYPE_CHECKING:
    from datasets import DatasetDict

    from finetune.data.corrections import Applied
    from finetune.data.plan import Plan


class Splitting(Declared):
    """Splits that a source has are used; those it lacks are split off its training rows.

    Attributes:
        input_column: The column of the raw data that the model sees; duplicates are found by it.
        split_how: How rows were split off, once they are; empty if the source has all splits.
        corrections: What each file of corrections did, once the splits are made.
    """

    input_column: ClassVar[str] = "text"
    help_group = "splits"
    train_samples: int | None = option(None, "train on this many rows, sampled by class")
    eval_samples: int | None = option(
        None, "evaluate on at most this many rows of validation and of test"
    )
    test_size: float | None = option(
        None, "size of a test set that is split off: a share or a number of rows (unset: 0.2)"
    )
    validation_size: float | None = option(
        None,
        "the same for validation, of the same rows (unset: 0.1 of those left, at most 10,000)",
    )
    group_column: str | None = option(
        None, "column of groups, such as authors or patients, that are kept within one split"
    )
    time_column: str | None = option(
        None, "column of dates or numbers: the newest rows become the test set, the next validation"
    )
    keep_contradictions: Literal["none", "first"] = option(
        "none", "training rows with the same text but different labels: drop all, or keep the first"
    )
    split_seed: int = option(42, "seed of the splits and of the sampled rows (not of the training)")
    relabel: str | None = option(
        None,
        "correct labels by a suspects.csv (of report or check) whose column new_label was filled "
        "in; several files are applied in order",
        "FILE,FILE",
    )
    exclude: str | None = option(None, "leave out all rows that such a file lists", "FILE,FILE")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.split_how = ""
        self.corrections: Sequence[Applied] = ()
        mistakes = _mistakes_of_sizes(self.test_size, self.validation_size)
        if self.group_column is not None and self.time_column is not None:
            mistakes.append(
                f"--group_column {self.group_column} and --time_column {self.time_column}: give "
                "one of the two; the newest rows of a group may be among the oldest of another"
            )
        if mistakes:
            raise UserError(*mistakes)

    def plan(self) -> Plan:
        """Return how rows are split."""
        from finetune.data.plan import Plan

        return Plan(
            seed=self.split_seed,
            train_samples=self.train_samples,
            eval_samples=self.eval_samples,
            keep_contradictions=self.keep_contradictions,
            validation_size=self.validation_size,
            test_size=self.test_size,
            group_column=self.group_column,
            time_column=self.time_column,
            drop=bool(getattr(self, "drop_invalid", False)),
        )

    def columns_read(self) -> list[str]:
        """Return the columns of the data that the model reads, in their order."""
        return [self.input_column]

    def split_columns(self) -> dict[str, str]:
        """Return the columns that rows are split by, by the options that name them."""
        columns = {"--group_column": self.group_column, "--time_column": self.time_column}
        return {flag: name for flag, name in columns.items() if name is not None}

    def split(self, dataset: DatasetDict) -> DatasetDict:
        """Return ``train``, ``validation`` and ``test``, without duplicates, then sampled."""
        from finetune.data import splits

        parts, self.split_how = splits.make_splits(
            dataset, self.plan(), column=self.input_column, report=self.report
        )
        return parts

    def correction_files(self) -> dict[str, list[str]]:
        """Return the names of the files of corrections, by the option that names them."""
        from finetune.data.comma_list import split_values

        options = {"relabel": self.relabel, "exclude": self.exclude}
        return {name: split_values(value or "") for name, value in options.items()}

    def correct(self, splits: DatasetDict, source: DatasetDict) -> DatasetDict:
        """Return the splits as the files of corrections change them."""
        files = self.correction_files()
        if not any(files.values()):
            return splits
        from finetune.data import corrections

        splits, self.corrections = corrections.apply(
            splits, source, self.input_column, report=self.report, **files
        )
        return splits


def _mistakes_of_sizes(test_size: float | None, validation_size: float | None) -> list[str]:
    """Return a line for each size that no data can be split by."""
    sizes = {"test_size": test_size, "validation_size": validation_size}
    wrong = [
        f"--{name} {size:g}: expected a share above 0 and below 1, or a number of rows, 2 or more"
        for name, size in sizes.items()
        if size is not None and not (0 < size < 1 or (size >= 2 and float(size).is_integer()))
    ]
    shares = [size for size in sizes.values() if size is not None and 0 < size < 1]
    if not wrong and sum(shares) >= 1:
        wrong.append(
            f"--test_size {test_size:g} and --validation_size {validation_size:g}: nothing is left "
            "to train on; expected shares of less than 1 together"
        )
    return wrong
