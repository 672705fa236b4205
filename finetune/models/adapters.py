"""Train a part of a model: low-rank adapters (LoRA) of ``peft``, or frozen layers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn import Conv2d, Linear, Module, ModuleList, Parameter
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from finetune.data.comma_list import split_values
from finetune.errors import UserError, counted, suggestion
from finetune.models import loaded_weights


def freeze_or_add_adapter(model: Module, options: Mapping[str, Any]) -> Module:
    """Return ``model`` with an adapter or frozen layers, as the options of a recipe say.

    Weights that loading created are trained in both cases.

    Raises:
        UserError: If the model has no such layers, or is not a model of ``transformers``.
    """
    adapter, frozen = options.get("adapter"), options.get("freeze")
    if not adapter and not frozen:
        return model
    flag = f"--adapter {adapter}" if adapter else f"--freeze {frozen}"
    base = getattr(model, "base_model", model)
    heads = []
    for name, module in model.named_children():
        if module is not base and list(module.parameters()):
            heads.append(name)
    if not isinstance(model, PreTrainedModel) or base is model or not heads:
        raise UserError(
            f"{flag}: expected a model of transformers with a base model and a head beside it, "
            f"found {type(model).__name__}"
        )
    new = loaded_weights.get(model).new
    new_weights = {weight for key, weight in model.named_parameters() if key in new}
    if frozen:
        for parameter in _frozen(base, frozen):
            if parameter not in new_weights:
                parameter.requires_grad_(False)
    else:
        model = _add_lora(model, base, heads, new_weights, options)
    _keep_statistics(model)
    return model


def _keep_statistics(model: Module) -> None:
    """Let frozen batch normalization use and keep its statistics, which have no gradients."""
    for layer in model.modules():
        is_trained = any(weight.requires_grad for weight in layer.parameters())
        if hasattr(layer, "running_mean") and not is_trained:
            layer.register_forward_pre_hook(_use_stored_statistics)


def _use_stored_statistics(layer: Module, _: Any) -> None:
    """Keep a frozen batch normalization in evaluation mode, whatever ``model.train()`` sets."""
    layer.eval()


def _frozen(base: Any, text: str) -> list[torch.nn.Parameter]:
    """Return the parameters that ``--freeze`` names; of layers also the embeddings below them."""
    if text == "base":
        return list(base.parameters())
    pattern = loaded_weights.EMBEDDINGS
    embeddings = [weight for name, weight in base.named_parameters() if pattern.search(name)]
    if text == "embeddings":
        return embeddings
    encoder = base.get_encoder() if base.config.is_encoder_decoder else base
    stack = max(
        (module for module in encoder.modules() if isinstance(module, ModuleList)),
        key=lambda layers: sum(map(torch.numel, layers.parameters())),
        default=ModuleList(),
    )
    count = int(text)
    if count > len(stack):
        layers = counted(len(stack), "layer")
        raise UserError(f"--freeze {text}: expected at most {len(stack)}, the model has {layers}")
    return [*embeddings, *(p for layer in stack[:count] for p in layer.parameters())]


def _add_lora(
    model: PreTrainedModel,
    base: Module,
    heads: list[str],
    new: set[Parameter],
    options: Mapping[str, Any],
) -> Module:
    """Return a ``PeftModel`` that trains adapters in linear layers of ``base``, the ``heads``, and
    the ``new`` weights; the adapter holds all of them.

    ``model.add_adapter`` would be shorter, but its model cannot resume or load its best checkpoint.
    """
    from peft import LoraConfig, get_peft_model

    prefix = model.base_model_prefix
    created = []  # modules with new weights of their own
    layers = {}
    for name, module in base.named_modules(prefix=prefix):
        if not new.isdisjoint(module.parameters(recurse=False)):
            created.append(name)
        elif isinstance(module, (Linear, Conv1D, Conv2d)):
            layers[name] = module
    targets = split_values(options["lora_targets"] or "")
    for target in targets:
        if not any(f".{name}".endswith(f".{target}") for name in layers):
            names = list(dict.fromkeys(name.rpartition(".")[2] for name in layers))
            raise UserError(
                f"--lora_targets {target}: no linear layer has this name"
                f"{suggestion(target, names)} (available: {', '.join(names)})"
            )
    linear = [name for name, layer in layers.items() if not isinstance(layer, Conv2d)]
    config = LoraConfig(
        r=options["lora_rank"],
        lora_alpha=options["lora_alpha"],
        lora_dropout=options["lora_dropout"],
        target_modules=targets or linear or list(layers),
        modules_to_save=heads + created,
        exclude_modules=created or None,
        use_dora=options["lora_dora"],
        use_rslora=options["lora_rslora"],
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in layers.values()),
    )
    try:
        return get_peft_model(model, config)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise UserError(f"--adapter lora: {error}") from error


def save_and_unload_adapter(trainer: Any) -> None:
    """Save the adapter alone, in ``adapter/``, and let the trainer save the merged model."""
    if trainer.args.should_save:
        trainer.model.save_pretrained(str(Path(trainer.args.output_dir) / "adapter"))
    trainer.model = trainer.model.unload()
