"""Training arguments that were set and have no effect beside the others: told, not refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finetune.statistics.directions import DIRECTIONS

_ONLY_HUB = ("hub_model_id", "hub_strategy", "hub_private_repo", "hub_always_push", "hub_revision")
_ADAM = ("adam_beta1", "adam_beta2", "adam_epsilon")
#: Optimizers that read the three of Adam have one of these in their name.
_READS_ADAM = ("adam", "ademamix", "lion")
#: Schedules of the learning rate that do not read ``warmup_steps``.
NO_WARMUP = ("constant", "reduce_lr_on_plateau", "greedy")


def without_effect(given: Mapping[str, Any], values: Any) -> list[str]:
    """Return a sentence for each argument in ``given`` that the others leave without effect.

    Args:
        given: What the user set, by name; defaults are not told.
        values: All training arguments, resolved.
    """
    said: dict[str, Any] = {
        name: getattr(value, "value", value) for name, value in vars(values).items()
    }
    evaluates, saves, logs = (said[f"{name}_strategy"] for name in ("eval", "save", "logging"))
    scheduler, optimizer = str(said["lr_scheduler_type"]), str(said["optim"])
    best = said["load_best_model_at_end"] or saves == "best" or scheduler in NO_WARMUP[1:]
    chosen, known = str(said["metric_for_best_model"]).removeprefix("eval_"), {"loss", *DIRECTIONS}
    ends_at = said["num_train_epochs"]
    trackers = said["report_to"] not in (None, [], "none", ["none"])
    rules = {
        "eval_steps": (evaluates != "steps", "needs --eval_strategy steps"),
        "eval_delay": (evaluates == "no", "nothing is evaluated during training"),
        "save_steps": (saves != "steps", "needs --save_strategy steps"),
        "save_total_limit": (saves == "no", "needs checkpoints; --save_strategy is no"),
        "save_only_model": (saves == "no", "needs checkpoints; --save_strategy is no"),
        "logging_steps": (logs != "steps", "needs --logging_strategy steps"),
        "logging_first_step": (logs == "no", "--logging_strategy is no"),
        "num_train_epochs": (said["max_steps"] > 0, "--max_steps decides"),
        "greater_is_better": (
            not best and chosen in known,  # else the verdict of the report goes by it
            "needs --load_best_model_at_end true",
        ),
        "warmup_steps": (
            scheduler in NO_WARMUP,
            f"--lr_scheduler_type {scheduler} has no warm-up"
            + "; there is constant_with_warmup" * (scheduler == "constant"),
        ),
        "early_stopping_patience": (
            evaluates == "epoch"
            and said["max_steps"] <= 0
            and (said["early_stopping_patience"] or 0) >= ends_at - 1,
            f"too large to stop before the end: {ends_at:g} epochs have as many evaluations, and "
            "the first sets the mark",
        ),
        "dataloader_drop_last": (
            True,
            "training always leaves out an incomplete last step, an evaluation takes every row",
        ),
        "run_name": (not trackers, "needs a tracker, see --report_to"),
        "project": (not trackers, "needs a tracker, see --report_to"),
        "fsdp_config": (not said["fsdp"], "needs --fsdp"),
        "dataloader_persistent_workers": (
            not said["dataloader_num_workers"],
            "needs --dataloader_num_workers",
        ),
        **dict.fromkeys(_ONLY_HUB, (not said["push_to_hub"], "needs --push_to_hub")),
        **dict.fromkeys(
            _ADAM,
            (
                not any(name in optimizer for name in _READS_ADAM),
                f"--optim {optimizer} does not read it",
            ),
        ),
        **dict.fromkeys(
            ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"),
            (
                not (said["activation_checkpointing"] or said["gradient_checkpointing"]),
                "needs --activation_checkpointing",
            ),
        ),
    }
    return [
        f"--{name} has no effect: {why}"
        for name, (idle, why) in rules.items()
        if idle and given.get(name) not in (None, False if name != "dataloader_drop_last" else None)
    ]
