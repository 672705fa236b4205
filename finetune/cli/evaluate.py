"""``python -m finetune evaluate RUN``: evaluate the model of a run.

    python -m finetune evaluate runs/yelp                      # its own test set again
    python -m finetune evaluate runs/yelp --data new.csv       # other data, labels matched by name
    torchrun --nproc_per_node=2 -m finetune evaluate runs/yelp

The test set is loaded, split and tokenized as for the training, and refused if its rows are not the
same. Other data needs the columns that the run was trained on; of a directory or a data set on the
Hub the test split is evaluated, without one the validation split, else train.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from finetune.cli import console
from finetune.cli.parser import Parser, import_at_once, load_run
from finetune.errors import counted
from finetune.pipeline.evaluate import Evaluation, evaluate, sources
from finetune.pipeline.predict import READING
from finetune.runtime import hub

#: Options of a recipe that say how a file is read.
_READING = (
    *READING,
    *("label_column", "label_separator", "label_map", "drop_invalid"),
    *("dataset_config", "dataset_splits"),
)


def main(words: Sequence[str]) -> int:
    """``finetune evaluate RUN [--data FILE] [--per_device_eval_batch_size N]``."""
    parser = Parser("evaluate", __doc__)
    parser.add_run()
    parser.add_argument("--data", metavar="FILE", help="evaluate on this file or directory instead")
    parser.add_reading(_READING)
    parser.add_argument(
        "--per_device_eval_batch_size",
        type=int,
        default=32,
        metavar="N",
        help="rows of a batch on one device (default: 32)",
    )
    arguments = parser.parse_args(words)
    run = load_run(arguments.run, arguments.trust_recipe)
    if not hub.missing(sources(run, arguments.data)):
        hub.go_offline()
    import_at_once("datasets", "finetune.training.trainer")
    console.quiet()
    evaluation = evaluate(
        run,
        arguments.data,
        per_device_eval_batch_size=arguments.per_device_eval_batch_size,
        cpu_kernels=arguments.cpu_kernels,
        progress=lambda event: None if sys.stderr.isatty() else console.tell(str(event)),
        **{name: value for name in _READING if (value := getattr(arguments, name)) is not None},
    )
    _show(evaluation)
    for note in evaluation.notes:
        console.say(f"\n{note}")
    return 0


def _show(evaluation: Evaluation) -> None:
    from finetune.reporting import tables

    source, rows = evaluation.source, counted(evaluation.rows, "row")
    if (statistics := evaluation.statistics) is None:
        console.say(f"\ntest set of {source}, {rows}")
        names = [name for name, value in evaluation.metrics.items() if isinstance(value, float)]
        scores = {"now": evaluation.metrics, "recorded": evaluation.recorded or {}}
        lines = [
            [name, *(tables.number(values[key]) for key in names)]
            for name, values in scores.items()
        ]
        console.table(["", *names], lines)
        return
    console.show(tables.metrics(f"\n{source}, {rows}, 95% confidence intervals", statistics))
    if statistics.targets:
        console.say()
        console.show(tables.targets(statistics))
    if statistics.classes:
        console.say()
        console.show(tables.classes(statistics))
    for note in statistics.notes:
        console.say(f"\n{note}")
