"""Predictions of new rows: rows in memory, a file of any size, or a stream."""

import reprlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from finetune.checking.suspects import FILE
from finetune.data import arrow, memory
from finetune.data.read import READABLE
from finetune.errors import Findings, UserError, counted
from finetune.exporting.module import model_loader
from finetune.models import cpu
from finetune.pipeline.events import Advanced, Progress, ignore
from finetune.predicting import FILES, READING, Options
from finetune.predicting.output import Parts, write_rows
from finetune.predicting.request import STANDARD_INPUT, Request
from finetune.recipe import ImageRecipe, TextRecipe
from finetune.recipe.run import Run
from finetune.runs.directory import PREDICTIONS
from finetune.runs.records import Manifest
from finetune.runtime import distributed, hardware
from finetune.runtime.formats import QUOTING, SEPARATORS

_MAX_WAIT = 1800  # seconds, for a rank whose chunk takes longer than those of the others
#: Suffixes of the files that can be written.
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
CHOICES = {"csv_quoting": QUOTING, "precision": ("fp32", "bf16"), "cpu_kernels": cpu.CHOICES}


@dataclass(frozen=True)
class FilePrediction:
    """A file that was predicted."""

    output: Path  # that was written
    rows: int  # how many it has
    rows_before: int  # rows that an earlier, interrupted call had predicted
    samples_per_second: float  # of the others, all processes together
    precision: str  # of the computation
    notes: list[str]  # what the user should know, a sentence each


def predict(
    run: Run | str | Path,
    data: pd.DataFrame | Iterable[str] | Iterable[tuple[str, ...]] | Iterable[Mapping[str, Any]],
    *,
    trust_recipe: bool = False,
    progress: Progress = ignore,
    **options: Any,
) -> pd.DataFrame:
    """Predict rows that are in memory, in this process.

    Args:
        run: A run with a model, or its directory.
        data: A frame of pandas or polars, texts, paths of images, or rows as mappings. What the
            model reads is the column ``text_column`` or ``image_column`` (default: that of the run
            if there is one, else ``text``, or ``image`` or ``file``). Of a run that reads several
            columns: a frame, tuples, or rows as mappings, with ``text_columns`` (default: those of
            the run).
        trust_recipe: See :meth:`Run.load`.
        progress: Called with :class:`~finetune.pipeline.events.Advanced` after each chunk.
        **options: Those of :class:`Options`.

    Returns:
        A copy with the columns ``label`` and ``probability`` added (in a regression
        ``prediction``), as ``predict`` of the command line adds them to a file. A row whose value
        is missing gets missing predictions.

    Raises:
        UserError: If the data or the options are not what the run can predict.
    """
    errors = Findings()
    with errors.collect():
        request = _request(run, None, options, trust_recipe, errors)
        if isinstance(data, pd.DataFrame):
            frame = data.copy()
        elif memory.is_table(data):  # of polars, for instance
            frame = arrow.with_supported_types(pa.table(data)).to_pandas(integer_object_nulls=True)
        else:
            frame = _frame(data, list(request.choose_columns()))
            if isinstance(data, pd.Series):
                frame.index = data.index
        if repeated := frame.columns[frame.columns.duplicated()].tolist():
            raise UserError(f"the data has two columns named {repeated[0]!r}: rename one")
        request.read(frame)
    errors.raise_errors()
    predictions = []
    for _, _, added in request.predict(request.chunks):
        predictions.append(added)
        progress(Advanced("predicted", sum(map(len, predictions)), request.total))
    for name in request.added:
        values: list[Any] = []
        for table in predictions:
            values += table.column(name).to_pylist()
        frame[name] = values
    return frame


