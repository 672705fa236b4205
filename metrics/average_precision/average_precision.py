"""Average precision as a local `evaluate` metric, on scikit-learn; see the README."""

import inspect

import datasets
import evaluate
import numpy as np
from sklearn.metrics import average_precision_score


class AveragePrecision(evaluate.Metric):
    """Average precision, the area under the precision-recall curve."""

    def _info(self) -> evaluate.MetricInfo:
        """Describe the inputs: a float64 score for each class, shape `(n_examples, n_classes)`, and
        an int64 class id per example, shape `(n_examples,)`; as `multilabel` 0 and 1 for each
        label, shape `(n_examples, n_classes)`.
        """
        ids: datasets.Value | datasets.List = datasets.Value("int64")
        if self.config_name == "multilabel":
            ids = datasets.List(ids)
        return evaluate.MetricInfo(
            description="The area under the precision-recall curve, from 0 to 1 (best).",
            citation="Pedregosa et al. (2011). Scikit-learn: Machine Learning in Python. JMLR 12.",
            inputs_description=inspect.getdoc(self._compute) or "",
            features=datasets.Features(
                {"prediction_scores": datasets.List(datasets.Value("float64")), "references": ids}
            ),
            reference_urls=[
                "https://scikit-learn.org/stable/modules/generated/sklearn.metrics.average_precision_score.html"
            ],
        )

    def _compute(
        self,
        prediction_scores: np.ndarray,
        references: np.ndarray,
        average: str | None = "macro",
        pos_label: int = 1,
    ) -> dict[str, float | list[float]]:
        """Compute the average precision.

        Args:
            prediction_scores: Probabilities, or other scores that rank the examples, of each class:
                shape `(n_examples, n_classes)`.
            references: True class ids, shape `(n_examples,)`; as `multilabel` 0 and 1 per label,
                shape `(n_examples, n_classes)`.
            average: "macro" for the mean over the classes, one against the rest; for two, the
                score of `pos_label`. None for a list of scores. A class that no example or every
                example has is NaN in the list, and is left out of the mean.
            pos_label: The positive class of two.

        Returns:
            `{"average_precision": score}`: a float, NaN without any score; or `n_classes` floats
            if `average` is None.

        Raises:
            ValueError: If `average` is neither "macro" nor None, or the inputs differ in length.

        Examples:
            >>> metric = AveragePrecision(keep_in_memory=True)  # or evaluate.load(path)
            >>> scores = [[0.9, 0.1], [0.6, 0.4], [0.65, 0.35], [0.2, 0.8]]
            >>> metric.compute(prediction_scores=scores, references=[0, 0, 1, 1])
            {'average_precision': 0.8333333333333333}
        """
        if average not in ("macro", None):
            raise ValueError(f"average={average!r}: expected 'macro' or None")
        scores, true = np.asarray(prediction_scores), np.asarray(references)
        if true.ndim == 1:
            true = true[:, None] == np.arange(scores.shape[1])
        per_class = [
            float(average_precision_score(y_true, y_score))
            if 0 < y_true.sum() < len(y_true)
            else np.nan
            for y_true, y_score in zip(true.T, scores.T, strict=True)
        ]
        if average is None:
            return {"average_precision": per_class}
        if np.ndim(references) == 1 and len(per_class) == 2:
            per_class = [per_class[pos_label]]
        defined = [value for value in per_class if not np.isnan(value)]
        return {"average_precision": float(np.mean(defined)) if defined else float("nan")}
