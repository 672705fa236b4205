"""The library's ``Trainer``, with an exact loss, steps of global batches and exact evaluation.

A handful of methods is replaced: everything said about ``transformers.Trainer`` holds here.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
import transformers
from accelerate import DistributedDataParallelKwargs
from accelerate.data_loader import prepare_data_loader
from safetensors.torch import save_model
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from transformers import EvalPrediction, PreTrainedModel, PrinterCallback, set_seed
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput, TrainOutput
from transformers.utils import SAFE_WEIGHTS_NAME

from finetune.data import batches
from finetune.errors import UserError
from finetune.models.cpu import exchange, unpadded
from finetune.runtime import precision
from finetune.runtime.files import apply_umask
from finetune.training.arguments import FinetuneArguments
from finetune.training.checkpoint import KeepEpochs
from finetune.training.directory import clear_way
from finetune.training.early_stopping import EarlyStopping
from finetune.training.loss import GlobalLoss
from finetune.training.manifest import MANIFEST
from finetune.training.parallel import DataParallel
from finetune.training.profile import Profile
from finetune.training.sampler import GlobalBatchSampler
from finetune.training.speed import Meter, Progress

_PADDED_LENGTHS = 4  # that torch.compile sees


class Trainer(transformers.Trainer):
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
        self._keeps_outputs = False
        self._evaluated: dict[int | None, EvalLoopOutput] = {}  # by step: the best and the newest
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
        prepared = super()._prepare_for_training(*args)  # type: ignore[no-untyped-call]
        ours = self.args.device.type == "cpu" and self.args.cpu_kernels == "auto"
        if ours and isinstance(self.model_wrapped, DistributedDataParallel):
            # which DDP holds on to: a reference to the trainer there would keep both for ever
            exchange.use(self.model_wrapped, functools.partial(self.meter.during, "communication"))
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
        loss = loss * self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> TrainOutput:
        """Train as the library does; see :attr:`moves_runs_aside`."""
        directory, resumes = Path(self.args.output_dir or ""), self.args.resume_from_checkpoint
        is_new = self.moves_runs_aside and not (resume_from_checkpoint or resumes)
        if is_new and self.args.should_save and (directory / MANIFEST).exists():
            logging.getLogger("finetune").warning(clear_way(directory))
        self._evaluated = {}
        with self._quiet_workers():
            return super().train(resume_from_checkpoint, *args, **kwargs)

    @contextlib.contextmanager
    def _quiet_workers(self) -> Iterator[None]:
        """Keep each forked worker from saying that tokenizers do not go parallel in it."""
        name = "TOKENIZERS_PARALLELISM"
        if not self.args.dataloader_num_workers or name in os.environ:
            yield
            return
        os.environ[name] = "false"
        try:
            yield
        finally:
            os.environ.pop(name, None)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Return the micro-batches of a step and its rows, timed and counted."""
        self.meter.step_begins()
        with self.meter.during("data"):
            found, rows = super().get_batch_samples(epoch_iterator, num_batches, device)
        if found:
            self.meter.fetched(found, torch.as_tensor(rows).reshape(-1)[0])
        return found, rows

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        with self.meter.during("communication"):
            return super()._get_num_items_in_batch(batch_samples, device)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Do both passes over a micro-batch, timed."""
        with self.meter.during("backward"):
            loss = super().training_step(*args, **kwargs)
        self.meter.optimizer_begins()
        return loss

    def speed(self) -> dict[str, Any]:
        """Return the :meth:`~finetune.training.speed.Meter.summary` of this training."""
        return self.meter.summary(*self._measured())

    def _measured(self) -> tuple[torch.nn.Module | None, int]:
        """Return the model, unless it is sharded, and the devices of this process."""
        return None if self.is_fsdp_enabled else self.model, max(1, self.args.n_gpu)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the micro-batches of this process, those of the ``GlobalBatchSampler``."""
        arguments = self.args
        sampler = GlobalBatchSampler.of(arguments, self.train_dataset, arguments.process_index)
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

    def _get_dataloader(self, dataset: datasets.Dataset, *args: Any, **kwargs: Any) -> Any:
        """Sort the rows of an evaluation by length, to pad little; `evaluation_loop` undoes it."""
        order = None
        together = self.args.eval_do_concat_batches and not self.args.batch_eval_metrics
        if together and isinstance(dataset, datasets.Dataset):
            lengths = batches.lengths_of(dataset, self.args.length_column_name)
            if lengths is not None:
                order = np.argsort(-lengths, kind="stable")
                dataset = dataset.select(order)
        loader = super()._get_dataloader(dataset, *args, **kwargs)
        loader.order = order
        return loader

    def get_total_train_batch_size(self, args: Any) -> int:
        """Return the rows of a step; on average, where a step is a number of tokens."""
        if self.args.max_tokens_per_batch is None:
            return int(super().get_total_train_batch_size(args))
        steps = len(GlobalBatchSampler.of(self.args, self.train_dataset).sizes)
        return round(len(self.train_dataset) / steps)

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Evaluate as the library does, with the loss of the gathered rows, in the data's order.

        The library averages the means of padded batches, of which the last may be repeated; the
        loss would depend on the batch size and on the number of processes.
        """
        order, compute = getattr(dataloader, "order", None), self.compute_metrics
        places = None if order is None else np.argsort(order)

        def restored(arrays: Any) -> Any:  # may be None, or a tuple of arrays
            return tree_map(lambda each: None if each is None else each[places], arrays)

        if places is not None and compute is not None:
            self.compute_metrics = lambda found: compute(
                EvalPrediction(
                    restored(found.predictions),
                    restored(found.label_ids),
                    restored(found.inputs),
                    found.losses,
                )
            )
        try:
            with self._quiet_workers():
                output = super().evaluation_loop(
                    dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
                )
        finally:
            self.compute_metrics = compute
        if places is not None:
            output = output._replace(
                predictions=restored(output.predictions), label_ids=restored(output.label_ids)
            )
        if output.predictions is not None and output.label_ids is not None:
            loss = self.compute_loss_func.of_rows(
                torch.as_tensor(output.predictions), torch.as_tensor(output.label_ids)
            )
            assert output.metrics is not None
            output.metrics[f"{metric_key_prefix}_loss"] = loss.double().mean().item()
        if self._keeps_outputs:
            best = {self.state.best_global_step} & self._evaluated.keys()
            self._evaluated = {step: self._evaluated[step] for step in best}
            self._evaluated[self.state.global_step] = output
        return output

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate as the library does; see :meth:`predict_evaluated`."""
        self._keeps_outputs = self.is_in_train and eval_dataset is None
        try:
            return super().evaluate(eval_dataset, *args, **kwargs)
        finally:
            self._keeps_outputs = False

    def predict_evaluated(self) -> PredictionOutput:
        """Predict the evaluation rows with the model as ``train()`` left it.

        Where ``train()`` evaluated that very model, as it does at the end of an epoch, the outputs
        of then are returned, and nothing is computed twice.
        """
        step: int | None = self.state.global_step
        best = self.state.best_model_checkpoint
        if self.args.load_best_model_at_end and best is not None and Path(best).is_dir():
            step = self.state.best_global_step
        output = self._evaluated.get(step)
        if output is None or output.predictions is None:
            return self.predict(self.eval_dataset, metric_key_prefix="eval")
        return PredictionOutput(output.predictions, output.label_ids, output.metrics)

    def _finalize_training(self, *args: Any) -> TrainOutput:
        """Average what was not logged yet over the processes, for ``train_loss``."""
        self._tr_loss = self.accelerator.reduce(self._tr_loss, reduction="mean")
        output: TrainOutput = super()._finalize_training(*args)  # type: ignore[no-untyped-call]
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

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the whole model, also one that FSDP has sharded; checkpoints stay sharded."""
        if self.is_fsdp_enabled and not _internal_call:
            self.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        super().save_model(output_dir, _internal_call)
        apply_umask(Path(output_dir or self.args.output_dir or ""), "*.safetensors")

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        """Save on the first process of another machine too, with ``save_on_each_node``."""
        super()._save(output_dir, state_dict)
        if not (self.args.save_on_each_node and self.args.should_save and self.args.process_index):
            return
        if isinstance(self.model, PreTrainedModel):  # whose `save_pretrained` leaves it to rank 0
            directory = Path(output_dir or self.args.output_dir or "")
            self.model.config.save_pretrained(directory)
            save_model(self.model, str(directory / SAFE_WEIGHTS_NAME), metadata={"format": "pt"})

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse a checkpoint that lacks weights: the library says so in a warning and goes on."""
        left_out = set(getattr(self.model, "_keys_to_ignore_on_save", None) or ())
        if missing := sorted(set(load_result.missing_keys) - left_out):
            raise UserError(
                f"the checkpoint lacks {len(missing)} weights of the model, the first of them "
                f"'{missing[0]}': it cannot be loaded"
            )

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int]:
        """Keep the order of the data: the library's, by length, would permute predictions."""
        return SequentialSampler(eval_dataset)


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
