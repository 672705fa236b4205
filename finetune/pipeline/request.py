"""A prediction request: checked options, an input, the columns to read and the columns to add.

All inputs but the standard input are a table that is read in chunks of consecutive rows, so that
processes share the chunks, and an interrupted prediction continues with the next one.
"""

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

import numpy as np
import pandas as pd
import pyarrow as pa

from finetune.data import images, read
from finetune.data.columns import parse_names
from finetune.data.files_of_splits import IMAGES, files_below
from finetune.data.labels import parse_list
from finetune.data.prediction_columns import without_bytes
from finetune.data.read_text import (
    ReadOptions,
    encoding_of,
    refuse_half_characters,
    text_lines,
)
from finetune.data.tags import is_tag
from finetune.data.words import may_be_words
from finetune.errors import Findings, UserError, counted, suggestion
from finetune.predicting import FILES, READING, Options
from finetune.predicting.inference import Session
from finetune.recipe import ImageRecipe, TextRecipe
from finetune.recipe.run import Run
from finetune.rules.check import check_prediction
from finetune.rules.options import OptionValues
from finetune.runtime import distributed, formats, hardware
from finetune.training.options import check_types

STANDARD_INPUT = "-"
#: Enough rows to sort by length, few enough to hold in memory and to predict again.
CHUNK_ROWS = 1024
#: Enough lines to see whether they have tags.
_SAMPLED_LINES = 100
#: The format of rows that are printed, by the kind of the input; of all others CSV.
_FORMATS = {
    ".jsonl": ".jsonl",
    ".tsv": ".tsv",
    ".txt": ".tsv",
    STANDARD_INPUT: ".tsv",
    "frame": "a frame",
}


def parse_options(values: Mapping[str, Any], report: Findings) -> Options:
    """Return options of a prediction; report unknown names and values."""
    hints = get_type_hints(Options)
    names = ", ".join(hints)
    options = Options(**check_types(values, hints, report, f" (available: {names})"))
    with report.collect():
        check_prediction(OptionValues(**vars(options)))
    return options


