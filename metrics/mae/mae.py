"""MAE as a local `evaluate` metric, on `sklearn.metrics.mean_absolute_error`; see the README."""

import inspect
from collections.abc import Sequence

import datasets
import evaluate
from sklearn.metrics import mean_absolute_error


class MAE(evaluate.Metric):
    """Mean absolute error of predicted and true numbers."""

    def _info(self) -> evaluate.MetricInfo:
        """Describe the inputs: a float per example, or a list of floats for several targets."""
        number = datasets.Value("float64")
        return evaluate.MetricInfo(
            description="Mean distance of predicted from true numbers, in their units: 0 is best.",
            citation="Pedregosa et al. (2011). Scikit-learn: Machine Learning in Python. JMLR 12.",
            inputs_description=inspect.getdoc(self._compute) or "",
            features=[
                datasets.Features({"predictions": feature, "references": feature})
                for feature in (number, datasets.List(number))
            ],
            reference_urls=[
                "https://scikit-learn.org/stable/modules/generated/sklearn.metrics.mean_absolute_error.html"
            ],
        )

    def _compute(
        self,
        predictions: Sequence[float] | Sequence[Sequence[float]],
        references: Sequence[float] | Sequence[Sequence[float]],
    ) -> dict[str, float]:
        """Compute the mean absolute error; for several targets, the mean over targets.

        Args:
            predictions: Predicted numbers, shape `(n_examples,)` or `(n_examples, n_targets)`.
            references: True numbers, of the same shape.

        Returns:
            `{"mae": score}` with a float.

        Raises:
            ValueError: If the lengths differ.

        Examples:
            >>> metric = MAE(keep_in_memory=True)  # or evaluate.load(path)
            >>> metric.compute(predictions=[2.5, 0.0, 2.0, 8.0], references=[3.0, -0.5, 2.0, 7.0])
            {'mae': 0.5}
        """
        return {"mae": float(mean_absolute_error(references, predictions))}
