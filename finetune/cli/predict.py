"""``python -m finetune predict RUN INPUT``: label new rows with the model of a run.

    python -m finetune predict runs/yelp reviews.csv --output predicted.csv
    torchrun --nproc_per_node=2 -m finetune predict runs/yelp reviews.csv --output predicted.csv
    python -m finetune predict runs/yelp --text "The soup was cold."
    python -m finetune predict runs/pairs --text "A man sleeps." --text "He is awake."
    cat sentences.txt | python -m finetune predict runs/yelp -
    python -m finetune predict runs/mnist folder/of/images --output digits.csv

INPUT is one file (FORMATS; text may be compressed: .gz, .bz2, .zst, .zip), an image, a folder with
images at any depth, or - for the lines of the standard input. Of several files, each is predicted
by itself:

    for f in data/*.csv; do
      python -m finetune predict runs/yelp "$f" --output "$(basename "$f" .csv).predicted.csv"
    done

Paths of images in a table are relative to its folder. All columns and the order of the rows are
kept; the columns label and probability are added (in a regression, prediction). Where INPUT has a
label already, the added one is "predicted label". Two columns of the same name are refused, even if
the model reads neither. Where the text is missing (an empty field of a .csv or .tsv, as in
training, or a null) the added fields are empty. An empty text in JSON lines or parquet, and a blank
line of a .txt or the standard input, are predicted. A blank line of a .csv or .tsv with a single
column is a row without a text; other blank lines are no rows.

A run that was trained with --text_columns reads these columns of INPUT; from the standard input the
texts of a line, separated by tabs, or, if the first line is a JSON object, JSON lines with these
keys. A row is predicted if none of its texts is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from finetune.cli import console, imports
from finetune.cli.parser import Parser, load_run
from finetune.errors import UserError, counted
from finetune.pipeline.events import Event, Predicted, Progress, Seldom
from finetune.predicting.options import Options
from finetune.predicting.options import mistakes as option_mistakes
from finetune.recipe import TextRecipe
from finetune.runs.run import Run
from finetune.runtime import distributed, formats, hub

_SHOWN_CLASSES = 5
#: Options about the file that is read.
_READING = (
    *("text_column", "text_columns", "image_column"),
    *("csv_quoting", "csv_separator", "encoding", "sheet"),
)


def main(words: Sequence[str]) -> int:
    """``finetune predict RUN INPUT [flags]``."""
    given = _parser().parse_args(words)
    options = {option.name: getattr(given, option.name) for option in fields(Options)}
    _refuse_contradictions(given, options)
    run = load_run(given.run, given.trust_recipe)
    hub.go_offline()  # everything is in the run: the libraries shall not ask the network
    imports.at_once("datasets", "finetune.predicting.request")
    console.quiet()
    if given.text is not None:
        _say_of_one_text(run, given.text, options)
    elif given.output is None:
        _to_screen(run, given.input, options)
    else:
        _to_file(run, given, options, words)
    return 0


def _parser() -> Parser:
    known = ", ".join((*formats.FILES, ".txt"))
    parser = Parser("predict", (__doc__ or "").replace("FORMATS", known))
    parser.add_argument("run", metavar="RUN", help="directory of a run, like runs/yelp")
    parser.add_argument(
        "input", metavar="INPUT", nargs="?", help="a file, an image, a folder of images, or -"
    )
    parser.add_argument(
        "--text",
        metavar="SENTENCE",
        action="append",
        help="predict one sentence instead of INPUT; once for each column that the run reads",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="a .csv, .tsv, .jsonl or .parquet file, written or replaced when all rows are done "
        "(default: lines to the standard output)",
    )
    parser.add_argument("--resume", action="store_true", help="resume an interrupted prediction")
    parser.add_trust_recipe()
    for option in fields(Options):
        parser.add_argument(f"--{option.name}", **option.metadata)
    return parser


def _refuse_contradictions(given: argparse.Namespace, options: dict[str, Any]) -> None:
    """Refuse what can be refused before anything is read, all at once."""
    from finetune.pipeline.predict import input_mistakes, output_mistakes

    has_text, has_file = given.text is not None, given.input not in (None, "", "-")
    wrong = {
        "expected a file, a folder of images, - for the standard input, or --text": not given.input
        and not has_text,
        '--text "one sentence" stands for INPUT: give one of the two': has_text and given.input,
        "--resume: needs --output, and an INPUT that can be read again": given.resume
        and not (given.output and has_file),
        "several processes share a file and write a file: name INPUT and --output, or start one "
        "process": distributed.ranks().world_size > 1 and not (given.output and has_file),
    }
    if has_text:
        names = ("output", *_READING, "csv_safe")
        wrong |= {f"--{name}: not with --text": getattr(given, name) for name in names}
    mistakes = [message for message, is_so in wrong.items() if is_so]
    if has_file:
        mistakes += input_mistakes(given.input, given.run)
    if given.output is not None:
        mistakes += output_mistakes(given.input or "", given.output)
    if mistakes := [*mistakes, *option_mistakes(options)]:
        raise UserError(*mistakes)


def _say_of_one_text(run: Run, texts: list[str], options: dict[str, Any]) -> None:
    from finetune.data.read_json import refuse_half_characters
    from finetune.pipeline.predict import predict

    for text in texts:
        refuse_half_characters(text, "--text")
    if not isinstance(recipe := run.recipe(scores=False), TextRecipe):
        raise UserError(f"--text: the model of {run.path} does not read text")
    if len(texts) != len(read := recipe.columns_read()):
        expected = f"{counted(len(read), 'text')} ({', '.join(read)})"
        raise UserError(
            f"--text is there {counted(len(texts), 'time')}: the model of {run.path} reads "
            f"{expected if len(read) > 1 else 'one text'}"
        )
    data = [tuple(texts)] if recipe.text_columns else texts
    task, most = run.kind, None if options["all_probabilities"] else _SHOWN_CLASSES
    row = predict(run, data, **{**options, "all_probabilities": task.has_probabilities}).iloc[0]
    print(console.data(task.sentence(row, most)))


def _to_screen(run: Run, source: str, options: dict[str, Any]) -> None:
    """Write lines as they are predicted, in UTF-8; all else goes to standard error."""
    from finetune.pipeline.predict import stream
    from finetune.predicting import output
    from finetune.predicting.inputs import Input
    from finetune.predicting.request import Request, columns_read, read_options

    opened = Input.open(source, read_options(run, source, options), columns_read(run, options))
    request = Request(run, opened, options)
    suffix = output.screen_format(request.input.kind)
    output.refuse_csv_safe(suffix, options["csv_safe"])
    descriptor = os.dup(sys.stdout.fileno())
    with open(descriptor, "w", encoding="utf-8", newline="") as screen, _bar() as bar:
        lines = io.StringIO(newline="")
        output.write_header(lines, suffix, request.columns, options["csv_safe"])
        for chunk, added in stream(request, bar):
            safe = options["csv_safe"]
            output.write_rows(lines, suffix, request.input.columns, chunk, added, safe)
            screen.write(console.data(lines.getvalue()))
            screen.flush()
            lines = io.StringIO(newline="")
    for note in request.notes:
        console.tell(note)


def _to_file(
    run: Run, given: argparse.Namespace, options: dict[str, Any], words: Sequence[str]
) -> None:
    from finetune.pipeline.predict import predict_file

    if Path(given.output).expanduser().exists():
        console.tell(f"--output {given.output} exists: replaced when all rows are done")
    try:
        with _bar() as bar:
            found = predict_file(
                run, given.input, given.output, resume=given.resume, progress=bar, **options
            )
    except KeyboardInterrupt as interruption:
        again = [*words, *([] if given.resume else ["--resume"])]
        command = [*distributed.launcher(), "-m", "finetune", "predict", *again]
        interruption.args = (f"interrupted; to resume: {shlex.join(command)}",)
        console.say(f"\n{interruption}")
        raise
    before = found.rows_before
    console.say(
        f"{counted(found.rows, 'row')} saved to {found.output}"
        + (f" ({before:,} of them before resuming)" if before else "")
        + f"; throughput: {found.samples_per_second:,.1f} samples/s in {found.precision}"
    )
    for note in found.notes:
        console.say(note)


@contextlib.contextmanager
def _bar() -> Iterator[Progress]:
    """Show on standard error how far rank 0 is: a bar on a terminal, or a line now and then."""
    if not sys.stderr.isatty():
        yield Seldom(lambda event: console.tell(str(event)), Predicted)
        return
    from tqdm import tqdm

    # the delay keeps the bar back until there is an event
    unseen = distributed.ranks().rank != 0
    with tqdm(disable=unseen, unit_scale=True, dynamic_ncols=True, delay=0.001) as bar:

        def show(event: Event) -> None:
            if isinstance(event, Predicted):
                if not bar.n:
                    bar.unit = " rows" if event.counted else "B"
                    bar.reset(event.total)
                bar.set_postfix_str(f"{event.rows:,} rows", refresh=False)
                bar.update(event.position - bar.n)

        yield show
