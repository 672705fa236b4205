"""``python -m finetune evaluate RUN``: the model of a run on its own test set again, or on others.

    python -m finetune evaluate runs/yelp                      # the numbers of the run again?
    python -m finetune evaluate runs/yelp --data new.csv       # labels are matched by name
    torchrun --nproc_per_node=2 -m finetune evaluate runs/yelp

Its own data is loaded, split and prepared as the run did it, and it is an error if the rows are not
the same. Other data has the columns that the run was trained on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from finetune import cpu, hub, job
from finetune.commands import imports
from finetune.commands.parser import Parser
from finetune.errors import UserError
from finetune.run import Run

if TYPE_CHECKING:
    from transformers.trainer_utils import PredictionOutput

    from finetune.recipe import Recipe


#: Options of a recipe of text that say how a file is read.
_READING = ("text_column", "label_column", "drop_invalid")


def main(words: Sequence[str]) -> int:
    """``finetune evaluate RUN [--data FILE] [--per_device_eval_batch_size N]``."""
    parser = Parser("evaluate", __doc__)
    parser.add_argument("run", metavar="RUN", help="directory of a run, like runs/yelp")
    parser.add_argument("--data", metavar="FILE", help="evaluate on this file or directory instead")
    parser.add_argument("--text_column", metavar="NAME", help="of FILE, if not that of the run")
    parser.add_argument("--label_column", metavar="NAME", help="of FILE, if not that of the run")
    parser.add_argument(
        "--drop_invalid",
        action="store_const",
        const=True,
        help="drop rows of FILE without a text or a label",
    )
    parser.add_argument("--per_device_eval_batch_size", type=int, default=32, metavar="N")
    parser.add_argument(
        "--cpu_kernels",
        "--cpu-kernels",
        choices=cpu.CHOICES,
        help="kernels of this toolkit on a CPU, or of the libraries only (default: as the run was "
        "trained)",
    )
    given = parser.parse_args(words)
    run = Run.load(given.run)
    reading = {name: value for name in _READING if (value := getattr(given, name)) is not None}
    if reading and given.data is None:
        raise UserError(f"--{next(iter(reading))}: it goes with --data FILE")
    wanted = given.data or run.manifest["options"]["dataset"]
    missing = hub.missing({"dataset": wanted})
    if job.ranks().rank == 0 and (unreachable := hub.unreachable(missing)):
        raise unreachable
    imports.at_once("datasets", "finetune.training.trainer")
    evaluate(run, given.data, given.per_device_eval_batch_size, given.cpu_kernels, **reading)
    return 0


def evaluate(
    run: Run,
    data: str | None = None,
    per_device_eval_batch_size: int = 32,
    cpu_kernels: str | None = None,
    **reading: Any,
) -> dict[str, Any]:
    """The metrics of the test set, computed anew, or those of other data; every rank calls it.

    Args:
        run: A finished run.
        data: A file, a directory or a data set on the Hub; the test rows of the run if None.
        per_device_eval_batch_size: Rows of a batch on one device.
        cpu_kernels: ``auto`` or ``off``; as the run was trained if None.
        **reading: Options of the recipe that say how to read ``data``, like ``text_column``.

    Returns:
        The metrics by name; of other data each with its interval.

    Raises:
        UserError: if the test rows are not those of the run any more, or if other data has labels
            that the model does not know.
    """
    from finetune.commands import console
    from finetune.training.arguments import FinetuneArguments
    from finetune.training.defaults import training_arguments, with_defaults
    from finetune.training.trainer import build_trainer

    console.quiet()
    recipe = run.recipe()

    def prepared() -> Recipe:
        return _on(data, recipe, run.labels, reading) if data else _on_its_own(run, recipe)

    given = {
        "output_dir": str(run.path),
        "per_device_eval_batch_size": per_device_eval_batch_size,
        "per_device_train_batch_size": 1,
        "precision": _precision(run),
        "cpu_kernels": cpu_kernels or run.manifest["arguments"].get("cpu_kernels", "auto"),
    }
    draft = FinetuneArguments.check(with_defaults(recipe.defaults(), given))
    recipe = job.rank_zero_first(prepared)
    job.join(draft.ddp_backend, draft.ddp_timeout, draft.use_cpu)
    arguments = training_arguments(recipe.defaults(), given)
    trainer = build_trainer(
        lambda: recipe.parts(recipe.load_model(run.path, run.labels)), arguments, recipe.adapt
    )
    output = trainer.predict(recipe.prepared["test"])
    job.leave()
    if data is None:
        return _beside_the_run(run, output)
    return _with_intervals(data, run, recipe, output)


def _precision(run: Run) -> str:
    """That of the training, but for fp16 where nothing computes in it."""
    import torch

    recorded = str(run.manifest["arguments"].get("precision", "fp32"))
    return "fp32" if recorded == "fp16" and not torch.accelerator.is_available() else recorded


def _on_its_own(run: Run, recipe: Recipe) -> Recipe:
    from finetune.data.splits import fingerprint

    recorded = run.manifest["data"]
    found = fingerprint(recipe.splits, recipe.input_column)
    if found != recorded["fingerprint"]:
        raise UserError(
            f"the data is not that of the run any more: fingerprint {found}, the run had "
            f"{recorded['fingerprint']} ({recorded['source']})"
        )
    _ = recipe.prepared
    return recipe


def _on(data: str, recipe: Recipe, names: list[str], reading: dict[str, Any]) -> Recipe:
    """The recipe over the rows of ``data``: its test split, or all of a source without one."""
    from finetune.data import findings, labels

    known = {each.name for each in dataclasses.fields(recipe)}
    if unknown := [
        f"--{name}: a recipe of text has it, this is none" for name in reading if name not in known
    ]:
        raise UserError(*unknown)
    raw = dataclasses.replace(recipe, dataset=data, **reading).load()
    findings.refuse_unlabelled(raw, recipe.input_column)
    rows = raw["test"] if "test" in raw else raw["train"]
    if not len(rows):
        raise UserError(f"--data {data}: no rows")
    if names:
        rows = labels.renumbered(rows, names)
    return recipe.over(rows)


def _beside_the_run(run: Run, output: PredictionOutput) -> dict[str, Any]:
    from finetune import provenance
    from finetune.commands import console

    recorded, scores = run.metrics["test"], provenance.scores_only(output.metrics or {}, "test_")
    console.say(f"\ntest set of {run.path}, {len(output.predictions):,} rows")
    numbers = [name for name, value in scores.items() if isinstance(value, float)]
    console.table(
        ["", *numbers],
        [
            ["now", *(f"{scores[name]:.4f}" for name in numbers)],
            ["in the run", *(f"{recorded[name]:.4f}" for name in numbers)],
        ],
    )
    return scores


def _with_intervals(
    data: str, run: Run, recipe: Recipe, output: PredictionOutput
) -> dict[str, Any]:
    import numpy as np

    from finetune.commands import console
    from finetune.results import assessment, wording
    from finetune.results.predicted import Predicted

    outputs, labels = np.asarray(output.predictions), np.asarray(output.label_ids)
    if run.labels:
        found = assessment.of_classes(
            Predicted.of_outputs(run.labels, labels, outputs),
            outputs,
            recipe.known_scoring,
            recipe.compute_metrics,
            {},
            ordered=recipe.ordered_labels,
            temperature=None,
        )
    else:
        found = assessment.of_numbers(outputs, labels, recipe.compute_metrics, {})
    console.say(f"\n{data}, {found['rows']:,} rows, with intervals of 95%")
    scores = {**found["metrics"], **found.get("ordered", {})}
    console.table(
        ["", "", ""],
        [[wording.name(name), *console.with_intervals(scores, [name])] for name in scores],
    )
    if classes := found.get("classes"):
        console.say()
        console.table(
            ["class", "rows", "precision", "", "recall", "", "F1", ""],
            [
                [
                    name,
                    f"{each['support']:,}",
                    *console.with_intervals(each, ["precision", "recall", "f1"]),
                ]
                for name, each in classes.items()
            ],
        )
    return scores
