"""A prediction request: a run, an input, the columns to read and the columns to add.

All inputs but the standard input are a table that is read in chunks of consecutive rows, so that
processes share the chunks, and an interrupted prediction continues with the next one.
"""

import hashlib
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain, starmap
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa

from finetune.data import images, read
from finetune.data.columns import parse_names
from finetune.data.files_of_splits import IMAGES, files_below
from finetune.data.prediction_columns import without_bytes
from finetune.data.read_text import ReadOptions, refuse_half_characters
from finetune.errors import Report, UserError, counted, suggestion
from finetune.predicting import FILES, READING, Options
from finetune.predicting.predictor import Batches, Predictor, device
from finetune.recipe import ImageRecipe, TextRecipe
from finetune.runs.run import Run
from finetune.runtime import formats, hardware

STANDARD_INPUT = "-"
#: Enough rows to sort by length, few enough to hold in memory and to predict again.
CHUNK_ROWS = 1024
_LONGEST_READ = 2**16  # bytes
Rows: TypeAlias = Any  # a table of Arrow or a frame of pandas
Item = TypeVar("Item")


def choose_columns(
    run: Run, options: Options, names: Sequence[str] = (), place: str = ""
) -> list[str]:
    """Return the columns asked for, else those of the run if the input has them, else usual ones.

    In a ``place`` with ``names`` they have to be among these; standard input has none.
    """
    recipe = run.recipe(scores=False)
    flag = "image_column" if isinstance(recipe, ImageRecipe) else "text_column"
    usual = [getattr(recipe, flag, ""), recipe.input_column, "file"]
    if isinstance(recipe, TextRecipe):
        recipe.refuse_other_columns(run.path, options.text_column, options.text_columns)
        usual.remove("file")
    default = next((name for name in usual if name in names), recipe.input_column)
    columns = [getattr(options, flag) or default]
    if getattr(recipe, "text_columns", None) is not None:
        flag = "text_columns"
        columns = parse_names(f"--{flag}", options.text_columns) or recipe.columns_read()
    for column in columns if place else ():
        if column not in names:
            raise UserError(
                f"--{flag}: no column '{column}' in {place}{suggestion(column, names)} "
                f"(available: {', '.join(map(str, names))})"
            )
    return columns


def cells(rows: Rows, column: str) -> list[Any]:
    """Return the values of a column; None where one is missing, or no number."""
    if isinstance(rows, pd.DataFrame):
        values = rows[column].astype(object)
        return list(values.where(values.notna(), None))
    cells: list[Any] = rows.column(column).to_pylist()
    if rows.schema.field(column).type == pa.json_():
        cells = [cell and json.loads(cell) for cell in cells]
    return [cell if cell == cell else None for cell in cells]


