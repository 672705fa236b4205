"""What a model has to beat: the majority class, the prevalence or the mean, and a bag of words.

That is TF-IDF with logistic regression, with naive Bayes where there are many classes, or with
ridge regression.
"""

from __future__ import annotations

import contextlib
import hashlib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sklearn
from datasets import Column, DatasetDict, Value

from finetune.data import targets
from finetune.runtime import hub
from finetune.runtime.files import replacing
from finetune.statistics import blocks

#: More rows take scikit-learn longer than the training of the model itself.
MOST_ROWS = 100_000
#: Terms times classes, and rows times classes: L-BFGS holds some 25 numbers for each weight, and
#: one for each row and class.
MOST_WEIGHTS, MOST_SCORES = 6_000_000, 20_000_000
#: Of more classes logistic regression would have to leave out rows, and of 2,000 classes all but
#: 3,000 terms, and would still take a minute: naive Bayes counts, with these terms times classes.
MOST_OF_REGRESSION, MOST_COUNTS = 200, 20_000_000
#: Outputs of more rows and classes are not cached: they would fill a disk.
MOST_CACHED = 50_000_000
_CACHE_VERSION = 3  # increment when the same rows should yield other outputs
_DECIMALS = 6
_BATCH = 1000  # texts
Note = Callable[[str], object]


@dataclass(frozen=True)
class Terms:
    """Texts as sublinear TF-IDF of their one- and two-word terms, sparse matrices.

    Attributes:
        train: Of the rows to fit on, shape ``(rows, terms)``.
        test: Of those to predict.
        rows: Which of training these are.
        limits: In words, where they are bounded.
    """

    train: Any
    test: Any
    rows: np.ndarray
    limits: list[str]


#: What is predicted for each text, and in words where the baseline was bounded.
Fitted = tuple[np.ndarray, list[str]]


