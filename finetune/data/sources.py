"""Where rows come from: the Hub, files, rows in Python, or the packages of the ``embedded`` extra.

A :class:`Source` returns all columns of its splits, and numbers the rows of each in :data:`ROW`.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import (
    ClassLabel,
    Dataset,
    DatasetDict,
    Features,
    Value,
    concatenate_datasets,
    load_dataset,
    load_from_disk,
)
from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError

from finetune.data import ROW, arrow, embedded, memory
from finetune.data.files_of_splits import SplitFiles, find_files, select_splits
from finetune.data.read import (
    ReadOptions,
    line_numbers,
    read_file,
    read_whole_text,
    without_progress_bars,
)
from finetune.errors import SHOWN_PLACES, Report, UserError
from finetune.runtime import hub

#: The library names the folder of a cached data set by its commit on the Hub.
_COMMIT = re.compile(r"[0-9a-f]{40}")
#: What pandas calls an index that it writes into a Parquet file.
_INDEX = "__index_level_0__"


@dataclass(frozen=True)
class Source:
    """A data set, and how it is read.

    Attributes:
        dataset: ``embedded:NAME``, ``memory:NAME``, a file, a pattern of files, a directory, or the
            name of a data set on the Hub.
        revision: Commit, tag or branch on the Hub; the newest if None.
        config: Of a data set on the Hub that has several.
        split_names: The names in the source of ``train``, ``validation`` and ``test``, where they
            differ; ``none`` for a split that is not read.
        options: How files are written, where it is not detected.
    """

    dataset: str
    revision: str | None = None
    config: str | None = None
    split_names: Mapping[str, str] = field(default_factory=dict)
    options: ReadOptions = field(default_factory=ReadOptions)

    @property
    def kind(self) -> Literal["none", "memory", "embedded", "local", "hub"]:
        """Which kind of source the name stands for."""
        if not self.dataset:
            return "none"
        if memory.is_memory(self.dataset):
            return "memory"
        if self.dataset.startswith(embedded.PREFIX):
            return "embedded"
        return "hub" if hub.names_repository(self.dataset) else "local"

    @property
    def is_one_split(self) -> bool:
        """Whether the source is a file, or rows in Python, without splits."""
        if self.kind == "memory":
            return memory.names(self.dataset) == ["train"]
        return self.kind == "local" and Path(self.dataset).expanduser().is_file()

    def describe(self) -> str:
        """Return a short description: ``tickets.csv (local)``."""
        descriptions = {
            "none": "made by the recipe",
            "memory": memory.describe(self.dataset),
            "embedded": embedded.describe(self.dataset),
            "local": f"{self.dataset} (local)",
            "hub": f"{self.dataset} (Hub)",
        }
        return descriptions[self.kind]

    @functools.cached_property
    def files(self) -> SplitFiles:
        """The files of a local data set, as they were when they were first looked for.

        Raises:
            UserError: If there are none, or if it is not clear which they are.
        """
        return find_files(self.dataset, self.split_names)

    def load(self, report: Report | None = None) -> DatasetDict:
        """Return the splits, with all columns and :data:`ROW`, the row's number in its split.

        Args:
            report: Gets how files were read, and what was left out.

        Raises:
            UserError: If the source does not exist or cannot be read.
        """
        report = report or Report()
        self.refuse_options()
        if self.kind == "memory":
            stored = memory.read(self.dataset)
            splits = select_splits(self.dataset, stored, self.split_names, report)
        elif self.kind == "embedded":
            splits = embedded.read(self.dataset)
        elif self.kind == "hub":
            splits = select_splits(self.dataset, self._load_hub(), self.split_names, report)
        else:
            splits = self._load_files(report)
        for split, rows in splits.items():
            if ROW in rows.column_names:
                report.info(f"left out the column '{ROW}' of the {split} data: rename it")
                splits[split] = rows.remove_columns(ROW)
        return number_rows(DatasetDict(splits))

    def locate(self, split: str, rows: Sequence[int]) -> str:
        """Return where rows are: ``lines 5, 9``, ``a.csv line 3; b.csv line 2``, ``position 0``.

        Args:
            split: The split of the rows; of a split that the source does not have rows are counted.
            rows: Their numbers, from 0, at least one; the first few are named.
        """
        places = self._find_places(split, rows[:SHOWN_PLACES])
        groups = []
        for (name, noun), group in itertools.groupby(places, key=lambda place: place[:2]):
            numbers = [str(number) for _, _, number in group]
            groups.append(f"{name} {noun}{'s' * (len(numbers) > 1)} {', '.join(numbers)}".strip())
        return "; ".join(groups) + ", ..." * (len(rows) > SHOWN_PLACES)

    def list_places(self, split: str, rows: Sequence[int]) -> list[str]:
        """Return the place of each row, for :meth:`locate`; ``rows`` are in any order."""
        places = self._find_places(split, rows)
        return [f"{name} {noun} {number}".strip() for name, noun, number in places]

    def _find_places(self, split: str, rows: Sequence[int]) -> list[tuple[str, str, int | str]]:
        """Return the place of each row: the file if there are several, a unit, and a number."""
        if self.kind == "memory":
            return [("", "position", row) for row in rows]
        files = self.files if self.kind == "local" else SplitFiles("saved", {})
        paths = files.files.get(split, ())
        if files.kind == "classes":
            return [("", "file", str(paths[row])) for row in rows]
        if files.kind == "saved" or not paths:
            return [("", "row", row + 1) for row in rows]
        places: dict[int, tuple[str, str, int | str]] = {}
        start = 0
        for path in paths:
            end = start + len(read_file(path, self.options))
            if inside := [row for row in rows if start <= row < end]:
                noun, numbers = line_numbers(path, [row - start for row in inside], self.options)
                name = path.name if len(paths) > 1 else ""
                for row, number in zip(inside, numbers, strict=True):
                    places[row] = (name, noun, number)
            start = end
        return [places[row] for row in rows]

    def refuse_options(self, *, has_text: bool = True) -> None:
        """Refuse what does not apply to this kind of source, or to files without text."""
        if not self.dataset:
            raise UserError("--dataset is required: this recipe has no data set of its own")
        of_hub = {"--dataset_revision": self.revision, "--dataset_config": self.config}
        misplaced = {} if self.kind == "hub" else of_hub
        misplaced |= {} if self.kind == "local" and has_text else self.options.flags
        if self.kind == "embedded" and self.split_names:
            misplaced["--dataset_splits"] = "..."
        mistakes = [
            f"{flag} {value}: does not apply to {self.describe()}"
            for flag, value in misplaced.items()
            if value is not None
        ]
        if mistakes:
            raise UserError(*mistakes)

    def _load_files(self, report: Report) -> dict[str, Dataset]:
        files = self.files
        for fact in files.facts:
            report.info(fact)
        if files.kind == "tables":
            return {
                split: _join_files(split, paths, self.options, report)
                for split, paths in files.files.items()
            }
        if files.kind == "classes":
            return {
                split: _read_texts(paths, files.labels[split], self.options)
                for split, paths in files.files.items()
            }
        (directory,) = files.files["train"]
        try:
            saved = load_from_disk(str(directory))
        except (FileNotFoundError, ValueError, OSError) as error:
            raise UserError(f"cannot read {directory}, which datasets saved: {error}") from error
        splits = saved if isinstance(saved, DatasetDict) else {"train": saved}
        return select_splits(str(directory), splits, self.split_names, report)

    def _load_hub(self) -> DatasetDict:
        """Return a data set of the Hub, prepared once in the cache of the library."""
        name, hint = self.dataset, ""
        try:
            loaded = load_dataset(name, self.config, revision=self.revision)
        except (DatasetNotFoundError, FileNotFoundError, ConnectionError) as error:
            raise UserError(
                f"data set '{name}' is not on the Hub, nor is it a local file: {error}"
            ) from error
        except (DatasetGenerationError, OSError, ValueError) as error:  # also those of Arrow
            if isinstance(error, OSError | pa.ArrowInvalid):
                directory = hub.caches()["datasets"] / name.replace("/", "___")
                hint = f"; if its cache is damaged, remove {directory}"
            elif "config" in str(error).lower():
                hint = "; --dataset_config NAME chooses"
            raise UserError(f"data set '{name}' cannot be loaded: {error}{hint}") from error
        commit = find_commit(next(iter(loaded.values())))
        # without the Hub the library takes what is in the cache, whatever its revision
        pinned = _COMMIT.fullmatch(self.revision or "")
        if pinned and commit not in (None, self.revision):
            raise UserError(
                f"--dataset_revision {self.revision}: the cache has '{name}' at {commit}, and the "
                "Hub was not contacted"
            )
        return loaded


def find_commit(rows: Dataset) -> str | None:
    """Return the Hub commit that rows were loaded from; None if they are not from the Hub."""
    folders = {Path(file["filename"]).parent.name for file in rows.cache_files}
    return next((name for name in folders if _COMMIT.fullmatch(name)), None)


def number_rows(dataset: DatasetDict) -> DatasetDict:
    """Return ``dataset`` with :data:`ROW`, the row number from 0, in splits that lack it."""
    return DatasetDict(
        {
            split: rows if ROW in rows.column_names else rows.add_column(ROW, np.arange(len(rows)))
            for split, rows in dataset.items()
        }
    )


def _join_files(split: str, paths: Sequence[Path], options: ReadOptions, report: Report) -> Dataset:
    """Return the rows of files, one after the other.

    Raises:
        UserError: If they have other columns, or values without a common type.
    """
    tables: list[Dataset] = []
    files_of_facts: dict[str, list[str]] = {}
    for path in paths:
        file_report = Report()
        rows = _drop_index(path.name, read_file(path, options, file_report), file_report)
        tables.append(rows)
        for finding in file_report.findings:
            fact = finding.message.removeprefix(path.name)
            files_of_facts.setdefault(fact, []).append(path.name)
        columns, columns_of_file = {*tables[0].column_names}, {*rows.column_names}
        if columns != columns_of_file:
            lacks = [
                f" lacks '{name}' that {paths[0]} has;"
                for name in sorted(columns - columns_of_file)
            ]
            has = [
                f" has '{name}' that {paths[0]} lacks;"
                for name in sorted(columns_of_file - columns)
            ]
            raise UserError(
                f"{path}{''.join(lacks + has)} give all files of a split the same columns"
            )
    for fact, names in files_of_facts.items():
        rest = f" (and {len(names) - 1:,} more files)" * (len(names) > 1)
        report.info(f"{names[0]}{fact}{rest}", name="reading", split=split)
    features = _common_features(paths, tables)
    parts = [table.select_columns(list(features)) for table in tables]
    with without_progress_bars():
        return concatenate_datasets(
            [part if part.features == features else part.cast(features) for part in parts]
        )


def _common_features(paths: Sequence[Path], tables: Sequence[Dataset]) -> Features:
    """Return types that hold the values of all files: fractions where some have whole numbers."""
    features = Features(tables[0].features)
    for path, table in zip(paths, tables, strict=True):
        for column, kind in table.features.items():
            kinds = [features[column], kind]
            if kinds[0] == kind:
                continue
            try:
                if any(isinstance(kind, ClassLabel) for kind in kinds):  # in Arrow a number
                    raise pa.ArrowTypeError("the classes differ")
                schemas = [Features({column: kind}).arrow_schema for kind in kinds]
                merged = pa.unify_schemas(schemas, promote_options="permissive")
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise UserError(
                    f"the column '{column}' is {kinds[0]} in {paths[0]} and {kind} in {path}: "
                    "write it alike in all files of a split"
                ) from error
            features[column] = Features.from_arrow_schema(arrow.stored(merged))[column]
    return features


def _read_texts(paths: Sequence[Path], labels: Sequence[str], options: ReadOptions) -> Dataset:
    """Return the texts of files, their labels, and their paths."""
    states = [
        (str(path), label, path.stat().st_mtime_ns, path.stat().st_size)
        for path, label in zip(paths, labels, strict=True)
    ]
    try:
        with without_progress_bars():
            return Dataset.from_generator(
                _generate_texts,
                features=Features({name: Value("string") for name in ("text", "label", "file")}),
                gen_kwargs={"states": tuple(states), "options": options},
            )
    except DatasetGenerationError as error:
        raise (error.__cause__ or error) from None


def _generate_texts(states: Sequence[Any], options: ReadOptions) -> Iterator[dict[str, str | None]]:
    """Yield a row for each file; ``states`` also have what tells the cache that one has changed."""
    for name, label, _, _ in states:
        text = read_whole_text(Path(name), options).strip()
        yield {"text": text or None, "label": label, "file": name}


def _drop_index(name: str, rows: Dataset, report: Report) -> Dataset:
    """Return the rows of a file without a column that only numbers them, as pandas writes it."""
    names = rows.column_names
    index = _INDEX if _INDEX in names else names[0]
    if index not in ("", "Unnamed: 0", _INDEX) or len(names) == 1:
        return rows
    try:
        numbers = arrow.column(rows, index).cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return rows
    if numbers.null_count or pc.count_distinct(numbers).as_py() < len(rows):
        return rows
    title = f"the column '{index}'" if index == _INDEX else "the first column, without a name"
    report.info(f"{name}: left out {title}, which only numbers the rows")
    return rows.remove_columns([index])


def names_are_values(rows: Dataset, columns: Sequence[str]) -> str | None:
    """Return the name of a column that is also a value in it: the first line is probably a row."""
    for column in columns:
        values = rows.data.column(column) if column in rows.column_names else pa.array([])
        if arrow.is_text(values.type) and pc.any(pc.equal(values, column)).as_py():
            return column
    return None
