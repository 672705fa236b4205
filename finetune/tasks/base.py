"""The base class of tasks: everything that depends on the kind of label of a data set.

The methods take and return arrays. ``outputs`` are what a model or a baseline returns for rows:
logits, logarithms of probabilities or predicted numbers, shape ``(rows, outputs)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
import pyarrow as pa

from finetune.data import labels as class_labels
from finetune.data import targets
from finetune.data.prediction_columns import LABEL, MAX_PROBABILITY_COLUMNS, probability_of
from finetune.errors import UserError, list_first, suggestion
from finetune.statistics import baselines, linear, metrics
from finetune.statistics.baselines import BaselineData, Baselines
from finetune.statistics.functions import MODULES
from finetune.statistics.linear import Linear
from finetune.statistics.metrics import MetricArguments, NamedMetrics, module_of
from finetune.statistics.results import Statistics
from finetune.statistics.scored import Kind, Scored, distances
from finetune.tasks import decoding, losses

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from datasets import Dataset

    from finetune.errors import Findings
    from finetune.models.pretrained import ProblemType
    from finetune.training.steps import GlobalLoss, RowLoss

S = TypeVar("S", bound=Scored)
Tell = Callable[[str], object]
Columns = dict[str, Any]  # column name -> array or list with a value for each row
#: Names of a class, in lower case, that is the positive one of two.
_POSITIVE = ("1", "+1", "pos", "positive", "spam", "true", "yes")
_MAX_LISTED = 12  # the most labels or targets that the start block lists


@dataclass(frozen=True, kw_only=True)
class Task(ABC, Generic[S]):
    """How one kind of label is trained, predicted and scored."""

    name: ClassVar[str]  # the ``task`` in ``run.json``
    sections: ClassVar[Sequence[str]]  # the sections of the report, in order
    problem_type: ClassVar[ProblemType | None]  # in the configuration of the model
    label_kind: ClassVar[Kind]  # how the statistics treat the labels
    metric_config: ClassVar[str | None] = None  # the ``config_name`` of local metrics, if any
    #: The default metrics; the first one is the default of ``--metric_for_best_model``.
    metrics: ClassVar[MetricArguments] = {}
    #: The choices of ``--loss_function``: functions of logits and targets that return the loss of
    #: each row, ``(rows,)``. The first is the default, and replaces ``focal`` in an evaluation.
    losses: ClassVar[Mapping[str, RowLoss]]
    #: Whether each row has exactly one class. Only then do label smoothing and a temperature apply.
    has_one_class: ClassVar[bool] = False
    #: Fits the linear model of :meth:`fit_linear`.
    linear_fit: ClassVar[Callable[..., Linear]] = linear.fit_classes
    has_probabilities: ClassVar[bool] = False  # for each label; then bf16 is precise enough
    function: ClassVar[decoding.Function] = None  # turns outputs into probabilities
    #: The Arrow type of the first of the columns of :meth:`predicted`, if it has no numbers.
    predicted_type: ClassVar[pa.DataType] = pa.list_(pa.string())
    labels_words: ClassVar[bool] = False  # then targets and outputs are those of words

    #: The names of the classes by class id, or of the targets of a regression with several targets;
    #: empty for a regression with one target.
    labels: list[str] = field(default_factory=list)
    loss_function: str = ""  # a key of ``losses``; empty for the first
    thresholds: str = "none"  # that :meth:`fit` fits
    positive_label: str | None = None  # of two classes; None: by their names, else the second

    def __post_init__(self) -> None:
        if self.loss_function and self.loss_function not in self.losses:
            raise UserError(
                f"--loss_function {self.loss_function}: the task {self.name} expects one of "
                f"{', '.join(self.losses)}{suggestion(self.loss_function, self.losses)}"
            )

    @property
    @abstractmethod
    def feature(self) -> Any:
        """The ``datasets`` feature of the column ``label``."""

    @property
    def facts(self) -> dict[str, Any]:
        """The JSON arguments that, with :attr:`labels`, create the task of a run again."""
        return {}

    @property
    def positive_name(self) -> str | None:
        """The positive class of two classes, which binary scores and curves are of."""
        if not self.has_one_class or len(self.labels) != 2:
            return None
        named = [label for label in self.labels if label.lower() in _POSITIVE]
        default = named[0] if len(named) == 1 else self.labels[1]
        return self.positive_label or default

    @property
    def width(self) -> int:
        """The number of outputs of the model for a row."""
        return max(1, len(self.labels))

    def match_labels(self, rows: Dataset, split: str, report: Findings) -> Dataset:
        """Return raw rows of other data with the class ids of the model, matched by label name.

        Raises:
            UserError: If the model does not have some of the labels; they are added to ``report``.
        """
        if not targets.are_classes(rows):
            raise UserError("the labels of the data are numbers, but the model predicts classes")
        fix = "--label_map OLD=NEW renames labels"
        numbers = class_labels.match_names(rows, self.labels, split, report, fix)
        labels: list[Any] = []
        for label in targets.values(rows):
            if self.has_one_class:
                labels.append(numbers[label])
            else:
                labels.append(sorted(map(numbers.__getitem__, label)))
        return rows.remove_columns("label").add_column("label", labels, feature=self.feature)

    @abstractmethod
    def targets(self, labels: Any) -> np.ndarray:
        """Return the labels of raw rows as the ``labels`` of a batch: int64 class ids, ``(rows,)``,
        or float32, ``(rows,)`` or ``(rows, outputs)``.
        """

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of each row, shape ``(rows,)``, not reduced; see ``Recipe.loss``."""
        return self.losses[self.loss_function or next(iter(self.losses))](logits, labels)

    def places(self, targets: np.ndarray) -> Sequence[np.ndarray]:
        """Return the places of each row in arrays of targets and outputs."""
        return list(np.arange(len(targets))[:, None])

    def answers(self, logits: np.ndarray, temperature: float) -> np.ndarray:
        """Return what a student learns from the logits of a teacher: probabilities of the logits
        divided by a temperature, or numbers, float64, shape ``(rows, outputs)``.
        """
        if self.function is not None:
            logits = logits / temperature
        return decoding.probabilities(logits, self.function)

    def divergence(
        self, logits: torch.Tensor, answers: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """Return how much each row differs from :meth:`answers`, shape ``(rows,)``."""
        divergence = losses.divergence if self.has_one_class else losses.binary_divergence
        return divergence(logits, answers, temperature)

    def global_loss(self, row_loss: RowLoss, class_weights: np.ndarray | None) -> GlobalLoss:
        """Return the loss of a global step, from the loss of each row and the result of
        :func:`~finetune.tasks.losses.class_weights`. The evaluation loss is not weighted.
        """
        from finetune.training.steps import GlobalLoss

        evaluation_loss = row_loss
        if self.loss_function == "focal":
            evaluation_loss = next(iter(self.losses.values()))
        weights = () if class_weights is None else tuple(class_weights.tolist())
        return GlobalLoss(evaluation_loss, training_loss=row_loss, class_weights=weights)

    def initialized(self, model: torch.nn.Module, note: Tell) -> torch.nn.Module:
        """Initialize a new last layer of ``model`` for the labels in place; return the model."""
        return model

    @property
    def linear_model(self) -> str:
        """The name of the model that :meth:`fit_linear` fits; empty if there is none."""
        if self.width > baselines.MAX_CLASSES_OF_REGRESSION:
            return "ridge regression"
        return "logistic regression"

    def fit_linear(
        self,
        features: np.ndarray,
        targets: np.ndarray,
        class_weights: np.ndarray | None,
        *,
        has_bias: bool,
    ) -> Linear:
        """Return a linear model of features whose outputs are those of the task.

        Args:
            features: Shape ``(rows, features)``.
            targets: See :meth:`targets`.
            class_weights: The result of :func:`~finetune.tasks.losses.class_weights`, if any.
            has_bias: Whether the outputs may have a bias.
        """
        return type(self).linear_fit(
            features, targets, self.width, class_weights, has_bias=has_bias
        )

    def scaled(self, model: torch.nn.Module) -> torch.nn.Module:
        """Prepare ``model`` for training in place, without changing its outputs, and return it.

        An evaluation calls this too, after it has loaded the model.
        """
        return model

    def describe_balance(self, targets: np.ndarray) -> Sequence[str]:
        """Return one text for each label about its training targets, e.g. ``positive 40%``."""
        if targets.ndim == 1:
            shares = np.bincount(targets, minlength=len(self.labels)) / len(targets)
        else:
            shares = targets.mean(axis=0)
        return [f"{name} {share:.0%}" for name, share in zip(self.labels, shares, strict=True)]

    def balance(self, labels: Sequence[Any]) -> str:
        """Return the line of the start block about the labels of the training rows."""
        texts = self.describe_balance(self.targets(labels))
        listed = list_first(texts, _MAX_LISTED)
        if self.positive_name:
            listed += f"; positive: {self.positive_name} (--positive_label)"
        return f"{len(texts)}: {listed}" if self.labels else listed

    def fit(self, outputs: np.ndarray, targets: np.ndarray) -> np.ndarray | None:
        """Return the shift to add to the outputs, shape ``(outputs,)``, fitted on validation rows
        and folded into the saved model; None if the task needs none.
        """
        return None

    def shifted(self, outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the outputs with the shift that :meth:`fit` fits on them."""
        shift = self.fit(outputs, targets)
        if shift is not None:
            outputs = (outputs + shift).astype(outputs.dtype)
        return outputs

    def decide(self, outputs: np.ndarray) -> np.ndarray:
        """Return the ``predictions`` for metrics, shape ``(rows,)`` or ``(rows, outputs)``; by
        default the most probable class.
        """
        return np.asarray(np.argmax(outputs, axis=-1))

    def example_outputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return outputs and targets of a few made-up rows, some of them predicted correctly. For
        each label some rows have it and some do not, in the targets and in the predictions.
        """
        classes = np.arange(len(self.labels))
        predicted = np.concatenate([classes, np.roll(classes, 1)])  # correct, then wrong
        return 4 * np.eye(len(classes), dtype=np.float32)[predicted], np.tile(classes, 2)

    @abstractmethod
    def scored(self, labels: np.ndarray, outputs: np.ndarray) -> S:
        """Return labels and outputs of rows as the type that the statistics take."""

    def agreement(
        self, labels: np.ndarray, first: np.ndarray, second: np.ndarray
    ) -> dict[str, Any]:
        """Return how far the answers of two models agree on the same rows.

        Returns:
            ``rows``; ``changed``, the rows with another decision, of numbers those that move by
            more than 5% of the standard deviation of the labels; ``largest_difference`` of a
            probability, or of a number in standard deviations. It is NaN if an answer is not
            finite.
        """
        rows = self.scored(labels, first)
        changes = gaps = distances(rows, self.scored(labels, second))
        limit = 0.05
        if self.label_kind != "numbers":
            gaps = np.abs(self.answers(first, 1.0) - self.answers(second, 1.0))
            limit = 0.0
        changed = int(np.count_nonzero(~(changes <= limit)))
        return {"rows": len(rows), "changed": changed, "largest_difference": float(gaps.max())}

    @abstractmethod
    def scored_in(self, table: pd.DataFrame) -> S:
        """Return the same as :meth:`scored`, read from a table with the :meth:`columns`."""

    @property
    def has_outputs_file(self) -> bool:
        """Whether the outputs go to a separate file: too many classes for a column each."""
        return self.has_one_class and len(self.labels) > MAX_PROBABILITY_COLUMNS

    @abstractmethod
    def columns(self, labels: Any, outputs: np.ndarray) -> Columns:
        """Return the columns of ``predictions.parquet`` that the toolkit adds, ``label`` first.

        Args:
            labels: The labels of raw rows.
            outputs: Those of the model.
        """

    def seen_columns(self, train: Dataset, test: Dataset) -> Columns:
        """Return more columns of ``predictions.parquet``: what of raw test rows the training rows
        have, too.
        """
        return {}

    def predicted(
        self, outputs: np.ndarray, values: Sequence[Any], temperature: float, *, all_labels: bool
    ) -> Columns:
        """Return the columns that ``predict`` adds, by name, see :func:`decoding.predicted`.

        Args:
            outputs: Those of the model for ``values``.
            values: What the model reads of each row; None where it is missing.
            temperature: Divides the logits of a softmax.
            all_labels: Whether to add the probability of every label.
        """
        return decoding.predicted(
            outputs, self.labels, self.function, temperature, all_labels=all_labels
        )

    def sentence(self, row: pd.Series[Any], most: int | None) -> str:
        """Return one line about a row with the columns that ``predict`` adds: the prediction, then
        at most ``most`` of the other labels.
        """
        probabilities = {label: row[probability_of(label)] for label in self.labels}
        texts = {label: f"{label} {value:.4f}" for label, value in probabilities.items()}
        labels = [row[LABEL]] if self.has_one_class else row[LABEL]
        predicted = ", ".join(map(texts.pop, labels)) or "none"
        rest = sorted(texts, key=lambda label: -probabilities[label])[:most]
        if rest:
            predicted += f"  ({', '.join(texts[label] for label in rest)})"
        return predicted

    def describe(self, row: pd.Series[Any], column: str) -> str:
        """Return the label or the prediction of a row as text; ``column`` says which."""
        return str(row[column])

    def refuse_metrics(self, scoring: MetricArguments) -> None:
        """Raise a ``UserError`` that lists local metrics for another kind of label."""
        modules = MODULES[self.name]
        mistakes = []
        for name, arguments in scoring.items():
            module, _ = module_of(name, arguments)
            if module not in modules and not module.endswith(".py"):  # a custom metric
                expected = ", ".join(modules)
                mistakes.append(f"--metrics {name}: the task {self.name} expects {expected}")
        if mistakes:
            raise UserError(*mistakes)

    def statistics(self, rows: S, recipe_metrics: NamedMetrics) -> Statistics:
        """Return the statistics of test rows, without the baselines and thresholds.

        Args:
            rows: Labels and outputs of the model.
            recipe_metrics: The metrics of the recipe.
        """
        named: Any = rows
        facts: dict[str, Any] = {}
        if self.label_kind != "numbers":
            facts["classes"] = metrics.describe_classes(named)
        is_small = self.labels_words or len(named.names) <= metrics.MAX_CLASSES_OF_CONFUSION
        if self.function == "softmax" and is_small:
            facts["confusion"] = named.confusion.tolist()
        scores = metrics.estimate(rows, metrics.with_standard(rows, recipe_metrics))
        notes = metrics.describe_gaps(rows, recipe_metrics, scores)
        return Statistics(rows=len(rows), metrics=scores, notes=notes, **facts)

    def find_difference(self, other: Task[Any]) -> str:
        """Return why the predictions of two tasks cannot be compared, or an empty text if they can.

        The kinds of label and the label names must match, for ordinal tasks also their order.
        """
        if self.label_kind != other.label_kind:
            return f"different tasks: {self.name} and {other.name}"
        has_order = self.name == other.name == "ordinal"  # its metrics use the order
        labels = [task.labels if has_order else sorted(task.labels) for task in (self, other)]
        texts = " and ".join(", ".join(task.labels) or "one number" for task in (self, other))
        if labels[0] == labels[1]:
            return ""
        return f"different labels or another order: {texts}"

    @abstractmethod
    def baselines(self, data: BaselineData) -> Baselines:
        """Yield the name of each baseline and its outputs for the test rows."""
