"""Training arguments of older releases of ``transformers``, and what to type instead.

From its migration guide to version 5 and the fields that 4.57 had.
"""

from __future__ import annotations

from collections.abc import Iterable

from finetune.errors import suggestion

#: What other tools call an option, and its name here.
_ALIASES = {
    **dict.fromkeys(("lr", "rate"), "learning_rate"),
    **dict.fromkeys(("bs", "batch", "batch_size"), "global_batch_size"),
    **dict.fromkeys(("epoch", "epochs", "n_epochs"), "num_train_epochs"),
    **dict.fromkeys(("out", "output"), "output_dir"),
}
_WRAP = '--fsdp_config \'{"transformer_layer_cls_to_wrap": ["NAME"]}\''
#: A flag of the same meaning, or what to do.
RENAMED = {
    "adafactor": "--optim adafactor",
    "dispatch_batches": "--accelerator_config '{\"dispatch_batches\": true}'",
    "evaluate_during_training": "--eval_strategy steps",
    "evaluation_strategy": "--eval_strategy",
    "fsdp_min_num_params": "--fsdp_config '{\"min_num_params\": N}'",
    "fsdp_transformer_layer_cls_to_wrap": _WRAP,
    "group_by_length": "--train_sampling_strategy group_by_length",
    "include_inputs_for_metrics": "--include_for_metrics inputs",
    "jit_mode_eval": "--torch_compile",
    "logging_dir": "the environment variable TENSORBOARD_LOGGING_DIR",
    "no_cuda": "--use_cpu",
    "overwrite_output_dir": "nothing: a run that is in --output_dir is moved aside",
    "per_gpu_eval_batch_size": "--per_device_eval_batch_size",
    "per_gpu_train_batch_size": "--per_device_train_batch_size",
    "push_to_hub_model_id": "--hub_model_id",
    "push_to_hub_organization": "--hub_model_id ORGANIZATION/NAME",
    "push_to_hub_token": "--hub_token",
    "split_batches": "--accelerator_config '{\"split_batches\": true}'",
    "torchdynamo": "--torch_compile_backend",
    "tpu_metrics_debug": "--debug tpu_metrics_debug",
    "use_mps_device": "nothing: MPS is used where there is one",
    "warmup_ratio": "--warmup_steps with a share of the steps, like --warmup_steps 0.1",
}


def successor(name: str) -> str:
    """Return what to use instead of an argument of an older release; empty if it is none."""
    instead = RENAMED.get(name.replace("-", "_"))
    return f" is gone from transformers; use {instead}" if instead else ""


def option_suggestion(name: str, names: Iterable[str]) -> str:
    """Return ``"; did you mean '--learning_rate'?"`` for an option: ``--lr``, or ``lr``."""
    bare = name.lstrip("-")
    dashes, bare_names = name[: len(name) - len(bare)], [name.lstrip("-") for name in names]
    alias = _ALIASES.get(bare.replace("-", "_"))
    if alias in bare_names:
        return f"; did you mean '{dashes}{alias}'?"
    return suggestion(bare, bare_names, cutoff=0.65).replace("'", f"'{dashes}", 1)
