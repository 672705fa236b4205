"""Quadratic weighted kappa, on `sklearn.metrics.cohen_kappa_score`; see the README."""

import inspect
import warnings
from collections.abc import Sequence

import datasets
import evaluate
from sklearn.metrics import cohen_kappa_score


class QuadraticKappa(evaluate.Metric):
    """Agreement of predicted and true classes that have an order, beyond chance."""

    def _info(self) -> evaluate.MetricInfo:
        """Describe the inputs: two int64 class ids per example, shape `(n_examples,)` each."""
        return evaluate.MetricInfo(
            description="Agreement of ordered classes beyond chance: 1 is best, 0 is chance level.",
            citation="Cohen (1968). Psychological Bulletin 70(4), 213-220.",
            inputs_description=inspect.getdoc(self._compute) or "",
            features=datasets.Features(
                {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
            ),
            reference_urls=[
                "https://scikit-learn.org/stable/modules/generated/sklearn.metrics.cohen_kappa_score.html"
            ],
        )

    def _compute(
        self,
        predictions: list[int],
        references: list[int],
        sample_weight: Sequence[float] | None = None,
    ) -> dict[str, float]:
        """Compute the kappa; a mistake has the squared distance of its classes as weight.

        Args:
            predictions: Predicted class ids, shape `(n_examples,)`: their differences are the
                distances between classes.
            references: True class ids, shape `(n_examples,)`.
            sample_weight: Weight of each example, shape `(n_examples,)`.

        Returns:
            `{"quadratic_kappa": score}` with a float: 1 for perfect predictions, below 0 if worse
            than chance, and NaN if only one class occurs.

        Raises:
            ValueError: If there are no examples, or the lengths differ.

        Examples:
            >>> metric = QuadraticKappa(keep_in_memory=True)  # or evaluate.load(path)
            >>> metric.compute(predictions=[0, 1, 2, 2], references=[0, 1, 1, 2])
            {'quadratic_kappa': 0.8}
            >>> metric.compute(predictions=[0, 1, 2, 0], references=[0, 1, 1, 2])
            {'quadratic_kappa': 0.0}
        """
        if not references:
            raise ValueError("found empty lists of predictions and references")
        # all classes between the first and the last, because scikit-learn would count the distance
        # between the classes that occur
        classes = range(min(*predictions, *references), max(*predictions, *references) + 1)
        with warnings.catch_warnings():
            # scikit-learn warns if only one class occurs; here NaN is the documented answer.
            for message in ("A single label was found", "`y1`, `y2` and `labels` have only one"):
                warnings.filterwarnings("ignore", message=message)
            score = cohen_kappa_score(
                references,
                predictions,
                labels=classes,
                weights="quadratic",
                sample_weight=sample_weight,
            )
        return {"quadratic_kappa": float(score)}
