"""How often the intervals of several labels a row hold the truth, in simulations.

400 rows with four labels that 50, 30, 10 and 5% of the rows have: the rarest has 20 on average.
"""

import functools
import itertools
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
from transformers import EvalPrediction

from finetune.recipe import scoring
from finetune.recipe.scoring import Scoring, without_counted
from finetune.statistics import average_precision, label_f1, multi_label
from finetune.statistics.metrics import Budget
from finetune.statistics.scored import ScoredLabels
from finetune.tasks.assessment import Assessment
from finetune.tasks.multi_label import MultiLabel

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
    """Return in which share of the simulations that have an interval it holds the truth."""
    inside: dict[str, list[bool]] = {name: [] for name in truth(kind)}
    for seed in range(repeats):
        for name, each in kind(ROWS, seed).items():
            if not np.isnan(each["low"]):
                inside[name].append(each["low"] <= truth(kind)[name] <= each["high"])
    return {name: float(np.mean(each)) for name, each in inside.items()}


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
    """Return how often the interval of an average precision holds the truth where it is given, of
    as many rows that 20 have the label on average: of the half of them of which 20 have it or more.
    """
    generator = np.random.default_rng(0)

    def label(rows: int) -> tuple[np.ndarray, np.ndarray]:
        has = generator.random(rows) < prevalence
        return generator.normal(size=rows) + apart * has, has

    true = np.mean([average_precision.jackknife(*label(40_000)).value for _ in range(20)])
    rows = round(average_precision.FEWEST_ROWS / prevalence)
    drawn = (label(rows) for _ in itertools.count())
    given = (each for each in drawn if each[1].sum() >= average_precision.FEWEST_ROWS)
    found = [average_precision.of_label(*each) for each in itertools.islice(given, repeats)]
    return float(np.mean([each.low <= true <= each.high for each in found]))


@pytest.mark.slow
@pytest.mark.parametrize("prevalence", [0.05, 0.3])
@pytest.mark.parametrize("apart", [1.0, 2.0])
def test_the_interval_of_a_label_holds_the_truth(prevalence: float, apart: float) -> None:
    """Of 400 rows and 67, for average precisions of 0.17 to 0.85."""
    assert 0.93 <= precisions(prevalence, apart, 2000) <= 0.97


def means(rows: int, prevalences: tuple[float, ...], apart: float, repeats: int) -> list[float]:
    """Return how often the intervals of a mean average precision, and of a difference, hold the
    truth where they are given, and how often they are.
    """
    generator = np.random.default_rng(0)

    def both(rows: int) -> list[ScoredLabels]:
        has = generator.random((rows, len(prevalences))) < prevalences
        common, own, more = generator.normal(size=(3, *has.shape))
        logits = apart * has + (common[:, :1] / 2 + own) / np.sqrt(1.25)
        others = logits + 0.3 * has + 0.4 * more
        names = [str(number) for number in range(len(prevalences))]
        return [ScoredLabels(names, has, expit(each)) for each in (logits, others)]

    def value(rows: ScoredLabels) -> float:
        return average_precision.mean(rows).value

    large = [both(40_000) for _ in range(8)]
    true = np.mean([value(first) for first, _ in large])
    gap = np.mean([value(second) - value(first) for first, second in large])
    found = []
    for first, second in (both(rows) for _ in range(repeats)):
        each, more = average_precision.mean(first), average_precision.difference(first, second)
        assert (
            np.isnan(each.low)
            == np.isnan(more.low)
            == bool(average_precision.remarks("average_precision", first))
        )
        if not np.isnan(each.low):
            found.append([each.low <= true <= each.high, more.low <= gap <= more.high])
    return [*np.mean(found, axis=0).tolist(), len(found) / repeats]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "prevalences"), [(440, (0.3, 0.3, 0.3, 0.05)), (600, (0.05,) * 8), (220, (0.9, 0.5))]
)
@pytest.mark.parametrize("apart", [1.0, 2.0, 3.0])
def test_the_interval_of_a_mean_over_labels_holds_the_truth(
    rows: int, prevalences: tuple[float, ...], apart: float
) -> None:
    """With 20 to 30 rows of the rarest label, for average precisions of 0.17 to 0.97."""
    of_one, of_two, _ = means(rows, prevalences, apart, 2000)
    assert 0.93 <= of_one <= 0.98
    assert 0.93 <= of_two <= 0.99


