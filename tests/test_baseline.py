"""The baselines: what they predict, and what happens where they cannot be fitted."""

from collections.abc import Callable

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from sklearn.linear_model import LogisticRegression

from finetune.statistics import baseline
from finetune.statistics.baseline import bag_of_words, majority
from finetune.tasks import kinds


def test_majority_is_the_most_frequent_class_of_training() -> None:
    assert majority([2, 0, 2, 1], 3).tolist() == [2, 2, 2]


def test_bag_of_words_learns_words() -> None:
    train = [f"place {number} was {('dull', 'lovely')[number % 2]}" for number in range(40)]
    fitted = bag_of_words(train, [number % 2 for number in range(40)], ["lovely", "dull"], seed=0)
    assert fitted is not None
    predicted, limits = fitted
    assert predicted.tolist() == [1, 0]
    assert limits == []


def test_bag_of_words_of_a_large_set_is_fitted_on_a_share() -> None:
    train = [f"{('dull', 'lovely')[number % 2]} thing" for number in range(100)]
    fitted = bag_of_words(train, np.arange(100) % 2, ["lovely"], seed=0, most_rows=30)
    assert fitted is not None
    assert fitted[1] == ["30 rows"]


def test_bag_of_words_of_many_terms_keeps_the_most_frequent() -> None:
    train = [f"{('dull', 'lovely')[number % 2]} thing number{number}" for number in range(100)]
    fitted = bag_of_words(train, np.arange(100) % 2, ["lovely", "dull"], seed=0, most_terms=5)
    assert fitted is not None
    assert fitted[0].tolist() == [1, 0]
    assert fitted[1] == ["5 terms"]


def splits(rows: int, classes: int) -> DatasetDict:
    names = [f"class {number}" for number in range(classes)]
    features = Features(text=Value("string"), label=ClassLabel(names=names))
    labels = [number % classes for number in range(rows)]
    texts = [f"text {number} is of{label}" for number, label in enumerate(labels)]
    table = Dataset.from_dict({"text": texts, "label": labels}, features=features)
    return DatasetDict(train=table, test=table)


def of(rows: DatasetDict, identity: str, note: Callable[[str], object]) -> dict[str, np.ndarray]:
    task = kinds.of_rows(rows["train"])
    return dict(task.baselines(rows, "text", 0, identity, fit=True, note=note))


def test_terms_and_rows_are_bounded_by_the_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2,000 classes, a weight for each of a million terms would take 100 GiB."""
    monkeypatch.setattr(baseline, "MOST_WEIGHTS", 400)
    monkeypatch.setattr(baseline, "MOST_SCORES", 1_000)
    found = of(splits(200, 10), "bounded", pytest.fail)
    bounded = "TF-IDF + logistic regression (100 rows, 40 terms)"
    assert list(found) == ["majority class", bounded]
    assert found[bounded].shape == (200, 10)
    binary = of(splits(200, 2), "binary", pytest.fail)
    assert list(binary) == ["majority class", "TF-IDF + logistic regression (400 terms)"]


def test_a_bag_of_words_that_fails_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("Unable to allocate 100. GiB")

    monkeypatch.setattr(LogisticRegression, "fit", fail)
    notes: list[str] = []
    found = of(splits(40, 4), "failing", notes.append)
    assert list(found) == ["majority class"]
    assert notes == [
        "no baseline 'TF-IDF + logistic regression': MemoryError: Unable to allocate 100. GiB"
    ]


def test_texts_without_words_have_no_bag_of_words() -> None:
    assert bag_of_words(["A C G T", "T G C A"], [0, 1], ["A A"], seed=0) is None
