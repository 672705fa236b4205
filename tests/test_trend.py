"""What is said of curves, held against curves of which the truth is known.

Rows have a difficulty of their own, and each checkpoint a skill and a confidence: the margin of a
row is ``confidence * (skill + difficulty + noise)``. It is right where that is above zero, and its
loss is logistic. So the loss can rise while the accuracy stays, or even rises.
"""

from collections import Counter

import numpy as np
import pytest

from finetune.errors import UserError
from finetune.statistics import counts, groups, trend
from finetune.statistics.trend import Curve, Verdict
from finetune.tasks.base import Task
from finetune.tasks.multi_label import MultiLabel
from finetune.tasks.regression import Regression
from finetune.tasks.single_label import SingleLabel

DRAWS = 500
FALLS = [(step, 1 - step / 5000) for step in range(5, 2001, 5)]
#: Statements that are false where nothing changes.
FALSE = {"overfits", "worsens", "rises", "disagrees", "improves", "best"}


def curves(right: np.ndarray, losses: np.ndarray) -> tuple[Curve, Curve]:
    """Loss and accuracy of evaluations of the same rows, shape `(rows, evaluations)`."""
    rows, count = losses.shape
    steps = [100 * (each + 1) for each in range(count)]
    loss, accuracy = losses.mean(axis=0), right.mean(axis=0)
    in_groups = [np.stack([*map(groups.of_mean, each.T)]) for each in (losses, right.astype(float))]
    return (
        Curve.of_groups(steps, loss, in_groups[0], direction=-1, negligible=0.02 * loss[-1]),
        Curve.of_groups(
            *(steps, accuracy, in_groups[1]), direction=1, negligible=0.01, least=0.7 / rows
        ),
    )


def said(
    skill: list[float],
    confidence: list[float] | float = 1.0,
    *,
    rows: int = 400,
    churn: float = 0.3,
    scatter: float = 0.0,
    draws: int = DRAWS,
) -> dict[str, float]:
    """How often each statement is made, and any that is false where nothing changes."""
    generator, found = np.random.default_rng(3), Counter[str]()
    for _ in range(draws):
        own = generator.normal(scale=scatter, size=len(skill)) + skill
        noise = churn * generator.normal(size=(rows, len(skill)))
        margin = confidence * (own + generator.normal(size=(rows, 1)) + noise)
        verdicts = trend.judge(*curves(margin > 0, np.logaddexp(0, -margin)), FALLS)
        found.update({each.kind for each in verdicts})
        found["false"] += bool({each.kind for each in verdicts} & FALSE)
    return {kind: count / draws for kind, count in found.items()}


def test_of_noise_alone_nothing_false_is_said() -> None:
    found = said([1.0] * 5)
    assert found["false"] <= 0.05
    assert found["unclear"] + found.get("stopped", 0) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("rows", [30, 100, 400, 2500])
@pytest.mark.parametrize("evaluations", [3, 5, 20])
def test_however_many_rows_and_evaluations(rows: int, evaluations: int) -> None:
    assert said([1.0] * evaluations, rows=rows)["false"] <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("evaluations", [8, 10, 20])
def test_checkpoints_that_scatter_are_no_trend(evaluations: int) -> None:
    assert said([1.0] * evaluations, rows=2500, scatter=0.05, draws=300)["false"] <= 0.05


def test_overfitting_is_said_where_the_loss_rises_by_a_sixth() -> None:
    # true losses 0.57 0.42 0.40 0.41 0.47; the accuracy stays at 0.83 from the second on
    found = said([0.6, 1, 1, 1, 1], [1, 1, 1.5, 2.2, 3], rows=2500, draws=200)
    assert found["overfits"] >= 0.85
    assert found.get("improves", 0) + found.get("worsens", 0) <= 0.05


def test_a_model_that_gets_better_does_not_overfit_and_is_trained_longer() -> None:
    found = said([0.2, 0.5, 0.8, 1.1], rows=1000, draws=200)
    assert found["improves"] >= 0.95
    assert found.get("stopped", 0) + found.get("overfits", 0) + found.get("best", 0) <= 0.01


def test_a_plateau_is_found_where_there_are_rows_enough() -> None:
    found = said([0.2, 0.8, 1, 1, 1, 1], rows=8000, churn=0.1, draws=60)
    assert found["stopped"] >= 0.9
    assert found.get("improves", 0) + found.get("overfits", 0) <= 0.05


