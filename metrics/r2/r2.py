"""R2 as a local `evaluate` metric, on `sklearn.metrics.r2_score`; see the README."""

import inspect
import warnings
from collections.abc import Sequence

import datasets
import evaluate
import numpy as np
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import r2_score


class R2(evaluate.Metric):
    """Coefficient of determination, R2 of predicted and true numbers."""

    def _info(self) -> evaluate.MetricInfo:
        """Describe the inputs: a float per example, or a list of floats for several targets."""
        number = datasets.Value("float64")
        return evaluate.MetricInfo(
            description="Explained share of the variance: 1 is best, 0 is a constant mean.",
            citation="Pedregosa et al. (2011). Scikit-learn: Machine Learning in Python. JMLR 12.",
            inputs_description=inspect.getdoc(self._compute) or "",
            features=[
                datasets.Features({"predictions": feature, "references": feature})
                for feature in (number, datasets.List(number))
            ],
            reference_urls=[
                "https://scikit-learn.org/stable/modules/generated/sklearn.metrics.r2_score.html"
            ],
        )

    def _compute(
        self,
        predictions: Sequence[float] | Sequence[Sequence[float]],
        references: Sequence[float] | Sequence[Sequence[float]],
    ) -> dict[str, float]:
        """Compute R2; for several targets, the mean over targets.

        Args:
            predictions: Predicted numbers, shape `(n_examples,)` or `(n_examples, n_targets)`.
            references: True numbers, of the same shape.

        Returns:
            `{"r2": score}` with a float.
            NaN where all references of a target are equal.

        Raises:
            ValueError: If the lengths differ.

        Examples:
            >>> metric = R2(keep_in_memory=True)  # or evaluate.load(path)
            >>> metric.compute(predictions=[2.5, 0.0, 2.0, 8.0], references=[3.0, -0.5, 2.0, 7.0])
            {'r2': 0.9486081370449679}
        """
        with warnings.catch_warnings():
            # scikit-learn warns of a single example; here NaN is the documented answer.
            warnings.simplefilter("ignore", UndefinedMetricWarning)
            scores = r2_score(references, predictions, multioutput="raw_values")
        constant = np.ptp(np.asarray(references, dtype=np.float64), axis=0) == 0
        return {"r2": float(np.where(constant, np.nan, scores).mean())}
