"""One prediction: a run, an input, the column that is read and the columns that are added."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.data.files import CHUNK_ROWS, Chunk
from finetune.errors import UserError, suggestion
from finetune.models import cpu
from finetune.predicting import engine
from finetune.predicting.columns import AddedColumns
from finetune.predicting.inputs import STANDARD_INPUT, Input
from finetune.recipe import TextClassification
from finetune.runs.run import Run

if TYPE_CHECKING:
    from datasets import Dataset

    from finetune.predicting.progress import Position


@dataclass(frozen=True)
class Options:
    """How to predict; the defaults are those of the command line.

    Attributes:
        text_column: Column of the text; that of the run, or ``text``, if None.
        all_probabilities: Whether to add the probability of every class.
        calibrated: Whether to divide logits by the temperature of the run.
        precision: ``fp32`` or ``bf16``; what suits run and device if None.
        batch_tokens: Tokens of a batch, padding included; what suits the device if None.
        cpu_kernels: ``auto`` or ``off``, on a CPU; as the run was trained if None.
    """

    text_column: str | None = None
    all_probabilities: bool = False
    calibrated: bool = False
    precision: str | None = None
    batch_tokens: int | None = None
    cpu_kernels: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Options:
        """Return the options of these names.

        Raises:
            UserError: if one is unknown or has a value that it cannot have.
        """
        known = [each.name for each in fields(cls)]
        mistakes = [
            f"unknown option '{name}'{suggestion(name, known)} (there are: {', '.join(known)})"
            for name in options
            if name not in known
        ]
        if options.get("precision") not in (None, "fp32", "bf16"):
            mistakes.append(f"--precision {options['precision']}: expected fp32 or bf16")
        if options.get("cpu_kernels") not in (None, *cpu.CHOICES):
            mistakes.append(
                f"--cpu_kernels {options['cpu_kernels']}: expected {' or '.join(cpu.CHOICES)}"
            )
        if (tokens := options.get("batch_tokens")) is not None and tokens < 1:
            mistakes.append(f"--batch_tokens {tokens}: expected 1 or more")
        if mistakes:
            raise UserError(*mistakes)
        return cls(**options)


@dataclass
class Request:
    """What is to be done, checked.

    Attributes:
        run: Whose model predicts.
        input: What is predicted.
        column: Of the input, which the model sees; the files themselves if it is a folder.
        added: Makes the added columns.
        precision: Of the computation.
        cpu_kernels: ``auto`` or ``off``, on a CPU.
        options: As they were given.
        rows: Counted as chunks pass by.
        missing: Rows among them without a value.
    """

    run: Run
    input: Input
    column: str
    added: AddedColumns
    precision: str
    cpu_kernels: str
    options: Options
    rows: int = field(default=0, init=False)
    missing: int = field(default=0, init=False)

    @classmethod
    def of(cls, run: Run, input: Input, options: Options) -> Request:
        """Return the request that these options make of an input.

        Raises:
            UserError: if the run or the input has not what they ask for.
        """
        mistakes = [
            f"--{flag}: there are no classes, {run.path} predicts a number"
            for flag in ("all_probabilities", "calibrated")
            if getattr(options, flag) and not run.labels
        ]
        temperature = run.manifest.temperature if options.calibrated else 1.0
        if temperature is None and run.labels:
            mistakes.append(f"--calibrated: {run.path} has no temperature in its run.json")
        if mistakes:
            raise UserError(*mistakes)
        added = AddedColumns.beside(
            input.columns, run.labels, options.all_probabilities, float(temperature or 1.0)
        )
        column = _column(run, input, options.text_column)
        precision = options.precision or engine.default_precision(run)
        trained = run.manifest.arguments.get("cpu_kernels", "auto")
        kernels = options.cpu_kernels or trained
        return cls(run, input, column, added, precision, kernels, options)

    @property
    def columns(self) -> list[str]:
        """Of the output."""
        return [*self.input.columns, *self.added.names]

    @property
    def notes(self) -> list[str]:
        """What the user is to be told when all is done."""
        found = []
        if renamed := [name for name in self.added.names if name.startswith("predicted ")]:
            named = ", ".join(f"'{name}'" for name in renamed)
            found.append(f"added as {named}: the input has columns of the shorter names")
        if self.missing:
            found.append(
                f"rows without a value in '{self.column}', whose predictions are empty: "
                f"{self.missing:,}"
            )
        return found

    def facts(self) -> dict[str, Any]:
        """What the predictions depend on, by the words in which a user knows it."""
        return {
            f"INPUT {self.input.name}": self._stamp_of_input(),
            f"the model of {self.run.path}": [
                _stamp(path) for path in sorted(self.run.path.glob("*.safetensors"))
            ],
            "--text_column": self.column,
            "the columns added": self.added.names,
            "the temperature": self.added.temperature,
            "--precision": self.precision,
            "--cpu_kernels": self.cpu_kernels,
            "the rows of a part": CHUNK_ROWS,
        }

    def _stamp_of_input(self) -> str:
        return "" if self.input.kind == STANDARD_INPUT else _stamp(Path(self.input.name))

    def predict(
        self, predictor: engine.Predictor, chunk: Chunk, advance: Callable[[int], object]
    ) -> dict[str, list[Any]]:
        """The added columns of a chunk.

        Raises:
            UserError: if a row holds what the model cannot read.
        """
        values = self._values(chunk)
        present = [number for number, value in enumerate(values) if value is not None]
        logits = None
        if present:
            some = [values[number] for number in present]
            if not predictor.reads_text:
                logits = predictor.rows(self._dataset(some, predictor), advance)
            else:
                for number, text in zip(present, some, strict=True):
                    if not isinstance(text, str):
                        raise UserError(
                            f"row {self.rows + number + 1} of {self.input.name}: expected a text "
                            f"in '{self.column}', found {text!r}"
                        )
                logits = predictor.texts(some, advance)
        return self.added.columns(logits, present, len(chunk))

    def chunks(
        self, wanted: Callable[[int], bool], progress: Position
    ) -> Iterator[tuple[Chunk, bool]]:
        """Every chunk, and whether it is wanted; the rows are counted either way."""
        for chunk in self.input.chunks():
            progress.begin(chunk)
            yield chunk, wanted(chunk.number)
            self.passed(chunk)
            progress.end(chunk)

    def passed(self, chunk: Chunk) -> None:
        """Count the rows of a chunk that is done."""
        self.rows += len(chunk)
        self.missing += sum(value is None for value in self._values(chunk))

    def _values(self, chunk: Chunk) -> list[Any]:
        return chunk.values(self.column)

    def _dataset(self, values: Sequence[Any], predictor: engine.Predictor) -> Dataset:
        from datasets import Dataset, Features, Image

        name = predictor.recipe.input_column
        pictures = Features({name: Image()})
        if self.input.kind != "folder":
            embedded = all(isinstance(value, dict) and "bytes" in value for value in values)
            return Dataset.from_dict({name: list(values)}, pictures if embedded else None)
        paths = [Path(self.input.name) / value for value in values]
        for path in paths:
            _refuse_no_picture(path)
        return Dataset.from_dict({name: list(map(str, paths))}, pictures)


def _column(run: Run, input: Input, wanted: str | None) -> str:
    recipe = run.recipe()
    if input.kind == "folder":
        if isinstance(recipe, TextClassification) or wanted:
            raise UserError(f"{input.name} is a folder: {run.path} reads a column of text")
        return "file"
    if isinstance(recipe, TextClassification):
        usual = recipe.text_column if recipe.text_column in input.columns else "text"
    else:
        usual = recipe.input_column
    column = wanted or usual
    if column not in input.columns:
        hint = suggestion(column, input.columns)
        if input.kind == ".csv" and len(input.columns) == 1 and ";" in input.columns[0]:
            hint = "; fields are separated by commas in a .csv, not by semicolons"
        raise UserError(
            f"--text_column: no column '{column}' in {input.name}{hint} "
            f"(there are: {', '.join(input.columns)})"
        )
    return column


def _stamp(path: Path) -> str:
    """Tells a file, or the files of a folder, from what they are after a change."""
    if not path.is_dir():
        about = path.stat()
        return f"{about.st_size} bytes of {about.st_mtime_ns}"
    each = [f"{file.name} {_stamp(file)}" for file in sorted(path.iterdir()) if file.is_file()]
    return f"{len(each)} files {hashlib.sha256(chr(10).join(each).encode()).hexdigest()[:16]}"


def _refuse_no_picture(path: Path) -> None:
    from PIL import Image

    try:
        with Image.open(path) as picture:
            picture.load()
    except (OSError, SyntaxError) as error:
        raise UserError(f"{path} cannot be read as a picture: {error}") from error