def test_a_peak_is_better_than_the_last() -> None:
    found = said([0.2, 0.8, 1.3, 1.1, 0.9], draws=200)  # accuracy 0.89, then 0.81
    assert found["best"] >= 0.9


def test_loss_and_accuracy_that_both_rise_disagree() -> None:
    # accuracy 0.77 to 0.87, loss 0.46 to 0.72
    found = said([0.6, 0.8, 0.9, 1, 1.2], [1, 1, 2, 4, 8], rows=1500, draws=200)
    assert found["disagrees"] >= 0.85
    assert found.get("overfits", 0) <= 0.15


@pytest.mark.slow
def test_rows_in_common_are_worth_a_third_of_the_noise() -> None:
    """The paired standard error, against that of evaluations with rows of their own."""
    generator, paired, alone = np.random.default_rng(0), [], []
    for _ in range(200):
        margin = 1 + generator.normal(size=(400, 1)) + 0.3 * generator.normal(size=(400, 3))
        _, accuracy = curves(margin > 0, np.logaddexp(0, -margin))
        shares = Curve.of_shares(accuracy.steps, accuracy.values, 400, 0.01)
        for each, kept in ((accuracy, paired), (shares, alone)):
            change = trend.changes([each])[0][0]
            kept.append(change.high - change.low)
    assert 0.4 < np.mean(paired) / np.mean(alone) < 0.7


# ---- by hand ----------------------------------------------------------------------------------


def curve(
    values: list[float], error: float = 0.01, *, direction: int = -1, negligible: float = 0.01
) -> Curve:
    """A curve with rows of their own for each evaluation."""
    steps = np.arange(1, len(values) + 1) * 100
    none = np.empty((0, len(values)))
    own = np.full(len(values), error)
    return Curve(steps, np.array(values), none, own, np.inf, direction, negligible)


def kinds(verdicts: list[Verdict]) -> list[str]:
    return [each.kind for each in verdicts]


OVERFIT = [0.7, 0.4, 0.5, 0.6]


def test_two_evaluations_say_nothing() -> None:
    assert trend.judge(curve([0.9, 0.1]), curve([0.1, 0.9], direction=1)) == []
    assert trend.judge(None, None) == []


def test_why_the_loss_rose_is_said_only_where_it_is_known() -> None:
    level = [(step, 1.0 + step % 2 / 100) for step in range(10, 401, 10)]
    assert kinds(trend.judge(curve(OVERFIT), None, FALLS)) == ["overfits"]
    assert kinds(trend.judge(curve(OVERFIT), None, level)) == ["worsens"]
    assert kinds(trend.judge(curve(OVERFIT), None, [])) == ["rises"]
    assert kinds(trend.judge(curve(OVERFIT), None, [(100, 1.0), (400, 0.1)])) == ["rises"]
    (found,) = trend.judge(curve(OVERFIT), None, FALLS)
    assert (found.start, found.is_loss, found.is_sure) == (200, True, False)
    assert found.change.low < 0.2 < found.change.high
    assert found.change.low > 0


def test_a_rise_that_does_not_matter_is_none() -> None:
    found = trend.judge(curve([0.7, 0.4, 0.405, 0.408], 1e-5), None, FALLS)
    assert "overfits" not in kinds(found)


def test_the_metric_that_the_checkpoint_was_chosen_by_leads() -> None:
    loss = curve([0.7, 0.5, 0.4, 0.3, 0.2])
    metric = curve([0.2, 0.9, 0.8, 0.7, 0.6], direction=1)
    by_metric = trend.judge(loss, metric, FALLS)
    assert kinds(by_metric) == ["disagrees", "stopped", "best"]
    assert by_metric[0].other is not None
    assert by_metric[0].other.value < 0
    assert kinds(trend.judge(loss, metric, FALLS, by_loss=True)) == ["disagrees", "improves"]


def test_a_metric_that_never_changes_has_stopped_improving() -> None:
    constant = Curve.of_groups(
        *([1, 2, 3, 4], [0.5] * 4, np.full((4, 64), 0.5)),
        direction=1,
        negligible=0.01,
        least=0.001,
    )
    assert kinds(trend.judge(None, constant)) == ["stopped", "alike"]
    assert trend.changes([constant])[0][0].high > 0