class Request:
    """What a run predicts: rows, the columns that it reads of them, and those that it adds.

    Attributes:
        run: It has a model.
        recipe: That of the run.
        task: That of the run.
        options: With a precision and kernels.
        path: The file or folder of the input.
        folder: The folder that paths of images are relative to.
        kind: The suffix of a file of rows; else ``frame`` (of rows in memory), ``-`` or ``folder``
            (of images, or a single one).
        name: What messages call the input.
        suffix: The format that is written: a suffix, or ``a frame``.
        session: That of an engine; None for torch.
        rows: A table of pyarrow, or of pandas if it is in memory; empty for the standard input.
        columns_read: The columns that the model reads, with the option that names each.
        added: The names of the added columns, which the input does not have.
        columns: The names of all columns.
        file_facts: How a file was read.

    Args:
        run: The run that predicts.
        source: A file, a folder, ``-``, or None for rows in memory.
        output: The file to write, if it is one.
        options: Those of :func:`parse_options`.
        session: That of the engine in the options; None for torch.
        report: Gets flags that have no effect.
        to_frame: Returns the rows in memory as a frame; takes the names of columns of texts.

    Raises:
        UserError: If the input cannot be read, or lacks a column.
    """

    def __init__(
        self,
        run: Run,
        source: str | Path | None,
        output: Path | None,
        options: Options,
        session: Session | None,
        report: Findings,
        to_frame: Callable[[list[str]], pd.DataFrame],
    ) -> None:
        run.require_model()
        self.run, self.session = run, session
        self.recipe = run.recipe(scores=False)
        self.task = run.task
        self.path = Path(source or "").expanduser()
        self.folder = self.path if self.path.is_dir() else self.path.parent
        self.kind = formats.suffix(self.path)
        self.name = str(self.path)
        if source is None:
            self.kind, self.name = "frame", "the data"
        elif str(source) == STANDARD_INPUT:
            self.kind, self.name = STANDARD_INPUT, "the standard input"
        elif self.kind not in read.READABLE or self.path.is_dir():
            self.kind = "folder"
        self.suffix = output.suffix if output else _FORMATS.get(self.kind, ".csv")
        precision: Literal["fp32", "bf16"] = "fp32"
        # bf16 changes probabilities by less than 0.02, but leaves a regression with three digits
        is_classifier = self.task.has_probabilities and isinstance(self.recipe, TextRecipe)
        if session is None and is_classifier and hardware.prefers_bf16(distributed.device().type):
            precision = "bf16"
        self.options = replace(
            options,
            precision=options.precision or precision,
            cpu_kernels=options.cpu_kernels or run.manifest.arguments.get("cpu_kernels", "auto"),
        )
        self._check_options(report)
        self.file_facts: list[str] = []
        self.rows: Any
        if source is None:
            self.rows = to_frame(list(self._choose_columns())).reset_index(drop=True)
            names = list(self.rows)
        else:
            self.rows = self._read()
            names = self.rows.column_names
        self.columns_read = self._choose_columns(list(filter(self._can_read, names)))
        for column, flag in self.columns_read.items():
            if column not in names:
                raise UserError(
                    f"--{flag}: no column '{column}' in {self.name}{suggestion(column, names)} "
                    f"(available: {', '.join(map(str, names))})"
                )
        self.added: list[str] = []
        for name in self._predicted(np.zeros((0, self.task.width), np.float32), ()):
            while name in names:
                name = f"predicted {name}"
            self.added.append(name)
        self.columns = [*names, *self.added]

    def _check_options(self, report: Findings) -> None:
        """Report flags that have no effect on this input, output and model."""
        options = self.options
        is_image = isinstance(self.recipe, ImageRecipe)
        unused = {"text_column", "text_columns"} if is_image else {"image_column"}
        if self.kind not in read.READABLE:
            unused |= set(FILES)
        if flags := [f"--{name}" for name in READING if name in unused and getattr(options, name)]:
            report.error(
                f"{', '.join(flags)}: not for {self.name} and the model of {self.run.path}"
            )
        if options.csv_safe and self.suffix not in formats.SEPARATORS:
            report.error(f"--csv_safe: the output is {self.suffix}; expected .csv or .tsv")
        if options.all_probabilities and not self.task.has_probabilities:
            report.error("--all_probabilities: the run predicts a number, it has no classes")
        elif options.all_probabilities and self.task.labels_words:
            report.error("--all_probabilities: the run predicts entities")
        if options.calibrated and self.run.manifest.temperature is None:
            report.error(f"--calibrated: {self.run.path} has no temperature")

    def _choose_columns(self, names: Sequence[str] = ()) -> dict[str, str]:
        """Return the columns that the model reads, with the option that names them.

        They are those asked for, else those of the run if they are in ``names``, else usual ones.
        """
        recipe = self.recipe
        option = "image_column" if isinstance(recipe, ImageRecipe) else "text_column"
        usual = [getattr(recipe, option, ""), recipe.input_column, "file"]
        usual = [*recipe.token_columns, *usual]
        if isinstance(recipe, TextRecipe):
            typed = self.options.text_column, self.options.text_columns
            recipe.refuse_other_columns(self.run.path, *typed)
            if recipe.text_columns is not None:
                columns = parse_names("--text_columns", typed[1]) or recipe.columns_read()
                return dict.fromkeys(columns, "text_columns")
            usual.remove("file")
        default = next((name for name in usual if name in names), recipe.input_column)
        return {getattr(self.options, option) or default: option}

    def _can_read(self, column: str) -> bool:
        """Return whether a column may be one of texts or words."""
        return not self.task.labels_words or all(map(may_be_words, cells(self.chunk(0), column)))

    def _read(self) -> pa.Table:
        """Return the rows, those of a file from the cache."""
        if self.kind == STANDARD_INPUT:
            return pa.schema([(name, pa.string()) for name in self._choose_columns()]).empty_table()
        path = read.existing(self.name)
        if self.kind == "folder":
            return self._list_images(path)
        if self.task.labels_words and self.kind in formats.MAYBE_WORDS:
            _refuse_tags(path, self.options.encoding)
        recorded = self.run.manifest.options if self.kind in formats.SEPARATORS else {}
        options = {name.removeprefix("csv_"): getattr(self.options, name) for name in FILES}
        options["quoting"] = options["quoting"] or recorded.get("csv_quoting") or "auto"
        file = read.read_file(path, ReadOptions(**options))
        self.file_facts += [f"{path.name}: {fact}" for fact in file.facts]
        table = file.rows.data.table
        binary = set(table.column_names) - set(without_bytes(table).column_names)
        if binary and self.suffix != ".parquet":
            raise UserError(f"the column '{min(binary)}' holds bytes: write parquet (--output)")
        return table

    def _list_images(self, path: Path) -> pa.Table:
        files = files_below(path) if path.is_dir() else [path]
        names = [str(f.relative_to(self.folder)) for f in files if f.suffix.lower() in IMAGES]
        if isinstance(self.recipe, TextRecipe) or not names:
            raise UserError(
                f"cannot read {path}: expected a file ending in {', '.join(read.READABLE)}, - for "
                "standard input, or, for a model of images, an image or a folder of images "
                f"({', '.join(IMAGES)})"
            )
        return pa.table({"file": sorted(names)})

    @property
    def reads_images(self) -> bool:
        """Whether the column that is read has images or paths of images."""
        has_files = list(self.columns_read) == ["file"] and not isinstance(self.recipe, TextRecipe)
        return has_files or isinstance(self.recipe, ImageRecipe)

    @property
    def total(self) -> int | None:
        """The number of rows; None for the standard input."""
        return len(self.rows) or None

    @property
    def chunks(self) -> range:
        """The numbers of the chunks."""
        return range(-(-len(self.rows) // CHUNK_ROWS))

    def chunk(self, number: int) -> Any:
        """Return the rows of a chunk, by its number."""
        return self.rows[number * CHUNK_ROWS : (number + 1) * CHUNK_ROWS]

    def values(self, number: int, rows: Any) -> list[Any]:
        """Return what the model reads of each row of a chunk: a value, a tuple, or None if it is
        missing.
        """
        columns = {name: cells(rows, name) for name in self.columns_read}
        for name in set(columns).intersection(self.recipe.token_columns):
            columns[name] = list(map(_parse_words, columns[name]))
        first, *others = columns.values()
        if self.reads_images:
            return list(map(self._image, first))
        if isinstance(self.recipe, TextRecipe):
            for name, texts in columns.items():
                self._check_texts(name, texts, number * CHUNK_ROWS + 1)
        if not others:
            return first
        return [None if None in row else row for row in zip(first, *others, strict=True)]

    def _check_texts(self, column: str, texts: list[Any], first: int) -> None:
        for row, text in enumerate(texts, first):
            place = f"{self.name}, row {row}"
            if self.task.labels_words and isinstance(text, list):
                if any(not isinstance(word, str) or not word.strip() for word in text):
                    raise UserError(f"{place}: expected words in '{column}', found {text!r:.60}")
                text = " ".join(text)
            if text is not None and not isinstance(text, str):
                raise UserError(f"{place}: expected a text in '{column}', found {text!r}")
            refuse_half_characters(text or "", place)

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

    def added_columns(self, logits: np.ndarray, values: list[Any]) -> pa.Table:
        """Return the columns that are added to rows, null for those without a value."""
        is_missing = np.array([value is None for value in values], dtype=bool)
        arrays = []
        for column in self._predicted(logits, values).values():
            is_number = isinstance(column, np.ndarray)
            value_type = pa.float64() if is_number else self.task.predicted_type
            arrays.append(pa.array(column, value_type, mask=is_missing))
        return pa.table(arrays, names=self.added)

    def _predicted(self, logits: np.ndarray, values: Sequence[Any]) -> dict[str, Any]:
        """Return the columns that are added to rows, under their usual names."""
        temperature = 1.0
        if self.options.calibrated:
            temperature = float(self.run.manifest.temperature or 1.0)
        all_labels = self.options.all_probabilities
        return self.task.predicted(logits, values, temperature, all_labels=all_labels)


def _refuse_tags(path: Path, encoding: str | None) -> None:
    """Raise a ``UserError`` if the first lines of a file of texts are words with a tag each."""
    lines = itertools.islice(text_lines(path, encoding_of(path, encoding)), _SAMPLED_LINES)
    fields = [line.split() for line in lines if line.strip()]
    if fields and all(len(words) > 1 and is_tag(words[-1]) for words in fields):
        raise UserError(
            f"{path}: its lines are words with a tag; predict reads these from a file ending in "
            f"{', '.join(formats.WORDS)}"
        )


def _parse_words(value: Any) -> Any:
    if isinstance(value, np.ndarray):  # a list of Parquet, read by pandas
        return value.tolist()
    return parse_list(value) or value


def cells(rows: Any, column: str) -> list[Any]:
    """Return the values of a column; None where one is missing, or no number."""
    if isinstance(rows, pd.DataFrame):
        values = rows[column].astype(object)
        return list(values.where(values.notna(), None))
    cells: list[Any] = rows.column(column).to_pylist()
    if rows.schema.field(column).type == pa.json_():
        cells = [cell and json.loads(cell) for cell in cells]
    return [cell if cell == cell else None for cell in cells]


def read_lines(no_rows: pa.Table) -> Iterator[pa.Table]:
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
