"""Rules about training arguments: what is refused before data is read, and why.

Each field of ``TrainingArguments`` does what its documentation says, or is refused here: none is
silently ignored. ``make arguments`` tries all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch
from accelerate.utils import DynamoBackend
from transformers import TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig

from finetune.errors import suggestion

if TYPE_CHECKING:
    from finetune.training.arguments import ArgumentValues

#: Arguments that would break a promise of this toolkit, or would be ignored, and why.
UNSUPPORTED = {
    "auto_find_batch_size": "changes the global batch; use --gradient_accumulation_steps",
    "average_tokens_across_devices": "the loss is always that of the global batch",
    "batch_eval_metrics": "the report needs the outputs of all rows",
    "dataloader_drop_last": "evaluation rows would be dropped, too; training always drops them",
    "dataloader_in_order": "predictions would be those of other rows",
    "debug": "a training stops at the first loss, gradient or weight that is not finite",
    "deepspeed": "DeepSpeed is not supported; use --fsdp full_shard on accelerators",
    "enable_jit_checkpoint": "SIGTERM already saves a checkpoint, see --grace_seconds",
    "eval_do_concat_batches": "the batches of an evaluation are put together once, after the last",
    "eval_use_gather_object": "the outputs of all processes are tensors, and gathered as such",
    "ignore_data_skip": "a resumed epoch would train on rows that it has seen",
    "label_names": "the trainer reads the column 'labels'; name your own by --label_column",
    "parallelism_config": "only data parallelism and --fsdp are supported",
    "prediction_loss_only": "the report needs the outputs of all rows",
    "push_to_hub": "would send run.json with local paths; use `python -m finetune push RUN`",
    "trackio_bucket_id": "curves stay in the directory of the run",
    "trackio_space_id": "curves stay in the directory of the run",
    "trackio_static_space_id": "curves stay in the directory of the run",
}
#: Options of a push by ``Trainer``, which is refused; ``hub_token`` is kept out of all files.
UNSUPPORTED |= dict.fromkeys(
    ("hub_always_push", "hub_model_id", "hub_private_repo", "hub_revision"),
    "nothing is pushed in a training; use `python -m finetune push RUN --repo NAME`",
)
#: Keys of ``accelerator_config``. The trainer has its own sampler, which divides each global batch.
_UNSUPPORTED_KEYS = {
    "split_batches": "the size of a step is --global_batch_size",
    "dispatch_batches": "each process reads its own rows",
    "even_batches": "evaluations count each row once",
    "use_seedable_sampler": "the order of the rows always depends on the seed only",
    "use_configured_state": "the trainer configures the devices",
}
_ALWAYS_ON = ("average_tokens_across_devices", "dataloader_in_order")
_COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
#: Optimizers that step in the backward pass, before gradients are added up, clipped and checked.
_IN_BACKWARD = ("lomo", "layerwise")
_WITH_TARGETS = ("galore", "apollo")


def ignores_warmup(values: ArgumentValues) -> bool:
    """Return whether the learning rate has no warm-up, whatever ``--warmup_steps`` says."""
    return _text(values.lr_scheduler_type) in ("constant", "reduce_lr_on_plateau", "greedy")


def recomputes(values: ArgumentValues | TrainingArguments) -> bool:
    """Return whether the backward pass computes activations again. The first name is that of
    transformers 5.17 and later, the second that of earlier versions.
    """
    names = ("activation_checkpointing", "gradient_checkpointing")
    return any(getattr(values, name, False) for name in names)


def find_mistakes(values: ArgumentValues, typed: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message for each argument that is not supported, has no effect or an unknown value.

    Args:
        values: All training arguments.
        typed: Those of the user; only of these it is a mistake to have no effect.
    """
    yield from _find_unsupported(values)
    yield from _find_unknown_values(values)
    yield from _find_ineffective(values, typed)
    yield from _find_mistakes_in_accelerator_config(values.accelerator_config)
    yield from _find_unavailable(values)
    yield from _find_optimizer_mistakes(values)


