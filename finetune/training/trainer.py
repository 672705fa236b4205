"""The library's ``Trainer``, with an exact loss, steps of global batches and complete checkpoints.

The docstring of each overridden method gives the reason. All of them are public.
"""

import contextlib
import copy
import functools
import inspect
import itertools
import logging
import math
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
import transformers
from accelerate.data_loader import prepare_data_loader
from safetensors import safe_open
from safetensors.torch import save_model
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader
from transformers import DefaultFlowCallback, EvalPrediction, PreTrainedModel, set_seed
from transformers.trainer_utils import EvalLoopOutput, TrainOutput, rotate_checkpoints
from transformers.utils import SAFE_WEIGHTS_NAME

from finetune.data import encoding, words
from finetune.data.labels import list_names
from finetune.data.lengths import lengths_of
from finetune.errors import Diverged, UserError
from finetune.models.cpu import exchange
from finetune.runs import checkpoints
from finetune.runs.directory import lock_directory, move_run_aside, unlock_directory
from finetune.runs.records import Checkpoint, Manifest
from finetune.runs.resumption import find_checkpoint
from finetune.runtime import distributed, internals
from finetune.runtime.stopping import Stopped
from finetune.training import steps
from finetune.training.arguments import FinetuneArguments, shard_embeddings_once
from finetune.training.callbacks import TrainingCallback, explained, make_profiler
from finetune.training.steps import GlobalBatchSampler, GlobalLoss


