"""Learning curves in trackers: row H4. Their files are read back with their own readers."""

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
needs_trackio = pytest.mark.skipif(
    importlib.util.find_spec("trackio") is None, reason="trackio (0.43) needs pillow<13"
)
TRACKERS = ["tensorboard", "mlflow", pytest.param("trackio", marks=needs_trackio)]


def in_tensorboard(run: Path) -> tuple[Curves, str]:
    """Return the curves by name, and the hyper-parameters as text."""
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    curves: Curves = defaultdict(list)
    for tag in events.Tags()["scalars"]:
        name = tag.removeprefix("train/").replace("/", "_")
        curves[name] = [(event.step, event.value) for event in events.Scalars(tag)]
    (arguments, *_) = events.Tensors("args/text_summary")
    return curves, arguments.tensor_proto.string_val[0].decode()


def in_mlflow(run: Path) -> tuple[Curves, str]:
    client = mlflow.MlflowClient(f"sqlite:///{run}/mlflow.db")
    (tracked,) = client.search_runs(["0"])
    assert (tracked.info.run_name, tracked.info.status) == (run.name, "FINISHED")
    curves: Curves = {}
    for name in tracked.data.metrics:
        points = client.get_metric_history(tracked.info.run_id, name)
        curves[name] = sorted((point.step, point.value) for point in points)
    return curves, json.dumps(tracked.data.params).replace('"0.003"', "0.003")


def in_trackio(run: Path) -> tuple[Curves, str]:
    (path,) = (run / "trackio").glob("*.db")
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT run_name, metrics FROM metrics ORDER BY step").fetchall()
        ((config,),) = database.execute("SELECT config FROM configs")
    assert {name for name, _ in rows} == {run.name}
    curves: Curves = defaultdict(list)
    for _, row in rows:
        entry = {n.removeprefix("train/").replace("/", "_"): v for n, v in json.loads(row).items()}
        for name in entry.keys() - {"global_step"}:
            curves[name].append((entry["global_step"], entry[name]))
    return curves, config.decode().replace(":", ": ")


def assert_tracked(tracker: str, path: Path) -> None:
    """Compare what a tracker has with `run.json` and `metrics.json`."""
    run = finetune.Run.load(path)
    curves, parameters = globals()[f"in_{tracker}"](path)
    for name in ("loss", "learning_rate", "eval_loss", "eval_f1", "eval_accuracy"):
        history = [(entry["step"], entry[name]) for entry in run.manifest.history if name in entry]
        assert len(history) > 2
        assert curves[name] == [(step, pytest.approx(value)) for step, value in history], name
    assert curves["test_loss"][-1][1] == pytest.approx(run.metrics.test["loss"])
    for name in run.headline:
        interval = run.statistics.metrics[name]
        for suffix, end in (("", "value"), ("_low", "low"), ("_high", "high")):
            last = (run.manifest.steps, pytest.approx(interval[end]))
            assert curves[f"test_{name}{suffix}"][-1] == last
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
    environment = dict(os.environ)
    for name in ("first", "second"):
        result = cli(*words, tmp_path / name)
        assert result.status == 0, result.output
        assert "trackio show" not in result.stdout
        assert_tracked(tracker, tmp_path / name)
    result = cli(*words, tmp_path / "second", "--num_train_epochs", 5, "--resume")
    assert result.status == 0, result.output
    assert_tracked(tracker, tmp_path / "second")
    assert [*(tmp_path / "cwd").iterdir()] == []
    homes = [tmp_path / "home", Path(os.environ["HF_HOME"])]
    assert [path for home in homes for path in home.rglob("*trackio*")] == []
    assert dict(os.environ) == environment


def test_a_directory_of_the_user(
    reviews: Path, bert: Path, tmp_path: Path, cli: Cli, monkeypatch: Any
) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "mine"))
    words = ["text", *flags(**TRAINING, dataset=reviews, model=bert), "--no_baseline"]
    words += ["--max_steps", "2", "--output_dir", tmp_path / "run", "--report_to"]
    assert cli(*words, "none").status == 0
    assert not (tmp_path / "mine").exists()
    assert cli(*words, "tensorboard").status == 0
    assert len([*(tmp_path / "mine").iterdir()]) == 1
    assert not (tmp_path / "run" / "tensorboard").exists()


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow", "trackio"])
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
