"""Options by their names elsewhere, and what to type instead.

Those of older releases of ``transformers`` are from its migration guide to version 5 and the fields
that 4.57 had.
"""

from __future__ import annotations

from collections.abc import Iterable

from finetune.errors import suggestion

#: What other tools call an option, and its name here.
_ALIASES = {
    **dict.fromkeys(("lr", "rate"), "learning_rate"),
    **dict.fromkeys(("bs", "batch", "batch_size"), "global_batch_size"),
    **dict.fromkeys(("epoch", "epochs", "n_epochs"), "num_train_epochs"),
    **dict.fromkeys(("accum", "grad_accum"), "gradient_accumulation_steps"),
    **dict.fromkeys(("out", "output"), "output_dir"),
    "checkpoint": "resume_from_checkpoint",
    "wd": "weight_decay",
    "patience": "early_stopping_patience",
    "text": "text_column",
    "label": "label_column",
}

_RATE = "this toolkit always logs throughput; leave it out"
_TORCH = "torch.amp is always used; leave it out"
_ACCELERATOR = "--accelerator_config '{\"%s\": true}'"

#: The successor of each: a flag of the same meaning, or a sentence that begins with what to type.
RETIRED = {
    "adafactor": "--optim adafactor",
    "dispatch_batches": _ACCELERATOR % "dispatch_batches",
    "evaluate_during_training": "--eval_strategy steps",
    "evaluation_strategy": "--eval_strategy",
    "fp16_backend": _TORCH,
    "fp16_opt_level": _TORCH,
    "fsdp_min_num_params": "--fsdp_config '{\"min_num_params\": N}'",
    "fsdp_transformer_layer_cls_to_wrap": (
        '--fsdp_config \'{"transformer_layer_cls_to_wrap": ["NAME"]}\''
    ),
    "group_by_length": "--train_sampling_strategy group_by_length",
    "half_precision_backend": _TORCH,
    "include_inputs_for_metrics": "--include_for_metrics inputs",
    "include_tokens_per_second": _RATE,
    "jit_mode_eval": "--torch_compile",
    "logging_dir": "set TENSORBOARD_LOGGING_DIR=DIRECTORY before the command",
    "mp_parameters": "leave it out: it was for SageMaker's model parallelism, which is gone",
    "no_cuda": "--use_cpu",
    "overwrite_output_dir": (
        "leave it out: a run that is in --output_dir is moved aside, never overwritten"
    ),
    "past_index": "leave it out: no model needs it any more",
    "per_gpu_eval_batch_size": "--per_device_eval_batch_size",
    "per_gpu_train_batch_size": "--per_device_train_batch_size",
    "push_to_hub_model_id": "--hub_model_id",
    "push_to_hub_organization": "--hub_model_id ORGANIZATION/NAME",
    "push_to_hub_token": "--hub_token",
    "ray_scope": "set RAY_SCOPE before the command",
    "save_safetensors": "leave it out: weights are always saved as safetensors",
    "split_batches": _ACCELERATOR % "split_batches",
    "torchdynamo": "--torch_compile_backend",
    "tpu_metrics_debug": "--debug tpu_metrics_debug",
    "tpu_num_cores": "set TPU_NUM_CORES before the command",
    "use_ipex": "leave it out: PyTorch has taken its kernels over",
    "use_legacy_prediction_loop": "leave it out: there is one evaluation loop",
    "use_mps_device": "leave it out: MPS is used where there is one",
    "warmup_ratio": "--warmup_steps with a share of the steps, like --warmup_steps 0.1",
}


def successor(name: str) -> str:
    """Return what is to be said of a retired argument beyond its name; empty if it is none."""
    if (instead := RETIRED.get(name.replace("-", "_"))) is None:
        return ""
    return f" is gone from transformers; {'use ' * instead.startswith('--')}{instead}"


def option_suggestion(name: str, names: Iterable[str]) -> str:
    """Return ``"; did you mean '--learning_rate'?"`` for an option: ``--lr``, or ``lr``."""
    bare = name.lstrip("-")
    dashes, bare_names = name[: len(name) - len(bare)], [name.lstrip("-") for name in names]
    alias = _ALIASES.get(bare.replace("-", "_"))
    if alias in bare_names:
        return f"; did you mean '{dashes}{alias}'?"
    return suggestion(bare, bare_names, cutoff=0.65).replace("'", f"'{dashes}", 1)
