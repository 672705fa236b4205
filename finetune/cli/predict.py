"""``python -m finetune predict RUN INPUT``: what the model of a run says of new rows.

    python -m finetune predict runs/yelp reviews.csv --output predicted.csv
    torchrun --nproc_per_node=2 -m finetune predict runs/yelp reviews.csv --output predicted.csv
    python -m finetune predict runs/yelp --text "The soup was cold."
    cat sentences.txt | python -m finetune predict runs/yelp -
    python -m finetune predict runs/mnist folder/of/pictures --output digits.csv

INPUT is a .csv, .tsv, .jsonl, .parquet or .txt file, a folder of pictures, or - for the lines of
the standard input. Its columns and its order are kept. Added are label and probability (in a
regression, prediction); where the input has a column of that name already, "predicted label" and
so on. A row whose text is missing gets empty ones: an empty field of a .csv or .tsv (as in
training), a null of the others. An empty text in JSON lines or parquet, and a blank line, are
predicted as they are.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from finetune.cli import console, imports
from finetune.cli.parser import Parser
from finetune.errors import UserError
from finetune.models import cpu
from finetune.recipe import TextClassification
from finetune.runs.run import Run
from finetune.runtime import distributed, hub

_SHOWN_CLASSES = 5
_OPTIONS = (
    *("text_column", "all_probabilities", "calibrated", "precision", "batch_tokens"),
    "cpu_kernels",
)


def main(words: Sequence[str]) -> int:
    """``finetune predict RUN INPUT [flags]``."""
    from finetune.pipeline.predict import refuse_without_model

    given = _parser().parse_args(words)
    _refuse_contradictions(given)
    run = Run.load(given.run)
    refuse_without_model(run)
    hub.go_offline()  # everything is in the run: the libraries shall not ask the network
    imports.at_once("datasets", "finetune.predicting.request")
    console.quiet()
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
    from finetune.pipeline.predict import refuse_output

    mistakes, several = [], distributed.ranks().world_size > 1
    if (given.input is None) == (given.text is None):
        mistakes.append('expected one of INPUT and --text "one sentence"')
    for_a_file = {"--output": given.output, "--text_column": given.text_column}
    if given.text is not None:
        mistakes += [f"{flag}: not with --text" for flag, value in for_a_file.items() if value]
    if given.resume and given.output is None:
        mistakes.append("--resume: it goes on with an --output")
    if given.output is not None:
        try:
            refuse_output(given.input or "", given.output)
        except UserError as error:
            mistakes += error.mistakes
    if given.input == "":
        mistakes.append("INPUT is empty: expected a file, a folder of pictures, or -")
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


def _options(given: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(given, name) for name in _OPTIONS}


def _say_of_one_text(run: Run, given: argparse.Namespace) -> None:
    from finetune.data.files import refuse_half_characters
    from finetune.pipeline.predict import predict

    refuse_half_characters(given.text, "--text")
    options = {**_options(given), "all_probabilities": bool(run.labels)}
    if not isinstance(run.recipe(), TextClassification):
        raise UserError(f"--text: {run.path} does not read text")
    row = predict(run, [given.text], **options).iloc[0]
    if not run.labels:
        print(f"{row['prediction']:.6g}")
        return
    each = {label: row[f"probability of {label}"] for label in run.labels}
    first, *others = sorted(each.items(), key=lambda pair: -pair[1])
    shown = others if given.all_probabilities else others[: _SHOWN_CLASSES - 1]
    rest = ", ".join(f"{label} {probability:.4f}" for label, probability in shown)
    print(f"{first[0]}  {first[1]:.4f}" + (f"  ({rest})" if rest else ""))


def _to_screen(run: Run, given: argparse.Namespace) -> None:
    """Lines as they are predicted; all other words go to standard error."""
    from finetune.cli.bar import Bar
    from finetune.pipeline.predict import stream
    from finetune.predicting import formats
    from finetune.predicting.inputs import Input
    from finetune.predicting.request import Options, Request

    request = Request.of(run, Input.open(given.input), Options.of(_options(given)))
    suffix = formats.of_screen(request.input.kind)
    with _utf8_lines() as screen, Bar() as bar:
        formats.write_header(screen, suffix, request.columns)
        for chunk, added in stream(request, bar):
            formats.write_rows(screen, suffix, request.input.columns, chunk, added)
            screen.flush()
    for note in request.notes:
        print(note, file=sys.stderr)


@contextlib.contextmanager
def _utf8_lines() -> Iterator[TextIO]:
    """Standard output as a file that writes what it is told, whatever the locale says."""
    with open(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", newline="") as screen:
        yield screen


def _to_file(run: Run, given: argparse.Namespace, words: Sequence[str]) -> None:
    from finetune.cli.bar import Bar
    from finetune.pipeline.predict import predict_file

    try:
        with Bar() as bar:
            found = predict_file(
                run,
                given.input,
                given.output,
                resume=given.resume,
                progress=bar,
                **_options(given),
            )
    except KeyboardInterrupt:
        again = [*words, *([] if given.resume else ["--resume"])]
        command = [*distributed.launcher(), "-m", "finetune", "predict", *again]
        console.say(f"\ninterrupted; to go on: {shlex.join(command)}")
        raise
    before = found.rows_before
    console.say(
        f"{found.rows:,} rows in {found.output}"
        + (f" ({before:,} of them were done before)" if before else "")
        + f"; {found.samples_per_second:.1f} rows a second in {found.precision}"
    )
    for note in found.notes:
        console.say(note)
