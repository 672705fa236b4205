"""Linear models of features: fitted in float64 and on one thread, so that the result does not
depend on the number of threads.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from finetune.statistics.baselines import MAX_CLASSES_OF_REGRESSION

#: Inverse strengths of the regularization of logistic regression for features of variance 1. The
#: log loss of rows that are left out chooses one: in three folds, of at most so many rows.
_STRENGTHS = (1e-2, 1e-1, 1.0)
_FOLDS, _MAX_ROWS_TO_CHOOSE = 3, 2_000
#: The logit of a class that ridge regression is fitted to; that of the others is 0.
_CLASS_LOGIT = 10.0
#: The lowest loss of a model that is scaled down, as a share of that of constant outputs. A head
#: that fits its rows leaves small gradients to the layers below: Adam makes large steps of them.
LOSS_SHARE = 0.75
#: Strengths of ridge regression; leave-one-out errors of the rows choose one.
_ALPHAS = np.logspace(-2, 5, 15)


@dataclass(frozen=True, eq=False)
class Linear:
    """``features @ weight.T + bias``.

    Attributes:
        weight: Shape ``(outputs, features)``.
        bias: Shape ``(outputs,)``.
    """

    weight: np.ndarray
    bias: np.ndarray

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Return the outputs of rows, shape ``(rows, outputs)``, float64."""
        return np.asarray(features.astype(np.float64) @ self.weight.T + self.bias)

    def scaled_down(
        self, features: np.ndarray, constant: np.ndarray, loss: Callable[[np.ndarray], float]
    ) -> "Linear":
        """Return a model whose outputs differ less from ``constant``, if its loss is low.

        Args:
            features: Those of the rows that it was fitted to, shape ``(rows, features)``.
            constant: The best outputs without features, shape ``(outputs,)``; 0 without a bias.
            loss: Returns the mean loss of outputs of these rows.
        """
        outputs = self(features)
        lowest = LOSS_SHARE * loss(np.broadcast_to(constant, outputs.shape))

        def excess(scale: float) -> float:
            return loss(constant + scale * (outputs - constant)) - lowest

        if excess(1.0) >= 0:
            return self
        scale = brentq(excess, 0.0, 1.0, xtol=1e-4)
        return Linear(scale * self.weight, scale * self.bias + (1 - scale) * constant)


def fit_classes(
    features: np.ndarray,
    labels: np.ndarray,
    classes: int,
    class_weights: np.ndarray | None,
    *,
    has_bias: bool,
) -> Linear:
    """Return multinomial logistic regression; its outputs are the logits of all classes. With many
    classes, where it would take minutes, they are those of ridge regression.

    Args:
        features: Shape ``(rows, features)``.
        labels: Class ids, int64, shape ``(rows,)``. A class without rows gets the lowest bias.
        classes: The number of classes.
        class_weights: The weight of the rows of each class in the loss, shape ``(classes,)``.
        has_bias: Whether the outputs have a bias, and the features may be centred.
    """
    row_weights = None
    if class_weights is not None:
        row_weights = class_weights[labels]
    if classes > MAX_CLASSES_OF_REGRESSION:
        logits = _CLASS_LOGIT * np.eye(classes)[labels]
        return fit_numbers(features, logits, classes, row_weights, has_bias=has_bias)
    scaled, mean, scale = _scale(features, has_bias)
    weight = np.zeros((classes, features.shape[1]))
    bias = np.zeros(classes)
    present, targets = np.unique(labels, return_inverse=True)
    if len(present) > 1:
        coefficients, intercepts = _fit_logistic(scaled, targets, row_weights, has_bias=has_bias)
        if len(present) == 2:  # scikit-learn has one output: the second logit minus the first
            coefficients = np.concatenate([-coefficients, coefficients]) / 2
            intercepts = np.concatenate([-intercepts, intercepts]) / 2
        weight[present], bias[present] = coefficients, intercepts
    if has_bias and len(present) < classes:
        bias[np.setdiff1d(np.arange(classes), present)] = bias[present].min() - 1
    weight /= scale
    return Linear(weight, bias - weight @ mean)