class Request:
    """A prediction request, checked: an option that needs what run or input lack is refused.

    Attributes:
        options: With a precision and kernels.
        name: The path of the input, or what it is.
        kind: The suffix of a file; ``-``, ``frame``, or ``folder`` of images or a single one.
        suffix: Of the output: ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet``.
        rows: Those of the input; of standard input there are none.
        total: The number of rows; None for standard input.
        chunks: The numbers of the chunks of rows.
        added: Names of the added columns, none of which the input has.
        columns: Those of the output.
    """

    def __init__(
        self,
        run: Run,
        source: str | Path | pd.DataFrame,
        options: Options,
        report: Report,
        output: Path | None = None,
    ) -> None:
        """Read the source; raise all errors, those that are in ``report`` already as well."""
        run.require_model()
        self._run = run
        self._task = run.kind
        self._recipe = run.recipe(scores=False)
        # bf16 changes probabilities by less than 0.02, but leaves a regression with three digits
        is_classifier = self._task.has_probabilities and isinstance(self._recipe, TextRecipe)
        is_bf16 = is_classifier and hardware.prefers_bf16(device().type)
        self.options = replace(
            options,
            precision=options.precision or ("bf16" if is_bf16 else "fp32"),
            cpu_kernels=options.cpu_kernels or run.manifest.arguments.get("cpu_kernels", "auto"),
        )
        self._facts: list[str] = []  # about how the file is read
        self._files: list[Path] = []  # that are read
        self._folder = Path()  # that paths of images are relative to
        if isinstance(source, pd.DataFrame):
            self.kind, self.name = "frame", "the data"
        elif str(source) == STANDARD_INPUT:
            self.kind, self.name = STANDARD_INPUT, "the standard input"
        else:
            path = Path(source).expanduser()
            suffix = formats.suffix(path)
            self.kind = suffix if suffix in read.READABLE and not path.is_dir() else "folder"
            self.name = str(path)
        by_default = {".jsonl": ".jsonl", ".tsv": ".tsv", ".txt": ".tsv", STANDARD_INPUT: ".tsv"}
        by_default["frame"] = "a frame"
        self.suffix = output.suffix if output else by_default.get(self.kind, ".csv")
        self._refuse_options(report)
        with report.collect():
            self.rows = self._read(source)
            is_frame = isinstance(self.rows, pd.DataFrame)
            names = list(self.rows.columns if is_frame else self.rows.column_names)
            self._columns_read = choose_columns(run, self.options, names, self.name)
        report.raise_errors()
        self.total = None if self.kind == STANDARD_INPUT else len(self.rows)
        self.chunks = range(-(-len(self.rows) // CHUNK_ROWS))
        no_rows = np.zeros((0, self._task.width), np.float32)
        self.added = [*self._task.predicted(no_rows, 1.0, all_labels=options.all_probabilities)]
        for number, name in enumerate(self.added):
            while name in names:
                name = f"predicted {name}"
            self.added[number] = name
        self.columns = [*names, *self.added]
        self._temperature = float(run.manifest.temperature or 1.0) if options.calibrated else 1.0

    def _read(self, source: str | Path | pd.DataFrame) -> Rows:
        """Return the rows, those of a file from the cache."""
        if isinstance(source, pd.DataFrame):
            if repeated := source.columns[source.columns.duplicated()].tolist():
                raise UserError(f"the data has two columns named {repeated[0]!r}: rename one")
            return source.reset_index(drop=True)
        if self.kind == STANDARD_INPUT:
            return pa.table(pd.DataFrame(columns=choose_columns(self._run, self.options)))
        path = read.existing(str(source))
        self._files = [path]
        self._folder = path if path.is_dir() else path.parent
        if self.kind == "folder":
            files = files_below(path) if path.is_dir() else [path]
            self._files = [file for file in files if file.suffix.lower() in IMAGES]
            if isinstance(self._recipe, TextRecipe) or not self._files:
                raise UserError(
                    f"cannot read {source}: expected a file ending in {', '.join(read.READABLE)}, "
                    "- for standard input, or, for a model of images, an image or a folder of "
                    f"images ({', '.join(IMAGES)})"
                )
            names = (str(file.relative_to(self._folder)) for file in self._files)
            return pa.table({"file": sorted(names)})
        reading = {name.removeprefix("csv_"): getattr(self.options, name) for name in FILES}
        if self.kind in formats.SEPARATORS and reading["quoting"] is None:
            reading["quoting"] = self._run.manifest.options.get("csv_quoting")
        reading["quoting"] = reading["quoting"] or "auto"
        file = read.read_file(path, ReadOptions(**reading))
        self._facts = [f"{path.name}: {fact}" for fact in file.facts]
        table = file.rows.data.table
        binary = {*table.column_names} - {*without_bytes(table).column_names}
        if binary and self.suffix != ".parquet":
            raise UserError(f"the column '{min(binary)}' holds bytes: write parquet (--output)")
        return table

    def _refuse_options(self, report: Report) -> None:
        options = self.options
        is_image = isinstance(self._recipe, ImageRecipe)
        unused = {"text_column", "text_columns"} if is_image else {"image_column"}
        if self.kind in ("frame", STANDARD_INPUT, "folder"):
            unused |= {*FILES}
        if flags := [f"--{name}" for name in READING if name in unused and getattr(options, name)]:
            subject = f"{self.name} and the model of {self._run.path}"
            report.error(f"{', '.join(flags)}: not for {subject}")
        if options.csv_safe and self.suffix not in formats.SEPARATORS:
            report.error(f"--csv_safe: the output is {self.suffix}; expected .csv or .tsv")
        if options.all_probabilities and not self._task.has_probabilities:
            report.error("--all_probabilities: the run predicts a number, it has no classes")
        if options.calibrated and self._run.manifest.temperature is None:
            report.error(f"--calibrated: {self._run.path} has no temperature")

    def notes(self) -> list[str]:
        """Return sentences for the user at the end."""
        notes = [*filter(None, [self._run.unfinished]), *self._facts]
        if renamed := [name for name in self.added if name.startswith("predicted ")]:
            notes.append(f"the input already has columns of these names: see {', '.join(renamed)}")
        nulls = [self.rows.column(name).is_null().to_numpy() for name in self._columns_read]
        if missing := int(np.any(nulls, axis=0).sum()):
            rows = f"{counted(missing, 'row')} without a value in {' or '.join(self._columns_read)}"
            notes.append(f"{rows}: their predictions are empty")
        return notes

    def facts(self) -> dict[str, Any]:
        """Return everything that the predictions depend on, by names that a user knows."""
        options = {f"--{name}": value for name, value in asdict(self.options).items()}
        return options | {
            f"INPUT {self.name}": _stamp(self._files),
            f"the model of {self._run.path}": _stamp(sorted(self._run.path.glob("*.safetensors"))),
            "the columns added": self.added,
            "the temperature": self._temperature,
            "--batch_tokens": None,  # another number fits into the memory
        }

    def predict(
        self, progress: Callable[[int], object], numbers: Iterable[int]
    ) -> Iterator[tuple[int, Any, pa.Table]]:
        """Yield number and rows of each chunk, and the columns that are added to them.

        Args:
            progress: Called with the number of rows done so far.
            numbers: Of the chunks, some of :attr:`chunks`; those of standard input are all read.
        """
        chunks: Iterator[tuple[int, Rows]] = enumerate(_read_lines(self._columns_read))
        chunks_ahead = 0  # a line is answered at once
        if self.kind != STANDARD_INPUT:
            starts = ((number, number * CHUNK_ROWS) for number in numbers)
            chunks = ((number, self.rows[start : start + CHUNK_ROWS]) for number, start in starts)
            chunks_ahead = 1
        predictor = Predictor(self._run, self.options)

        def submit(number: int, rows: Rows) -> tuple[int, Rows, np.ndarray, Batches]:
            values = self._values(number, rows)
            has_value = np.array([value is not None for value in values])
            return number, rows, has_value, predictor.submit([v for v in values if v is not None])

        rows_done = 0
        try:
            for number, rows, has_value, batches in _ahead(starmap(submit, chunks), chunks_ahead):
                logits = predictor.logits(batches)
                rows_done += len(rows)
                progress(rows_done)
                yield number, rows, self._added_columns(logits, has_value)
        finally:
            predictor.executor.shutdown(cancel_futures=True)

    def _values(self, number: int, rows: Rows) -> list[Any]:
        """Return what the model reads of each row: a value, a tuple, or None if it is missing."""
        columns = [cells(rows, name) for name in self._columns_read]
        is_text = isinstance(self._recipe, TextRecipe)
        if isinstance(self._recipe, ImageRecipe) or (
            self._columns_read == ["file"] and not is_text
        ):
            return [self._image(value) for value in columns[0]]
        for name, texts in zip(self._columns_read, columns, strict=True) if is_text else ():
            for row, text in enumerate(texts, number * CHUNK_ROWS + 1):
                place = f"{self.name}, row {row}"
                if text is not None and not isinstance(text, str):
                    raise UserError(f"{place}: expected a text in '{name}', found {text!r}")
                refuse_half_characters(text or "", place)
        if len(columns) == 1:
            return columns[0]
        return [None if None in row else row for row in zip(*columns, strict=True)]

    def _image(self, value: Any) -> Any:
        """Return an image as ``datasets`` takes it: of a path its bytes and its path."""
        if isinstance(value, (int, float, list)):
            raise UserError(f"{self.name}: expected paths of images, found {value!r}")
        if not isinstance(value, (str, Path)):
            return value
        image = {"bytes": None, "path": str(self._folder / Path(value).expanduser())}
        if not isinstance(self._recipe, ImageRecipe):  # else Pillow's error would name no file
            images.decode(image)
        return image

    def _added_columns(self, logits: np.ndarray, has_value: np.ndarray) -> pa.Table:
        """Return the added columns of a chunk; null for its rows without a value."""
        predictions = self._task.predicted(
            logits, self._temperature, all_labels=self.options.all_probabilities
        )
        kind = pa.string() if self._task.has_one_class else pa.list_(pa.string())
        places = pa.array(np.cumsum(has_value) - 1, mask=~has_value)
        columns = []
        for values in predictions.values():
            if isinstance(values, np.ndarray):  # as float32: 0.9812, not 0.9811999797821045
                column = pa.array(values.astype(np.float32)).cast(pa.string()).cast(pa.float64())
            else:
                column = pa.array(values, kind)
            columns.append(column.take(places))
        return pa.table(columns, names=self.added)


def _ahead(items: Iterable[Item], count: int) -> Iterator[Item]:
    """Yield items, each when so many after it have been made."""
    waiting: deque[Item] = deque()
    for item in items:
        waiting.append(item)
        if len(waiting) > count:
            yield waiting.popleft()
    yield from waiting


def _read_lines(columns: list[str]) -> Iterator[pa.Table]:
    """Yield the lines of the standard input as they arrive: an answer need not wait for others."""
    rest = b""
    number = 0
    blocks = iter(lambda: os.read(sys.stdin.fileno(), _LONGEST_READ), b"")
    for block in chain(blocks, [b""]):
        *lines, rest = (rest + (block or b"\n" * bool(rest))).split(b"\n")
        rows = []
        for line in lines:
            number += 1
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\r")
            except UnicodeDecodeError:
                text = "\0"
            rows.append(text.split("\t") if len(columns) > 1 else [text])
            if "\0" in text or len(rows[-1]) != len(columns):
                raise UserError(
                    f"standard input, line {number}: expected {counted(len(columns), 'text')} "
                    f"({', '.join(columns)}), separated by tabs, in UTF-8 and without null bytes, "
                    f"found {line!r:.60}"
                )
        if rows:
            yield pa.table(pd.DataFrame(rows, columns=columns))


def _stamp(files: Sequence[Path]) -> str:
    facts = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
