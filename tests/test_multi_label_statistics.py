"""How often the intervals of several labels a row hold the truth, in simulations.

400 rows with four labels that 50, 30, 10 and 5% of the rows have: the rarest has 20 on average.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    f1_score,
    hamming_loss,
    log_loss,
)

from finetune.recipe import scoring
from finetune.statistics import average_precision, multi_label
from finetune.statistics.scored import ScoredLabels

ROWS, PREVALENCES = 400, (0.5, 0.3, 0.1, 0.05)
AVERAGES = ("micro", "macro", "samples")
Found = Mapping[str, Mapping[str, Any]]


def drawn(rows: int, seed: int) -> tuple[ScoredLabels, ScoredLabels]:
    """Return two models of the same rows; the errors of one are half those of the other."""
    generator = np.random.default_rng(seed)
    has = generator.random((rows, len(PREVALENCES))) < PREVALENCES
    common, own = generator.normal(size=(2, *has.shape))
    logits = 1.5 * (2 * has - 1) + common - 0.5
    names = list("abcd")
    return (
        ScoredLabels(names, has, expit(logits)),
        ScoredLabels(names, has, expit(logits + 0.4 * (2 * has - 1) + own / 2)),
    )


def of_one(rows: int, seed: int) -> Found:
    return multi_label.scores(drawn(rows, seed)[0])


def of_two(rows: int, seed: int) -> Found:
    return multi_label.differences(*drawn(rows, seed))


def values(rows: ScoredLabels) -> dict[str, float]:
    """Return the metrics by scikit-learn."""
    has, given = rows.labels.astype(int), rows.decided.astype(int)
    return {
        **{f"f1_{each}": f1_score(has, given, average=each, zero_division=0) for each in AVERAGES},
        "subset_accuracy": accuracy_score(has, given),
        "average_precision": average_precision_score(has, rows.probabilities),
        "hamming_loss": hamming_loss(has, given),
        "log_loss": np.mean(
            [log_loss(*each) for each in zip(has.T, rows.probabilities.T, strict=True)]
        ),
    }


@functools.cache
def truth(kind: Callable[[int, int], Found]) -> Mapping[str, float]:
    """Return the values of 300,000 rows."""
    one, other = map(values, drawn(300_000, 10**6))
    return one if kind is of_one else {name: other[name] - one[name] for name in one}


def coverage(kind: Callable[[int, int], Found], repeats: int) -> dict[str, float]:
    """Return the share of simulations in which each interval holds the truth."""
    inside = dict.fromkeys(truth(kind), 0)
    for seed in range(repeats):
        for name, each in kind(ROWS, seed).items():
            inside[name] += each["low"] <= truth(kind)[name] <= each["high"]
    return {name: count / repeats for name, count in inside.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [of_one, of_two])
def test_intervals_hold_the_truth(
    kind: Callable[[int, int], Found], capsys: pytest.CaptureFixture[str]
) -> None:
    found = coverage(kind, 2000)
    with capsys.disabled():
        print(kind.__name__, found)
    assert all(0.93 <= share <= 0.97 for share in found.values()), found


@pytest.mark.parametrize("decimals", [9, 1, 0])
def test_the_jackknife_leaves_each_row_out(decimals: int) -> None:
    generator = np.random.default_rng(decimals)
    scores, has = generator.normal(size=60).round(decimals), generator.random(60) < 0.3
    found = average_precision.jackknife(scores, has)
    assert found.value == pytest.approx(average_precision_score(has, scores))
    for row in range(60):
        rest = [np.delete(each, row) for each in (has, scores)]
        assert found.without[row] == pytest.approx(average_precision_score(*rest))


def test_the_only_row_of_a_label_is_never_left_out() -> None:
    scores, has = np.array([0.9, 0.8, 0.1]), np.array([False, True, False])
    found = average_precision.jackknife(scores, has)
    assert found.without.tolist() == [1.0, 0.5, 0.5]


def test_labels_that_every_row_has_or_none_are_left_out_of_the_mean_everywhere() -> None:
    """As the local metric has it; of two labels that are left the mean was half as far from 1."""
    one, other = drawn(ROWS, 0)
    for has in (one.labels, other.labels):  # of both models
        has[:, 0], has[:, 1] = True, False
    for rows in (one, other):
        given = {"prediction_scores": rows.probabilities, "references": rows.labels.astype(int)}
        module = scoring.load("average_precision", "multilabel").compute(**given)
        expected = average_precision_score(rows.labels[:, 2:], rows.probabilities[:, 2:])
        assert module["average_precision"] == pytest.approx(expected)
        assert average_precision.mean(rows).value == pytest.approx(expected)
        assert multi_label.scores(rows)["average_precision"]["value"] == pytest.approx(expected)
    gap = average_precision.difference(one, other).value
    assert gap == pytest.approx(
        average_precision.mean(other).value - average_precision.mean(one).value
    )
    for has in (one.labels, other.labels):
        has[:, 2:] = False
    assert np.isnan(average_precision.mean(one).value)
    assert np.isnan(multi_label.scores(one)["average_precision"]["value"])
    assert np.isnan(multi_label.differences(one, other)["average_precision"]["value"])


def test_a_perfect_order_has_an_interval_too() -> None:
    found = average_precision.of_label(np.array([0.9, 0.8, 0.2, 0.1]), np.array([1, 1, 0, 0]) > 0)
    assert found.value == found.high == 1
    assert 0.3 < found.low < 0.4


def precisions(prevalence: float, apart: float, repeats: int) -> float:
    """Return how often the interval of an average precision holds the truth, of as many rows that
    20 have the label on average.
    """
    generator = np.random.default_rng(0)

    def label(rows: int) -> tuple[np.ndarray, np.ndarray]:
        has = generator.random(rows) < prevalence
        return generator.normal(size=rows) + apart * has, has

    true = np.mean([average_precision.jackknife(*label(40_000)).value for _ in range(20)])
    rows = round(multi_label.FEWEST_POSITIVES / prevalence)
    found = [average_precision.of_label(*label(rows)) for _ in range(repeats)]
    return float(np.mean([each.low <= true <= each.high for each in found]))


@pytest.mark.slow
@pytest.mark.parametrize("prevalence", [0.05, 0.3])
@pytest.mark.parametrize("apart", [1.0, 2.0])
def test_the_interval_of_a_label_holds_the_truth(prevalence: float, apart: float) -> None:
    """Of 400 rows and 67, for average precisions of 0.17 to 0.85."""
    assert 0.93 <= precisions(prevalence, apart, 2000) <= 0.97


def test_the_interval_of_a_label_holds_it_often_enough() -> None:
    assert 0.9 <= precisions(0.05, 2.0, 300) <= 0.99


def test_intervals_hold_it_often_enough() -> None:
    assert all(share >= 0.8 for share in coverage(of_one, 40).values())


@pytest.mark.parametrize("seed", range(3))
def test_values_are_those_of_scikit_learn(seed: int) -> None:
    one, other = drawn(ROWS, seed)
    expected, better = values(one), values(other)
    assert {name: each["value"] for name, each in of_one(ROWS, seed).items()} == pytest.approx(
        expected
    )
    for name, each in of_two(ROWS, seed).items():
        assert each["value"] == pytest.approx(better[name] - expected[name])
        assert each["low"] <= each["value"] <= each["high"]
