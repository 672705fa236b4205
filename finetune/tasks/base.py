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

from finetune.errors import UserError, suggestion
from finetune.statistics.baselines import Source
from finetune.statistics.estimates import McNemar
from finetune.statistics.metrics import METRICS, MODULE, Metrics, Scoring, find_metrics, module_of
from finetune.statistics.scored import Kind, Scored
from finetune.tasks import weights

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from datasets import Dataset, DatasetDict

    from finetune.errors import Report
    from finetune.models.pretrained import ProblemType
    from finetune.training.loss import GlobalLoss

S = TypeVar("S", bound=Scored)
Tell = Callable[[str], object]
RowLoss = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
#: Metrics that count how many classes a prediction is off.
OF_AN_ORDER = ("quadratic_kappa", "mean_absolute_error")
#: What ``--metrics`` knows of rows that have any number of labels, beside what others have.
OF_LABEL_SETS: Scoring = {
    "f1_samples": {MODULE: "f1", "average": "samples"},
    "subset_accuracy": {MODULE: "accuracy"},
}


@dataclass(frozen=True)
class Affine:
    """What is done to each output of a model: ``scale * output + shift``, shape ``(outputs,)``."""

    scale: np.ndarray
    shift: np.ndarray

    def __call__(self, outputs: np.ndarray) -> np.ndarray:
        """Return the outputs of rows, shape ``(rows, outputs)``, after it."""
        return np.asarray(outputs * self.scale + self.shift, dtype=outputs.dtype)


