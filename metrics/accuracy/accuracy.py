"""Accuracy as a local `evaluate` metric, on `sklearn.metrics.accuracy_score`; see the README."""

import inspect
from collections.abc import Sequence

import datasets
import evaluate
from sklearn.metrics import accuracy_score


class Accuracy(evaluate.Metric):
    """Accuracy, the share of the examples whose predicted class is right."""

    def _info(self) -> evaluate.MetricInfo:
        """Describe the inputs: two int64 class ids per example, shape `(n_examples,)` each;
        as `multilabel` 0 and 1 for each label, shape `(n_examples, n_labels)`.
        """
        ids: datasets.Value | datasets.List = datasets.Value("int64")
        if self.config_name == "multilabel":
            ids = datasets.List(ids)
        return evaluate.MetricInfo(
            description="The share of the examples whose predicted class is right: 0 to 1.",
            citation="Pedregosa et al. (2011). Scikit-learn: Machine Learning in Python. JMLR 12.",
            inputs_description=inspect.getdoc(self._compute) or "",
            features=datasets.Features({"predictions": ids, "references": ids}),
            reference_urls=[
                "https://scikit-learn.org/stable/modules/generated/sklearn.metrics.accuracy_score.html"
            ],
        )

    def _compute(
        self,
        predictions: list[int],
        references: list[int],
        normalize: bool = True,
        sample_weight: Sequence[float] | None = None,
    ) -> dict[str, float]:
        """Compute the share of examples whose predicted class is the true one.

        Args:
            predictions: Predicted class ids, shape `(n_examples,)`.
            references: True class ids, shape `(n_examples,)`.
            normalize: Whether to divide by the number (or total weight) of the examples; if not,
                the number (or total weight) of the correct ones is returned, still as a float.
            sample_weight: Weight of each example, shape `(n_examples,)`.

        Returns:
            `{"accuracy": score}` with a float.

        Raises:
            ValueError: If there are no examples, the lengths differ, or all weights are zero.

        Examples:
            >>> metric = Accuracy(keep_in_memory=True)  # or evaluate.load(path)
            >>> metric.compute(predictions=[0, 1, 2, 1], references=[0, 1, 1, 1])
            {'accuracy': 0.75}
            >>> metric.compute(predictions=[0, 1, 2, 1], references=[0, 1, 1, 1], normalize=False)
            {'accuracy': 3.0}
        """
        score = accuracy_score(
            references, predictions, normalize=normalize, sample_weight=sample_weight
        )
        return {"accuracy": float(score)}
