"""Memory: what cannot fit is refused, a failed allocation is told with the batch and what helps.

Nothing is covered that the system does without a word: where Linux runs out of memory it kills the
process, and no line of this is run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import torch
from transformers.trainer_utils import TrainOutput

from finetune.data import batches
from finetune.errors import RunError, UserError
from finetune.runtime import distributed
from finetune.training import disk
from finetune.training.nonfinite import FiniteSteps

if TYPE_CHECKING:
    import datasets
    from transformers.trainer_utils import EvalLoopOutput

    from finetune.training.arguments import FinetuneArguments

#: What the libraries say where an allocation failed that is no ``OutOfMemoryError``.
_SAID = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "Cannot allocate")
#: Where Linux keeps the bound of a container.
_BOUNDS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
#: Bytes that a layer keeps of each token for the backward pass, over its hidden size, at the very
#: least: what goes into it, twice, in bf16. Those of BERT keep eight times as many.
_KEPT = 4


def failed_to_allocate(error: BaseException) -> bool:
    """Return whether an error says that there is no memory left."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _SAID)


class Memory(FiniteSteps):
    """The part of :class:`~finetune.training.trainer.Trainer` that tells where memory ran out."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._part = 0  # micro-batch of the step
        self._shape: tuple[int, ...] = ()

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train as the library does.

        Raises:
            RunError: if memory runs out.
        """
        try:
            return super().train(*args, **kwargs)
        except (RuntimeError, MemoryError) as error:
            if not failed_to_allocate(error):
                raise
            raise RunError(self._training_sentence()) from error

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Evaluate as the library does.

        Raises:
            RunError: if memory runs out.
        """
        try:
            return super().evaluation_loop(*args, **kwargs)
        except (RuntimeError, MemoryError) as error:
            if not failed_to_allocate(error):
                raise
            rows = self.args.per_device_eval_batch_size or 1
            raise RunError(
                f"out of memory on {place(self.args.device)} in an evaluation, with batches of "
                f"{rows} rows: try --per_device_eval_batch_size {max(1, rows // 2)}"
            ) from error

    def get_batch_samples(self, *args: Any) -> tuple[list[Any], Any]:
        """Begin a step."""
        self._part = 0
        found: tuple[list[Any], Any] = super().get_batch_samples(*args)
        return found

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """Remember the shape of each micro-batch while it is in work."""
        tensors = [each for each in inputs.values() if isinstance(each, torch.Tensor)]
        self._shape = max((tuple(each.shape) for each in tensors), key=len, default=())
        loss = super().training_step(model, inputs, *args, **kwargs)
        self._part += 1
        return loss

    def _training_sentence(self) -> str:
        step = self.state.global_step + 1
        batch = " x ".join(map(str, self._shape)) or "unknown shape"
        rows = self.micro_batches(step)[min(self._part, self.args.gradient_accumulation_steps - 1)]
        lengths = batches.lengths_of(self.train_dataset, self.args.length_column_name)
        longest = ""
        if lengths is not None and rows:
            row = max(rows, key=lambda each: int(lengths[each]))
            longest = f", the longest of them row {self.names([row])[0]} with {lengths[row]} tokens"
        return (
            f"out of memory on {place(self.args.device)} at step {step:,}: a micro-batch of "
            f"{batch} (rows x padded length{longest}). Try {', '.join(_helpful(self.args))}"
        )


def _helpful(arguments: FinetuneArguments) -> list[str]:
    """Return the flags that lower the memory of a step, those first that change no result."""
    accumulation = arguments.gradient_accumulation_steps
    rows = arguments.per_device_train_batch_size or 1
    found = []
    if rows > 1 or arguments.max_tokens_per_batch:
        factor = next((each for each in range(2, rows + 1) if rows % each == 0), 2)
        found.append(
            f"--gradient_accumulation_steps {accumulation * factor} (the same global batch)"
        )
    if not arguments.gradient_checkpointing:
        found.append("--gradient_checkpointing true")
    if not (arguments.bf16 or arguments.fp16):
        found.append("--precision bf16")
    return [*found, "a smaller --max_length", "or a smaller --global_batch_size"]


def refuse_too_little(model: torch.nn.Module, arguments: FinetuneArguments, tokens: int) -> None:
    """Refuse a training that cannot fit in the memory of this device, by what it needs at least.

    Args:
        model: Loaded, not sharded yet.
        arguments: Of the training.
        tokens: Of the largest micro-batch, without padding; 0 if rows have no length.

    Raises:
        UserError: what is needed at least, what there is, and what to type.
    """
    needed, there = needed_bytes(model, arguments, tokens), available(arguments.device)
    if needed <= there:
        return
    raise UserError(
        f"the training needs at least {shown(needed)} of memory on {place(arguments.device)} "
        f"(weights, gradients, optimizer and a micro-batch of {tokens:,} tokens), and there are "
        f"{shown(there)}: try {', '.join(_helpful(arguments))}, or a smaller --model"
    )


def needed_bytes(model: torch.nn.Module, arguments: FinetuneArguments, tokens: int) -> int:
    """Return what the processes of a device need at least: far less than they will take.

    Args:
        model: To be trained.
        arguments: Of the training.
        tokens: Of the largest micro-batch.
    """
    trained = sum(
        each.numel() * each.element_size() for each in model.parameters() if each.requires_grad
    )
    state = disk.weight_bytes(model) + trained + disk.optimizer_bytes(model, arguments)
    config, kept = getattr(model, "config", None), 0
    layers, hidden = (getattr(config, name, 0) for name in ("num_hidden_layers", "hidden_size"))
    whole = all(each.requires_grad for each in model.parameters())
    checkpointed = arguments.gradient_checkpointing or arguments.activation_checkpointing
    if whole and not checkpointed and isinstance(layers, int) and isinstance(hidden, int):
        kept = _KEPT * tokens * layers * hidden
    if arguments.fsdp:
        state //= int(arguments.world_size)
    here = distributed.ranks().local_world_size if arguments.device.type == "cpu" else 1
    return here * (state + kept)


def available(device: torch.device) -> int:
    """Return the bytes of a device; of a CPU those of the machine, or of its container."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    bounds = [int(psutil.virtual_memory().total + psutil.swap_memory().total)]
    for bound in map(Path, _BOUNDS):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            bounds.append(int(bound.read_text(encoding="utf-8")))
    return min(bounds)