@dataclass(frozen=True, kw_only=True)
class Task(ABC, Generic[S]):
    """What follows from the kind of the labels.

    Attributes:
        name: Of the task, as ``run.json`` has it.
        problem_type: What it is called in the configuration of a model.
        label_kind: Of the statistics.
        metric_config: The configuration of the local metrics, where that is not the usual one.
        metrics: Those of a recipe that names none; one chooses the best model, the first unless
            the recipe says so.
        losses: What ``--loss_function`` names: logits and targets to the loss of each row, shape
            ``(rows,)``; the first is the usual one.
        unweighted: What an evaluation has instead of one of :attr:`losses` that weighs rows.
        sections: Of the report, in their order.
        smooths_labels: Whether ``--label_smoothing_factor`` has a meaning.
        weighs_in_loss: Whether class weights are arguments of the losses of the task, so that there
            are none for a loss of the recipe's own.
        has_one_class: Whether a row has one class, which is predicted rightly or not.
        has_probabilities: Whether a prediction has a probability for each label.
        calibrates: Whether a temperature can improve these.
        bears_bf16: Whether predictions in bf16 differ by less than anybody looks at.
        label_word: What a message calls :attr:`labels`.
        are_named: Whether labels have names that the data is matched by, or are numbers.
        labels: The names of the classes, in the order of their numbers; of the numbers, where a row
            has several; none in a regression of one.
        loss_function: One of :attr:`losses`, or empty for the first.
    """

    name: ClassVar[str]
    sections: ClassVar[Sequence[str]]
    problem_type: ClassVar[ProblemType]
    label_kind: ClassVar[Kind]
    metric_config: ClassVar[str | None] = None
    metrics: ClassVar[Scoring] = {}
    losses: ClassVar[Mapping[str, RowLoss]] = {}
    unweighted: ClassVar[Mapping[str, RowLoss]] = {}
    smooths_labels: ClassVar[bool] = False
    weighs_in_loss: ClassVar[bool] = False
    has_one_class: ClassVar[bool] = False
    has_probabilities: ClassVar[bool] = False
    calibrates: ClassVar[bool] = False
    bears_bf16: ClassVar[bool] = False
    label_word: ClassVar[str] = "labels"
    are_named: ClassVar[bool] = True

    labels: list[str] = field(default_factory=list)
    loss_function: str = ""

    def __post_init__(self) -> None:
        if self.loss_function and self.loss_function not in self.losses:
            raise UserError(
                f"--loss_function {self.loss_function}: a task of {self.name} has "
                f"{', '.join(self.losses)}{suggestion(self.loss_function, self.losses)}"
            )

    # ---- data and model --------------------------------------------------------------------------

    @property
    @abstractmethod
    def feature(self) -> Any:
        """The ``datasets`` feature of the column ``label``."""

    @property
    def pipeline_arguments(self) -> Mapping[str, Any]:
        """What ``pipeline()`` is given to return all that is predicted."""
        return {}

    @property
    def facts(self) -> dict[str, Any]:
        """What it knows of the training rows beside :attr:`labels`; its arguments, in JSON."""
        return {}

    @abstractmethod
    def match_labels(self, rows: Dataset, split: str, report: Report) -> Dataset:
        """Return raw rows of other data with labels as the model has them.

        Args:
            rows: With ``label``.
            split: The split of the source that the rows are in.
            report: Gets the labels that the model does not know; they are raised.
        """

    @property
    def width(self) -> int:
        """The outputs of the model for a row."""
        return max(1, len(self.labels))

    @abstractmethod
    def targets(self, labels: Any) -> np.ndarray:
        """Return what a batch has as ``labels`` of the labels of raw rows: shape ``(rows,)`` of
        int64 for classes, else of float32, ``(rows,)`` or ``(rows, outputs)``.
        """

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of each row, shape ``(rows,)``; see ``Recipe.loss``."""
        return self.losses[self.loss_function or next(iter(self.losses))](logits, labels)

    def evaluation_loss(self, rows: RowLoss) -> RowLoss:
        """Return the loss of each row in an evaluation, where a training has ``rows``."""
        return self.unweighted.get(self.loss_function, rows)

    def class_weights(self, text: str, targets: np.ndarray) -> np.ndarray | None:
        """Return how much each label counts in training, shape ``(labels,)``; None if all alike.

        Args:
            text: ``--class_weights``.
            targets: Of the training rows.

        Raises:
            UserError: what is wrong with ``text``.
        """
        if text == "none":
            return None
        raise UserError(f"--class_weights {text}: a task of {self.name} has no classes")

    def find_class_weights(self, text: str, targets: np.ndarray, note: Tell) -> np.ndarray | None:
        """Return :meth:`class_weights` of the targets of training, and tell of them."""
        if evaluated := self.unweighted.get(self.loss_function):
            name = evaluated.__name__.replace("_", " ")
            note(f"--loss_function {self.loss_function}: the evaluation loss is the {name}")
        class_weights = self.class_weights(text, targets)
        if class_weights is not None:
            note(weights.note(text, self.labels, class_weights))
        return class_weights

    def global_loss(self, rows: RowLoss, weights: np.ndarray | None) -> GlobalLoss:
        """Return the loss of a step.

        Args:
            rows: Logits and targets to the loss of each row.
            weights: What :meth:`class_weights` returned.
        """
        from finetune.training.loss import GlobalLoss

        return GlobalLoss(rows)

    def initialized(self, model: torch.nn.Module, note: Tell) -> torch.nn.Module:
        """Return a fresh ``model`` with a last layer that suits the labels, changed in place."""
        return model

    def scaled(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return ``model`` made ready for a training, changed in place; its outputs are as before.

        An evaluation does this to a model that is loaded, too.
        """
        return model

    @abstractmethod
    def balance(self, labels: Sequence[Any]) -> tuple[str, str]:
        """Return what the start block says of the labels of training: a name and a text."""

    def remarks(self, splits: DatasetDict) -> list[str]:
        """Return sentences about labels of the raw rows that a user must know of."""
        return []

    @abstractmethod
    def on_hub(self, *, is_text: bool) -> str:
        """Return the ``pipeline_tag`` of the Hub."""

    # ---- from outputs to predictions -------------------------------------------------------------

    def fit(self, outputs: np.ndarray, targets: np.ndarray) -> Affine | None:
        """Return what is done to the outputs from now on, fitted on those of the validation rows.

        It is folded into the last layer of the model before that is saved. None if nothing is.
        """
        return None

    def without_thresholds(self) -> Task[S]:
        """Return the task of a model into which :meth:`fit` cannot be folded."""
        return self

    def thresholds_of(self, after: Affine) -> dict[str, float] | None:
        """Return the probabilities above which labels were given before ``after``, by name; None
        where there are no such thresholds.
        """
        return None

    @abstractmethod
    def decide(self, outputs: np.ndarray) -> np.ndarray:
        """Return what metrics take as ``predictions``: shape ``(rows,)`` or ``(rows, outputs)``."""

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        """Return what metrics take as ``prediction_scores``, shape ``(rows, outputs)``.

        Raises:
            UserError: if there are no probabilities.
        """
        raise UserError(f"--metrics: a task of {self.name} has no probabilities")

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

    def compress_outputs(self, outputs: np.ndarray) -> np.ndarray | None:
        """Return the outputs as a file beside that table keeps them; None where it has all."""
        return None

    def needs_outputs(self, table: pd.DataFrame) -> bool:
        """Return whether :meth:`scored` needs what :meth:`compress_outputs` returned."""
        return False

    @abstractmethod
    def columns(self, labels: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
        """Return the columns of ``predictions.parquet`` from ``label`` on."""

    @abstractmethod
    def predicted_names(self, *, all_labels: bool) -> list[str]:
        """Return the names of the columns that ``predict`` adds.

        Args:
            all_labels: Whether to add the probability of every label.
        """

    @abstractmethod
    def predicted(self, outputs: np.ndarray, temperature: float, *, all_labels: bool) -> list[Any]:
        """Return the values of these columns, each an array or a list over the rows."""

    @abstractmethod
    def sentence(self, row: pd.Series[Any], most: int | None) -> str:
        """Return the prediction of one row as a line.

        Args:
            row: The columns of :meth:`predicted_names`, of every label where there are.
            most: How many labels it names at most.
        """

    def label_shown(self, label: Any) -> str:
        """Return a value of the column ``label`` as a page shows it."""
        return str(label)

    @abstractmethod
    def describe_row(self, row: pd.Series[Any]) -> tuple[str, float | None, bool]:
        """Return the prediction in a row of the table as a page shows it, its probability if there
        is one, and whether it is marked as right.
        """

    # ---- what predictions are worth --------------------------------------------------------------

    def refuse_metrics(self, scoring: Scoring) -> None:
        """Refuse metrics of the toolkit that are not of labels of this kind.

        Raises:
            UserError: for each of them.
        """
        modules = {name: module_of(name, arguments)[0] for name, arguments in scoring.items()}
        reasons = {name: self.unsuited(name, module) for name, module in modules.items()}
        if mistakes := [
            f"--metrics {name}: {reason}" for name, reason in reasons.items() if reason
        ]:
            raise UserError(*mistakes)

    def unsuited(self, name: str, module: str) -> str:
        """Return why a metric is not of labels of this kind, empty if it is: here, metrics of
        numbers would take those of the classes, and some need an order of them.

        Args:
            name: Of the metric.
            module: The folder in ``metrics/``, or the path of a module of one's own.
        """
        if module in OF_AN_ORDER:
            return "it needs one label a row, of classes in an order"
        is_of_numbers = ("numbers", module) in METRICS
        return "a metric of numbers, and the labels are classes" if is_of_numbers else ""

    def counted(self, scoring: Scoring) -> Metrics:
        """Return the metrics of a recipe that are in the table of metrics."""
        return find_metrics(self.label_kind, scoring)

    @abstractmethod
    def statistics(self, rows: S, metrics: Metrics, temperature: float | None) -> dict[str, Any]:
        """Return the fields of :class:`~finetune.training.manifest.Statistics` but ``beyond``.

        Args:
            rows: Of the test set.
            metrics: Of the recipe, see :meth:`counted`; its other metrics are not among them.
            temperature: That was fitted on validation rows; None without one.
        """

    def find_difference(self, other: Task[Any]) -> str:
        """Return what is different in another task, so that their predictions cannot be compared:
        tasks, or names of labels; empty if they can.
        """
        if not (isinstance(self, type(other)) or isinstance(other, type(self))):
            return f"different tasks: {self.name} and {other.name}"
        if sorted(self.labels) == sorted(other.labels):
            return ""
        names = (", ".join(task.labels) or "a single one" for task in (self, other))
        return f"different {self.label_word}: {' and '.join(names)}"

    def tests(self, rows: Sequence[S]) -> list[McNemar]:
        """Return a test of each but the first against the first, if there is one."""
        return []

    @abstractmethod
    def rank_disagreements(self, rows: Sequence[S]) -> np.ndarray:
        """Return the indices of rows that are predicted differently, the clearest first."""

    def temperature(self, outputs: np.ndarray, labels: np.ndarray) -> float | None:
        """Return the temperature that was fitted on validation rows; None without one."""
        return None

    @abstractmethod
    def baselines(self, source: Source) -> Iterator[tuple[str, np.ndarray]]:
        """Yield name and outputs, for the test rows, of what a model has to beat."""
