"""MSE as a local `evaluate` metric, on `sklearn.metrics.mean_squared_error`; see the README."""

import inspect
from collections.abc import Sequence

import datasets
import evaluate
from sklearn.metrics import mean_squared_error


class MSE(evaluate.Metric):
    """Mean squared error of predicted and true numbers."""

    def _info(self) -> evaluate.MetricInfo:
        """Describe the inputs: a float per example, or a list of floats for several targets."""
        number = datasets.Value("float64")
        return evaluate.MetricInfo(
            description="Mean of the squared errors: 0 is best.",
            citation="Pedregosa et al. (2011). Scikit-learn: Machine Learning in Python. JMLR 12.",
            inputs_description=inspect.getdoc(self._compute) or "",
            features=[
                datasets.Features({"predictions": feature, "references": feature})
                for feature in (number, datasets.List(number))
            ],
            reference_urls=[
                "https://scikit-learn.org/stable/modules/generated/sklearn.metrics.mean_squared_error.html"
            ],
        )

    def _compute(
        self,
        predictions: Sequence[float] | Sequence[Sequence[float]],
        references: Sequence[float] | Sequence[Sequence[float]],
    ) -> dict[str, float]:
        """Compute the mean squared error; for several targets, the mean over targets.

        Args:
            predictions: Predicted numbers, shape `(n_examples,)` or `(n_examples, n_targets)`.
            references: True numbers, of the same shape.

        Returns:
            `{"mse": score}` with a float.

        Raises:
            ValueError: If the lengths differ.

        Examples:
            >>> metric = MSE(keep_in_memory=True)  # or evaluate.load(path)
            >>> metric.compute(predictions=[2.5, 0.0, 2.0, 8.0], references=[3.0, -0.5, 2.0, 7.0])
            {'mse': 0.375}
        """
        return {"mse": float(mean_squared_error(references, predictions))}
