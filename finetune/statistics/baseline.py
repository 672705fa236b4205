"""What a model has to beat: the majority class, and a bag of words with logistic regression.

In a regression, the mean of the training labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import joblib
import numpy as np
import sklearn
from datasets import DatasetDict, Value

from finetune.data.labels import class_names
from finetune.runtime import hub

#: More rows take scikit-learn longer than the training of the model itself.
MOST_ROWS = 100_000


def outputs(
    splits: DatasetDict, input_column: str, seed: int, fingerprint: str, *, fit: bool
) -> dict[str, np.ndarray]:
    """What each baseline says of the test rows, in the shape of the outputs of a model.

    Args:
        splits: ``train`` and ``test``, raw.
        input_column: Of the texts or images; only texts have a bag of words.
        seed: Of the draw of :func:`bag_of_words`.
        fingerprint: Of the splits: a bag of words that was fitted on them before is not again.
        fit: Whether to have a bag of words at all.

    Returns:
        By name, shape ``(rows, classes)``, one where the baseline says the class; in a regression
        shape ``(rows, 1)``.
    """
    train, test = splits["train"], splits["test"]
    names = class_names(train)
    if not names:
        return {"mean": np.full((len(test), 1), np.mean(train["label"][:]), dtype=np.float32)}
    predicted = {"majority class": majority(train["label"][:], len(test))}
    if fit and isinstance(train.features[input_column], Value):
        memory = joblib.Memory(hub.caches()["datasets"] / "finetune-baselines", verbose=0)
        rows = ["train_texts", "train_labels", "test_texts"]  # the fingerprint stands for them
        texts, labels, others = train[input_column][:], train["label"][:], test[input_column][:]
        identity = f"{fingerprint} {sklearn.__version__}"
        fitted = memory.cache(bag_of_words, ignore=rows)(
            texts, labels, others, seed, MOST_ROWS, identity
        )
        if fitted is not None:
            words, count = fitted
            limited = f" ({count:,} rows)" if count < len(train) else ""
            predicted[f"TF-IDF + logistic regression{limited}"] = words
    return {name: np.eye(len(names))[classes] for name, classes in predicted.items()}


def majority(train_labels: Sequence[int], rows: int) -> np.ndarray:
    """The most frequent class of training, for each of ``rows`` rows."""
    return np.full(rows, np.bincount(np.asarray(train_labels)).argmax())


def bag_of_words(
    train_texts: Sequence[str],
    train_labels: Sequence[int],
    test_texts: Sequence[str],
    seed: int,
    most_rows: int = MOST_ROWS,
    identity: str = "",
) -> tuple[np.ndarray, int] | None:
    """Predictions of TF-IDF over one- and two-word terms, sublinear, with logistic regression, C =
    10.

    Args:
        train_texts: The rows that the model was trained on.
        train_labels: Their classes.
        test_texts: The rows to predict.
        seed: Of the draw, if there are more than ``most_rows``.
        most_rows: On how many it is fitted at most.
        identity: Stands for the texts and labels where the result is remembered.

    Returns:
        The class of each test text, and on how many rows the baseline was fitted; None if the texts
        hold no words of two letters or more.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    fitted_on = min(len(train_texts), most_rows)
    chosen = np.random.default_rng(seed).permutation(len(train_texts))[:fitted_on]
    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
        LogisticRegression(C=10, max_iter=1000),
    )
    try:
        model.fit([train_texts[index] for index in chosen], np.asarray(train_labels)[chosen])
    except ValueError as error:
        if "empty vocabulary" not in str(error):
            raise
        return None
    return model.predict(test_texts), fitted_on
