"""The library's ``Trainer``, with an exact loss, steps of global batches and exact evaluation.

A handful of methods is replaced: everything said about ``transformers.Trainer`` holds here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import torch
from accelerate import DistributedDataParallelKwargs
from accelerate.data_loader import prepare_data_loader
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PrinterCallback, set_seed
from transformers.trainer_utils import TrainOutput

from finetune.data import batches
from finetune.models.cpu import exchange, unpadded
from finetune.runtime import lock, precision
from finetune.training import checkpoint, disk
from finetune.training.arguments import FinetuneArguments
from finetune.training.directory import clear_way, occupy
from finetune.training.early_stopping import EarlyStopping
from finetune.training.evaluation import ExactEvaluation, quiet_workers
from finetune.training.keep_epochs import KeepEpochs
from finetune.training.loss import GlobalLoss
from finetune.training.manifest import MANIFEST
from finetune.training.memory import Memory
from finetune.training.parallel import DataParallel
from finetune.training.profile import Profile
from finetune.training.sampler import GlobalBatchSampler, refuse_weights
from finetune.training.saving import Saving
from finetune.training.speed import Meter, Progress

_PADDED_LENGTHS = 4  # that torch.compile sees


class Trainer(ExactEvaluation, Saving, Memory):
    """``transformers.Trainer`` whose training depends on the global batch only.

    Args:
        compute_loss_func: A :class:`~finetune.training.loss.GlobalLoss`.
        **parts: The other keyword arguments of ``transformers.Trainer``.

    Attributes:
        moves_runs_aside: Whether ``train()`` moves a run that lies in the output directory aside
            when it begins a new one; the logger ``finetune`` warns of what was moved.
    """

    moves_runs_aside = False

    args: FinetuneArguments
    compute_loss_func: GlobalLoss
    train_dataset: datasets.Dataset
    eval_dataset: datasets.Dataset
    loss_is_scaled_for_ga = True

    def __init__(self, *, compute_loss_func: GlobalLoss, **parts: Any) -> None:
        smoothing = parts["args"].label_smoothing_factor
        if compute_loss_func.class_weights:
            refuse_weights(parts["args"])
        with parts["args"].nothing_written():
            super().__init__(
                compute_loss_func=replace(compute_loss_func, label_smoothing=smoothing), **parts
            )
        if self.args.torch_compile:
            self._pad_to_few_lengths()
        self.add_callback(KeepEpochs(self.args.save_every))
        dtype = precision.dtype(bf16=self.args.bf16, fp16=self.args.fp16)
        assert self.model is not None
        computed = unpadded.computed if unpadded.used_by(self.model) else None
        self.meter = Meter(self.args.device, dtype, computed)
        self.add_callback(self.meter)
        self.add_callback(Progress())
        self.early_stopping: EarlyStopping | None = None
        if self.args.early_stopping_patience is not None:
            self.early_stopping = EarlyStopping(self.args.early_stopping_patience)
            self.add_callback(self.early_stopping)
        self.profile: Profile | None = None
        if self.args.profile:
            self.profile = Profile(self.args.profile, self.meter, *self._measured())
            self.add_callback(self.profile)
        if self.is_fsdp_enabled:
            self._shard_embeddings_once()
        if self.args.process_index > 0:  # it would print once on every machine
            self.remove_callback(PrinterCallback)

    def _pad_to_few_lengths(self) -> None:
        """Pad to quarters of the longest row: each is compiled once, the first time it comes."""
        lengths = batches.lengths_of(self.train_dataset, self.args.length_column_name)
        if hasattr(self.data_collator, "pad_to_multiple_of") and lengths is not None:
            quarter = lengths.max() / _PADDED_LENGTHS
            self.data_collator.pad_to_multiple_of = max(
                int(batches.padded([math.ceil(quarter)])[0]),
                self.data_collator.pad_to_multiple_of or 1,
            )

    def _build_accelerator_args(self, **kwargs: Any) -> dict[str, Any]:
        built: dict[str, Any] = super()._build_accelerator_args(**kwargs)
        for handler in built["kwargs_handlers"]:
            if isinstance(handler, DistributedDataParallelKwargs):
                handler.gradient_as_bucket_view = True  # or DDP copies them, and keeps both
        if self.args.torch_compile and built["dynamo_plugin"].dynamic is None:
            built["dynamo_plugin"].dynamic = False
        return built

    def _prepare_for_training(self, *args: Any) -> Any:
        prepared = super()._prepare_for_training(*args)
        ours = self.args.device.type == "cpu" and self.args.cpu_kernels == "auto"
        if ours and isinstance(self.model_wrapped, DistributedDataParallel):
            # which DDP holds on to: a reference to the trainer there would keep both for ever
            exchange.use(self.model_wrapped)
        return prepared

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return this process's share of the global loss, times the processes DDP averages over."""
        labels = inputs.pop("labels")
        with self.meter.during("forward"):
            outputs = model(**inputs)
        if isinstance(num_items_in_batch, torch.Tensor):  # under DataParallel once for each GPU
            num_items_in_batch = num_items_in_batch.reshape(-1)[0]
        loss = self.compute_loss_func(outputs, labels, num_items_in_batch=num_items_in_batch)
        # with a second summand that is 0, or NaN: then the gradient is NaN too, on every process
        loss = loss * (self.accelerator.num_processes + 0 * loss.detach())
        # of an encoder-decoder there is more, which evaluation would gather as predictions
        return (loss, {"logits": outputs["logits"]}) if return_outputs else loss

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> TrainOutput:
        """Train as the library does; see :attr:`moves_runs_aside`.

        Raises:
            UserError: if the checkpoint to resume from is damaged, or there is none.
        """
        resumes = self.verified(resume_from_checkpoint or self.args.resume_from_checkpoint)
        if alone := self.moves_runs_aside and self.args.should_save:
            self._take_directory(is_new=resumes is None)
        self._evaluated, self._resumed = {}, None if resumes is None else Path(resumes)
        try:
            with quiet_workers(self.args):
                return super().train(resumes, *args, **kwargs)
        finally:
            if alone:
                lock.release(Path(self.args.output_dir or ""))

    def _take_directory(self, *, is_new: bool) -> None:
        directory = Path(self.args.output_dir or "")
        if is_new and (directory / MANIFEST).exists():
            logging.getLogger("finetune").warning(clear_way(directory))
        occupy(directory)
        checkpoint.clear(directory)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Return the micro-batches of a step and the divisor of its loss, timed and counted.

        Raises:
            Stopped: on every rank, if a signal asked one to stop; what is trained is saved.
        """
        self.meter.step_begins()
        with self.meter.during("data"):
            found, divisor = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self.stopping.agreed():
            self.stop()
        if found:
            self.meter.fetched(found, self._rows_of_step)
        return found, divisor

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        """Return what the loss of the step is divided by: its rows, or the sum of their weights.

        A rank that was asked to stop says so with its counts.
        """
        with self.meter.during("communication"):
            if not batch_samples:
                return None
            loss, labels = self.compute_loss_func, [batch["labels"] for batch in batch_samples]
            counts = torch.stack([loss.counted(each) for each in labels]).sum(dim=0).to(device)
            if self.args.world_size > 1:
                shared = self.accelerator.gather(self.stopping.flagged(counts))
                counts = self.stopping.counted(shared)
            self._rows_of_step = counts.sum()
            divisor = loss.divisor(counts) * labels[0].shape[1:].numel()
            return divisor.expand(self.args.n_gpu, 1) if self.args.n_gpu > 1 else divisor

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Do the forward and backward pass over a micro-batch, timed."""
        with self.meter.during("backward"):
            loss = super().training_step(*args, **kwargs)
        self.meter.optimizer_begins()
        return loss

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Save weights that are finite; tell a full disk in a sentence, and leave nothing half."""
        assert self.model is not None
        self.refuse_broken_weights()
        directory, name = self.args.output_dir or "", f"checkpoint-{self.state.global_step}"
        needed = disk.checkpoint_bytes(self.model, self.args)
        with disk.explained(Path(directory), f"writing {name}", needed):
            super()._save_checkpoint(model, trial)

    def speed(self) -> dict[str, Any]:
        """Return the :meth:`~finetune.training.speed.Meter.summary` of this training."""
        return self.meter.summary(*self._measured())

    def _measured(self) -> tuple[torch.nn.Module | None, int]:
        """Return the model, unless it is sharded, and the devices of this process."""
        return None if self.is_fsdp_enabled else self.model, max(1, self.args.n_gpu)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the micro-batches of this process, those of the ``GlobalBatchSampler``."""
        arguments = self.args
        told = getattr(self.data_collator, "set_epoch", None)
        rank = arguments.process_index
        sampler = GlobalBatchSampler.of(arguments, self.train_dataset, rank, told)
        loader = DataLoader(
            self._remove_unused_columns(self.train_dataset, description="training"),
            batch_sampler=sampler,
            collate_fn=self.data_collator,
            num_workers=arguments.dataloader_num_workers or 0,
            pin_memory=arguments.dataloader_pin_memory,
            persistent_workers=arguments.dataloader_persistent_workers,
            prefetch_factor=arguments.dataloader_prefetch_factor,
            multiprocessing_context=arguments.dataloader_multiprocessing_context,
            in_order=arguments.dataloader_in_order,
        )
        # The sampler gives each process its own share: accelerate must not divide it again.
        prepared: DataLoader[Any] = prepare_data_loader(
            loader,
            device=self.accelerator.device,
            num_processes=1,
            process_index=0,
            put_on_device=True,
            non_blocking=self.accelerator.non_blocking,
        )
        return prepared

    def get_total_train_batch_size(self, args: Any) -> int:
        """Return the rows of a step; on average, where a step is a number of tokens."""
        if self.args.max_tokens_per_batch is None:
            return int(super().get_total_train_batch_size(args))
        steps = len(GlobalBatchSampler.of(self.args, self.train_dataset).sizes)
        return round(len(self.train_dataset) / steps)

    def _finalize_training(self, *args: Any) -> TrainOutput:
        """Average what was not logged yet over the processes, for ``train_loss``."""
        self._tr_loss = self.accelerator.reduce(self._tr_loss, reduction="mean")
        output: TrainOutput = super()._finalize_training(*args)
        return output

    def _wrap_model(
        self, model: torch.nn.Module, training: bool = True, dataloader: Any = None
    ) -> torch.nn.Module:
        wrapped = super()._wrap_model(model, training, dataloader)
        if type(wrapped) is torch.nn.DataParallel:
            return DataParallel(wrapped.module, wrapped.device_ids)
        return wrapped

    def _shard_embeddings_once(self) -> None:
        """Leave the module around the input embeddings out of the units that FSDP shards."""
        # Accelerate shards the embeddings as a unit of their own, and fails where the module around
        # them (``BertEmbeddings``) is one of those that the model names for a unit.
        plugin, model = self.accelerator.state.fsdp_plugin, self.model
        named = getattr(model, "_no_split_modules", None) or ()
        if plugin.fsdp_version != 2 or plugin.transformer_cls_names_to_wrap or not named:
            return
        assert isinstance(model, PreTrainedModel)
        embeddings = model.get_input_embeddings()
        around = {
            type(module).__name__
            for module in model.modules()
            if any(each is embeddings for each in module.modules())
        }
        plugin.transformer_cls_names_to_wrap = sorted(set(named) - around)


def build_trainer(
    parts: Callable[[], dict[str, Any]],
    arguments: FinetuneArguments,
    adapt: Callable[[torch.nn.Module, FinetuneArguments], torch.nn.Module],
) -> Trainer:
    """Return a trainer of the parts of a recipe, seeded before the model's head is initialised.

    ``parts`` builds the keyword arguments of ``transformers.Trainer``, the model among them, which
    ``adapt``, that of the recipe, is applied to.
    """
    set_seed(arguments.seed)
    found = parts()
    found["model"] = adapt(found["model"], arguments)
    trainer = Trainer(args=arguments, **found)
    # from here on the ranks draw different dropout masks: they see different rows
    set_seed(arguments.seed + arguments.process_index)
    return trainer