def fit_labels(
    features: np.ndarray,
    targets: np.ndarray,
    labels: int,
    positive_weights: np.ndarray | None,
    *,
    has_bias: bool,
) -> Linear:
    """Return a binary logistic regression for each label; with many labels, ridge regression.

    Args:
        features: Shape ``(rows, features)``.
        targets: 1 where a row has a label, else 0, shape ``(rows, labels)``.
        labels: The number of labels.
        positive_weights: The weight of the positive rows of each label, shape ``(labels,)``; not
            used by ridge regression.
        has_bias: Whether the outputs have a bias, and the features may be centred.
    """
    if labels > MAX_CLASSES_OF_REGRESSION:
        logits = _CLASS_LOGIT * (targets - 0.5)
        return fit_numbers(features, logits, labels, None, has_bias=has_bias)
    weights, biases = [], []
    for number, column in enumerate(targets.T.astype(np.int64)):
        class_weights = None
        if positive_weights is not None:
            class_weights = np.array([1.0, positive_weights[number]])
        model = fit_classes(features, column, 2, class_weights, has_bias=has_bias)
        weights.append(model.weight[1] - model.weight[0])
        biases.append(model.bias[1] - model.bias[0])
    return Linear(np.array(weights), np.array(biases))


def fit_numbers(
    features: np.ndarray,
    targets: np.ndarray,
    outputs: int,
    row_weights: np.ndarray | None,
    *,
    has_bias: bool,
) -> Linear:
    """Return ridge regression; leave-one-out errors choose its strength.

    Args:
        features: Shape ``(rows, features)``.
        targets: Shape ``(rows, outputs)``, or ``(rows,)`` of one.
        outputs: Their number.
        row_weights: The weight of each row in the loss, shape ``(rows,)``.
        has_bias: Whether the outputs have a bias, and the features may be centred.
    """
    from sklearn.linear_model import RidgeCV
    from threadpoolctl import threadpool_limits

    targets = targets.reshape(-1, outputs).astype(np.float64)
    scaled, mean, scale = _scale(features, has_bias)
    deviation = targets.std(axis=0)
    deviation[deviation == 0] = 1
    with threadpool_limits(1):
        ridge = RidgeCV(_ALPHAS, fit_intercept=has_bias)
        ridge.fit(scaled, targets / deviation, row_weights)
    weight = np.atleast_2d(ridge.coef_) * deviation[:, None] / scale
    return Linear(weight, ridge.intercept_ * deviation - weight @ mean)


def _scale(features: np.ndarray, has_bias: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """Return features with mean 0, all of them scaled by one number to variance 1, in float64; and
    the means and that number. Without a bias, they keep their means.
    """
    features = features.astype(np.float64)
    mean = features.mean(axis=0) if has_bias else np.zeros(features.shape[1])
    scale = float(np.sqrt(np.mean((features - mean) ** 2))) or 1.0
    return (features - mean) / scale, mean, scale


def _fit_logistic(
    features: np.ndarray, labels: np.ndarray, row_weights: np.ndarray | None, *, has_bias: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients and intercepts of scikit-learn's logistic regression.

    Args:
        features: Scaled, float64, shape ``(rows, features)``.
        labels: Class ids without gaps, shape ``(rows,)``.
        row_weights: The weight of each row in the loss, shape ``(rows,)``.
        has_bias: Whether to fit intercepts.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score
    from threadpoolctl import threadpool_limits

    if row_weights is None:
        row_weights = np.ones(len(labels))
    chosen = np.random.default_rng(0).permutation(len(labels))[:_MAX_ROWS_TO_CHOOSE]
    counts = np.bincount(labels[chosen])
    chosen = chosen[counts[labels[chosen]] >= _FOLDS]
    model = LogisticRegression(C=_STRENGTHS[-1], fit_intercept=has_bias, tol=1e-3, max_iter=2000)
    losses = {}
    with threadpool_limits(1):
        if len(np.unique(labels[chosen])) > 1:
            for strength in _STRENGTHS:
                scores = cross_val_score(
                    model.set_params(C=strength),
                    features[chosen],
                    labels[chosen],
                    cv=_FOLDS,
                    scoring="neg_log_loss",
                    params={"sample_weight": row_weights[chosen]},
                )
                losses[strength] = -scores.mean()
            model.set_params(C=min(losses, key=losses.__getitem__))
        model.set_params(tol=1e-6).fit(features, labels, row_weights)
    return model.coef_, model.intercept_
