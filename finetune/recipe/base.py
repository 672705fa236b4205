"""The recipe: a dataclass whose fields are options and whose methods are the steps of a run.

Each option is a flag, a config key and a keyword argument. Each step can be replaced::

    load -> split -> prepare -> build_model, data_collator, loss, compute_metrics ->
    trainer_kwargs -> adapt -> trainer

Importing a recipe touches neither a device nor the network, and imports no torch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from finetune.errors import UserError
from finetune.recipe.options import option
from finetune.recipe.splitting import Splitting
from finetune.runtime import hub

if TYPE_CHECKING:
    import numpy as np
    import torch
    from datasets import Dataset, DatasetDict
    from transformers import BaseImageProcessor, EvalPrediction, PreTrainedTokenizerBase

    from finetune.recipe.scoring import Scoring
    from finetune.tasks.base import Task
    from finetune.training.arguments import FinetuneArguments
    from finetune.training.trainer import Trainer


class Recipe(Splitting):
    """The contract. Derive from it, name your options as annotated fields, and replace the steps.

    Attributes:
        training: Defaults for :class:`~finetune.training.arguments.FinetuneArguments`, by name.
        embedded: What ``--embedded`` changes, options of the recipe and training arguments alike.
        own_metrics: The names of what a :meth:`compute_metrics` of the recipe's own returns.
        label_names: The names of the classes; a source that has these is brought into this order.
        ordered_labels: Whether that order means something: three of them or more are ordinal then.
        exclusive: Options of which one is given or the other.
    """

    training: ClassVar[Mapping[str, Any]] = {
        "weight_decay": 0.01,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "load_best_model_at_end": True,
        "metric_for_best_model": "f1",
        "save_total_limit": 3,
        "logging_steps": 10,
        "seed": 42,
    }
    embedded: ClassVar[Mapping[str, Any]] = {}
    own_metrics: ClassVar[Sequence[str]] = ()
    label_names: ClassVar[Sequence[str]] = ()
    ordered_labels: ClassVar[bool] = False
    exclusive: ClassVar[Sequence[tuple[str, str]]] = ()
    help_group = "data"
    help_groups = dict.fromkeys(("loss_function", "class_weights", "metrics"), "training")
    thresholds = "none"  # no option, but of recipes whose rows may have several labels
    dataset: str = option("", "data set on the Hub, or a local file, pattern of files or directory")
    dataset_revision: str | None = option(
        None, "commit, tag or branch of the data set on the Hub (unset: the newest)"
    )
    loss_function: str | None = option(
        None, "loss that is trained, one of those of the task (unset: its first)"
    )
    class_weights: str = option(
        "none",
        "how much rows of a class count in the loss of training: balanced, none, or by name",
        "NAME=WEIGHT,NAME=WEIGHT",
    )
    metrics: str | None = option(
        None, "f1_macro, roc_auc, ./MINE.py and others (unset: those of the task)", "NAME,NAME"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.task_reason = ""  # why the labels are those of the task, where the data decides it
        self.target_names: Sequence[str] = ()  # of the numbers of a row, where there are several
        self.label_name = "label"  # what the user calls the column
        if self.loss_function and type(self).loss is not Recipe.loss:
            raise UserError(f"--loss_function {self.loss_function}: the recipe has its own loss")

    # ---- the steps -------------------------------------------------------------------------------

    def load(self) -> DatasetDict:
        """Return the raw data: splits with the columns :attr:`input_column` and ``label``.

        Returns:
            A ``train`` split, and ``validation`` and ``test`` where the source has them; ``label``
            is one of the features in :mod:`finetune.data.targets`, a ``ClassLabel`` for instance.
        """
        raise NotImplementedError(f"{type(self).__name__} must say how to load its data")

    def check(self) -> None:
        """Refuse options that cannot work with the model, before any data is read.

        Raises:
            UserError: one line for each mistake.
        """

    def prepare(self, dataset: DatasetDict) -> DatasetDict:
        """Return the features that the model takes, tokenized for instance, not padded."""
        raise NotImplementedError(f"{type(self).__name__} must say how to prepare its data")

    def check_prepared(self, prepared: DatasetDict) -> None:
        """Refuse rows that cannot work with the model, as :meth:`prepare` returned them.

        Raises:
            UserError: with the first such row.
        """

    def processing_class(self) -> PreTrainedTokenizerBase | BaseImageProcessor | None:
        """Return the tokenizer or image processor to be saved beside the model, if there is one."""
        return None

    def build_model(self, labels: Sequence[str]) -> torch.nn.Module:
        """Return a fresh model with one output for each of ``labels``; a regression has none.

        Its ``forward`` takes the collated batch, with or without ``labels``, and returns a mapping
        that holds ``logits`` of shape ``(rows, classes)``.
        """
        raise NotImplementedError(f"{type(self).__name__} must say how to build its model")

    def load_model(self, directory: str | Path, labels: Sequence[str]) -> torch.nn.Module:
        """Return the model saved in ``directory`` by a run."""
        from finetune.models import weights

        return weights.loaded(self.build_model(labels), Path(directory) / "model.safetensors")

    def base_revision(self) -> str | None:
        """Return the commit on the Hub of the model that is trained further, if there is one."""
        return None

    def data_collator(self) -> Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]:
        """Return what makes a batch of rows, ``labels`` among its keys."""
        raise NotImplementedError(f"{type(self).__name__} must say how to collate its rows")

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return each row's loss, not reduced: the trainer divides by the rows of the global step.

        Args:
            logits: Shape ``(rows, outputs)``.
            labels: What :meth:`~finetune.tasks.base.Task.targets` returns, as a tensor: shape
                ``(rows,)``, int64, for classes.

        Returns:
            Shape ``(rows,)``, in nats.
        """
        return self.presumed_kind.loss(logits, labels)

    def whole_lengths(self, split: str) -> list[int] | None:
        """Return the tokens of each row before truncation; None where rows have no length."""
        return None

    def compute_metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        """Return the metrics of :attr:`scoring`: of classes, accuracy and macro F1."""
        return self._scoring(prediction, self.presumed_kind)

    def training_defaults(self, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return :meth:`defaults`, which ``given`` is set over; the best model is chosen by one of
        the metrics: the first if a user names them, or if they lack that of the recipe.
        """
        usual, is_loaded = self.defaults(), "splits" in vars(self)
        if self.metrics != type(self).metrics:
            usual.pop("metric_for_best_model", None)
        if not ((self.metrics or is_loaded) and self.known_scoring):
            return usual
        from finetune.recipe import scoring

        names = self.metric_names if is_loaded else self.known_scoring
        return scoring.with_best(usual, [*names], given or {}, is_final=is_loaded)

    # ---- put together ----------------------------------------------------------------------------

    @functools.cached_property
    def source(self) -> DatasetDict:
        """The data as it was read, labelled, before any row is left out or split off."""
        from finetune.data import requirements, sources

        hub.require({**vars(self), "model": None}, embedded=bool(self.embedded))
        dataset = sources.number_rows(self.load())
        requirements.require_labelled(dataset, self.input_column, self.report)
        requirements.require_rows(dataset, self.label_name, self.report)
        return dataset

    @functools.cached_property
    def splits(self) -> DatasetDict:
        """The raw splits, checked, with the rows in the order of the source."""
        from finetune.checking import tiers
        from finetune.data import labels, numbers, requirements

        source, report = self.source, self.report
        can_rename, split_by = hasattr(self, "label_map"), self.split_columns()
        report.add(*labels.find_doubtful_names(source, can_rename=can_rename))
        dataset = self.split(source)
        dataset = self.correct(dataset, source)
        requirements.require_splits(
            dataset, source, self.label_name, report, can_rename=can_rename, split_by=split_by
        )
        targets = self.target_names or [self.label_name]
        for split, rows in dataset.items():
            numbers.check_targets(rows, split, targets, report)
        report.raise_errors()
        report.add(*tiers.check_rows(source, dataset, self.columns_read(), targets, split_by))
        return dataset

    def over(self, rows: Dataset) -> Self:
        """Return the same recipe with these raw rows as each of its splits, prepared once.

        The rows have ``_row``, :attr:`input_column` and ``label``, numbered as the model does.
        """
        from datasets import DatasetDict

        # nothing is trained on them, and they may lack classes that have a weight
        copy = dataclasses.replace(self, class_weights="none")
        names = ("train", "validation", "test")
        copy.splits = DatasetDict(dict.fromkeys(names, rows))
        prepared = copy.prepare(DatasetDict(test=rows))["test"]
        copy.check_prepared(DatasetDict(test=prepared))
        copy.prepared = DatasetDict(dict.fromkeys(names, prepared))
        return copy

    @functools.cached_property
    def prepared(self) -> DatasetDict:
        """:attr:`splits`, prepared for the model."""
        self.check()
        self.kind.refuse_metrics(self.known_scoring)
        prepared = self.prepare(self.splits)
        self.check_prepared(prepared)
        return prepared

    @property
    def labels(self) -> list[str]:
        """The names of the classes in their order, or of the numbers of a row that has several."""
        return self.kind.labels

    @functools.cached_property
    def kind(self) -> Task[Any]:
        """What follows from the kind of the labels."""
        from finetune.tasks import kinds

        rows = self.splits["train"]
        return kinds.of_rows(
            rows,
            ordered=self.is_ordinal(rows),
            loss_function=self.loss_function,
            thresholds=self.thresholds,
            target_names=self.target_names,
        )

    def is_ordinal(self, rows: Dataset) -> bool:
        """Return whether the order of the classes of rows means something."""
        from finetune.tasks import kinds

        return self.ordered_labels and kinds.in_order(rows, self.label_names)

    def targets(self, split: str) -> np.ndarray:
        """Return the targets of the raw rows of a split: see :attr:`kind`."""
        from finetune.data import targets

        return self.kind.targets(targets.values(self.splits[split]))

    def training_targets(self) -> np.ndarray:
        """Return the targets of what one epoch trains on: see :meth:`targets`."""
        return self.targets("train")

    @functools.cached_property
    def weights(self) -> np.ndarray | None:
        """How much each class counts in training, shape ``(classes,)``; None if all alike.

        Raises:
            UserError: what is wrong with ``class_weights``.
        """
        from finetune.tasks import weights

        if self.kind.weighs_in_loss and type(self).loss is not Recipe.loss:
            weights.refuse_own_loss(self.class_weights)
        return self.kind.told_weights(self.class_weights, self.training_targets(), self.note)

    @property
    def presumed_kind(self) -> Task[Any]:
        """:attr:`kind`; of data that the recipe has not loaded, what is taken for granted."""
        from finetune.tasks.single_label import SingleLabel

        return self.kind if "splits" in vars(self) else SingleLabel()

    @property
    def scoring(self) -> Scoring:
        """The metric modules that :meth:`compute_metrics` calls, unless ``metrics`` names some."""
        from finetune.recipe.scoring import Scoring

        return Scoring(**self.presumed_kind.metrics)

    @property
    def _scoring(self) -> Scoring:
        return self.scoring.of_names(self.metrics) if self.metrics else self.scoring

    @property
    def known_scoring(self) -> dict[str, Mapping[str, Any]]:
        """The local metrics and their arguments; none if :meth:`compute_metrics` was replaced."""
        common = type(self).compute_metrics is Recipe.compute_metrics
        return dict(self._scoring.arguments) if common else {}

    @functools.cached_property
    def metric_names(self) -> list[str]:
        """The names of what :meth:`compute_metrics` returns; its data are loaded for it."""
        if not self.known_scoring:
            return list(self.own_metrics)
        self.kind.refuse_metrics(self.known_scoring)
        return self._scoring.names(self.kind)

    def trainer_kwargs(self, model: torch.nn.Module | None = None) -> dict[str, Any]:
        """Return the keyword arguments of ``transformers.Trainer``, but for ``args``.

        The library's ``Trainer`` takes them as well as ours: the loss is right in both. With
        weights of classes the library divides it by the rows of a step, ours by the sum of their
        weights, which are 1 on average. A ``model`` stands for a fresh one.
        """
        if model is None:
            model = self.kind.initialized(self.build_model(self.labels), self.note)
        return {
            "model": model,
            "train_dataset": self.prepared["train"],
            "eval_dataset": self.prepared["validation"],
            "data_collator": self.data_collator(),
            "processing_class": self.processing_class(),
            "compute_metrics": self.compute_metrics,
            "compute_loss_func": self.kind.global_loss(self.loss, self.weights),
        }

    def adapt(self, model: torch.nn.Module, arguments: FinetuneArguments) -> torch.nn.Module:
        """Return ``model`` made ready for a training with ``arguments``, changed in place or not.

        This is where a model is operated on before it is trained: freeze parameters, add adapters,
        replace layers. By default it gets the kernels of :mod:`finetune.models.cpu` where it trains
        on a CPU, unless ``--cpu_kernels off`` or ``--torch_compile`` says otherwise; call
        ``super().adapt(model, arguments)`` last to keep them::

            def adapt(self, model, arguments):
                model.base_model.requires_grad_(False)
                return super().adapt(model, arguments)

        :meth:`trainer` and the command line call it, after the seed is set;
        :meth:`trainer_kwargs` does not, so that a plain ``transformers.Trainer`` gets the model as
        it was built. An
        evaluation of a run calls it with what :meth:`load_model` returned: a recipe that adds
        parameters here says there how they are loaded, and does not add them twice.

        Args:
            model: From :meth:`build_model` or :meth:`load_model`.
            arguments: Of the training, resolved: device, precision and batch are known.
        """
        from finetune.models.cpu import kernels

        model = self.kind.scaled(model)
        ours = arguments.cpu_kernels == "auto" and not arguments.torch_compile
        if arguments.device.type == "cpu" and ours:
            recomputes = bool(arguments.activation_checkpointing)
            kernels.for_training(model, bf16=arguments.bf16, recomputes=recomputes)
        return model

    def trainer(self, **training_arguments: Any) -> Trainer:
        """Return a ``transformers.Trainer``, ours where it must be, ready to ``train()``.

        Any field of ``TrainingArguments``, and the toolkit's few more, is taken over the defaults
        of the recipe. ``output_dir`` defaults to ``runs/<recipe>``; nothing is written or moved
        there before ``train()`` is called.

        Raises:
            UserError: if an argument is unknown, or if the data cannot be trained on.
        """
        from finetune.training.defaults import argument_values
        from finetune.training.trainer import build_trainer

        argument_values(self.defaults(), training_arguments)  # mistakes, before data is loaded
        hub.require(vars(self), embedded=bool(self.embedded), packaged=self.packaged_model)
        _ = self.splits  # which may decide the task, and so what the best model is chosen by
        defaults = self.training_defaults(training_arguments)
        arguments = argument_values(defaults, training_arguments).build()
        trainer = build_trainer(self.trainer_kwargs, arguments, self.adapt)
        trainer.moves_runs_aside = True
        return trainer
