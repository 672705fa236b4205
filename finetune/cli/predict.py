"""``python -m finetune predict RUN INPUT``: label new rows with the model of a run."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from tqdm import tqdm

from finetune.cli import console
from finetune.cli.parser import RUN, Parser
from finetune.errors import UserError, counted
from finetune.pipeline.events import Predicted, throttle
from finetune.predicting import READING, Options
from finetune.recipe import TextRecipe
from finetune.runs.run import Run
from finetune.runtime import distributed, hub

_FLAGS = {
    **RUN,
    "--output FILE": "a .csv, .tsv, .jsonl or .parquet file, written or replaced when all rows are "
    "done (default: lines to the standard output)",
    "--resume": "resume an interrupted prediction",
    "--all_probabilities": "add the probability of every class",
    "--calibrated": "divide logits by the temperature of the run",
    "--csv_safe": "in .csv and .tsv output put an apostrophe before texts that a spreadsheet would "
    "run as a formula (those that begin with = + - @, a tab or a line break)",
    "--precision fp32|bf16": "precision of the computation (default: bf16 for text classification "
    "where the device supports it natively, else fp32)",
    "--batch_tokens N": "tokens per batch, with padding (default: 1024 on a CPU, 65536 on a GPU)",
}


def predict(words: Sequence[str]) -> int:
    """Label new rows with the model of a run.

        python -m finetune predict runs/yelp reviews.csv --output predicted.csv
        torchrun --nproc_per_node=2 -m finetune predict runs/yelp reviews.csv --output predicted.csv
        python -m finetune predict runs/yelp --text "The soup was cold."
        python -m finetune predict runs/pairs --text "A man sleeps." --text "He is awake."
        cat sentences.txt | python -m finetune predict runs/yelp -
        python -m finetune predict runs/mnist folder/of/images --output digits.csv

    INPUT is one file that training reads (text may be compressed: .gz, .bz2, .zst, .zip), a .txt
    file, an image, a folder with images at any depth, or - for the lines of the standard input.
    Paths of images in a table are relative to its folder.

    All columns and the order of the rows are kept; the columns label and probability are added (in
    a regression, prediction). Where INPUT has a label already, the added one is "predicted label".
    Where the text is missing (an empty field of a .csv or .tsv, as in training, or a null) the
    added fields are empty. An empty text in JSON lines or parquet, and a blank line of a .txt or
    the standard input, are predicted.

    A run that was trained with --text_columns reads these columns of INPUT; from the standard input
    the texts of a line, separated by tabs. A row is predicted if none of its texts is missing.
    """
    parser = Parser(predict, _FLAGS, READING)
    parser.add_argument(
        "input", metavar="INPUT", nargs="?", help="a file, an image, a folder of images, or -"
    )
    parser.add_argument(
        "--text",
        metavar="SENTENCE",
        action="append",
        help="predict one sentence instead of INPUT; once for each column that the run reads",
    )
    typed = parser.parse_args(words)
    options = {option.name: getattr(typed, option.name) for option in fields(Options)}
    to_file = typed.output or typed.resume or distributed.under_launcher()
    if bool(typed.text) == bool(typed.input) or (typed.text and to_file):
        raise UserError(
            "expected INPUT (a file, a folder of images, or - for the standard input), or --text "
            '"one sentence" without --output, --resume and several processes'
        )
    run = Run.load(typed.run, trust_recipe=typed.trust_recipe, tell=console.tell)
    hub.go_offline()  # everything is in the run
    console.import_libraries("finetune.predicting.request")
    if typed.text:
        _predict_text(run, typed.text, options)
        return 0
    from finetune.pipeline.predict import predict_file

    lines = throttle(lambda event: console.tell(str(event)), Predicted)
    # on a terminal; the delay keeps it back until there is an event, which rank 0 alone gets
    with tqdm(disable=None, unit=" rows", unit_scale=True, delay=1e-3) as bar:

        def show(event: Any) -> None:
            if bar.disable:
                lines(event)
            else:
                bar.total = event.total
                bar.update(event.rows - bar.n)

        output = typed.output or console.data_file()
        prediction = predict_file(
            run, typed.input, output, resume=typed.resume, progress=show, **options
        )
    say = console.say if typed.output else console.tell  # standard output is for the rows alone
    if typed.output:
        before = f" ({prediction.rows_before:,} of them before resuming)"
        say(
            f"{counted(prediction.rows, 'row')} saved to {prediction.output}"
            f"{before * bool(prediction.rows_before)}; throughput: "
            f"{prediction.samples_per_second:,.1f} samples/s in {prediction.precision}"
        )
    for note in prediction.notes:
        say(note)
    return 0


def _predict_text(run: Run, texts: list[str], options: dict[str, Any]) -> None:
    """Print the prediction of one row, with the five most probable labels."""
    from finetune.pipeline.predict import predict as predict_rows

    recipe = run.recipe(scores=False)
    names = recipe.columns_read() if isinstance(recipe, TextRecipe) else []
    if len(texts) != len(names):
        raise UserError(
            f"--text: the model of {run.path} reads {counted(len(names), 'text')} "
            f"({', '.join(names)}), found {len(texts)}"
        )
    most = None if options["all_probabilities"] else 5
    options["all_probabilities"] = run.kind.has_probabilities
    predictions = predict_rows(run, [tuple(texts)] if len(texts) > 1 else texts, **options)
    console.say(run.kind.sentence(predictions.iloc[0], most))
