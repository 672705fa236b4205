"""A prediction request: a run, an input, the columns to read and the columns to add."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from finetune.data.columns import parse_names
from finetune.data.images import decode
from finetune.data.read_text import ReadOptions, refuse_half_characters
from finetune.errors import Report, UserError, counted, suggestion
from finetune.predicting.inputs import (
    CHUNK_ROWS,
    STANDARD_INPUT,
    Rows,
    cells,
    frame_values,
    open_table,
    read_lines,
)
from finetune.predicting.options import Options, find_mistakes
from finetune.predicting.predictor import Predictor, default_precision
from finetune.recipe import ImageRecipe, Recipe, TextRecipe
from finetune.runs.run import Run
from finetune.runtime import formats


def text_names(recipe: Recipe, options: Mapping[str, Any]) -> list[str]:
    """Return the names of the columns of an input without names, such as standard input."""
    if isinstance(recipe, TextRecipe) and recipe.text_columns is not None:
        return parse_names("--text_columns", options.get("text_columns")) or recipe.columns_read()
    return [recipe.input_column]


class Request:
    """A checked prediction request.

    Args:
        run: Whose model predicts.
        source: A frame, or the name of a file, a folder, an image or the standard input.
        options: Those of :class:`~finetune.predicting.options.Options`, by name.

    Raises:
        UserError: If an option is unknown, or needs something that the run or the input lacks.

    Attributes:
        name: Of the input, as the user typed it.
        kind: The suffix of a file; ``-`` for standard input, ``frame``, or ``folder`` of images or
            a single one.
        rows: Those of the input; of standard input there are none.
        total: The number of rows; None for standard input.
        columns_read: The input columns that the model reads.
        added: Names of the added columns, none of which the input has.
        precision: Of the computation.
    """

    def __init__(
        self, run: Run, source: str | Path | pd.DataFrame, options: Mapping[str, Any]
    ) -> None:
        run.require_model()
        if mistakes := find_mistakes(options):
            raise UserError(*mistakes)
        self.run, self.options = run, Options(**options)
        self._task, self._recipe = run.kind, run.recipe(scores=False)
        self.kind, self.name, self._report = STANDARD_INPUT, STANDARD_INPUT, Report()
        self.rows: Rows = {}
        self.total: int | None = None
        self._names, self._reading = text_names(self._recipe, options), ReadOptions()
        if isinstance(source, pd.DataFrame):
            self.kind, self.name, self.rows = "frame", "the data", frame_values(source)
            self._names, self.total = list(source.columns), len(source)
        elif str(source) != STANDARD_INPUT:
            is_delimited = formats.suffix(source) in formats.SEPARATORS
            default = run.manifest.options.get("csv_quoting") if is_delimited else None
            self._reading = ReadOptions(
                quoting=str(self.options.csv_quoting or default or "auto"),
                separator=self.options.csv_separator,
                encoding=self.options.encoding,
                sheet=self.options.sheet,
            )
            self.name = str(Path(source).expanduser())
            self.kind, self.rows = open_table(str(source), self._reading, self._report)
            self._names, self.total = self.rows.column_names, len(self.rows)
        mistakes = []
        if self.options.all_probabilities and not self._task.has_probabilities:
            mistakes.append("--all_probabilities: the run predicts a number, it has no classes")
        if self.options.calibrated and run.manifest.temperature is None:
            mistakes.append(f"--calibrated: {run.path} has no temperature (status {run.status})")
        if self.kind in (STANDARD_INPUT, "folder", "frame"):
            reading = ("csv_quoting", "csv_separator", "encoding", "sheet")
            given = [name for name in reading if getattr(self.options, name)]
            mistakes += [f"--{name}: {self.name} is no file" for name in given]
        if mistakes:
            raise UserError(*mistakes)
        self.columns_read = self._choose_columns()
        self.added = self._task.predicted_names(all_labels=self.options.all_probabilities)
        for number, name in enumerate(self.added):
            while name in self._names:
                name = f"predicted {name}"
            self.added[number] = name
        temperature = run.manifest.temperature if self.options.calibrated else None
        self._temperature = float(temperature or 1.0)
        self.precision = self.options.precision or default_precision(run)
        trained_with = run.manifest.arguments.get("cpu_kernels", "auto")
        self._cpu_kernels = self.options.cpu_kernels or trained_with

    def _choose_columns(self) -> list[str]:
        """Return those asked for, else those of the run if the input has them, else usual ones."""
        recipe, options, names = self._recipe, self.options, self._names
        is_image, is_folder = isinstance(recipe, ImageRecipe), self.kind == "folder"
        is_text = isinstance(recipe, TextRecipe) or options.text_column or options.text_columns
        if (is_text and (is_image or is_folder)) or (options.image_column and not is_image):
            raise UserError(
                f"{self.run.path} reads {'images' if is_image else 'text'}: expected such an "
                f"INPUT, and {'--image_column' if is_image else '--text_column'}"
            )
        if is_folder:
            return ["file"]
        flag, columns = "--text_column", [options.text_column or recipe.input_column]
        if isinstance(recipe, ImageRecipe):
            usual = (recipe.image_column, "image", "file")
            default = next((name for name in usual if name in names), recipe.input_column)
            flag, columns = "--image_column", [options.image_column or default]
        elif isinstance(recipe, TextRecipe):
            recipe.refuse_other_columns(self.run.path, options.text_column, options.text_columns)
            if recipe.text_columns is not None:
                flag, columns = "--text_columns", text_names(recipe, vars(options))
            elif not options.text_column and recipe.text_column in names:
                columns = [recipe.text_column]
        if mistakes := [
            f"{flag}: no column '{column}' in {self.name}{suggestion(column, names)} "
            f"(available: {', '.join(map(str, names))})"
            for column in columns
            if column not in names
        ]:
            raise UserError(*mistakes)
        return columns

    @property
    def columns(self) -> list[str]:
        """The columns of the output."""
        return [*self._names, *self.added]

    def notes(self, missing: int) -> list[str]:
        """Return sentences for the user at the end, when ``missing`` rows have no prediction."""
        notes = [note for note in (self.run.unfinished, *self._report.sentences("info")) if note]
        if renamed := [name for name in self.added if name.startswith("predicted ")]:
            notes.append(f"the input already has columns of these names: see {', '.join(renamed)}")
        if missing:
            columns = " or ".join(f"'{name}'" for name in self.columns_read)
            rows = counted(missing, "row")
            notes.append(f"{rows} without a value in {columns}: their predictions are empty")
        return notes

    def facts(self) -> dict[str, Any]:
        """Return everything that the predictions depend on, by names that a user knows."""
        weights = sorted(self.run.path.glob("*.safetensors"))
        return {
            f"INPUT {self.name}": _stamp(Path(self.name)),
            f"the model of {self.run.path}": [_stamp(path) for path in weights],
            "the columns read": self.columns_read,
            "how the file is read": str(self._reading),
            "the columns added": self.added,
            "the temperature": self._temperature,
            "--precision": self.precision,
            "--cpu_kernels": self._cpu_kernels,
            "--csv_safe": self.options.csv_safe,
            "the rows of a part": CHUNK_ROWS,
        }

    def predict(
        self,
        progress: Callable[[int], object],
        rank: int = 0,
        world_size: int = 1,
        complete: Container[int] = (),
    ) -> Iterator[tuple[int, Any, pa.Table]]:
        """Predict the input chunk by chunk.

        Args:
            progress: Called with the number of rows done so far.
            rank: Of this process.
            world_size: The number of processes.
            complete: The numbers of the chunks that were predicted before.

        Yields:
            Number and rows of a chunk of this process, and the columns that are added to them.

        Raises:
            UserError: If a row holds what the model cannot read.
        """
        predictor = Predictor(
            self.run, self.precision, self.options.batch_tokens, self._cpu_kernels
        )
        waiting: deque[tuple[int, Any, np.ndarray]] = deque()

        def chunks() -> Iterator[list[Any]]:
            for number, rows in self._chunks(rank, world_size, complete):
                values = self._values(number, rows)
                waiting.append((number, rows, np.array([value is not None for value in values])))
                yield [value for value in values if value is not None]

        done, reads_ahead = 0, self.kind != STANDARD_INPUT  # a line is answered at once
        for logits in predictor.stream(chunks(), reads_ahead=reads_ahead):
            number, rows, has_value = waiting.popleft()
            done += len(has_value)
            progress(done)
            yield number, rows, self._added_columns(logits, has_value)

    def _chunks(
        self, rank: int, world_size: int, complete: Container[int]
    ) -> Iterator[tuple[int, Rows]]:
        """Yield the numbers and rows of the chunks of one process that are not complete."""
        if self.total is None:
            yield from enumerate(read_lines(self._names))
            return
        for number in range(rank, -(-self.total // CHUNK_ROWS), world_size):
            start, end = number * CHUNK_ROWS, (number + 1) * CHUNK_ROWS
            if number in complete:
                continue
            if isinstance(self.rows, pa.Table):
                yield number, self.rows.slice(start, CHUNK_ROWS)
            else:
                yield number, {name: values[start:end] for name, values in self.rows.items()}

    def _values(self, number: int, rows: Rows) -> list[Any]:
        """Return what the model reads of each row: a value, a tuple, or None if it is missing."""
        columns = [cells(rows, name) for name in self.columns_read]
        if isinstance(self._recipe, ImageRecipe):
            return [self._image(value) for value in columns[0]]
        if self.kind == "folder":
            images = [self._image(value) for value in columns[0]]
            for image in images:  # else Pillow's error would name no file
                decode(image, "an image")
            return images
        for name, values in zip(self.columns_read, columns, strict=True):
            is_text = isinstance(self._recipe, TextRecipe)
            for row, value in enumerate(values if is_text else (), number * CHUNK_ROWS + 1):
                place = f"{self.name}, row {row}"
                if value is not None and not isinstance(value, str):
                    raise UserError(f"{place}: expected a text in '{name}', found {value!r}")
                if value is not None and self.kind == "frame":
                    refuse_half_characters(value, place)
        if len(columns) == 1:
            return columns[0]
        return [None if None in row else row for row in zip(*columns, strict=True)]

    def _image(self, value: Any) -> Any:
        """Return an image as ``datasets`` takes it: of a path its bytes and its path."""
        if isinstance(value, (int, float, list)):
            raise UserError(f"{self.name}: expected paths of images, found {value!r}")
        if not isinstance(value, (str, Path)):
            return value
        folder = Path(self.name).absolute()
        if self.kind == "frame":
            folder = Path.cwd()
        elif folder.is_file():
            folder = folder.parent
        return {"bytes": None, "path": str(folder / Path(value).expanduser())}

    def _added_columns(self, logits: np.ndarray, has_value: np.ndarray) -> pa.Table:
        """Return the added columns of a chunk; null for its rows without a value."""
        predictions = self._task.predicted(
            logits, self._temperature, all_labels=self.options.all_probabilities
        )
        columns = []
        for values in predictions:
            kind = pa.string() if self._task.has_one_class else pa.list_(pa.string())
            if isinstance(values, np.ndarray):  # as float32: 0.9812, not 0.9811999797821045
                values = [float(str(value)) for value in values.astype(np.float32)]
                kind = pa.float64()
            column = np.full(len(has_value), None, object)
            column[has_value] = np.fromiter(values, object, len(logits))
            columns.append(pa.array(column.tolist(), kind))
        return pa.table(columns, names=self.added)


def _stamp(path: Path) -> str:
    """Return a stamp that changes when the file, or a file of the folder, changes."""
    if not path.is_dir():
        status = path.stat()
        return f"{status.st_size} bytes of {status.st_mtime_ns}"
    stamps = [f"{file.name} {_stamp(file)}" for file in sorted(path.rglob("*")) if file.is_file()]
    digest = hashlib.sha256("\n".join(stamps).encode()).hexdigest()[:16]
    return f"{len(stamps)} files {digest}"