def test_the_interval_of_a_mean_over_labels_is_withheld_of_few_rows() -> None:
    of_one, of_two, share = means(400, (0.3, 0.3, 0.05), 2.0, 60)
    assert min(of_one, of_two) > 0.85
    assert 0.3 < share < 0.8
    generator = np.random.default_rng(3)
    has = generator.random((200, 3)) < [0.5, 0.96, 0.5]
    has[0] = True
    rows = ScoredLabels(["a", "b", "c"], has, generator.random((200, 3)))
    assert average_precision.remarks("mean precision", rows) == [
        "mean precision has no confidence interval: fewer than 20 test rows have, or have not, 'b'"
    ]
    has[:, 1:] = True
    assert average_precision.remarks("it", rows) == [
        "it is the mean over 1 of 3 labels: every test row, or none, has 'b', 'c'"
    ]
    assert average_precision.mean(rows).low < average_precision.mean(rows).high
    has[:] = False
    assert average_precision.remarks("it", rows) == [
        "it is not defined: no label is that of some test rows and not of others"
    ]


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
        assert np.isnan(each["low"]) or each["low"] <= each["value"] <= each["high"]


def f1_of(has: np.ndarray, given: np.ndarray) -> tuple[float, float]:
    """Return micro and macro F1."""
    right, both = (has & given).sum(axis=0), has.sum(axis=0) + given.sum(axis=0)
    return float(2 * right.sum() / both.sum()), float((2 * right / both).mean())


