"""Baselines for a model: the majority class or the mean, and TF-IDF with a linear model, or with
naive Bayes if there are many classes.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import DatasetDict, Value
from scipy.special import logit

from finetune.data import targets
from finetune.errors import first_line
from finetune.statistics.scored import slices

#: The start of the name of the baseline that :mod:`finetune.recipe.probe` computes.
FROZEN = "frozen encoder"
#: With more rows, fitting the baseline could take longer than training the model.
MAX_ROWS = 100_000
#: The maximum of terms times classes, and of rows times classes, for logistic regression: L-BFGS
#: keeps about 25 numbers for each weight, and one for each row and class.
MAX_WEIGHTS, MAX_SCORES = 6_000_000, 20_000_000
#: The most classes for logistic regression: with more, it takes a minute even on some of the rows.
#: Naive Bayes is fitted then, with at most ``MAX_COUNTS`` terms times classes.
MAX_CLASSES_OF_REGRESSION, MAX_COUNTS = 200, 20_000_000
#: The name of each baseline, and its outputs.
Baselines = Iterator[tuple[str, np.ndarray]]
_MAX_FLOAT64_OUTPUTS = 50_000_000  # outputs of classes; more of them are float32


@dataclass(frozen=True, kw_only=True)
class BaselineData:
    """The data and options that baselines are fitted on."""

    splits: DatasetDict  # raw: train, test and, for thresholds, validation
    column: str  # the column of texts or images; TF-IDF needs texts
    seed: int  # samples the rows to fit on if there are too many
    fit: bool  # whether to fit TF-IDF
    note: Callable[[str], object]  # called with a sentence if fitting fails


def class_baselines(data: BaselineData, classes: int) -> Baselines:
    """Yield the name of each single-label baseline, and the logarithms of its probabilities for the
    test rows, shape ``(rows, classes)``.
    """
    labels = np.asarray(data.splits["train"]["label"][:])
    shares = np.bincount(labels, minlength=classes) / len(labels)
    yield "majority class", np.broadcast_to(_logs(shares), (len(data.splits["test"]), classes))

    def fit(train: Any, test: Any, rows: np.ndarray) -> np.ndarray:
        predict = classifier(train, labels[rows], classes)
        shape = test.shape[0], classes
        is_large = np.prod(shape) > _MAX_FLOAT64_OUTPUTS
        outputs = np.empty(shape, np.float32 if is_large else np.float64)
        for block in slices(*shape):
            outputs[block] = _logs(predict(test[block]))
        return outputs

    name = "naive Bayes" if classes > MAX_CLASSES_OF_REGRESSION else "logistic regression"
    yield from _bag_of_words(data, name, ["test"], bounds(classes), fit)


def label_baselines(data: BaselineData) -> Baselines:
    """Yield the name of each multi-label baseline, and its logits for the validation rows, which
    thresholds are fitted on, and then the test rows, shape ``(rows, labels)``, float32.
    """
    train = data.splits["train"]
    is_positive = targets.indicators(train["label"][:], len(targets.class_names(train)))
    shape = sum(len(data.splits[name]) for name in ("validation", "test")), is_positive.shape[1]
    yield "prevalence", np.broadcast_to(_logits(is_positive.mean(axis=0)), shape)

    def fit(train: Any, test: Any, rows: np.ndarray) -> np.ndarray:
        logits = np.empty(shape, np.float32)
        for number, label in enumerate(is_positive[rows].T):
            predict = classifier(train, label.astype(np.int64), 2)
            logits[:, number] = _logits(predict(test)[:, 1].round(6))
        return logits

    bound = min(MAX_ROWS, MAX_SCORES // shape[1]), MAX_WEIGHTS // shape[1]
    yield from _bag_of_words(data, "logistic regression", ["validation", "test"], bound, fit)


def number_baselines(data: BaselineData) -> Baselines:
    """Yield the name of each regression baseline, and its values, ``(test rows, targets)``."""
    train = data.splits["train"]
    labels = np.asarray(targets.values(train), dtype=np.float32).reshape(len(train), -1)
    mean, spread = labels.mean(axis=0, dtype=np.float64), labels.astype(np.float64).std(axis=0)
    yield "mean", np.tile(mean, (len(data.splits["test"]), 1))

    def fit(train: Any, test: Any, rows: np.ndarray) -> np.ndarray:
        from sklearn.linear_model import Ridge

        model = Ridge(alpha=1.0).fit(train, ((labels - mean) / spread)[rows])
        return np.asarray(model.predict(test).reshape(test.shape[0], -1) * spread + mean)

    bound = MAX_ROWS, MAX_WEIGHTS // labels.shape[1]
    yield from _bag_of_words(data, "ridge regression", ["test"], bound, fit)


def bounds(classes: int) -> tuple[int, int]:
    """Return the maximum number of rows and of terms to fit a TF-IDF baseline on."""
    if classes > MAX_CLASSES_OF_REGRESSION:
        return MAX_ROWS, MAX_COUNTS // classes
    columns = classes if classes > 2 else 1
    return min(MAX_ROWS, MAX_SCORES // columns), MAX_WEIGHTS // columns


def classifier(terms: Any, labels: np.ndarray, classes: int) -> Callable[[Any], np.ndarray]:
    """Fit a classifier and return its function from terms to probabilities, ``(rows, classes)``.

    This is scikit-learn's logistic regression with C = 10. With more than
    :data:`MAX_CLASSES_OF_REGRESSION` classes, or if only one occurs, it is complement naive Bayes
    (Rennie et al., 2003), which ranks many classes well but gives them almost equal probabilities.

    Args:
        terms: A sparse matrix, shape ``(rows, terms)``.
        labels: Class ids, int64, shape ``(rows,)``.
        classes: The number of classes; those that do not occur have probability 0.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import ComplementNB

    present = np.unique(labels)
    if len(present) > 1 and classes <= MAX_CLASSES_OF_REGRESSION:
        model = LogisticRegression(C=10, max_iter=1000).fit(terms, labels)
    else:  # it also accepts a single class, which logistic regression refuses
        model = ComplementNB()
        step = max(1, MAX_SCORES // classes)  # it allocates a number for each row and class
        for start in range(0, len(labels), step):
            block = slice(start, start + step)
            model.partial_fit(terms[block], labels[block], present)

    def predict(terms: Any) -> np.ndarray:
        probabilities = np.zeros((terms.shape[0], classes))
        probabilities[:, present] = model.predict_proba(terms)
        return probabilities

    return predict


def _bag_of_words(
    data: BaselineData,
    model: str,
    splits: Sequence[str],
    bound: tuple[int, int],
    fit: Callable[[Any, Any, np.ndarray], np.ndarray],
) -> Baselines:
    """Yield the name and the outputs for ``splits`` of a TF-IDF baseline; nothing without words.

    ``fit`` is called with two sparse matrices of sublinear TF-IDF over the most frequent one- and
    two-word terms, for the training rows and the rows to predict, and with the ids of the former.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    train = data.splits["train"]
    max_rows, max_terms = bound
    if not (data.fit and isinstance(train.features[data.column], Value)):
        return
    rows = np.random.default_rng(data.seed).permutation(len(train))[:max_rows]
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, max_features=max_terms)
    # a column is read row by row
    texts = itertools.chain(*(data.splits[name][data.column] for name in splits))
    try:
        terms = vectorizer.fit_transform(train[data.column][rows.tolist()])
        outputs = fit(terms, vectorizer.transform(texts), rows)
    except Exception as error:  # the run is complete without a baseline
        if "empty vocabulary" not in str(error):
            data.note(failed(f"TF-IDF + {model}", error))
        return
    sample = ""
    if len(train) > max_rows:
        sample = f" ({max_rows:,} rows)"
    yield f"TF-IDF + {model}{sample}", outputs


def failed(name: str, error: Exception) -> str:
    """Return the sentence that reports why the baseline ``name`` is missing."""
    return f"no baseline '{name}': {type(error).__name__}: {first_line(error)}"


def _logs(probabilities: np.ndarray) -> np.ndarray:
    """Return logarithms rounded to 6 digits, finite also for probability 0."""
    return np.asarray(np.log(np.maximum(probabilities, np.finfo(np.float64).tiny)).round(6))


def _logits(probabilities: np.ndarray) -> np.ndarray:
    return np.asarray(logit(np.clip(probabilities, 1e-7, 1 - 1e-7)), dtype=np.float32)
