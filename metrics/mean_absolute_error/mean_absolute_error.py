"""MAE of classes as a local metric, on `sklearn.metrics.mean_absolute_error`; see the README."""

import inspect
from collections.abc import Sequence

import datasets
import evaluate
from sklearn.metrics import mean_absolute_error


class MeanAbsoluteError(evaluate.Metric):
    """Mean distance between predicted and true classes that have an order."""

    def _info(self) -> evaluate.MetricInfo:
        """Describe the inputs: two int64 class ids per example, shape `(n_examples,)` each."""
        return evaluate.MetricInfo(
            description="Mean distance of predicted and true classes in their order: 0 is best.",
            citation="Gaudette, Japkowicz (2009). Canadian Conference on AI, LNCS 5549, 207-210.",
            inputs_description=inspect.getdoc(self._compute) or "",
            features=datasets.Features(
                {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
            ),
            reference_urls=[
                "https://scikit-learn.org/stable/modules/generated/sklearn.metrics.mean_absolute_error.html"
            ],
        )

    def _compute(
        self,
        predictions: list[int],
        references: list[int],
        sample_weight: Sequence[float] | None = None,
    ) -> dict[str, float]:
        """Compute the mean distance between the predicted and the true classes.

        Args:
            predictions: Predicted class ids, shape `(n_examples,)`: their differences are the
                distances between classes.
            references: True class ids, shape `(n_examples,)`.
            sample_weight: Weight of each example, shape `(n_examples,)`.

        Returns:
            `{"mean_absolute_error": score}` with a float: 0 if all predictions are right, and at
            most one less than the number of classes. Lower is better.

        Raises:
            ValueError: If there are no examples, or the lengths differ.

        Examples:
            >>> metric = MeanAbsoluteError(keep_in_memory=True)  # or evaluate.load(path)
            >>> metric.compute(predictions=[0, 1, 4, 2], references=[0, 1, 1, 2])
            {'mean_absolute_error': 0.75}
        """
        if not references:
            raise ValueError("found empty lists of predictions and references")
        score = mean_absolute_error(references, predictions, sample_weight=sample_weight)
        return {"mean_absolute_error": float(score)}
