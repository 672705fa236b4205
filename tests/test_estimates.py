"""Test statistics that acceptance tests do not cover: blocks, ties and few rows."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as sk
from scipy.special import softmax
from scipy.stats import norm

from finetune.statistics import estimates, metrics, mistakes, scored
from finetune.statistics.entities import ScoredEntities
from finetune.statistics.functions import SHARE
from finetune.statistics.metrics import METRICS
from finetune.statistics.scored import Probabilities, ScoredLabels, ScoredNumbers, ScoredRows


def logits_of(rows: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return logits with ties, and class ids; the last class does not occur."""
    generator = np.random.default_rng(rows)
    labels = generator.integers(classes - 1, size=rows)
    logits = generator.normal(size=(rows, classes)).round(1)
    logits[np.arange(rows), labels] += 1
    logits[:9] = logits[0]
    return logits.astype(np.float32), labels


def classes_of(labels: Any, predicted: Any) -> ScoredRows:
    """Return rows whose predicted class has probability 1."""
    names = [str(number) for number in range(max(labels) + 1)]
    one_hot = np.eye(len(names))[np.asarray(predicted)]
    return ScoredRows(np.asarray(labels), names, Probabilities(one_hot))


def test_results_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = logits_of(400, 7)
    names, softened = list("abcdefg"), softmax(logits.astype(np.float64), axis=1)
    table = {name: metric for (kind, name), metric in METRICS.items() if kind == "classes"}
    expected = metrics.estimate(ScoredRows(labels, names, Probabilities(softened)), table)
    temperature = mistakes.fit_temperature(3 * logits.astype(np.float64), labels)
    monkeypatch.setattr(scored, "AT_ONCE", 40)
    blocks = metrics.estimate(ScoredRows(labels, names, Probabilities(logits, "softmax")), table)
    for name, interval in expected.items():
        assert blocks[name] == pytest.approx(interval, abs=1e-9, nan_ok=True), name
    assert mistakes.fit_temperature(3 * logits, labels) == pytest.approx(temperature, rel=1e-5)


def test_equal_probabilities_are_ranked_as_scikit_learn_ranks_them() -> None:
    logits, labels = logits_of(400, 12)
    probabilities = softmax(logits.round().astype(np.float64), axis=1).round(2)
    rows = ScoredRows(labels, list("abcdefghijkl"), Probabilities(probabilities))
    for count in (1, 2, 5, 11):
        expected = sk.top_k_accuracy_score(labels, probabilities, k=count, labels=np.arange(12))
        assert (rows.summary.rank < count).mean() == pytest.approx(expected)
    metric = METRICS["classes", "top_5_accuracy"]
    value = metrics.estimate(rows, {"top": metric})["top"]["value"]
    assert value == sk.top_k_accuracy_score(labels, probabilities, k=5, labels=np.arange(12))


@pytest.mark.parametrize("place", [0, 1])
def test_areas_without_a_group_are_those_of_scikit_learn(place: int) -> None:
    logits, labels = logits_of(150, 4)
    scores = softmax(logits.astype(np.float64), axis=1).round(1)
    rows = ScoredRows(labels, list("abcd"), Probabilities(scores))
    function = (sk.roc_auc_score, sk.average_precision_score)[place]
    areas = rows.areas[place]
    assert np.isnan(areas[:, 3]).all()
    for group in (None, 0, 5):
        is_used = rows.groups != group if group is not None else np.ones(150, bool)
        for number in range(3):
            expected = function(labels[is_used] == number, scores[is_used, number])
            assert areas[0 if group is None else group + 1, number] == pytest.approx(expected)


def test_a_custom_metric_has_the_interval_of_the_table() -> None:
    generator = np.random.default_rng(0)
    true = generator.normal(size=60)
    values = true + generator.normal(size=60)
    rows = ScoredNumbers(true, values)

    def score(pair: Any) -> dict[str, Any]:
        return {"mine": float(np.mean((pair.predictions[:, 0] - pair.label_ids) ** 2)), "list": []}

    custom = metrics.recipe_metrics(rows, {}, score)
    assert [*custom] == ["mine"]
    errors = (values - true) ** 2
    value, *without_a_row = custom["mine"].function(rows)
    assert value == pytest.approx(errors.mean())
    expected = [np.delete(errors, row).mean() for row in range(60)]
    assert sorted(without_a_row) == pytest.approx(sorted(expected))


