"""The rules of the intervals that a table of results does not show."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk

from finetune.statistics import counts, estimates, numbers, pairs, ranking
from finetune.statistics.counts import Average, Tallies
from finetune.statistics.estimates import Measured

RNG = np.random.default_rng(0)
LABELS, PREDICTED = RNG.integers(3, size=60), RNG.integers(3, size=60)
SCORES = np.round(RNG.normal(size=60), 1)  # with ties


def leave_one_out(function: Callable[[np.ndarray], float], rows: int = 60) -> float:
    """Return the standard error of the jackknife, one row after the other."""
    values = [function(np.delete(np.arange(rows), row)) for row in range(rows)]
    return float(np.sqrt((rows - 1) * np.var(values)))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (Average(counts.f1_of_classes, "macro"), {"average": "macro"}),
        (Average(counts.f1_of_classes, "weighted"), {"average": "weighted"}),
    ],
    ids=["macro", "weighted"],
)
def test_the_error_of_a_confusion_matrix_is_that_of_leaving_out_each_row(
    function: Average, expected: dict[str, str]
) -> None:
    measured = Tallies.of(LABELS, PREDICTED, 3).measure(function)
    assert measured.value == pytest.approx(sk.f1_score(LABELS, PREDICTED, **expected))
    error = leave_one_out(lambda rows: sk.f1_score(LABELS[rows], PREDICTED[rows], **expected))
    assert measured.deviation == pytest.approx(error)


def test_the_error_of_an_average_precision_is_that_of_leaving_out_each_row() -> None:
    has = LABELS == 0
    error = leave_one_out(lambda rows: sk.average_precision_score(has[rows], SCORES[rows]))
    measured = ranking.precision(SCORES, has)
    assert measured.value == pytest.approx(sk.average_precision_score(has, SCORES))
    assert measured.deviation == pytest.approx(error)


@pytest.mark.parametrize("name", ["r2", "mae", "rmse", "pearson"])
def test_the_error_of_numbers_is_that_of_leaving_out_each_row(name: str) -> None:
    true, predicted = SCORES, SCORES + RNG.normal(size=60)
    function = numbers.METRICS[name].measure
    error = leave_one_out(lambda rows: function(true[rows], predicted[rows]).value)
    assert function(true, predicted).deviation == pytest.approx(error)


def test_groups_of_rows_have_nearly_the_error_of_rows() -> None:
    labels = RNG.integers(80, size=4000)
    predicted = np.where(RNG.random(4000) < 0.7, labels, RNG.integers(80, size=4000))
    function = Average(counts.f1_of_classes, "macro")
    in_groups, accuracy = Tallies.of(labels, predicted, 80), float((labels == predicted).mean())
    assert in_groups.kinds is None
    by_row = np.sqrt(accuracy * (1 - accuracy) / 4000)  # of many classes alike
    assert in_groups.measure(function).deviation == pytest.approx(by_row, rel=0.3)


def test_wilson_is_that_of_scipy() -> None:
    for hits, rows in ((0, 5), (3, 7), (9, 9), (500, 1000)):
        expected = stats.binomtest(hits, rows).proportion_ci(method="wilson")
        estimate = estimates.share(hits, rows)
        assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high))
    assert estimates.share(0, 0) == estimates.Estimate(0.0, 0.0, 1.0)


def test_a_metric_at_its_end_has_the_width_of_its_rows() -> None:
    certain = Measured(1.0, np.zeros(60))
    assert certain.bounded(12).low == estimates.share(12, 12).low
    assert certain.bounded(12).high == 1.0


def test_a_difference_of_few_rows_is_no_verdict() -> None:
    changed = PREDICTED.copy()
    changed[:5] = LABELS[:5]
    function = Average(counts.f1_of_classes, "macro")
    gap = pairs.difference(function, LABELS, PREDICTED, changed, 3)
    assert gap.low <= 0 <= gap.high
    same = pairs.difference(function, LABELS, PREDICTED, PREDICTED, 3)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)


def test_one_row_has_no_interval() -> None:
    one = np.array([1.0])
    for measured in (Measured.of_mean(one), numbers.METRICS["mae"].measure(one, one)):
        assert measured.deviation == 0.0
    assert np.isnan(Measured.of_mean(one).scaled(np.log, np.exp).low)
