"""The model of a run on its own test set again, or on other data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.errors import UserError
from finetune.pipeline.train import refuse_other_labels
from finetune.runs.run import Run
from finetune.runtime import distributed, hub, versions
from finetune.training.manifest import Statistics

if TYPE_CHECKING:
    from transformers.trainer_utils import PredictionOutput

    from finetune.recipe import Recipe


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    Attributes:
        source: What was evaluated: the directory of the run, or the data.
        rows: How many rows.
        metrics: Of the recipe, by name.
        recorded: The metrics in ``metrics.json``, if these are the test rows of the run.
        statistics: With 95% confidence intervals, of other data.
    """

    source: str
    rows: int
    metrics: dict[str, Any]
    recorded: Mapping[str, Any] | None = None
    statistics: Statistics | None = None


def evaluate(
    run: Run | str | Path,
    data: str | None = None,
    *,
    per_device_eval_batch_size: int = 32,
    cpu_kernels: str | None = None,
    **reading: Any,
) -> Evaluation:
    """Evaluate the model of a run; in a job of several processes every rank calls it.

    Args:
        run: A finished run, or its directory.
        data: A file, a directory or a data set on the Hub; the test rows of the run if None.
        per_device_eval_batch_size: Rows of a batch on one device.
        cpu_kernels: ``auto`` or ``off``; as the run was trained if None.
        **reading: Options of the recipe that say how to read ``data``, like ``text_column``.

    Raises:
        UserError: if the test rows are not those of the run any more, or if other data has labels
            that the model does not know.
    """
    from finetune.training.defaults import argument_values
    from finetune.training.trainer import build_trainer

    versions.warn_once(stacklevel=2)
    run = Run.load(run)
    if reading and data is None:
        raise UserError(f"--{next(iter(reading))}: it goes with --data FILE")
    recipe = run.recipe()
    values = argument_values(
        recipe.defaults(),
        {
            "output_dir": str(run.path),
            "per_device_eval_batch_size": per_device_eval_batch_size,
            "per_device_train_batch_size": 1,
            "precision": _precision(run),
            "cpu_kernels": cpu_kernels or run.manifest.arguments.get("cpu_kernels", "auto"),
        },
    )

    def prepared() -> Recipe:
        if unreachable := hub.unreachable(hub.missing(sources(run, data))):
            raise unreachable
        return _on(data, recipe, run.labels, reading) if data else _on_its_own(run, recipe)

    over = distributed.rank_zero_first(prepared)
    distributed.join(values.ddp_backend, values.ddp_timeout, values.use_cpu)
    trainer = build_trainer(
        lambda: over.parts(over.load_model(run.path, run.labels)), values.build(), over.adapt
    )
    output = trainer.predict(over.prepared["test"])
    distributed.leave()
    refuse_other_labels(over.splits["test"], output.label_ids)
    return _found(data, run, over, output)


def sources(run: Run, data: str | None) -> dict[str, str | None]:
    """Return the data that an evaluation reads, by the names of the options of a recipe."""
    options = run.manifest.options
    own = {name: options.get(name) for name in ("dataset", "dataset_revision")}
    return own if data is None else {"dataset": data}


def _precision(run: Run) -> str:
    """That of the training, but for fp16 where nothing computes in it."""
    import torch

    recorded = str(run.manifest.arguments.get("precision", "fp32"))
    return "fp32" if recorded == "fp16" and not torch.accelerator.is_available() else recorded


def _on_its_own(run: Run, recipe: Recipe) -> Recipe:
    from finetune.data.splits import fingerprint

    recorded = run.manifest.data
    found = fingerprint(recipe.splits, recipe.input_column)
    if found != recorded.fingerprint:
        raise UserError(
            f"the data is not that of the run any more: fingerprint {found}, the run had "
            f"{recorded.fingerprint} ({recorded.source})"
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
    raw = dataclasses.replace(recipe, dataset=data, dataset_revision=None, **reading).load()
    findings.refuse_unlabelled(raw, recipe.input_column)
    rows = raw["test"] if "test" in raw else raw["train"]
    if not len(rows):
        raise UserError(f"--data {data}: no rows")
    if names:
        rows = labels.renumbered(rows, names)
    return recipe.over(rows)


def _found(data: str | None, run: Run, recipe: Recipe, output: PredictionOutput) -> Evaluation:
    from finetune.pipeline import provenance
    from finetune.pipeline.assess import assessment_of

    scores = provenance.scores_only(output.metrics or {}, "test_")
    rows = len(recipe.splits["test"])
    if data is None:
        return Evaluation(str(run.path), rows, scores, recorded=run.metrics.test)
    statistics = Statistics(**assessment_of(recipe, output).statistics(), beyond={})
    return Evaluation(data, rows, scores, statistics=statistics)
