"""Rules about the fields of ``TrainingArguments``: each does what its documentation says, or is
refused here. None is silently ignored; ``make arguments`` tries all of them.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DynamoBackend
from transformers import TrainingArguments
from transformers.integrations import integration_utils as trackers
from transformers.trainer_pt_utils import AcceleratorConfig

from finetune.errors import suggestion
from finetune.rules.devices import recomputes
from finetune.rules.options import Mistakes, OptionValues
from finetune.rules.schedule import ignores_warmup
from finetune.runtime import DISTRIBUTION

#: Arguments that would break a promise of this toolkit, or would be ignored, and why.
_UNSUPPORTED = {
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
    "trackio_space_id": "curves stay in the directory of the run, see TRACKIO_SPACE_ID",
    "trackio_static_space_id": "curves stay in the directory of the run",
}
#: Options of a push by ``Trainer``, which is refused; ``hub_token`` is kept out of all files.
_UNSUPPORTED |= dict.fromkeys(
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
_CHOICES = {
    "include_for_metrics": ("inputs", "loss"),
    "include_num_input_tokens_seen": ("all", "non_padding", "no"),  # or a boolean
    "torch_compile_mode": (
        "default",
        "reduce-overhead",
        "max-autotune",
        "max-autotune-no-cudagraphs",
    ),
}
_TRACKERS = ("tensorboard", "trackio", "mlflow", "wandb")  # extras of this distribution


def _refuse_unsupported(options: OptionValues) -> Mistakes:
    arguments = vars(options)
    for name, reason in _UNSUPPORTED.items():
        if name in arguments and bool(arguments[name]) != (name in _ALWAYS_ON):
            yield f"--{name}: {reason}"


def _refuse_unknown_values(options: OptionValues) -> Mistakes:
    choices: dict[str, Any] = {}
    for field in fields(TrainingArguments):
        if "choices" in field.metadata:
            choices[field.name] = field.metadata["choices"]
    choices |= _CHOICES
    if options.torch_compile_backend is not None:  # the list takes a second
        names = {backend.value.lower() for backend in DynamoBackend}
        choices["torch_compile_backend"] = sorted(names & set(torch.compiler.list_backends(())))
    for name, allowed in choices.items():
        value = getattr(options, name)
        for item in value if isinstance(value, list) else [value]:
            if item is not None and item not in allowed and not isinstance(item, bool):
                yield f"--{name} {item}: expected {', '.join(map(str, allowed))}"


def _refuse_ineffective(options: OptionValues) -> Mistakes:
    """Yield typed arguments that the library would ignore, with what they need."""
    workers = options.dataloader_num_workers
    has_workers = workers or (workers is None and not options.use_cpu)  # the default
    schedule = options.lr_scheduler_type
    has_kwargs = schedule not in ("constant", "constant_with_warmup")
    has_targets = options.optim.startswith(("galore", "apollo"))
    warmup = "another --lr_scheduler_type, such as constant_with_warmup"
    requirements = (
        ("activation_checkpointing_kwargs", recomputes(options), "--activation_checkpointing true"),
        ("gradient_checkpointing_kwargs", recomputes(options), "--gradient_checkpointing true"),
        ("dataloader_multiprocessing_context", has_workers, "--dataloader_num_workers 1 or more"),
        ("dataloader_persistent_workers", has_workers, "--dataloader_num_workers 1 or more"),
        ("dataloader_prefetch_factor", has_workers, "--dataloader_num_workers 1 or more"),
        ("eval_steps", options.eval_strategy == "steps", "--eval_strategy steps"),
        ("fsdp_config", options.fsdp, "--fsdp"),
        ("hub_strategy", False, "a push: python -m finetune push RUN --repo NAME"),
        ("liger_kernel_config", options.use_liger_kernel, "--use_liger_kernel true"),
        ("logging_steps", options.logging_strategy == "steps", "--logging_strategy steps"),
        ("lr_scheduler_kwargs", has_kwargs, "another --lr_scheduler_type"),
        ("optim_target_modules", has_targets, "an --optim that starts with galore or apollo"),
        ("save_steps", options.save_strategy == "steps", "--save_strategy steps"),
        ("warmup_steps", not ignores_warmup(options), warmup),
    )
    for name, is_met, requirement in requirements:
        if options.typed.get(name) and not is_met:
            yield f"--{name} has no effect: it needs {requirement}"


def _refuse_two_checkpoints(options: OptionValues) -> Mistakes:
    if options.resume and options.resume_from_checkpoint:
        yield (
            "expected one of --resume and --resume_from_checkpoint, found both: --resume continues "
            "from the newest checkpoint, or starts from the beginning if there is none"
        )


def _require_trackers(options: OptionValues) -> Mistakes:
    installed = trackers.get_available_reporting_integrations()  # type: ignore[no-untyped-call]
    names = options.report_to or []
    if isinstance(names, str):
        names = [names]
    if len(names) > 1:
        for word in {"all", "none"}.intersection(names):
            yield f"--report_to {' '.join(names)}: expected {word} alone, or without it"
    for name in sorted(set(names) - {"none", "all", *installed}):
        reason = "not installed"
        if name in _TRACKERS:
            reason += f": pip install '{DISTRIBUTION}[{name}]'"
        elif name not in trackers.INTEGRATION_TO_CALLBACK:
            reason = f"unknown{suggestion(name, trackers.INTEGRATION_TO_CALLBACK)}"
            if "," in name:
                reason = f"expected blanks between names: {name.replace(',', ' ')}"
        yield f"--report_to {name}: {reason}"


def _refuse_accelerator_config(options: OptionValues) -> Mistakes:
    """Yield the keys of a mapping, of JSON text or of a JSON file that cannot be kept."""
    config: Any = options.accelerator_config
    if config is None:
        return
    if isinstance(config, AcceleratorConfig):
        config = vars(config)
    if isinstance(config, str):
        try:
            config = json.loads(config if config.startswith("{") else Path(config).read_text())
        except (OSError, ValueError) as error:
            yield f"--accelerator_config {config}: expected JSON, or a file of it: {error}"
            return
    if not isinstance(config, Mapping):
        yield f"--accelerator_config: expected a mapping, found {config!r:.100}"
        return
    defaults = vars(AcceleratorConfig())
    for key, value in config.items():
        if key not in defaults:
            yield f"--accelerator_config: unknown key '{key}'{suggestion(key, defaults)}"
        elif key in _UNSUPPORTED_KEYS and bool(value) != bool(defaults[key]):
            yield f"--accelerator_config: {key}: {_UNSUPPORTED_KEYS[key]}; leave it out"
    accumulation = config.get("gradient_accumulation_kwargs") or {}
    if not isinstance(accumulation, Mapping) or accumulation.keys() - {"sync_each_batch"}:
        yield (
            f"--accelerator_config: gradient_accumulation_kwargs {json.dumps(accumulation)}: "
            "expected sync_each_batch only; for steps use --gradient_accumulation_steps"
        )


RULES = (
    _refuse_unsupported,
    _refuse_unknown_values,
    _refuse_ineffective,
    _refuse_two_checkpoints,
    _require_trackers,
    _refuse_accelerator_config,
)
