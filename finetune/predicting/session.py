"""Batches computed with torch.

On a CPU every core computes whole batches with one thread: cores that share a matrix product wait
for each other after each one. The logits of a row are then the same for any number of threads.
"""

import inspect

import numpy as np
import torch

from finetune.models import cpu
from finetune.predicting.inference import Batch, Session
from finetune.runtime import distributed


class TorchSession(Session):
    """Computes the logits of batches with torch.

    Args:
        model: In evaluation mode; it is changed.
        bf16: Whether to compute in bf16, else in fp32.
        cpu_kernels: ``auto`` for the kernels of :mod:`finetune.models.cpu` on a CPU, or ``off``.

    Attributes:
        inputs: The names of the inputs of the model.
    """

    def __init__(
        self, model: torch.nn.Module, *, bf16: bool = False, cpu_kernels: str | None = "off"
    ) -> None:
        self.inputs = inspect.signature(model.forward).parameters
        self._device = distributed.device()
        self._bf16 = bf16
        if bf16:
            model.to(torch.bfloat16)
        if cpu_kernels == "auto" and self._device.type == "cpu":
            cpu.for_inference(model, bf16=bf16)
        self._model = model.to(self._device)

    def __call__(self, batch: Batch) -> np.ndarray:
        """Return the logits of a batch, float32, shape ``(inputs, outputs)``."""
        tensors = {}
        for name, values in batch.items():
            tensor = torch.as_tensor(values)
            if self._bf16 and tensor.is_floating_point():
                tensor = tensor.bfloat16()
            tensors[name] = tensor.to(self._device)
        with torch.inference_mode():
            logits: torch.Tensor = self._model(**tensors)["logits"]
        return logits.float().reshape(len(logits), -1).cpu().numpy()
