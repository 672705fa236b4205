"""The library's ``Trainer``, with an exact loss, steps of global batches and complete checkpoints.

Methods are overridden for the reason in their first line, the private ones as they are in 5.23.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from accelerate.data_loader import prepare_data_loader
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, SequentialSampler
from transformers import EvalPrediction, set_seed
from transformers.trainer_utils import EvalLoopOutput, TrainOutput

from finetune.data import batches, encoding
from finetune.errors import UserError
from finetune.runtime import files
from finetune.runtime.stopping import Stopped
from finetune.training import checkpoint, steps
from finetune.training.arguments import FinetuneArguments
from finetune.training.callbacks import ModelSelection, StopRequests, Throughput, make_profiler
from finetune.training.checkpoint import occupy
from finetune.training.manifest import MANIFEST
from finetune.training.saving import CheckpointTrainer, explained
from finetune.training.steps import GlobalBatchSampler, GlobalLoss


class Trainer(CheckpointTrainer):
    """``transformers.Trainer`` whose training depends on the global batch only.

    Its keyword arguments are those of the library; ``compute_loss_func`` is a
    :class:`~finetune.training.steps.GlobalLoss`.

    Attributes:
        row_loss: The loss of each row, in training and in evaluations.
        moves_runs_aside: Whether ``train()`` moves a run that is in the output directory aside when
            it begins a new one; the logger ``finetune`` warns of what was moved.
    """

    moves_runs_aside = False
    loss_is_scaled_for_ga = True  # compute_loss divides by the rows of the global step
    train_dataset: datasets.Dataset
    eval_dataset: datasets.Dataset

    def __init__(self, *, compute_loss_func: GlobalLoss, **kwargs: Any) -> None:
        arguments: FinetuneArguments = kwargs["args"]
        smoothing = arguments.label_smoothing_factor
        self.row_loss = replace(compute_loss_func, label_smoothing=smoothing)
        arguments.builds_trainer = True  # or the library would make the output directory
        super().__init__(**kwargs)
        del arguments.builds_trainer
        self.model_accepts_loss_kwargs = False  # or the library would count and scale as well
        if self.accelerator.ddp_handler is not None:  # or DDP copies gradients, and keeps both
            self.accelerator.ddp_handler.gradient_as_bucket_view = True
        if self.is_fsdp_enabled:
            self._shard_embeddings_once()
        self.throughput = Throughput()
        self.selection = ModelSelection(arguments.save_every, arguments.early_stopping_patience)
        for callback in (self.selection, self.throughput, StopRequests(self.begin_training)):
            self.add_callback(callback)  # the last overrules the others

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the micro-batches of this process, those of the ``GlobalBatchSampler``."""
        rows = self.train_dataset
        self._sampler = self.throughput.sampler = GlobalBatchSampler(self.args, rows)
        self._row_weights = np.ones(len(rows))
        if self.row_loss.class_weights:
            self._row_weights = self.row_loss.row_weights(steps.read_labels(rows))
        names = ["num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "in_order"]
        names.append("multiprocessing_context")
        loader = DataLoader(
            self._remove_unused_columns(rows, description="training"),
            batch_sampler=self._sampler,
            collate_fn=self.data_collator,
            **{name: getattr(self.args, f"dataloader_{name}") for name in names},
        )
        prepared: DataLoader[Any] = prepare_data_loader(
            loader,
            device=self.accelerator.device,
            num_processes=1,  # the sampler gives each process its share: it is not divided again
            process_index=0,
            put_on_device=True,
            non_blocking=self.accelerator.non_blocking,
        )
        return prepared

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        """Return this process's share of the global loss, times the processes DDP averages over.

        The divisor is the sum of the weights of the rows of the global step, which a collator or
        the library cannot know.
        """
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        if not model.training:
            loss = self.row_loss.evaluation_losses(outputs["logits"], labels).mean()
            # an encoder-decoder returns more, which would be gathered as predictions
            return (loss, {"logits": outputs["logits"]}) if return_outputs else loss
        rows = self._sampler.rows_of_step(self.state.global_step)
        losses = self.row_loss.training_losses(outputs["logits"], labels)
        loss = losses.sum() / float(self._row_weights[rows].sum())
        # with a second summand that is 0, or NaN: then the gradient is NaN too, on every process
        return loss * (self.accelerator.num_processes + 0 * loss.detach())

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train as the library does, from complete checkpoints only.

        Raises:
            UserError: If the checkpoint to resume from is damaged, or there is none.
            RunError: If memory runs out, or a number is not finite.
        """
        directory = Path(self.args.output_dir or "")
        path = str(resume_from_checkpoint) if resume_from_checkpoint else None
        if self.moves_runs_aside:  # else the pipeline has verified it, and has the directory
            path = path or self.args.resume_from_checkpoint
            if path in ("last", "true", "True"):
                newest, problems = checkpoint.newest_complete(directory)
                if newest is None:
                    raise UserError(f"no complete checkpoint in {directory}", *problems)
                path = str(newest)
            elif path and (reason := checkpoint.problem(Path(path))):
                raise UserError(f"{path} is damaged: {reason}")
            if path:
                checkpoint.refuse_code(path)
            if self.args.should_save:
                is_new = not path and (directory / MANIFEST).exists()
                if moved := occupy(directory, moves_aside=is_new):
                    logging.getLogger("finetune").warning(moved)
        self._resumed = Path(path) if path else None
        if self.args.profile and self.is_world_process_zero():
            self.throughput.profiler = make_profiler(self.args.profile, directory / "profile")
        try:
            with self.throughput.profiler or contextlib.nullcontext():
                output = super().train(path, *args, **kwargs)
        finally:
            if self.moves_runs_aside and self.args.should_save:
                files.unlock(directory)
        if self.is_fsdp_enabled:  # the model is saved whole; checkpoints stay sharded
            self.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        return output

    def training_step(self, model: torch.nn.Module, inputs: Any, *args: Any) -> torch.Tensor:
        """Explain where memory runs out, with the step and the shape of its micro-batch."""
        shape = max((tuple(v.shape) for v in inputs.values() if torch.is_tensor(v)), key=len)
        batch = f"a micro-batch of {' x '.join(map(str, shape))}"
        with explained(self.args, f"step {self.state.global_step + 1:,}, {batch}"):
            return super().training_step(model, inputs, *args)

    def _run_epoch(self, **facts: Any) -> None:  # type: ignore[override]
        """Train nothing where nothing is left: the library would train one step more."""
        if not self.control.should_training_stop:
            super()._run_epoch(**facts)  # type: ignore[no-untyped-call]
        if self.control.should_training_stop:  # what was not logged counts in train_loss
            self._tr_loss = self.accelerator.reduce(self._tr_loss, reduction="mean")

    def _get_dataloader(self, dataset: Any, *args: Any, **options: Any) -> Any:
        """Sort the rows of an evaluation by length, to pad little; the loop restores the order."""
        lengths = batches.lengths_of(dataset, self.args.length_column_name)
        order = None if lengths is None else np.argsort(-lengths, kind="stable")
        documents = encoding.documents_of(dataset) if self.row_loss.pooling else None
        options["sampler_fn"] = SequentialSampler  # the library's would permute predictions
        rows = dataset if order is None else dataset.select(order)
        loader: Any = super()._get_dataloader(rows, *args, **options)
        loader.restore_rows = functools.partial(self._restore_rows, order, documents)
        return loader

    def _restore_rows(
        self, order: np.ndarray | None, documents: np.ndarray | None, prediction: EvalPrediction
    ) -> EvalPrediction:
        """Return arrays in the order of the data, one row a document.

        They are concatenated once: the container of the library concatenates at every batch, which
        is quadratic in rows x classes.
        """

        def concatenate(arrays: Any) -> Any:
            if not arrays:
                return None
            if len({array.shape[1:] for array in arrays}) > 1:  # inputs, filled up with -100
                tensors = [torch.as_tensor(row) for array in arrays for row in array]
                arrays = [pad_sequence(tensors, batch_first=True, padding_value=-100).numpy()]
            rows = np.concatenate(arrays)
            return rows if order is None else rows[np.argsort(order)]

        lists = (prediction.predictions, prediction.label_ids, prediction.inputs, prediction.losses)
        outputs, labels, inputs, losses = map(concatenate, lists)
        if documents is not None:
            assert self.row_loss.pooling is not None
            outputs = encoding.pooled(outputs, documents, self.row_loss.pooling)
            first = np.unique(documents, return_index=True)[1]
            labels, inputs = (None if rows is None else rows[first] for rows in (labels, inputs))
        return EvalPrediction(outputs, labels, inputs, losses)

    def evaluation_loop(self, dataloader: Any, *args: Any, **options: Any) -> EvalLoopOutput:
        """Compute loss and metrics of the rows in the order of the data, each counted once.

        The library averages the means of padded batches, of which the last may be repeated: its
        loss depends on the batch size and on the number of processes.
        """
        restore: Callable[[EvalPrediction], EvalPrediction] = dataloader.restore_rows
        compute_metrics = self.compute_metrics
        restored: list[EvalPrediction] = []
        options["prediction_loss_only"] = False  # the library would, without metrics

        def compute(batches: EvalPrediction) -> dict[str, float]:
            restored.append(prediction := restore(batches))
            outputs, labels = map(torch.as_tensor, (prediction.predictions, prediction.label_ids))
            loss = self.row_loss.evaluation_losses(outputs, labels).double().mean().item()
            return {**(compute_metrics(prediction) if compute_metrics else {}), "loss": loss}

        self.compute_metrics = compute
        work = f"an evaluation, with batches of {self.args.per_device_eval_batch_size} rows"
        try:
            with explained(self.args, work):
                output: Any = super().evaluation_loop(dataloader, *args, **options)
        finally:
            self.compute_metrics = compute_metrics
        if not restored:  # without labels
            restored.append(restore(EvalPrediction(output.predictions, output.label_ids)))
        outputs, labels = restored[0].predictions, restored[0].label_ids
        result: EvalLoopOutput = output._replace(predictions=outputs, label_ids=labels)
        return result

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Save what is trained where a signal stops an evaluation in training."""
        python_state, torch_state = random.getstate(), torch.get_rng_state()
        try:
            return super().evaluate(*args, **options)
        except Stopped:
            if self.is_in_train:  # a resumed run evaluates first, from the same states
                random.setstate(python_state)
                torch.set_rng_state(torch_state)
                self.save_stopped()
            raise
        finally:  # a library that the first evaluation imports may draw, as rich does
            random.setstate(python_state)

    def _shard_embeddings_once(self) -> None:
        """Leave the module around the input embeddings out of the units that FSDP shards.

        Accelerate (1.15) shards the embeddings as a unit of their own, and fails where the module
        around them (``BertEmbeddings``) is one of those that the model names for a unit.
        """
        plugin: Any = self.accelerator.state.fsdp_plugin
        model: Any = self.model
        units = set(getattr(model, "_no_split_modules", None) or ())
        if plugin.fsdp_version == 2 and units and not plugin.transformer_cls_names_to_wrap:
            embeddings = model.get_input_embeddings()
            around = [module for module in model.modules() if embeddings in [*module.modules()]]
            units -= {type(module).__name__ for module in around}
            plugin.transformer_cls_names_to_wrap = sorted(units)


def build_trainer(
    trainer_kwargs: Callable[[], dict[str, Any]],
    arguments: FinetuneArguments,
    adapt: Callable[[torch.nn.Module, FinetuneArguments], torch.nn.Module],
) -> Trainer:
    """Return a trainer of a recipe, seeded before the model's head is initialised.

    Args:
        trainer_kwargs: Builds the keyword arguments of ``transformers.Trainer``, with the model.
        arguments: Of the training.
        adapt: Of the recipe.
    """
    set_seed(arguments.seed)
    kwargs = trainer_kwargs()
    kwargs["model"] = adapt(kwargs["model"], arguments)
    trainer = Trainer(args=arguments, **kwargs)
    # from here on the processes draw different dropout masks: they see different rows
    set_seed(arguments.seed + arguments.process_index)
    return trainer
