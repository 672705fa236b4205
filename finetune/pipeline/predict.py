"""Predictions of new rows: rows in memory, a file of any size, or a stream."""

import functools
import reprlib
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from finetune.checking.suspects import FILE
from finetune.data import arrow, memory
from finetune.errors import Findings, UserError, counted
from finetune.pipeline.events import Advanced, Progress, ignore
from finetune.pipeline.output import Parts, write_rows
from finetune.pipeline.request import STANDARD_INPUT, Request, cells, parse_options, read_lines
from finetune.predicting.inference import Submission
from finetune.predicting.session import engine_session
from finetune.recipe.inference import RecipeInference, WordInference
from finetune.recipe.run import Run
from finetune.runs.directory import PREDICTIONS
from finetune.runs.records import Manifest
from finetune.runtime import distributed, hardware

_MAX_WAIT = 1800  # seconds, for a rank whose chunk takes longer than those of the others
#: Suffixes of the files that can be written.
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")


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
        **options: Those of :class:`~finetune.predicting.Options`.

    Returns:
        A copy with the columns ``label`` and ``probability`` added (in a regression
        ``prediction``), as ``predict`` of the command line adds them to a file. A row whose value
        is missing gets missing predictions.

    Raises:
        UserError: If the data or the options are not what the run can predict.
    """
    request = _request(run, None, options, trust_recipe, Findings(), data=data)
    if request.run.unfinished:
        warnings.warn(request.run.unfinished, stacklevel=2)
    columns: dict[str, list[Any]] = {name: [] for name in request.added}
    for _, _, added in _predict_chunks(request, request.chunks, progress):
        for name, values in columns.items():
            values += added.column(name).to_pylist()
    frame: pd.DataFrame = request.rows.assign(**columns)
    if isinstance(data, (pd.DataFrame, pd.Series)):
        frame.index = data.index
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
        progress: Called with each event, on rank 0.
        **options: As in :func:`predict`.

    Raises:
        UserError: If the input, the output or the options cannot be used.
    """
    path = None
    if isinstance(output, (str, Path)):
        output = path = Path(output).expanduser()
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
        request = _request(run, source, options, trust_recipe, errors, path)
        return request, Parts(resumable, request, resume) if resumable else None

    distributed.join_process_group(None, _MAX_WAIT, use_cpu=not torch.accelerator.is_available())
    request, parts = distributed.main_process_first(prepare, share=False)
    complete = parts.complete if parts else {}
    before = sum(complete.values())
    rows = before
    started = time.perf_counter()

    def advance(event: Any) -> None:
        nonlocal rows
        rows = event.done
        progress(event)

    if parts is None:
        chunks = _predict_chunks(request, request.chunks, advance)
        write_rows(output, request, (chunk[1:] for chunk in chunks))
    else:
        numbers = request.chunks[ranks.rank :: ranks.world_size]
        missing = [number for number in numbers if number not in complete]
        for number, _, added in _predict_chunks(
            request, missing, advance, before, ranks.world_size
        ):
            parts.write(number, added)
        distributed.gather(None)  # wait for the others
        distributed.leave_process_group()  # all at once: only rank 0 has work left
    rows = request.total or rows
    seconds = time.perf_counter() - started
    if parts and ranks.rank == 0:
        parts.join()
    return FilePrediction(
        output=path or Path("-"),
        rows=rows,
        rows_before=before,
        samples_per_second=(rows - before) / seconds,
        precision=str(request.options.precision),
        notes=_notes(request),
    )


def _request(
    run: Run | str | Path,
    source: str | Path | None,
    values: dict[str, Any],
    trust_recipe: bool,
    report: Findings,
    output: Path | None = None,
    data: Any = None,
) -> Request:
    """Return a request with its rows.

    Args:
        run: As in :func:`predict`.
        source: None for ``data``.
        values: Those of :class:`~finetune.predicting.Options`.
        trust_recipe: As in :func:`predict`.
        report: Mistakes that are known already.
        output: The file to write, if any.
        data: As in :func:`predict`.
    """
    with report.collect():
        options = parse_options(values, report)
        run = Run.load(run, trust_recipe=trust_recipe)
        session = engine_session(run.path, options, workers=hardware.use_threads(None))
        to_frame = functools.partial(_frame, data)
        request = Request(run, source, output, options, session, report, to_frame)
    report.raise_errors()
    return request


