"""What a model has to beat: the most frequent class or the mean, and a bag of words with a linear
model, or with naive Bayes where there are many classes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import DatasetDict, Value
from scipy.special import logit

from finetune.data import targets
from finetune.statistics.scored import slices

#: More rows take scikit-learn longer than the training of the model itself.
MOST_ROWS = 100_000
#: Terms times classes, and rows times classes: L-BFGS holds some 25 numbers for each weight, and
#: one for each row and class.
MOST_WEIGHTS, MOST_SCORES = 6_000_000, 20_000_000
#: Of more classes logistic regression would have to leave out rows, and would still take a minute:
#: naive Bayes counts, with these terms times classes.
MOST_OF_REGRESSION, MOST_COUNTS = 200, 20_000_000
_MOST_DOUBLE = 50_000_000  # outputs of classes; more are kept as float32


@dataclass(frozen=True, kw_only=True)
class Source:
    """What baselines are fitted on."""

    splits: DatasetDict  # raw: train, test and, for thresholds, validation
    column: str  # of the texts or images; only texts have a bag of words
    seed: int  # draws the rows to fit on where there are too many
    fit: bool  # whether to have a bag of words
    note: Callable[[str], object]  # called with a sentence if it fails


def of_classes(source: Source, classes: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of each baseline, and the logarithms of its probabilities for the classes of
    the test rows, shape ``(rows, classes)``.
    """
    labels = np.asarray(source.splits["train"]["label"][:])
    shares = np.bincount(labels, minlength=classes) / len(labels)
    yield "majority class", np.broadcast_to(_logs(shares), (len(source.splits["test"]), classes))

    def fit(train: Any, test: Any, rows: np.ndarray) -> np.ndarray:
        predict = classifier(train, labels[rows], classes)
        shape = test.shape[0], classes
        outputs = np.empty(shape, np.float32 if np.prod(shape) > _MOST_DOUBLE else np.float64)
        for chosen in slices(*shape):
            outputs[chosen] = _logs(predict(test[chosen]))
        return outputs

    name = "naive Bayes" if classes > MOST_OF_REGRESSION else "logistic regression"
    yield from _bag_of_words(source, name, ["test"], bounds(classes), fit)


def of_labels(source: Source) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of each baseline, and its logits for each label of the rows of validation,
    which thresholds are fitted on, then of test, shape ``(rows, labels)``.
    """
    train = source.splits["train"]
    has = targets.indicators(train["label"][:], len(targets.class_names(train)))
    shape = sum(len(source.splits[name]) for name in ("validation", "test")), has.shape[1]
    yield "prevalence", np.broadcast_to(_logits(has.mean(axis=0)), shape)

    def fit(train: Any, test: Any, rows: np.ndarray) -> np.ndarray:
        logits = np.empty(shape, np.float32)
        for number, label in enumerate(has[rows].T):
            predict = classifier(train, label.astype(np.int64), 2)
            logits[:, number] = _logits(predict(test)[:, 1].round(6))
        return logits

    bound = min(MOST_ROWS, MOST_SCORES // shape[1]), MOST_WEIGHTS // shape[1]
    yield from _bag_of_words(source, "logistic regression", ["validation", "test"], bound, fit)


def of_numbers(source: Source) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of each baseline, and its numbers for the test rows, ``(rows, targets)``."""
    train = source.splits["train"]
    labels = np.asarray(targets.values(train), dtype=np.float32).reshape(len(train), -1)
    mean, spread = labels.mean(axis=0, dtype=np.float64), labels.astype(np.float64).std(axis=0)
    yield "mean", np.tile(mean, (len(source.splits["test"]), 1))

    def fit(train: Any, test: Any, rows: np.ndarray) -> np.ndarray:
        from sklearn.linear_model import Ridge

        model = Ridge(alpha=1.0).fit(train, ((labels - mean) / spread)[rows])
        return np.asarray(model.predict(test).reshape(test.shape[0], -1) * spread + mean)

    bound = MOST_ROWS, MOST_WEIGHTS // labels.shape[1]
    yield from _bag_of_words(source, "ridge regression", ["test"], bound, fit)


def bounds(classes: int) -> tuple[int, int]:
    """Return how many rows and terms a bag of words of classes has at most."""
    if classes > MOST_OF_REGRESSION:
        return MOST_ROWS, MOST_COUNTS // classes
    columns = classes if classes > 2 else 1
    return min(MOST_ROWS, MOST_SCORES // columns), MOST_WEIGHTS // columns


def classifier(terms: Any, labels: np.ndarray, classes: int) -> Callable[[Any], np.ndarray]:
    """Return what predicts probabilities, shape ``(rows, classes)``, from terms: logistic
    regression, C = 10; of more than :data:`MOST_OF_REGRESSION` classes complement naive Bayes
    (Rennie et al., 2003), which ranks classes well, but is sure of none; or the only class.

    ``terms`` is a sparse matrix, shape ``(rows, terms)``; classes without a row have no chance.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import ComplementNB

    present = np.unique(labels)
    if len(present) > 1 and classes <= MOST_OF_REGRESSION:
        model = LogisticRegression(C=10, max_iter=1000).fit(terms, labels)
    else:  # of a single class it is sure, which logistic regression refuses
        model = ComplementNB()
        step = max(1, MOST_SCORES // classes)  # it makes a number of each row and class
        for start in range(0, len(labels), step):
            chosen = slice(start, start + step)
            model.partial_fit(terms[chosen], labels[chosen], present)

    def predict(terms: Any) -> np.ndarray:
        probabilities = np.zeros((terms.shape[0], classes))
        probabilities[:, present] = model.predict_proba(terms)
        return probabilities

    return predict


def _bag_of_words(
    source: Source,
    model: str,
    splits: Sequence[str],
    bound: tuple[int, int],
    fit: Callable[[Any, Any, np.ndarray], np.ndarray],
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the outputs for some splits, unless there are no words.

    ``fit`` is called with sparse matrices of the most frequent one- and two-word terms by sublinear
    TF-IDF, of the rows to fit on and those to predict, and with the numbers of the rows to fit on.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    train = source.splits["train"]
    most_rows, most_terms = bound
    if not (source.fit and isinstance(train.features[source.column], Value)):
        return
    rows = np.random.default_rng(source.seed).permutation(len(train))[:most_rows]
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, max_features=most_terms)
    # a batch at a time: a column reads whole
    columns = (source.splits[name].select_columns([source.column]) for name in splits)
    texts = (text for rows in columns for batch in rows.iter(1000) for text in batch[source.column])
    try:
        terms = vectorizer.fit_transform(train[source.column][rows.tolist()])
        outputs = fit(terms, vectorizer.transform(texts), rows)
    except Exception as error:  # whatever it is, the run is worth what it is without
        if "empty vocabulary" not in str(error):
            source.note(failed(f"TF-IDF + {model}", error))
        return
    limit = f" ({most_rows:,} rows)" if len(train) > most_rows else ""
    yield f"TF-IDF + {model}{limit}", outputs


def failed(name: str, error: Exception) -> str:
    """Return the sentence that says why there is no baseline of that name."""
    first = next(iter(str(error).splitlines()), "")
    return f"no baseline '{name}': {type(error).__name__}: {first}"


def _logs(probabilities: np.ndarray) -> np.ndarray:
    """Return logarithms, rounded and finite."""
    return np.asarray(np.log(np.maximum(probabilities, np.finfo(np.float64).tiny)).round(6))


def _logits(probabilities: np.ndarray) -> np.ndarray:
    return np.asarray(logit(np.clip(probabilities, 1e-7, 1 - 1e-7)), dtype=np.float32)
