"""Modules of one's own by path: in `--metrics`, in a recipe, in a run that names them."""

import dataclasses
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
import yaml
from transformers import EvalPrediction

import finetune
from finetune import Run, TextClassification, UserError, cli
from finetune.recipe import metric_files
from finetune.recipe.scoring import Scoring
from finetune.runtime import namesakes
from finetune.statistics import intervals
from finetune.tasks.base import Task
from finetune.tasks.multi_label import MultiLabel
from finetune.tasks.ordinal import Ordinal
from finetune.tasks.regression import Regression
from finetune.tasks.single_label import SingleLabel
from tests.warm import Servers

pytestmark = pytest.mark.usefixtures("one_thread")

MODULE = """
import datasets
import evaluate
import numpy as np

class Mine(evaluate.Metric):
    def _info(self):
        return evaluate.MetricInfo(
            description="",
            citation="",
            inputs_description="",
            features=datasets.Features({features}),
        )

    def _compute(self, {arguments}):
        {body}
"""
DECIDED = '{"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}'
SCORED = (
    '{"prediction_scores": datasets.List(datasets.Value("float64")), '
    '"references": datasets.Value("int64")}'
)
LABELS = DECIDED.replace('datasets.Value("int64")', 'datasets.List(datasets.Value("int64"))')
NUMBERS = DECIDED.replace("int64", "float64")
WRONG = "wrong = np.not_equal(predictions, references).mean()"
COST = f'{WRONG}; return {{"minutes_lost": minutes * wrong, "share_wrong": wrong}}'
TASKS: dict[str, Task[Any]] = {
    "two": SingleLabel(labels=["bad", "good"]),
    "many": SingleLabel(labels=[f"class {n}" for n in range(7)]),
    "ordinal": Ordinal(labels=["1", "2", "3"]),
    "labels": MultiLabel(labels=["a", "b", "c"]),
    "label": MultiLabel(labels=["a"]),
    "number": Regression(mean=(4.0,), deviation=(8.0,)),
    "numbers": Regression(labels=["x", "y"], mean=(4.0, 1.0), deviation=(8.0, 1.0)),
    "unknown": Regression(),
}


