"""The baselines: what they predict, and what happens where they cannot be fitted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import ClassLabel, Column, Dataset, DatasetDict, Features, Value
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from transformers import EvalPrediction

from finetune.recipe.scoring import Scoring
from finetune.statistics import baseline
from finetune.statistics.baseline import bag_of_words, majority
from finetune.tasks import kinds


def test_majority_is_the_most_frequent_class_of_training() -> None:
    found = majority([2, 0, 2, 1], 4, rows=3)
    assert found.argmax(axis=1).tolist() == [2, 2, 2]
    assert np.exp(found[0]).tolist() == pytest.approx([0.25, 0.25, 0.5, 0])


def test_bag_of_words_learns_words() -> None:
    train = [f"place {number} was {('dull', 'lovely')[number % 2]}" for number in range(40)]
    labels = [number % 2 for number in range(40)]
    fitted = bag_of_words(train, labels, ["lovely", "dull"], seed=0, classes=2)
    assert fitted is not None
    predicted, limits = fitted
    assert predicted.argmax(axis=1).tolist() == [1, 0]
    assert limits == []


@pytest.mark.parametrize(("size", "suffix"), [(6, ".json"), (7, ".npz"), (9, "")])
def test_outputs_are_remembered_in_a_bounded_form(
    size: int, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baseline, "MOST_AS_TEXT", 6)
    monkeypatch.setattr(baseline, "MOST_KEPT", 8)
    monkeypatch.setattr("finetune.runtime.hub.caches", lambda: {"datasets": tmp_path})
    outputs, calls = np.log(np.array([[0.25, 0.75], [0.1, 0.9]])).round(6), []

    def fit() -> tuple[np.ndarray, list[str]]:
        calls.append(1)
        return outputs, ["30 rows"]

    first, second = (baseline.remembered("key", fit, size) for _ in range(2))
    assert first is not None
    assert second is not None
    assert len(calls) == (1 if suffix else 2)
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_allclose(second[0], outputs, rtol=1e-7)
    assert first[1] == second[1] == ["30 rows"]
    kept = [path.suffix for path in (tmp_path / "finetune-baselines").glob("*[!3]")]
    assert kept == ([suffix] if suffix else [])


def test_bag_of_words_of_a_large_set_is_fitted_on_a_share() -> None:
    train = [f"{('dull', 'lovely')[number % 2]} thing" for number in range(100)]
    fitted = bag_of_words(train, np.arange(100) % 2, ["lovely"], seed=0, most_rows=30, classes=2)
    assert fitted is not None
    assert fitted[1] == ["30 rows"]


def test_of_the_texts_of_a_data_set_only_those_sampled_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train = [f"{('dull', 'lovely')[number % 2]} thing {number}" for number in range(100)]
    rows = Dataset.from_dict({"text": train}).select(range(99, -1, -1))
    others: Any = {"seed": 0, "most_rows": 30, "classes": 2}
    labels = np.arange(100) % 2
    whole = bag_of_words(train[::-1], labels, train, **others)
    read: list[Any] = []
    usual = Column.__getitem__
    monkeypatch.setattr(
        Column, "__getitem__", lambda self, key: read.append(key) or usual(self, key)
    )
    found = bag_of_words(rows["text"], labels, Dataset.from_dict({"text": train})["text"], **others)
    assert found is not None
    assert whole is not None
    np.testing.assert_array_equal(found[0], whole[0])
    assert [len(each) for each in read if isinstance(each, list)] == [30]


def test_bag_of_words_of_many_terms_keeps_the_most_frequent() -> None:
    train = [f"{('dull', 'lovely')[number % 2]} thing number{number}" for number in range(100)]
    labels, texts = np.arange(100) % 2, ["lovely", "dull"]
    fitted = bag_of_words(train, labels, texts, seed=0, most_terms=5, classes=2)
    assert fitted is not None
    assert fitted[0].argmax(axis=1).tolist() == [1, 0]
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


def test_of_many_classes_naive_bayes_counts_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logistic regression of 2,000 classes takes a minute, and has to leave out rows and terms."""
    rows = splits(600, 300)
    whole = of(rows, "many classes", pytest.fail)
    name = "TF-IDF + naive Bayes"
    assert list(whole) == ["majority class", name]
    assert (whole[name].argmax(1) == rows["test"]["label"][:]).mean() == 1
    monkeypatch.setattr(baseline, "MOST_SCORES", 10_000)  # 33 rows at once
    monkeypatch.setattr(LogisticRegression, "fit", lambda *_: pytest.fail("too slow"))
    np.testing.assert_allclose(of(rows, "a few rows at once", pytest.fail)[name], whole[name])
    few = DatasetDict(train=rows["train"].select([0, 1, 300, 2]), test=rows["test"])
    found = of(few, "few in training", pytest.fail)[name]
    assert (found[:, :3].min(1) > found[:, 3:].max(1)).all()
    one = DatasetDict(train=rows["train"].select([1, 301]), test=rows["test"])
    assert (of(one, "one in training", pytest.fail)[name].argmax(1) == 1).all()
    monkeypatch.setattr(baseline, "MOST_COUNTS", 300 * 50)
    assert list(of(rows, "a few terms", pytest.fail))[1] == f"{name} (50 terms)"


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
    assert bag_of_words(["A C G T", "T G C A"], [0, 1], ["A A"], seed=0, classes=2) is None


@pytest.mark.parametrize("classes", [2, 4])
def test_probabilities_are_those_of_scikit_learn(classes: int) -> None:
    """The last of four classes has no row of training."""
    generator = np.random.default_rng(0)
    labels = generator.integers(min(classes, 3), size=150)
    words = [["dull", "fair", "lovely"][each] for each in (labels + (labels > 5)) % 3]
    others = generator.choice(["one", "two", "dull", "lovely"], size=150)
    texts = [f"{word} {other}" for word, other in zip(words, others, strict=True)]
    fitted = bag_of_words(texts, labels, texts, seed=0, classes=classes)
    assert fitted is not None
    pipeline = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
        LogisticRegression(C=10, max_iter=1000),
    ).fit(texts, labels)
    expected = pipeline.predict_proba(texts)
    np.testing.assert_allclose(np.exp(fitted[0][:, : expected.shape[1]]), expected, atol=1e-3)
    assert np.exp(fitted[0]).sum(axis=1) == pytest.approx(1, abs=1e-5)


def test_baselines_are_ranked_by_their_probabilities() -> None:
    """By their hard decisions they would be ranked lower."""
    generator = np.random.default_rng(1)
    labels = generator.integers(2, size=400)
    counts = generator.poisson(1 + 2 * np.stack([1 - labels, labels]))
    texts = [f"{'dull ' * no}{'lovely ' * yes}thing" for no, yes in counts.T]
    features = Features(text=Value("string"), label=ClassLabel(names=["bad", "good"]))
    table = Dataset.from_dict({"text": texts, "label": labels.tolist()}, features=features)
    rows = DatasetDict(train=table.select(range(200)), test=table.select(range(200, 400)))
    outputs = of(rows, "ranked", pytest.fail)["TF-IDF + logistic regression"]
    scoring = Scoring(roc_auc={}, average_precision={})
    found = scoring(EvalPrediction(predictions=outputs, label_ids=labels[200:]))
    decided = (outputs.argmax(axis=1) == 1).astype(float)
    assert found["roc_auc"] == roc_auc_score(labels[200:], outputs[:, 1] - outputs[:, 0])
    assert found["roc_auc"] > roc_auc_score(labels[200:], decided) + 0.02
    assert found["average_precision"] > average_precision_score(labels[200:], decided) + 0.02
