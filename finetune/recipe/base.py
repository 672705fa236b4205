"""The recipe: a dataclass whose fields are options and whose methods are the steps of a run.

Each option is a flag, a config key and a keyword argument. Each step can be replaced::

    load -> split -> prepare -> build_model, data_collator, loss, compute_metrics ->
    trainer_kwargs -> adapt -> trainer

Importing a recipe touches neither a device nor the network, and imports no torch.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform

from finetune.errors import Facts, Findings, UserError
from finetune.recipe.options import (
    RENAMED_PARTS,
    ImageOptions,
    RecipeOptions,
    declare,
    option,
    rule_options,
    validate,
)
from finetune.rules.check import check_task
from finetune.runtime import hub

if TYPE_CHECKING:
    import numpy as np
    import torch
    from datasets import Dataset, DatasetDict
    from transformers import (
        BaseImageProcessor,
        EvalPrediction,
        PretrainedConfig,
        PreTrainedTokenizerBase,
    )

    from finetune.recipe.scoring import Scoring
    from finetune.recipe.teacher import Teacher
    from finetune.tasks.base import Task
    from finetune.training.arguments import FinetuneArguments
    from finetune.training.trainer import Trainer


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The rows of a recipe, loaded, split and checked."""

    splits: DatasetDict  # the raw splits, with rows in the order of the source
    task: Task[Any]
    facts: Facts
    tested_in: str = "test"  # the split of the source that has the test rows
    validated_in: str = "validation"  # the one that has the validation rows