def of_classes(
    splits: DatasetDict,
    input_column: str,
    seed: int,
    fingerprint: str,
    classes: int,
    *,
    fit: bool,
    note: Note,
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of each baseline and the logarithms of its probabilities for the test rows,
    shape ``(rows, classes)``.

    Args:
        splits: ``train`` and ``test``, raw.
        input_column: Of the texts or images; only texts have a bag of words.
        seed: Of the rows that are sampled for the bag of words.
        fingerprint: Of the splits, by which a fitted bag of words is cached.
        classes: How many there are.
        fit: Whether to have a bag of words at all.
        note: Called with a sentence if the bag of words fails.
    """
    train, test = splits["train"], splits["test"]
    labels = np.asarray(train["label"][:])
    counts = np.bincount(labels, minlength=classes)
    yield (
        "majority class",
        np.broadcast_to(_logarithms(counts / counts.sum()), (len(test), classes)),
    )
    if not (fit and _has_texts(splits, input_column)):
        return
    is_many, most = classes > MOST_OF_REGRESSION, bounds(classes)
    name = "TF-IDF + " + ("naive Bayes" if is_many else "logistic regression")
    texts, others = train[input_column], test[input_column]

    def fitted() -> Fitted | None:
        terms = terms_of(texts, others, seed, *most)
        if terms is None:
            return None
        predict = classifier(terms.train, labels[terms.rows], classes)
        logarithms = np.empty((len(others), classes), dtype=np.float32)
        for some in blocks.slices(*logarithms.shape):
            logarithms[some] = _logarithms(predict(terms.test[some]))
        return logarithms, terms.limits

    key = f"classes {fingerprint} {seed} {most}"
    yield from _named(name, key, fitted, len(others) * classes, note)


def bounds(classes: int) -> tuple[int, int]:
    """Return how many rows and how many terms a bag of words of classes has at most."""
    if classes > MOST_OF_REGRESSION:
        return MOST_ROWS, MOST_COUNTS // classes
    outputs = classes if classes > 2 else 1
    return min(MOST_ROWS, MOST_SCORES // outputs), MOST_WEIGHTS // outputs


def of_labels(
    splits: DatasetDict,
    input_column: str,
    seed: int,
    fingerprint: str,
    *,
    fit: bool,
    note: Note,
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield name and probabilities of each label, shape ``(rows, labels)``, for the rows of
    validation, which thresholds are fitted on, and then of test.

    Arguments are those of :func:`of_classes`.
    """
    train, held, test = splits["train"], splits["validation"], splits["test"]
    has = targets.indicators(train["label"][:], len(targets.class_names(train)))
    shares, labels = has.mean(axis=0), has.shape[1]
    yield "prevalence", np.tile(shares, (len(held), 1)), np.tile(shares, (len(test), 1))
    if not (fit and _has_texts(splits, input_column)):
        return
    most = min(MOST_ROWS, MOST_SCORES // labels), MOST_WEIGHTS // labels

    def fitted() -> Fitted | None:
        others = [*held[input_column][:], *test[input_column][:]]
        terms = terms_of(train[input_column], others, seed, *most)
        if terms is None:
            return None
        columns = [
            classifier(terms.train, label.astype(np.int64), 2)(terms.test)[:, 1]
            for label in has[terms.rows].T
        ]
        return np.round(np.stack(columns, axis=1), _DECIMALS), terms.limits

    key, size = f"labels {fingerprint} {seed} {most}", (len(held) + len(test)) * labels
    for name, outputs in _named("TF-IDF + logistic regression", key, fitted, size, note):
        yield name, outputs[: len(held)], outputs[len(held) :]


def of_numbers(
    splits: DatasetDict,
    input_column: str,
    seed: int,
    fingerprint: str,
    numbers: np.ndarray,
    *,
    fit: bool,
    note: Note,
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and numbers of the test rows, shape ``(rows, targets)``, of each baseline.

    Arguments are those of :func:`of_classes`, and ``numbers``, the targets of the training rows.
    """
    train, test = splits["train"], splits["test"]
    exact = numbers.astype(np.float64)
    mean, deviation = exact.mean(axis=0), exact.std(axis=0)
    yield "mean", np.tile(mean, (len(test), 1))
    if not (fit and _has_texts(splits, input_column)):
        return
    most = MOST_ROWS, MOST_WEIGHTS // numbers.shape[1]
    texts, others = train[input_column], test[input_column]

    def fitted() -> Fitted | None:
        from sklearn.linear_model import Ridge

        terms = terms_of(texts, others, seed, *most)
        if terms is None:
            return None
        model = Ridge(alpha=1.0).fit(terms.train, ((exact - mean) / deviation)[terms.rows])
        predicted = model.predict(terms.test).reshape(len(others), -1)
        return predicted * deviation + mean, terms.limits

    key = f"numbers {fingerprint} {seed} {most}"
    yield from _named("TF-IDF + ridge regression", key, fitted, len(others), note)


def failed(name: str, error: Exception) -> str:
    """Return the sentence that tells why there is no baseline of that name."""
    first = next(iter(str(error).splitlines()), "")
    return f"no baseline '{name}': {type(error).__name__}: {first}"


def _has_texts(splits: DatasetDict, input_column: str) -> bool:
    return isinstance(splits["train"].features[input_column], Value)


def _named(
    name: str, key: str, fit: Callable[[], Fitted | None], size: int, note: Note
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of a bag of words, with its limits, and its outputs; nothing if it failed."""
    try:
        fitted = _cached(f"{key} {sklearn.__version__} {_CACHE_VERSION}", fit, size)
    except Exception as error:  # whatever it is, the run is worth what it is without
        note(failed(name, error))
        return
    if fitted is not None:
        outputs, limits = fitted
        yield f"{name} ({', '.join(limits)})" if limits else name, outputs


def _cached(key: str, fit: Callable[[], Fitted | None], size: int) -> Fitted | None:
    """Return what was fitted before under a key of all that it depends on, or fit it."""
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    path = hub.caches()["datasets"] / "finetune-baselines" / f"{digest}.npz"
    damage = contextlib.suppress(OSError, ValueError, KeyError, zipfile.BadZipFile)
    with damage, np.load(path, allow_pickle=False) as content:
        return content["outputs"], content["limits"].tolist()
    fitted = fit()
    if fitted is not None and size <= MOST_CACHED:
        with contextlib.suppress(OSError):  # a cache that is only read
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as new, new.open("wb") as file:
                np.savez_compressed(file, outputs=fitted[0], limits=np.array(fitted[1], dtype=str))
    return fitted


def _logarithms(probabilities: np.ndarray) -> np.ndarray:
    """Return them finite, and rounded, so that a cache of them is small."""
    inside = np.maximum(probabilities, np.finfo(np.float64).tiny)
    return np.asarray(np.log(inside).round(_DECIMALS))


def classifier(terms: Any, labels: np.ndarray, classes: int) -> Callable[[Any], np.ndarray]:
    """Return what predicts probabilities, shape ``(rows, classes)``, from terms: logistic
    regression, C = 10; of more than :data:`MOST_OF_REGRESSION` classes complement naive Bayes
    (Rennie et al., 2003), which ranks classes well, but is sure of none; or the only class.

    Args:
        terms: Of the rows to fit on, shape ``(rows, terms)``.
        labels: Their classes, shape ``(rows,)``.
        classes: How many there are; those without a row have the probability 0.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import ComplementNB

    occurring, model = np.unique(labels), None
    if len(occurring) > 1 and classes > MOST_OF_REGRESSION:
        model = ComplementNB()
        step = max(1, MOST_SCORES // classes)  # it makes a number of each row and class
        for start in range(0, len(labels), step):
            some = slice(start, start + step)
            model.partial_fit(terms[some], labels[some], occurring)
    elif len(occurring) > 1:
        model = LogisticRegression(C=10, max_iter=1000).fit(terms, labels)

    def predict(others: Any) -> np.ndarray:
        probabilities = np.zeros((others.shape[0], classes))
        probabilities[:, occurring] = 1 if model is None else model.predict_proba(others)
        return probabilities

    return predict


def terms_of(
    train_texts: Sequence[str],
    test_texts: Sequence[str],
    seed: int,
    most_rows: int = MOST_ROWS,
    most_terms: int = MOST_WEIGHTS,
) -> Terms | None:
    """Return the terms of texts; None if they hold no words of two letters or more.

    Args:
        train_texts: On which terms and weights are fitted.
        test_texts: Others.
        seed: Draws the training texts, where there are more than are used.
        most_rows: How many are used.
        most_terms: How many terms are kept, the most frequent.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    count = min(len(train_texts), most_rows)
    rows = np.random.default_rng(seed).permutation(len(train_texts))[:count]
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, max_features=most_terms)
    try:
        terms = vectorizer.fit_transform(_select(train_texts, rows))
    except ValueError as error:
        if "empty vocabulary" not in str(error):
            raise
        return None
    limits = [f"{count:,} rows"] if count < len(train_texts) else []
    if terms.shape[1] >= most_terms:
        limits.append(f"{most_terms:,} terms")
    return Terms(terms, vectorizer.transform(_iterate(test_texts)), rows, limits)


def _select(texts: Sequence[str], rows: np.ndarray) -> list[str]:
    """Return some texts; of a column of a data set only those are read."""
    if isinstance(texts, Column):
        return list(texts[rows.tolist()])
    return [texts[row] for row in rows]


def _iterate(texts: Sequence[str]) -> Iterator[str]:
    """Yield texts; of a column of a data set some are read at once."""
    for start in range(0, len(texts), _BATCH):
        yield from texts[start : start + _BATCH]