def _frame(data: Any, columns: list[str]) -> pd.DataFrame:
    """Return rows in memory as a frame; ``columns`` are the names of texts."""
    if isinstance(data, pd.DataFrame):
        frame = data
    elif memory.is_table(data):  # of polars, for instance
        frame = arrow.with_supported_types(pa.table(data)).to_pandas(integer_object_nulls=True)
    elif isinstance(data, (str, bytes, Path, Mapping)):
        raise UserError(
            f"expected texts, rows or a frame, found {reprlib.repr(data)}: put one text or row "
            "into a list, columns into a frame; for a file there is finetune.predict_file"
        )
    else:
        frame = _frame_of_rows(list(data), columns)
    if repeated := frame.columns[frame.columns.duplicated()].tolist():
        raise UserError(f"the data has two columns named {repeated[0]!r}: rename one")
    return frame


def _frame_of_rows(rows: list[Any], columns: list[str]) -> pd.DataFrame:
    """Return texts, paths, tuples of texts or rows as mappings as a frame."""
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


def _notes(request: Request) -> list[str]:
    """Return sentences for the user at the end."""
    notes = [*filter(None, [request.run.unfinished]), *request.file_facts]
    if renamed := [name for name in request.added if name.startswith("predicted ")]:
        notes.append(f"the input already has columns of these names: see {', '.join(renamed)}")
    texts = request.recipe.input_column
    for name in set(request.columns_read).intersection(request.recipe.token_columns):
        if texts in request.rows.column_names:
            notes.append(
                f"the words in '{name}' were read, not '{texts}', and start and end are in these "
                f"words with a blank between them: --text_column {texts} reads the texts"
            )
    nulls = []
    for name in request.columns_read:
        column = request.rows.column(name)
        if column.type == pa.json_():
            column = pa.array(cells(request.rows, name))  # of texts: NaN is none
        nulls.append(column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False))
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


def _predict_chunks(
    request: Request,
    numbers: Iterable[int],
    progress: Progress,
    done: int = 0,
    processes: int = 1,
) -> Iterator[tuple[int, Any, pa.Table]]:
    """Yield number and rows of chunks, and the columns that are added to them.

    Args:
        request: The request.
        numbers: Those of the chunks. All lines of the standard input are predicted.
        progress: Called with each event, on rank 0.
        done: The number of rows that are predicted already.
        processes: The number of processes that predict other chunks at the same time.

    Raises:
        UserError: If memory runs out, or if a row cannot be predicted.
    """
    cls = WordInference if request.task.labels_words else RecipeInference
    inference = cls(request.run, request.recipe, request.options, request.session)
    chunks: Iterable[Any] = ((number, request.chunk(number)) for number in numbers)
    if request.kind == STANDARD_INPUT:
        chunks = enumerate(read_lines(request.rows))

    def submit(number: int, chunk: Any) -> tuple[int, Any, list[Any], Submission]:
        values = request.values(number, chunk)
        return number, chunk, values, inference.submit(values)

    submitted: Iterable[Any] = (submit(number, chunk) for number, chunk in chunks)
    if request.kind != STANDARD_INPUT:  # a line is answered at once
        # the next chunk is read while this one is computed
        submitted = (chunk for chunk, _ in pairwise(chain(submitted, [None])))
    try:
        for number, chunk, values, submission in submitted:
            added = request.added_columns(inference.logits(submission), values)
            done += len(chunk) * processes  # the others have done as many
            if request.total:
                done = min(done, request.total)
            if processes == 1 or distributed.is_main_process():
                progress(Advanced("predicted", done, request.total))
            yield number, chunk, added
    except (MemoryError, torch.OutOfMemoryError) as error:
        tokens = inference.batch_tokens
        hint = f"try --batch_tokens {max(1, tokens // 4)}"
        raise UserError(f"out of memory at {tokens:,} tokens per batch; {hint}") from error
    finally:
        inference.close()
