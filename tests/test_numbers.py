"""Metrics of numbers are those of scikit-learn and scipy, and their intervals hold the truth."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from finetune.statistics import numbers
from finetune.statistics.numbers import METRICS

#: Samples, and rows of each, over which the share of intervals that hold the truth is counted.
REPEATS, ROWS = 2000, 200


def test_metrics_are_those_of_scikit_learn_and_scipy() -> None:
    generator = np.random.default_rng(0)
    labels = generator.normal(3, 2, size=(300, 2)).round(1)  # with ties
    values = (labels + generator.normal(size=(300, 2))).round(1)
    found = numbers.scores(METRICS, labels, values)
    expected: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
        "r2": sklearn.metrics.r2_score,
        "mae": sklearn.metrics.mean_absolute_error,
        "rmse": sklearn.metrics.root_mean_squared_error,
        "mse": sklearn.metrics.mean_squared_error,
        "pearson": lambda one, other: scipy.stats.pearsonr(one, other).statistic,
        "spearman": lambda one, other: scipy.stats.spearmanr(one, other).statistic,
    }
    assert list(expected) == list(METRICS)
    targets = numbers.of_targets(METRICS, labels, values)
    for name, metric in expected.items():
        of_each = [metric(labels[:, target], values[:, target]) for target in (0, 1)]
        assert found[name].value == pytest.approx(np.mean(of_each))
        assert [each[name].value for each in targets] == pytest.approx(of_each)
        assert found[name].low < found[name].value < found[name].high


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_without_a_row_is_that_of_the_others(name: str) -> None:
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 5, size=400).astype(float)
    values = labels + generator.normal(size=400).round(1)
    found = METRICS[name].of(labels, values)
    others = np.array(
        [
            METRICS[name].of(np.delete(labels, row), np.delete(values, row)).value
            for row in range(400)
        ]
    )
    if name == "spearman":  # an influence is a derivative
        assert np.corrcoef(found.without, others)[0, 1] > 0.9999
        np.testing.assert_allclose(found.without, others, atol=2e-4)
    else:
        np.testing.assert_allclose(found.without, others, rtol=1e-9)


def test_the_jackknife_of_spearman_knows_that_other_ranks_move() -> None:
    """Of ranks that were taken as given it would be 1.5 times too wide here."""
    generator, drawn = np.random.default_rng(2), []
    for _ in range(800):
        labels = generator.normal(size=ROWS)
        drawn.append((labels, labels + 0.5 * generator.normal(size=ROWS)))
    values = [METRICS["spearman"].of(*each).value for each in drawn]
    spread = [
        np.sqrt((ROWS - 1) / ROWS * np.sum((each - each.mean()) ** 2))
        for each in (METRICS["spearman"].of(*pair).without for pair in drawn[:200])
    ]
    assert np.mean(spread) == pytest.approx(np.std(values), rel=0.08)


@pytest.mark.parametrize("far", [0.0, 1e6])
def test_numbers_far_from_zero_change_nothing(far: float) -> None:
    generator = np.random.default_rng(3)
    labels = generator.normal(size=(100, 1))
    values = labels + generator.normal(size=(100, 1))
    near = numbers.scores(METRICS, labels, values)
    for name, found in numbers.scores(METRICS, labels + far, values + far).items():
        each = near[name]
        assert (found.value, found.low, found.high) == pytest.approx(
            (each.value, each.low, each.high), rel=1e-6
        )


def test_the_correlation_with_a_constant_is_not_defined() -> None:
    generator = np.random.default_rng(4)
    labels, constant = generator.normal(size=(50, 1)), np.full((50, 1), 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = numbers.scores(METRICS, labels, constant)
        same = numbers.scores(METRICS, constant, labels)
        more = numbers.differences(METRICS, labels, constant, labels + 1)
    assert [name for name, each in found.items() if np.isnan(each.value)] == ["pearson", "spearman"]
    assert [name for name, each in same.items() if np.isnan(each.value)] == [
        "r2",
        "pearson",
        "spearman",
    ]
    assert list(more) == ["r2", "mae", "rmse", "mse"]


def test_few_rows_and_none_wrong() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        labels = np.arange(12.0)[:, None]
        exact = numbers.scores(METRICS, labels, labels)
        assert (exact["mae"].low, exact["mae"].high, exact["r2"].low) == (0, 0, 1)
        assert exact["pearson"].value == pytest.approx(1)
        one_off = labels + (labels == 11)
        found = numbers.scores(METRICS, labels, one_off)
        assert found["mae"].low == 0 < found["mae"].value == 1 / 12 < found["mae"].high
        assert found["rmse"].low == 0
        assert found["r2"].high == 1
        for rows in (1, 2, 9):  # of two equal errors the interval had no width
            for each in numbers.scores(METRICS, labels[:rows], labels[:rows] + 0.5).values():
                assert np.isnan([each.low, each.high]).all()


@pytest.mark.parametrize("row", [0, 50, 99])
@pytest.mark.parametrize("outlier", [1e6, 1e9, 1e12])
def test_a_target_far_from_all_others_leaves_the_others_as_they_are(
    outlier: float, row: int
) -> None:
    """Sums less the outlier would have lost them, and gone below 0."""
    generator = np.random.default_rng(5)
    labels = generator.normal(size=(100, 1))
    values = labels + 0.5 * generator.normal(size=(100, 1))
    labels[row] = outlier
    for name, metric in METRICS.items():
        found = metric.of(labels[:, 0], values[:, 0])
        rest = metric.of(np.delete(labels, row), np.delete(values, row)).value
        assert found.without[row] == pytest.approx(rest, rel=2e-3 if name == "spearman" else 1e-6)
        interval = found.interval(metric.scale, metric.inverse)
        low, high = sorted(metric.inverse(np.array([-np.inf, np.inf])))
        assert low <= interval.low <= interval.value <= interval.high <= high
    (told,) = numbers.remarks(METRICS, labels, values, ["stars"])
    assert told.startswith("one test row (label of 'stars' 1e+")
    assert "makes up 100% of the squared error (r2, rmse, mse), 100% of the absolute error" in told
    assert "of the variance of the labels (r2, pearson): the confidence intervals of" in told


def test_what_is_not_defined_is_told() -> None:
    labels = np.arange(200.0).reshape(100, 2)
    values = labels + np.tile([[0.5, -0.5], [-0.5, 0.5]], (50, 1))
    assert numbers.remarks(METRICS, labels, values, ["stars", "price"]) == []
    labels[:, 1] = 3
    values[:, 0] = 0.1
    assert numbers.remarks(METRICS, labels, values, ["stars", "price"]) == [
        "pearson, spearman of 'stars' not defined: every prediction of the test rows is 0.1",
        "r2, pearson, spearman of 'price' not defined: every label of the test rows is 3",
    ]
    assert numbers.remarks({"mae": METRICS["mae"]}, labels[:2], values[:2], []) == [
        "no confidence intervals: there are none of fewer than 10 test rows"
    ]


# ---- intervals -----------------------------------------------------------------------------------


def sample(kind: str, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels and the predictions of two models, shape ``(rows, 2)``."""
    generator = np.random.default_rng(seed)
    if kind == "heavy":  # tails, of Student's t with 4 degrees of freedom
        known = generator.normal(size=(rows, 2))
        labels = known + 0.5 * generator.standard_t(4, size=(rows, 2))
        first = 0.8 * known + 0.3 * generator.normal(size=(rows, 2))
    elif kind == "shares":  # 0, 1/4, ... 1
        labels = generator.binomial(4, generator.beta(2, 2, size=(rows, 2))) / 4
        first = 0.25 + 0.5 * labels + 0.15 * generator.normal(size=(rows, 2))
    else:
        known = generator.normal(size=(rows, 2))
        labels = known + 0.7 * generator.normal(size=(rows, 2))
        first = 0.8 * known + 0.3 * generator.normal(size=(rows, 2))
    return labels, first, first + 0.3 * generator.normal(size=(rows, 2))


