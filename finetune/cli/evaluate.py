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
from typing import Any

from finetune.cli import console
from finetune.cli.parser import Parser, import_at_once, load_run
from finetune.errors import counted
from finetune.models import cpu
from finetune.pipeline.evaluate import Evaluation, evaluate, sources
from finetune.recipe import ImageRecipe, TextRecipe
from finetune.runtime import hub
from finetune.runtime.formats import QUOTING

#: Options of a recipe that say how a file is read.
_READING = (
    *("text_column", "text_columns", "image_column", "label_column"),
    *("label_separator", "label_map", "drop_invalid"),
    *("csv_quoting", "csv_separator", "encoding", "sheet", "dataset_config", "dataset_splits"),
)


def main(words: Sequence[str]) -> int:
    """``finetune evaluate RUN [--data FILE] [--per_device_eval_batch_size N]``."""
    parser = Parser("evaluate", __doc__)
    parser.add_argument("run", metavar="RUN", help="directory of a run, like runs/yelp")
    parser.add_argument("--data", metavar="FILE", help="evaluate on this file or directory instead")
    fields = {**ImageRecipe.__dataclass_fields__, **TextRecipe.__dataclass_fields__}
    for name in _READING:
        description = fields[name].metadata["help"].partition(" (unset")[0]
        kind: dict[str, Any] = {"metavar": fields[name].metadata.get("metavar", "VALUE")}
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
    from finetune.reporting.html import number

    source, rows = evaluation.source, counted(evaluation.rows, "row")
    if (statistics := evaluation.statistics) is None:
        console.say(f"\ntest set of {source}, {rows}")
        names = [name for name, value in evaluation.metrics.items() if isinstance(value, float)]
        scores = {"now": evaluation.metrics, "recorded": evaluation.recorded or {}}
        lines = [[name, *(number(values[key]) for key in names)] for name, values in scores.items()]
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
