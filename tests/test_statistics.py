"""Intervals that hold the truth as often as they say, and scores that are those of scikit-learn."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from scipy.special import expit, softmax
from transformers import EvalPrediction

from finetune.recipe import scoring
from finetune.statistics import (
    calibration,
    classification,
    counts,
    intervals,
    pairs,
    ranking,
)
from finetune.statistics.blocks import Summary
from finetune.statistics.metrics import Budget
from finetune.statistics.scored import ScoredRows
from finetune.tasks.assessment import Assessment
from finetune.tasks.ordinal import Ordinal
from finetune.tasks.single_label import SingleLabel

METRICS: dict[str, list[dict[str, Any]]] = {
    "accuracy": [{}],
    "matthews_correlation": [{}],
    "quadratic_kappa": [{}],
    "mean_absolute_error": [{}],
    **{
        name: [{"average": average} for average in ("macro", "weighted", "micro")]
        for name in ("precision", "recall", "f1")
    },
}
CASES = [(name, arguments) for name, several in METRICS.items() for arguments in several]
BINARY = [
    (name, arguments)
    for name in ("precision", "recall", "f1")
    for arguments in ({}, {"pos_label": 0})
]

ABC = SingleLabel(labels=["a", "b", "c"])


def drawn(rows: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """True classes and predictions that are better than chance; the last class never occurs."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(max(2, classes - 1), size=rows)
    right = generator.random(rows) < 0.6
    return labels, np.where(right, labels, generator.integers(max(2, classes - 1), size=rows))


def confusion(labels: np.ndarray, said: np.ndarray, classes: int) -> np.ndarray:
    return np.asarray(sklearn.metrics.confusion_matrix(labels, said, labels=range(classes)))


