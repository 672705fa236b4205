"""The library's ``Trainer``, with an exact loss, steps of global batches and complete checkpoints.

Six public and eight private methods are overridden, each for the reason in its first line:
everything that the documentation of ``transformers.Trainer`` says holds here.
"""

from __future__ import annotations

import logging
import math
import pickle
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
import transformers
from accelerate.data_loader import prepare_data_loader
from safetensors.torch import save_model
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, SequentialSampler
from transformers import (
    EvalPrediction,
    PreTrainedModel,
    PrinterCallback,
    TrainerCallback,
    set_seed,
)
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput, TrainOutput
from transformers.utils import SAFE_WEIGHTS_NAME

from finetune.data import batches
from finetune.errors import Diverged, UserError
from finetune.models.cpu import exchange
from finetune.runtime import distributed, lock
from finetune.runtime.files import apply_umask
from finetune.runtime.signals import Stopped
from finetune.training import checkpoint, failures
from finetune.training.arguments import FinetuneArguments
from finetune.training.callbacks import EarlyStopping, SaveEpochs, StopRequests
from finetune.training.checkpoint import Checkpoint
from finetune.training.directory import clear_way, occupy
from finetune.training.evaluation import RowOrder, quiet_workers
from finetune.training.loss import GlobalLoss
from finetune.training.manifest import MANIFEST
from finetune.training.sampler import GlobalBatchSampler, read_labels, refuse_weights
from finetune.training.speed import Profile, Progress, Throughput

#: Steps in a row that a loss scaler (fp16) may skip because gradients overflow.
_MOST_OVERFLOWS = 20


