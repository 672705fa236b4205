"""The recipe: a dataclass whose fields are options and whose methods are the steps of a run.

Each option is a flag, a config key and a keyword argument. Each step can be replaced::

    load -> split -> prepare -> build_model, data_collator, loss, compute_metrics ->
    trainer_kwargs -> adapt -> trainer

Importing a recipe touches neither a device nor the network, and imports no torch.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

from finetune.errors import Report, UserError
from finetune.recipe.options import RENAMED_PARTS, RecipeOptions, declare, option, validate
from finetune.runtime import hub

if TYPE_CHECKING:
    import numpy as np
    import torch
    from datasets import DatasetDict
    from transformers import BaseImageProcessor, EvalPrediction, PreTrainedTokenizerBase

    from finetune.data.sources import Source
    from finetune.recipe.scoring import Scoring
    from finetune.tasks.base import Task
    from finetune.training.arguments import FinetuneArguments
    from finetune.training.trainer import Trainer


@dataclass_transform(kw_only_default=True, field_specifiers=(option,))
@dataclasses.dataclass(kw_only=True)
class Recipe(RecipeOptions):
    """The contract. Derive from it, name your options as annotated fields, and replace the steps.

    Attributes:
        training: Defaults for :class:`~finetune.training.arguments.FinetuneArguments`, by name;
            merged with those of the classes above, as ``embedded`` is.
        embedded: What ``--embedded`` changes, options of the recipe and training arguments alike.
        packaged_model: The value of ``--model`` that needs no Hub; empty if there is none.
        input_column: The column of the raw data that the model reads; duplicates are found by it.
        own_metrics: The names of what a custom :meth:`compute_metrics` returns.
        label_names: The names of the classes; a source that has these is brought into this order.
        ordered_labels: Whether that order means something: three of them or more are ordinal then.
    """

    training: ClassVar[Mapping[str, Any]] = {
        "weight_decay": 0.01,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "load_best_model_at_end": True,
        "metric_for_best_model": "f1",
        "save_total_limit": 3,
        "ddp_find_unused_parameters": False,  # every parameter has a part in every step
        "logging_nan_inf_filter": False,  # or the GPU is synchronized at each step
        "logging_steps": 10,
        "seed": 42,
    }
    embedded: ClassVar[Mapping[str, Any]] = {}
    packaged_model: ClassVar[str] = ""
    input_column: ClassVar[str] = "text"
    own_metrics: ClassVar[Sequence[str]] = ()
    label_names: ClassVar[Sequence[str]] = ()
    ordered_labels: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        declare(cls)

    def __post_init__(self) -> None:
        self.report = Report()  # the findings about options and data
        self.row_source: Source | None = None  # once it is read
        self.split_how = ""  # how rows were split off
        self.corrections: Sequence[dict[str, Any]] = ()  # what each file of corrections did
        self.task_reason = ""  # why the labels are those of the task, where the data decides it
        self.label_sources: Sequence[str] = ["label"]  # the user's names of the columns
        self.unmapped_labels: Sequence[str] = ()  # in --label_map, but not in the data
        validate(self)
        if self.loss_function and type(self).loss is not Recipe.loss:
            raise UserError(f"--loss_function {self.loss_function}: the recipe has its own loss")

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the training arguments of the recipe, and where runs go, named like its file."""
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)  # none in a notebook
        name = Path(file).stem if file else cls.__name__.lower()
        return {"output_dir": f"runs/{name}", **cls.training}

    def note(self, sentence: str) -> None:
        """Add a fact to the report, for the start block and ``run.json``."""
        self.report.info(sentence)

    @property
    def notes(self) -> list[str]:
        """The warnings and facts of the report, as text."""
        return self.report.sentences("warning", "info")

    # ---- the steps -------------------------------------------------------------------------------

    def load(self) -> DatasetDict:
        """Return the raw data: ``train``, and ``validation`` and ``test`` where the source has
        them, with the columns :attr:`input_column` and ``label``, a ``ClassLabel`` for instance.
        """
        return self.labelled(self.read())

    def labelled(self, dataset: DatasetDict) -> DatasetDict:
        """Return rows of a source with the columns that :meth:`load` returns; here they have."""
        return dataset

    def read(self) -> DatasetDict:
        """Return the rows of the source as they are, with the column ``_row``."""
        from finetune.data.files_of_splits import parse_split_names
        from finetune.data.read_text import ReadOptions
        from finetune.data.sources import Source

        form = {"separator": self.csv_separator, "encoding": self.encoding, "sheet": self.sheet}
        self.row_source = Source(
            self.dataset,
            self.dataset_revision,
            self.dataset_config,
            parse_split_names(self.dataset_splits),
            ReadOptions(quoting=self.csv_quoting, **form),
        )
        self.report.locate = self.row_source.locate
        return self.row_source.load(self.report)

    def check(self) -> None:
        """Raise a ``UserError`` if options cannot work with the model; no data is read yet."""

    def split(self, dataset: DatasetDict) -> DatasetDict:
        """Return ``train``, ``validation`` and ``test``, without duplicates, then sampled."""
        from finetune.data.splits import make_splits

        dataset, self.split_how = make_splits(
            dataset, self.split_plan(), column=self.input_column, report=self.report
        )
        return dataset

    def prepare(self, dataset: DatasetDict) -> DatasetDict:
        """Return the features that the model takes, tokenized for instance, not padded."""
        raise NotImplementedError(f"{type(self).__name__} must say how to prepare its data")

    def processing_class(self) -> PreTrainedTokenizerBase | BaseImageProcessor | None:
        """Return the tokenizer or image processor to be saved beside the model, if there is one."""
        return None

    def build_model(self, labels: Sequence[str]) -> torch.nn.Module:
        """Return a fresh model with one output for each of ``labels``; a regression has none.

        Its ``forward`` takes the collated batch and returns ``logits``, shape ``(rows, classes)``.
        """
        raise NotImplementedError(f"{type(self).__name__} must say how to build its model")

    def load_model(self, directory: str | Path, labels: Sequence[str]) -> torch.nn.Module:
        """Return the model saved in ``directory`` by a run."""
        from finetune.models.pretrained import load_weights

        return load_weights(self.build_model(labels), Path(directory) / "model.safetensors")

    def data_collator(self) -> Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]:
        """Return what makes a batch of rows, ``labels`` among its keys."""
        raise NotImplementedError(f"{type(self).__name__} must say how to collate its rows")

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return each row's loss, not reduced: the trainer divides by the rows of the global step.

        Args:
            logits: Shape ``(rows, outputs)``.
            labels: What :meth:`~finetune.tasks.base.Task.targets` returns, as a tensor: shape
                ``(rows,)``, int64, for classes.
        """
        return self.presumed_kind.loss(logits, labels)

    def compute_metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        """Return the metrics of :attr:`scoring`: of classes, accuracy and macro F1."""
        return self._scoring(prediction, self.presumed_kind)

    def adapt(self, model: torch.nn.Module, arguments: FinetuneArguments) -> torch.nn.Module:
        """Return ``model`` made ready for a training with ``arguments``, changed in place or not.

        Override it to freeze parameters, add adapters or replace layers, and end with
        ``super().adapt(model, arguments)``, which adds the kernels of :mod:`finetune.models.cpu`.
        :meth:`trainer` calls it, after the seed is set; :meth:`trainer_kwargs` does not. An
        evaluation of a run calls it with what :meth:`load_model` returned: a recipe that adds
        parameters here loads them there, and does not add them twice.
        """
        from finetune.models import cpu

        model = self.kind.scaled(model)
        is_on = arguments.cpu_kernels == "auto" and not arguments.torch_compile
        if arguments.device.type == "cpu" and is_on:
            recomputes = bool(arguments.activation_checkpointing)
            cpu.for_training(model, bf16=arguments.bf16, recomputes=recomputes)
        return model

    def trainer_kwargs(self, model: torch.nn.Module | None = None) -> dict[str, Any]:
        """Return the keyword arguments of ``transformers.Trainer``, but for ``args``.

        With weights of classes the library divides the loss by the rows of a step, our trainer by
        the sum of their weights, which are 1 on average.
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

    def parts(self, model: torch.nn.Module | None = None) -> dict[str, Any]:
        """Return :meth:`trainer_kwargs`, which had this name until release 0.2."""
        warnings.warn(RENAMED_PARTS, FutureWarning, stacklevel=2)
        return self.trainer_kwargs(model)

    def trainer(self, **training_arguments: Any) -> Trainer:
        """Return a ``transformers.Trainer``, ready to ``train()``; nothing is written before.

        Raises:
            UserError: If an argument is unknown, or if the data cannot be trained on.
        """
        from finetune.training.arguments import argument_values
        from finetune.training.steps import refuse_options
        from finetune.training.trainer import build_trainer

        argument_values(self.defaults(), training_arguments)  # mistakes, before data is loaded
        hub.require(vars(self), embedded=bool(self.embedded), packaged=self.packaged_model)
        _ = self.splits  # which may decide the task, and so what the best model is chosen by
        defaults = self.training_defaults(training_arguments)
        arguments = argument_values(defaults, training_arguments).build()
        refuse_options(arguments, self.kind.has_one_class, self.weights is not None)
        trainer = build_trainer(self.trainer_kwargs, arguments, self.adapt)
        trainer.moves_runs_aside = True
        return trainer

    # ---- rows ------------------------------------------------------------------------------------

    @functools.cached_property
    def source(self) -> DatasetDict:
        """The data as it was read, labelled, before any row is left out or split off."""
        from finetune.checking.rows import require_splits
        from finetune.data import columns, sources

        hub.require({**vars(self), "model": None}, embedded=bool(self.embedded))
        dataset = self.load()
        require_splits(dataset, "load")
        dataset = sources.number_rows(dataset)
        columns.require_labelled(dataset, self.input_column, self.report)
        columns.require_rows(dataset, self.label_sources, self.report)
        return dataset

    @functools.cached_property
    def splits(self) -> DatasetDict:
        """The raw splits, corrected and checked, with the rows in the order of the source."""
        from finetune.checking.rows import check_rows, require_splits
        from finetune.data import columns, corrections

        source = self.source
        columns.check_names(source, self.unmapped_labels, self.report)
        self.report.raise_errors()
        dataset = self.split(source)
        require_splits(dataset, "split", ("train", "validation", "test"))
        if any((files := self.correction_files()).values()):
            dataset, self.corrections = corrections.apply(
                dataset, source, self.input_column, files, self.report
            )
        columns.require_rows(dataset, self.label_sources, self.report, source)
        check_rows(source, dataset, self.columns_read(), self.report)
        return dataset

    @functools.cached_property
    def prepared(self) -> DatasetDict:
        """:attr:`splits`, prepared for the model."""
        from finetune.checking.rows import require_all_rows

        self.check()
        prepared = self.prepare(self.splits)
        require_all_rows(prepared, self.splits, self.targets)
        return prepared

    def columns_read(self) -> list[str]:
        """Return the columns of the data that the model reads, in their order."""
        return [self.input_column]

    # ---- labels and metrics ----------------------------------------------------------------------

    @functools.cached_property
    def kind(self) -> Task[Any]:
        """The task of the labels."""
        from finetune.tasks import kinds

        rows = self.splits["train"]
        task = getattr(self, "task", kinds.AUTO)
        is_in_order = self.ordered_labels and kinds.in_order(rows, self.label_names)
        return kinds.of_rows(
            rows,
            ordered=task == "ordinal" or (task == kinds.AUTO and is_in_order),
            loss_function=self.loss_function,
            thresholds=getattr(self, "thresholds", "none"),
            target_names=self.label_sources if len(self.label_sources) > 1 else (),
        )

    @property
    def presumed_kind(self) -> Task[Any]:
        """:attr:`kind`; before the data is loaded, one class a row."""
        from finetune.tasks.classes import SingleLabel

        return self.kind if "splits" in vars(self) else SingleLabel()

    @property
    def labels(self) -> list[str]:
        """The names of the classes in their order, or of the numbers of a row that has several."""
        return self.kind.labels

    def targets(self, split: str) -> np.ndarray:
        """Return the targets of the raw rows of a split: see :attr:`kind`."""
        from finetune.data import targets

        return self.kind.targets(targets.values(self.splits[split]))

    @functools.cached_property
    def weights(self) -> np.ndarray | None:
        """The weight of each class in the loss, shape ``(classes,)``; None if all are alike."""
        import numpy as np

        from finetune.data.labels import list_names

        if (text := self.class_weights) == "none":
            return None
        if self.kind.label_kind == "labels" and type(self).loss is not Recipe.loss:
            raise UserError(f"--class_weights {text}: weigh several labels a row in your loss()")
        targets = self.targets("train")
        if getattr(self, "windows", None) is not None:  # each window has the target of its text
            targets = np.asarray(self.prepared["train"].with_format("numpy")["labels"][:])
        weights = self.kind.class_weights(text, targets)
        pairs = [f"{n} {weight:.4g}" for n, weight in zip(self.labels, weights, strict=True)]
        self.note(f"class weights: {list_names(pairs)}; the evaluation loss is not weighted")
        return weights

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
        is_replaced = type(self).compute_metrics is not Recipe.compute_metrics
        return {} if is_replaced else dict(self._scoring.arguments)

    def training_defaults(self, user_options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return :meth:`defaults`, over which those of the user go, with the metric that chooses
        the best model: the first if the user names metrics, or if they lack that of the recipe.

        Before the data is loaded, which may decide the task, the metrics of the task are not known.
        """
        from finetune.recipe.scoring import require_direction

        defaults = self.defaults()
        scoring = self.known_scoring
        names = [*self.own_metrics]
        if self.metrics != type(self).metrics:
            defaults.pop("metric_for_best_model", None)
        if scoring and "splits" in vars(self):
            names = self._scoring.names(self.kind)
        if not names:
            return defaults
        if defaults.get("metric_for_best_model") not in (*names, "loss"):
            defaults["metric_for_best_model"] = names[0]
        merged = {**defaults, **(user_options or {})}
        metric = str(merged["metric_for_best_model"] or "loss").removeprefix("eval_")
        if metric not in ("loss", *names):
            raise UserError(f"--metric_for_best_model {metric}: expected loss, {', '.join(names)}")
        if scoring:
            require_direction(metric, merged.get("greater_is_better"))
        return defaults
