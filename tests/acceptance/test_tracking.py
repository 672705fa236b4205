"""Learning curves in trackers, read back from their files: row H4."""

import importlib.util
import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import mlflow
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import finetune
from tests.acceptance.conftest import TRAINING, Finished, flags

Cli = Callable[..., Finished]
Curves = dict[str, list[tuple[int, float]]]
pytestmark = pytest.mark.contract("H4")
LONGER = ("--num_train_epochs", "5")
TRACKERS = ["tensorboard", "mlflow", "trackio"]


def usual(tag: str) -> str:
    return tag.removeprefix("train/").replace("/", "_")


def in_tensorboard(run: Path) -> tuple[Curves, str]:
    """Return the curves by name, and the hyper-parameters as text."""
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    points = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    curves = {usual(tag): [(e.step, e.value) for e in points[tag]] for tag in points}
    arguments = events.Tensors("args/text_summary")[0]
    return curves, arguments.tensor_proto.string_val[0].decode()


def in_mlflow(run: Path) -> tuple[Curves, str]:
    client = mlflow.MlflowClient(f"sqlite:///{run}/mlflow.db")
    (tracked,) = client.search_runs(["0"])
    assert (tracked.info.run_name, tracked.info.status) == (run.name, "FINISHED")
    points = {n: client.get_metric_history(tracked.info.run_id, n) for n in tracked.data.metrics}
    curves = {name: sorted((p.step, p.value) for p in points[name]) for name in points}
    return curves, json.dumps(tracked.data.params).replace('"0.003"', "0.003")


def in_trackio(run: Path) -> tuple[Curves, str]:
    (path,) = (run / "trackio").glob("*.db")
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT run_name, metrics FROM metrics ORDER BY step").fetchall()
        ((config,),) = database.execute("SELECT config FROM configs")
    assert {name for name, _ in rows} == {run.name}
    curves: Curves = defaultdict(list)
    for entry in (json.loads(row) for _, row in rows):
        for tag, value in entry.items():
            curves[usual(tag)].append((entry["train/global_step"], value))
    return curves, config.decode().replace(":", ": ")


def assert_tracked(tracker: str, path: Path) -> None:
    """Compare what a tracker has with `run.json` and `metrics.json`."""
    run = finetune.Run.load(path)
    curves, parameters = globals()[f"in_{tracker}"](path)
    for name in ("loss", "learning_rate", "eval_loss", "eval_f1", "eval_accuracy"):
        history = [(entry["step"], entry[name]) for entry in run.manifest.history if name in entry]
        assert len(history) > 2
        assert curves[name] == [(step, pytest.approx(value)) for step, value in history], name
    for name in run.headline:
        for suffix, end in (("", "value"), ("_low", "low"), ("_high", "high")):
            expected = pytest.approx(run.statistics.metrics[name][end])
            assert curves[f"test_{name}{suffix}"][-1] == (run.manifest.steps, expected)
    assert '"learning_rate": 0.003' in parameters
    files = [file for file in path.rglob("*") if tracker in str(file.relative_to(path))]
    tracked = b"".join(file.read_bytes() for file in files if file.is_file())
    assert b"eval" in tracked
    assert not [text for text in run.predictions["text"] if text.encode() in tracked]


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_tracker_has_curves_parameters_and_test_scores(
    tracker: str, reviews: Path, bert: Path, tmp_path: Path, cli: Cli, monkeypatch: Any
) -> None:
    """A resumed training continues the curves; a second one in this process has its own files."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    words = ["text", *flags(**TRAINING, dataset=reviews, model=bert), "--no_baseline"]
    words += ["--report_to", tracker, "--output_dir"]
    for name, more in (("first", ()), ("second", ()), ("second", ("--resume", *LONGER))):
        result = cli(*words, tmp_path / name, *more)
        assert (result.status, "trackio show" in result.stdout) == (0, False), result.output
        assert_tracked(tracker, tmp_path / name)
    assert [*(tmp_path / "cwd").iterdir()] == []
    homes = [tmp_path / "home", Path(os.environ["HF_HOME"])]
    assert [path for home in homes for path in home.rglob("*trackio*")] == []


def test_a_directory_and_an_mlflow_run_of_the_user(
    reviews: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "mine"))
    monkeypatch.chdir(tmp_path)  # where mlflow has its default database
    options = TRAINING | {"dataset": str(reviews), "model": str(bert), "baseline": False}
    options |= {"max_steps": 2, "report_to": ["tensorboard", "mlflow"]}
    with mlflow.start_run() as mine:
        run = finetune.train("text", output_dir=str(tmp_path / "run"), **options)
    assert len([*(tmp_path / "mine").iterdir()]) == 1
    assert not {"tensorboard", "mlflow.db"} & {*os.listdir(run.path)}
    logged = mlflow.get_run(mine.info.run_id).data.metrics
    assert logged["test_f1"] == pytest.approx(run.metrics.test["f1"])
    assert not {"MLFLOW_TRACKING_URI", "TRACKIO_DIR"} & os.environ.keys()


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_missing_package_is_named_before_the_training(
    tracker: str, reviews: Path, bert: Path, tmp_path: Path, cli: Cli
) -> None:
    find = importlib.util.find_spec
    hide = lambda name, *of: None if name.startswith(tracker) else find(name, *of)  # noqa: E731
    with mock.patch.object(importlib.util, "find_spec", hide):
        words = ["--dataset", reviews, "--model", bert, "--output_dir", tmp_path / "run"]
        result = cli("text", *words, "--report_to", tracker)
    assert result.status == 2
    expected = f"--report_to {tracker}: not installed: pip install 'trainer-recipes[{tracker}]'"
    assert expected in result.stderr
    assert not (tmp_path / "run").exists()