def probabilities_of(
    rows: int, classes: int, seed: int = 0, sharper: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Labels drawn from probabilities, which are then made ``sharper``: 1 is calibrated."""
    generator = np.random.default_rng(seed)
    logits = 2 * generator.normal(size=(rows, classes))
    true = softmax(logits, axis=1)
    labels = (true.cumsum(axis=1) > generator.random((rows, 1))).argmax(axis=1)
    return softmax(sharper * logits, axis=1), labels


# ---- scores --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "arguments"), [*CASES, *BINARY])
def test_a_metric_of_counts_is_the_local_metric(name: str, arguments: dict[str, Any]) -> None:
    module, classes = scoring.load(name), 2 if (name, arguments) in BINARY else 6
    metric = counts.metric(name, arguments)
    assert metric is not None
    samples = [drawn(rows, classes, seed) for rows in (1, 2, 7, 300) for seed in range(5)]
    if classes == 2:
        samples = [(labels, said) for labels, said in samples if len({*labels, *said}) == 2]
    matrices = np.stack([confusion(*sample, classes) for sample in samples])
    expected = [
        module.compute(predictions=said, references=labels, **arguments)[name]
        for labels, said in samples
    ]
    np.testing.assert_allclose(metric(counts.tallies(matrices)), expected, atol=1e-12)
    assert len({round(value, 6) for value in expected}) > 3


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("rouge", {}),
        ("f1", {"average": None}),
        ("f1", {"sample_weight": [1.0]}),
        ("accuracy", {"normalize": False}),
    ],
)
def test_others_are_no_metric_of_counts(name: str, arguments: dict[str, Any]) -> None:
    assert counts.metric(name, arguments) is None


def test_the_scores_of_ordered_classes_are_those_by_hand() -> None:
    labels, said = drawn(500, 6)
    tallied = counts.tallies(confusion(labels, said, 6))
    assert counts.mean_absolute_error(tallied) == pytest.approx(np.abs(labels - said).mean())
    found = classification.of(ScoredRows(list("abcdef"), labels, np.eye(6)[said]), {}, ordered=True)
    near = (np.abs(labels - said) <= 1).mean()
    assert found["ordered"]["within_one"]["value"] == pytest.approx(near)
    kappa = sklearn.metrics.cohen_kappa_score(labels, said, weights="quadratic")
    assert counts.quadratic_kappa(tallied) == pytest.approx(kappa)


def test_areas_are_those_of_scikit_learn() -> None:
    probabilities, labels = probabilities_of(400, 4)
    probabilities = probabilities.round(2)  # with ties
    areas = ranking.swept(probabilities, labels).classes
    for each, found in enumerate(areas):
        assert found is not None
        roc = sklearn.metrics.roc_auc_score(labels == each, probabilities[:, each])
        assert found.roc.value == pytest.approx(roc)
        assert found.roc.low < roc < found.roc.high
    mean = ranking.mean_roc(ranking.swept(probabilities, labels), labels)
    assert mean is not None
    assert mean.value == pytest.approx(np.mean([each.roc.value for each in areas if each]))
    assert ranking.swept(probabilities, np.zeros(400, dtype=int)).classes == [None] * 4


# ---- intervals -----------------------------------------------------------------------------------

ROWS, REPEATS = 400, 2000
#: True by predicted class: a classifier whose scores are known.
TRUTH = np.array([[0.32, 0.05, 0.03], [0.04, 0.22, 0.04], [0.03, 0.07, 0.20]])


@dataclass(frozen=True)
class Coverage:
    """How often a simulation is repeated, and the share of it that may hold the truth."""

    repeats: int
    low: float
    high: float
    most: float  # if the method errs on the wide side

    def allows(self, hits: int, wide: bool = False) -> bool:
        return self.low < hits / self.repeats < (self.most if wide else self.high)


@pytest.fixture(
    params=[
        # three standard deviations of such a share around 95%
        pytest.param(Coverage(300, 0.9125, 0.9875, 0.9999), id="few"),
        pytest.param(Coverage(REPEATS, 0.935, 0.965, 0.985), id="many", marks=pytest.mark.slow),
    ]
)
def coverage(request: pytest.FixtureRequest) -> Coverage:
    return request.param


def score(metric: Callable[[np.ndarray], np.ndarray], matrix: np.ndarray) -> float:
    return float(metric(counts.tallies(matrix)))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("accuracy", {}),
        ("f1", {"average": "macro"}),
        ("recall", {"average": "macro"}),
        ("matthews_correlation", {}),
        ("quadratic_kappa", {}),
        ("mean_absolute_error", {}),
    ],
)
def test_intervals_of_counts_hold_the_truth(
    name: str, arguments: dict[str, Any], coverage: Coverage
) -> None:
    metric = counts.metric(name, arguments)
    assert metric is not None
    truth, generator, hits = score(metric, TRUTH), np.random.default_rng(1), 0
    for repeat in range(coverage.repeats):
        sample = generator.multinomial(ROWS // 2, TRUTH.ravel()).reshape(TRUTH.shape)
        found = intervals.of_matrix({"it": metric}, sample, draws=400, seed=repeat)["it"]
        hits += found.low <= truth <= found.high
    assert coverage.allows(hits)


def test_intervals_of_many_classes_hold_the_truth(coverage: Coverage) -> None:
    """Of 25 classes with 10 rows each the plain bootstrap lies too low, and holds it 88% of the
    time.
    """
    metric = counts.metric("f1", {"average": "macro"})
    assert metric is not None
    generator, hits, classes = np.random.default_rng(6), 0, 25
    truth = generator.dirichlet(np.ones(classes), size=classes) * 0.3 + 0.7 * np.eye(classes)
    truth /= truth.sum()
    for repeat in range(coverage.repeats):
        sample = generator.multinomial(10 * classes, truth.ravel()).reshape(truth.shape)
        found = intervals.of_matrix({"it": metric}, sample, draws=400, seed=repeat)["it"]
        hits += found.low <= score(metric, truth) <= found.high
    assert coverage.allows(hits)


@pytest.mark.parametrize(("name", "arguments"), [("accuracy", {}), ("f1", {"average": "macro"})])
def test_intervals_near_the_edge_hold_the_truth(
    name: str, arguments: dict[str, Any], coverage: Coverage
) -> None:
    """Of 100 rows 2 to 8 are wrong on average, and of some samples none: the plain bootstrap holds
    the truth 93% of the time. One rate of errors would not do: counts are whole numbers, so the
    share that is held goes up and down with it.
    """
    metric = counts.metric(name, arguments)
    assert metric is not None
    generator, hits = np.random.default_rng(7), 0
    for repeat in range(coverage.repeats):
        wrong = generator.uniform(0.02, 0.08)
        truth = np.array([[0.6, 0.0], [0.0, 0.4]]) - wrong / 2 * np.array([[1, -1], [-1, 1]])
        sample = generator.multinomial(100, truth.ravel()).reshape(truth.shape)
        found = intervals.of_matrix({"it": metric}, sample, draws=400, seed=repeat)["it"]
        hits += found.low <= score(metric, truth) <= found.high
    assert coverage.allows(hits)


def test_intervals_of_a_class_hold_the_truth(coverage: Coverage) -> None:
    """Of 60 rows the last class has 18 on average; Wilson's interval of F1 by way of its share."""
    truth = TRUTH.diagonal()[2] / (TRUTH[2].sum() + TRUTH[:, 2].sum() - TRUTH.diagonal()[2])
    generator, hits = np.random.default_rng(8), 0
    for _ in range(coverage.repeats):
        sample = generator.multinomial(60, TRUTH.ravel()).reshape(TRUTH.shape)
        f1 = classification.f1_of_class(sample[2, 2], sample[2].sum(), sample[:, 2].sum())
        hits += f1.low <= 2 * truth / (1 + truth) <= f1.high
    assert coverage.allows(hits)


def test_without_a_mistake_an_interval_is_that_of_wilson() -> None:
    right = np.diag([30, 12, 58])
    found = intervals.of_matrix({"it": counts.accuracy}, right)["it"]
    wilson = scipy.stats.binomtest(58, 58).proportion_ci(method="wilson")
    assert found.value == found.high == 1
    assert found.low == pytest.approx(1 - 0.58 * (1 - wilson.low))
    for name, arguments in CASES:
        metric = counts.metric(name, arguments)
        assert metric is not None
        for matrix in (right, right[[1, 2, 0]], np.array([[90, 0], [10, 0]])):
            of_all = intervals.of_matrix({"it": metric}, matrix)["it"]
            assert of_all.low < of_all.high, (name, arguments, matrix)


@pytest.mark.parametrize("found_at_most", [0.0, 0.1])
@pytest.mark.parametrize(("rows", "rare"), [(30, 0.05), (400, 0.03)])
def test_intervals_of_a_model_that_knows_one_class_hold_the_truth(
    found_at_most: float, rows: int, rare: float
) -> None:
    """Of the rare class it finds none, or few: the plain bootstrap, to which the rare class is
    always wrong, holds the truth in less than half of the latter cases.
    """
    metric = counts.metric("f1", {"average": "macro"})
    assert metric is not None
    generator, hits, widths, repeats = np.random.default_rng(12), 0, [], 400
    for repeat in range(repeats):
        right = generator.uniform(0, found_at_most) * rare
        truth = np.array([[1 - rare, 0.0], [rare - right, right]])
        sample = generator.multinomial(rows, truth.ravel()).reshape(truth.shape)
        found = intervals.of_matrix({"it": metric}, sample, draws=200, seed=repeat)["it"]
        hits += found.low <= score(metric, truth) <= found.high
        widths.append(found.high - found.low)
    assert hits / repeats > 0.935  # it errs on the wide side
    assert rows < 400 or np.mean(widths) < 0.25


def test_a_resample_without_a_class_does_not_make_a_useless_model_a_perfect_one() -> None:
    """Of 29 rows of one class and one of another, a resample lacks the other in 36% of cases."""
    metric = counts.metric("f1", {"average": "macro"})
    found = intervals.of_matrix({"it": metric}, np.array([[29, 0], [1, 0]]))["it"]
    assert found.value == pytest.approx(0.4915, abs=5e-5)
    assert 0.44 < found.low < 0.48
    assert found.high < 0.95  # what F1 would be if 79% of the rare class were right, by Wilson
    useless = np.zeros(30, dtype=int)
    labels = useless.copy()
    labels[0] = 1
    gap = pairs.difference({"it": metric}, labels, useless, labels, 2)["it"]
    assert gap.value == pytest.approx(1 - 0.4915, abs=5e-5)
    assert gap.low < gap.value < gap.high


def test_no_end_of_a_share_is_within_it() -> None:
    for rows in range(1, 400):
        for hits in (0, 1, rows - 1, rows):
            found = intervals.of_share(hits, rows)
            assert 0 <= found.low <= found.value <= found.high <= 1
        assert found.high == 1


@pytest.mark.parametrize(("hits", "rows"), [(0, 5), (5, 5), (1, 40), (399, 400)])
def test_a_share_has_the_interval_of_scipy(hits: int, rows: int) -> None:
    found = intervals.of_share(hits, rows)
    expected = scipy.stats.binomtest(hits, rows).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_ties_have_the_interval_of_the_nearest_whole_number_around_their_share() -> None:
    found, whole = intervals.of_share(7.4, 20), intervals.of_share(7, 20)
    assert found.value == 0.37
    assert (found.low, found.high) == (whole.low, whole.high)


def test_a_statistic_that_does_not_vary_is_no_interval_and_no_warning(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """SciPy warns of it, and its ends are NaN."""
    constant = intervals.of_mean(np.full(30, 0.25))
    one = intervals.of_mean(np.array([0.5]))
    undefined = intervals.of_rows(lambda rows: np.full((1, len(rows)), np.nan), 30)[0]
    assert constant == intervals.Interval(0.25, 0.25, 0.25)
    assert one == intervals.Interval(0.5, 0.5, 0.5)
    assert np.isnan([undefined.low, undefined.high]).all()
    assert not list(recwarn)


def test_draws_without_a_value_are_left_out() -> None:
    """Those that begin with one of a third of the rows."""
    values = np.random.default_rng(3).random(51)

    def mean(rows: np.ndarray) -> np.ndarray:
        every = len(rows) == 1
        undefined = (rows[:, 0] % 3 == 0) & (not every)
        return np.where(undefined, np.nan, values[rows].mean(axis=1))[None]

    (found,) = intervals.of_rows(mean, len(values))
    expected = intervals.of_mean(values)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.01)


def test_of_more_rows_the_interval_hardly_changes() -> None:
    """With 5,000 rows it is accelerated, with one more it is not."""
    labels, said = drawn(5_001, 4)
    found = [
        intervals.of_matrix({"it": counts.accuracy}, confusion(labels[:rows], said[:rows], 4))["it"]
        for rows in (5_000, 5_001)
    ]
    values = np.random.default_rng(4).gamma(0.5, size=5_001)
    found += [intervals.of_mean(values[:rows]) for rows in (5_000, 5_001)]
    for one, other in (found[:2], found[2:]):
        assert (one.low, one.high) == pytest.approx((other.low, other.high), abs=0.004)
        assert one.low < one.value < one.high


def test_the_bootstrap_is_that_of_scipy() -> None:
    values = np.random.default_rng(9).gamma(0.5, size=80)
    found = intervals.of_mean(values, draws=50_000)
    expected = scipy.stats.bootstrap((values,), np.mean, n_resamples=50_000, method="BCa", rng=1)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval), rel=0.02)
    plain = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=50_000, method="percentile", rng=1
    ).confidence_interval
    assert abs(found.high - plain.high) > 0.08 * found.high


