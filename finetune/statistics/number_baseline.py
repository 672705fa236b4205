"""What a regression has to beat: the mean, and a bag of words with ridge regression."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import sklearn
from datasets import DatasetDict, Value

from finetune.statistics import baseline
from finetune.statistics.baseline import MOST_ROWS, MOST_WEIGHTS, Fitted

_CACHE_VERSION = 1  # increment when the same rows should yield other numbers


def of_numbers(
    splits: DatasetDict,
    input_column: str,
    seed: int,
    fingerprint: str,
    targets: np.ndarray,
    *,
    fit: bool,
    note: Callable[[str], object],
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what each baseline predicts for the test rows, shape ``(rows, targets)``, after its
    name.

    Args:
        splits: ``train`` and ``test``, raw.
        input_column: Of the texts or images; only texts have a bag of words.
        seed: Of the rows sampled by :func:`bag_of_words`.
        fingerprint: Of the splits: a bag of words that was fitted on them before is not again.
        targets: Of the training rows, shape ``(rows, targets)``.
        fit: Whether to have a bag of words at all.
        note: Is given a sentence if the bag of words fails.
    """
    train, test = splits["train"], splits["test"]
    yield "mean", np.tile(targets.mean(axis=0, dtype=np.float64), (len(test), 1))
    if not fit or not isinstance(train.features[input_column], Value):
        return
    name, bounds = "TF-IDF + ridge regression", (MOST_ROWS, MOST_WEIGHTS // targets.shape[1])
    key = f"ridge {fingerprint} {sklearn.__version__} {seed} {bounds} {_CACHE_VERSION}"
    texts, others = train[input_column], test[input_column]
    try:
        fitted = baseline.remembered(
            key, lambda: bag_of_words(texts, targets, others, seed, *bounds)
        )
    except Exception as error:  # whatever it is, the run is worth what it is without
        note(baseline.failed(name, error))
        return
    if fitted is not None:
        numbers, limits = fitted
        yield f"{name} ({', '.join(limits)})" if limits else name, numbers


def bag_of_words(
    train_texts: Sequence[str],
    train_targets: np.ndarray,
    test_texts: Sequence[str],
    seed: int,
    most_rows: int = MOST_ROWS,
    most_terms: int = MOST_WEIGHTS,
) -> Fitted | None:
    """Predict with the terms of :func:`finetune.statistics.baseline.terms_of` and ridge regression,
    alpha = 1, on standardized targets.

    Args:
        train_texts: The rows that the model was trained on.
        train_targets: Their numbers, shape ``(rows, targets)``.
        test_texts: The rows to predict.
        seed: Of the sample, if there are more than ``most_rows``.
        most_rows: On how many it is fitted at most.
        most_terms: How many terms it has at most, the most frequent ones.

    Returns:
        The numbers of each test text, shape ``(rows, targets)``, and in words where the baseline
        was bounded; None if the texts hold no words of two letters or more.
    """
    from sklearn.linear_model import Ridge

    found = baseline.terms_of(train_texts, test_texts, seed, most_rows, most_terms)
    if found is None:
        return None
    exact = train_targets.astype(np.float64)
    mean, deviation = exact.mean(axis=0), exact.std(axis=0)
    model = Ridge(alpha=1.0).fit(found.train, ((exact - mean) / deviation)[found.rows])
    predicted = model.predict(found.test).reshape(len(test_texts), -1)
    return predicted * deviation + mean, found.limits