def predict_file(
    run: Run | str | Path,
    source: str | Path,
    output: str | Path | IO[str],
    *,
    resume: bool = False,
    trust_recipe: bool = False,
    progress: Progress = ignore,
    **options: Any,
) -> FilePrediction:
    """Predict a file or images; in a job of several processes every rank calls it.

    Each process predicts every n-th chunk, and rank 0 joins what they wrote.

    Args:
        run: As in :func:`predict`.
        source: A file of rows that training reads (:data:`finetune.data.read.READABLE`), a
            ``.txt`` file, an image, a folder of images, or ``-`` for standard input.
        output: A ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet`` file; it is there once all is done.
            Or a file that is open: rows are written to it in the format of the source as they are
            done, in one process.
        resume: Whether to continue an interrupted prediction.
        trust_recipe: As in :func:`predict`.
        progress: Likewise, on rank 0.
        **options: Likewise.

    Raises:
        UserError: If the input, the output or the options cannot be used.
    """
    target = Path(output).expanduser() if isinstance(output, (str, Path)) else output
    path = target if isinstance(target, Path) else None
    resumable = None if str(source) == STANDARD_INPUT else path
    ranks = distributed.ranks()

    def prepare() -> tuple[Request, Parts | None]:
        errors = Findings()
        if path:
            _check_output(path, source, errors)
        if resumable is None and (resume or ranks.world_size > 1):
            errors.error(
                "--resume, and several processes, need --output and an INPUT that can be read again"
            )
        with errors.collect():
            request = _request(run, source, options, trust_recipe, errors, path)
            request.read()
        errors.raise_errors()
        return request, Parts(resumable, request, resume) if resumable else None

    use_cpu = not torch.accelerator.is_available()
    distributed.join_process_group(None, _MAX_WAIT, use_cpu=use_cpu)
    request, parts = distributed.main_process_first(prepare, share=False)
    complete = parts.complete if parts else {}
    before = sum(complete.values())
    rows = request.total or 0
    started = time.perf_counter()

    def predicted(numbers: Iterable[int]) -> Iterator[tuple[int, Any, pa.Table]]:
        nonlocal rows
        rows_done = 0
        for number, some_rows, added in request.predict(numbers):
            rows_done += len(some_rows)
            rows = request.total or rows_done
            # the other processes have done about as many
            rows_of_all = min(before + rows_done * ranks.world_size, rows)
            if ranks.rank == 0:
                progress(Advanced("predicted", rows_of_all, request.total))
            yield number, some_rows, added

    if parts is None:
        write_rows(target, request, (chunk[1:] for chunk in predicted(request.chunks)))
        seconds = time.perf_counter() - started
    else:
        numbers = request.chunks[ranks.rank :: ranks.world_size]
        for number, _, added in predicted(n for n in numbers if n not in complete):
            parts.write(number, added)
        distributed.gather(None)  # wait for the others
        distributed.leave_process_group()  # all at once: only rank 0 has work left
        seconds = time.perf_counter() - started
        if ranks.rank == 0:
            parts.join()
    return FilePrediction(
        output=path or Path("-"),
        rows=rows,
        rows_before=before,
        samples_per_second=(rows - before) / seconds,
        precision=str(request.options.precision),
        notes=_notes(request),
    )


def _frame(data: Iterable[Any], columns: list[str]) -> pd.DataFrame:
    """Return texts, paths, tuples of texts or rows as a frame; ``columns`` are the names."""
    if isinstance(data, (str, bytes, Path, Mapping)):
        raise UserError(
            f"expected texts, rows or a frame, found {reprlib.repr(data)}: put one text or row "
            "into a list, columns into a frame; for a file there is finetune.predict_file"
        )
    rows = list(data)
    if rows and all(isinstance(row, Mapping) for row in rows):
        frame = pd.DataFrame(rows)
        for name in frame.select_dtypes("float"):  # whole numbers beside missing ones stay exact
            values = pd.Series([row.get(name) for row in rows], dtype=object)
            if pd.api.types.infer_dtype(values) == "integer":
                frame[name] = values.where(values.notna(), None)
        return frame
    if len(columns) == 1:
        return pd.DataFrame({columns[0]: pd.Series(rows, dtype=object)})
    for number, row in enumerate(rows, 1):
        if not isinstance(row, tuple) or len(row) != len(columns):
            expected = f"a tuple of texts ({', '.join(columns)}), found {reprlib.repr(row)}"
            raise UserError(f"the data, row {number}: expected {expected}")
    return pd.DataFrame(rows, columns=columns, dtype=object)


