"""Learning curves in trackers, read back from their files: row H4."""

import importlib.util
import json
import os
import shutil
import sqlite3
import struct
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import mlflow
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import finetune
from tests.acceptance.conftest import TRAINING, Finished, flags

Cli = Callable[..., Finished]
Curves = dict[str, list[tuple[int, float]]]
pytestmark = pytest.mark.contract("H4")
LONGER = ("--num_train_epochs", "5")
NEEDS_WANDB = pytest.mark.skipif(not importlib.util.find_spec("wandb"), reason="needs wandb")
TRACKERS = ["tensorboard", "mlflow", "trackio", pytest.param("wandb", marks=NEEDS_WANDB)]


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
    copies = Path(tempfile.mkdtemp(prefix="copy", dir=run.parent))  # a path that a URL can have
    shutil.copy(run / "mlflow.db", copies)
    client = mlflow.MlflowClient(f"sqlite:///{copies}/mlflow.db")
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


def in_wandb(run: Path) -> tuple[Curves, str]:
    """The file has a head of 7 bytes, and records in the blocks of LevelDB's log."""
    from wandb.proto import wandb_internal_pb2

    curves: Curves = defaultdict(list)
    ids, parameters = set(), ""
    for path in sorted(run.glob("wandb/offline-run-*/*.wandb")):
        content, place, parts = path.read_bytes(), 7, b""
        while place < len(content):
            if (left := 32768 - place % 32768) < 7:
                place += left
                continue
            _, size, kind = struct.unpack("<IHB", content[place : place + 7])
            parts += content[place + 7 : place + 7 + size]
            place += 7 + size
            if kind in (2, 3):  # the first part of a record, one in the middle
                continue
            record = wandb_internal_pb2.Record.FromString(parts)
            parts = b""
            if record.HasField("run"):
                ids.add((record.run.run_id, record.run.display_name))
            parameters += "".join(f'"{i.key}": {i.value_json}' for i in record.config.update)
            items = record.history.item
            entry = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}
            for tag, value in entry.items():
                curves[usual(tag)].append((entry["train/global_step"], value))
    assert ids == {((run / "wandb-run").read_text(), run.name)}
    return curves, parameters


def assert_tracked(tracker: str, path: Path) -> None:
    """Compare what a tracker has with `run.json` and `metrics.json`."""
    run = finetune.Run.load(path)
    curves, parameters = globals()[f"in_{tracker}"](path)
    for name in ("loss", "learning_rate", "eval_loss", "eval_f1", "eval_accuracy"):
        history = [(entry["step"], entry[name]) for entry in run.manifest.history if name in entry]
        assert len(history) > 2
        assert curves[name] == [(step, pytest.approx(value)) for step, value in history], name
    assert run.headline == ["f1", "accuracy"]
    for name in run.headline:
        for suffix, end in (("", "value"), ("_low", "low"), ("_high", "high")):
            expected = pytest.approx(run.statistics.metrics[name][end])
            assert curves[f"test_{name}{suffix}"][-1] == (run.manifest.steps, expected)
    assert '"learning_rate": 0.003' in parameters
    files = [file for file in path.rglob("*") if tracker in str(file.relative_to(path))]
    tracked = b"".join(file.read_bytes() for file in files if file.is_file())
    assert (b"eval" in tracked, b"hf_secret" in tracked) == (True, False)
    assert not [text for text in run.predictions["text"] if text.encode() in tracked]


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_tracker_has_curves_parameters_and_test_scores(
    tracker: str, reviews: Path, bert: Path, tmp_path: Path, cli: Cli, monkeypatch: Any
) -> None:
    """A resumed training continues the curves; a second one in this process has its own files."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    words = ["text", *flags(**TRAINING, dataset=reviews, model=bert), "--no_baseline"]
    words += ["--report_to", tracker, "--hub_token", "hf_secret", "--output_dir"]
    monkeypatch.setattr(sys, "argv", ["finetune", *map(str, words)])  # which trackers record
    second = "a ?x=1 50%41 #1;é&+b"  # characters with a meaning in a URL
    for name, more in (("first", ()), (second, ()), (second, ("--resume", *LONGER))):
        result = cli(*words, tmp_path / name, *more)
        assert (result.status, "trackio show" in result.stdout) == (0, False), result.output
        assert_tracked(tracker, tmp_path / name)
    assert [*(tmp_path / "cwd").iterdir()] == []
    names = {path.name for path in tmp_path.iterdir() if not path.name.startswith("copy")}
    assert names <= {"cwd", "home", "first", second}
    homes = [tmp_path / "home", Path(os.environ["HF_HOME"])]
    assert [path for home in homes for path in home.rglob(f"*{tracker}*")] == []


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


def test_each_training_has_an_mlflow_run(
    reviews: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one that of the user, the others children of it; a resume continues its own."""
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mine.db")
    mine = client.create_run("0").info.run_id
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mine.db")
    monkeypatch.setenv("MLFLOW_RUN_ID", mine)
    monkeypatch.setenv("MLFLOW_TAGS", '{"team": "reviews"}')
    options = TRAINING | {"dataset": str(reviews), "model": str(bert), "baseline": False}
    options |= {"report_to": "mlflow", "logging_steps": 1}
    for name, changes in {
        "first": {"max_steps": 2},
        "second": {"max_steps": 2, "learning_rate": 1e-4},
        "first again": {"max_steps": 3, "resume": True},
    }.items():
        finetune.train("text", output_dir=str(tmp_path / name.split()[0]), **options | changes)
    runs = {tracked.info.run_id: tracked for tracked in client.search_runs(["0"])}
    first = runs.pop(mine)
    (second,) = runs.values()
    assert (second.data.tags["mlflow.parentRunId"], second.data.tags["team"]) == (mine, "reviews")
    rates = [tracked.data.params["learning_rate"] for tracked in (first, second)]
    assert rates == ["0.003", "0.0001"]
    for tracked, steps in ((first, [1, 2, 3]), (second, [1, 2])):
        points = client.get_metric_history(tracked.info.run_id, "loss")
        assert (sorted(point.step for point in points), tracked.info.status) == (steps, "FINISHED")
    assert os.environ["MLFLOW_RUN_ID"] == mine
    monkeypatch.setenv("MLFLOW_RUN_ID", "f" * 32)
    with pytest.raises(finetune.UserError, match=r"f{32} not found; change or unset MLFLOW_RUN_ID"):
        finetune.train("text", output_dir=str(tmp_path / "first"), **options)
    assert (tmp_path / "first" / "metrics.json").exists()  # it was not moved aside


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