def f1_coverage(
    rows: int, prevalences: tuple[float, ...], apart: float, alike: float, repeats: int
) -> list[float]:
    """Return how often the intervals hold the truth: micro and macro F1 of one model, then of the
    difference between two. Mistakes in the labels of a row are ``alike``, a correlation.
    """
    generator = np.random.default_rng(1)

    def drawn(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        has = generator.random((size, len(prevalences))) < prevalences
        own, other = generator.normal(size=(2, *has.shape))
        noise = np.sqrt(1 - alike) * own + np.sqrt(alike) * generator.normal(size=(size, 1))
        logits = apart * (2 * has - 1) + noise - 0.5
        return has, logits > 0, logits + 0.4 * (2 * has - 1) + other / 2 > 0

    has, first, second = drawn(1_000_000)
    one, two = f1_of(has, first), f1_of(has, second)
    truth = [*one, two[0] - one[0], two[1] - one[1]]
    inside = np.zeros(4)
    for _ in range(repeats):
        has, first, second = drawn(rows)
        for place, models in enumerate(((first,), (first, second))):
            found = label_f1.micro(has, *models), label_f1.macro(has, *models)
            for kind, each in enumerate(found):
                inside[2 * place + kind] += each.low <= truth[2 * place + kind] <= each.high
    return [float(share) for share in inside / repeats]


F1_CASES = [
    (100, (0.03,) * 5, 1.5, 0.0),
    (200, (0.03,) * 5, 1.5, 0.5),
    (100, (0.05,) * 5, 1.0, 0.0),
    (200, (0.05,) * 5, 2.0, 0.0),
    (100, (0.5, 0.3, 0.1, 0.05), 1.5, 0.0),
    (400, (0.02,) * 10, 1.5, 0.0),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", F1_CASES)
def test_intervals_of_f1_hold_the_truth(
    case: tuple[int, tuple[float, ...], float, float], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of labels that 3 to 10 of the rows have, too, for F1 of 0.45 to 0.9."""
    found = f1_coverage(*case, 2000)
    with capsys.disabled():
        print(case, found)
    assert all(0.93 <= share <= 0.975 for share in found), found


def test_intervals_of_f1_hold_it_often_enough() -> None:
    assert all(share >= 0.9 for share in f1_coverage(*F1_CASES[0], 300))


@pytest.mark.parametrize("right", [True, False])
def test_intervals_have_a_width_where_all_or_none_are_right(right: bool) -> None:
    has = np.random.default_rng(0).random((60, 3)) < 0.4
    has[~has.any(axis=1), 0] = True
    rows = ScoredLabels(list("abc"), has, np.where(has == right, 0.9, 0.1))
    found = multi_label.scores(rows)
    for name in ("f1_micro", "f1_macro", "f1_samples", "hamming_loss"):
        low, high = found[name]["low"], found[name]["high"]
        assert 0 <= low <= found[name]["value"] <= high <= 1
        assert 0.01 < high - low < 0.2, name


def test_no_interval_of_macro_f1_where_a_label_has_one_row() -> None:
    has = np.random.default_rng(0).random((60, 3)) < 0.4
    has[:, 2] = np.arange(60) == 7
    rows = ScoredLabels(list("abc"), has, np.where(has, 0.9, 0.1))
    found = multi_label.scores(rows)["f1_macro"]
    assert found["value"] == 1
    assert np.isnan([found["low"], found["high"]]).all()
    assert multi_label.without_interval("mine", rows) == [
        "mine has no confidence interval: a label needs 2 rows that have it, and of these there "
        "are 'c' 1"
    ]
    has[8, 2] = True
    assert multi_label.without_interval("mine", rows) == []
    assert multi_label.scores(rows)["f1_macro"]["low"] < 1


def test_a_label_that_every_row_has_is_left_out_of_the_average_precision() -> None:
    """As in the module, which the headline value is from."""
    one = drawn(60, 0)[0]
    has = one.labels.copy()
    has[:, 0] = True
    rows = ScoredLabels(one.names, has, one.probabilities)
    outputs = EvalPrediction(predictions=rows.outputs, label_ids=has)
    task = MultiLabel(labels=one.names)
    expected = Scoring(average_precision={"average": "macro"})(outputs, task)
    found = multi_label.scores(rows)["average_precision"]["value"]
    assert found == pytest.approx(expected["average_precision"])


def test_f1_of_rows_without_labels_is_that_of_scikit_learn() -> None:
    """0 where a row neither has a label nor is given one, in the module and in the statistic."""
    rows = drawn(ROWS, 0)[0]
    has = rows.labels & (np.arange(ROWS) % 3 > 0)[:, None]
    rows = ScoredLabels(rows.names, has, np.where(has.any(axis=1)[:, None], rows.probabilities, 0))
    assert (~has.any(axis=1) & ~rows.decided.any(axis=1)).sum() > 100
    outputs = EvalPrediction(predictions=rows.outputs, label_ids=has)
    scoring = Scoring(f1_samples={"module": "f1", "average": "samples"})
    expected = f1_score(has, rows.decided, average="samples", zero_division=0)
    assert scoring(outputs, MultiLabel(labels=rows.names))["f1_samples"] == expected
    assert multi_label.scores(rows)["f1_samples"]["value"] == pytest.approx(expected)


def test_intervals_are_of_the_metric_that_is_declared() -> None:
    """By module and arguments, whatever it is called."""
    one = drawn(150, 3)[0]
    declared: dict[str, dict[str, Any]] = {
        "f1_micro": {"module": "f1", "average": "weighted"},
        "f1": {"average": "macro"},
        "accuracy": {},
    }
    task = MultiLabel(labels=one.names)
    assert task.counted(declared) == {"f1": "f1_macro", "accuracy": "subset_accuracy"}
    scored = Scoring(**declared)
    assessment = Assessment(
        task=task,
        outputs=one.outputs,
        labels=one.labels,
        scoring=declared,
        compute=without_counted(functools.partial(scored, task=task), declared, task),
        budget=Budget(seconds=0),
    )
    found = assessment.statistics()["metrics"]
    true = values(one)
    weighted = f1_score(one.labels, one.decided, average="weighted", zero_division=0)
    assert found["f1_micro"]["value"] == pytest.approx(weighted)
    assert found["f1_micro"]["draws"] == Budget.fewest
    assert found["f1"] == found["f1_macro"]
    assert found["f1"]["value"] == pytest.approx(true["f1_macro"])
    assert found["accuracy"]["value"] == pytest.approx(true["subset_accuracy"])
    gaps = assessment.beyond(drawn(150, 3)[1].outputs)
    other = drawn(150, 3)[1]
    better = f1_score(one.labels, other.decided, average="weighted", zero_division=0)
    assert gaps["f1_micro"]["value"] == pytest.approx(weighted - better)
    assert gaps["f1"] == gaps["f1_macro"]
