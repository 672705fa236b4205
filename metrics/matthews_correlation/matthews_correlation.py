"""MCC as a local `evaluate` metric, on `sklearn.metrics.matthews_corrcoef`; see the README."""

import inspect
import warnings
from collections.abc import Sequence

import datasets
import evaluate
from sklearn.metrics import matthews_corrcoef


class MatthewsCorrelation(evaluate.Metric):
    """Matthews correlation coefficient of predicted and true classes."""

    def _info(self) -> evaluate.MetricInfo:
        """Describe the inputs: two int64 class ids per example, shape `(n_examples,)` each."""
        return evaluate.MetricInfo(
            description="Correlation of predicted and true classes: 1 is best, 0 is chance level.",
            citation="Matthews (1975). Biochimica et Biophysica Acta 405(2), 442-451.",
            inputs_description=inspect.getdoc(self._compute) or "",
            features=datasets.Features(
                {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
            ),
            reference_urls=[
                "https://scikit-learn.org/stable/modules/generated/sklearn.metrics.matthews_corrcoef.html"
            ],
        )

    def _compute(
        self,
        predictions: list[int],
        references: list[int],
        sample_weight: Sequence[float] | None = None,
    ) -> dict[str, float]:
        """Compute the correlation between the predicted and the true classes.

        Args:
            predictions: Predicted class ids, shape `(n_examples,)`.
            references: True class ids, shape `(n_examples,)`.
            sample_weight: Weight of each example, shape `(n_examples,)`.

        Returns:
            `{"matthews_correlation": score}` with a float: 1 for perfect predictions and 0.0
            where the coefficient is undefined, as all predictions or all references are equal.

        Raises:
            ValueError: If there are no examples, the lengths differ, or all weights are zero.

        Examples:
            >>> metric = MatthewsCorrelation(keep_in_memory=True)  # or evaluate.load(path)
            >>> metric.compute(predictions=[0, 1, 1, 1], references=[0, 0, 1, 1])
            {'matthews_correlation': 0.5773502691896258}
            >>> metric.compute(predictions=[1, 1, 1, 1], references=[0, 0, 1, 1])
            {'matthews_correlation': 0.0}
        """
        with warnings.catch_warnings():
            # scikit-learn warns if only one class occurs; here 0.0 is the documented answer.
            warnings.filterwarnings("ignore", message="A single label was found")
            score = matthews_corrcoef(references, predictions, sample_weight=sample_weight)
        return {"matthews_correlation": float(score)}
