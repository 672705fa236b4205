"""ROC AUC as a local `evaluate` metric, on scikit-learn; see the README."""

import inspect

import datasets
import evaluate
import numpy as np
from sklearn.metrics import roc_auc_score


class RocAuc(evaluate.Metric):
    """ROC AUC, the area under the receiver operating characteristic curve."""

    def _info(self) -> evaluate.MetricInfo:
        """Describe the inputs: a float64 score for each class, shape `(n_examples, n_classes)`, and
        an int64 class id per example, shape `(n_examples,)`; as `multilabel` 0 and 1 for each
        label, shape `(n_examples, n_classes)`.
        """
        ids: datasets.Value | datasets.List = datasets.Value("int64")
        if self.config_name == "multilabel":
            ids = datasets.List(ids)
        return evaluate.MetricInfo(
            description="The area under the ROC curve, from 0 to 1 (best); 0.5 is chance.",
            citation="Pedregosa et al. (2011). Scikit-learn: Machine Learning in Python. JMLR 12.",
            inputs_description=inspect.getdoc(self._compute) or "",
            features=datasets.Features(
                {"prediction_scores": datasets.List(datasets.Value("float64")), "references": ids}
            ),
            reference_urls=[
                "https://scikit-learn.org/stable/modules/generated/sklearn.metrics.roc_auc_score.html"
            ],
        )

    def _compute(
        self, prediction_scores: np.ndarray, references: np.ndarray, average: str | None = "macro"
    ) -> dict[str, float | list[float]]:
        """Compute the area under the ROC curve.

        Args:
            prediction_scores: Probabilities, or other scores that rank the examples, of each class:
                shape `(n_examples, n_classes)`.
            references: True class ids, shape `(n_examples,)`; as `multilabel` 0 and 1 per label,
                shape `(n_examples, n_classes)`.
            average: "macro" for the mean over the classes, one against the rest; for two, the
                score of the second. None for a list of scores. A class that no example or every
                example has is NaN in the list, and is left out of the mean.

        Returns:
            `{"roc_auc": score}`: a float, NaN without any score; or `n_classes` floats
            if `average` is None.

        Raises:
            ValueError: If `average` is neither "macro" nor None, or the inputs differ in length.

        Examples:
            >>> metric = RocAuc(keep_in_memory=True)  # or evaluate.load(path)
            >>> scores = [[0.9, 0.1], [0.6, 0.4], [0.65, 0.35], [0.2, 0.8]]
            >>> metric.compute(prediction_scores=scores, references=[0, 0, 1, 1])
            {'roc_auc': 0.75}
        """
        if average not in ("macro", None):
            raise ValueError(f"average={average!r}: expected 'macro' or None")
        scores, true = np.asarray(prediction_scores), np.asarray(references)
        if true.ndim == 1:
            true = true[:, None] == np.arange(scores.shape[1])
        per_class = [
            float(roc_auc_score(y_true, y_score)) if 0 < y_true.sum() < len(y_true) else np.nan
            for y_true, y_score in zip(true.T, scores.T, strict=True)
        ]
        if average is None:
            return {"roc_auc": per_class}
        is_binary = np.ndim(references) == 1 and len(per_class) == 2
        defined = [value for value in per_class[is_binary:] if not np.isnan(value)]
        return {"roc_auc": float(np.mean(defined)) if defined else float("nan")}
