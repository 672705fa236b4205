"""A prediction request: a run, an input, the columns to read and the columns to add.

All inputs but the standard input are a table that is read in chunks of consecutive rows, so that
processes share the chunks, and an interrupted prediction continues with the next one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from finetune.data import images, read
from finetune.data.columns import parse_names
from finetune.data.files_of_splits import IMAGES, files_below
from finetune.data.read_text import ReadOptions, refuse_half_characters
from finetune.errors import Report, UserError, counted, suggestion
from finetune.predicting import FILES, READING, Options
from finetune.predicting.predictor import Predictor, device
from finetune.recipe import ImageRecipe, Recipe, TextRecipe
from finetune.runs.run import Run
from finetune.runtime import formats, hardware

STANDARD_INPUT = "-"
#: Enough rows to sort by length, few enough to hold in memory and to predict again.
CHUNK_ROWS = 1024
_LONGEST_READ = 2**16  # bytes
Rows: TypeAlias = pa.Table | pd.DataFrame


def text_names(recipe: Recipe, options: Options) -> list[str]:
    """Return the names of the columns of an input without names, such as standard input."""
    if isinstance(recipe, TextRecipe) and recipe.text_columns is not None:
        return parse_names("--text_columns", options.text_columns) or recipe.columns_read()
    return [recipe.input_column]


def cells(rows: Rows, column: str) -> list[Any]:
    """Return the values of a column; None where one is missing."""
    if isinstance(rows, pd.DataFrame):
        values = rows[column].astype(object)
        return list(values.where(values.notna(), None))
    cells: list[Any] = rows.column(column).to_pylist()
    if rows.schema.field(column).type == pa.json_():
        return [None if cell is None else json.loads(cell) for cell in cells]
    return cells


class Request:
    """A prediction request, checked: an option that needs what run or input lack is refused.

    Attributes:
        kind: The suffix of a file; ``-``, ``frame``, or ``folder`` of images or a single one.
        suffix: Of the output: ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet``.
        rows: Those of the input; of standard input there are none.
        maps: Types of the columns of a Parquet file with maps, which are lists in ``rows``.
        total: The number of rows; None for standard input.
        columns_read: The input columns that the model reads.
        added: Names of the added columns, none of which the input has.
    """

    def __init__(
        self,
        run: Run,
        source: str | Path | pd.DataFrame,
        options: Options,
        output: Path | None = None,
        report: Report | None = None,
    ) -> None:
        """Read the source; raise all errors, those that are in ``report`` already as well."""
        report = report or Report()
        run.require_model()
        self.run = run
        self.options = options
        self._task = run.kind
        self._recipe = run.recipe(scores=False)
        self._facts: list[str] = []  # about how the file is read
        self.rows: Rows = pa.table({})
        self.maps: dict[str, pa.DataType] = {}
        if isinstance(source, pd.DataFrame):
            self.kind, self._name = "frame", "the data"
        elif str(source) == STANDARD_INPUT:
            self.kind, self._name = STANDARD_INPUT, "the standard input"
        else:
            path = Path(source).expanduser()
            self._name = str(path)
            suffix = formats.suffix(path)
            self.kind = suffix if suffix in read.READABLE and not path.is_dir() else "folder"
        by_default = {".jsonl": ".jsonl", "frame": "a frame"}
        by_default |= dict.fromkeys((".tsv", ".txt", STANDARD_INPUT), ".tsv")
        self.suffix = output.suffix if output else by_default.get(self.kind, ".csv")
        self._refuse_options(report)
        with report.collect():
            self._names = self._read(source)
            self.columns_read = self._choose_columns()
        report.raise_errors()
        self.total = None if self.kind == STANDARD_INPUT else len(self.rows)
        no_rows = np.zeros((0, self._task.width), np.float32)
        self.added = [*self._task.predicted(no_rows, 1.0, all_labels=options.all_probabilities)]
        for number, name in enumerate(self.added):
            while name in self._names:
                name = f"predicted {name}"
            self.added[number] = name
        self.columns = [*self._names, *self.added]  # of the output
        temperature = run.manifest.temperature if options.calibrated else None
        self._temperature = float(temperature or 1.0)
        # bf16 changes probabilities by less than 0.02, but leaves a regression with three digits
        is_classifier = self._task.has_probabilities and isinstance(self._recipe, TextRecipe)
        is_bf16 = is_classifier and hardware.prefers_bf16(device().type)
        self.precision = options.precision or ("bf16" if is_bf16 else "fp32")
        trained_with = run.manifest.arguments.get("cpu_kernels", "auto")
        self._cpu_kernels = options.cpu_kernels or trained_with

    def _read(self, source: str | Path | pd.DataFrame) -> list[str]:
        """Set the rows, those of a file from the cache, and return the names of the columns."""
        options = self.options
        if isinstance(source, pd.DataFrame):
            if repeated := source.columns[source.columns.duplicated()].tolist():
                raise UserError(f"the data has two columns named {repeated[0]!r}: rename one")
            self.rows = source.reset_index(drop=True)
            return list(source.columns)
        if self.kind == STANDARD_INPUT:
            return text_names(self._recipe, options)
        path = read.existing(str(source))
        if self.kind != "folder":
            quoting = options.csv_quoting
            if self.kind in formats.SEPARATORS:
                quoting = quoting or self.run.manifest.options.get("csv_quoting")
            reading = ReadOptions(
                quoting=str(quoting or "auto"),
                separator=options.csv_separator,
                encoding=options.encoding,
                sheet=options.sheet,
            )
            file = read.read_file(path, reading)
            self._facts = [f"{path.name}: {fact}" for fact in file.facts]
            self.rows = file.rows.data.table
            for column in self.rows.schema if self.suffix != ".parquet" else ():
                if re.search(r"binary(?!:)", str(column.type)):  # a field may be called so
                    raise UserError(
                        f"the column '{column.name}' holds bytes: write parquet, e.g. --output "
                        "predicted.parquet"
                    )
            if self.kind == ".parquet":
                types = {field.name: field.type for field in pq.read_schema(path)}
                self.maps = {name: kind for name, kind in types.items() if "map<" in str(kind)}
            return list(self.rows.column_names)
        folder = path if path.is_dir() else path.parent
        pictures = [
            str(file.relative_to(folder))
            for file in (files_below(path) if path.is_dir() else [path])
            if file.suffix.lower() in IMAGES
        ]
        if pictures and not isinstance(self._recipe, TextRecipe):
            self.rows = pa.table({"file": sorted(pictures)})
            return ["file"]
        raise UserError(
            f"cannot read {source}: expected a file ending in {', '.join(read.READABLE)}, - for "
            "standard input, or, for a model of images, an image or a folder of images "
            f"({', '.join(IMAGES)})"
        )

    def _refuse_options(self, report: Report) -> None:
        options = self.options
        is_image = isinstance(self._recipe, ImageRecipe)
        columns = ("image_column",) if is_image else ("text_column", "text_columns")
        useful = {"frame": columns, STANDARD_INPUT: columns, "folder": ()}
        names = {*READING} - {*useful.get(self.kind, (*columns, *FILES))}
        if flags := [f"--{name}" for name in READING if name in names and getattr(options, name)]:
            subject = f"{self._name} and the model of {self.run.path}"
            report.error(f"{', '.join(flags)}: not for {subject}")
        if options.csv_safe and self.suffix not in formats.SEPARATORS:
            report.error(f"--csv_safe: the output is {self.suffix}; expected .csv or .tsv")
        if options.all_probabilities and not self._task.has_probabilities:
            report.error("--all_probabilities: the run predicts a number, it has no classes")
        if options.calibrated and self.run.manifest.temperature is None:
            report.error(f"--calibrated: {self.run.path} has no temperature")

    def _choose_columns(self) -> list[str]:
        """Return those asked for, else those of the run if the input has them, else usual ones."""
        if self.kind == "folder":
            return ["file"]
        recipe = self._recipe
        options = self.options
        names = self._names
        flag, usual = "--text_column", [recipe.input_column]
        if isinstance(recipe, ImageRecipe):
            flag, usual = "--image_column", [recipe.image_column, "image", "file"]
        elif isinstance(recipe, TextRecipe):
            recipe.refuse_other_columns(self.run.path, options.text_column, options.text_columns)
            usual = [recipe.text_column]
        default = next((name for name in usual if name in names), recipe.input_column)
        columns = [options.text_column or options.image_column or default]
        if isinstance(recipe, TextRecipe) and recipe.text_columns is not None:
            flag, columns = "--text_columns", text_names(recipe, options)
        for column in columns:
            if column not in names:
                raise UserError(
                    f"{flag}: no column '{column}' in {self._name}{suggestion(column, names)} "
                    f"(available: {', '.join(map(str, names))})"
                )
        return columns

    def notes(self, missing: int) -> list[str]:
        """Return sentences for the user at the end, when ``missing`` rows have no prediction."""
        notes = [*filter(None, [self.run.unfinished]), *self._facts]
        if renamed := [name for name in self.added if name.startswith("predicted ")]:
            notes.append(f"the input already has columns of these names: see {', '.join(renamed)}")
        if missing:
            rows = f"{counted(missing, 'row')} without a value in {' or '.join(self.columns_read)}"
            notes.append(f"{rows}: their predictions are empty")
        return notes

    def facts(self) -> dict[str, Any]:
        """Return everything that the predictions depend on, by names that a user knows."""
        source = Path(self._name)
        return {
            f"INPUT {source}": _stamp(source.rglob("*") if source.is_dir() else [source]),
            f"the model of {self.run.path}": _stamp(self.run.path.glob("*.safetensors")),
            "the columns read": self.columns_read,
            "how the file is read": {name: getattr(self.options, name) for name in FILES},
            "the columns added": self.added,
            "the temperature": self._temperature,
            "--precision": self.precision,
            "--cpu_kernels": self._cpu_kernels,
            "--csv_safe": self.options.csv_safe,
        }

    def predict(
        self,
        progress: Callable[[int], object],
        rank: int = 0,
        world_size: int = 1,
        complete: Container[int] = (),
    ) -> Iterator[tuple[int, Any, pa.Table]]:
        """Yield number and rows of each chunk of this process, and the columns added to them.

        Args:
            progress: Called with the number of rows done so far.
            rank: Of this process.
            world_size: The number of processes.
            complete: The numbers of the chunks that were predicted before.
        """
        is_bf16 = self.precision == "bf16"
        predictor = Predictor(self.run, is_bf16, self.options.batch_tokens, self._cpu_kernels)
        waiting: deque[tuple[int, Any, np.ndarray]] = deque()
        chunks: Iterable[tuple[int, Rows]] = enumerate(_read_lines(self._names))
        if self.total is not None:
            chunks = (
                (number, self.rows[number * CHUNK_ROWS : (number + 1) * CHUNK_ROWS])
                for number in range(rank, -(-self.total // CHUNK_ROWS), world_size)
                if number not in complete
            )

        def inputs() -> Iterator[list[Any]]:
            for number, rows in chunks:
                values = self._values(number, rows)
                waiting.append((number, rows, np.array([value is not None for value in values])))
                yield [value for value in values if value is not None]

        rows_done = 0
        reads_ahead = self.kind != STANDARD_INPUT  # a line is answered at once
        for logits in predictor.stream(inputs(), reads_ahead):
            number, rows, has_value = waiting.popleft()
            rows_done += len(has_value)
            progress(rows_done)
            yield number, rows, self._added_columns(logits, has_value)

    def _values(self, number: int, rows: Rows) -> list[Any]:
        """Return what the model reads of each row: a value, a tuple, or None if it is missing."""
        columns = [cells(rows, name) for name in self.columns_read]
        if self.kind == "folder" or isinstance(self._recipe, ImageRecipe):
            values = [self._image(value) for value in columns[0]]
            if not isinstance(self._recipe, ImageRecipe):
                for image in values:  # else Pillow's error would name no file
                    images.decode(image)
            return values
        if not isinstance(self._recipe, TextRecipe):
            return columns[0]
        for name, texts in zip(self.columns_read, columns, strict=True):
            for row, text in enumerate(texts, number * CHUNK_ROWS + 1):
                place = f"{self._name}, row {row}"
                if isinstance(text, str) and self.kind == "frame":
                    refuse_half_characters(text, place)
                elif text is not None and not isinstance(text, str):
                    raise UserError(f"{place}: expected a text in '{name}', found {text!r}")
        if len(columns) == 1:
            return columns[0]
        return [None if None in row else row for row in zip(*columns, strict=True)]

    def _image(self, value: Any) -> Any:
        """Return an image as ``datasets`` takes it: of a path its bytes and its path."""
        if isinstance(value, (int, float, list)):
            raise UserError(f"{self._name}: expected paths of images, found {value!r}")
        if not isinstance(value, (str, Path)):
            return value
        folder = Path.cwd()
        if self.kind not in ("frame", STANDARD_INPUT):
            source = Path(self._name).absolute()
            folder = source if source.is_dir() else source.parent
        return {"bytes": None, "path": str(folder / Path(value).expanduser())}

    def _added_columns(self, logits: np.ndarray, has_value: np.ndarray) -> pa.Table:
        """Return the added columns of a chunk; null for its rows without a value."""
        predictions = self._task.predicted(
            logits, self._temperature, all_labels=self.options.all_probabilities
        )
        columns = []
        for values in predictions.values():
            kind = pa.string() if self._task.has_one_class else pa.list_(pa.string())
            if isinstance(values, np.ndarray):  # as float32: 0.9812, not 0.9811999797821045
                values = [float(str(value)) for value in values.astype(np.float32)]
                kind = pa.float64()
            column = np.full(len(has_value), None, object)
            column[has_value] = np.fromiter(values, object, len(logits))
            columns.append(pa.array(column.tolist(), kind))
        return pa.table(columns, names=self.added)


def _read_lines(columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the lines of the standard input as they arrive: an answer need not wait for others."""
    rest = b""
    count = 0
    block = b"-"
    while block:
        block = os.read(sys.stdin.fileno(), _LONGEST_READ)
        *lines, rest = (rest + block).split(b"\n")
        rows = []
        for line in lines if block or not rest else [*lines, rest]:
            count += 1
            try:
                text = line.decode("utf-8-sig" if count == 1 else "utf-8").removesuffix("\r")
            except UnicodeDecodeError as error:
                raise UserError(f"standard input, line {count}: not UTF-8") from error
            if "\0" in text:
                raise UserError(f"standard input, line {count}: a null byte, which is no text")
            rows.append(text.split("\t") if len(columns) > 1 else [text])
            if len(rows[-1]) != len(columns):
                raise UserError(
                    f"standard input, line {count}: expected {len(columns)} texts separated by "
                    f"tabs ({', '.join(columns)}), found {len(rows[-1])}"
                )
        if rows:
            yield pa.table([pa.array(texts) for texts in zip(*rows, strict=True)], names=columns)


def _stamp(paths: Iterable[Path]) -> str:
    files = [path for path in sorted(paths) if path.is_file()]
    facts = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
