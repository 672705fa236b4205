"""The task: what follows from the kind of label that the rows of a data set have.

Its methods take and return arrays. What a model puts out for rows is called their ``outputs``:
logits or logarithms of probabilities, shape ``(rows, number of outputs)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
from scipy.special import expit

from finetune.data import labels as class_labels
from finetune.data.prediction_columns import LABEL, MOST_COLUMNS, probability_of
from finetune.errors import UserError, suggestion
from finetune.statistics import metrics
from finetune.statistics.baselines import Source
from finetune.statistics.metrics import Metrics, Scoring, Statistics, module_of
from finetune.statistics.scored import Kind, Scored
from finetune.tasks import losses

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from datasets import Dataset

    from finetune.errors import Report
    from finetune.models.pretrained import ProblemType
    from finetune.training.steps import GlobalLoss, RowLoss

S = TypeVar("S", bound=Scored)
Tell = Callable[[str], object]
Columns = dict[str, Any]  # by name, each an array or a list over the rows
_MOST_NAMED = 12  # labels or targets in the start block


@dataclass(frozen=True, kw_only=True)
class Task(ABC, Generic[S]):
    """What follows from the kind of the labels."""

    name: ClassVar[str]  # as ``run.json`` has it
    sections: ClassVar[Sequence[str]]  # of the report, in their order
    problem_type: ClassVar[ProblemType]  # in the configuration of a model
    label_kind: ClassVar[Kind]  # of the statistics
    metric_config: ClassVar[str | None] = None  # of the local metrics, where it is another one
    #: Those of a recipe that names none; the first chooses the best model unless it says which.
    metrics: ClassVar[Scoring] = {}
    metric_modules: ClassVar[Sequence[str]]  # the folders in ``metrics/`` for labels of this kind
    #: What ``--loss_function`` names: logits and targets to the loss of each row, ``(rows,)``; the
    #: first is the default, and what an evaluation has instead of ``focal``.
    losses: ClassVar[Mapping[str, RowLoss]]
    #: Whether a row has one class, which is predicted rightly or not: then labels can be smoothed,
    #: and a temperature can improve the probabilities.
    has_one_class: ClassVar[bool] = False
    has_probabilities: ClassVar[bool] = False  # for each label; these bear bf16

    #: The names of the classes, in the order of their numbers; of the numbers, where a row has
    #: several; none in a regression of one.
    labels: list[str] = field(default_factory=list)
    loss_function: str = ""  # one of the losses, or empty for the first

    def __post_init__(self) -> None:
        if self.loss_function and self.loss_function not in self.losses:
            raise UserError(
                f"--loss_function {self.loss_function}: a task of {self.name} has "
                f"{', '.join(self.losses)}{suggestion(self.loss_function, self.losses)}"
            )

    @property
    @abstractmethod
    def feature(self) -> Any:
        """The ``datasets`` feature of the column ``label``."""

    @property
    def facts(self) -> dict[str, Any]:
        """What it knows of the training rows beside :attr:`labels`; its arguments, in JSON."""
        return {}

    @property
    def width(self) -> int:
        """The outputs of the model for a row."""
        return max(1, len(self.labels))

    def match_labels(self, rows: Dataset, split: str, report: Report) -> Dataset:
        """Return raw rows of a split of other data with labels as the model has them.

        Raises:
            UserError: If there are labels that the model does not know; ``report`` gets them.
        """
        return class_labels.match_labels(rows, self.labels, split, report)

    @abstractmethod
    def targets(self, labels: Any) -> np.ndarray:
        """Return what a batch has as ``labels`` of the labels of raw rows: shape ``(rows,)`` of
        int64 for classes, else of float32, ``(rows,)`` or ``(rows, outputs)``.
        """

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of each row, shape ``(rows,)``; see ``Recipe.loss``."""
        return self.losses[self.loss_function or next(iter(self.losses))](logits, labels)

    def class_weights(self, text: str, targets: np.ndarray) -> np.ndarray:
        """Return :func:`~finetune.tasks.losses.class_weights` of the labels."""
        if not self.has_probabilities:
            raise UserError(f"--class_weights {text}: a task of {self.name} has no classes")
        return losses.class_weights(text, self.labels, targets)

    def global_loss(self, rows: RowLoss, weight_of_class: np.ndarray | None) -> GlobalLoss:
        """Return the loss of a step, of that of each row and the weights that
        :meth:`class_weights` returned; an evaluation weighs no rows.
        """
        from finetune.training.steps import GlobalLoss

        return GlobalLoss(
            next(iter(self.losses.values())) if self.loss_function == "focal" else rows,
            training_loss=rows,
            class_weights=() if weight_of_class is None else tuple(weight_of_class.tolist()),
        )

    def initialized(self, model: torch.nn.Module, note: Tell) -> torch.nn.Module:
        """Return a fresh ``model`` with a last layer that suits the labels, changed in place."""
        return model

    def scaled(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return ``model`` made ready for a training, changed in place; its outputs are as before.

        An evaluation does this to a model that is loaded, too.
        """
        return model

    def describe_balance(self, targets: np.ndarray) -> Sequence[str]:
        """Return a text about each label of the targets of training."""
        if targets.ndim == 1:
            shares = np.bincount(targets, minlength=len(self.labels)) / len(targets)
        else:
            shares = targets.mean(axis=0)
        return [f"{name} {share:.0%}" for name, share in zip(self.labels, shares, strict=True)]

    def balance(self, labels: Sequence[Any]) -> str:
        """Return what the start block says of the labels of training."""
        texts = self.describe_balance(self.targets(labels))
        listed = ", ".join(texts[:_MOST_NAMED]) + ", ..." * (len(texts) > _MOST_NAMED)
        return f"{len(texts)}: {listed}" if self.labels else listed

    def fit(self, outputs: np.ndarray, targets: np.ndarray) -> np.ndarray | None:
        """Return what is added to the outputs from now on, shape ``(outputs,)``, fitted on those of
        the validation rows and folded into the saved model; None if nothing is.
        """
        return None

    def without_thresholds(self) -> Task[S]:
        """Return the task of a model into which :meth:`fit` cannot be folded."""
        return self

    def thresholds_of(self, shift: np.ndarray) -> dict[str, float]:
        """Return the probabilities of which a shift of outputs makes one half, by label."""
        return dict(zip(self.labels, expit(-shift).tolist(), strict=True))

    @abstractmethod
    def decide(self, outputs: np.ndarray) -> np.ndarray:
        """Return what metrics take as ``predictions``: shape ``(rows,)`` or ``(rows, outputs)``."""

    @abstractmethod
    def example_outputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return outputs and targets of a few made-up rows, some of which are right: every label
        is there, and predicted, in some row and not in another.
        """

    @abstractmethod
    def scored(self, labels: np.ndarray, outputs: np.ndarray) -> S:
        """Return rows with what a model put out for them, as statistics take them."""

    @abstractmethod
    def scored_in(self, table: pd.DataFrame) -> S:
        """Return the same of the table that :meth:`columns` was written to, which has all of it."""

    @property
    def has_outputs_file(self) -> bool:
        """Whether a file beside that table keeps the outputs of all classes."""
        return self.has_one_class and len(self.labels) > MOST_COLUMNS

    @abstractmethod
    def columns(self, labels: np.ndarray, outputs: np.ndarray) -> Columns:
        """Return the columns of ``predictions.parquet`` from ``label`` on."""

    @abstractmethod
    def predicted(self, outputs: np.ndarray, temperature: float, *, all_labels: bool) -> Columns:
        """Return the columns of ``predict``, with or without the probability of every label."""

    def sentence(self, row: pd.Series[Any], most: int | None) -> str:
        """Return the prediction of one row, of the columns of :meth:`predicted`, as a line with
        ``most`` other labels.
        """
        probabilities = {label: row[probability_of(label)] for label in self.labels}
        texts = {label: f"{label} {value:.4f}" for label, value in probabilities.items()}
        labels = [row[LABEL]] if self.has_one_class else row[LABEL]
        predicted = ", ".join(texts.pop(label) for label in labels) or "none"
        rest = sorted(texts, key=lambda label: -probabilities[label])[:most]
        return predicted + (f"  ({', '.join(texts[label] for label in rest)})" if rest else "")

    def describe(self, row: pd.Series[Any], column: str) -> str:
        """Return the label or the prediction, by its column, of a row of the table as text."""
        return str(row[column])

    def refuse_metrics(self, scoring: Scoring) -> None:
        """Raise a ``UserError`` of the metrics of the toolkit that are of other kinds of labels."""
        names = ", ".join(self.metric_modules)
        modules = {name: module_of(name, arguments)[0] for name, arguments in scoring.items()}
        if mistakes := [
            f"--metrics {name}: a task of {self.name} has {names}"
            for name, module in modules.items()
            if module not in self.metric_modules and not module.endswith(".py")  # the user's own
        ]:
            raise UserError(*mistakes)

    def statistics(
        self, rows: S, recipe_metrics: Metrics, temperature: float | None = None
    ) -> Statistics:
        """Return the statistics of test rows, without the baselines and thresholds.

        Args:
            rows: Labels and outputs of the model.
            recipe_metrics: The metrics of the recipe.
            temperature: Fitted on the validation rows; None where there is none.
        """
        scores = metrics.estimate(rows, metrics.with_standard(self.label_kind, recipe_metrics))
        notes = metrics.describe_gaps(rows, recipe_metrics, scores)
        return Statistics(rows=len(rows), metrics=scores, notes=notes)

    def find_difference(self, other: Task[Any]) -> str:
        """Return why predictions of another task cannot be compared: the task, or the names of
        labels, of ordinal ones also their order; empty if they can.
        """
        if self.label_kind != other.label_kind:
            return f"different tasks: {self.name} and {other.name}"
        has_order = self.name == other.name == "ordinal"  # metrics count how far off a class is
        labels = [task.labels if has_order else sorted(task.labels) for task in (self, other)]
        texts = " and ".join(", ".join(task.labels) or "a single one" for task in (self, other))
        return "" if labels[0] == labels[1] else f"different labels, or another order: {texts}"

    @abstractmethod
    def baselines(self, source: Source) -> Iterator[tuple[str, np.ndarray]]:
        """Yield name and outputs, for the test rows, of what a model has to beat."""
