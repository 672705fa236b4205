"""A prediction request: a run, an input, the column to read and the columns to add."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.data import files
from finetune.data.delimited import SEPARATORS, separator_hint
from finetune.data.files import Chunk
from finetune.errors import UserError, counted, suggestion
from finetune.predicting import engine
from finetune.predicting.inputs import STANDARD_INPUT, Input
from finetune.predicting.options import Options, mistakes
from finetune.recipe import ImageClassification, TextClassification
from finetune.runs.run import Run

if TYPE_CHECKING:
    from datasets import Dataset

    from finetune.recipe import Recipe

#: The values of the added columns, by name.
Added = Mapping[str, list[Any]]
#: Takes the position in the input and the rows that are done.
Tell = Callable[[float, int], object]


def csv_quoting(run: Run, source: str | Path, options: Mapping[str, Any]) -> str:
    """Return how to read the quotation marks of a file: as asked for, or as those of the run."""
    same = Path(source).suffix.lower() in SEPARATORS
    usual = run.manifest.options.get("csv_quoting", "auto") if same else "auto"
    return str(options.get("csv_quoting") or usual)


class Request:
    """A checked prediction request.

    Args:
        run: Whose model predicts.
        input: What is predicted.
        options: Those of :class:`~finetune.predicting.options.Options`, by name.

    Raises:
        UserError: if an option is unknown, or needs something that the run or the input lacks.

    Attributes:
        column: The input column that the model reads; for a folder, the files themselves.
        task: Of the labels of the run.
        added: Names of the added columns, none of which the input has.
        temperature: Divides the logits.
        precision: Of the computation.
        cpu_kernels: ``auto`` or ``off``, on a CPU.
        rows: The rows so far.
        missing: How many of them have no value in the column.
    """

    def __init__(self, run: Run, input: Input, options: Mapping[str, Any]) -> None:
        run.require_model()
        if found := mistakes(options):
            raise UserError(*found)
        self.run, self.input, self.options = run, input, Options(**options)
        self.task = run.kind
        possible = {
            "all_probabilities": self.task.has_probabilities,
            "calibrated": self.task.calibrates,
        }
        found = [
            f"--{flag}: {run.path} predicts a number, it has no classes"
            for flag, is_possible in possible.items()
            if getattr(self.options, flag) and not is_possible
        ]
        quoting = self.options.csv_quoting or "auto"
        if quoting != "auto" and input.kind not in SEPARATORS:
            found.append(f"--csv_quoting {quoting}: {input.name} is neither .csv nor .tsv")
        temperature = run.manifest.temperature if self.options.calibrated else 1.0
        if temperature is None and self.task.calibrates:
            status = run.status
            why = "none improves its probabilities; see the report"
            why = why if status == "finished" else f"its status is '{status}'"
            found.append(f"--calibrated: {run.path} has no temperature: {why}")
        if found:
            raise UserError(*found)
        self.temperature = float(temperature or 1.0)
        self.column = _column(run, input, self.options)
        self.added = _names(
            self.task.predicted_names(every=self.options.all_probabilities), input.columns
        )
        self.precision = self.options.precision or engine.default_precision(run)
        trained = run.manifest.arguments.get("cpu_kernels", "auto")
        self.cpu_kernels = self.options.cpu_kernels or trained
        self.rows = self.missing = 0

    @property
    def columns(self) -> list[str]:
        """The columns of the output."""
        return [*self.input.columns, *self.added]

    @property
    def notes(self) -> list[str]:
        """Sentences for the user when the prediction is done."""
        found = [note for note in (self.run.unfinished, self.input.note) if note]
        if renamed := [name for name in self.added if name.startswith("predicted ")]:
            taken = ", ".join(f"'{name.removeprefix('predicted ')}'" for name in renamed)
            named = ", ".join(f"'{name}'" for name in renamed)
            found.append(f"the input already has {taken}: the predictions are in {named}")
        if self.missing:
            found.append(
                f"{counted(self.missing, 'row')} without a value in '{self.column}': their "
                "predictions are empty"
            )
        return found

    def facts(self) -> dict[str, Any]:
        """Return everything that the predictions depend on, by names that a user knows."""
        name = self.input.name
        return {
            f"INPUT {name}": "" if self.input.kind == STANDARD_INPUT else _stamp(Path(name)),
            f"the model of {self.run.path}": [
                _stamp(path) for path in sorted(self.run.path.glob("*.safetensors"))
            ],
            "--image_column" if self.options.image_column else "--text_column": self.column,
            "--csv_quoting": self.input.quoting,
            "the columns added": self.added,
            "the temperature": self.temperature,
            "--precision": self.precision,
            "--cpu_kernels": self.cpu_kernels,
            "--csv_safe": self.options.csv_safe,
            "the rows of a part": files.CHUNK_ROWS,
        }

    def predict(
        self, tell: Tell, wanted: Callable[[int], bool] = lambda number: True
    ) -> Iterator[tuple[Chunk, Added]]:
        """Predict the input chunk by chunk; the model is loaded for the first one.

        Args:
            tell: Is called after each batch and each chunk.
            wanted: Returns whether to predict the chunk of this number; its rows are counted
                either way.

        Yields:
            A chunk, and the columns that are added to it: none if it is not wanted.

        Raises:
            UserError: if a row holds what the model cannot read.
        """
        predictor, start = None, 0
        for chunk in self.input.chunks():
            values, added = chunk.values(self.column), {}
            if wanted(chunk.number):
                predictor = predictor or engine.Predictor(
                    self.run, self.precision, self.options.batch_tokens, self.cpu_kernels
                )
                step = (chunk.end - start) / len(chunk)
                added = self._added(predictor, values, partial(self._advance, tell, start, step))
            yield chunk, added
            start = chunk.end
            self.rows += len(chunk)
            self.missing += sum(value is None for value in values)
            tell(start, self.rows)

    def _advance(self, tell: Tell, start: int, step: float, done: int) -> None:
        """Tell the position in the middle of a chunk: one of long texts takes a minute."""
        tell(start + done * step, self.rows + done)

    def _added(
        self, predictor: engine.Predictor, values: list[Any], advance: engine.Advance
    ) -> dict[str, list[Any]]:
        """Return the added columns of a chunk, None where a value is missing."""
        columns: dict[str, list[Any]] = {name: [None] * len(values) for name in self.added}
        present = [number for number, value in enumerate(values) if value is not None]
        if not present:
            return columns
        some = [values[number] for number in present]
        if predictor.reads_text:
            for number, text in zip(present, some, strict=True):
                if not isinstance(text, str):
                    raise UserError(
                        f"{self.input.name}, {self.input.place(self.rows + number)}: expected a "
                        f"text in '{self.column}', found {text!r}"
                    )
                if not text.isascii() and self.input.kind == "frame":  # files are read as UTF-8
                    place = f"{self.input.name}, {self.input.place(self.rows + number)}"
                    files.refuse_half_characters(text, place)
            logits = predictor.texts(some, advance)
        else:
            logits = predictor.rows(self._dataset(some, predictor.recipe), advance)
        for column, found in zip(columns.values(), self._found(logits), strict=True):
            for number, value in zip(present, found, strict=True):
                column[number] = value
        return columns

    def _found(self, logits: np.ndarray) -> list[list[Any]]:
        """Return the values of each added column, from logits of shape ``(rows, classes)``."""
        every = self.options.all_probabilities
        found = self.task.predicted(logits, self.temperature, every=every)
        return [_short(each) if isinstance(each, np.ndarray) else each for each in found]

    def _dataset(self, values: list[Any], recipe: Recipe) -> Dataset:
        from datasets import Dataset, Features, Image

        name, reads_files = recipe.input_column, isinstance(recipe, ImageClassification)
        images: Features | None = Features({name: Image()})
        if self.input.kind == "folder" or reads_files:
            values = [self._image(value) for value in values]
        if reads_files:
            pass  # it says itself which cannot be decoded
        elif self.input.kind == "folder":
            for path in values:
                _refuse_no_picture(path)
        elif not all(isinstance(value, dict) and "bytes" in value for value in values):
            images = None
        return Dataset.from_dict({name: values}, images)

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
                f"{self.input.name}: expected paths of images in '{self.column}', found {value!r}"
            )
        return value


def _names(names: list[str], taken: Sequence[str]) -> list[str]:
    """Return the names of the added columns: ``predicted label`` if the input has ``label``."""
    for number, name in enumerate(names):
        while name in taken:
            name = f"predicted {name}"
        names[number] = name
    return names


def _column(run: Run, input: Input, options: Options) -> str:
    recipe, wanted = run.recipe(scores=False), options.text_column
    if options.image_column is not None and not isinstance(recipe, ImageClassification):
        raise UserError(f"--image_column: the model of {run.path} does not read images of a column")
    if isinstance(recipe, ImageClassification):
        if wanted is not None:
            raise UserError(f"--text_column: the model of {run.path} reads images: --image_column")
        wanted = options.image_column
    if input.kind == "folder":
        if isinstance(recipe, TextClassification) or wanted:
            raise UserError(f"{input.name} is a folder, but {run.path} reads a text column")
        return "file"
    usual = recipe.input_column
    if isinstance(recipe, ImageClassification):
        names = (recipe.image_column, "image", "file")
        usual = next((name for name in names if name in input.columns), usual)
    elif isinstance(recipe, TextClassification):
        usual = recipe.text_column if recipe.text_column in input.columns else "text"
    column = wanted or usual
    if column not in input.columns:
        separated = separator_hint(input.columns) if input.kind in SEPARATORS else ""
        hint = separated or suggestion(column, input.columns)
        is_text = isinstance(recipe, TextClassification)
        flag = "--text_column: " if is_text else f"the model of {run.path} does not read text: "
        flag = "--image_column: " if isinstance(recipe, ImageClassification) else flag
        raise UserError(
            f"{flag}no column '{column}' in {input.name}{hint} "
            f"(available: {', '.join(map(str, input.columns))})"
        )
    return column


def _short(values: np.ndarray) -> list[float]:
    """Return only the digits of a float32: ``0.9812``, not ``0.9811999797821045``."""
    return [float(str(value)) for value in values.astype(np.float32)]


def _stamp(path: Path) -> str:
    """Return a stamp that changes when the file, or a file of the folder, changes."""
    if not path.is_dir():
        about = path.stat()
        return f"{about.st_size} bytes of {about.st_mtime_ns}"
    each = [f"{file.name} {_stamp(file)}" for file in sorted(path.rglob("*")) if file.is_file()]
    return f"{len(each)} files {hashlib.sha256(chr(10).join(each).encode()).hexdigest()[:16]}"


def _refuse_no_picture(path: str) -> None:
    from PIL import Image

    try:
        with Image.open(path) as image:
            image.load()
    except (OSError, SyntaxError) as error:
        raise UserError(f"{path} cannot be read as an image: {error}") from error
