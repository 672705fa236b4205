"""``python -m finetune predict RUN INPUT``: label new rows with the model of a run."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from tqdm import tqdm

from finetune.cli import console
from finetune.cli.launch import start_processes
from finetune.cli.parser import JSON, PROCESSES, RUN, Answer, Parser
from finetune.errors import UserError, counted
from finetune.pipeline.events import throttle
from finetune.predicting import READING, Options
from finetune.recipe.run import Run
from finetune.runtime import distributed, hub

_FLAGS = {
    **RUN,
    "--output FILE": "a .csv, .tsv, .jsonl or .parquet file, written or replaced once all rows are "
    "predicted (default: standard output, as .csv, .tsv or .jsonl like INPUT)",
    "--resume": "resume an interrupted prediction",
    "--all_probabilities": "add the probability of every class",
    "--calibrated": "divide the logits by the temperature that was fitted on the validation rows; "
    "the report of the run shows what it changes on the test rows",
    "--csv_safe": "in .csv and .tsv files, put an apostrophe before texts that a spreadsheet would "
    "run as formulas (they begin with = + - @, a tab or a line break)",
    "--precision fp32|bf16": "precision of the computation (default: bf16 for text classification "
    "where the device supports it natively, else fp32)",
    "--batch_tokens N": "tokens per batch with padding (default: 1024 on a CPU, 65536 on a GPU)",
    **PROCESSES,
    **JSON,
}


def predict(words: Sequence[str]) -> Answer:
    """Label new rows with the model of a run.

        python -m finetune predict runs/yelp reviews.csv --output predicted.csv
        python -m finetune predict runs/yelp reviews.csv --output predicted.csv --num_processes 2
        python -m finetune predict runs/yelp --text "The soup was cold."
        python -m finetune predict runs/pairs --text "A man sleeps." --text "He is awake."
        cat sentences.txt | python -m finetune predict runs/yelp -
        python -m finetune predict runs/mnist folder/of/images --output digits.csv

    INPUT is a file in any format that training reads (text files may be compressed: .gz, .bz2,
    .zst, .zip), a .txt file with one text per line, an image, a folder of images (searched
    recursively), or - for standard input. Image paths in a table are relative to its folder.

    The output has the rows and columns of INPUT in the same order, and the new columns label and
    probability (prediction for a regression). If INPUT has a column label, the new one is called
    "predicted label". A missing text (an empty field of a .csv or .tsv file, or a null) gets empty
    predictions. Empty texts in JSON lines or Parquet are predicted, as are blank lines.

    A run that was trained with --text_columns reads the same columns of INPUT. On standard input,
    the texts of a line are separated by tabs. A row is predicted if none of its texts is missing.
    """
    parser = Parser(predict, _FLAGS, READING)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "input", metavar="INPUT", nargs="?", help="a file, an image, a folder of images, or -"
    )
    source.add_argument(
        "--text",
        metavar="SENTENCE",
        action="append",
        help="predict this text instead of INPUT; give one --text per text column of the run",
    )
    typed = parser.parse_args(words)
    options = {option.name: getattr(typed, option.name) for option in fields(Options)}
    is_parallel = typed.num_processes is not None or distributed.under_launcher()
    if typed.text and (typed.output or typed.resume or is_parallel):
        raise UserError("--text: --output, --resume and several processes need INPUT")
    if typed.json and not (typed.text or typed.output):
        raise UserError("--json needs --text or --output: standard output would have the rows, too")
    run = Run.load(typed.run, trust_recipe=typed.trust_recipe)
    start_processes("predict", words)
    hub.go_offline({})  # the run has everything that predict needs
    console.import_libraries("finetune.pipeline.predict", "finetune.models.pretrained")
    from finetune.pipeline import predict as pipeline

    if typed.text:
        most_labels = None if typed.all_probabilities else 5
        options["all_probabilities"] = run.task.has_probabilities and not run.task.labels_words
        rows = [tuple(typed.text)] if len(typed.text) > 1 else typed.text
        predictions = pipeline.predict(run, rows, **options)
        console.print_line(run.task.sentence(predictions.iloc[0], most_labels))
        return {"predictions": predictions.to_dict("records")}
    print_event = throttle(lambda event: console.print_stderr(str(event)))
    # shown on a terminal only; with the delay it appears at the first event, so on rank 0 only
    with tqdm(disable=None, unit=" rows", unit_scale=True, delay=1e-3) as bar:

        def show_progress(event: Any) -> None:
            if bar.disable:
                print_event(event)
            else:
                bar.total = event.total
                bar.update(event.done - bar.n)

        output = typed.output or console.open_stdout()
        prediction = pipeline.predict_file(
            run, typed.input, output, resume=typed.resume, progress=show_progress, **options
        )
    if typed.output:
        console.print_line(
            f"{counted(prediction.rows, 'row')} saved to {prediction.output}; throughput: "
            f"{prediction.samples_per_second:,.1f} samples/s in {prediction.precision} "
            f"by {typed.engine or 'torch'}"
        )
    for note in prediction.notes:
        console.print_stderr(note)
    return vars(prediction)
