"""Encode rows with a pretrained model: the inputs of its last layer, and the means of its last
hidden states.

On a CPU every core computes whole batches with one thread, so that the arrays are the same to the
bit for any number of threads and processes.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel

from finetune.data.lengths import cut_by_length, default_budget, lengths_of
from finetune.data.words import UNLABELLED
from finetune.models import cpu, head
from finetune.runtime import hardware

_ROWS_OF_IMAGES = 32  # of a batch


@dataclass(frozen=True, eq=False)
class States:
    """Arrays of the rows that were encoded, or of their labelled words, float32, in their order.

    Attributes:
        head_inputs: What the last layer reads, shape ``(rows, features)``.
        means: The mean of the last hidden states over the tokens or the patches, of length 1,
            shape ``(rows, hidden_size)``; of a word the state of its labelled token.
    """

    head_inputs: np.ndarray
    means: np.ndarray


def encode(
    model: PreTrainedModel,
    width: int,
    rows: Dataset,
    collate: Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]],
    *,
    device: torch.device,
    bf16: bool,
    use_kernels: bool,
    labels_words: bool = False,
) -> States | None:
    """Return the states of rows, or of their labelled words; None if the logits are not the
    outputs of the last layer alone.

    The model is changed: it has no last layer afterwards.

    Args:
        model: A pretrained classifier on the CPU, with its new head.
        width: The number of outputs of its last layer.
        rows: Prepared rows, with the columns that ``collate`` and the model read.
        collate: The data collator of the recipe.
        device: Where to compute.
        bf16: Whether to compute in bf16, else in fp32.
        use_kernels: Whether to use the kernels of :mod:`finetune.models.cpu` on a CPU.
        labels_words: Whether rows have a label for each token, :data:`UNLABELLED` for most.
    """
    classifier: Any = model
    classifier.eval().to(device)
    on_cpu = device.type == "cpu"
    last_states = threading.local()  # of the batch that a thread computes

    def record(module: Any, inputs: Any, output: Any) -> None:
        encoder_states = getattr(output, "encoder_last_hidden_state", None)
        last_states.value = output[0] if encoder_states is None else encoder_states

    def compute(numbers: np.ndarray) -> tuple[np.ndarray, ...]:
        batch = collate([dict(rows[int(number)]) for number in numbers])
        labels: Any = batch.pop("labels", None)
        batch = {name: value.to(device) for name, value in batch.items()}
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            outputs = classifier(**batch)["logits"].float()
        states = last_states.value.float()
        if labels_words:
            is_labelled = (labels != UNLABELLED).to(device)
            numbers = numbers.repeat(is_labelled.sum(dim=1).cpu().numpy())
            outputs = outputs[is_labelled]
            means = torch.nn.functional.normalize(states[is_labelled], dim=-1)
        else:
            outputs = outputs.reshape(len(numbers), -1)
            means = _mean(states, batch.get("attention_mask"))
        return numbers, outputs.cpu().numpy(), means.cpu().numpy()

    budget = default_budget(device.type)
    lengths = lengths_of(rows, "length")
    if lengths is None:
        lengths = np.full(len(rows), max(1, budget // _ROWS_OF_IMAGES))
    else:
        rows = rows.remove_columns("length")
    base: Any = getattr(model, model.base_model_prefix)
    hook = base.register_forward_hook(record)
    with torch.no_grad():
        for weight in head.last_linear(model, width).parameters():
            weight.zero_()
    if compute(np.arange(1))[1].any():  # e.g. DeiT's second head, of its teacher
        return None
    head.remove_last_linear(model, width)
    if on_cpu and bf16:
        classifier.to(torch.bfloat16)
    if on_cpu and use_kernels:
        cpu.for_inference(model, bf16=bf16)
    batches = cut_by_length(lengths, budget)
    with hardware.batch_executor(device.type) as executor:
        parts = list(executor.map(compute, batches))
    hook.remove()
    numbers, head_inputs, means = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(numbers, kind="stable")  # words of a row keep their order
    return States(head_inputs[order], means[order])


def _mean(states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """Return the mean over tokens, patches or pixels, scaled to length 1."""
    if states.dim() == 4:  # of a convolutional network: (rows, channels, height, width)
        states = states.flatten(2).transpose(1, 2)
    if attention_mask is not None and attention_mask.shape == states.shape[:2]:
        states = states * attention_mask[..., None]
    return torch.nn.functional.normalize(states.sum(dim=1), dim=-1)