class Trainer(transformers.Trainer):
    """``transformers.Trainer`` whose training depends on the global batch only.

    Args:
        compute_loss_func: A :class:`~finetune.training.loss.GlobalLoss`.
        **kwargs: The other keyword arguments of ``transformers.Trainer``.

    Attributes:
        row_loss: The loss of each row, in training and in evaluations.
        configuration: What a checkpoint has to share with the training that resumes from it.
        reschedules: Whether optimizer and schedule take their settings from the arguments when they
            are restored; else from the checkpoint, where they are the same.
        moves_runs_aside: Whether ``train()`` moves a run that is in the output directory aside when
            it begins a new one; the logger ``finetune`` warns of what was moved.
    """

    moves_runs_aside = False
    loss_is_scaled_for_ga = True  # compute_loss divides by the rows of the global step

    args: FinetuneArguments
    train_dataset: datasets.Dataset
    eval_dataset: datasets.Dataset

    def __init__(self, *, compute_loss_func: GlobalLoss, **kwargs: Any) -> None:
        arguments = kwargs["args"]
        if compute_loss_func.class_weights:
            refuse_weights(arguments)
        smoothing = arguments.label_smoothing_factor
        self.row_loss = replace(compute_loss_func, label_smoothing=smoothing)
        self.configuration: Mapping[str, Any] = {}
        self.reschedules = False
        self._resumed: Path | None = None
        self._grad_norm: Any = None
        self._overflows = 0
        self._random_states: tuple[Any, ...] | None = None
        self._keeps_outputs = False
        self._outputs_by_step: dict[int, EvalLoopOutput] = {}
        with arguments.nothing_written():
            super().__init__(**kwargs)
        self.model_accepts_loss_kwargs = False  # or the library would count and scale as well
        if self.accelerator.ddp_handler is not None:  # or DDP copies gradients, and keeps both
            self.accelerator.ddp_handler.gradient_as_bucket_view = True
        if self.is_fsdp_enabled:
            self._shard_embeddings_once()
        self.throughput, self.stop_requests = Throughput(), StopRequests()
        self.early_stopping: EarlyStopping | None = None
        if arguments.early_stopping_patience is not None:
            self.early_stopping = EarlyStopping(arguments.early_stopping_patience)
            self.add_callback(self.early_stopping)
        self.profile = Profile(arguments.profile) if arguments.profile else None
        if self.profile is not None:
            self.add_callback(self.profile)
        for callback in (SaveEpochs(arguments.save_every), self.throughput, Progress()):
            self.add_callback(callback)
        self.add_callback(self.stop_requests)  # it overrules those before it
        self.add_callback(_Begin(self))
        if arguments.process_index > 0:  # it would print once on every machine
            self.remove_callback(PrinterCallback)

    # ---- training --------------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the micro-batches of this process, those of the ``GlobalBatchSampler``."""
        arguments = self.args
        set_epoch = getattr(self.data_collator, "set_epoch", None)
        sampler = GlobalBatchSampler.from_arguments(
            arguments, self.train_dataset, arguments.process_index, set_epoch
        )
        self._sampler = self.throughput.sampler = sampler
        self.throughput.lengths = batches.lengths_of(
            self.train_dataset, arguments.length_column_name
        )
        self._row_weights = np.ones(len(self.train_dataset))
        if not {"label", "labels"}.isdisjoint(self.train_dataset.column_names):
            self._row_weights = self.row_loss.row_weights(read_labels(self.train_dataset))
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
        # the sampler gives each process its own share: accelerate must not divide it again
        prepared: DataLoader[Any] = prepare_data_loader(
            loader,
            device=self.accelerator.device,
            num_processes=1,
            process_index=0,
            put_on_device=True,
            non_blocking=self.accelerator.non_blocking,
        )
        return prepared

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
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

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> TrainOutput:
        """Train as the library does, and explain where memory runs out.

        Raises:
            UserError: If the checkpoint to resume from is damaged, or there is none.
            RunError: If memory runs out, or a number is not finite.
        """
        path = resume_from_checkpoint or self.args.resume_from_checkpoint
        if self.moves_runs_aside:
            path = self._verify(path) if path else None
            if self.args.should_save:
                self._take_directory(is_new=path is None)
        self._resumed = Path(str(path)) if path else None
        self._outputs_by_step = {}
        try:
            with quiet_workers(self.args.dataloader_num_workers or 0):
                output = super().train(path, *args, **kwargs)
        finally:
            if self.moves_runs_aside and self.args.should_save:
                lock.release()
        if self.is_fsdp_enabled:  # the model is saved whole; checkpoints stay sharded
            self.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        return output

    def _verify(self, path: str | bool) -> str:
        """Return a checkpoint that is complete, for ``True`` or ``last`` the newest that is."""
        directory = Path(self.args.output_dir or "")
        if path is True or path in ("last", "true", "True"):
            newest, _ = checkpoint.newest_complete(directory)
            if newest is None:
                raise UserError(f"no complete checkpoint in {directory}")
            return str(newest)
        if (reason := checkpoint.problem(Path(path))) is not None:
            raise UserError(f"{path} is damaged: {reason}")
        return str(path)

    def _take_directory(self, *, is_new: bool) -> None:
        directory = Path(self.args.output_dir or "")
        if is_new and (directory / MANIFEST).exists():
            logging.getLogger("finetune").warning(clear_way(directory))
        occupy(directory)

    def training_step(self, model: torch.nn.Module, inputs: Any, *args: Any) -> torch.Tensor:
        """Explain where memory runs out, with the step and the shape of its micro-batch."""
        shape = max((tuple(v.shape) for v in inputs.values() if torch.is_tensor(v)), key=len)
        work = (
            f"step {self.state.global_step + 1:,}, a micro-batch of {' x '.join(map(str, shape))}"
        )
        with failures.explain_memory(self.args, work, is_training=True):
            return super().training_step(model, inputs, *args)

    def _run_epoch(self, **facts: Any) -> None:  # type: ignore[override]
        """Train nothing where nothing is left: the library would train one step more."""
        is_done = self.state.global_step >= self.state.max_steps
        if is_done or self.control.should_training_stop:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(**facts)  # type: ignore[no-untyped-call]
        # what was not logged yet counts in train_loss as the mean over the processes
        self._tr_loss = self.accelerator.reduce(self._tr_loss, reduction="mean")

    def begin_training(self) -> None:
        """Exchange gradients in memory; evaluate first what a checkpoint had still to evaluate.

        A signal stops an evaluation in its middle, and a checkpoint of the last step of an epoch
        may be older than the end of the epoch. :class:`_Begin` calls it.
        """
        model = self.model_wrapped
        is_ours = self.args.device.type == "cpu" and self.args.cpu_kernels == "auto"
        is_ddp = isinstance(model, DistributedDataParallel)
        if is_ours and is_ddp and not exchange.used_by(model):
            exchange.use(model)
        if self._resumed is None:
            return
        path, pending = self._resumed, Checkpoint.read(self._resumed).pending
        losses = pending.get("loss_by_process", [0.0])
        mean = sum(losses) / len(losses)
        is_same_job = len(losses) == self.args.world_size
        self._tr_loss += losses[self.args.process_index] if is_same_job else mean
        self._total_loss_scalar -= mean  # train_loss is of the steps from here
        self._globalstep_last_logged = pending.get("last_logged_step", self.state.global_step)
        self._load_rng_state(str(path))
        if pending.get("evaluation"):
            self.control.should_evaluate = True
            self.control.should_save = bool(pending["save"])
            self._log_save_evaluate()
        step = self.state.global_step
        is_epoch_end = step % len(self._sampler.sizes) == 0 or step >= self.state.max_steps
        if pending.get("epoch_end") and is_epoch_end:
            self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
            self._log_save_evaluate()
        # an evaluation draws, and the library loads the states of the checkpoint again
        self._random_states = random.getstate(), np.random.get_state(), torch.get_rng_state()

    def _log_save_evaluate(self) -> None:
        self._maybe_log_save_evaluate(
            self._tr_loss,
            grad_norm=None,
            model=self.model_wrapped,
            trial=None,
            epoch=self.state.epoch or 0.0,
            ignore_keys_for_eval=None,
            start_time=time.time(),
        )

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        """Stop before the weights change, or on an accelerator before they are used.

        There the norm is read a step later, when it is known without waiting.
        """
        self.require_finite()
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)  # type: ignore[no-untyped-call]
        self._grad_norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        if self.args.device.type == "cpu":
            self.require_finite(self.state.global_step + 1)
        return norm

    def require_finite(self, step: int | None = None) -> None:
        """Check the gradient norm of the last step; of a loss that is not finite it is not, too.

        Args:
            step: Its number; that of the state by default.

        Raises:
            Diverged: If it is not finite; on every process, as the norm is that of all.
        """
        norm, self._grad_norm = self._grad_norm, None
        if norm is None:
            return
        if math.isfinite(norm):
            self._overflows = 0
            return
        self._overflows += 1
        if self.accelerator.scaler is not None and self._overflows < _MOST_OVERFLOWS:
            return  # the loss scaler skips the step
        step = self.state.global_step if step is None else step
        paths = checkpoint.list_checkpoints(Path(self.args.output_dir or ""))
        last = f"The last checkpoint, {paths[0].name}, is good. " if paths else ""
        precise = "--precision fp32, " if self.args.bf16 or self.args.fp16 else ""
        raise Diverged(
            f"the loss or the gradient norm is not finite ({float(norm)}) at step {step:,} "
            f"(learning rate {self._get_learning_rate():g}): stopped. {last}Try {precise}a lower "
            "--learning_rate"
        )

    # ---- checkpoints -----------------------------------------------------------------------------

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Describe the checkpoint when all processes have written it, and rotate only then."""
        self.require_finite()
        self.require_finite_weights()
        directory = Path(self._get_output_dir(trial))
        path = directory / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            (path / Checkpoint.NAME).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)  # of an earlier try
        distributed.gather(None)
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            with failures.explain_full_disk(directory, f"writing {path.name}"):
                super()._save_checkpoint(model, trial)
                pending = self.pending()
                if self.args.should_save:
                    checkpoint.complete(path, self.args.world_size, self.configuration, pending)
        finally:
            self.args.save_total_limit = limit
        if self.args.should_save:
            best = self.state.best_model_checkpoint
            checkpoint.rotate(directory, limit, Path(best) if best else None)
        distributed.gather(None)  # no process looks for it before it is complete

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        """Save on the first process of other machines too (``--save_on_each_node``).

        ``save_pretrained`` (5.23) leaves that to rank 0, and safetensors lets only the owner read.
        """
        super()._save(output_dir, state_dict)
        if not self.args.should_save:
            return
        directory = Path(output_dir or self.args.output_dir or "")
        if self.args.process_index and isinstance(self.model, PreTrainedModel):
            self.model.config.save_pretrained(directory)
            save_model(self.model, str(directory / SAFE_WEIGHTS_NAME), metadata={"format": "pt"})
        apply_umask(directory, "*.safetensors")

    def pending(self) -> dict[str, Any]:
        """Return what the last step still has to do, and the loss since the last log.

        Every process calls it.
        """
        return {
            "last_logged_step": self._globalstep_last_logged,
            "loss_by_process": distributed.gather(self._tr_loss.item()),
            "evaluation": self.stop_requests.pending_evaluation,
            "save": self.stop_requests.pending_save,
            "epoch_end": not self.stop_requests.is_epoch_ended,
        }

    def require_finite_weights(self) -> None:
        """Raise ``Diverged`` if a weight is not finite; all processes have the same weights."""
        assert self.model is not None
        if self.is_fsdp_enabled:  # a shard is not finite on one process only, others would wait
            return
        if not all(bool(weight.isfinite().all()) for weight in self.model.parameters()):
            raise Diverged(
                f"the weights are not finite after step {self.state.global_step:,}: no checkpoint "
                "is made of them. Try a lower --learning_rate"
            )

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Apply settings that ``--allow_changed`` accepts; the library restores those before."""
        optimizer, scheduler = self.optimizer, self.lr_scheduler
        assert optimizer is not None
        settings = [{**group, "params": None} for group in optimizer.param_groups]
        with _explain_loading(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)
        if self.reschedules and isinstance(scheduler, LambdaLR):
            scheduler.base_lrs = [group["initial_lr"] for group in settings]
            rates = scheduler._last_lr = scheduler.get_lr()
            for group, new, rate in zip(optimizer.param_groups, settings, rates, strict=True):
                group |= {**new, "params": group["params"], "lr": rate}

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """With another number of processes, take fresh random states; the library keeps none."""
        if self._random_states is not None:
            python_state, numpy_state, torch_state = self._random_states
            self._random_states = None
            random.setstate(python_state)
            np.random.set_state(numpy_state)
            torch.set_rng_state(torch_state)
            return
        if checkpoint is None:
            return
        if Checkpoint.read(Path(checkpoint)).world_size == self.args.world_size:
            with _explain_loading(checkpoint):
                super()._load_rng_state(checkpoint)
        else:
            drawn = self.state.global_step * self.args.world_size
            set_seed(self.args.seed + drawn + self.args.process_index)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse a checkpoint that lacks weights: the library goes on with a warning."""
        assert self.model is not None
        left_out = set(getattr(self.model, "_keys_to_ignore_on_save", None) or ())
        missing = set(load_result.missing_keys) - left_out
        weights = self.model.state_dict(keep_vars=True)
        loaded = {id(weight) for name, weight in weights.items() if name not in missing}
        missing = {name for name in missing if id(weights.get(name)) not in loaded}  # but tied ones
        if missing:
            raise UserError(
                f"the checkpoint lacks {len(missing)} weights of the model, such as "
                f"'{min(missing)}': it cannot be loaded"
            )

    # ---- evaluation ------------------------------------------------------------------------------

    def _get_dataloader(
        self, dataset: Any, description: str, batch_size: int, *args: Any, **options: Any
    ) -> DataLoader[Any]:
        """Sort the rows of an evaluation by length, to pad little; the loop restores the order."""
        rows = RowOrder.by_length(dataset, self.args.length_column_name, self.row_loss.pooling)
        if rows.order is not None:
            dataset = dataset.select(rows.order)
        options["sampler_fn"] = SequentialSampler  # the library's would permute predictions
        loader: DataLoader[Any] = super()._get_dataloader(
            dataset, description, batch_size, *args, **options
        )
        loader.row_order = rows  # type: ignore[attr-defined]
        return loader

    def evaluation_loop(
        self, dataloader: DataLoader[Any], *args: Any, **options: Any
    ) -> EvalLoopOutput:
        """Compute loss and metrics of the rows in the order of the data, each counted once.

        The library averages the means of padded batches, of which the last may be repeated: its
        loss depends on the batch size and on the number of processes.
        """
        rows: RowOrder = getattr(dataloader, "row_order", RowOrder())
        compute_metrics, restored = self.compute_metrics, list[EvalPrediction]()

        def compute(batches: EvalPrediction) -> dict[str, float]:
            prediction = rows.restore(batches)
            restored.append(prediction)
            outputs, labels = map(torch.as_tensor, (prediction.predictions, prediction.label_ids))
            loss = self.row_loss.evaluation_losses(outputs, labels).double().mean().item()
            return {**(compute_metrics(prediction) if compute_metrics else {}), "loss": loss}

        concatenates = self.args.eval_do_concat_batches
        self.compute_metrics, self.args.eval_do_concat_batches = compute, False
        size = self.args.per_device_eval_batch_size
        work = f"an evaluation, with batches of {size} rows"
        try:
            with (
                quiet_workers(self.args.dataloader_num_workers or 0),
                failures.explain_memory(self.args, work, is_training=False),
            ):
                output = super().evaluation_loop(dataloader, *args, **options)
        finally:
            self.compute_metrics = compute_metrics
            self.args.eval_do_concat_batches = concatenates
        prediction = rows.restore(EvalPrediction(output.predictions, output.label_ids))
        if restored:
            prediction = restored[0]
        output = output._replace(predictions=prediction.predictions, label_ids=prediction.label_ids)
        if self._keeps_outputs:
            best = self._outputs_by_step.get(self.state.best_global_step or -1)
            self._outputs_by_step = {self.state.global_step: output}
            if best is not None:
                self._outputs_by_step[self.state.best_global_step or -1] = best
        return output

    def evaluate(self, eval_dataset: Any = None, *args: Any, **options: Any) -> dict[str, float]:
        """Save what is trained where a signal stops an evaluation in training."""
        self._keeps_outputs = self.is_in_train and eval_dataset is None
        python_state, torch_state = random.getstate(), torch.get_rng_state()
        try:
            return super().evaluate(eval_dataset, *args, **options)
        except Stopped:
            if self.is_in_train:  # a resumed run evaluates first, from the same states
                random.setstate(python_state)
                torch.set_rng_state(torch_state)
                self.stop_requests.pending_evaluation = True
                self.stop_requests.pending_save = self.control.should_save
                self.save_stopped()
            raise
        finally:  # a library that the first evaluation imports may draw, as rich does
            self._keeps_outputs = False
            random.setstate(python_state)

    def save_stopped(self) -> None:
        """Save the last step, unless it is saved; every process calls it."""
        path = Path(self.args.output_dir or "", f"checkpoint-{self.state.global_step}")
        is_new = self.state.global_step > self._initial_global_step
        if is_new and not (path / Checkpoint.NAME).exists():
            assert self.model is not None
            self._save_checkpoint(self.model, None)

    def predict_evaluated(self) -> PredictionOutput:
        """Predict the evaluation rows with the model as ``train()`` left it.

        Where ``train()`` evaluated that very model, as it does at the end of an epoch, the outputs
        of then are returned, and nothing is computed twice.
        """
        step, best = self.state.global_step, self.state.best_model_checkpoint
        if self.args.load_best_model_at_end and best is not None and Path(best).is_dir():
            step = self.state.best_global_step or step
        output = self._outputs_by_step.get(step)
        if output is None or output.predictions is None:
            return self.predict(self.eval_dataset, metric_key_prefix="eval")
        return PredictionOutput(output.predictions, output.label_ids, output.metrics)

    def _shard_embeddings_once(self) -> None:
        """Leave the module around the input embeddings out of the units that FSDP shards.

        Accelerate shards the embeddings as a unit of their own, and fails where the module around
        them (``BertEmbeddings``) is one of those that the model names for a unit.
        """
        plugin, model = self.accelerator.state.fsdp_plugin, self.model
        units = getattr(model, "_no_split_modules", None) or ()
        if plugin.fsdp_version != 2 or plugin.transformer_cls_names_to_wrap or not units:
            return
        assert isinstance(model, PreTrainedModel)
        embeddings = model.get_input_embeddings()
        parents = {
            type(module).__name__
            for module in model.modules()
            if any(child is embeddings for child in module.modules())
        }
        plugin.transformer_cls_names_to_wrap = sorted(set(units) - parents)


class _Begin(TrainerCallback):
    """Calls :meth:`Trainer.begin_training`, after the other callbacks."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Call it."""
        self._trainer.begin_training()


@contextmanager
def _explain_loading(path: str | None) -> Iterator[None]:
    """Name the checkpoint where loading a part of it fails."""
    try:
        yield
    except (pickle.UnpicklingError, RuntimeError, ValueError, KeyError, EOFError) as error:
        line = str(error).strip().partition("\n")[0]
        raise UserError(f"{path} cannot be loaded: {line}") from error


def build_trainer(
    trainer_kwargs: Callable[[], dict[str, Any]],
    arguments: FinetuneArguments,
    adapt: Callable[[torch.nn.Module, FinetuneArguments], torch.nn.Module],
) -> Trainer:
    """Return a trainer of a recipe, seeded before the model's head is initialised.

    Args:
        trainer_kwargs: Builds the keyword arguments of ``transformers.Trainer``, with the model.
        arguments: Of the training.
        adapt: That of the recipe; it is applied to the model.
    """
    set_seed(arguments.seed)
    kwargs = trainer_kwargs()
    kwargs["model"] = adapt(kwargs["model"], arguments)
    trainer = Trainer(args=arguments, **kwargs)
    # from here on the processes draw different dropout masks: they see different rows
    set_seed(arguments.seed + arguments.process_index)
    return trainer