def test_trackers_are_separated_by_blanks(reviews: Path, bert: Path, cli: Cli) -> None:
    words = ["text", "--dataset", reviews, "--model", bert, "--report_to"]
    cli(*words, "wandb,tensorboard").refused("expected blanks between names: wandb tensorboard")
    cli(*words, "tensorbord").refused("unknown; did you mean 'tensorboard'?")


class MLflowServer(BaseHTTPRequestHandler):
    """Answers the requests of a training to MLflow, until it has got some curves."""

    metrics: ClassVar[list[dict[str, Any]]]  # that were logged
    requests: ClassVar[list[str]]  # paths, of requests that were refused
    entries: ClassVar[int]  # of the curves, until it stops answering

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        content = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        name = self.path.partition("?")[0].rpartition("/mlflow/")[2]
        if self.entries == 0:
            self.requests.append(name)
            self.send_error(503)
            return
        if metrics := content.get("metrics"):
            type(self).entries -= 1
            self.metrics.extend(metrics)
        info = {"run_id": "a" * 32, "experiment_id": "0", "status": "RUNNING", "start_time": 1}
        answer = json.dumps({"run": {"info": info, "data": {}}, "run_info": info}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *of: Any) -> None:
        """Print nothing."""


@pytest.fixture
def mlflow_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[MLflowServer]]:
    """An MLflow server on the loopback, which `MLFLOW_TRACKING_URI` names."""
    kind = type("Server", (MLflowServer,), {"metrics": [], "requests": [], "entries": 2})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://someone:secret@127.0.0.1:{server.server_port}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    for name in ("FACTOR", "JITTER"):  # or each of the requests that are repeated waits for seconds
        monkeypatch.setenv(f"MLFLOW_HTTP_REQUEST_BACKOFF_{name}", "0")
    yield kind
    server.shutdown()
    server.server_close()


@pytest.mark.contract("D1")
def test_a_tracker_that_fails_costs_its_curves_only(
    mlflow_server: type[MLflowServer],
    single_label_run: finetune.Run,
    reviews: Path,
    bert: Path,
    tmp_path: Path,
    cli: Cli,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server stops in the middle: the same weights as without it, and one warning. Nor do
    variables of accelerate change the weights: what is typed counts.
    """
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    words = ["text", *flags(**TRAINING, dataset=reviews, model=bert), "--no_baseline"]
    words += flags(num_threads=torch.get_num_threads())  # not those of a launcher
    result = cli(*words, "--report_to", "mlflow", "--output_dir", tmp_path / "run")
    assert result.status == 0, result.stderr
    weights = [path / "model.safetensors" for path in (single_label_run.path, tmp_path / "run")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    history = single_label_run.manifest.history
    losses = [(entry["step"], entry["loss"]) for entry in history if "loss" in entry]
    received = [(m["step"], m["value"]) for m in mlflow_server.metrics if m["key"] == "loss"]
    assert len(losses) > len(received) == 2
    assert [(step, pytest.approx(value)) for step, value in received] == losses[:2]
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "finetune"]
    assert warning.startswith("warning: --report_to mlflow: API request to http://127.0.0.1:")
    assert warning.endswith("; its curves end here, the training continues")
    assert "secret" not in result.output + warning
    assert "mlflow" not in result.output.lower(), result.output
    # the entry that failed, four times, and at most two requests to end the MLflow run
    assert mlflow_server.requests[:4] == ["runs/log-batch"] * 4
    assert len(mlflow_server.requests) <= 6, mlflow_server.requests


def test_mlflow_is_asked_before_the_data_is_read(
    mlflow_server: type[MLflowServer], tmp_path: Path, cli: Cli, monkeypatch: Any
) -> None:
    (tmp_path / "bad.csv").write_text("no label\n")
    words = ["text", "--dataset", tmp_path / "bad.csv", "--report_to", "mlflow"]
    words += ["--output_dir", tmp_path / "run"]
    mlflow_server.entries = 0
    for more, refused in (({}, 2), ({"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}, 1)):
        for name, value in more.items():  # of the user
            monkeypatch.setenv(name, value)
        mlflow_server.requests.clear()
        result = cli(*words)
        assert (result.status, result.stderr.count("\n")) == (2, 1), result.stderr
        assert "error: --report_to mlflow: http://127.0.0.1:" in result.stderr
        assert "leave out --report_to mlflow" in result.stderr
        assert mlflow_server.requests == ["experiments/search"] * refused
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    assert "ACCELERATE_MIXED_PRECISION fp8: expected no, bf16 or fp16" in cli(*words).stderr
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # refuses connections
    result = cli(*words)
    assert (result.status, "http://127.0.0.1:9 does not answer" in result.stderr) == (2, True)
    assert not (tmp_path / "run").exists()