def test_intervals_of_a_mean_hold_the_truth(coverage: Coverage) -> None:
    generator, hits = np.random.default_rng(2), 0
    for repeat in range(coverage.repeats):
        found = intervals.of_mean(generator.gamma(2.0, size=ROWS // 2), draws=400, seed=repeat)
        hits += found.low <= 2.0 <= found.high
    assert coverage.allows(hits)


def test_intervals_of_areas_hold_the_truth(coverage: Coverage) -> None:
    """Scores of the two classes are normal, one deviation and a half apart."""
    from scipy.stats import norm

    truth, generator, hits = norm.cdf(1.5 / np.sqrt(2)), np.random.default_rng(3), 0
    labels = np.repeat([0, 1], ROWS // 2)
    for _ in range(coverage.repeats):
        score = expit(generator.normal(loc=1.5 * labels))
        found = ranking.mean_roc(
            ranking.swept(np.stack([1 - score, score], axis=1), labels), labels
        )
        assert found is not None
        hits += found.low <= truth <= found.high
    assert coverage.allows(hits)


@pytest.mark.parametrize("ones", [3, 10])
def test_intervals_of_areas_of_few_rows_hold_the_truth(ones: int, coverage: Coverage) -> None:
    """DeLong's of a class with 3 rows would hold it 86% of the time."""
    truth, generator, hits = scipy.stats.norm.cdf(2.3 / np.sqrt(2)), np.random.default_rng(10), 0
    labels = np.repeat([0, 1], [100, ones])
    for _ in range(coverage.repeats):
        score = expit(generator.normal(loc=2.3 * labels))
        found = ranking.mean_roc(
            ranking.swept(np.stack([1 - score, score], axis=1), labels), labels
        )
        assert found is not None
        hits += found.low <= truth <= found.high
    assert coverage.allows(hits, wide=True)  # Newcombe's method errs on the wide side


def test_an_area_without_an_error_has_an_interval() -> None:
    labels = np.repeat([0, 1], [50, 10])
    probabilities = np.stack([1 - labels * 0.8, labels * 0.8], axis=1)
    area, each = (
        ranking.mean_roc(ranking.swept(probabilities, labels), labels),
        ranking.swept(probabilities, labels).classes,
    )
    assert area is not None
    assert each[1] is not None
    for found in (area, each[1].roc, each[1].precision_recall):
        assert found.value == found.high == 1
        assert 0.6 < found.low < 0.95


def test_intervals_of_a_difference_of_areas_hold_the_truth(coverage: Coverage) -> None:
    """Two scores of the same rows, which share half of their noise; the second is the better."""
    from scipy.stats import norm

    truth = norm.cdf(1.5 / np.sqrt(2)) - norm.cdf(1.0 / np.sqrt(2))
    generator, hits, widths = np.random.default_rng(5), 0, []
    labels = np.repeat([0, 1], ROWS // 2)
    for _ in range(coverage.repeats):
        shared, *own = generator.normal(size=(3, ROWS))
        one, other = (
            expit(apart * labels + (shared + each) / np.sqrt(2))
            for apart, each in zip((1.0, 1.5), own, strict=True)
        )
        found = ranking.mean_roc_difference(
            *(ranking.swept(np.stack([1 - each, each], axis=1), labels) for each in (one, other))
        )
        assert found is not None
        hits += found.low <= truth <= found.high
        widths.append(found.high - found.low)
    assert coverage.allows(hits)
    assert np.mean(widths) < 0.1  # 0.12 if the rows were not the same


def test_intervals_of_a_difference_hold_the_truth(coverage: Coverage) -> None:
    """Two models that are right together more often than by chance."""
    shares = {(True, True): 0.7, (True, False): 0.06, (False, True): 0.1, (False, False): 0.14}
    generator, hits, alone = np.random.default_rng(4), 0, []
    labels = np.zeros(ROWS, dtype=int)
    for repeat in range(coverage.repeats):
        kinds = generator.choice(4, size=ROWS, p=list(shares.values()))
        first, second = (~np.array(list(shares))[kinds]).T.astype(int)
        found = pairs.difference(
            {"it": counts.accuracy}, labels, first, second, 2, draws=400, seed=repeat
        )["it"]
        hits += found.low <= 0.04 <= found.high
        alone.append(found.high - found.low)
    assert coverage.allows(hits)
    assert np.mean(alone) < 0.09  # 0.13 if the models were drawn apart


def test_the_same_seed_gives_the_same_interval() -> None:
    labels, said = drawn(25_000, 5)
    metric = counts.metric("f1", {"average": "macro"})
    assert metric is not None
    matrix = confusion(labels, said, 5)
    found = [intervals.of_matrix({"it": each}, matrix)["it"] for each in (metric, counts.accuracy)]
    assert found[0] == intervals.of_matrix({"it": metric}, matrix)["it"]
    assert found[0] != intervals.of_matrix({"it": metric}, matrix, seed=1)["it"]
    assert found[0].low < found[0].value < found[0].high


def test_an_interval_of_counts_costs_the_same_for_any_number_of_rows() -> None:
    numbers = []
    for rows in (10_000, 250_000):
        seen: list[int] = []

        def watched(tallies: np.ndarray, seen: list[int] = seen) -> np.ndarray:
            seen.append(tallies.size)
            return counts.accuracy(tallies)

        intervals.of_matrix({"it": watched}, confusion(*drawn(rows, 5), 5))
        numbers.append(sum(seen))
    assert numbers[0] == numbers[1] > 0


def test_drawn_rows_and_drawn_counts_give_the_same_interval() -> None:
    labels, said = drawn(300, 4)
    right = (labels == said).astype(float)
    one = intervals.of_mean(right, draws=20_000)
    other = intervals.of_matrix({"it": counts.accuracy}, confusion(labels, said, 4), draws=20_000)[
        "it"
    ]
    assert (one.value, one.low, one.high) == pytest.approx(
        (other.value, other.low, other.high), abs=0.005
    )


def test_a_metric_with_unusual_arguments_has_an_interval_beside_the_others() -> None:
    probabilities, labels = probabilities_of(200, 3)
    arguments: dict[str, dict[str, Any]] = {
        "accuracy": {},
        "f1": {"labels": [0, 2], "average": "micro"},
    }
    assessed = Assessment(
        task=ABC,
        outputs=np.log(probabilities),
        labels=labels,
        scoring=arguments,
        compute=scoring.Scoring(**arguments),
        budget=Budget(seconds=0),
    )
    found = assessed.statistics()
    said = probabilities.argmax(axis=1)
    f1 = sklearn.metrics.f1_score(labels, said, labels=[0, 2], average="micro")
    baseline = sklearn.metrics.f1_score(labels, 0 * said, labels=[0, 2], average="micro")
    assert found["metrics"]["f1"]["value"] == pytest.approx(f1)
    assert found["metrics"]["f1"]["low"] < f1 < found["metrics"]["f1"]["high"]
    gap = assessed.beyond(np.eye(3)[np.zeros(200, dtype=int)])
    assert gap["f1"]["value"] == pytest.approx(f1 - baseline)
    assert gap["accuracy"]["low"] < gap["accuracy"]["value"] < gap["accuracy"]["high"]


@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
def test_rankings_are_those_of_the_local_metrics_and_need_no_resample(
    classes: int, absent: bool
) -> None:
    probabilities, labels = probabilities_of(300, classes, seed=1)
    if absent:  # the rows of a class, or of all but one
        probabilities, labels = (each[labels > 0] for each in (probabilities, labels))
    arguments: dict[str, dict[str, Any]] = {"roc_auc": {}, "average_precision": {}}
    compute = scoring.Scoring(**arguments)
    task = SingleLabel(labels=list("abc")[:classes])
    assessed = Assessment(
        task=task, outputs=np.log(probabilities), labels=labels, scoring=arguments, compute=compute
    )
    assert assessed.own is None
    found = assessed.statistics()["metrics"]
    others = np.log(probabilities) + np.random.default_rng(2).normal(size=probabilities.shape)
    gaps = assessed.beyond(others)
    for name, value in compute(EvalPrediction(np.log(probabilities), labels), task).items():
        assert found[name]["value"] == pytest.approx(value, nan_ok=True)
        other = compute(EvalPrediction(others, labels), task)[name]
        assert gaps[name]["value"] == pytest.approx(value - other, nan_ok=True)
        assert np.isnan(value) == (classes == 2 and absent)
        if not np.isnan(value):
            assert found[name]["low"] < value < found[name]["high"]
            assert gaps[name]["low"] < gaps[name]["value"] < gaps[name]["high"]


def test_where_one_class_occurs_what_is_not_defined_is_told() -> None:
    """Kappa was 0, from 0 to 0, of predictions that are all right."""
    arguments: dict[str, dict[str, Any]] = {
        "accuracy": {},
        "quadratic_kappa": {},
        "roc_auc": {},
        "average_precision": {},
    }
    outputs, labels = np.eye(3)[np.ones(30, dtype=int)], np.ones(30, dtype=int)
    compute, task = scoring.Scoring(**arguments), Ordinal(labels=list("abc"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Assessment(
            task=task, outputs=outputs, labels=labels, scoring=arguments, compute=compute
        ).statistics()
    undefined = ["roc_auc", "average_precision", "quadratic_kappa"]
    assert found["notes"] == [
        f"{name} is not defined: all test rows are of the class 'b'" for name in undefined
    ]
    values = compute(EvalPrediction(outputs, labels), task)
    for name in undefined:
        assert np.isnan([*found["metrics"][name].values(), values[name]]).all()
    assert np.isnan(found["ordered"]["quadratic_kappa"]["value"])
    assert found["metrics"]["accuracy"]["value"] == 1
    outputs[3, 2] = 2  # it is 0 by chance then
    assessed = Assessment(
        task=task, outputs=outputs, labels=labels, scoring=arguments, compute=compute
    )
    assert assessed.statistics()["metrics"]["quadratic_kappa"]["value"] == 0
    assert len(assessed.statistics()["notes"]) == 2


class Clock:
    """Each evaluation takes two seconds."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, 0

    def __call__(self) -> float:
        return self.now

    def compute(self, prediction: Any) -> dict[str, float]:
        self.now += 2
        self.calls += 1
        right = prediction.predictions.argmax(axis=1) == prediction.label_ids
        return {"own": float(right.mean())}


@pytest.mark.parametrize(("seconds", "draws"), [(0.0, 50), (160.0, 81)])
def test_a_slow_metric_is_resampled_as_often_as_its_budget_allows(
    seconds: float, draws: int
) -> None:
    probabilities, labels = probabilities_of(100, 3)
    clock, told = Clock(), list[str]()
    assessed = Assessment(
        task=ABC,
        outputs=np.log(probabilities),
        labels=labels,
        scoring={},
        compute=clock.compute,
        budget=Budget(seconds=seconds, clock=clock, tell=told.append),
    )
    found = assessed.statistics()["metrics"]["own"]
    assert found["draws"] == draws
    assert found["low"] < found["value"] < found["high"]
    assert clock.calls == 1 + draws
    assert told[0] == "confidence intervals of own: 6 of 1,000 resamples evaluated"
    assert len(told) == (draws - 1) // 6
    assert assessed.own is not None
    assert assessed.own.cut_short
    before = clock.calls
    gap = assessed.beyond(np.eye(3)[np.zeros(100, dtype=int)])["own"]
    assert gap["draws"] == draws
    assert gap["low"] < gap["value"] < gap["high"]
    assert clock.calls == before + 1 + draws


def test_a_fast_metric_is_resampled_a_thousand_times_and_paired() -> None:
    probabilities, labels = probabilities_of(100, 3)
    outputs, clock = np.log(probabilities), Clock()
    budget = Budget(clock=lambda: 0.0)
    assessed = Assessment(
        task=ABC,
        outputs=outputs,
        labels=labels,
        scoring={},
        compute=clock.compute,
        budget=budget,
    )
    own = assessed.own
    assert own is not None
    assert not own.cut_short
    assert own.metrics()["own"]["draws"] == 1000
    counted = intervals.of_matrix(
        {"it": counts.accuracy}, confusion(labels, probabilities.argmax(axis=1), 3)
    )["it"]
    found = own.metrics()["own"]
    assert (found["low"], found["high"]) == pytest.approx((counted.low, counted.high), abs=0.02)
    same = own.beyond(outputs)["own"]
    assert (same["low"], same["value"], same["high"]) == (0, 0, 0)


# ---- calibration ---------------------------------------------------------------------------------


def test_a_calibrated_model_has_no_calibration_error_and_a_temperature_of_one() -> None:
    probabilities, labels = probabilities_of(50_000, 4)
    assert calibration.expected_calibration_error(Summary.of(probabilities, labels)) < 0.01
    assert calibration.temperature(np.log(probabilities), labels) == 1


def test_probabilities_that_need_no_temperature_get_none_by_chance() -> None:
    """By the likelihood-ratio test at 5%."""
    found = [
        calibration.temperature(np.log(probabilities), labels)
        for probabilities, labels in (probabilities_of(300, 3, seed) for seed in range(300))
    ]
    assert 0.02 < np.mean([each != 1 for each in found]) < 0.1


@pytest.mark.parametrize("kind", ["knows nothing", "is always right"])
def test_a_temperature_at_an_end_of_its_range_is_none(kind: str) -> None:
    probabilities, labels = probabilities_of(400, 3)
    if kind == "knows nothing":
        labels = np.random.default_rng(1).integers(3, size=400)
    else:
        labels = probabilities.argmax(axis=1)
    assert calibration.temperature(np.log(probabilities), labels) is None


def test_the_interval_of_the_calibration_error_is_that_of_the_error() -> None:
    """Of a model that is too sure it holds the error of a hundred times as many rows."""
    many, few = (
        classification.calibrated(ScoredRows(list("abc"), labels, probabilities))
        for probabilities, labels in (
            probabilities_of(rows, 3, sharper=2) for rows in (10**5, 10**3)
        )
    )
    assert few["interval"]["value"] == pytest.approx(few["expected_calibration_error"])
    assert few["interval"]["low"] < many["expected_calibration_error"] < few["interval"]["high"]
    assert few["interval"]["high"] - few["interval"]["low"] < 0.1


@pytest.mark.parametrize("sharper", [3.0, 0.3])
def test_temperature_mends_a_model_that_is_too_sure_or_not_sure_enough(sharper: float) -> None:
    fitted_on, judged_on = (probabilities_of(20_000, 4, seed, sharper) for seed in (5, 6))
    hot = calibration.temperature(np.log(fitted_on[0]), fitted_on[1])
    assert hot is not None
    assert hot == pytest.approx(sharper, rel=0.05)
    mended = softmax(np.log(judged_on[0]) / hot, axis=1)
    np.testing.assert_array_equal(mended.argmax(axis=1), judged_on[0].argmax(axis=1))
    before, after = (
        calibration.expected_calibration_error(Summary.of(each, judged_on[1]))
        for each in (judged_on[0], mended)
    )
    assert before > 0.05
    assert after < before / 2


def test_scores_of_probabilities_are_those_of_scikit_learn() -> None:
    probabilities, labels = probabilities_of(500, 3)
    assert calibration.log_losses(Summary.of(probabilities, labels)).mean() == pytest.approx(
        sklearn.metrics.log_loss(labels, probabilities)
    )
    truth = np.eye(3)[labels]
    assert calibration.brier_scores(Summary.of(probabilities, labels)).mean() == pytest.approx(
        ((probabilities - truth) ** 2).sum(axis=1).mean()
    )


def test_reliability_puts_every_row_into_one_bin() -> None:
    found = calibration.reliability(
        Summary.of(
            np.array([[1.0, 0.0], [0.5, 0.5], [0.52, 0.48], [0.9, 0.1]]), np.array([0, 1, 0, 1])
        ),
        bins=10,
    )
    assert found["rows"].tolist() == [2, 2]
    assert found["accuracy"].tolist() == [0.5, 0.5]
    assert found["confidence"].tolist() == pytest.approx([0.51, 0.95])


def test_coverage_begins_with_the_rows_of_which_the_model_is_surest() -> None:
    probabilities = np.array([[0.6, 0.4], [0.9, 0.1], [0.2, 0.8]])
    found = calibration.coverage(Summary.of(probabilities, np.array([1, 0, 1])))
    assert found.tolist() == pytest.approx([1.0, 1.0, 2 / 3])


# ---- two models ----------------------------------------------------------------------------------


def test_mcnemar_is_the_table_by_hand() -> None:
    """Of ten rows that only one gets right, eight and two: 2 (1 + 10 + 45) / 1024."""
    labels = np.zeros(30, dtype=int)
    first, second = labels.copy(), labels.copy()
    first[:8], second[8:10] = 1, 1
    first[20:], second[20:] = 1, 1  # both wrong, which tells nothing
    found = pairs.mcnemar(labels, first, second)
    assert (found.only_first, found.only_second) == (2, 8)
    assert found.p_value == pytest.approx(2 * 56 / 1024)
    assert pairs.mcnemar(labels, first, first).p_value == 1.0


@pytest.mark.parametrize("metric", [counts.accuracy, counts.metric("f1", {"average": "macro"})])
def test_the_difference_is_that_of_the_scores(metric: Callable[[np.ndarray], np.ndarray]) -> None:
    labels, first = drawn(300, 5)
    _, second = drawn(300, 5, seed=1)
    found = pairs.difference({"it": metric}, labels, first, second, 5)["it"]
    one, other = (score(metric, confusion(labels, said, 5)) for said in (first, second))
    assert found.value == pytest.approx(other - one)
    assert found.low < found.value < found.high
    same = pairs.difference({"it": metric}, labels, first, first, 5)["it"]
    assert same.low <= same.value == 0 <= same.high < 0.01


@pytest.mark.parametrize("metric", ["accuracy", "f1"])
def test_two_models_that_are_alike_are_seldom_told_apart(metric: str, coverage: Coverage) -> None:
    """On 100 rows of which 6 are right for one of them only: the bootstrap would in 8% of cases."""
    function = counts.metric(metric, {"average": "macro"} if metric == "f1" else {})
    assert function is not None
    generator, told, labels = np.random.default_rng(11), 0, np.arange(100) % 2
    for repeat in range(coverage.repeats):
        kinds = generator.choice(3, size=100, p=[0.03, 0.03, 0.94])
        first, second = (np.where(kinds == each, 1 - labels, labels) for each in (0, 1))
        found = pairs.difference({metric: function}, labels, first, second, 2, 400, repeat)[metric]
        told += not found.low <= 0 <= found.high
    assert told / coverage.repeats < 0.065


def test_the_interval_of_a_paired_difference_is_that_of_newcombe() -> None:
    """His example of 36 rows that both have right, 12 and 2 that one has, and none that neither."""
    labels = np.zeros(50, dtype=int)
    second, first = np.repeat([[0, 0, 1], [0, 1, 0]], [36, 12, 2], axis=1)
    found = pairs.difference({"it": counts.accuracy}, labels, first, second, 2)["it"]
    assert found.value == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((0.0569, 0.3404), abs=5e-5)