#: Rows, metric, whether its value is defined, and whether it has an interval.
EDGES: list[tuple[Callable[[], Any], str, bool, bool]] = [
    (lambda: classes_of([0, 1] * 20, [0, 1] * 20), "f1_macro", True, True),
    (lambda: classes_of([0, 1] * 20, [1, 0] * 20), "f1_macro", True, True),
    (lambda: classes_of([0] * 36 + [1] * 4, [0] * 40), "f1_macro", True, False),
    (lambda: classes_of([0] * 40, [0] * 40), "quadratic_kappa", False, False),
    (lambda: classes_of([0] * 40, [0] * 40), "roc_auc", False, False),
    (lambda: classes_of([1], [1]), "accuracy", True, True),
    (lambda: classes_of([1], [1]), "log_loss", True, False),
    (lambda: ScoredNumbers(np.arange(9.0), np.arange(9.0) + 1), "mae", True, False),
    (lambda: ScoredNumbers(np.arange(20.0), np.ones(20)), "pearson", False, False),
    (lambda: ScoredNumbers(np.ones(20), np.arange(20.0)), "r2", False, False),
]


@pytest.mark.parametrize(("draw", "name", "is_defined", "has_interval"), EDGES)
def test_few_rows_have_no_interval(
    draw: Callable[[], Any], name: str, is_defined: bool, has_interval: bool
) -> None:
    rows = draw()
    scores = metrics.estimate(rows, {name: METRICS[rows.kind, name]})
    assert math.isnan(scores[name]["value"]) != is_defined
    assert math.isnan(scores[name]["low"]) != has_interval
    assert len(metrics.describe_gaps(rows, [name], scores)) == int(not has_interval)
    if has_interval:
        assert scores[name]["low"] < scores[name]["high"]


def test_labels_that_no_row_has_are_left_out_of_the_average_precision() -> None:
    has = np.zeros((80, 2), bool)
    has[::2, 0] = True
    scores = np.random.default_rng(0).random((80, 2))
    rows = ScoredLabels(has, ["a", "b"], Probabilities(scores))
    value = METRICS["labels", "average_precision"].function(rows)[0]
    assert value == pytest.approx(sk.average_precision_score(has[:, 0], scores[:, 0]))


def entities_of(count: int) -> ScoredEntities:
    """Return 150 rows with so many entities of the type a, of which all or none are found."""
    rows = np.repeat(np.arange(150), count)
    first = np.tile(np.arange(count), 150)
    labels = np.column_stack([rows, first, first + 1, np.zeros_like(rows)])
    is_found = np.random.default_rng(0).random(150) < 0.7
    predicted = labels[is_found[rows]]
    words = np.column_stack([np.full(150, count), count * is_found])
    return ScoredEntities(
        labels, ["a"], predicted, words, np.ones(len(predicted)), np.ones(len(labels))
    )


def test_intervals_of_types_and_slices_of_entities_are_over_rows() -> None:
    """Five entities of a row that are found together say no more than one."""
    half = np.repeat(["x", "y"], 75)
    intervals = []
    for count in (1, 5):
        rows = entities_of(count)
        (of_type,) = metrics.describe_classes(rows).values()
        seen = [[number % 2 == 0] * count for number in range(150)]
        parts = mistakes.entity_slices(rows, seen, None, pd.DataFrame({"half": half}), 9)
        assert [part["name"] for part in parts[:2]] == [
            "entities of the training rows",
            "other entities",
        ]
        assert sum(part["entities"] for part in parts[:2]) == 150 * count
        scores = [of_type["recall"], of_type["f1"], *(part["recall"] for part in parts)]
        intervals.append([[score["value"], score["low"], score["high"]] for score in scores])
    np.testing.assert_allclose(*intervals, atol=0.005)
    value, low, high = intervals[0][0]
    np.testing.assert_allclose([low, high], estimates.wilson(value, 150), atol=0.005)
    assert high - low > 0.1


@pytest.mark.parametrize(("seeds", "deviation"), [(3, 0.0), (3, 0.4), (5, 0.15)])
def test_intervals_over_seeds_cover_the_true_values(seeds: int, deviation: float) -> None:
    """A row is right if the sum of its ease, the luck of the seed, and of both, is positive."""
    generator = np.random.default_rng(seeds)
    groups = estimates.group_rows(200)
    center = norm.ppf(0.8) * math.sqrt(1.5**2 + deviation**2 + 1)

    def replicates(ease: np.ndarray) -> np.ndarray:
        luck = generator.normal(0, deviation, (seeds, 1)) + generator.normal(0, 1, (seeds, 200))
        right = center + ease + luck > 0
        return np.array([estimates.replicate_mean(row.astype(float), groups) for row in right])

    of_mean, of_difference = 0, 0
    for _ in range(300):
        ease = generator.normal(0, 1.5, 200)
        first, second = replicates(ease), replicates(ease)
        mean = estimates.estimate(first, SHARE, 200)
        difference = estimates.difference_over_seeds(first, second)
        of_mean += mean.low <= 0.8 <= mean.high
        of_difference += difference.low <= 0 <= difference.high
    assert of_mean / 300 > 0.92
    assert of_difference / 300 > 0.92
    assert mean.high - mean.low < 0.5
    for few in (1, 2):
        assert math.isnan(estimates.estimate(first[:few], SHARE, 200).low)
    all_right = np.ones_like(first)
    assert estimates.estimate(all_right, SHARE, 200).low > 0.97
