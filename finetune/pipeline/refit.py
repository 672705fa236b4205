"""``--refit``: a second training, on training and validation rows, after the run is scored.

Options, labels, weights of classes and the data of a new head are those of the run. It takes as
many steps for each row as the best epoch of the run, or as all of the run if the model of the last
epoch is saved. No rows are left to score it.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from finetune.config.settings import Settings
from finetune.data.digests import fingerprint
from finetune.errors import Findings, UserError
from finetune.pipeline.time_limit import UNEVALUATED
from finetune.predicting.files import FOLDER as EXPORT_FOLDER
from finetune.recipe.options import rule_options
from finetune.recipe.run import Run
from finetune.rules.check import check_command
from finetune.runs.directory import free_path
from finetune.runs.records import Manifest, Metrics
from finetune.runtime import activity, distributed
from finetune.training.options import merge_options

FOLDER = "refit"  # in the directory of the run


@dataclass(frozen=True)
class ScoredRun:
    """The run that a second training follows."""

    name: str
    manifest: Manifest
    metrics: Metrics

    @classmethod
    def read(cls, directory: Path) -> "ScoredRun":
        """Return the run in a directory, which rank 0 reads; every process calls this."""
        run = Run(directory)
        return distributed.on_main_process(
            lambda: cls(directory.resolve().name, run.manifest, run.metrics)
        )

    @property
    def not_scored(self) -> str:
        """The sentence of the second training about its scores."""
        return (
            f"not scored; the scores of {self.name} are those of the training without the "
            f"validation rows; thresholds and temperature, if any, are those of {self.name}"
        )


def check_settings(settings: Settings) -> None:
    """Refuse what a second training cannot have, before the first one.

    Raises:
        UserError: If options contradict each other.
    """
    # also with what a resumed run has stored
    check_command(rule_options(settings.recipe).beside(settings.values, settings.user_options))
    _ = replace(settings, training=_training(settings) | {"max_steps": 1}).arguments


def derive_settings(settings: Settings, scored_run: ScoredRun) -> Settings:
    """Return the settings of the second training.

    Args:
        settings: Those of the run, whose rows are prepared.
        scored_run: The run.

    Raises:
        UserError: If the run was trained on its validation rows, or the data has changed since.
    """
    recipe = settings.recipe
    if scored_run.manifest.arguments.get("final_epochs"):
        raise UserError(
            f"--refit: {scored_run.name} was trained on its validation rows (--final_epochs), so "
            "its scores are not those of a training without them: train a new run with --refit"
        )
    if fingerprint(recipe.splits, recipe.input_column) != scored_run.manifest.data.fingerprint:
        raise UserError(
            f"--refit: the data has changed since {scored_run.name} was trained, so its scores are "
            "not those of this data: train a new run with --refit"
        )
    rows = len(recipe.training_rows)
    all_rows = rows + len(recipe.prepared["validation"])
    manifest = scored_run.manifest
    steps = manifest.best_step or manifest.steps or 0
    epochs = [entry["epoch"] for entry in manifest.history if entry["step"] <= steps]
    training = _training(settings)
    training |= {"max_steps": round(steps * all_rows / rows), "num_train_epochs": max(epochs)}
    report = Findings()  # of this training only
    report.info(
        f"--refit: {all_rows:,} rows, those of training and validation together, and as many steps "
        f"for each row as the {steps:,} steps of {scored_run.name}"
    )
    return replace(settings, recipe=recipe.with_values(report=report), training=training)


def set_aside(directory: Path) -> None:
    """Rename the second training and the export of a run that is trained further."""
    for path in (directory / FOLDER, directory / EXPORT_FOLDER):
        if path.exists():
            renamed = path.rename(free_path(path))
            activity.say(f"{path} is of an earlier state of the run: renamed to {renamed.name}")


def _training(settings: Settings) -> dict[str, Any]:
    """Return the training arguments of the second training, without its length."""
    values = settings.values
    arguments = settings.training | UNEVALUATED
    arguments |= {
        "refit": False,
        "final_epochs": 0,
        "resume": bool(values.resume or values.resume_from_checkpoint),
        "resume_from_checkpoint": None,
        "output_dir": str(settings.output_dir / FOLDER),
        "save_strategy": values.save_strategy,
        "save_steps": 0,
    }
    if values.save_strategy == "steps":
        arguments["save_steps"] = values.save_steps
    if values.global_batch_size is not None:  # its default may depend on what is set
        batch = {"global_batch_size": values.global_batch_size}
        arguments = merge_options(arguments, batch)
    return arguments