@dataclass_transform(kw_only_default=True, field_specifiers=(option,))
@dataclasses.dataclass(kw_only=True)
class Recipe(RecipeOptions):
    """Base class of recipes. A subclass adds options as annotated fields and overrides steps.

    Nothing is assigned to a recipe after it is made. Its properties compute their value from the
    options when they are first read; :meth:`with_values` returns a copy on other values.

    Attributes:
        training: Defaults of :class:`~finetune.training.arguments.FinetuneArguments` by name;
            merged with those of the base classes.
        embedded: Options and training arguments that ``--embedded`` changes; merged likewise.
        packaged_model: The value of ``--model`` that needs no Hub; empty if there is none.
        input_column: The column of the raw data that the model reads; it identifies duplicates.
        own_metrics: The names of the metrics that a custom :meth:`compute_metrics` returns.
        label_names: The class names in their order; data with these classes gets this order.
        ordered_labels: Whether the order is meaningful: three or more classes are then ordinal.
    """

    training: ClassVar[Mapping[str, Any]] = {
        "weight_decay": 0.01,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "load_best_model_at_end": True,
        "metric_for_best_model": "f1",
        "save_total_limit": 3,
        "ddp_find_unused_parameters": False,  # every step uses every parameter
        "logging_nan_inf_filter": False,  # True synchronizes the GPU at each step
        "logging_steps": 10,
        "log_level_replica": "passive",  # as it is, also on ranks other than 0
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
        self.report = Findings()  # the findings about options and data
        validate(self)

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the default training arguments; ``output_dir`` is named after the recipe file."""
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)  # none in a notebook
        name = Path(file).stem if file else cls.__name__.lower()
        return {"output_dir": f"runs/{name}", **cls.training}

    def with_values(self, **values: Any) -> Self:
        """Return a copy of the recipe whose properties have other ``values``, by name. It adds to
        the same report.
        """
        recipe = copy.copy(self)
        vars(recipe).update(values)  # where `functools.cached_property` looks for them
        return recipe

    def resolved_options(self) -> dict[str, Any]:
        """Return the options by name, with the values that follow from data and model."""
        options = {option.name: getattr(self, option.name) for option in dataclasses.fields(self)}
        if "head" in options:
            options["head"] = self.initial_head
        return options

    def note(self, sentence: str) -> None:
        """Add a fact to the report, for the start block and ``run.json``."""
        self.report.info(sentence)

    @property
    def notes(self) -> list[str]:
        """The warnings and facts of the report, as text."""
        return self.report.sentences("warning", "info")

    # ---- the steps -------------------------------------------------------------------------------

    def load(self) -> DatasetDict:
        """Return the raw data: ``train``, and ``validation`` and ``test`` if the source has them,
        with the columns :attr:`input_column` and ``label``, for example a ``ClassLabel``.
        """
        return self.labelled(self.read())

    def labelled(self, dataset: DatasetDict) -> DatasetDict:
        """Return rows of the source with the columns of :meth:`load`; by default unchanged."""
        return dataset

    def read(self) -> DatasetDict:
        """Return the unchanged rows of the source, with the column ``_row``."""
        from finetune.data.files_of_splits import parse_split_names
        from finetune.data.sources import Source

        source = Source(
            self.dataset,
            self.dataset_revision,
            self.dataset_config,
            parse_split_names(self.dataset_splits),
            self.read_options(),
        )
        self.report.find_places = source.find_places
        return source.load(self.report)

    @functools.cached_property
    def model_config(self) -> PretrainedConfig | None:
        """The configuration of the model, with ``--layers``; None if the recipe overrides
        ``build_model``.
        """
        from finetune.models import families, layers
        from finetune.models.pretrained import load_config

        if type(self).build_model.__module__ != "finetune.recipe.pretrained":
            return None
        recipe: Any = self
        reads_images = isinstance(self, ImageOptions)
        config = load_config(recipe.model, recipe.model_revision, reads_images=reads_images)
        if recipe.layers is None:
            return config
        model: Any = families.without_weights(config)
        cut: PretrainedConfig = layers.cut(model, recipe.layers).config
        return cut

    def check(self) -> None:
        """Raise a ``UserError`` if options do not fit the model; called before data is prepared."""

    def split(self, dataset: DatasetDict) -> DatasetDict:
        """Return ``train``, ``validation`` and ``test``, without duplicates, and sampled."""
        from finetune.data.splits import make_splits

        return make_splits(dataset, self.split_plan(), self.input_column, self.report)

    def prepare(self, dataset: DatasetDict) -> DatasetDict:
        """Return the splits with the features of the model, for example tokenized, not padded."""
        raise NotImplementedError(f"{type(self).__name__} must override prepare()")

    def processing_class(self) -> PreTrainedTokenizerBase | BaseImageProcessor | None:
        """Return the tokenizer or image processor that is saved with the model, if any."""
        return None

    def build_model(self, labels: Sequence[str]) -> torch.nn.Module:
        """Return a new model with one output for each of ``labels``; for a regression [].

        Its ``forward`` takes the collated batch and returns ``logits``, shape ``(rows, classes)``.
        """
        raise NotImplementedError(f"{type(self).__name__} must override build_model()")

    def load_model(self, directory: str | Path, labels: Sequence[str]) -> torch.nn.Module:
        """Return the model that a run saved in ``directory``."""
        from finetune.models.pretrained import load_weights

        return load_weights(self.build_model(labels), Path(directory) / "model.safetensors")

    def data_collator(self) -> Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]:
        """Return the collator: a function from rows to a batch with ``labels`` among its keys."""
        raise NotImplementedError(f"{type(self).__name__} must override data_collator()")

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of each row, unreduced: the trainer divides by the rows of a global step.

        Args:
            logits: Shape ``(rows, outputs)``.
            labels: The targets, see :meth:`~finetune.tasks.base.Task.targets`; for classes int64,
                shape ``(rows,)``.
        """
        return self.resolved_task.loss(logits, labels)

    def compute_metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        """Return the metrics of ``--metrics`` or :attr:`scoring`, e.g. accuracy and macro F1."""
        return self._scoring(prediction, self.resolved_task)

    def adapt(self, model: torch.nn.Module, arguments: FinetuneArguments) -> torch.nn.Module:
        """Return the model prepared for a training with ``arguments``; it may change in place.

        Override it to freeze parameters, add adapters or replace layers, and end with
        ``super().adapt(model, arguments)``, which adds the kernels of :mod:`finetune.models.cpu`,
        and then ``--adapter`` or ``--freeze``.
        :meth:`trainer` calls it after the seed is set; :meth:`trainer_kwargs` does not call it. An
        evaluation calls it with the result of :meth:`load_model`: if it adds parameters,
        :meth:`load_model` must load them, and they must not be added twice.
        """
        from finetune.models import cpu
        from finetune.models.adapters import freeze_or_add_adapter
        from finetune.recipe.options import ModelOptions
        from finetune.rules.devices import recomputes

        model = self.resolved_task.scaled(model)
        is_on = arguments.cpu_kernels == "auto" and not arguments.torch_compile
        if arguments.device.type == "cpu" and is_on:
            cpu.for_training(model, bf16=arguments.bf16, recomputes=recomputes(arguments))
        if isinstance(self, ModelOptions):
            return freeze_or_add_adapter(model, vars(self))
        return model

    def trainer_kwargs(
        self,
        model: torch.nn.Module | None = None,
        arguments: FinetuneArguments | None = None,
    ) -> dict[str, Any]:
        """Return the keyword arguments of ``transformers.Trainer``, except ``args``.

        Args:
            model: The model to train; None for a new one.
            arguments: Those of the training; None for one on the default device.

        With class weights, the stock ``Trainer`` divides the loss by the rows of a step; the one of
        :meth:`trainer` divides by the sum of their weights, which is 1 per row on average.
        """
        from finetune.models import pretrained
        from finetune.recipe import probe, teacher

        loss = self.resolved_task.global_loss(self.loss, self.weights)
        if model is None:
            model = self.resolved_task.initialized(self.new_model(), self.note)
            probe.start_head(self, model, arguments)
        pretrained.save_own_names(model)
        return {
            "model": model,
            "train_dataset": self.training_rows,
            "eval_dataset": self.prepared["validation"],
            "data_collator": self.data_collator(),
            "processing_class": self.processing_class(),
            "compute_metrics": self.compute_metrics,
            "compute_loss_func": dataclasses.replace(loss, layout=teacher.label_layout(self)),
        }

    def new_model(self) -> torch.nn.Module:
        """Return :meth:`build_model` for the labels of the data, with one more layer if a new head
        reads the mean, and note what was not loaded.
        """
        from transformers import PreTrainedModel

        from finetune.models import loaded_weights, mean_layer

        if (model := self.build_model(self.labels)) is None:
            raise UserError("build_model() returned None: return the model")
        if self.initial_head == "mean":
            model = mean_layer.append(model)
        if isinstance(model, PreTrainedModel):
            model.config.problem_type = self.resolved_task.problem_type
        for sentence in loaded_weights.get(model).notes():
            self.note(sentence)
        return model

    def parts(self, model: torch.nn.Module | None = None) -> dict[str, Any]:
        """Return :meth:`trainer_kwargs`; a deprecated name, to be removed in release 0.2."""
        warnings.warn(RENAMED_PARTS, FutureWarning, stacklevel=2)
        return self.trainer_kwargs(model)

    def trainer(self, **training_arguments: Any) -> Trainer:
        """Return a ``transformers.Trainer`` that is ready to ``train()``; no files are written.

        Raises:
            UserError: If an argument is unknown, or if the data has errors.
        """
        from finetune.training.arguments import argument_values
        from finetune.training.trainer import build_trainer

        defaults = self.training_defaults(training_arguments, is_loaded=False)
        argument_values(defaults, training_arguments)  # check before data is loaded
        if training_arguments.get("resume"):
            raise UserError("resume=True: of a trainer it is resume_from_checkpoint='last'")
        for name in ("final_epochs", "refit"):
            if training_arguments.get(name):
                raise UserError(f"{name}: a trainer does not have it, finetune.train has")
        hub.require(vars(self), self)
        values = argument_values(
            self.training_defaults(training_arguments, is_loaded=True), training_arguments
        )
        check_task(rule_options(self).beside(values, training_arguments), self.resolved_task)
        trainer = build_trainer(self, values.build())
        trainer.moves_runs_aside = True
        return trainer

    # ---- rows ------------------------------------------------------------------------------------

    @functools.cached_property
    def source(self) -> DatasetDict:
        """The data of :meth:`load`, before it is split and before duplicates are dropped."""
        from finetune.checking.rows import require_splits
        from finetune.data import columns, sources

        hub.require({**vars(self), "model": None}, self)
        dataset = self.load()
        require_splits(dataset, "load")
        dataset = sources.number_rows(dataset)
        columns.require_labelled(dataset, self.input_column, self.report)
        columns.require_rows(dataset, self.report)
        return dataset

    @functools.cached_property
    def loaded(self) -> Loaded:
        """The rows of :attr:`source`, split, corrected and checked, and their task."""
        from finetune.checking import corrections
        from finetune.checking.rows import check_rows, require_splits
        from finetune.data import columns
        from finetune.tasks import detection

        source = self.source
        facts = self.report.facts
        columns.check_names(source, self.report)
        columns.check_label_counts(source, self.report)
        columns.check_numbers(source, self.report)
        self.report.raise_errors()
        splits = self.split(source)
        require_splits(splits, "split", ("train", "validation", "test"))
        if any((files := self.correction_files()).values()):
            splits = corrections.apply(splits, source, self.input_column, files, self.report)
        columns.require_rows(splits, self.report, source)
        check_rows(source, splits, self.columns_read(), self.report)
        task = detection.of_rows(
            splits["train"],
            ordered=self.is_ordinal(splits["train"]),
            loss_function=self.loss_function,
            thresholds=getattr(self, "thresholds", "none"),
            target_names=facts.label_columns if len(facts.label_columns) > 1 else (),
            positive_label=self.positive_label,
        )
        check_task(rule_options(self), task)
        origins = {name: name if name in source else "train" for name in ("test", "validation")}
        return Loaded(splits, task, copy.copy(facts), origins["test"], origins["validation"])

    @property
    def splits(self) -> DatasetDict:
        """The raw splits, with rows in the order of the source."""
        return self.loaded.splits

    @functools.cached_property
    def prepared(self) -> DatasetDict:
        """The :attr:`splits` with the features of the model, see :meth:`prepare`."""
        from finetune.checking.rows import require_all_rows

        self.check()
        prepared = self.prepare(self.splits)
        require_all_rows(prepared, self.splits, self.targets)
        return prepared

    @functools.cached_property
    def training_rows(self) -> Dataset:
        """The training rows of :attr:`prepared`. With a teacher or soft labels, their ``labels``
        have a :class:`~finetune.training.steps.LabelLayout`, and unlabelled rows follow.
        """
        from finetune.recipe import teacher

        return teacher.training_rows(self)

    @functools.cached_property
    def unlabelled_rows(self) -> Dataset | None:
        """The raw rows of ``--unlabelled`` that are in no split; None without the option."""
        from finetune.recipe import teacher

        return teacher.unlabelled_rows(self)

    @functools.cached_property
    def soft_labels(self) -> np.ndarray | None:
        """The probabilities of ``--label_probabilities`` of the training rows, shape ``(rows,
        classes)``; None without the option.
        """
        from finetune.recipe import teacher

        return teacher.soft_labels(self)

    @functools.cached_property
    def teachers(self) -> list[Teacher]:
        """The models of ``--teacher``, which are not loaded."""
        from finetune.recipe import teacher

        return teacher.open_teachers(self)

    @functools.cached_property
    def initial_head(self) -> str:
        """The start of a new last layer: ``probe``, ``mean`` or ``random``, which follows from
        ``--head``, the rows and the model.
        """
        from finetune.recipe.defaults import choose_head

        return choose_head(self)

    @property
    def token_columns(self) -> Sequence[str]:
        """The columns that may have the words of rows to predict."""
        return ()

    def columns_read(self) -> list[str]:
        """Return the user's names of the columns that the model reads, in order."""
        return [self.input_column]

    # ---- labels and metrics ----------------------------------------------------------------------

    @functools.cached_property
    def resolved_task(self) -> Task[Any]:
        """The task, which follows from the labels and the options; of a run, that of its model."""
        return self.loaded.task

    def is_ordinal(self, rows: Dataset) -> bool:
        """Return whether the task of labelled rows is ordinal, if they have one class each."""
        from finetune.tasks import detection

        task = getattr(self, "task", detection.AUTO)
        if task != detection.AUTO or getattr(self, "label_order", None):
            return task in ("ordinal", detection.AUTO)
        return self.ordered_labels and detection.in_order(rows, self.label_names)

    @property
    def labels(self) -> list[str]:
        """The class names in the order of their ids, or the names of several regression targets."""
        return self.resolved_task.labels

    def targets(self, split: str) -> np.ndarray:
        """Return the targets of the raw rows of a split, see ``Task.targets``."""
        from finetune.data import targets

        return self.resolved_task.targets(targets.values(self.splits[split]))

    @functools.cached_property
    def weights(self) -> np.ndarray | None:
        """The weight of each class in the loss, shape ``(classes,)``; None without weights."""
        import numpy as np

        from finetune.data.labels import list_names
        from finetune.tasks.losses import class_weights

        if (text := self.class_weights) == "none":
            return None
        targets = self.targets("train")
        has_windows = getattr(self, "windows", None) is not None
        if has_windows and not self.labels_words:  # each window has the target of its text
            targets = np.asarray(self.prepared["train"].with_format("numpy")["labels"][:])
        weights = class_weights(text, self.labels, targets)
        pairs = [f"{n} {weight:.4g}" for n, weight in zip(self.labels, weights, strict=True)]
        self.note(f"class weights: {list_names(pairs)}; the evaluation loss is not weighted")
        return weights

    @property
    def scoring(self) -> Scoring:
        """The metrics that :meth:`compute_metrics` returns unless ``--metrics`` names others."""
        from finetune.recipe.scoring import Scoring

        return Scoring(**self.resolved_task.metrics)

    @property
    def _scoring(self) -> Scoring:
        from finetune.recipe.scoring import Scoring

        if self.metrics:
            return Scoring.from_names(self.metrics)
        return self.scoring

    @property
    def metric_arguments(self) -> dict[str, Mapping[str, Any]]:
        """The arguments of each metric module; {} if :meth:`compute_metrics` is overridden."""
        is_replaced = type(self).compute_metrics is not Recipe.compute_metrics
        return {} if is_replaced else dict(self._scoring.arguments)

    def training_defaults(
        self, user_options: Mapping[str, Any], *, is_loaded: bool
    ) -> dict[str, Any]:
        """Return :meth:`defaults` with a ``metric_for_best_model`` that is computed: the recipe's,
        or the first metric if ``--metrics`` is set or lacks the recipe's.

        Args:
            user_options: The training arguments of the user, which are only checked.
            is_loaded: Whether to use the rows, which decide the task and so the metrics.
        """
        from finetune.recipe.defaults import may_shrink_batch, with_schedule
        from finetune.recipe.scoring import require_direction

        defaults = self.defaults()
        scoring = {}  # before the rows are loaded, only that of the user is known
        if is_loaded or self.metrics:
            scoring = self.metric_arguments
        names = list(self.own_metrics)
        if self.metrics != type(self).metrics:
            defaults.pop("metric_for_best_model", None)
        if scoring and is_loaded:
            names = self._scoring.names(self.resolved_task)
        if names:
            if defaults.get("metric_for_best_model") not in (*names, "loss"):
                defaults["metric_for_best_model"] = names[0]
            merged = {**defaults, **user_options}
            metric = str(merged["metric_for_best_model"] or "loss").removeprefix("eval_")
            if metric not in ("loss", *names):
                raise UserError(
                    f"--metric_for_best_model {metric}: expected loss, {', '.join(names)}"
                )
            if scoring:
                require_direction(metric, merged.get("greater_is_better"))
        if is_loaded:
            return with_schedule(self, defaults, user_options)
        if may_shrink_batch(self, user_options):
            defaults.pop("global_batch_size", None)
        return defaults