def written(
    path: Path,
    body: str,
    features: str = DECIDED,
    arguments: str = "predictions, references, minutes=30.0",
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = MODULE.format(features=features, arguments=arguments, body=body)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a module that computes `minutes_lost` and `share_wrong`."""
    written(tmp_path / "cost" / "cost.py", COST)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch, without_report: None) -> None:
    """A bootstrap of metrics of which nothing is known calls them a thousand times."""
    monkeypatch.setattr(intervals, "DRAWS", 20)


def names(told: str, task: str = "two") -> list[str]:
    return Scoring.of_names(told).names(TASKS[task])


def refusal(told: str, task: str = "two") -> str:
    with pytest.raises(UserError) as refused:
        names(told, task)
    return str(refused.value)


def options(reviews: Path, model: str, **others: Any) -> dict[str, Any]:
    columns = {"text_column": "text", "label_column": "label", "model": model}
    return {"dataset": str(reviews), "max_steps": 2, "baseline": False, **columns, **others}


def trained(place: Path, reviews: Path, model: str, **others: Any) -> Run:
    """A run of two steps with the module, the best model chosen by it."""
    usual = {"metric_for_best_model": "minutes_lost", "greater_is_better": False}
    usual |= {"metrics": "f1,./cost", "output_dir": str(place / "run"), "eval_samples": 20}
    return finetune.train("sentiment", **options(reviews, model, **{**usual, **others}))


# ---- what it computes ----------------------------------------------------------------------------


@pytest.mark.parametrize("told", ["./cost", "cost/cost.py", "{place}/cost", "./cost/"])
def test_a_module_by_path_computes_beside_the_others(told: str, place: Path) -> None:
    generator = np.random.default_rng(0)
    outputs = EvalPrediction(generator.normal(size=(50, 2)), generator.integers(2, size=50))
    scoring = Scoring.of_names(f"accuracy, {told.format(place=place)}")
    assert scoring.names(TASKS["two"]) == ["accuracy", "minutes_lost", "share_wrong"]
    scores = scoring(outputs)
    wrong = (outputs.predictions.argmax(axis=1) != outputs.label_ids).mean()
    assert scores == {
        "accuracy": pytest.approx(1 - wrong),
        "minutes_lost": pytest.approx(30 * wrong),
        "share_wrong": pytest.approx(wrong),
    }
    assert {type(value) for value in scores.values()} == {float}


def test_arguments_and_names_are_those_of_the_recipe(place: Path) -> None:
    one = written(place / "one.py", f'{WRONG}; return {{"one": minutes * wrong}}')
    scoring = Scoring(
        dear={"module": "one.py", "minutes": 90.0},
        cheap={"module": str(one), "minutes": 1.0},
        f1={"average": "macro"},
    )
    assert scoring.names(TASKS["two"]) == ["dear", "cheap", "f1"]
    outputs = EvalPrediction(np.eye(2)[[0, 1, 1, 1]], np.array([0, 0, 0, 1]))
    found = scoring(outputs)
    assert (found["dear"], found["cheap"]) == (45.0, 0.5)
    with pytest.raises(UserError, match=r"one.py: TypeError: .*argument 'hours'"):
        Scoring(dear={"module": "one.py", "hours": 1}).names(TASKS["two"])


def test_probabilities_are_handed_over_where_the_features_say_so(place: Path) -> None:
    body = 'return {"sure": np.max(prediction_scores, axis=1).mean()}'
    written(place / "sure.py", body, SCORED, "prediction_scores, references")
    logits = np.log([[0.8, 0.2], [0.4, 0.6]])
    found = Scoring.of_names("./sure.py")(EvalPrediction(logits, np.array([0, 1])))
    assert found == {"sure": pytest.approx(0.7)}
    told = "--metrics: ./sure.py takes 'prediction_scores', and a task of regression has no "
    assert refusal("./sure.py", "number") == f"{told}probabilities"


@pytest.mark.parametrize("task", TASKS)
def test_each_task_hands_over_what_it_decides(task: str, place: Path) -> None:
    both = (
        'np.shape(predictions) == np.shape(references) and "{}" in str(np.array(predictions).dtype)'
    )
    features = {"labels": LABELS, "label": LABELS, "numbers": NUMBERS, "unknown": NUMBERS}
    features["number"] = NUMBERS
    features["numbers"] = LABELS.replace("int64", "float64")
    kind = "float" if isinstance(TASKS[task], Regression) else "int"
    body = f'assert {both.format(kind)}; return {{"width": np.ndim(predictions)}}'
    path = written(place / f"of_{task}.py", body, features.get(task, DECIDED))
    assert names(str(path), task) == ["width"]
    outputs, targets = TASKS[task].made_up()
    found = Scoring.of_names(str(path))(EvalPrediction(outputs, targets), TASKS[task])
    assert found == {"width": 1.0 + (task in ("labels", "label", "numbers"))}


@pytest.mark.parametrize("task", TASKS)
def test_made_up_rows_have_every_label_right_and_wrong(task: str) -> None:
    outputs, targets = TASKS[task].made_up()
    decided = TASKS[task].decided(outputs)
    assert outputs.dtype == np.float32
    assert decided.shape == targets.shape == TASKS[task].targets(targets.tolist()).shape
    if isinstance(TASKS[task], Regression):
        assert (targets % 1 != 0).all()
        assert (decided != targets).all()
        return
    assert 0 < (decided == targets).mean() < 1
    if isinstance(TASKS[task], MultiLabel):
        assert set(targets.mean(axis=0)) == set(decided.mean(axis=0)) == {0.5}
    else:
        assert {*targets} == {*decided} == set(range(len(TASKS[task].labels)))


def test_what_lies_beside_a_module_is_imported_relatively(place: Path) -> None:
    (place / "shared.py").write_text("WORTH = 2.5\n")
    path = written(place / "worth.py", 'return {"worth": WORTH}')
    path.write_text(f"from .shared import WORTH\n{path.read_text()}")
    assert Scoring.of_names("./worth.py")(EvalPrediction(np.eye(2), np.arange(2)))["worth"] == 2.5


def test_a_module_that_was_changed_is_imported_again_for_the_next_training(place: Path) -> None:
    assert names("./cost") == ["minutes_lost", "share_wrong"]
    written(place / "cost" / "cost.py", 'return {"hours_lost": 1.0}')
    assert names("./cost") == ["hours_lost"]


def test_a_folder_of_a_name_is_not_taken_for_a_path(place: Path) -> None:
    assert refusal("cost").startswith(
        "--metrics: no metric 'cost' in metrics/; a module of your own is named by its path: "
        "./cost (available: accuracy, "
    )
    written(place / "f1" / "f1.py", 'return {"f1": 1.0}')
    outputs = EvalPrediction(np.eye(2), np.array([0, 0]))
    assert Scoring.of_names("f1")(outputs)["f1"] == pytest.approx(1 / 3)


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "features", "task", "told"),
    [
        ("return 1 / 0", DECIDED, "two", ", line 16: ZeroDivisionError: division by zero"),
        ("raise SystemExit(0)", DECIDED, "two", ", line 16: SystemExit: 0"),
        ("return {}", DECIDED, "two", " returns {}: expected a dict of numbers by name"),
        ("return 0.5", DECIDED, "two", " returns 0.5: expected a dict of numbers by name"),
        ("return None", DECIDED, "two", " returns None: expected a dict of numbers by name"),
        ('return {"x": [1.0]}', DECIDED, "two", " returns [1.0] as 'x': expected a number by name"),
        ('return {"x": "1"}', DECIDED, "two", " returns '1' as 'x': expected a number by name"),
        ("return {1: 1.0}", DECIDED, "two", " returns 1.0 as 1: expected a number by name"),
        (
            'return {"accuracy": 1.0}',
            DECIDED,
            "two",
            " computes 'accuracy', which is a metric of the toolkit: return it by another name",
        ),
        (
            'return {"log_loss": 1.0}',
            DECIDED,
            "two",
            " computes 'log_loss', which is a metric of the toolkit: return it by another name",
        ),
        *(
            (
                f'return {{"{name}": 1.0}}',
                DECIDED,
                "two",
                f" computes '{name}', which is a name of the evaluation itself, as are loss, "
                "eval_NAME, test_NAME and NAME_runtime: return it by another name",
            )
            for name in ("loss", "eval_x", "test_x", "mean_runtime")
        ),
        (
            'return {"x": 1.0}',
            DECIDED.replace("predictions", "sources"),
            "two",
            " takes 'sources': a metric gets 'predictions' or 'prediction_scores', and "
            "'references'",
        ),
        (
            'return {"x": 1.0}',
            DECIDED,
            "labels",
            " takes {'predictions': Value('int64'), 'references': Value('int64')}, and a task of "
            "multi_label gives predictions of int64, shape (rows, 3) and references of int64, "
            "shape (rows, 3)",
        ),
        (  # evaluate would cut the fractions off
            'return {"x": 1.0}',
            DECIDED,
            "number",
            " takes {'predictions': Value('int64'), 'references': Value('int64')}, and a task of "
            "regression gives predictions of float32, shape (rows,) and references of float32, "
            "shape (rows,)",
        ),
        (
            'return {"x": 1.0}',
            DECIDED.replace("int64", "string"),
            "two",
            " takes {'predictions': Value('string'), 'references': Value('string')}, and a task of "
            "single_label gives predictions of int64, shape (rows,) and references of int64, "
            "shape (rows,)",
        ),
    ],
)
def test_a_module_that_cannot_be_used(
    body: str, features: str, task: str, told: str, place: Path
) -> None:
    arguments = "references, predictions=None, sources=None"
    written(place / "mine.py", body, features, arguments)
    assert refusal("./mine.py", task) == f"--metrics: ./mine.py{told}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1", ": expected one class derived from evaluate.Metric defined there, found none"),
        ("x = (1", ", line 1: SyntaxError: '(' was never closed"),
        ("\nimport nonesuch", ", line 2: ModuleNotFoundError: No module named 'nonesuch'"),
        ("raise SystemExit(0)", ", line 1: SystemExit: 0"),
        (
            "import evaluate\nclass A(evaluate.Metric): ...\nclass B(evaluate.Metric): ...",
            ": expected one class derived from evaluate.Metric defined there, found A, B",
        ),
        (
            "import evaluate\nclass A(evaluate.Metric):\n def _info(self): return 1 / 0",
            ", line 3: ZeroDivisionError: division by zero",
        ),
    ],
)
def test_a_file_that_is_no_module(text: str, told: str, place: Path) -> None:
    (place / "mine.py").write_text(text)
    for _ in range(2):  # nothing of the first attempt is left
        assert refusal("./mine.py") == f"--metrics: ./mine.py{told}"


def test_paths_that_lead_nowhere_and_names_that_collide(place: Path) -> None:
    (place / "empty").mkdir()
    (place / "notes.txt").touch()
    written(place / "other" / "cost.py", 'return {"other": 1.0}')
    written(place / "f1" / "f1.py", 'return {"mine": 1.0}')
    written(place / "again.py", 'return {"share_wrong": 1.0}')
    assert refusal("./nowhere,./empty,./notes.txt,/no/x.py,f1_makro").splitlines()[:-1] == [
        "--metrics: no file or directory ./nowhere",
        "--metrics: ./empty has no empty.py: expected a directory with a module of its name, or "
        "the path of a .py file",
        "--metrics: ./notes.txt is not a .py file",
        "--metrics: no file or directory /no/x.py",
    ]
    told = "--metrics: two metrics have the name 'cost': give other/cost.py another"
    assert refusal("./cost,other/cost.py") == told
    assert names("./cost,./cost/cost.py") == ["minutes_lost", "share_wrong"]
    told = "--metrics: ./f1/f1.py has the name of a metric of the toolkit, 'f1': give it another"
    assert refusal("./f1") == told
    told = "--metrics: ./cost/cost.py and ./again.py both compute 'share_wrong': rename one"
    assert refusal("./cost,./again.py") == told


@pytest.mark.parametrize("name", ["mae", "r2", "pearson"])
@pytest.mark.parametrize("task", ["two", "ordinal", "labels"])
def test_metrics_of_numbers_are_not_those_of_classes(name: str, task: str) -> None:
    with pytest.raises(UserError, match=f"--metrics {name}: a metric of numbers, and the labels"):
        TASKS[task].refuse_metrics({name: {}})


@pytest.mark.parametrize("name", ["quadratic_kappa", "mean_absolute_error"])
def test_metrics_of_an_order_need_one(name: str) -> None:
    with pytest.raises(UserError) as refused:
        TASKS["many"].refuse_metrics({name: {}, "accuracy": {}, "kappa": {"module": name}})
    first, second = str(refused.value).splitlines()
    assert first.startswith(
        f"--metrics {name}: it needs classes in an order, and 'class 0', 'class 1', 'class 2', "
        "'class 3', 'class 4' and 2 more have none; texts: --task ordinal, with --label_order"
    )
    assert second.startswith("--metrics kappa: it needs classes in an order")
    with pytest.raises(UserError, match=f"{name}: it needs 3 classes or more in an order; use"):
        TASKS["two"].refuse_metrics({name: {}})
    with pytest.raises(
        UserError, match=f"{name}: it needs one label a row, of classes in an order"
    ):
        TASKS["labels"].refuse_metrics({name: {}})
    TASKS["ordinal"].refuse_metrics({name: {}})
    with pytest.raises(UserError, match=f"{name}: a metric of classes, and the labels are numbers"):
        TASKS["number"].refuse_metrics({name: {}})


def test_metrics_of_label_sets_are_those_of_several_labels() -> None:
    told = Scoring.of_names("subset_accuracy,f1_samples")
    task = TASKS["labels"]
    task.refuse_metrics(told.arguments)
    assert told.names(task) == ["subset_accuracy", "f1_samples"]
    outputs, has = task.made_up()
    has = np.roll(has, 1, axis=1)
    found = told(EvalPrediction(outputs, has), task)
    given = task.decided(outputs)
    assert found["subset_accuracy"] == sklearn.metrics.accuracy_score(has, given)
    assert found["f1_samples"] == sklearn.metrics.f1_score(has, given, average="samples")
    for name, instead in (("subset_accuracy", "accuracy"), ("f1_samples", "f1")):
        with pytest.raises(UserError) as refused:
            TASKS["two"].refuse_metrics({name: told.arguments[name]})
        assert str(refused.value) == (
            f"--metrics {name}: a metric of rows with any number of labels, and these have one; "
            f"use {instead}"
        )
        with pytest.raises(UserError, match="a metric of classes, and the labels are numbers"):
            TASKS["numbers"].refuse_metrics({name: told.arguments[name]})


def test_a_metric_of_the_toolkit_that_is_not_of_the_task_is_refused_before_training() -> None:
    told = refusal("accuracy,matthews_correlation,f1", "labels")
    assert told.startswith("--metrics: 'matthews_correlation' takes {'predictions': Value('int64')")


# ---- the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--metrics ./cost --greater_is_better false", None),
        ("--metrics f1,./cost", None),
        ("--metrics ./cost --greater_is_better true --eval_strategy no", None),
        ("--metrics f1,./cost --metric_for_best_model eval_share_wrong", "share_wrong"),
        (
            "--metrics ./cost",
            "--metric_for_best_model minutes_lost: whether more of it is better is not known; add "
            "--greater_is_better true or false, or --metric_for_best_model loss",
        ),
        ("--metrics ./cost --metric_for_best_model loss", None),
        ("--metric_for_best_model eval_loss --greater_is_better false", None),
        (
            "--metric_for_best_model eval_loss --greater_is_better true",
            "--greater_is_better true: of loss, less is better, and the worst checkpoint would be "
            "kept; leave it out",
        ),
        (
            "--metric_for_best_model accuracy --greater_is_better false",
            "--greater_is_better false: of accuracy, more is better",
        ),
        (
            "--metrics f1,./cost --metric_for_best_model minutes_lots",
            "--metric_for_best_model: the recipe computes no 'minutes_lots'; did you mean "
            "'minutes_lost'? (it computes: loss, f1, minutes_lost, share_wrong)",
        ),
        (
            "--metrics f1,./cost --metric_for_best_model cost",
            "--metric_for_best_model: the recipe computes no 'cost'",
        ),
        ("--metrics f1,./broken.py", "--metrics: ./broken.py, line 1: SyntaxError"),
        ("--metrics f1,./nowhere", "--metrics: no file or directory ./nowhere"),
    ],
)
def test_a_dry_run_refuses(
    flags: str,
    told: str | None,
    place: Path,
    reviews: Path,
    tiny_model: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (place / "broken.py").write_text("(")
    words = ["sentiment", "--dataset", str(reviews), "--model", tiny_model, "--dry_run"]
    words += ["--text_column", "text", "--label_column", "label", *flags.split()]
    assert cli.main(words) == (0 if told is None else 2)
    shown = capsys.readouterr()
    assert (told or "") in shown.err
    assert "has no effect" not in shown.out  # the verdict of the report goes by it


def test_a_config_file_and_a_recipe_name_it_too(
    place: Path, reviews: Path, tiny_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = options(reviews, tiny_model, metrics="f1,./cost", dry_run=True)
    (place / "config.yaml").write_text(yaml.safe_dump(usual))
    words = ["sentiment", "--config", "config.yaml", "--metric_for_best_model", "share_wrong"]
    assert cli.main(words) == 2
    assert "--metric_for_best_model share_wrong: whether more" in capsys.readouterr().err
    assert cli.main([*words, "--greater_is_better", "false"]) == 0

    class Judged(TextClassification):
        dataset: str = str(reviews)
        model: str = tiny_model

        @property
        def scoring(self) -> Scoring:
            return Scoring(f1={"average": "macro"}, cost={"module": "./cost", "minutes": 60.0})

    with pytest.raises(UserError, match=r"^--metric_for_best_model minutes_lost: whether more"):
        Judged().trainer(metric_for_best_model="minutes_lost")
    trainer = Judged().trainer(
        metric_for_best_model="minutes_lost", greater_is_better=False, use_cpu=True
    )
    found = trainer.evaluate()
    assert found["eval_minutes_lost"] == pytest.approx(60 * found["eval_share_wrong"])


# ---- runs ----------------------------------------------------------------------------------------


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in another process: nothing is imported."""
    monkeypatch.setattr(metric_files, "_imported", {})


@pytest.mark.trains
@pytest.mark.usefixtures("few_draws")
def test_a_run_is_evaluated_from_elsewhere_by_those_who_trust_the_file(
    place: Path,
    reviews: Path,
    tiny_model: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, path = trained(place, reviews, tiny_model), place / "cost" / "cost.py"
    assert run.headline == ["minutes_lost", "f1", "share_wrong"]
    assert run.manifest.arguments["greater_is_better"] is False
    assert run.manifest.options["metrics"] == f"f1,{place / 'cost'}"
    assert run.manifest.scoring["cost"] == {"module": str(path)}
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    again = finetune.evaluate(run.path)  # imported in this process
    assert again.metrics["minutes_lost"] == run.metrics.test["minutes_lost"]

    forget(monkeypatch)
    canary = place / "canary"
    path.write_text(f"open({str(canary)!r}, 'w')\n{path.read_text()}")
    told = (
        f"{run.path}/run.json names a metric file, {path}, which would be run as code: if you "
        "trust that file, add --trust_recipe (in Python trust_recipe=True, or import it first)"
    )
    lacking = dataclasses.replace(run.metrics, statistics=None)
    statistics = run.metrics
    for verb, words in (
        ("evaluate", [str(run.path)]),
        ("evaluate", [str(run.path), "--data", str(reviews)]),
        ("compare", [str(run.path), str(run.path)]),
        ("report", [str(run.path)]),
    ):
        if verb == "report":  # has to compute them again
            lacking.write(run.path)
        capsys.readouterr()
        assert cli.main([verb, *words]) == 2, verb
        assert capsys.readouterr().err == f"error: {told}\n"
    statistics.write(run.path)
    assert len(finetune.predict(run.path, ["fine"])) == 1  # needs no metrics
    assert run.model() is not None
    assert not canary.exists()
    assert cli.main(["report", str(run.path)]) == 0  # has what it needs
    assert not canary.exists()

    assert cli.main(["evaluate", str(run.path), "--trust_recipe"]) == 0
    assert canary.exists()
    digest = metric_files.hashes(run.manifest.scoring)["cost"]
    assert (
        f"importing the metric {path} (sha256 {digest}), which has changed since the training\n"
        in capsys.readouterr().err
    )
    forget(monkeypatch)
    with pytest.warns(UserWarning, match=f"importing the metric {path} "):
        Run.load(run.path, trust_recipe=True)

    forget(monkeypatch)
    path.unlink()
    told = f"{run.path}/run.json names a metric file that is not there: {path}"
    with pytest.raises(UserError, match=f"^{re.escape(told)}$"):
        finetune.evaluate(run.path, trust_recipe=True)
    assert len(finetune.predict(run.path, ["fine"], trust_recipe=True)) == 1


@pytest.mark.parametrize("module", ["{path}", "{path}/", "../{name}", "~/{name}"])
@pytest.mark.parametrize("key", ["scoring", "options"])
def test_no_spelling_in_a_manifest_runs_a_file(
    key: str, module: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.runs import write_run

    monkeypatch.setenv("HOME", str(place))
    (place / "here").mkdir()
    monkeypatch.chdir(place / "here")
    path, canary = place / "planted.py", place / "canary"
    path.write_text(f"open({str(canary)!r}, 'w')")
    spelled = module.format(path=path, name=path.name)
    run = write_run(place / "run")
    content = json.loads((run.path / "run.json").read_text())
    named: dict[str, Any] = {"scoring": {"accuracy": {"module": spelled}}}
    named["options"] = {**content["options"], "metrics": f"f1,{spelled}"}
    (run.path / "run.json").write_text(json.dumps({**content, key: named[key]}))
    with pytest.raises(UserError, match="names a metric file"):
        _ = run.compute_metrics if key == "scoring" else run.recipe()
    assert not canary.exists()


@pytest.mark.trains
@pytest.mark.usefixtures("few_draws")
def test_a_run_is_resumed_from_elsewhere_with_the_same_file(
    place: Path, reviews: Path, tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = {"save_strategy": "steps", "save_steps": 1}
    trained(place, reviews, tiny_model, **usual)
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    more = {**usual, "max_steps": 3, "metrics": "f1,../cost", "resume": True}
    run = trained(place, reviews, tiny_model, **more)
    assert run.manifest.steps == 3
    path = place / "cost" / "cost.py"
    path.write_text(path.read_text().replace("30.0", "40.0"))
    with pytest.raises(UserError, match=r"was trained with metric files of sha256 .*cost") as told:
        trained(place, reviews, tiny_model, **more, num_train_epochs=4)
    assert "--allow_changed metric_files" in str(told.value)


@pytest.mark.trains
@pytest.mark.usefixtures("few_draws")
def test_a_module_that_fails_later_ends_the_run_with_a_sentence(
    place: Path, reviews: Path, tiny_model: str
) -> None:
    path = written(
        place / "late.py", 'assert len(references) < 9, "too many rows"; return {"x": 1}'
    )
    told = r"^./late.py, line \d+: AssertionError: too many rows$"
    best = dict(metric_for_best_model="f1", greater_is_better=None)
    with pytest.raises(UserError, match=told):
        trained(place, reviews, tiny_model, metrics=f"f1,{path}", **best)
    manifest = Run.load(place / "run").manifest
    assert manifest.status == "failed"
    assert "too many rows" in str(manifest.failure)


TWO_PROCESSES = """
import sys, json, finetune
from finetune.reporting import page
from finetune.statistics import intervals
intervals.DRAWS, page.write = 20, lambda run: run.path
finetune.train("sentiment", **json.loads(sys.argv[1]))
"""


@pytest.mark.processes
@pytest.mark.usefixtures("few_draws")
def test_two_processes_compute_the_same(
    place: Path, reviews: Path, tiny_model: str, warm: Servers
) -> None:
    one = trained(place, reviews, tiny_model)
    (place / "train.py").write_text(TWO_PROCESSES)
    chosen = {"metrics": "f1,./cost", "metric_for_best_model": "minutes_lost", "eval_samples": 20}
    chosen |= {"greater_is_better": False, "output_dir": "two", "global_batch_size": 32}
    words = [json.dumps(options(reviews, tiny_model, **chosen))]
    done = subprocess.run(
        warm.torchrun(words, os.environ, module="train"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    two = Run.load("two")
    assert two.manifest.launch.world_size == 2
    assert two.metrics.test == pytest.approx(one.metrics.test, abs=1e-5)


def test_metrics_take_several_labels_a_row_or_are_refused() -> None:
    modules = {path.stem: path.read_text() for path in namesakes.files("metrics")}
    assert len(modules) >= 15
    for name, source in modules.items():
        if '"multilabel"' in source:
            TASKS["labels"].refuse_metrics({name: {}})
        else:
            with pytest.raises(UserError, match=f"--metrics {name}: (a metric|it needs)"):
                TASKS["labels"].refuse_metrics({name: {}})
    with pytest.raises(UserError, match="matthews_correlation: a metric of one class a row, and"):
        TASKS["labels"].refuse_metrics({"matthews_correlation": {}})