def _find_unsupported(values: ArgumentValues) -> Iterator[str]:
    for name, reason in UNSUPPORTED.items():
        if hasattr(values, name) and bool(getattr(values, name)) != (name in _ALWAYS_ON):
            yield f"--{name}: {reason}"


def _find_unknown_values(values: ArgumentValues) -> Iterator[str]:
    choices: dict[str, Any] = {}
    for field in fields(TrainingArguments):
        if "choices" in field.metadata:
            choices[field.name] = field.metadata["choices"]
    choices["include_for_metrics"] = ("inputs", "loss")
    choices["include_num_input_tokens_seen"] = ("all", "non_padding", "no", True, False)
    choices["torch_compile_mode"] = _COMPILE_MODES
    if values.torch_compile_backend is not None:  # the list takes a second
        names = {backend.value.lower() for backend in DynamoBackend}
        choices["torch_compile_backend"] = sorted(names & set(torch.compiler.list_backends(())))
    if isinstance(values.report_to, list) and len(values.report_to) > 1:
        for word in {"all", "none"}.intersection(values.report_to):
            yield f"--report_to {' '.join(values.report_to)}: expected {word} alone, or without it"
    for name, known in choices.items():
        value = getattr(values, name)
        for item in value if isinstance(value, list) else [value]:
            if item is not None and item not in known:
                words = ", ".join(str(choice) for choice in known if not isinstance(choice, bool))
                yield f"--{name} {item}: expected {words}"


def _find_ineffective(values: ArgumentValues, typed: Mapping[str, Any]) -> Iterator[str]:
    """Yield typed arguments that the library would ignore, with what they need."""
    optimizer = _text(values.optim)
    schedule = _text(values.lr_scheduler_type)
    has_workers = bool(values.dataloader_num_workers)
    if values.dataloader_num_workers is None and not values.use_cpu:
        has_workers = True  # the default of an accelerator
    is_recomputing = recomputes(values)
    recompute = "--activation_checkpointing true"
    if not hasattr(values, "activation_checkpointing"):
        recompute = "--gradient_checkpointing true"
    constants = ("constant", "constant_with_warmup")
    requirements = {
        "activation_checkpointing_kwargs": (is_recomputing, recompute),
        "gradient_checkpointing_kwargs": (is_recomputing, recompute),
        "dataloader_multiprocessing_context": (has_workers, "--dataloader_num_workers 1 or more"),
        "dataloader_persistent_workers": (has_workers, "--dataloader_num_workers 1 or more"),
        "dataloader_prefetch_factor": (has_workers, "--dataloader_num_workers 1 or more"),
        "eval_steps": (_text(values.eval_strategy) == "steps", "--eval_strategy steps"),
        "fsdp_config": (bool(values.fsdp), "--fsdp"),
        "hub_strategy": (False, "a push, and none is made in a training"),
        "liger_kernel_config": (bool(values.use_liger_kernel), "--use_liger_kernel true"),
        "logging_steps": (_text(values.logging_strategy) == "steps", "--logging_strategy steps"),
        "lr_scheduler_kwargs": (schedule not in constants, "another --lr_scheduler_type"),
        "optim_target_modules": (
            optimizer.startswith(_WITH_TARGETS),
            "an --optim that starts with galore or apollo",
        ),
        "save_steps": (_text(values.save_strategy) == "steps", "--save_strategy steps"),
        "warmup_steps": (
            not ignores_warmup(values),
            "another --lr_scheduler_type, such as constant_with_warmup",
        ),
    }
    for name, (is_met, requirement) in requirements.items():
        if not is_met and typed.get(name):
            yield f"--{name} has no effect: it needs {requirement}"