def largest(steps: Iterator[list[int]], rows: datasets.Dataset, column: str) -> int:
    """Return the tokens, without padding, of the largest of these micro-batches.

    Args:
        steps: The numbers of the rows of each micro-batch.
        rows: Tokenized.
        column: Of their lengths.
    """
    lengths = batches.lengths_of(rows, column)
    if lengths is None:
        return 0
    return max((int(np.sum(lengths[each])) for each in steps), default=0)


def place(device: torch.device) -> str:
    """Return what a device is called."""
    return "the CPU" if device.type == "cpu" else str(device)


def shown(count: int) -> str:
    """Return ``1.2 GiB``, as memory is measured: in powers of two."""
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"


def fits(trainer: Memory) -> bool:
    """Return whether a forward and backward pass over the largest micro-batch fits in memory,
    beside the optimizer.

    Nothing is trained, but gradients are left and random numbers are drawn: the trainer is not to
    be used afterwards. No process waits for another.
    """
    arguments, model = trainer.args, trainer.model
    assert model is not None
    loader = trainer.get_train_dataloader()
    parts, rows = list(loader.batch_sampler or ()), arguments.per_device_train_batch_size or 1
    lengths = batches.lengths_of(trainer.train_dataset, arguments.length_column_name)
    worst = parts[0][:rows] if lengths is None else np.argsort(-lengths, kind="stable")[:rows]
    if arguments.max_tokens_per_batch and lengths is not None:
        worst = max(parts, key=lambda part: len(part) * int(np.max(lengths[part])))
    tokens = 0 if lengths is None else int(np.sum(lengths[list(worst)]))
    if needed_bytes(model, arguments, tokens) > available(arguments.device):
        return False
    if arguments.gradient_checkpointing or arguments.activation_checkpointing:
        model.gradient_checkpointing_enable(  # type: ignore[operator]
            gradient_checkpointing_kwargs=arguments.gradient_checkpointing_kwargs
        )
    try:
        states = torch.empty(
            disk.optimizer_bytes(model, arguments), dtype=torch.uint8, device=arguments.device
        )
        batch = loader.collate_fn([loader.dataset[int(row)] for row in worst])
        inputs = trainer._prepare_inputs(batch)
        with trainer.accelerator.autocast():
            loss = trainer.compute_loss(model.train(), inputs, num_items_in_batch=len(worst))
        loss.backward()  # type: ignore[union-attr]
        del states
    except (RuntimeError, MemoryError) as error:
        if not failed_to_allocate(error):
            raise
        return False
    return True
