"""The baselines of a regression: what they predict, and what happens where they cannot fit."""

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge

from finetune.statistics import number_baseline
from finetune.statistics.number_baseline import bag_of_words, of_numbers

WORDS = ("dull", "fair", "lovely", "splendid")


def splits(rows: int) -> tuple[DatasetDict, np.ndarray]:
    generator = np.random.default_rng(0)
    drawn = generator.integers(4, size=(rows, 3))
    texts = [" ".join(WORDS[each] for each in row) for row in drawn]
    targets = np.stack([100 + drawn.mean(axis=1), 0.01 * drawn[:, 0]], axis=1).astype(np.float32)
    table = Dataset.from_dict({"text": texts})
    return DatasetDict(train=table, test=table.select(range(20))), targets


def test_words_predict_their_numbers() -> None:
    rows, targets = splits(400)
    found = dict(of_numbers(rows, "text", 0, "some", targets, fit=True, note=pytest.fail))
    assert list(found) == ["mean", "TF-IDF + ridge regression"]
    np.testing.assert_allclose(found["mean"], np.tile(targets.astype(float).mean(axis=0), (20, 1)))
    ridge = found["TF-IDF + ridge regression"]
    assert ridge.shape == (20, 2)
    assert np.corrcoef(ridge[:, 0], targets[:20, 0])[0, 1] > 0.9
    terms = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    exact = targets.astype(np.float64)
    own = Ridge(alpha=1.0)
    own.fit(terms.fit_transform(rows["train"]["text"][:]), exact[:, 0])
    np.testing.assert_allclose(
        ridge[:, 0], own.predict(terms.transform(rows["test"]["text"][:])), rtol=1e-5
    )
    again = dict(of_numbers(rows, "text", 0, "some", targets, fit=True, note=pytest.fail))
    np.testing.assert_array_equal(again["TF-IDF + ridge regression"], ridge)  # from the cache
    alone = of_numbers(rows, "text", 0, "some", targets, fit=False, note=pytest.fail)
    assert [name for name, _ in alone] == ["mean"]


def test_a_large_set_is_fitted_on_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_baseline, "MOST_ROWS", 50)
    monkeypatch.setattr(number_baseline, "MOST_WEIGHTS", 8)
    rows, targets = splits(400)
    found = dict(of_numbers(rows, "text", 0, "bounded", targets, fit=True, note=pytest.fail))
    assert list(found) == ["mean", "TF-IDF + ridge regression (50 rows, 4 terms)"]


def test_a_failure_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("Unable to allocate 100. GiB")

    monkeypatch.setattr(Ridge, "fit", fail)
    rows, targets = splits(40)
    notes: list[str] = []
    found = of_numbers(rows, "text", 0, "failing", targets, fit=True, note=notes.append)
    assert [name for name, _ in found] == ["mean"]
    assert notes == [
        "no baseline 'TF-IDF + ridge regression': MemoryError: Unable to allocate 100. GiB"
    ]


def test_texts_without_words_have_no_bag_of_words() -> None:
    assert bag_of_words(["A C", "T G"], np.array([[0.0], [1.0]]), ["A A"], seed=0) is None
