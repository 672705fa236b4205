"""F1 score as a local `evaluate` metric, on `sklearn.metrics.f1_score`; see the README."""

import inspect
from collections.abc import Sequence

import datasets
import evaluate
from sklearn.metrics import f1_score


class F1(evaluate.Metric):
    """F1 score, the harmonic mean of precision and recall."""

    def _info(self) -> evaluate.MetricInfo:
        """Describe the inputs: two int64 class ids per example, shape `(n_examples,)` each;
        as `multilabel` 0 and 1 for each label, shape `(n_examples, n_labels)`.
        """
        ids: datasets.Value | datasets.List = datasets.Value("int64")
        if self.config_name == "multilabel":
            ids = datasets.List(ids)
        return evaluate.MetricInfo(
            description="The harmonic mean of precision and recall, from 0 to 1 (best).",
            citation="Pedregosa et al. (2011). Scikit-learn: Machine Learning in Python. JMLR 12.",
            inputs_description=inspect.getdoc(self._compute) or "",
            features=datasets.Features({"predictions": ids, "references": ids}),
            reference_urls=[
                "https://scikit-learn.org/stable/modules/generated/sklearn.metrics.f1_score.html"
            ],
        )

    def _compute(
        self,
        predictions: list[int],
        references: list[int],
        labels: Sequence[int] | None = None,
        pos_label: int = 1,
        average: str | None = "binary",
        sample_weight: Sequence[float] | None = None,
        zero_division: float = 0,
    ) -> dict[str, float | list[float]]:
        """Compute the F1 score.

        Args:
            predictions: Predicted class ids, shape `(n_examples,)`.
            references: True class ids, shape `(n_examples,)`.
            labels: Class ids to score, shape `(n_labels,)`; by default those that occur in
                either input, sorted. Ignored when `average="binary"`.
            pos_label: The positive class of `average="binary"`.
            average: "binary", "micro", "macro", "weighted", or None for one score per label; of
                `multilabel` also "samples", the mean over the examples.
            sample_weight: Weight of each example, shape `(n_examples,)`.
            zero_division: Score of a class with a zero denominator, or of an example that neither
                has a label nor is given one: 0, 1 or NaN.

        Returns:
            `{"f1": score}`: a float, or `n_labels` floats if `average` is None.

        Raises:
            ValueError: If the inputs are empty, differ in length, do not suit `average="binary"`,
                or an option has a value that scikit-learn rejects.

        Examples:
            >>> metric = F1(keep_in_memory=True)  # or evaluate.load(path)
            >>> metric.compute(predictions=[1, 1, 1, 0, 1], references=[1, 1, 0, 1, 0])
            {'f1': 0.5714285714285714}
            >>> metric.compute(predictions=[0, 2, 2], references=[0, 2, 1], average=None)
            {'f1': [1.0, 0.0, 0.6666666666666666]}
        """
        score = f1_score(
            references,
            predictions,
            labels=labels,
            pos_label=pos_label,
            average=average,
            sample_weight=sample_weight,
            zero_division=zero_division,
        )
        return {"f1": score.tolist() if average is None else float(score)}