class Trainer(transformers.Trainer):
    """``transformers.Trainer`` whose training depends on the global batch only.

    Its keyword arguments are those of the library; ``compute_loss_func`` is a
    :class:`~finetune.training.steps.GlobalLoss`.

    Attributes:
        row_loss: The loss of each row, in training and in evaluations.
        moves_runs_aside: Whether ``train()`` locks the output directory and, unless it resumes,
            moves a run in it aside; the logger ``finetune`` warns about it.
        configuration: Written into each checkpoint; a resume must not change it.
        reschedules: Whether a resume takes the settings of optimizer and schedule from ``args``.
        shifted: Takes outputs and labels of an evaluation during the training, and returns the
            outputs of the model as it would be saved: their metrics choose the best checkpoint.
    """

    args: FinetuneArguments
    model: torch.nn.Module
    optimizer: Any
    lr_scheduler: Any
    train_dataset: datasets.Dataset
    eval_dataset: datasets.Dataset
    moves_runs_aside = False
    configuration: Mapping[str, Any] = {}
    reschedules = False
    shifted: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    loss_is_scaled_for_ga = True  # compute_loss divides by the rows of the global step
    _resumed: Path | None = None
    _incomplete: Path | None = None  # the checkpoint that is being written
    _settings: list[dict[str, Any]] = []  # of the optimizer, from the arguments
    _loss: torch.Tensor  # of the steps since the last log
    _total_loss = 0.0  # of the logged steps since the start or the resume
    _first_step = 0  # after which this start or resume trains
    _last_logged_step = 0
    _grad_norm: Any = None  # until it is known to be finite
    _overflows = 0  # in a row; the loss scaler of fp16 may skip 20 steps
    _dtypes: set[torch.dtype] = set()  # of the weights in training

    def __init__(self, *, compute_loss_func: GlobalLoss, **kwargs: Any) -> None:
        arguments: FinetuneArguments = kwargs["args"]
        self.row_loss = replace(compute_loss_func, label_smoothing=arguments.label_smoothing_factor)
        arguments.builds_trainer = True  # or the library would make the output directory
        # transformers 5.16 would divide the loss by the accumulation steps without such a function
        super().__init__(compute_loss_func=compute_loss_func, **kwargs)
        del arguments.builds_trainer
        self.model_accepts_loss_kwargs = False  # or the library would count and scale as well
        model: Any = self.model
        if hasattr(model, "get_base_model"):  # of peft
            model = model.get_base_model()
        forward = model.forward
        self._columns = {*inspect.signature(forward).parameters, *self.label_names, "label"}
        if self.accelerator.ddp_handler is not None:  # or DDP keeps a second copy of all gradients
            self.accelerator.ddp_handler.gradient_as_bucket_view = True
        if self.is_fsdp_enabled:
            os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"  # or shards are unpickled on a resume
            shard_embeddings_once(self.accelerator.state.fsdp_plugin, self.model)
        self._directory = Path(self.args.output_dir or "")
        self.callback = TrainingCallback(self)
        self.add_callback(self.callback)  # the last callback decides

    def create_accelerator_and_postprocess(self) -> None:
        """Stop if the norm of the gradients is not finite; an accelerator reads it a step later,
        without waiting.
        """
        super().create_accelerator_and_postprocess()
        clip = self.accelerator.clip_grad_norm_

        def clip_and_check(*args: Any, **kwargs: Any) -> Any:
            self._require_finite(self.state.global_step)
            norm: Any = clip(*args, **kwargs)
            self._grad_norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            if self.args.device.type == "cpu":
                self._require_finite(self.state.global_step + 1)
            return norm

        self.accelerator.clip_grad_norm_ = clip_and_check

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the micro-batches of this process as the ``GlobalBatchSampler`` divides them."""
        rows = self.train_dataset
        self._sampler = self.callback.sampler = GlobalBatchSampler(self.args, rows)
        self._row_weights = steps.weigh_rows(self.row_loss, rows)
        loader: DataLoader[Any] = prepare_data_loader(  # for one process: it is divided already
            self._loader(rows, batch_sampler=self._sampler),
            device=self.accelerator.device,
            num_processes=1,
            process_index=0,
            put_on_device=True,
            non_blocking=self.accelerator.non_blocking,
        )
        return loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Return the rows from the longest to the shortest, to pad little; the loop restores the
        order. The library may shuffle them.
        """
        rows: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(eval_dataset, str):  # the name of one of several
            rows = self.eval_dataset[eval_dataset]
        lengths = lengths_of(rows, self.args.length_column_name)
        order = np.arange(len(rows)) if lengths is None else np.argsort(-lengths, kind="stable")
        documents = encoding.documents_of(rows) if self.row_loss.pooling else None
        if lengths is not None:
            rows = rows.select(order)
        size = self.args.eval_batch_size
        loader: DataLoader[Any] = self.accelerator.prepare(self._loader(rows, batch_size=size))
        loader.order = order
        loader.documents = None if documents is None else documents[order]
        return loader

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        """Return the rows as in an evaluation."""
        return self.get_eval_dataloader(test_dataset)

    def _loader(self, rows: datasets.Dataset, **options: Any) -> DataLoader[Any]:
        """Return batches of the columns that the model reads."""
        if self.args.remove_unused_columns:
            unused = [name for name in rows.column_names if name not in self._columns]
            rows = rows.remove_columns(unused)
        names = ["num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "in_order"]
        names.append("multiprocessing_context")
        for name in names:
            value = getattr(self.args, f"dataloader_{name}")
            if value is not None:
                options[name] = value
        return DataLoader(rows, collate_fn=self.data_collator, **options)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], None]:
        """Return the micro-batches of a step; none if no step is left, where the library would
        train one more. ``compute_loss`` needs no count of labels.
        """
        if self.control.should_training_stop:
            return [], None
        return list(itertools.islice(epoch_iterator, num_batches)), None

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        """Return the share of this process in the global loss, times the processes: DDP averages.

        The divisor is the sum of the row weights of the global step, which neither a collator nor
        the library knows.
        """
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        if not model.training:
            loss = self.row_loss.evaluation_losses(outputs["logits"], labels).mean()
            # an encoder-decoder returns more tensors, which would be gathered as predictions
            return (loss, {"logits": outputs["logits"]}) if return_outputs else loss
        rows = self._sampler.rows_of_step(self.state.global_step)
        losses = self.row_loss.training_losses(outputs["logits"], labels)
        loss = losses.sum() / float(self._row_weights[rows].sum())
        # the added term is 0, or NaN if the loss is not finite: then every gradient becomes NaN
        return loss * (self.accelerator.num_processes + 0 * loss.detach())

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train as the library does, from complete checkpoints only.

        Raises:
            UserError: If the checkpoint to resume from is damaged, or there is none.
            RunError: If memory runs out, or a number is not finite.
        """
        path = str(resume_from_checkpoint) if resume_from_checkpoint else None
        if self.moves_runs_aside:  # else the pipeline has verified it and locked the directory
            path = self._prepare_directory(path or self.args.resume_from_checkpoint)
        self._resumed = Path(path) if path else None
        if path:
            self._require_all_weights(Path(path))
        self._limit = self.args.save_total_limit
        if self.args.profile and self.is_world_process_zero():
            place = self._directory / "profile"
            self.callback.profiler = make_profiler(self.args.profile, place)
        try:
            with self.callback.profiler or contextlib.nullcontext(), self._saving():
                output = super().train(path, *args, **kwargs)
            if self.args.should_save:
                checkpoints.delete_replaced(self._directory)
                if self._limit == 1 and self.args.load_best_model_at_end:
                    self._keep_best_checkpoint()
        finally:
            if self.moves_runs_aside and self.args.should_save:
                unlock_directory(self._directory)
        if self.is_fsdp_enabled:  # the final model is saved whole, checkpoints are sharded
            self.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        return output._replace(training_loss=output.metrics["train_loss"])

    def _prepare_directory(self, path: str | None) -> str | None:
        """Lock the output directory, and return the verified checkpoint to resume from, if any."""
        directory = self._directory
        if path:
            checkpoint = find_checkpoint(path, directory).path
            if checkpoint is None:
                raise UserError(f"no checkpoint in {directory}")
            checkpoints.refuse_code(checkpoint)
            path = str(checkpoint)
        if self.args.should_save:
            lock_directory(directory)
            if not path and Manifest.exists_in(directory):
                logging.getLogger("finetune").warning(move_run_aside(directory))
        return path

    def training_step(self, model: torch.nn.Module, inputs: Any, *args: Any) -> torch.Tensor:
        """Name the step and the shape of its micro-batch if memory runs out."""
        shape = max((tuple(v.shape) for v in inputs.values() if torch.is_tensor(v)), key=len)
        batch = f"a micro-batch of {' x '.join(map(str, shape))}"
        with explained(self.args, f"step {self.state.global_step + 1:,}, {batch}"):
            loss = super().training_step(model, inputs, *args)
        self._loss += loss
        return loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log the mean loss of the steps since the last log, also of those before a resume, and at
        the end the mean of the steps since the start or the resume.
        """
        if {"loss", "learning_rate"} <= logs.keys():  # of the library, not of the user
            loss = self.accelerator.gather(self._loss).mean().item()
            self._loss.zero_()
            self._total_loss += loss
            logs["loss"] = loss / (self.state.global_step - self._last_logged_step)
            self._last_logged_step = self.state.global_step
        if "train_loss" in logs:  # steps that were not logged count
            loss = self.accelerator.reduce(self._loss, reduction="mean").item()
            count = self.state.global_step - self._first_step
            logs["train_loss"] = (self._total_loss + loss) / max(count, 0.001)
        super().log(logs, *args, **kwargs)

    def evaluation_loop(self, dataloader: Any, *args: Any, **options: Any) -> EvalLoopOutput:
        """Compute loss and metrics from the rows in the order of the data, each counted once.

        The library averages the mean losses of batches, and repeats rows to fill the last one: its
        loss depends on the batch size and the number of processes.
        """
        order, documents, pooling = dataloader.order, dataloader.documents, self.row_loss.pooling
        restore = functools.partial(
            steps.restore_rows, rows=order if documents is None else documents, pooling=pooling
        )
        if pooling == words.POOLING:
            restore = functools.partial(steps.restore_words, order=order, documents=documents)
        compute_metrics = self.compute_metrics
        restored: list[EvalPrediction] = []
        options["prediction_loss_only"] = False  # the library sets it if there are no metrics

        def compute(batches: EvalPrediction) -> dict[str, float]:
            prediction = restore(batches)
            restored.append(prediction)
            outputs, labels = map(np.asarray, (prediction.predictions, prediction.label_ids))
            tensors = map(torch.as_tensor, (outputs, labels))
            losses = self.row_loss.evaluation_losses(*tensors).double()
            metrics = {}
            if compute_metrics:
                if self.shifted and self.is_in_train:
                    outputs = self.shifted(outputs, labels)
                # the library repeats the mean of each batch
                row_losses = None if prediction.losses is None else losses.numpy()
                rows = EvalPrediction(outputs, labels, prediction.inputs, row_losses)
                metrics = compute_metrics(rows)
            return {**metrics, "loss": losses.mean().item()}

        self.compute_metrics = compute
        model = self.model
        is_cast = (self.args.bf16_full_eval or self.args.fp16_full_eval) and not self.is_in_train
        if is_cast:  # by the library, in place, which would save the cast weights
            self.model = copy.deepcopy(model)
        work = f"an evaluation, with batches of {self.args.per_device_eval_batch_size} rows"
        try:
            with explained(self.args, work), self._keep_random_states():
                output: Any = super().evaluation_loop(dataloader, *args, **options)
        except Stopped:
            if self.is_in_train:
                self.save_stopped()
            raise
        finally:
            self.compute_metrics = compute_metrics
            if is_cast:
                self.model = model
        if not restored:  # without labels
            restored.append(restore(EvalPrediction(output.predictions, output.label_ids)))
        outputs, labels = restored[0].predictions, restored[0].label_ids
        result: EvalLoopOutput = output._replace(predictions=outputs, label_ids=labels)
        return result

    @contextlib.contextmanager
    def _keep_random_states(self) -> Iterator[None]:
        """Train on from the same random states, whether and how often there are evaluations."""
        devices = []
        if self.args.device.type == "cuda":
            devices = [self.args.device]
        python_state = random.getstate()
        numpy_state = np.random.get_state()
        try:
            with torch.random.fork_rng(devices):
                yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)

    def save_model(self, output_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Save on the first process of each machine (``--save_on_each_node``), with usual modes.

        ``save_pretrained`` writes on rank 0 only, and weights for their owner only. The library
        calls this method on every process, for a checkpoint before it writes the other files.
        """
        dtypes = {weight.dtype for weight in self.model.parameters()}
        assert dtypes <= (self._dtypes or dtypes), f"trained in {self._dtypes}, not in {dtypes}"
        directory = Path(output_dir or self._directory)
        if directory == self._checkpoint_path():
            self._begin_checkpoint()
        for path in directory.glob("*") if self.args.should_save else ():
            if path.is_symlink() and not path.is_dir():  # the library would write where it points
                path.unlink()
        super().save_model(output_dir, *args, **kwargs)
        if not self.args.should_save:
            return
        if self.args.process_index and isinstance(self.model, PreTrainedModel):
            self.model.config.save_pretrained(directory)
            save_model(self.model, str(directory / SAFE_WEIGHTS_NAME), metadata={"format": "pt"})
        for path in directory.glob("*.safetensors"):
            shutil.copymode(directory / "training_args.bin", path)  # the mode of the umask
        self._require_all_weights(directory)

    def _checkpoint_path(self) -> Path:
        return self._directory / f"checkpoint-{self.state.global_step}"

    def _begin_checkpoint(self) -> None:
        """Set aside an earlier checkpoint of this step, until the new one is complete."""
        self.require_finite()
        path = self._checkpoint_path()
        if self.args.should_save:
            checkpoints.begin_checkpoint(path)
        self._incomplete = path
        distributed.gather(None)

    def complete_checkpoint(self) -> None:
        """Write ``checkpoint.json`` when all processes have saved, and delete old checkpoints only
        after that; every process calls it.
        """
        path = self._checkpoint_path()
        pending = {"loss_by_process": distributed.gather(self._loss.item())}
        if self.args.should_save:
            checkpoints.complete_checkpoint(path, self.configuration, pending)
        self._incomplete = None
        if self.args.should_save:
            if self.state.global_step > self._first_step:  # else the training resumes from it
                checkpoints.delete_replaced(self._directory)
            rotate_checkpoints(str(self._directory), self._limit, self.state.best_model_checkpoint)
        distributed.gather(None)  # no process reads it before it is complete

    def _keep_best_checkpoint(self) -> None:
        """Delete the last checkpoint, if it is not the best one, as the library does at the end."""
        best = self.state.best_model_checkpoint
        if best is None:
            return
        for path in checkpoints.list_checkpoints(self._directory):
            if not path.samefile(best):
                shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def _saving(self) -> Iterator[None]:
        """Explain errors inside the block, and delete a checkpoint that could not be written: the
        disk may be full. The library deletes no checkpoints, it would do so too early.
        """

        def work() -> str:
            if self._incomplete is None:
                return "the training"
            return f"writing {self._incomplete.name}"

        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            with explained(self.args, work):
                yield
        finally:
            self.args.save_total_limit = limit
            if self._incomplete is not None and self.args.should_save:
                shutil.rmtree(self._incomplete, ignore_errors=True)
            self._incomplete = None

    def save_stopped(self) -> None:
        """Save the last step unless it is saved already; every process calls it."""
        is_new = self.state.global_step > self._first_step
        if is_new and not Checkpoint.exists_in(self._checkpoint_path()):
            self._save_now()

    def _save_now(self) -> None:
        """Save outside of the library's loop, which has no public method for that."""
        with self._saving():
            if internals.save_checkpoint(self):
                self.complete_checkpoint()

    def _require_all_weights(self, directory: Path) -> None:
        """Refuse a directory that lacks weights of the model: the library only warns when it loads
        them, and trains on with others. A weight with two names is saved under one of them.
        """
        path = directory / SAFE_WEIGHTS_NAME
        if self.is_fsdp_enabled or not path.exists():  # shards, or an adapter
            return
        with safe_open(path, framework="pt") as file:
            saved = set(file.keys())
        names: dict[int, list[str]] = {}
        for name, weight in self.model.named_parameters(remove_duplicate=False):
            names.setdefault(id(weight), []).append(name)
        missing = [same[0] for same in names.values() if saved.isdisjoint(same)]
        if missing:
            raise UserError(
                f"{path} lacks weights of the model, {list_names(missing)}: it was changed, or "
                "written by another version of transformers; type --resume_from_checkpoint with "
                "another checkpoint"
            )

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LRScheduler:
        """Note the settings of the optimizer, which the library then loads from the checkpoint."""
        scheduler: LRScheduler = super().create_scheduler(num_training_steps, optimizer)
        used = self.optimizer if optimizer is None else optimizer
        self._settings = [{**group, "params": None} for group in used.param_groups]
        return scheduler

    def _apply_settings(self) -> None:
        """Apply settings accepted by ``--allow_changed``: the library restores the old ones."""
        scheduler = self.lr_scheduler
        if not isinstance(scheduler, LambdaLR):
            return
        scheduler.base_lrs = [group["initial_lr"] for group in self._settings]
        scheduler.last_epoch -= 1
        scheduler.step()  # computes the learning rates of this step again
        for group, new in zip(self.optimizer.param_groups, self._settings, strict=True):
            group |= {**new, "params": group["params"], "lr": group["lr"]}

    def begin_training(self) -> None:
        """After resuming, run the evaluation that is due at this step but missing, and save again.

        A signal may have stopped the evaluation, or the process was killed between a checkpoint and
        the end of its epoch. Called after the other callbacks.
        """
        model = self.model_wrapped
        state = self.state
        self._dtypes = {weight.dtype for weight in model.parameters()}
        if isinstance(model, DistributedDataParallel) and self.args.cpu_kernels == "auto":
            exchange.use(model)  # gradients through shared memory
        # the checkpoint has the intervals of logging, evaluating and saving of the earlier start
        state.compute_steps(self.args, state.max_steps)  # type: ignore[no-untyped-call]
        self._loss = torch.zeros((), device=self.args.device)
        self._total_loss = 0.0
        self._first_step = self._last_logged_step = state.global_step
        if self._resumed is None:
            return
        best = self._directory / f"checkpoint-{state.best_global_step}"
        if best.exists():  # the run may have moved
            state.best_model_checkpoint = str(best)
        if self.reschedules:
            self._apply_settings()
        self._resume_losses(Checkpoint.read(self._resumed).pending.get("loss_by_process", [0.0]))
        self.callback.on_evaluate(self.args, state, self.control)  # it may have stopped early
        control = DefaultFlowCallback().on_step_end(self.args, state, self.control)
        if float(state.epoch or 0.0).is_integer() or state.global_step >= state.max_steps:
            DefaultFlowCallback().on_epoch_end(self.args, state, control)
        if control.should_log and state.global_step > self._last_logged_step:
            self.log({"loss": 0.0, "learning_rate": self._learning_rate()})
        entries = [entry for entry in state.log_history if entry["step"] == state.global_step]
        is_evaluated = any("eval_loss" in entry for entry in entries)
        if control.should_evaluate and not is_evaluated:
            has_random_states = internals.load_random_states(self, str(self._resumed))
            self._note_best(self.evaluate())
            if has_random_states:
                self._save_now()
        control.should_log = control.should_evaluate = control.should_save = False

    def _resume_losses(self, losses: list[float]) -> None:
        """Continue the sum of the steps since the last log, whose part each process has saved."""
        mean = sum(losses) / len(losses)
        is_same_job = len(losses) == self.args.world_size
        self._loss += losses[self.args.process_index] if is_same_job else mean
        self._total_loss -= mean  # train_loss covers the steps since the resume
        logged = [entry["step"] for entry in self.state.log_history if "loss" in entry]
        self._last_logged_step = int(max(logged, default=0))

    def _note_best(self, metrics: Mapping[str, float]) -> None:
        """Note whether an evaluation is the best, as the library does in a training."""
        name = self.args.metric_for_best_model
        if name is None:
            return
        value = metrics[f"eval_{name.removeprefix('eval_')}"]
        if isinstance(self.lr_scheduler, ReduceLROnPlateau):
            self.lr_scheduler.step(value)
        state = self.state
        sign = 1 if self.args.greater_is_better else -1
        if state.best_metric is None:
            state.best_metric = -sign * math.inf
        if sign * value > sign * state.best_metric:  # never if it is NaN
            state.best_metric = value
            state.best_global_step = state.global_step

    def _learning_rate(self) -> float:
        return float(self.lr_scheduler.get_last_lr()[0])

    def require_finite(self) -> None:
        """Raise ``Diverged`` if a weight, or the gradient norm of the last step, is not finite."""
        # with FSDP one process alone may have the weight, and the others would wait for it
        weights = () if self.is_fsdp_enabled else self.model.parameters()
        self._require_finite(self.state.global_step, weights)

    def _require_finite(self, step: int, weights: Iterable[torch.Tensor] = ()) -> None:
        if self._grad_norm is not None:
            self._overflows = 0 if math.isfinite(self._grad_norm) else self._overflows + 1
            self._grad_norm = None
        is_finite = self._overflows <= (20 if self.accelerator.scaler else 0)
        if is_finite and all(bool(weight.isfinite().all()) for weight in weights):
            return
        paths = checkpoints.list_checkpoints(self._directory)
        last = f"The last checkpoint, {paths[0].name}, is good. " if paths else ""
        raise Diverged(
            f"the loss, the gradient norm or a weight is not finite at step {step:,} (learning "
            f"rate {self._learning_rate():g}): stopped. {last}Try --precision fp32 or a lower "
            "--learning_rate"
        )


def build_trainer(
    recipe: Any,
    arguments: FinetuneArguments,
    load_model: Callable[[], torch.nn.Module] | None = None,
    **changes: Any,
) -> Trainer:
    """Return the trainer of a recipe.

    Args:
        recipe: The recipe, whose rows are prepared.
        arguments: Those of the training.
        load_model: Returns the model; None for a new one with an initialized head. It is called
            after seeding.
        **changes: Keyword arguments in place of those of the recipe.
    """
    set_seed(arguments.seed)
    model = None
    if load_model is not None:
        model = load_model()
    kwargs = {**recipe.trainer_kwargs(model, arguments), **changes}
    if (model := recipe.adapt(kwargs["model"], arguments)) is None:
        raise UserError("adapt() returned None: return the model")
    kwargs["model"] = model
    trainer = Trainer(args=arguments, **kwargs)
    # from here on the processes draw different dropout masks: they see different rows
    set_seed(arguments.seed + arguments.process_index)
    return trainer
