"""A prediction request: a run, an input, the column to read and the columns to add."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.data import bounds, files, headers
from finetune.data.delimited import separator_hint
from finetune.data.files import Chunk, Mine
from finetune.data.findings import names_in
from finetune.data.images import decoded
from finetune.data.layout import ReadOptions
from finetune.errors import Report, UserError, counted, suggestion
from finetune.predicting import engine, odd_texts, shares
from finetune.predicting.inputs import STANDARD_INPUT, Input
from finetune.predicting.options import Options, mistakes
from finetune.predicting.overlap import ahead
from finetune.predicting.shares import Tell
from finetune.recipe import ImageClassification, TextClassification
from finetune.runs.run import Run
from finetune.runtime import formats

if TYPE_CHECKING:
    from datasets import Dataset

    from finetune.recipe import Recipe

#: The values of the added columns, by name.
Added = Mapping[str, list[Any]]
_MOST_NAMED = 5


def read_options(run: Run, source: str | Path, options: Mapping[str, Any]) -> ReadOptions:
    """Return how to read a file: as asked for, quotation marks else as those of the run."""
    same = formats.suffix(source) in formats.SEPARATORS
    usual = run.manifest.options.get("csv_quoting", "auto") if same else "auto"
    return ReadOptions(
        quoting=str(options.get("csv_quoting") or usual),
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
        UserError: if an option is unknown, or needs something that the run or the input lacks.

    Attributes:
        columns_read: The input columns that the model reads; for a folder, the files themselves.
        task: Of the labels of the run.
        added: Names of the added columns, none of which the input has.
        temperature: Divides the logits.
        precision: Of the computation.
        cpu_kernels: ``auto`` or ``off``, on a CPU.
        rows: The rows so far.
        missing: How many of those for this process have no value in one of these columns.
        odd: How many have null bytes, and how many are far longer than others.
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
        kind = "a number, it has no classes"
        if self.task.has_probabilities:
            kind = "any number of labels a row, and a temperature is for one class a row"
        found = [
            f"--{flag}: {run.path} predicts {kind}"
            for flag, is_possible in possible.items()
            if getattr(self.options, flag) and not is_possible
        ]
        said = read_options(run, "", vars(self.options)).named
        if input.reader is not None:  # a file has refused what is not for it
            found += [f"{flag} {value}: {input.name} is no file" for flag, value in said.items()]
        temperature = run.manifest.temperature if self.options.calibrated else 1.0
        if temperature is None and self.task.calibrates:
            status = run.status
            why = "none improves its probabilities; see the report"
            why = why if status == "finished" else f"its status is '{status}'"
            found.append(f"--calibrated: {run.path} has no temperature: {why}")
        if found:
            raise UserError(*found)
        self.temperature = float(temperature or 1.0)
        self._flag, self.columns_read = _columns_read(run, input, self.options)
        self.added = _names(
            self.task.predicted_names(every=self.options.all_probabilities), input.columns
        )
        self.precision = self.options.precision or engine.default_precision(run)
        trained = run.manifest.arguments.get("cpu_kernels", "auto")
        self.cpu_kernels = self.options.cpu_kernels or trained
        self.rows = self.missing = 0
        self.odd = (0, 0)

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
            columns = " or ".join(f"'{name}'" for name in self.columns_read)
            found.append(
                f"{counted(self.missing, 'row')} without a value in {columns}: their predictions "
                "are empty"
            )
        return [*found, *odd_texts.notes(*self.odd)]

    def facts(self) -> dict[str, Any]:
        """Return everything that the predictions depend on, by names that a user knows."""
        name = self.input.name
        return {
            f"INPUT {name}": "" if self.input.kind == STANDARD_INPUT else _stamp(Path(name)),
            f"the model of {self.run.path}": [
                _stamp(path) for path in sorted(self.run.path.glob("*.safetensors"))
            ],
            self._flag: ",".join(self.columns_read),
            "how the file is written": str(self.input.layout),
            "the columns added": self.added,
            "the temperature": self.temperature,
            "--precision": self.precision,
            "--cpu_kernels": self.cpu_kernels,
            "--csv_safe": self.options.csv_safe,
            "the rows of a part": f"{files.CHUNK_ROWS} of the file",
        }

    def predict(
        self,
        tell: Tell,
        mine: Mine = lambda number: True,
        done: Callable[[int], bool] = lambda number: False,
    ) -> Iterator[tuple[Chunk, Added]]:
        """Predict the input chunk by chunk; the model is loaded for the first one.

        Args:
            tell: Is called after each batch and each chunk.
            mine: Returns whether the chunk of this number is for this process; the rows of others
                are counted, and not parsed.
            done: Returns whether it was predicted before.

        Yields:
            A chunk, and the columns that are added to it: none if nothing is to be predicted.

        Raises:
            UserError: if a row holds what the model cannot read.
        """
        predictor, start = None, 0
        if self.input.counted:
            tell = shares.paced(tell, self.input.total or 0, mine)
        for chunk in self._chunks(mine):
            values = [] if chunk.skipped else self._values(chunk)
            added: dict[str, list[Any]] = {}
            if not chunk.skipped and not done(chunk.number):
                predictor = predictor or engine.Predictor(
                    self.run, self.precision, self.options.batch_tokens, self.cpu_kernels
                )
                step = (chunk.end - start) / len(chunk)
                advance = partial(self._advance, tell, start, step)
                try:
                    added = self._added(predictor, values, advance)
                except UserError as error:
                    told = self._unreadable(predictor.recipe) or error.mistakes
                    raise UserError(*told) from error
            yield chunk, added
            start = chunk.end
            self.rows += len(chunk)
            self.missing += sum(value is None for value in values)
            null_bytes, far_longer = odd_texts.count(values)
            self.odd = (self.odd[0] + null_bytes, self.odd[1] + far_longer)
            tell(start, self.rows)

    def _chunks(self, mine: Mine) -> Iterator[Chunk]:
        """Read the next chunk while one is predicted; a user who types is waited for here."""
        chunks = self.input.chunks(mine)
        return chunks if self.input.kind == STANDARD_INPUT else ahead(chunks)

    def _values(self, chunk: Chunk) -> list[Any]:
        """Return what the model reads of each row, None where it is missing: for several columns,
        a tuple.
        """
        columns = [chunk.values(name) for name in self.columns_read]
        if len(columns) == 1:
            return columns[0]
        rows = zip(*columns, strict=True)
        return [None if any(value is None for value in row) else row for row in rows]

    def _unreadable(self, recipe: Recipe) -> list[str]:
        """Return a line for each of the first images of the input that cannot be decoded, and one
        that counts them if there are more.
        """
        reads_files = isinstance(recipe, ImageClassification)
        if self.input.kind == STANDARD_INPUT or not (reads_files or self.input.kind == "folder"):
            return []
        report = Report()
        for value in (each for chunk in self.input.chunks() for each in self._values(chunk)):
            with report.collect():
                if not reads_files:
                    _refuse_no_picture(self._image(value))
                elif isinstance(value, (str, Path, Mapping)):
                    image = value if isinstance(value, Mapping) else {"path": self._image(value)}
                    decoded(image, "an image")
        errors = report.sentences("error")
        more = len(errors) - _MOST_NAMED
        rest = [f"{counted(more, 'more image')} cannot be decoded"] if more > 0 else []
        return [*errors[:_MOST_NAMED], *rest]

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
            for number, row in zip(present, some, strict=True):
                self._refuse_no_text(number, [row] if len(self.columns_read) == 1 else row)
            logits = predictor.texts(some, advance)
        else:
            logits = predictor.rows(self._dataset(some, predictor.recipe), advance)
        for column, found in zip(columns.values(), self._found(logits), strict=True):
            for number, value in zip(present, found, strict=True):
                column[number] = value
        return columns

    def _refuse_no_text(self, number: int, row: Sequence[Any]) -> None:
        """Refuse values of the columns read in a row of the chunk that are no texts."""
        for column, text in zip(self.columns_read, row, strict=True):
            if not isinstance(text, str):
                raise UserError(
                    f"{self.input.name}, {self.input.place(self.rows + number)}: expected a "
                    f"text in '{column}', found {text!r}"
                )
            if not text.isascii() and self.input.kind == "frame":  # files are read as UTF-8
                place = f"{self.input.name}, {self.input.place(self.rows + number)}"
                bounds.refuse_half_characters(text, place)

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
                f"{self.input.name}: expected paths of images in '{self.columns_read[0]}', found "
                f"{value!r}"
            )
        return value


def _names(names: list[str], taken: Sequence[str]) -> list[str]:
    """Return the names of the added columns: ``predicted label`` if the input has ``label``."""
    for number, name in enumerate(names):
        while name in taken:
            name = f"predicted {name}"
        names[number] = name
    return names


def columns_read(run: Run, options: Mapping[str, Any]) -> list[str]:
    """Return the names of the texts of a row, for an input that has none itself: those of the run
    where it reads several, or as asked for.
    """
    recipe = run.recipe(scores=False)
    if not isinstance(recipe, TextClassification) or recipe.text_columns is None:
        return ["text"]
    return names_in("--text_columns", options.get("text_columns")) or recipe.columns_read()


def _columns_read(run: Run, input: Input, options: Options) -> tuple[str, list[str]]:
    """Return the option that names the columns that are read, and these columns."""
    recipe, wanted = run.recipe(scores=False), options.text_column
    if options.image_column is not None and not isinstance(recipe, ImageClassification):
        raise UserError(f"--image_column: the model of {run.path} does not read images of a column")
    asked = wanted or options.text_columns
    if isinstance(recipe, ImageClassification) and asked:
        flag = "--text_column" if wanted else "--text_columns"
        raise UserError(f"{flag}: the model of {run.path} reads images: --image_column")
    if input.kind == "folder":
        if isinstance(recipe, TextClassification) or asked:
            raise UserError(f"{input.name} is a folder, but {run.path} reads a text column")
        return "--image_column", ["file"]
    flag, columns = "--text_column", [wanted or recipe.input_column]
    if isinstance(recipe, ImageClassification):
        names = (recipe.image_column, "image", "file")
        there = next((name for name in names if name in input.columns), recipe.input_column)
        flag, columns = "--image_column", [options.image_column or there]
    elif isinstance(recipe, TextClassification):
        recipe.refuse_other_columns(run.path, wanted, options.text_columns)
        if recipe.text_columns is not None:
            flag = "--text_columns"
            columns = columns_read(run, {"text_columns": options.text_columns})
        elif not wanted and recipe.text_column in input.columns:
            columns = [recipe.text_column]
    _refuse_lacking(run, input, flag, columns)
    return flag, columns


def _refuse_lacking(run: Run, input: Input, flag: str, columns: Sequence[str]) -> None:
    is_named = isinstance(run.recipe(scores=False), (ImageClassification, TextClassification))
    of = flag if is_named else f"the model of {run.path} does not read text"
    has_header = input.kind in (*formats.SEPARATORS, formats.SPREADSHEET)
    instead = headers.hint_of_names(input.columns) if has_header else ""
    separated = separator_hint(input.columns) if input.kind in formats.SEPARATORS else ""
    mistakes = [
        f"{of}: no column '{column}' in {input.name}"
        f"{instead or separated or suggestion(column, input.columns)} "
        f"(available: {', '.join(map(str, input.columns))})"
        for column in columns
        if column not in input.columns
    ]
    if mistakes:
        raise UserError(*mistakes)


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
