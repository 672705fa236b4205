"""Batches computed with torch, and an engine as a module of torch.

On a CPU every core computes whole batches with one thread: cores that share a matrix product wait
for each other after each one. The logits of a row are then the same for any number of threads.
"""

import inspect
from pathlib import Path

import numpy as np
import torch

from finetune.models import cpu
from finetune.predicting import Options
from finetune.predicting.engines import OnnxSession, require_engine
from finetune.predicting.files import Export
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
        """Return the logits of a batch, see :class:`Session`."""
        tensors = {}
        for name, values in batch.items():
            tensor = torch.as_tensor(values)
            if self._bf16 and tensor.is_floating_point():
                tensor = tensor.bfloat16()
            tensors[name] = tensor.to(self._device)
        with torch.inference_mode():
            logits: torch.Tensor = self._model(**tensors)["logits"]
        if logits.dim() == 1:
            logits = logits[:, None]
        return logits.float().cpu().numpy()


class SessionModule(torch.nn.Module):
    """A model whose logits an engine computes; it has no weights.

    Args:
        session: That of the engine.
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """Return ``{"logits": ...}``, float32, shape ``(rows, outputs)``, or of words ``(rows,
        tokens, outputs)``.
        """
        tensors = dict(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        )
        batch = {name: tensor.cpu() for name, tensor in tensors.items() if tensor is not None}
        return {"logits": torch.from_numpy(self._session(batch)).to(input_ids.device)}


def engine_session(run: Path, options: Options, workers: int = 0) -> OnnxSession | None:
    """Return the export of a run, loaded by the engine that options name; None for torch.

    Args:
        run: The directory of the run.
        options: Those that :func:`finetune.rules.check.check_prediction` accepts.
        workers: How many threads compute batches at once, each on one core; 0 for one batch at a
            time, on all cores.

    Raises:
        UserError: If there is no such export, or no such engine.
    """
    engine = options.engine or "torch"
    require_engine(engine)
    if engine == "torch":
        return None
    export = Export.of_run(run, engine)
    return OnnxSession(export.path, export.facts, engine, workers)
