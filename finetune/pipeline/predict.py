"""Predictions of new rows: a frame of them, a file of any size, or a stream."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.errors import UserError
from finetune.pipeline.events import Predicted, Progress, ignore, on_rank_zero
from finetune.predicting import SUFFIXES
from finetune.runs.run import PREDICTIONS, Run
from finetune.runtime import distributed
from finetune.training.manifest import MANIFEST

if TYPE_CHECKING:
    import pandas as pd

    from finetune.data.files import Chunk
    from finetune.predicting.engine import Predictor
    from finetune.predicting.partial_output import PartialOutput
    from finetune.predicting.progress import Position
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
    data: pd.DataFrame | Iterable[str] | Iterable[Mapping[str, Any]],
    *,
    progress: Progress = ignore,
    **options: Any,
) -> pd.DataFrame:
    """Predict rows that are in memory, in this process.

    Args:
        run: A run with a model, or its directory.
        data: A frame, texts, or rows as mappings. What the model reads is the column
            ``text_column`` (default: that of the run if there is one, else ``text``).
        progress: Is given :class:`~finetune.pipeline.events.Predicted`.
        **options: Those of :class:`~finetune.predicting.request.Options`.

    Returns:
        A copy with the columns ``label`` and ``probability`` added (in a regression
        ``prediction``), as ``predict`` of the command line adds them to a file. A row whose value
        is missing gets missing predictions.

    Raises:
        UserError: if the data or the options are not what the run can predict.
    """
    import pandas as pd

    from finetune.data.files import CHUNK_ROWS, Chunk
    from finetune.predicting.inputs import Input

    frame = data.copy() if isinstance(data, pd.DataFrame) else _framed(data)
    source = Input("the data", "frame", tuple(frame.columns), len(frame))
    request = _request(run, source, options)
    columns: dict[str, list[Any]] = {name: [] for name in request.added.names}
    if len(frame):
        rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
        position, predictor = _position(request, progress), _predictor(request, len(rows))
        for number, start in enumerate(range(0, len(rows), CHUNK_ROWS)):
            some = rows[start : start + CHUNK_ROWS]
            chunk = Chunk(number, some, start + len(some))
            position.begin(chunk)
            for name, values in request.predict(predictor, chunk, position.advance).items():
                columns[name] += values
            request.passed(chunk)
            position.end(chunk)
    for name, values in columns.items():
        frame[name] = values
    return frame


def predict_file(
    run: Run | str | Path,
    source: str | Path,
    output: str | Path,
    *,
    resume: bool = False,
    progress: Progress = ignore,
    **options: Any,
) -> FilePrediction:
    """Predict a file or a folder of images; in a job of several processes every rank calls it.

    Each process takes every n-th chunk, and rank 0 joins what they wrote.

    Args:
        run: A run with a model, or its directory.
        source: A ``.csv``, ``.tsv``, ``.jsonl``, ``.parquet`` or ``.txt`` file, or a folder of
            images.
        output: A ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet`` file; it is there once all is done.
        resume: Whether to go on where an interrupted prediction stopped.
        progress: Is given :class:`~finetune.pipeline.events.Predicted`, on rank 0.
        **options: Those of :class:`~finetune.predicting.request.Options`.

    Raises:
        UserError: if the input, the output or the options cannot be.
    """
    from finetune.predicting.inputs import Input
    from finetune.predicting.partial_output import PartialOutput

    refuse_output(str(source), output)
    me, parts = distributed.ranks(), PartialOutput(Path(output).expanduser())

    def prepared() -> Request:
        request = _request(run, Input.open(str(source)), options)
        if me.rank == 0:
            parts.begin(request.facts(), resume)
        return request

    request = distributed.rank_zero_first(prepared)
    distributed.join(None, _LONGEST_WAIT, use_cpu=_on_cpu())
    started = time.perf_counter()
    with parts.after_a_mistake() if me.rank == 0 else contextlib.nullcontext():
        done, count = _share_of_this_rank(request, parts, on_rank_zero(progress))
        everyone = distributed.gather(done)
        distributed.leave()  # all at once, as after a training: rank 0 alone has more to do
        seconds = time.perf_counter() - started
        if me.rank == 0:
            parts.finish(count, request.columns)
    predicted = sum(everyone)
    return FilePrediction(
        parts.output,
        request.rows,
        request.rows - predicted,
        predicted / seconds,
        request.precision,
        request.notes,
    )


def stream(
    request: Request, progress: Progress = ignore
) -> Iterator[tuple[Chunk, dict[str, list[Any]]]]:
    """Predict an input chunk by chunk, in this process.

    Yields:
        A chunk, and the columns that are added to it.
    """
    predictor = _predictor(request)
    position = _position(request, progress)
    for chunk, _ in request.chunks(lambda number: True, position):
        yield chunk, request.predict(predictor, chunk, position.advance)


def refuse_output(source: str, output: str | Path) -> None:
    """Refuse an output that cannot be written, or that would overwrite something needed.

    Raises:
        UserError: one line for each mistake.
    """
    path, mistakes = Path(output).expanduser(), []
    if path.suffix not in SUFFIXES:
        mistakes.append(f"--output {output}: expected a file that ends in {', '.join(SUFFIXES)}")
    if path.is_dir():
        mistakes.append(f"--output {output} is a directory: name a file in it")
    if path.name == PREDICTIONS and (path.parent / MANIFEST).exists():
        mistakes.append(f"--output {output} is what a run says of its test rows: name another file")
    if source and path.resolve() == Path(source).expanduser().resolve():
        mistakes.append(f"--output {output} is the input: name another file")
    if mistakes:
        raise UserError(*mistakes)


def _share_of_this_rank(
    request: Request, parts: PartialOutput, progress: Progress
) -> tuple[int, int]:
    """Predict the chunks of this process that are not done yet.

    Returns:
        Rows predicted here, and chunks of the whole input.
    """
    me, predictor, position = distributed.ranks(), None, _position(request, progress)
    done = count = 0

    def wanted(number: int) -> bool:
        return number % me.world_size == me.rank and not parts.has(number)

    for chunk, here in request.chunks(wanted, position):
        count += 1
        if here:
            predictor = predictor or _predictor(request)
            added = request.predict(predictor, chunk, position.advance)
            parts.write(request.input.columns, chunk, added)
            done += len(chunk)
    return done, count


def _request(run: Run | str | Path, source: Any, options: Mapping[str, Any]) -> Request:
    from finetune.predicting.request import Options, Request

    run = run if isinstance(run, Run) else Run.load(run)
    refuse_without_model(run)
    return Request.of(run, source, Options.of(options))


def refuse_without_model(run: Run) -> None:
    """Refuse a run that has no model.

    Raises:
        UserError: with its status.
    """
    if not any(run.path.glob("*.safetensors")):
        raise UserError(
            f"{run.path} holds no model: the status of the run is '{run.manifest.status}'"
        )


def _predictor(request: Request, rows: int | None = None) -> Predictor:
    """The model, made ready for so many rows if that is known."""
    from finetune.predicting.engine import Predictor

    batch_tokens = request.options.batch_tokens
    return Predictor(request.run, request.precision, batch_tokens, request.cpu_kernels, count=rows)


def _position(request: Request, progress: Progress) -> Position:
    from finetune.predicting.progress import Position

    source = request.input

    def tell(position: float, rows: int) -> None:
        progress(Predicted(position, source.total, rows, source.counted))

    return Position(tell)


def _framed(data: Iterable[Any]) -> pd.DataFrame:
    import pandas as pd

    if isinstance(data, (str, bytes, Path)):
        raise UserError(
            f"expected texts, rows or a frame, found {data!r}: put one text into a list; for a "
            "file there is finetune.predict_file"
        )
    rows = list(data)
    if all(isinstance(row, str) or row is None for row in rows):
        return pd.DataFrame({"text": pd.Series(rows, dtype=object)})
    if all(isinstance(row, Mapping) for row in rows):
        return pd.DataFrame(rows)
    other = next(row for row in rows if not isinstance(row, (str, Mapping)))
    raise UserError(f"expected texts or rows as mappings, found {type(other).__name__}")


def _on_cpu() -> bool:
    import torch

    return not torch.accelerator.is_available()
