"""Predictions of new rows: a frame of them, a file of any size, or a stream."""

from __future__ import annotations

import glob
import reprlib
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.errors import UserError, counted
from finetune.pipeline.events import Predicted, Progress, ignore, on_rank_zero
from finetune.predicting import SUFFIXES
from finetune.runs.run import PREDICTIONS, Run
from finetune.runtime import distributed
from finetune.training.manifest import MANIFEST

if TYPE_CHECKING:
    import pandas as pd

    from finetune.predicting.inputs import Chunk
    from finetune.predicting.output import Added
    from finetune.predicting.request import Request

_LONGEST_WAIT = 1800  # seconds, for a rank whose chunk takes longer than those of the others


@dataclass(frozen=True)
class FilePrediction:
    """A file that was predicted.

    Attributes:
        output: The file that was written.
        rows: How many it has.
        rows_before: Those of them that were done before this was resumed.
        samples_per_second: Of the others, all processes together.
        precision: Of the computation.
        notes: What the user should know, a sentence each.
    """

    output: Path
    rows: int
    rows_before: int
    samples_per_second: float
    precision: str
    notes: list[str]


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
        trust_recipe: Whether to import a recipe file that the run names; see :meth:`Run.load`.
        progress: Is given :class:`~finetune.pipeline.events.Predicted`.
        **options: Those of :class:`~finetune.predicting.options.Options`.

    Returns:
        A copy with the columns ``label`` and ``probability`` added (in a regression
        ``prediction``), as ``predict`` of the command line adds them to a file. A row whose value
        is missing gets missing predictions.

    Raises:
        UserError: if the data or the options are not what the run can predict.
    """
    import pandas as pd
    import pyarrow as pa

    from finetune.data import arrow, memory
    from finetune.predicting.inputs import Input
    from finetune.predicting.request import Request, columns_read

    if options.get("csv_safe"):
        raise UserError("csv_safe: expected predict_file; a frame holds no formulas")
    loaded = Run.load(run, trust_recipe=trust_recipe)
    if isinstance(data, pd.DataFrame):
        frame = data.copy()
    elif memory.is_table(data):  # a frame of polars, say
        frame = arrow.plain(pa.table(data)).to_pandas()
    else:
        columns = columns_read(loaded, options)
        single = [loaded.recipe(scores=False).input_column]
        frame = _framed(data, columns if len(columns) > 1 else single)
        if isinstance(data, pd.Series):  # by which its owner joins the predictions to other columns
            frame.index = data.index
    request = Request(loaded, Input.of_frame(frame), options)
    chunks = [added for _, added in stream(request, progress)]
    for name in request.added:
        frame[name] = [value for added in chunks for value in added[name]]
    return frame


def predict_file(
    run: Run | str | Path,
    source: str | Path,
    output: str | Path,
    *,
    resume: bool = False,
    trust_recipe: bool = False,
    progress: Progress = ignore,
    **options: Any,
) -> FilePrediction:
    """Predict a file or images; in a job of several processes every rank calls it.

    Each process predicts every n-th chunk, and rank 0 joins what they wrote.

    Args:
        run: A run with a model, or its directory.
        source: A file of rows that training reads (:data:`finetune.data.read.READABLE`), a
            ``.txt`` file, an image, or a folder of images.
        output: A ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet`` file; it is there once all is done.
        resume: Whether to go on where an interrupted prediction stopped.
        trust_recipe: Whether to import a recipe file that the run names; see :meth:`Run.load`.
        progress: Is given :class:`~finetune.pipeline.events.Predicted`, on rank 0.
        **options: Those of :class:`~finetune.predicting.options.Options`.

    Raises:
        UserError: if the input, the output or the options cannot be.
    """
    import torch

    from finetune.predicting.inputs import Input
    from finetune.predicting.output import PartialOutput
    from finetune.predicting.request import Request, columns_read, read_options

    if mistakes := [*input_mistakes(source), *output_mistakes(str(source), output)]:
        raise UserError(*mistakes)
    me, safe = distributed.ranks(), bool(options.get("csv_safe"))
    parts = PartialOutput(Path(output).expanduser(), safe)

    def prepared() -> Request:
        loaded = Run.load(run, trust_recipe=trust_recipe)
        _refuse_own_data(loaded, output)
        reading = read_options(loaded, source, options)
        opened = Input.open(str(source), reading, columns_read(loaded, options))
        request = Request(loaded, opened, options)
        if me.rank == 0:
            parts.begin(request.facts(), resume)
        return request

    on_cpu = not torch.accelerator.is_available()
    distributed.join_process_group(None, _LONGEST_WAIT, use_cpu=on_cpu)
    request = distributed.main_process_first(prepared, share=False)
    started = time.perf_counter()
    count = done = 0
    with parts.explain_mistakes(is_remover=me.rank == 0):
        chunks = stream(request, on_rank_zero(progress), me.rank, me.world_size, parts.has)
        with ThreadPoolExecutor(1, thread_name_prefix="write") as writer:
            written: Future[None] | None = None  # while the model computes the next chunk
            for chunk, added in chunks:
                count += 1
                if added:
                    if written is not None:
                        written.result()
                    written = writer.submit(parts.write, request.input.columns, chunk, added)
                    done += len(chunk)
            if written is not None:
                written.result()
        counts = (count, done, request.rows, request.missing, request.null_bytes)
        count, predicted, request.rows, request.missing, request.null_bytes = map(
            sum, zip(*distributed.gather(counts), strict=True)
        )
        distributed.leave()  # all at once, as after a training: rank 0 alone has more to do
        seconds = time.perf_counter() - started
        if me.rank == 0:
            parts.finish(count, request.columns)
    return FilePrediction(
        parts.output,
        request.rows,
        request.rows - predicted,
        predicted / seconds,
        request.precision,
        request.notes,
    )


def stream(
    request: Request,
    progress: Progress = ignore,
    rank: int = 0,
    world_size: int = 1,
    is_done: Callable[[int], bool] = lambda number: False,
) -> Iterator[tuple[Chunk, Added]]:
    """Predict an input chunk by chunk, in this process.

    Args:
        request: What is predicted.
        progress: Is given :class:`~finetune.pipeline.events.Predicted`.
        rank: Of this process, which predicts every n-th chunk.
        world_size: The number of processes.
        is_done: Whether the chunk of a number was predicted before.

    Returns:
        Each chunk, and the columns that are added to it: none if nothing is to be predicted.
    """
    total = request.input.total
    return request.predict(
        lambda rows: progress(Predicted(rows, total, rows, total is not None)),
        rank,
        world_size,
        is_done,
    )


def input_mistakes(source: str | Path, run: str = "RUN") -> list[str]:
    """Return a line if an input is several files, with what to type instead.

    Args:
        source: The input.
        run: As typed.
    """
    from finetune.data import files_of_splits, image_files, read
    from finetune.runtime import formats

    path = Path(source).expanduser()
    if files_of_splits.is_pattern(str(source)):
        what, pattern = "a pattern", str(source)
        there = [Path(each) for each in sorted(glob.glob(str(path)))]
    elif path.is_dir() and not image_files.below(path):
        what, pattern, there = "a directory without images", "", sorted(path.iterdir())
    else:
        return []
    known = [
        each
        for each in there
        if formats.suffix(each) in read.READABLE or image_files.is_image(each)
    ]
    if not known:
        return [f"{source}: no file has such a name"] if pattern else []
    if not pattern:
        known = [each for each in known if each.suffix == known[0].suffix]
    pattern = pattern or f"{shlex.quote(str(path))}/*{known[0].suffix}"
    return [
        f"{source} is {what}, and predict reads one file; for each of "
        f"{counted(len(known), 'file')}: for f in {pattern}; do python -m finetune predict "
        f'{shlex.quote(run)} "$f" --output "$(basename "$f" {known[0].suffix}).predicted.csv"; done'
    ]


def output_mistakes(source: str, output: str | Path) -> list[str]:
    """Return a line for each reason why an output cannot be written."""
    path = Path(output).expanduser()
    wrong = {
        f"expected a file ending in {', '.join(SUFFIXES)}": path.suffix not in SUFFIXES,
        "is a directory: name a file in it": path.is_dir(),
        "holds the test predictions of a run: name another file": path.name == PREDICTIONS
        and (path.parent / MANIFEST).exists(),
        "is the input: name another file": bool(source)
        and _is_same(path, Path(source).expanduser()),
    }
    return [
        f"--output {output}{':' if why.startswith('expected') else ''} {why}"
        for why, is_so in wrong.items()
        if is_so
    ]


def _is_same(path: Path, other: Path) -> bool:
    """Return whether two names are those of one file, also by a link of either kind."""
    if path.exists() and other.exists():
        return path.samefile(other)
    return path.resolve() == other.resolve()


def _refuse_own_data(run: Run, output: str | Path) -> None:
    """Refuse an output that is a file of the data that the run was trained on.

    Raises:
        UserError: if it is.
    """
    from finetune.data.files_of_splits import parse_split_names
    from finetune.data.sources import Source

    path, options = Path(output).expanduser(), run.manifest.options
    names = parse_split_names(options.get("dataset_splits"))
    source = Source(options.get("dataset") or "", split_names=names)
    if not path.is_file() or source.kind != "local":
        return
    try:
        files = source.files.files
    except UserError:  # they no longer exist
        return
    if any(_is_same(path, file) for paths in files.values() for file in paths):
        raise UserError(f"--output {output} is data that {run.path} was trained on: name another")


def _framed(data: Iterable[Any], columns: list[str]) -> pd.DataFrame:
    """Return texts, paths, tuples of texts or rows as a frame; ``columns`` are the names."""
    import pandas as pd

    if isinstance(data, (str, bytes, Path, Mapping)):
        raise UserError(
            f"expected texts, rows or a frame, found {reprlib.repr(data)}: put one text or row "
            "into a list, columns into a frame; for a file there is finetune.predict_file"
        )
    rows = [None if pd.api.types.is_scalar(row) and pd.isna(row) else row for row in data]
    several = len(columns) > 1 and bool(rows)
    if several and all(isinstance(row, tuple) and len(row) == len(columns) for row in rows):
        return pd.DataFrame(rows, columns=columns, dtype=object)
    if not several and all(isinstance(row, str) or row is None for row in rows):
        return pd.DataFrame({columns[0]: pd.Series(rows, dtype=object)})
    if all(isinstance(row, Mapping) for row in rows):
        return pd.DataFrame(rows)
    if isinstance(rows[0], Mapping):
        wanted, fits = "a mapping, as before", [isinstance(row, Mapping) for row in rows]
    elif several:
        wanted = f"a tuple of {len(columns)} texts ({', '.join(columns)})"
        fits = [isinstance(row, tuple) and len(row) == len(columns) for row in rows]
    else:
        wanted, fits = "a text", [isinstance(row, str) or row is None for row in rows]
    number = fits.index(False)
    raise UserError(
        f"the data, row {number + 1}: expected {wanted}, found {reprlib.repr(rows[number])} (all "
        "rows are texts, tuples of texts, or mappings)"
    )
