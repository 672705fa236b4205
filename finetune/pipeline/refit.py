"""``--refit``: a second training, on training and validation rows, after the run is scored.

Options, labels, weights of classes and the data of a new head are those of the run. It takes as
many steps for each row as the best epoch of the run, or as all of the run if the model of the last
epoch is saved. No rows are left to score it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from finetune.config.settings import Settings
from finetune.errors import Findings
from finetune.recipe.options import rule_options
from finetune.recipe.run import Run
from finetune.rules.check import check_command
from finetune.runs.records import Data, Manifest
from finetune.runtime import distributed

FOLDER = "refit"  # in the directory of the run
#: Training arguments that need evaluations, or are for the run only.
_CHANGES: dict[str, Any] = {
    "refit": False,
    "eval_strategy": "no",
    "eval_steps": 0,
    "eval_on_start": False,
    "load_best_model_at_end": False,
    "early_stopping_patience": None,
    "final_epochs": 0,
    "profile": None,
    "report_to": "none",
    "resume_from_checkpoint": None,
}


@dataclass(frozen=True)
class Refit:
    """What a second training takes from the run."""

    length: dict[str, float]  # steps and epochs
    note: str  # about them
    data: Data
    thresholds: dict[str, float] | None  # by label
    temperature: float | None
    not_scored: str  # a sentence
    validation_loss: float  # of the run


def check(settings: Settings) -> None:
    """Refuse what a second training cannot have, before the first one.

    Raises:
        UserError: If options contradict each other.
    """
    # also with what a resumed run has stored
    check_command(rule_options(settings.recipe).beside(settings.values, settings.user_options))
    _ = change(settings, {"max_steps": 1, "num_train_epochs": 1}).arguments


def read(settings: Settings) -> Refit:
    """Return what the run says, which rank 0 reads; every process calls this.

    Args:
        settings: Those of the run, whose rows are prepared.
    """
    rows = len(settings.recipe.prepared["train"])
    all_rows = rows + len(settings.recipe.prepared["validation"])

    def read_run() -> Refit:
        run = Run(settings.output_dir)
        manifest = run.manifest
        steps = manifest.best_step or manifest.steps or 0
        epochs = [entry["epoch"] for entry in manifest.history if entry["step"] <= steps]
        refit_steps = max(1, round(steps * all_rows / rows))
        name = run.path.resolve().name
        note = (
            f"--refit: {all_rows:,} rows, those of training and validation together, and as many "
            f"steps for each row as the {steps:,} steps of {name}"
        )
        return Refit(
            length={"max_steps": refit_steps, "num_train_epochs": max(epochs)},
            note=note,
            data=manifest.data,
            thresholds=run.statistics.thresholds,
            temperature=manifest.temperature,
            validation_loss=run.metrics.validation["loss"],
            not_scored=f"not scored; the scores of {name} are those of the training without the "
            f"validation rows; thresholds and temperature, if any, are those of {name}",
        )

    return distributed.on_main_process(read_run)


def change(settings: Settings, length: Mapping[str, float], note: str = "") -> Settings:
    """Return the settings of the second training.

    If its directory has one of another length, of an earlier state of the run, that is moved aside.
    """
    values = settings.values
    directory = settings.output_dir / FOLDER
    resume = bool(values.resume or values.resume_from_checkpoint)
    if Manifest.exists_in(directory):
        stored = Manifest.read(directory).configuration
        resume = resume and stored.get("max_steps") == length["max_steps"]
    changes = {"save_strategy": values.save_strategy, "save_steps": 0}
    if values.save_strategy == "steps":
        changes["save_steps"] = values.save_steps
    changes |= {**length, "resume": resume, "output_dir": str(directory)}
    report = Findings()  # of this training only
    report.info(note)
    return replace(
        settings,
        recipe=settings.recipe.with_values(report=report),
        training=settings.training | _CHANGES | changes,
    )
