"""``python -m finetune predict RUN INPUT``: what the model of a run says of new rows.

    python -m finetune predict runs/yelp reviews.csv --output predicted.csv
    torchrun --nproc_per_node=2 -m finetune predict runs/yelp reviews.csv --output predicted.csv
    python -m finetune predict runs/yelp --text "The soup was cold."
    cat sentences.txt | python -m finetune predict runs/yelp -
    python -m finetune predict runs/mnist folder/of/pictures --output digits.csv

INPUT is a .csv, .tsv, .jsonl, .parquet or .txt file, a folder of pictures, or - for the lines of
the standard input. Its columns and its order are kept. Added are label and probability (in a
regression, prediction); where the input has a column of that name already, "predicted label" and
so on. A row whose text is missing (null) gets empty ones; an empty text is predicted as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from finetune import cpu, hub, job
from finetune.commands import imports
from finetune.commands.parser import Parser
from finetune.directory import MANIFEST
from finetune.errors import UserError
from finetune.run import PREDICTIONS, Run

if TYPE_CHECKING:
    from finetune.predicting.parts import Parts
    from finetune.predicting.task import Task

_SHOWN_CLASSES = 5
_LONGEST_WAIT = 1800  # seconds, for a rank whose chunk takes longer than those of the others


def main(words: Sequence[str]) -> int:
    """``finetune predict RUN INPUT [flags]``."""
    given = _parser().parse_args(words)
    _refuse_contradictions(given)
    run = Run.load(given.run)
    _refuse_without_model(run)
    hub.missing({})  # everything is in the run: the libraries shall not ask the network
    imports.at_once("datasets", "finetune.predicting.task")
    if given.text is not None:
        _say_of_one_text(run, given)
    elif given.output is None:
        _to_screen(run, given)
    else:
        _to_file(run, given, words)
    return 0


def _parser() -> Parser:
    parser = Parser("predict", __doc__)
    parser.add_argument("run", metavar="RUN", help="directory of a run, like runs/yelp")
    parser.add_argument(
        "input", metavar="INPUT", nargs="?", help="a file, a folder of pictures, or -"
    )
    parser.add_argument("--text", metavar="SENTENCE", help="predict this one, instead of INPUT")
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="a .csv, .tsv, .jsonl or .parquet file, there when all is done (default: lines to "
        "the standard output)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on where an interrupted prediction stopped"
    )
    parser.add_argument(
        "--text_column",
        "--text-column",
        metavar="NAME",
        help="column of the text (default: that of the run if INPUT has it, else text)",
    )
    parser.add_argument(
        "--all_probabilities",
        "--all-probabilities",
        action="store_true",
        help="add the probability of every class",
    )
    parser.add_argument(
        "--calibrated",
        action="store_true",
        help="divide logits by the temperature of the run",
    )
    parser.add_argument(
        "--precision",
        choices=("fp32", "bf16"),
        help="of the computation (default: bf16 for classes of texts where the device multiplies "
        "in it, fp32 for all else)",
    )
    parser.add_argument(
        "--cpu_kernels",
        "--cpu-kernels",
        choices=cpu.CHOICES,
        help="kernels of this toolkit on a CPU, or of the libraries only (default: as the run was "
        "trained)",
    )
    parser.add_argument(
        "--batch_tokens",
        "--batch-tokens",
        type=int,
        metavar="N",
        help="tokens of a batch, padding included (default: 1024 on a CPU, 65536 on a GPU)",
    )
    return parser


def _refuse_contradictions(given: argparse.Namespace) -> None:
    """What can be said before anything is read, all at once."""
    from finetune.predicting import SUFFIXES

    mistakes, several = [], job.ranks().world_size > 1
    if (given.input is None) == (given.text is None):
        mistakes.append('expected one of INPUT and --text "one sentence"')
    for_a_file = {"--output": given.output, "--text_column": given.text_column}
    if given.text is not None:
        mistakes += [f"{flag}: not with --text" for flag, value in for_a_file.items() if value]
    if given.resume and given.output is None:
        mistakes.append("--resume: it goes on with an --output")
    if given.output is not None and Path(given.output).suffix not in SUFFIXES:
        mistakes.append(
            f"--output {given.output}: expected a file that ends in {', '.join(SUFFIXES)}"
        )
    if given.output is not None and Path(given.output).is_dir():
        mistakes.append(f"--output {given.output} is a directory: name a file in it")
    if given.output is not None and _is_of_a_run(Path(given.output)):
        mistakes.append(
            f"--output {given.output} is what a run says of its test rows: name another file"
        )
    if given.input == "":
        mistakes.append("INPUT is empty: expected a file, a folder of pictures, or -")
    if given.output and given.input and Path(given.output).resolve() == Path(given.input).resolve():
        mistakes.append(f"--output {given.output} is the input: name another file")
    if given.resume and given.input == "-":
        mistakes.append("--resume: the standard input cannot be read again, write it to a file")
    if several and (given.output is None or given.input == "-"):
        mistakes.append(
            "several processes share a file and write a file: name INPUT and --output, or start "
            "one process"
        )
    if given.batch_tokens is not None and given.batch_tokens < 1:
        mistakes.append(f"--batch_tokens {given.batch_tokens}: expected 1 or more")
    if mistakes:
        raise UserError(*mistakes)


def _is_of_a_run(output: Path) -> bool:
    return output.name == PREDICTIONS and (output.parent / MANIFEST).exists()


def _refuse_without_model(run: Run) -> None:
    if not any(run.path.glob("*.safetensors")):
        raise UserError(
            f"{run.path} holds no model: the status of the run is '{run.manifest.get('status')}'"
        )


def _say_of_one_text(run: Run, given: argparse.Namespace) -> None:
    from finetune.commands import console
    from finetune.predicting.engine import Predictor
    from finetune.predicting.inputs import Input
    from finetune.predicting.readers import refuse_half_characters
    from finetune.predicting.task import Task

    console.quiet()
    refuse_half_characters(given.text, "--text")
    task = Task.of(run, Input("--text", ".txt", ("text",), None), given)
    predictor = Predictor(run, task.precision, given.batch_tokens, task.cpu_kernels, count=1)
    if not predictor.reads_text:
        raise UserError(f"--text: {run.path} does not read text")
    logits = predictor.texts([given.text])
    if not run.labels:
        print(f"{logits[0, 0]:.6g}")
        return
    probabilities = task.answers.probabilities(logits)[0]
    first, *others = sorted(zip(run.labels, probabilities, strict=True), key=lambda pair: -pair[1])
    shown = others if given.all_probabilities else others[: _SHOWN_CLASSES - 1]
    rest = ", ".join(f"{label} {probability:.4f}" for label, probability in shown)
    print(f"{first[0]}  {first[1]:.4f}" + (f"  ({rest})" if rest else ""))


def _to_screen(run: Run, given: argparse.Namespace) -> None:
    """Lines as they are predicted; all other words go to standard error."""
    from finetune.commands import console
    from finetune.predicting import formats
    from finetune.predicting.engine import Predictor
    from finetune.predicting.inputs import Input
    from finetune.predicting.progress import Progress
    from finetune.predicting.task import Task

    console.quiet()
    task = Task.of(run, Input.open(given.input), given)
    predictor = Predictor(run, task.precision, given.batch_tokens, task.cpu_kernels)
    suffix, progress = formats.of_screen(task.input.kind), Progress(task.input)
    with _utf8_lines() as screen:
        formats.write_header(screen, suffix, task.columns)
        for chunk, _ in task.chunks(lambda number: True, progress):
            added = task.predict(predictor, chunk, progress.advance)
            formats.write_rows(screen, suffix, task.input.columns, chunk, added)
            screen.flush()
    progress.close()
    for note in task.notes:
        print(note, file=sys.stderr)


@contextlib.contextmanager
def _utf8_lines() -> Iterator[TextIO]:
    """Standard output as a file that writes what it is told, whatever the locale says."""
    with open(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", newline="") as screen:
        yield screen


def _to_file(run: Run, given: argparse.Namespace, words: Sequence[str]) -> None:
    """Each process takes every so manieth chunk; rank 0 joins what they wrote."""
    from finetune.commands import console
    from finetune.predicting.inputs import Input
    from finetune.predicting.parts import Parts
    from finetune.predicting.task import Task

    console.quiet()
    me, parts = job.ranks(), Parts(Path(given.output).expanduser())

    def prepared() -> Task:
        task = Task.of(run, Input.open(given.input), given)
        if me.rank == 0:
            parts.begin(task.facts(), given.resume)
        return task

    try:
        task = job.rank_zero_first(prepared)
        job.join(None, _LONGEST_WAIT, use_cpu=_on_cpu())
        started = time.perf_counter()
        with parts.after_a_mistake() if me.rank == 0 else contextlib.nullcontext():
            done, count = _share_of_this_rank(task, parts, given.batch_tokens)
            everyone = job.gather(done)
            job.leave()  # all at once, as after a training: rank 0 alone has more to do
            seconds = time.perf_counter() - started
            if me.rank == 0:
                parts.finish(count, task.columns)
    except KeyboardInterrupt:
        again = [*words, *([] if given.resume else ["--resume"])]
        command = [*job.launcher(), "-m", "finetune", "predict", *again]
        console.say(f"\ninterrupted; to go on: {shlex.join(command)}")
        raise
    before = task.rows - sum(everyone)
    console.say(
        f"{task.rows:,} rows in {parts.output}"
        + (f" ({before:,} of them were done before)" if before else "")
        + f"; {sum(everyone) / seconds:.1f} rows a second in {task.precision}"
    )
    for note in task.notes:
        console.say(note)


def _share_of_this_rank(task: Task, parts: Parts, batch_tokens: int | None) -> tuple[int, int]:
    """Predict the chunks of this process that are not done yet.

    Returns:
        Rows predicted here, and chunks of the whole input.
    """
    from finetune.predicting.engine import Predictor
    from finetune.predicting.progress import Progress

    me, predictor, progress = job.ranks(), None, Progress(task.input)
    done = count = 0

    def wanted(number: int) -> bool:
        return number % me.world_size == me.rank and not parts.has(number)

    for chunk, here in task.chunks(wanted, progress):
        count += 1
        if here:
            predictor = predictor or Predictor(
                task.run, task.precision, batch_tokens, task.cpu_kernels
            )
            added = task.predict(predictor, chunk, progress.advance)
            parts.write(task.input.columns, chunk, added)
            done += len(chunk)
    progress.close()
    return done, count


def _on_cpu() -> bool:
    import torch

    return not torch.accelerator.is_available()