def _request(
    run: Run | str | Path,
    source: str | Path | None,
    values: dict[str, Any],
    trust_recipe: bool,
    report: Findings,
    output: Path | None = None,
) -> Request:
    """Return a request; mistakes in ``values``, those of :class:`Options`, are reported."""
    options = _parse_options(values, report)
    run = Run.load(run, trust_recipe=trust_recipe)
    # bf16 changes probabilities by less than 0.02, but leaves a regression with three digits
    is_classifier = run.kind.has_probabilities and isinstance(run.recipe(scores=False), TextRecipe)
    load_model = model_loader(run, options, workers=hardware.use_threads(None))
    kind = distributed.device().type
    is_bf16 = load_model is None and is_classifier and hardware.prefers_bf16(kind)
    options = replace(
        options,
        precision=options.precision or ("bf16" if is_bf16 else "fp32"),
        cpu_kernels=options.cpu_kernels or run.manifest.arguments.get("cpu_kernels", "auto"),
    )
    request = Request(run, source, options, output)
    request.load_model = load_model or request.load_model
    _refuse_unused(request, source, report)
    return request


def _parse_options(values: Mapping[str, Any], report: Findings) -> Options:
    names = [option.name for option in fields(Options)]
    if unknown := [name for name in values if name not in names]:
        report.error(f"unknown option {', '.join(unknown)} (available: {', '.join(names)})")
    for name, choices in CHOICES.items():
        if values.get(name) not in (None, *choices):
            report.error(f"--{name} {values[name]}: expected {' or '.join(choices)}")
    if (tokens := values.get("batch_tokens")) is not None and tokens < 1:
        report.error(f"--batch_tokens {tokens}: expected 1 or more")
    return Options(**{name: value for name, value in values.items() if name in names})


def _refuse_unused(request: Request, source: str | Path | None, report: Findings) -> None:
    """Report flags that have no effect on this input, output and model."""
    options, run = request.options, request.run
    is_image = isinstance(request.recipe, ImageRecipe)
    unused = {"text_column", "text_columns"} if is_image else {"image_column"}
    if request.kind not in READABLE:
        unused |= set(FILES)
    if flags := [f"--{name}" for name in READING if name in unused and getattr(options, name)]:
        report.error(f"{', '.join(flags)}: not for {request.name} and the model of {run.path}")
    suffix = "a frame" if source is None else request.suffix
    if options.csv_safe and suffix not in SEPARATORS:
        report.error(f"--csv_safe: the output is {suffix}; expected .csv or .tsv")
    if options.all_probabilities and not request.task.has_probabilities:
        report.error("--all_probabilities: the run predicts a number, it has no classes")
    if options.calibrated and run.manifest.temperature is None:
        report.error(f"--calibrated: {run.path} has no temperature")


def _notes(request: Request) -> list[str]:
    """Return sentences for the user at the end."""
    notes = [*filter(None, [request.run.unfinished]), *request.file_facts]
    if renamed := [name for name in request.added if name.startswith("predicted ")]:
        notes.append(f"the input already has columns of these names: see {', '.join(renamed)}")
    nulls = [request.rows.column(name).is_null().to_numpy() for name in request.columns_read]
    if missing := int(np.any(nulls, axis=0).sum()):
        rows = f"{counted(missing, 'row')} without a value in {' or '.join(request.columns_read)}"
        notes.append(f"{rows}: their predictions are empty")
    return notes


def _check_output(output: Path, source: str | Path, report: Findings) -> None:
    folder = output.parent
    other = Path(source).expanduser()
    is_input = output.exists() and other.exists() and output.samefile(other)
    if output.suffix not in SUFFIXES or output.is_dir() or not folder.is_dir():
        expected = f"a file ending in {', '.join(SUFFIXES)}, in a folder that exists"
        report.error(f"--output {output}: expected {expected}")
    elif is_input or (output.name in (PREDICTIONS, FILE) and Manifest.exists_in(folder)):
        report.error(f"--output {output} is the input or part of a run: name another file")