def held(kind: str, repeats: int, rows: int = ROWS, targets: int = 2) -> dict[str, float]:
    """Of how many samples the intervals hold the truth, of each metric and of each difference."""
    labels, first, second = sample(kind, 2_000_000 if kind == "heavy" else 400_000, 9)
    truth = {name: each.value for name, each in numbers.scores(METRICS, labels, first).items()}
    apart = numbers.differences(METRICS, labels, first, second)
    truth |= {f"difference in {name}": each.value for name, each in apart.items()}
    hits = dict.fromkeys(truth, 0)
    for repeat in range(repeats):
        labels, first, second = (each[:, :targets] for each in sample(kind, rows, repeat))
        found = numbers.scores(METRICS, labels, first)
        more = numbers.differences(METRICS, labels, first, second)
        found |= {f"difference in {name}": each for name, each in more.items()}
        for name, each in found.items():
            hits[name] += each.low <= truth[name] <= each.high
    return {name: count / repeats for name, count in hits.items()}


def test_intervals_hold_the_truth_quickly() -> None:
    assert all(0.9 < share < 0.99 for share in held("normal", 200).values())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "shares"])
def test_intervals_hold_the_truth(kind: str) -> None:
    """Of two targets; of one the same holds with fewer rows."""
    found = held(kind, REPEATS)
    assert len(found) == 2 * len(METRICS)
    assert {name: share for name, share in found.items() if not 0.93 <= share <= 0.97} == {}


@pytest.mark.slow
@pytest.mark.parametrize("rows", [10, 50, 100, 400])
@pytest.mark.parametrize("kind", ["normal", "heavy"])
def test_of_one_target_errors_with_heavy_tails_make_those_of_squares_too_narrow(
    kind: str, rows: int
) -> None:
    """As the remarks say; those of MAE, of Spearman and of differences hold it as often."""
    found = held(kind, REPEATS, rows, targets=1)
    squared = {name: found.pop(name) for name in ("r2", "rmse", "mse", "pearson")}
    assert all(0.92 <= share <= 0.985 for share in found.values()), found
    low = 0.92 if kind == "normal" else 0.86
    assert all(low <= share <= 0.97 for share in squared.values()), squared


def test_few_rows_are_told() -> None:
    labels, values, _ = (each[:, :1] for each in sample("normal", 99, 0))
    few = numbers.remarks(METRICS, labels, values, [])
    assert len(few) == 1
    assert few[0].startswith(
        "the confidence intervals of r2, rmse, mse, pearson are those of 99 test"
    )
    assert numbers.remarks({"mae": METRICS["mae"]}, labels, values, []) == []
    more = sample("normal", 100, 0)
    assert numbers.remarks(METRICS, more[0][:, :1], more[1][:, :1], []) == []