def _find_mistakes_in_accelerator_config(config: Any) -> Iterator[str]:
    """Yield the keys of a mapping, of JSON text or of a JSON file that cannot be kept."""
    if isinstance(config, AcceleratorConfig):
        config = vars(config)
    if isinstance(config, str):
        try:
            config = json.loads(config if config.startswith("{") else Path(config).read_text())
        except (OSError, ValueError) as error:
            yield f"--accelerator_config {config}: expected JSON, or a file of it: {error}"
            return
    defaults = vars(AcceleratorConfig())
    if config is not None and not isinstance(config, Mapping):
        yield f"--accelerator_config: expected a mapping, found {config!r:.100}"
        return
    for key, value in (config or {}).items():
        if key not in defaults:
            yield f"--accelerator_config: unknown key '{key}'{suggestion(key, defaults)}"
        elif key in _UNSUPPORTED_KEYS and bool(value) != bool(defaults[key]):
            yield f"--accelerator_config: {key}: {_UNSUPPORTED_KEYS[key]}; leave it out"
    accumulation = (config or {}).get("gradient_accumulation_kwargs") or {}
    if not isinstance(accumulation, Mapping) or accumulation.keys() - {"sync_each_batch"}:
        expected = "expected sync_each_batch only; for steps use --gradient_accumulation_steps"
        yield (
            f"--accelerator_config: gradient_accumulation_kwargs {json.dumps(accumulation)}: "
            f"{expected}"
        )


def _find_unavailable(values: ArgumentValues) -> Iterator[str]:
    """Yield what the installed packages or the devices do not have."""
    if values.use_liger_kernel and values.use_cpu:
        yield "--use_liger_kernel: its kernels need a GPU"
    elif values.use_liger_kernel and find_spec("liger_kernel") is None:
        yield "--use_liger_kernel: not installed: pip install liger-kernel"
    if values.fp16_full_eval and values.use_cpu:
        yield "--fp16_full_eval: not supported on a CPU; expected --bf16_full_eval"
    if (values.fp16_full_eval or values.bf16_full_eval) and values.fsdp:
        yield "--fp16_full_eval and --bf16_full_eval: not supported with --fsdp; use --precision"
    if values.tf32 and not torch.cuda.is_available():
        yield "--tf32 true: needs a GPU of NVIDIA, Ampere or newer"
    backend = values.ddp_backend
    if backend and not torch.distributed.is_backend_available(backend):
        yield f"--ddp_backend {backend}: this build of torch does not have it"
    elif backend not in (None, "gloo", "mpi") and values.use_cpu:
        yield f"--ddp_backend {backend}: needs accelerators; on CPUs expected gloo"


def _text(value: Any) -> str:
    """Return the text of an option that may be a member of an enumeration."""
    return str(value.value if isinstance(value, Enum) else value)


def _find_optimizer_mistakes(values: ArgumentValues) -> Iterator[str]:
    """Yield a message if the optimizer is not available, or a part of ``optim_args`` is unknown."""
    name = _text(values.optim)
    if values.optim == TrainingArguments.optim and not values.optim_args:
        return
    if any(word in name for word in _IN_BACKWARD):
        reason = "steps in the backward pass, before gradients are added up, clipped and checked"
        yield f"--optim {name}: {reason}"
        return
    try:
        kind, kwargs = _optimizer(values, values.optim_args)
        kind([torch.nn.Parameter(torch.zeros(1))], **kwargs)
        pairs = (values.optim_args or "").split(",")
        for pair in filter(None, pairs):
            rest = ",".join(other for other in pairs if other != pair)
            if _optimizer(values, rest)[1] == kwargs:
                yield f"--optim_args {pair} has no effect with --optim {name}"
    except AttributeError:  # properties of built arguments
        return
    except (ImportError, ValueError, TypeError, RuntimeError) as error:
        flags = f"--optim {name}"
        if values.optim_args:
            flags += f" --optim_args {values.optim_args}"
        if "need to pass a" not in str(error):  # some optimizers need the model
            yield f"{flags}: {error}"


def _optimizer(values: ArgumentValues, optim_args: str | None) -> tuple[Any, dict[str, Any]]:
    from transformers import Trainer  # takes a second

    changed = cast(Any, SimpleNamespace(**{**vars(values), "optim_args": optim_args}))
    return Trainer.get_optimizer_cls_and_kwargs(changed)