def test_a_curve_without_any_noise_has_intervals_of_no_width() -> None:
    found = trend.changes([curve([1.0, 1.0, 1.0], 0.0)])
    assert [(each.low, each.high) for each in found[0]] == [(0, 0), (0, 0)]


def test_hundreds_of_evaluations_are_judged_in_bounded_memory() -> None:
    values = list(1 / np.arange(1, trend.MOST_EVALUATIONS + 1))
    assert "overfits" not in kinds(trend.judge(curve(values), curve(values), FALLS))


# ---- groups of rows ---------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [2, 64, 65, 1000])
def test_groups_have_the_mean_and_the_standard_error_of_the_rows(rows: int) -> None:
    values = np.random.default_rng(rows).normal(3, size=rows)
    found = groups.of_mean(values)
    assert len(found) == min(rows, groups.GROUPS)
    assert found.mean() == pytest.approx(values.mean())
    error = found.std(ddof=1) / len(found) ** 0.5
    own = values.std(ddof=1) / rows**0.5
    assert error == pytest.approx(own, rel=1e-9 if rows <= 64 else 0.3)


def test_what_is_kept_is_small_and_comes_back() -> None:
    values = np.random.default_rng(0).normal(size=groups.GROUPS)
    text = groups.encode(values)
    assert len(text) == 344
    assert groups.decode(text) == pytest.approx(values, rel=1e-6)
    for damaged in ("abc", "!", 7):
        with pytest.raises(UserError, match="history of the run is damaged"):
            groups.decode(damaged)  # type: ignore[arg-type]


CLASSES = ["a", "b", "c"]
SINGLE = {
    "accuracy": {},
    "f1": {"average": "macro"},
    "matthews_correlation": {},
    "average_precision": {},
}
NUMBERS = {name: {} for name in ("mse", "rmse", "mae", "r2", "pearson", "spearman")}
SETS = {
    "f1_micro": {"module": "f1", "average": "micro"},
    "f1_macro": {"module": "f1", "average": "macro"},
    "f1_samples": {"module": "f1", "average": "samples"},
    "subset_accuracy": {"module": "accuracy"},
    "average_precision": {"average": "macro"},
}


def outputs_of(task: Task, rows: int, generator: np.random.Generator) -> tuple:
    """Targets of rows, and outputs that are often right."""
    if isinstance(task, Regression):
        targets = generator.normal(size=rows).astype(np.float32)
        return targets, (targets + generator.normal(size=rows)).astype(np.float32)[:, None]
    if isinstance(task, MultiLabel):
        has = generator.random((rows, 3)) < 0.4
        return has.astype(np.float32), 2 * has - 1 + generator.normal(size=(rows, 3))
    targets = generator.integers(3, size=rows)
    return targets, 1.5 * np.eye(3)[targets] + generator.normal(size=(rows, 3))


@pytest.mark.parametrize(
    ("task", "scoring"),
    [
        (SingleLabel(labels=CLASSES), SINGLE),
        (Regression(labels=[]), NUMBERS),
        (MultiLabel(labels=CLASSES), SETS),
    ],
    ids=["single_label", "regression", "multi_label"],
)
def test_groups_know_the_standard_error_of_a_metric(task: Task, scoring: dict) -> None:
    generator, known = np.random.default_rng(0), task.counted(scoring)
    assert known.keys() == scoring.keys()
    values, errors = {name: [] for name in scoring}, {name: [] for name in scoring}
    for _ in range(60):
        rows = task.scored(*outputs_of(task, 320, generator))
        scores = {} if values[next(iter(scoring))] else task.scores(rows, known)
        for name, metric in known.items():
            found = task.in_groups(rows, metric)
            if name == "average_precision":
                assert found is None
                continue
            assert found is not None
            error = found.std(ddof=1) / len(found) ** 0.5
            if scores:
                assert found.mean() == pytest.approx(scores[name]["value"], abs=0.5 * error)
            values[name].append(found.mean())
            errors[name].append(error)
    for name in scoring.keys() - {"average_precision"}:
        assert np.mean(errors[name]) == pytest.approx(np.std(values[name]), rel=0.3), name


def test_a_group_without_a_class_does_not_change_what_macro_f1_is_a_mean_of() -> None:
    labels = np.array([0] * 99 + [1])
    metric = counts.metric("f1", {"average": "macro"})
    assert metric is not None
    found = counts.in_groups(metric, labels, np.zeros(100, dtype=int), 2)
    assert found.std() < 0.5
