"""A prediction request: a run, an input, the columns to read and the columns to add.

All inputs but the standard input are a table that is read in chunks of consecutive rows, so that
processes share the chunks, and an interrupted prediction continues with the next one.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from finetune.data import images, read
from finetune.data.columns import parse_names
from finetune.data.files_of_splits import IMAGES, files_below
from finetune.data.prediction_columns import without_bytes
from finetune.data.read_text import ReadOptions, refuse_half_characters
from finetune.errors import UserError, counted, suggestion
from finetune.predicting import FILES, Options
from finetune.predicting.predictor import Predictor
from finetune.recipe import ImageRecipe, TextRecipe
from finetune.recipe.run import Run
from finetune.runtime import formats

STANDARD_INPUT = "-"
#: Enough rows to sort by length, few enough to hold in memory and to predict again.
CHUNK_ROWS = 1024
#: The format of rows that are printed, by the kind of the input; of all others CSV.
_FORMATS = {".jsonl": ".jsonl", ".tsv": ".tsv", ".txt": ".tsv", STANDARD_INPUT: ".tsv"}


class Request:
    """An input and the run that predicts it; ``source`` is None for rows in memory."""

    def __init__(
        self, run: Run, source: str | Path | None, options: Options, output: Path | None = None
    ) -> None:
        run.require_model()
        self.run = run
        self.task = run.kind
        self.recipe = run.recipe(scores=False)
        self.load_model: Callable[..., Any] = self.recipe.load_model  # or that of an engine
        self.options = options  # with a precision and kernels
        self.path = Path(source or "").expanduser()
        self.folder = self.path if self.path.is_dir() else self.path.parent
        self.kind = formats.suffix(self.path)  # of a file, else `frame`, `-` or `folder`
        self.name = str(self.path)
        if source is None:
            self.kind, self.name = "frame", "the data"
        elif str(source) == STANDARD_INPUT:
            self.kind, self.name = STANDARD_INPUT, "the standard input"
        elif self.kind not in read.READABLE or self.path.is_dir():
            self.kind = "folder"  # of images, or a single one
        self.suffix = _FORMATS.get(self.kind, ".csv")
        if output:
            self.suffix = output.suffix
        self.file_facts: list[str] = []  # about how a file is read

    def read(self, frame: pd.DataFrame | None = None) -> None:
        """Read the input, or take the rows of ``frame``; a ``UserError`` if it lacks a column."""
        # none of the standard input
        self.rows: Any
        if frame is None:
            self.rows = self._read()
            names = self.rows.column_names
        else:
            self.rows = frame.reset_index(drop=True)
            names = list(frame.columns)
        self.total = len(self.rows) or None
        self.chunks = range(-(-len(self.rows) // CHUNK_ROWS))
        self.columns_read = self.choose_columns(names)  # with the option that names each
        for column, flag in self.columns_read.items():
            if column not in names:
                raise UserError(
                    f"--{flag}: no column '{column}' in {self.name}{suggestion(column, names)} "
                    f"(available: {', '.join(map(str, names))})"
                )
        self.reads_images = isinstance(self.recipe, ImageRecipe) or (
            list(self.columns_read) == ["file"] and not isinstance(self.recipe, TextRecipe)
        )
        self.added = []  # the names of the added columns, which the input does not have
        no_rows = np.zeros((0, self.task.width), np.float32)
        for name in self.task.predicted(no_rows, 1.0, all_labels=self.options.all_probabilities):
            while name in names:
                name = f"predicted {name}"
            self.added.append(name)
        self.columns = [*names, *self.added]

    def choose_columns(self, names: Sequence[str] = ()) -> dict[str, str]:
        """Return the columns that the model reads, with the option that names them.

        They are those asked for, else those of the run if they are in ``names``, else usual ones.
        """
        recipe = self.recipe
        option = "image_column" if isinstance(recipe, ImageRecipe) else "text_column"
        usual = [getattr(recipe, option, ""), recipe.input_column, "file"]
        if isinstance(recipe, TextRecipe):
            typed = self.options.text_column, self.options.text_columns
            recipe.refuse_other_columns(self.run.path, *typed)
            if recipe.text_columns is not None:
                columns = parse_names("--text_columns", typed[1]) or recipe.columns_read()
                return dict.fromkeys(columns, "text_columns")
            usual.remove("file")
        default = next((name for name in usual if name in names), recipe.input_column)
        return {getattr(self.options, option) or default: option}

    def _read(self) -> pa.Table:
        """Return the rows, those of a file from the cache."""
        if self.kind == STANDARD_INPUT:
            return pa.schema([(name, pa.string()) for name in self.choose_columns()]).empty_table()
        path = read.existing(self.name)
        if self.kind == "folder":
            files = files_below(path) if path.is_dir() else [path]
            names = [str(f.relative_to(self.folder)) for f in files if f.suffix.lower() in IMAGES]
            if isinstance(self.recipe, TextRecipe) or not names:
                raise UserError(
                    f"cannot read {path}: expected a file ending in {', '.join(read.READABLE)}, "
                    "- for standard input, or, for a model of images, an image or a folder of "
                    f"images ({', '.join(IMAGES)})"
                )
            return pa.table({"file": sorted(names)})
        recorded = self.run.manifest.options if self.kind in formats.SEPARATORS else {}
        options = {name.removeprefix("csv_"): getattr(self.options, name) for name in FILES}
        options["quoting"] = options["quoting"] or recorded.get("csv_quoting") or "auto"
        file = read.read_file(path, ReadOptions(**options))
        self.file_facts = [f"{path.name}: {fact}" for fact in file.facts]
        table = file.rows.data.table
        binary = set(table.column_names) - set(without_bytes(table).column_names)
        if binary and self.suffix != ".parquet":
            raise UserError(f"the column '{min(binary)}' holds bytes: write parquet (--output)")
        return table

    def chunk(self, number: int) -> Any:
        """Return the rows of a chunk, by its number."""
        return self.rows[number * CHUNK_ROWS : (number + 1) * CHUNK_ROWS]

    def predict(self, numbers: Iterable[int]) -> Iterator[tuple[int, Any, pa.Table]]:
        """Yield number and rows of chunks, and the columns that are added to them.

        All lines of the standard input are read, whatever the ``numbers``.
        """
        chunks: Iterable[tuple[int, Any]] = ((number, self.chunk(number)) for number in numbers)
        if self.kind == STANDARD_INPUT:
            chunks = enumerate(_read_lines(self.rows))
        with closing(Predictor(self.run, self.options, self.load_model)) as predictor:
            submitted: Iterator[Any] = (
                (number, rows, predictor.submit(self._values(number, rows)))
                for number, rows in chunks
            )
            if self.kind != STANDARD_INPUT:  # a line is answered at once
                # the next chunk is read while this one is computed
                submitted = (chunk for chunk, _ in pairwise(chain(submitted, [None])))
            for number, rows, submission in submitted:
                yield number, rows, predictor.columns(submission).rename_columns(self.added)

    def _values(self, number: int, rows: Any) -> list[Any]:
        """Return what the model reads of each row: a value, a tuple, or None if it is missing."""
        columns = [cells(rows, name) for name in self.columns_read]
        if self.reads_images:
            return list(map(self._image, columns[0]))
        if isinstance(self.recipe, TextRecipe):
            for name, texts in zip(self.columns_read, columns, strict=True):
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
        image = {"bytes": None, "path": str(self.folder / Path(value).expanduser())}
        if not isinstance(self.recipe, ImageRecipe):  # else Pillow's error would name no file
            images.decode(image)
        return image


def cells(rows: Any, column: str) -> list[Any]:
    """Return the values of a column; None where one is missing, or no number."""
    if isinstance(rows, pd.DataFrame):
        values = rows[column].astype(object)
        return list(values.where(values.notna(), None))
    cells: list[Any] = rows.column(column).to_pylist()
    if rows.schema.field(column).type == pa.json_():
        cells = [cell and json.loads(cell) for cell in cells]
    return [cell if cell == cell else None for cell in cells]


def _read_lines(no_rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the lines of the standard input as they arrive, in at least one table."""
    names = no_rows.column_names
    stdin: Any = sys.stdin.buffer
    number = 0
    while block := stdin.read1(2**16):
        if not block.endswith(b"\n"):
            block += stdin.readline()
        rows = []
        for line in block.removesuffix(b"\n").split(b"\n"):
            number += 1
            text = line.decode(errors="replace")
            is_text = text.encode() == line and "\0" not in text
            if number == 1:
                text = text.removeprefix("\ufeff")
            text = text.removesuffix("\r")
            rows.append(text.split("\t") if len(names) > 1 else [text])
            if not is_text or len(rows[-1]) != len(names):
                raise UserError(
                    f"standard input, line {number}: expected {counted(len(names), 'text')} "
                    f"({', '.join(names)}), separated by tabs, in UTF-8 and without null bytes, "
                    f"found {line!r:.60}"
                )
        yield pa.table(list(map(list, zip(*rows, strict=True))), schema=no_rows.schema)
    if not number:
        yield no_rows
