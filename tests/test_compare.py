"""Two runs on the same rows, from the command line: the table, the page, and what is refused."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from datasets import Dataset, Features, Value

import finetune
from finetune import Run, UserError, cli
from finetune.pipeline.compare import compare
from finetune.recipe.scoring import Scoring
from finetune.reporting import curves
from finetune.runs import predictions
from finetune.tasks.assessment import Assessment
from finetune.tasks.base import Task
from finetune.tasks.multi_label import MultiLabel
from finetune.tasks.ordinal import Ordinal
from finetune.tasks.regression import Regression
from finetune.tasks.single_label import SingleLabel
from finetune.training.manifest import Metrics, Statistics
from tests.conftest import ROOT
from tests.runs import trained, write_run
from tests.test_report import Page


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    place = tmp_path_factory.mktemp("compare")
    arguments = {"global_batch_size": 32, "learning_rate": 1e-5, "seed": 42, "output_dir": "b"}
    return [
        write_run(place / "weak", rows=400, skill=0.5),
        write_run(place / "strong", rows=400, skill=2.0, seed=1, arguments=arguments),
        write_run(place / "alike", rows=400, skill=0.5, seed=2),
    ]


def test_the_better_run_is_told_from_the_worse_and_not_from_its_like(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", *(str(run.path) for run in runs), "--output", str(tmp_path / "page.html")]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    weak, strong, alike = (str(run.path) for run in runs)
    assert f"{strong} is better than {weak} (difference in F1 +" in said
    assert f"{alike} is not significantly different from {weak} (difference in F1 " in said
    assert "learning_rate" in said
    assert "output_dir" not in said
    page = Page(tmp_path / "page.html")
    assert page.headings[1:] == ["Scores", "Curves", "Settings", "Disagreements"]
    assert {link.removeprefix("#") for link in page.links} == set(page.ids)
    assert len(page.images) == 3
    assert all(around["class"] == "scroll" for _, _, around in page.wide)
    assert all(str(run.path) in page.cells for run in runs)
    assert "is better than" in page.words


def test_a_comparison_has_the_numbers_of_the_predictions(runs: list[Run], tmp_path: Path) -> None:
    found = compare(runs[:2], tmp_path / "page.html")
    weak, strong = (run.predictions for run in runs[:2])
    right = [table["label"] == table["prediction"] for table in (weak, strong)]
    test = found.tests[0]
    assert test.only_first == (right[0] & ~right[1]).sum()
    assert test.only_second == (right[1] & ~right[0]).sum()
    gap = found.differences[0]["accuracy"]
    assert gap["value"] == pytest.approx(right[1].mean() - right[0].mean())
    losses = [run.metrics["statistics"]["metrics"]["log_loss"]["value"] for run in runs[:2]]
    assert found.differences[0]["log_loss"]["value"] == pytest.approx(losses[1] - losses[0])
    assert set(found.disagreements) == set(weak.index[weak["prediction"] != strong["prediction"]])
    assert found.settings["learning_rate"] == ["0.0001", "1e-05"]


def test_runs_are_scored_as_the_first_one_is(tmp_path: Path) -> None:
    """The second run has its classes in another order, so that its own F1 is that of ``bad``."""
    scoring = {"accuracy": {}, "f1": {}}
    first = write_run(tmp_path / "first", rows=400, skill=0.5, scoring=scoring)
    second = write_run(tmp_path / "second", rows=400, seed=1, labels=["good", "bad"])
    found = compare([first, second])
    table = second.predictions
    f1 = sklearn.metrics.f1_score(table["label"], table["prediction"], pos_label="good")
    assert found.metrics[1]["f1"]["value"] == pytest.approx(f1)
    assert abs(second.statistics["metrics"]["f1"]["value"] - f1) > 1e-3
    before = first.predictions
    f1_before = sklearn.metrics.f1_score(before["label"], before["prediction"], pos_label="good")
    assert found.differences[0]["f1"]["value"] == pytest.approx(f1 - f1_before)


def test_a_run_with_an_underscore_has_its_place_in_the_legend() -> None:
    history = [{"step": 1, "loss": 1.0, "eval_loss": 1.0, "eval_f1": 0.5}]
    history += [{**history[0], "step": step} for step in (2, 3)]
    for plot in curves.overlaid({"_run": history, "a$b$": history}, "eval_f1"):
        assert "./_run" in plot.svg()
        assert "a$b$" in plot.svg()


def test_a_curve_of_a_point_is_no_curve() -> None:
    history = [{"step": step, "loss": 1.0} for step in (1, 2, 3)]
    history[-1] |= {"eval_loss": 1.0, "eval_f1": 0.5}
    (plot,) = curves.overlaid({"one": history, "two": history}, "eval_f1")
    assert plot.alt == "Training loss, final value: one 1.000, two 1.000."


def test_a_run_cannot_be_told_from_itself(runs: list[Run]) -> None:
    found = compare([runs[0], runs[0]])
    assert len(found.disagreements) == 0
    assert found.settings == {}
    assert found.tests[0].p_value == 1
    for gap in found.differences[0].values():
        assert gap["low"] <= gap["value"] == 0 <= gap["high"] < 0.02


def test_other_rows_are_refused(runs: list[Run], tmp_path: Path) -> None:
    fewer = write_run(tmp_path / "fewer", rows=200)
    texts = [f"another review {number}" for number in range(400)]
    others = write_run(tmp_path / "others", rows=400, texts=texts)
    for run in (fewer, others):
        with pytest.raises(UserError, match="have different test rows"):
            compare([runs[0], run])
    named = write_run(tmp_path / "named", rows=400, names=("a", "b"))
    with pytest.raises(UserError, match="have different classes: bad, good and a, b"):
        compare([runs[0], named])


@pytest.mark.parametrize("kind", [str, Path, Run])
def test_a_single_run_is_not_read_letter_by_letter(runs: list[Run], kind: Any) -> None:
    with pytest.raises(UserError) as refused:
        compare(kind(runs[0].path))
    assert str(refused.value) == (
        f"compare: expected a list of two runs or more, found '{runs[0].path}'"
    )


def written(directory: Path, task: Task[Any], labels: Any, outputs: Any) -> Run:
    """A run of any task, whose label is that of 40 rows."""
    table = Dataset.from_dict(
        {"id": range(40), "text": [f"row {n}" for n in range(40)], "label": labels},
        features=Features(id=Value("int64"), text=Value("string"), label=task.feature),
    )
    scoring = dict(task.metrics)
    dataclasses.replace(
        trained().manifest,
        labels=task.labels,
        task=task.name,
        task_facts=task.facts,
        scoring=scoring,
        arguments={"metric_for_best_model": next(iter(scoring))},
    ).write(directory)
    predictions.write(directory, task, table, outputs)
    assessment = Assessment(
        task=task,
        outputs=outputs,
        labels=task.targets(table["label"][:]),
        scoring=scoring,
        compute=lambda rows: Scoring(**scoring)(rows, task),
    )
    statistics = Statistics(**assessment.statistics(), beyond={})
    scores = {name: statistics.metrics[name]["value"] for name in scoring}
    Metrics(validation=scores, test={"loss": 1.0, **scores}, statistics=statistics).write(directory)
    return Run(directory)


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    numbers, outputs = generator.normal(size=(40, 2)), generator.normal(size=(40, 3))
    classes, names = generator.integers(3, size=40).tolist(), ["low", "middle", "high"]

    def number(name: str, labels: Any, of: tuple[str, ...] = ()) -> Run:
        task, width = Regression(labels=list(of)), max(1, len(of))
        return written(tmp_path / name, task, labels.tolist(), outputs[:, :width])

    stars, words = (number(name, each) for name, each in zip("ab", numbers.T, strict=True))
    both = number("both", numbers, ("stars", "words"))
    swapped = number("swapped", numbers[:, ::-1], ("words", "stars"))
    changed = number("changed", numbers + (np.arange(40) == 7)[:, None], ("stars", "words"))
    others = number("others", numbers, ("stars", "price"))
    up = written(tmp_path / "up", Ordinal(labels=names), classes, outputs)
    down = written(
        tmp_path / "down",
        Ordinal(labels=names[::-1]),
        [2 - each for each in classes],
        outputs[:, ::-1],
    )
    single = written(tmp_path / "single", SingleLabel(labels=names), classes, outputs)
    has = [[each] for each in classes]
    sets = written(tmp_path / "sets", MultiLabel(labels=names), has, outputs)

    for first, second, said in (
        (stars, words, "different labels for 40 of the same 40 test rows: compare runs with the"),
        (both, changed, "different labels for 1 of the same 40 test rows"),
        (both, others, "different targets: stars, words and stars, price"),
        (stars, both, "different targets: a single one and stars, words"),
        (up, down, "another order: low, middle, high and high, middle, low"),
        (single, sets, "different tasks: single_label and multi_label"),
        (stars, up, "different tasks: regression and ordinal"),
    ):
        with pytest.raises(UserError) as refused:
            compare([first, second])
        assert str(refused.value).startswith(f"{first.path} and {second.path} have {said}")

    for first, second in ((both, swapped), (single, up), (up, single)):
        gaps = compare([first, second]).differences[0]
        assert {"r2", "mae"} <= gaps.keys() or gaps["accuracy"]["value"] == 0
    assert compare([both, swapped]).differences[0]["rmse"]["value"] != 0


def test_several_labels_in_another_order_are_compared_by_their_names(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    has, outputs = generator.random((40, 3)) < 0.5, generator.normal(size=(40, 3))
    names, rows = ["a", "b", "c"], [np.flatnonzero(each).tolist() for each in has]
    first = written(tmp_path / "first", MultiLabel(labels=names), rows, outputs)
    turned = [np.flatnonzero(each).tolist() for each in has[:, ::-1]]
    second = written(tmp_path / "x", MultiLabel(labels=names[::-1]), turned, outputs[:, ::-1])
    found = compare([first, second])
    assert all(each["value"] == pytest.approx(0) for each in found.differences[0].values())
    assert len(found.disagreements) == 0


def test_a_difference_without_an_interval_is_no_verdict(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    rows, runs = [[number % 3] for number in range(40)], []
    for name in ("first", "second"):
        task, outputs = MultiLabel(labels=["a", "b", "c"]), generator.normal(size=(40, 3))
        runs.append(run := written(tmp_path / name, task, rows, outputs))
        arguments = {"metric_for_best_model": "average_precision"}
        dataclasses.replace(run.manifest, arguments=arguments).write(run.path)
    (told,) = runs[0].statistics.notes
    assert told.startswith("average_precision has no confidence interval: fewer than 20 test rows")
    found = compare(runs)
    gap = found.differences[0]["average_precision"]["value"]
    first, second = (run.path for run in runs)
    shown = f"{gap:+.4f}".replace("-", "\N{MINUS SIGN}")
    assert found.verdicts[0].startswith(
        f"Difference of {second} to {first}: average precision {shown}. McNemar's"
    )


@pytest.mark.parametrize("name", ["r2", "pearson"])
def test_a_metric_that_is_not_defined_decides_nothing(name: str, tmp_path: Path) -> None:
    outputs = np.random.default_rng(2).normal(size=(40, 1))
    labels = [1.0] * 40 if name == "r2" else np.arange(40.0).tolist()
    runs = [
        written(tmp_path / "first", Regression(), labels, outputs),
        written(tmp_path / "second", Regression(), labels, 0 * outputs),
    ]
    for run in runs:
        arguments = {"metric_for_best_model": name}
        dataclasses.replace(run.manifest, arguments=arguments).write(run.path)
    found = compare(runs)
    first, second = (run.path for run in runs)
    said = "R²" if name == "r2" else "Pearson correlation"
    assert found.verdicts == [f"Difference of {second} to {first}: {said} is not defined."]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["RUN"], "compare: expected two runs or more"),
        (["RUN", "nowhere"], "nowhere is not the directory of a run: no such directory"),
        (["RUN", "RUN", "--output", "nowhere/page.html"], "no such directory: nowhere"),
        (["RUN", "RUN", "--output", "."], "--output . is a directory: name a file"),
        (["RUN", "half"], "half has no predictions.parquet: its status is 'failed'"),
        ([], "compare: the following arguments are required: RUN"),
    ],
)
def test_mistakes_of_compare_are_told(
    runs: list[Run],
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    dataclasses.replace(runs[0].manifest, status="failed").write(half := tmp_path / "half")
    words = [str(runs[0].path) if word == "RUN" else word for word in words]
    assert cli.main(["compare", *words]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [half]


def test_regressions_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, epochs in (("short", 1), ("long", 20)):
        finetune.train(
            str(ROOT / "examples" / "regression.py"), output_dir=name, num_train_epochs=epochs
        )
    capsys.readouterr()
    assert cli.main(["compare", "short", "long"]) == 0
    said = capsys.readouterr().out
    assert "long is better than short (difference in MSE \N{MINUS SIGN}" in said
    assert "num_train_epochs" in said
    assert Page(tmp_path / "comparison.html").headings[1] == "Scores"
