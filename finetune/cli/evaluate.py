"""``python -m finetune evaluate RUN``: evaluate the model of a run.

    python -m finetune evaluate runs/yelp                      # its own test set again
    python -m finetune evaluate runs/yelp --data new.csv       # other data, labels matched by name
    torchrun --nproc_per_node=2 -m finetune evaluate runs/yelp

The test set is loaded, split and tokenized as for the training, and refused if its rows are not the
same. Other data needs the columns that the run was trained on; of a directory or a data set on the
Hub the test split is evaluated, without one the validation split, else train.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from finetune.cli import console, imports
from finetune.cli.parser import Parser, load_run
from finetune.errors import UserError, counted
from finetune.models import cpu
from finetune.pipeline.evaluate import Evaluation, evaluate, sources
from finetune.recipe import ImageRecipe, TextRecipe
from finetune.runtime import distributed, hub
from finetune.runtime.formats import QUOTING

if TYPE_CHECKING:
    from finetune.training.manifest import Statistics

#: Options of a recipe that say how a file is read.
_READING = (
    *("text_column", "text_columns", "image_column", "label_column", "label_columns"),
    *("label_separator", "label_map", "drop_invalid"),
    *("csv_quoting", "csv_separator", "encoding", "sheet", "dataset_config", "dataset_splits"),
)


def main(words: Sequence[str]) -> int:
    """``finetune evaluate RUN [--data FILE] [--per_device_eval_batch_size N]``."""
    parser = Parser("evaluate", __doc__)
    parser.add_argument("run", metavar="RUN", help="directory of a run, like runs/yelp")
    parser.add_argument("--data", metavar="FILE", help="evaluate on this file or directory instead")
    options = {
        option.name: option
        for recipe in (ImageRecipe, TextRecipe)
        for option in dataclasses.fields(recipe)
    }
    for name in _READING:
        description = options[name].metadata["help"].partition(" (unset")[0]
        kind: dict[str, Any] = {"metavar": options[name].metadata.get("metavar", "VALUE")}
        if name == "csv_quoting":
            kind = {"choices": QUOTING}
        elif name == "drop_invalid":
            kind = {"action": "store_const", "const": True}
        parser.add_argument(f"--{name}", help=f"{description} (default: the run's)", **kind)
    parser.add_argument(
        "--per_device_eval_batch_size",
        type=int,
        default=32,
        metavar="N",
        help="rows of a batch on one device (default: 32)",
    )
    parser.add_argument(
        "--cpu_kernels",
        choices=cpu.CHOICES,
        help="on a CPU: auto for the kernels of this toolkit, off for those of the libraries "
        "(default: as in the training)",
    )
    parser.add_trust_recipe()
    arguments = parser.parse_args(words)
    run = load_run(arguments.run, arguments.trust_recipe)
    run.require_model()
    reading = {name: value for name in _READING if (value := getattr(arguments, name)) is not None}
    if reading and arguments.data is None:
        raise UserError(f"--{next(iter(reading))}: needs --data FILE")
    missing = hub.missing(sources(run, arguments.data))
    unreachable = hub.unreachable(missing, data="--data FILE")
    if unreachable and distributed.ranks().rank == 0:
        raise unreachable
    if not missing:
        hub.go_offline()
    imports.at_once("datasets", "finetune.training.trainer")
    console.quiet()
    _show(
        evaluate(
            run,
            arguments.data,
            per_device_eval_batch_size=arguments.per_device_eval_batch_size,
            cpu_kernels=arguments.cpu_kernels,
            progress=lambda event: None if sys.stderr.isatty() else console.tell(str(event)),
            **reading,
        )
    )
    return 0


def _show(evaluation: Evaluation) -> None:
    if evaluation.statistics is not None:
        _show_intervals(evaluation.source, evaluation.statistics)
        for note in [*evaluation.statistics.notes, *evaluation.notes]:
            console.say(f"\n{note}")
        return
    recorded = evaluation.recorded or {}
    console.say(f"\ntest set of {evaluation.source}, {counted(evaluation.rows, 'row')}")
    numbers = [name for name, value in evaluation.metrics.items() if isinstance(value, float)]
    sources = {"now": evaluation.metrics, "recorded": recorded}
    lines = [
        [name, *(console.score(values[key]) for key in numbers)] for name, values in sources.items()
    ]
    console.table(["", *numbers], lines)


def _show_intervals(source: str, statistics: Statistics) -> None:
    from finetune.reporting import wording

    console.say(f"\n{source}, {counted(statistics.rows, 'row')}, 95% confidence intervals")
    scores = {**statistics.metrics, **(statistics.ordered or {})}
    console.table(
        ["", "", ""],
        [[wording.name(name), *console.with_intervals(scores, [name])] for name in scores],
    )
    if statistics.targets:
        console.say()
        console.targets(statistics.targets)
    if statistics.classes:
        console.say()
        scores_of_class = ("precision", "recall", "f1")
        lines = [
            [name, f"{scores['support']:,}", *console.with_intervals(scores, scores_of_class)]
            for name, scores in statistics.classes.items()
        ]
        kind = "class" if statistics.together is None else "label"
        console.table([kind, "rows", *console.two_each(["precision", "recall", "F1"])], lines)
