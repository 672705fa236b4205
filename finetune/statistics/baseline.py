"""What a classifier has to beat: the majority class, a bag of words with logistic regression, or
with naive Bayes where there are many classes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from datasets import Column, DatasetDict, Value

from finetune.runtime import hub
from finetune.runtime.files import replacing, write_whole
from finetune.statistics import blocks

#: More rows take scikit-learn longer than the training of the model itself.
MOST_ROWS = 100_000
#: Terms times classes, and rows times classes: L-BFGS holds some 25 numbers for each weight, and
#: one for each row and class.
MOST_WEIGHTS, MOST_SCORES = 6_000_000, 20_000_000
#: Of more classes logistic regression would have to leave out rows, and of 2,000 classes all but
#: 3,000 terms, and would still take a minute: naive Bayes counts, with these terms times classes.
MOST_OF_REGRESSION, MOST_COUNTS = 200, 20_000_000
#: Outputs of more rows and classes are kept as float32 instead of text, up to 200 MB; beyond, they
#: would fill a disk and are computed by each training.
MOST_AS_TEXT, MOST_KEPT = 2_000_000, 50_000_000
#: What is predicted for each test text, and in words where the baseline was bounded.
Fitted = tuple[np.ndarray, list[str]]
_CACHE_VERSION = 2  # increment when the same rows should yield other outputs
_DECIMALS = 6
_BATCH = 1000  # texts


def of_classes(
    splits: DatasetDict,
    input_column: str,
    seed: int,
    fingerprint: str,
    classes: int,
    *,
    fit: bool,
    note: Callable[[str], object] = lambda sentence: None,
) -> dict[str, np.ndarray]:
    """Return the logarithms of the probabilities that each baseline gives the classes of the test
    rows, shape ``(rows, classes)``, by its name.

    Args:
        splits: ``train`` and ``test``, raw.
        input_column: Of the texts or images; only texts have a bag of words.
        seed: Of the rows sampled by :func:`bag_of_words`.
        fingerprint: Of the splits: a bag of words that was fitted on them before is not again.
        classes: How many there are.
        fit: Whether to have a bag of words at all.
        note: Is given a sentence if the bag of words fails.
    """
    train, test = splits["train"], splits["test"]
    predicted = {"majority class": majority(train["label"][:], classes, len(test))}
    if fit and isinstance(train.features[input_column], Value):
        texts, labels, others = train[input_column], train["label"][:], test[input_column]
        bounded = bounds(classes)
        key = f"{fingerprint} {sklearn.__version__} {seed} {bounded} {_CACHE_VERSION}"
        name = "TF-IDF + " + ("naive Bayes" if _many(classes) else "logistic regression")
        try:
            fitted = remembered(
                key,
                lambda: bag_of_words(texts, labels, others, seed, *bounded, classes=classes),
                len(others) * classes,
            )
        except Exception as error:  # whatever it is, the run is worth what it is without
            note(failed(name, error))
            fitted = None
        if fitted is not None:
            words, limits = fitted
            predicted[f"{name} ({', '.join(limits)})" if limits else name] = words
    return predicted


def failed(name: str, error: Exception) -> str:
    """Return the sentence that tells why there is no baseline of that name."""
    first = next(iter(str(error).splitlines()), "")
    return f"no baseline '{name}': {type(error).__name__}: {first}"


def bounds(classes: int) -> tuple[int, int]:
    """Return how many rows and how many terms the bag of words has at most."""
    if _many(classes):
        return MOST_ROWS, MOST_COUNTS // classes
    of_binary = classes if classes > 2 else 1
    return min(MOST_ROWS, MOST_SCORES // of_binary), MOST_WEIGHTS // of_binary


def _many(classes: int) -> bool:
    return classes > MOST_OF_REGRESSION


def remembered(key: str, fit: Callable[[], Fitted | None], size: int = 0) -> Fitted | None:
    """Return what was fitted before under that key, or fit it; what cannot be read is fitted again.

    Args:
        key: Of everything that it depends on.
        fit: Returns it.
        size: How many numbers that will be. Of more than :data:`MOST_AS_TEXT` float32 is kept, and
            returned already by the first call; of more than :data:`MOST_KEPT` nothing.
    """
    if size > MOST_KEPT:
        return fit()
    as_text = size <= MOST_AS_TEXT
    name = hashlib.sha256(key.encode()).hexdigest()[:16] + (".json" if as_text else ".npz")
    cached = hub.caches()["datasets"] / "finetune-baselines" / name
    # missing or damaged
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return _read(cached)
    fitted = fit()
    if fitted and not as_text:
        fitted = fitted[0].astype(np.float32), fitted[1]
    with contextlib.suppress(OSError):  # a cache that is only read
        cached.parent.mkdir(parents=True, exist_ok=True)
        if fitted and not as_text:
            with replacing(cached) as new, new.open("wb") as file:
                np.savez_compressed(file, classes=fitted[0], limits=np.array(fitted[1], dtype=str))
        else:
            content = fitted and {"classes": fitted[0].tolist(), "limits": fitted[1]}
            write_whole(cached, json.dumps(content))
    return fitted


def _read(cached: Path) -> Fitted | None:
    if zipfile.is_zipfile(cached):
        with np.load(cached) as content:
            return content["classes"], content["limits"].tolist()
    found = json.loads(cached.read_text(encoding="utf-8"))
    return found and (np.asarray(found["classes"]), found["limits"])


def majority(train_labels: Sequence[int], classes: int, rows: int) -> np.ndarray:
    """Return the logarithm of the share of each class in training, shape ``(rows, classes)``.

    Args:
        train_labels: The class of each training row.
        classes: How many there are.
        rows: How many rows to return.
    """
    counts = np.bincount(np.asarray(train_labels), minlength=classes)
    return np.broadcast_to(_logarithms(counts / counts.sum()), (rows, classes))


def _logarithms(probabilities: np.ndarray) -> np.ndarray:
    """Return them rounded, so that a cache of them is small, and finite."""
    inside = np.maximum(probabilities, np.finfo(np.float64).tiny)
    return np.asarray(np.log(inside).round(_DECIMALS))


def bag_of_words(
    train_texts: Sequence[str],
    train_labels: Sequence[int],
    test_texts: Sequence[str],
    seed: int,
    most_rows: int = MOST_ROWS,
    most_terms: int = MOST_WEIGHTS,
    *,
    classes: int,
) -> Fitted | None:
    """Predict with TF-IDF over one- and two-word terms, sublinear, and :func:`classifier`.

    Args:
        train_texts: The rows that the model was trained on.
        train_labels: Their classes.
        test_texts: The rows to predict.
        seed: Of the sample, if there are more than ``most_rows``.
        most_rows: On how many it is fitted at most.
        most_terms: How many terms it has at most, the most frequent ones.
        classes: How many there are.

    Returns:
        The logarithms of the probabilities of the test texts, shape ``(rows, classes)``, and in
        words where the baseline was bounded; None if the texts hold no words of two letters or
        more.
    """
    found = terms_of(train_texts, test_texts, seed, most_rows, most_terms)
    if found is None:
        return None
    predict = classifier(found.train, np.asarray(train_labels)[found.rows], classes)
    # of many rows and classes the numbers would fill the memory, and are not remembered
    precision = np.float32 if len(test_texts) * classes > MOST_KEPT else np.float64
    outputs = np.empty((len(test_texts), classes), dtype=precision)
    for some in blocks.slices(*outputs.shape):
        outputs[some] = _logarithms(predict(found.test[some]))
    return outputs, found.limits


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

    there, model = np.unique(labels), None
    if len(there) > 1 and _many(classes):
        model = ComplementNB()
        step = max(1, MOST_SCORES // classes)  # it makes a number of each row and class
        for start in range(0, len(labels), step):
            some = slice(start, start + step)
            model.partial_fit(terms[some], labels[some], there)
    elif len(there) > 1:
        model = LogisticRegression(C=10, max_iter=1000).fit(terms, labels)

    def predict(others: Any) -> np.ndarray:
        found = np.zeros((others.shape[0], classes))
        found[:, there] = 1 if model is None else model.predict_proba(others)
        return found

    return predict


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


def terms_of(
    train_texts: Sequence[str],
    test_texts: Sequence[str],
    seed: int,
    most_rows: int = MOST_ROWS,
    most_terms: int = MOST_WEIGHTS,
) -> Terms | None:
    """Return the terms of texts, None if there are none; see :func:`bag_of_words`.

    Args:
        train_texts: On which terms and weights are fitted.
        test_texts: Others.
        seed: Draws the training texts, where there are more than are used.
        most_rows: How many are used.
        most_terms: How many terms are kept, the most frequent.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    fitted_on = min(len(train_texts), most_rows)
    chosen = np.random.default_rng(seed).permutation(len(train_texts))[:fitted_on]
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, max_features=most_terms)
    try:
        terms = vectorizer.fit_transform(_taken(train_texts, chosen))
    except ValueError as error:
        if "empty vocabulary" not in str(error):
            raise
        return None
    limits = [f"{fitted_on:,} rows"] if fitted_on < len(train_texts) else []
    if terms.shape[1] >= most_terms:
        limits.append(f"{most_terms:,} terms")
    return Terms(terms, vectorizer.transform(_each(test_texts)), chosen, limits)


def _taken(texts: Sequence[str], numbers: np.ndarray) -> list[str]:
    """Return some texts; of a column of a data set only those are read."""
    if isinstance(texts, Column):
        return list(texts[numbers.tolist()])
    return [texts[number] for number in numbers]


def _each(texts: Sequence[str]) -> Iterator[str]:
    """Yield texts; of a column of a data set some are read at once."""
    for start in range(0, len(texts), _BATCH):
        yield from texts[start : start + _BATCH]
