"""Spearman as a local `evaluate` metric, on `scipy.stats.spearmanr`; see the README."""

import inspect
import warnings
from collections.abc import Sequence

import datasets
import evaluate
import numpy as np
from scipy.stats import ConstantInputWarning, NearConstantInputWarning, spearmanr


class Spearman(evaluate.Metric):
    """Spearman rank correlation of predicted and true numbers."""

    def _info(self) -> evaluate.MetricInfo:
        """Describe the inputs: a float per example, or a list of floats for several targets."""
        number = datasets.Value("float64")
        return evaluate.MetricInfo(
            description="Correlation of predicted and true ranks: 1 is best, 0 is none.",
            citation="Virtanen et al. (2020). SciPy 1.0. Nature Methods 17.",
            inputs_description=inspect.getdoc(self._compute) or "",
            features=[
                datasets.Features({"predictions": feature, "references": feature})
                for feature in (number, datasets.List(number))
            ],
            reference_urls=[
                "https://docs.scipy.org/doc/scipy/reference/generated/scipy.stats.spearmanr.html"
            ],
        )

    def _compute(
        self,
        predictions: Sequence[float] | Sequence[Sequence[float]],
        references: Sequence[float] | Sequence[Sequence[float]],
    ) -> dict[str, float]:
        """Compute the Spearman correlation; for several targets, the mean over targets.

        Args:
            predictions: Predicted numbers, shape `(n_examples,)` or `(n_examples, n_targets)`.
            references: True numbers, of the same shape.

        Returns:
            `{"spearman": score}` with a float.
            NaN if all predictions or all references of a target are equal.

        Raises:
            ValueError: If the lengths differ.

        Examples:
            >>> metric = Spearman(keep_in_memory=True)  # or evaluate.load(path)
            >>> metric.compute(predictions=[2.5, 0.0, 2.0, 8.0], references=[3.0, -0.5, 2.0, 7.0])
            {'spearman': 1.0}
        """
        predicted = np.asarray(predictions, dtype=np.float64)
        true = np.asarray(references, dtype=np.float64)
        if len(true) == 1:
            return {"spearman": float("nan")}
        pairs = zip(predicted.reshape(len(true), -1).T, true.reshape(len(true), -1).T, strict=True)
        with warnings.catch_warnings():
            # scipy warns about constants; here NaN is the documented answer.
            warnings.simplefilter("ignore", ConstantInputWarning)
            warnings.simplefilter("ignore", NearConstantInputWarning)
            scores = [spearmanr(*pair).statistic for pair in pairs]
        return {"spearman": float(np.mean(scores))}
