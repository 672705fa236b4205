"""What a model of several labels a row has to beat: their prevalence, and a bag of words with a
logistic regression of each label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import sklearn
from datasets import DatasetDict, Value

from finetune.data import targets
from finetune.statistics import baseline

_CACHE_VERSION = 1


def of_labels(
    splits: DatasetDict,
    input_column: str,
    seed: int,
    fingerprint: str,
    *,
    fit: bool,
    note: Callable[[str], object],
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield name and probabilities of each label, shape ``(rows, labels)``, for the rows of
    validation, which thresholds are fitted on, and then of test.

    Arguments are those of :func:`finetune.statistics.baseline.of_classes`.
    """
    train, held, test = splits["train"], splits["validation"], splits["test"]
    has = targets.indicators(train["label"][:], len(targets.class_names(train)))
    shares = has.mean(axis=0)
    yield "prevalence", np.tile(shares, (len(held), 1)), np.tile(shares, (len(test), 1))
    if not (fit and isinstance(train.features[input_column], Value)):
        return
    name, labels = "TF-IDF + logistic regression", has.shape[1]
    bounds = (
        min(baseline.MOST_ROWS, baseline.MOST_SCORES // labels),
        baseline.MOST_WEIGHTS // labels,
    )

    def fitted() -> baseline.Fitted | None:
        others = [*held[input_column][:], *test[input_column][:]]
        return one_vs_rest(train[input_column], has, others, seed, *bounds)

    key = f"labels {fingerprint} {sklearn.__version__} {seed} {bounds} {_CACHE_VERSION}"
    try:
        found = baseline.remembered(key, fitted, (len(held) + len(test)) * labels)
    except Exception as error:  # whatever it is, the run is worth what it is without
        note(baseline.failed(name, error))
        return
    if found is not None:
        probabilities, limits = found
        shown = f"{name} ({', '.join(limits)})" if limits else name
        yield shown, probabilities[: len(held)], probabilities[len(held) :]


def one_vs_rest(
    train_texts: Sequence[str], has: np.ndarray, test_texts: Sequence[str], seed: int, *bounds: int
) -> baseline.Fitted | None:
    """Fit a logistic regression, C = 10, for each label on TF-IDF over one- and two-word terms.

    Args:
        train_texts: The rows that the model was trained on.
        has: Which labels they have, shape ``(rows, labels)``.
        test_texts: The rows to predict.
        seed: Of the sample, if there are more rows than the bound.
        *bounds: The most rows, and the most terms.

    Returns:
        The probabilities of the test texts, shape ``(rows, labels)``, and in words where the
        baseline was bounded; None if the texts hold no words of two letters or more.
    """
    from sklearn.linear_model import LogisticRegression

    terms = baseline.terms_of(train_texts, test_texts, seed, *bounds)
    if terms is None:
        return None
    columns = []
    for label in has[terms.rows].T:
        if label.all() or not label.any():  # there is nothing to tell apart
            columns.append(np.full(len(test_texts), float(label[0])))
            continue
        model = LogisticRegression(C=10, max_iter=1000).fit(terms.train, label)
        columns.append(model.predict_proba(terms.test)[:, 1])
    return np.round(np.stack(columns, axis=1), 6), terms.limits
