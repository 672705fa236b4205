"""The threshold of two classes that is best on the validation rows."""

import numpy as np
import pytest
import sklearn.metrics

from finetune.reporting import ranking
from finetune.statistics import counts, threshold
from finetune.statistics.scored import ScoredRows
from tests.runs import trained


def scored(rows: int, seed: int, share: float = 0.3) -> ScoredRows:
    """Rows whose probability of the second class is too low by half."""
    generator = np.random.default_rng(seed)
    labels = (generator.random(rows) < share).astype(int)
    probability = generator.beta(2 + 2 * labels, 4 - labels) / 2
    return ScoredRows(["no", "yes"], labels, np.stack([1 - probability, probability], axis=1))


def f1(rows: ScoredRows, positive: int, value: float) -> float:
    chosen = np.where(rows.probabilities[:, positive] >= value, positive, 1 - positive)
    return float(sklearn.metrics.f1_score(rows.labels, chosen, pos_label=positive))


@pytest.mark.parametrize("positive", [0, 1])
def test_no_threshold_is_better_on_the_validation_rows(positive: int) -> None:
    validated, tested = scored(300, seed=0), scored(300, seed=1)
    metric = counts.metric("f1", {"pos_label": positive})
    assert metric is not None
    found = threshold.chosen("f1", metric, validated, tested, positive)
    assert found is not None
    assert found["class"] == ("no", "yes")[positive]
    thresholds = [*np.unique(validated.probabilities[:, positive]), 1.0]
    every = [f1(validated, positive, each) for each in thresholds]
    assert found["validation"] == pytest.approx(f1(validated, positive, found["value"]))
    assert found["validation"] >= max(every) - 1e-12
    assert found["validation_at_half"] == pytest.approx(f1(validated, positive, 0.5))
    gain = f1(tested, positive, found["value"]) - f1(tested, positive, 0.5)
    assert found["test"]["value"] == pytest.approx(gain)
    assert found["test"]["low"] <= gain <= found["test"]["high"]


def test_the_test_rows_do_not_move_the_threshold() -> None:
    validated = scored(300, seed=0)
    values = {
        threshold.chosen("accuracy", counts.accuracy, validated, scored(300, seed), 1)["value"]
        for seed in range(1, 6)
    }
    assert len(values) == 1


def test_half_is_kept_where_nothing_is_better() -> None:
    labels = np.arange(80) % 2
    right = np.where(labels == 1, 0.9, 0.1)
    rows = ScoredRows(["no", "yes"], labels, np.stack([1 - right, right], axis=1))
    found = threshold.chosen("accuracy", counts.accuracy, rows, rows, 1)
    assert found is not None
    assert (found["value"], found["validation"]) == (0.5, 1.0)
    assert ranking.sentence(found) == (
        "On the validation rows no threshold has a higher accuracy than 0.5."
    )


def test_probabilities_of_one_and_zero_have_thresholds() -> None:
    labels = np.repeat([0, 1], 40)
    sure = np.tile([0.0, 1.0], 40)
    rows = ScoredRows(["no", "yes"], labels, np.stack([1 - sure, sure], axis=1))
    found = threshold.chosen("accuracy", counts.accuracy, rows, rows, 1)
    assert found is not None
    assert (found["value"], found["validation"]) == (0.5, 0.5)


def test_few_rows_have_no_threshold() -> None:
    rows = scored(40, seed=0)
    assert threshold.chosen("accuracy", counts.accuracy, rows, rows, 1) is None


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (-0.01, 0.03, "(95% CI \N{MINUS SIGN}0.010 to +0.030); the difference may be chance."),
        (0.01, 0.03, "(95% CI +0.010 to +0.030)."),
    ],
)
def test_a_gain_that_may_be_chance_is_told(low: float, high: float, words: str) -> None:
    found = {
        "metric": "f1",
        "class": "yes",
        "value": 0.31,
        "validation": 0.8,
        "validation_at_half": 0.7,
        "test": {"value": 0.02, "low": low, "high": high},
    }
    said = ranking.sentence(found)
    assert "F1 on the validation rows is highest, 0.800 (0.700 at 0.5)" in said
    assert "'yes' is predicted from the probability 0.310 on" in said
    assert said.endswith(words)


@pytest.mark.parametrize(
    ("metric", "is_known"),
    [("f1", True), ("accuracy", True), ("loss", False), ("None", False), ("recall", False)],
)
def test_the_threshold_is_that_of_the_metric_the_model_is_chosen_by(
    metric: str, is_known: bool
) -> None:
    scoring = trained().manifest.scoring | {"recall": {"average": "macro"}}
    found = trained().kind.threshold(scored(300, seed=0), scored(300, seed=1), metric, scoring)
    assert (found is not None) == is_known
    if found is not None:
        assert found["metric"] == metric
        assert found["class"] == "yes"
