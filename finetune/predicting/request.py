"""A prediction request: a run, an input, the columns to read and the columns to add."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.data.columns import parse_names
from finetune.data.images import decode
from finetune.data.read_json import refuse_half_characters
from finetune.data.read_text import ReadOptions
from finetune.errors import Report, UserError, counted, suggestion
from finetune.predicting import engine
from finetune.predicting.inputs import CHUNK_ROWS, STANDARD_INPUT, Chunk, Input
from finetune.predicting.options import Options, mistakes
from finetune.predicting.output import Added
from finetune.recipe import ImageRecipe, TextRecipe
from finetune.runs.run import Run
from finetune.runtime import formats

if TYPE_CHECKING:
    from datasets import Dataset

    from finetune.recipe import Recipe

#: Called with the number of rows up to the position that is reached.
Advance = Callable[[int], object]
_MOST_NAMED = 5


def read_options(run: Run, source: str | Path, options: Mapping[str, Any]) -> ReadOptions:
    """Return how to read a file: as asked for, quotation marks else as those of the run."""
    is_delimited = formats.suffix(source) in formats.SEPARATORS
    default = run.manifest.options.get("csv_quoting", "auto") if is_delimited else "auto"
    return ReadOptions(
        quoting=str(options.get("csv_quoting") or default),
        separator=options.get("csv_separator"),
        encoding=options.get("encoding"),
        sheet=options.get("sheet"),
    )


class Request:
    """A checked prediction request.

    Args:
        run: Whose model predicts.
        input: What is predicted.
        options: Those of :class:`~finetune.predicting.options.Options`, by name.

    Raises:
        UserError: If an option is unknown, or needs something that the run or the input lacks.

    Attributes:
        columns_read: The input columns that the model reads; for a folder, the files themselves.
        task: Of the labels of the run.
        added: Names of the added columns, none of which the input has.
        temperature: Divides the logits.
        precision: Of the computation.
        cpu_kernels: ``auto`` or ``off``, on a CPU.
        rows: The rows of this process so far.
        missing: How many of them have no value in one of the columns that are read.
        null_bytes: How many of them have a text with a null byte.
    """

    def __init__(self, run: Run, input: Input, options: Mapping[str, Any]) -> None:
        run.require_model()
        if wrong := mistakes(options):
            raise UserError(*wrong)
        self.run, self.input, self.options = run, input, Options(**options)
        self.task = run.kind
        recorded = run.manifest.temperature
        if wrong := [*self._impossible_options(), *self._temperature_mistakes(recorded)]:
            raise UserError(*wrong)
        temperature = recorded if self.options.calibrated else 1.0
        self.temperature = float(temperature or 1.0)
        self._flag, self.columns_read = _columns_read(run, input, self.options)
        self.added = _free_names(
            self.task.predicted_names(every=self.options.all_probabilities), input.columns
        )
        self.precision = self.options.precision or engine.default_precision(run)
        trained = run.manifest.arguments.get("cpu_kernels", "auto")
        self.cpu_kernels = self.options.cpu_kernels or trained
        self.rows = self.missing = self.null_bytes = 0

    def _impossible_options(self) -> list[str]:
        """Return a line for each option that the task or the input has no use for."""
        possible = {
            "all_probabilities": self.task.has_probabilities,
            "calibrated": self.task.calibrates,
        }
        kind = "a number, it has no classes"
        if self.task.has_probabilities:
            kind = "any number of labels a row, and a temperature is for one class a row"
        wrong = [
            f"--{flag}: {self.run.path} predicts {kind}"
            for flag, is_possible in possible.items()
            if getattr(self.options, flag) and not is_possible
        ]
        if self.input.kind in (STANDARD_INPUT, "folder", "frame"):
            flags = read_options(self.run, "", vars(self.options)).flags
            wrong += [
                f"{flag} {value}: {self.input.name} is no file" for flag, value in flags.items()
            ]
        return wrong

    def _temperature_mistakes(self, temperature: float | None) -> list[str]:
        if not self.options.calibrated or not self.task.calibrates or temperature is not None:
            return []
        reason = "none improves its probabilities; see the report"
        if self.run.status != "finished":
            reason = f"its status is '{self.run.status}'"
        return [f"--calibrated: {self.run.path} has no temperature: {reason}"]

    @property
    def columns(self) -> list[str]:
        """The columns of the output."""
        return [*self.input.columns, *self.added]

    @property
    def notes(self) -> list[str]:
        """Sentences for the user when the prediction is done."""
        notes = [note for note in (self.run.unfinished, *self.input.notes) if note]
        if renamed := [name for name in self.added if name.startswith("predicted ")]:
            taken = ", ".join(f"'{name.removeprefix('predicted ')}'" for name in renamed)
            names = ", ".join(f"'{name}'" for name in renamed)
            notes.append(f"the input already has {taken}: the predictions are in {names}")
        if self.missing:
            columns = " or ".join(f"'{name}'" for name in self.columns_read)
            notes.append(
                f"{counted(self.missing, 'row')} without a value in {columns}: their predictions "
                "are empty"
            )
        if self.null_bytes:
            notes.append(
                f"{counted(self.null_bytes, 'row')} with null bytes, which no text has unless its "
                "file was damaged: export it again, or remove these bytes"
            )
        return notes

    def facts(self) -> dict[str, Any]:
        """Return everything that the predictions depend on, by names that a user knows."""
        name = self.input.name
        return {
            f"INPUT {name}": "" if self.input.kind == STANDARD_INPUT else _stamp(Path(name)),
            f"the model of {self.run.path}": [
                _stamp(path) for path in sorted(self.run.path.glob("*.safetensors"))
            ],
            self._flag: ",".join(self.columns_read),
            "how the file is read": str(self.input.options),
            "the columns added": self.added,
            "the temperature": self.temperature,
            "--precision": self.precision,
            "--cpu_kernels": self.cpu_kernels,
            "--csv_safe": self.options.csv_safe,
            "the rows of a part": CHUNK_ROWS,
        }

    def predict(
        self,
        advance: Advance,
        rank: int = 0,
        world_size: int = 1,
        is_done: Callable[[int], bool] = lambda number: False,
    ) -> Iterator[tuple[Chunk, Added]]:
        """Predict the input chunk by chunk; the model is loaded for the first one.

        Args:
            advance: Called after each batch and each chunk.
            rank: Of this process.
            world_size: The number of processes.
            is_done: Whether the chunk of a number was predicted before.

        Yields:
            A chunk of this process, and the columns that are added to it: none if it was done.

        Raises:
            UserError: If a row holds what the model cannot read.
        """
        predictor = None
        for chunk in self.input.chunks(rank, world_size):
            values = self._values(chunk)
            added: Added = {}
            if not is_done(chunk.number):
                predictor = predictor or engine.Predictor(
                    self.run, self.precision, self.options.batch_tokens, self.cpu_kernels
                )
                try:
                    # one chunk of long texts takes a minute
                    added = self._predict(
                        predictor, chunk, values, partial(_advance_from, advance, chunk.start)
                    )
                except UserError as error:
                    reasons = self._undecodable(predictor.recipe) or error.mistakes
                    raise UserError(*reasons) from error
            yield chunk, added
            self.rows += len(chunk)
            self.missing += values.count(None)
            self.null_bytes += sum(map(_has_null_byte, values))
            advance(chunk.start + len(chunk))

    def _values(self, chunk: Chunk) -> list[Any]:
        """Return what the model reads of each row, None where it is missing: for several columns,
        a tuple.
        """
        columns = [chunk.values(name) for name in self.columns_read]
        if len(columns) == 1:
            return columns[0]
        rows = zip(*columns, strict=True)
        return [None if any(value is None for value in row) else row for row in rows]

    def _undecodable(self, recipe: Recipe) -> list[str]:
        """Return a line for each of the first images of the input that cannot be decoded, and one
        that counts them if there are more.
        """
        reads_files = isinstance(recipe, ImageRecipe)
        if self.input.kind == STANDARD_INPUT or not (reads_files or self.input.kind == "folder"):
            return []
        report = Report()
        for value in (value for chunk in self.input.chunks() for value in self._values(chunk)):
            with report.collect():
                if isinstance(value, Mapping):
                    decode(value, "an image")
                elif isinstance(value, (str, Path)):
                    decode({"path": self._image(value)}, "an image")
        errors = report.sentences("error")
        more = len(errors) - _MOST_NAMED
        rest = [f"{counted(more, 'more image')} cannot be decoded"] if more > 0 else []
        return [*errors[:_MOST_NAMED], *rest]

    def _predict(
        self, predictor: engine.Predictor, chunk: Chunk, values: list[Any], advance: Advance
    ) -> dict[str, list[Any]]:
        """Return the added columns of a chunk, None where a value is missing."""
        columns: dict[str, list[Any]] = {name: [None] * len(values) for name in self.added}
        present = [number for number, value in enumerate(values) if value is not None]
        if not present:
            return columns
        inputs = [values[number] for number in present]
        if predictor.reads_text:
            for number, row in zip(present, inputs, strict=True):
                texts = [row] if len(self.columns_read) == 1 else row
                self._refuse_no_text(chunk.start + number, texts)
            logits = predictor.texts(inputs, advance)
        else:
            logits = predictor.rows(self._dataset(inputs, predictor.recipe), advance)
        predictions = self.task.predicted(
            logits, self.temperature, every=self.options.all_probabilities
        )
        for name, cells in zip(columns, predictions, strict=True):
            if isinstance(cells, np.ndarray):
                cells = _shortest_digits(cells)
            for number, cell in zip(present, cells, strict=True):
                columns[name][number] = cell
        return columns

    def _refuse_no_text(self, row: int, texts: Sequence[Any]) -> None:
        """Refuse values of the columns read in a row that are no texts."""
        for column, text in zip(self.columns_read, texts, strict=True):
            if not isinstance(text, str):
                raise UserError(
                    f"{self.input.name}, {self.input.place(row)}: expected a text in '{column}', "
                    f"found {text!r}"
                )
            if not text.isascii() and self.input.kind == "frame":  # files are read as UTF-8
                refuse_half_characters(text, f"{self.input.name}, {self.input.place(row)}")

    def _dataset(self, values: list[Any], recipe: Recipe) -> Dataset:
        from datasets import Dataset, Features, Image

        name, reads_files = recipe.input_column, isinstance(recipe, ImageRecipe)
        features: Features | None = Features({name: Image()})
        if self.input.kind == "folder" or reads_files:
            values = [self._image(value) for value in values]
        if reads_files:
            pass  # it says itself which cannot be decoded
        elif self.input.kind == "folder":
            for path in values:
                decode({"path": path}, "an image")
        elif not all(isinstance(value, dict) and "bytes" in value for value in values):
            features = None
        return Dataset.from_dict({name: values}, features)

    def _image(self, value: Any) -> Any:
        """Return an image as ``datasets`` takes it: a path as one from the root."""
        if isinstance(value, (str, Path)):
            path = Path(self.input.name).absolute()
            if self.input.kind == "frame":
                path = Path.cwd()
            elif path.is_file():
                path = path.parent
            return str(path / Path(value).expanduser())
        if isinstance(value, (int, float, list)):
            raise UserError(
                f"{self.input.name}: expected paths of images in '{self.columns_read[0]}', found "
                f"{value!r}"
            )
        return value


def _advance_from(advance: Advance, start: int, done: int) -> None:
    advance(start + done)


def _has_null_byte(value: Any) -> bool:
    texts = value if isinstance(value, tuple) else (value,)
    return any(isinstance(text, str) and "\0" in text for text in texts)


def _free_names(names: Sequence[str], taken: Sequence[str]) -> list[str]:
    """Return the names of the added columns: ``predicted label`` if the input has ``label``."""
    free = list(names)
    for number in range(len(free)):
        while free[number] in taken:
            free[number] = f"predicted {free[number]}"
    return free


def columns_read(run: Run, options: Mapping[str, Any]) -> list[str]:
    """Return the names of the texts of a row, for an input that has none itself: those of the run
    where it reads several, or as asked for.
    """
    recipe = run.recipe(scores=False)
    if not isinstance(recipe, TextRecipe) or recipe.text_columns is None:
        return ["text"]
    return parse_names("--text_columns", options.get("text_columns")) or recipe.columns_read()


def _columns_read(run: Run, input: Input, options: Options) -> tuple[str, list[str]]:
    """Return the option that names the columns that are read, and these columns."""
    recipe, text_column = run.recipe(scores=False), options.text_column
    if options.image_column is not None and not isinstance(recipe, ImageRecipe):
        raise UserError(f"--image_column: the model of {run.path} does not read images of a column")
    reads_text = text_column or options.text_columns
    if isinstance(recipe, ImageRecipe) and reads_text:
        flag = "--text_column" if text_column else "--text_columns"
        raise UserError(f"{flag}: the model of {run.path} reads images: --image_column")
    if input.kind == "folder":
        if isinstance(recipe, TextRecipe) or reads_text:
            raise UserError(f"{input.name} is a folder, but {run.path} reads a text column")
        return "--image_column", ["file"]
    flag, columns = "--text_column", [text_column or recipe.input_column]
    if isinstance(recipe, ImageRecipe):
        names = (recipe.image_column, "image", "file")
        default = next((name for name in names if name in input.columns), recipe.input_column)
        flag, columns = "--image_column", [options.image_column or default]
    elif isinstance(recipe, TextRecipe):
        recipe.refuse_other_columns(run.path, text_column, options.text_columns)
        if recipe.text_columns is not None:
            flag = "--text_columns"
            columns = columns_read(run, {"text_columns": options.text_columns})
        elif not text_column and recipe.text_column in input.columns:
            columns = [recipe.text_column]
    _refuse_missing(run, input, flag, columns)
    return flag, columns


def _refuse_missing(run: Run, input: Input, flag: str, columns: Sequence[str]) -> None:
    is_named = isinstance(run.recipe(scores=False), (ImageRecipe, TextRecipe))
    reader = flag if is_named else f"the model of {run.path} does not read text"
    if wrong := [
        f"{reader}: no column '{column}' in {input.name}"
        f"{suggestion(column, input.columns)} "
        f"(available: {', '.join(map(str, input.columns))})"
        for column in columns
        if column not in input.columns
    ]:
        raise UserError(*wrong)


def _shortest_digits(values: np.ndarray) -> list[float]:
    """Return only the digits of a float32: ``0.9812``, not ``0.9811999797821045``."""
    return [float(str(value)) for value in values.astype(np.float32)]


def _stamp(path: Path) -> str:
    """Return a stamp that changes when the file, or a file of the folder, changes."""
    if not path.is_dir():
        about = path.stat()
        return f"{about.st_size} bytes of {about.st_mtime_ns}"
    stamps = [f"{file.name} {_stamp(file)}" for file in sorted(path.rglob("*")) if file.is_file()]
    digest = hashlib.sha256("\n".join(stamps).encode()).hexdigest()[:16]
    return f"{len(stamps)} files {digest}"
