"""Load rows from the Hub, from files, from Python, or from the packages of ``--embedded``.

A :class:`Source` returns its splits with all columns, and numbers their rows in :data:`ROW`.
"""

import functools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import datasets
import numpy as np
from datasets import Dataset, DatasetDict, Image, Value
from datasets.exceptions import DatasetGenerationError

from finetune.data import ROW, embedded, memory, read
from finetune.data.files_of_splits import (
    SplitFiles,
    choose_splits,
    find_files,
    folder_columns,
)
from finetune.data.prediction_columns import set_aside
from finetune.data.read_text import ReadOptions
from finetune.errors import Findings, RowPlace, UserError, counted, row_places
from finetune.runtime import formats, hub

#: ``datasets`` names the folder of a cached data set after its commit on the Hub.
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Source:
    """A data set, and the options to read it.

    Attributes:
        dataset: ``embedded:NAME``, ``memory:NAME``, a file, a pattern of files, a directory, or the
            name of a data set on the Hub.
        revision: The commit, tag or branch on the Hub; None for the newest.
        config: The configuration of a data set on the Hub.
        split_names: The names in the source of ``train``, ``validation`` and ``test``, if they
            differ; ``none`` for a split that is not read.
        options: Encoding, separator and the like of files; by default they are detected.
    """

    dataset: str
    revision: str | None = None
    config: str | None = None
    split_names: Mapping[str, str] = field(default_factory=dict)
    options: ReadOptions = field(default_factory=ReadOptions)

    @property
    def kind(self) -> str:
        """The kind of source that ``dataset`` names: none, memory, embedded, hub or local."""
        if not self.dataset:
            return "none"
        if self.dataset.startswith(memory.PREFIX):
            return "memory"
        if self.dataset.startswith(embedded.PREFIX):
            return "embedded"
        if hub.names_repository(self.dataset):
            return "hub"
        return "local"

    def describe(self) -> str:
        """Return the name with the kind of source: ``tickets.csv (local)``."""
        return {
            "none": "made by the recipe",
            "memory": f"in memory ({self.dataset.removeprefix(memory.PREFIX)})",
            "embedded": f"{self.dataset.removeprefix(embedded.PREFIX)} (installed package)",
            "local": f"{self.dataset} (local)",
            "hub": f"{self.dataset} (Hub)",
        }[self.kind]

    @functools.cached_property
    def files(self) -> SplitFiles:
        """The files of a local data set."""
        suffixes: tuple[str, ...] = formats.FILES
        if self.options.words:
            suffixes += formats.MAYBE_WORDS
        return find_files(self.dataset, self.split_names, suffixes)

    def load(self, report: Findings | None = None) -> DatasetDict:
        """Return the splits with all their columns and :data:`ROW`.

        Raises:
            UserError: If the source does not exist or cannot be read.
        """
        report = report or Findings()
        if not self.dataset:
            raise UserError("--dataset is required: this recipe has no default data set")
        options = {}
        if self.kind != "hub":
            options = {"--dataset_revision": self.revision, "--dataset_config": self.config}
        if self.options.flags and (self.kind != "local" or self.files.kind == "images"):
            options |= self.options.flags
        mistakes = []
        for flag, value in options.items():
            if value is not None:
                mistakes.append(f"{flag} {value}: does not apply to {self.describe()}")
        if mistakes:
            raise UserError(*mistakes)
        if self.kind == "local":
            facts = self.files.facts
            splits = {}
            for split, paths in self.files.files.items():
                if self.files.kind == "tables":
                    rows = self._join_files(split, paths, report)
                else:
                    rows = self._read_classes(paths, report)
                splits[split] = rows
        else:
            readers = {"memory": memory.read, "embedded": embedded.read, "hub": self._load_hub}
            stored = readers[self.kind](self.dataset)
            chosen, facts = choose_splits(self.dataset, stored, self.split_names)
            splits = {split: stored[name] for split, name in chosen.items()}
        for fact in facts:
            report.info(fact)
        return number_rows(set_aside(DatasetDict(splits), [ROW]))

    def find_places(self, split: str, rows: Sequence[int]) -> list[RowPlace]:
        """Return the place of each row, e.g. ``("line", 5)``; rows in memory are named as
        ``position 0``. ``rows`` are row numbers from 0, in any order."""
        if self.kind == "memory":
            return [("position", row) for row in rows]
        paths = self.files.files.get(split) if self.kind == "local" else None
        if not paths:
            return row_places(split, rows)
        if self.files.kind != "tables":
            return [("file", str(paths[row])) for row in rows]
        places: dict[int, RowPlace] = {}
        start = 0
        for path in paths:
            file = read.read_file(path, self.options)
            end = start + len(file.rows)
            noun = f"{path.name} {file.noun}" if len(paths) > 1 else file.noun
            for row in rows:
                if start <= row < end:
                    places[row] = noun, file.numbers[row - start]
            start = end
        return [places[row] for row in rows]

    def _join_files(self, split: str, paths: Sequence[Path], report: Findings) -> Dataset:
        """Concatenate the rows of files, with the columns in the names of folders.

        Raises:
            UserError: If the columns or types of the files differ.
        """
        tables = []
        facts: dict[str, str] = {}  # the first file of each fact
        for path in paths:
            file = read.read_file(path, self.options)
            rows = file.rows
            for name, value in folder_columns(path.relative_to(self.files.root)).items():
                if name not in rows.column_names:
                    rows = rows.add_column(name, [value] * len(rows), feature=Value("string"))
                    facts.setdefault(f"the column '{name}' is in the names of folders", path.name)
                else:
                    facts.setdefault(f"'{name}' is read from the file, not its folder", path.name)
            tables.append(rows)
            for fact in file.facts:
                facts.setdefault(fact, path.name)
            columns = rows.column_names
            expected = tables[0].column_names
            if set(columns) != set(expected):
                raise UserError(f"{path}: columns {columns}, expected {expected} as in {paths[0]}")
        for fact, name in facts.items():
            report.info(f"{name}: {fact}", name="reading", split=split)
        try:
            return datasets.concatenate_datasets(
                [table.select_columns(expected) for table in tables]
            )
        except ValueError as error:
            raise UserError(
                f"the files of the {split} split differ in column types, write them alike: {error}"
            ) from error

    def _read_classes(self, paths: Sequence[Path], report: Findings) -> Dataset:
        labels, files = [], []
        for path in paths:
            file = path.relative_to(Path(self.dataset).expanduser())
            labels.append(file.parts[self.files.class_level])
            files.append(str(file))
        rows = Dataset.from_dict({"label": labels, "file": files})
        if self.files.kind == "images":
            images = [str(path.absolute()) for path in paths]
            return rows.add_column("image", images).cast_column("image", Image())
        texts: list[str | None] = []
        other_files = defaultdict(list)  # by their encodings
        for path, name in zip(paths, files, strict=True):
            text, encoding = read.read_whole_text(path, self.options)
            texts.append(text.strip() or None)
            if encoding not in ("utf-8-sig", self.options.encoding):
                other_files[encoding].append(name)
        for encoding, names in other_files.items():
            count = counted(len(names), "file")
            report.info(f"{count} read as {encoding}, such as {names[0]} (--encoding)")
        return rows.add_column("text", texts, feature=Value("string"))

    def _load_hub(self, name: str) -> DatasetDict:
        try:
            loaded = datasets.load_dataset(name, self.config, revision=self.revision)
        except (DatasetGenerationError, OSError, ValueError) as error:  # also from Arrow
            message = f"data set '{name}' cannot be loaded: {error}"
            if "config" in str(error).lower():
                message += "; --dataset_config NAME chooses one"
            raise UserError(message) from error
        commit = find_commit(next(iter(loaded.values())))
        # offline, `datasets` returns the cached data set whatever its revision
        if _COMMIT.fullmatch(self.revision or "") and commit not in (None, self.revision):
            reason = f"the Hub was not contacted, and the cache has '{name}' at {commit}"
            raise UserError(f"--dataset_revision {self.revision}: {reason}")
        return loaded


def find_commit(rows: Dataset) -> str | None:
    """Return the Hub commit that rows were loaded from; None if they are not from the Hub."""
    folders = {Path(file["filename"]).parent.name for file in rows.cache_files}
    return next((name for name in folders if _COMMIT.fullmatch(name)), None)


def number_rows(dataset: DatasetDict) -> DatasetDict:
    """Return ``dataset`` with the column :data:`ROW`, added to splits without it."""
    numbered = DatasetDict(dataset)
    for split, rows in dataset.items():
        if ROW not in rows.column_names:
            numbered[split] = rows.add_column(ROW, np.arange(len(rows)))
    return numbered
