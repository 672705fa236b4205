"""Section A of the contract: a recipe runs in the same way with every launcher.

Five commands are started, each once for all workers: the demo under `torchrun`, `accelerate launch`
and `python -m` on a terminal; a script that calls `finetune.launch` and then runs the Hub recipes;
and a script for commands that must not import torch. All else runs in the process of the test.
"""

import contextlib
import copy
import dataclasses
import inspect
import json
import os
import pty
import re
import runpy
import select
import shlex
import shutil
import socket
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import TrainingArguments

import finetune
from recipes.text import Text
from tests.acceptance.conftest import Commands, Finished, flags, once, user_error
from tests.acceptance.data import write_bert
from tests.conftest import HANGS, ROOT
from tests.hub import build_repositories, serve
from tests.hub.repositories import CASED, MNIST, SENTIMENT, UNCASED, YELP
from tests.warm import Servers

Cli = Callable[..., Finished]
RECIPES = ["image", "mnist", "sentiment", "text", "tokens", "yelp"]


def content(directory: Path) -> dict[str, bytes]:
    """Return the content of every file of a directory by path, without its lock."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def losses(run: finetune.Run) -> list[float]:
    return [entry["loss"] for entry in run.manifest.history if "loss" in entry]


class Stopped(Exception):
    """Raised by a callback to stop before the training."""


def stop_at_start(event: Any) -> None:
    if type(event).__name__ == "Started":
        raise Stopped(event)


# ---- the commands that are started ---------------------------------------------------------------

#: Options for a demo of three steps with the same results in any number of processes.
SMALL: dict[str, Any] = dict(train_samples=96, eval_samples=40, max_length=16, hidden_dropout=0.0)
SMALL |= dict(precision="fp32", num_threads=1, logging_steps=1)
SCRIPT = '''
"""Launch runs and type commands as `task.json` says; print what the commands did."""

import contextlib, io, json, runpy, sys

HEAVY = {"torch", "transformers", "datasets", "numpy", "pandas", "sklearn", "accelerate"}


def type_command(words):
    output, status = io.StringIO(), 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            sys.argv = ["finetune", *words]
            runpy.run_module("finetune", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code or 0
    return [status, output.getvalue(), sorted(HEAVY & set(sys.modules))]


if __name__ == "__main__":
    with open("task.json") as file:
        task = json.load(file)
    for options in task["launches"]:
        import finetune, pandas

        if "rows" in options:
            options["dataset"] = pandas.read_csv(options.pop("rows"))
        finetune.launch(num_processes=2, progress=print, **options)
    results = {name: type_command(words) for name, words in task["commands"].items()}
    with open("results.json", "w") as file:
        json.dump(results, file)
'''


def make_demo() -> list[str]:
    """Return the commands that `make demo` runs in a fresh clone."""
    make = ["make", "--dry-run", "--no-print-directory", "demo", "VENV=nowhere"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    printed = subprocess.run(make, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return printed.stdout.splitlines()


def demo_words() -> list[str]:
    """Return the recipe and flags of `make demo`."""
    words = shlex.split(make_demo()[-1])
    return words[words.index("finetune") + 1 :]


def run_in_terminal(commands: Commands, words: list[str]) -> Finished:
    """Run a command whose standard output and error are a terminal."""
    leader, follower = pty.openpty()
    termios.tcsetwinsize(leader, (24, 100))
    process = commands.start(*words, stdout=follower, stderr=follower, stdin=subprocess.DEVNULL)
    os.close(follower)
    output = b""
    with contextlib.suppress(OSError):  # raised after the last process of the terminal has ended
        while select.select([leader], [], [], HANGS)[0] and (chunk := os.read(leader, 65536)):
            output += chunk
    os.close(leader)
    return Finished(process.wait(HANGS), output.decode(), "")


def run_script(commands: Commands, task: dict[str, Any], env: dict[str, str]) -> Finished:
    """Run `SCRIPT`."""
    (commands.home / "task.json").write_text(json.dumps({"launches": [], **task}))
    (commands.home / "script.py").write_text(SCRIPT)
    return commands("script.py", launcher="script", env={"HF_HUB_OFFLINE": "0", **env})


def launch_and_use_hub(commands: Commands, reviews: Path, bert: Path) -> Finished:
    """Run the demo, rows in Python, and the recipes of a loopback Hub with an empty cache."""
    build_repositories(commands.home / "hub")
    quick = dict(max_steps=1, precision="fp32")
    with serve(commands.home / "hub") as hub:
        commits = {name: repository.commit for name, repository in hub.repositories.items()}
        pins = dict(dataset_revision=commits[SENTIMENT], model_revision=commits[UNCASED])
        task = {
            "launches": [
                dict(recipe=demo_words()[0], output_dir="run", embedded=True, **SMALL),
                dict(
                    recipe="text", output_dir="frame", rows=str(reviews), model=str(bert), **quick
                ),
                dict(recipe="yelp", output_dir="yelp", **quick),
            ],
            "commands": {
                "sentiment": ["sentiment", *flags(**quick, **pins, output_dir="sentiment")],
                "mnist": ["mnist", *flags(**quick, output_dir="mnist")],
                "again": ["yelp", "--dry_run"],
                "no such data": ["yelp", "--dry_run", "--dataset_revision", "0" * 40],
                "no such model": ["yelp", "--dry_run", "--model_revision", "1" * 40],
            },
        }
        finished = run_script(commands, task, hub.environment(commands.home / "cache"))
        downloads = {name: hub.downloads(name) for name in commits}
        facts = {"commits": commits, "downloads": downloads, "requests": hub.requests}
    (commands.home / "hub.json").write_text(json.dumps(facts))
    return finished


def run_light_commands(commands: Commands) -> Finished:
    """Run commands that must not import torch, and some that need a Hub that does not answer."""
    typed = {"version": ["--version"], "list": ["list"], "help": ["--help"], "yelp": ["yelp"]}
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # no server listens
        env = {"HF_ENDPOINT": f"http://127.0.0.1:{closed.getsockname()[1]}"}
        env |= {"HF_HOME": str(commands.home), "no_proxy": "127.0.0.1"}
        return run_script(commands, {"commands": typed}, env)


@dataclasses.dataclass(frozen=True)
class Start:
    """The directory of a command that was started once, with its run and records."""

    directory: Path

    def run(self, name: str = "run") -> finetune.Run:
        return finetune.Run.load(self.directory / name)

    def json(self, name: str) -> Any:
        return json.loads((self.directory / f"{name}.json").read_text())

    @property
    def finished(self) -> Finished:
        return Finished(**self.json("finished"))


Started = Callable[[str], Start]


@pytest.fixture
def started(shared_directory: Path, servers: Servers, reviews: Path, bert: Path) -> Started:
    """Return a function that returns a started demo or script; the first worker starts it."""

    def write(directory: Path, way: str) -> None:
        directory.mkdir()
        commands = Commands(directory, shared_directory, servers)
        words, finished = demo_words(), Finished(0, "", "")
        typed = [*words, *flags(**SMALL), "--output_dir", "run"]
        if way == "terminal":
            finished = run_in_terminal(commands, typed)
        elif way == "launch":
            finished = launch_and_use_hub(commands, reviews, bert)
        elif way == "light":
            finished = run_light_commands(commands)
        elif way == "train":
            finetune.train(words[0], embedded=True, output_dir=str(directory / "run"), **SMALL)
        else:
            finished = commands(*typed, launcher=way)
        assert finished.status == 0, finished.output
        (directory / "finished.json").write_text(json.dumps(dataclasses.asdict(finished)))

    return lambda way: Start(
        once(shared_directory / f"started-{way}", lambda directory: write(directory, way))
    )


# ---- the demo, however it is started -------------------------------------------------------------


@pytest.mark.contract("A1")
def test_make_demo_sets_up_and_trains_on_embedded_text_in_two_processes(started: Started) -> None:
    """It does not use the Hub: `HF_HUB_OFFLINE` is set for all tests."""
    lines = make_demo()
    assert any("-m venv nowhere" in line for line in lines)
    assert any(re.search(r"pip install .*\.\[[a-z,]*embedded", line) for line in lines)
    words = shlex.split(lines[-1])
    assert words[0].endswith("/torchrun")
    assert {"--nproc_per_node=2", "--embedded"} <= set(words)
    run = started("torchrun").run()
    assert (run.manifest.status, run.manifest.launch.world_size) == ("finished", 2)
    assert run.manifest.command.startswith("torchrun --nproc_per_node=2 -m finetune sentiment ")
    assert run.manifest.data.rows == {"train": 96, "validation": 40, "test": 40}
    assert {path.name for path in run.path.iterdir()} >= {
        *("config.json", "model.safetensors", "tokenizer.json", "run.json", "metrics.json"),
        *("predictions.parquet", "report.html", "README.md", "plots", "checkpoint-3"),
    }
    frozen = "frozen encoder + logistic regression"
    baselines = {"majority class", "TF-IDF + logistic regression", frozen}
    assert set(run.metrics.baseline) == baselines


@pytest.mark.contract("A1")
@pytest.mark.slow
def test_the_whole_demo_beats_tf_idf(command: Commands) -> None:
    finished = command(*demo_words(), launcher="torchrun").succeeded()
    run = finetune.Run.load(command.home / "runs" / "sentiment")
    tf_idf = run.metrics.baseline["TF-IDF + logistic regression"]
    assert run.metrics.test["f1"] > tf_idf["f1"] + 0.02
    assert run.metrics.test["f1"] > 0.78
    assert f"{run.metrics.test['f1']:.4f}" in finished.stdout


@pytest.mark.contract("A2")
@pytest.mark.parametrize(
    ("way", "processes"), [("torchrun", 2), ("accelerate", 1), ("train", 1), ("launch", 2)]
)
def test_every_way_to_start_gives_the_numbers_and_files_of_python(
    way: str, processes: int, started: Started
) -> None:
    one, other = started("terminal").run(), started(way).run()
    assert (one.manifest.launch.world_size, other.manifest.launch.world_size) == (1, processes)
    assert len(set(losses(one))) == len(losses(one)) == 3
    assert losses(other) == pytest.approx(losses(one), abs=1e-6)
    for split in ("validation", "test"):
        assert other.metrics[split] == pytest.approx(one.metrics[split], abs=1e-6)
    assert other.metrics.baseline == one.metrics.baseline
    numbers = [name for name in one.predictions if name.startswith("probability")]
    texts, other_texts = (run.predictions.drop(columns=numbers) for run in (one, other))
    pd.testing.assert_frame_equal(other_texts, texts)
    np.testing.assert_allclose(other.predictions[numbers], one.predictions[numbers], atol=1e-6)
    files, other_files = (
        {name for name in content(run.path) if "rng_state" not in name} for run in (one, other)
    )
    assert other_files == files


@pytest.mark.contract("A2")
@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")],
        ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
    ],
    ids=["Open MPI", "Intel MPI"],
)
def test_mpirun_starts_the_same_training(
    started: Started, command: Commands, tmp_path: Path, names: list[str]
) -> None:
    """It uses the variables that mpirun sets, which is not installed here."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(2):
        env = dict(zip(names, map(str, (rank, 2, rank, 2)), strict=True))
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        words = [*demo_words(), *flags(**SMALL), "--output_dir", tmp_path / "run"]
        ranks.append(command.start(*words, launcher="fresh", env=env))
    outputs = [process.communicate(timeout=HANGS) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], outputs
    run, other = finetune.Run.load(tmp_path / "run"), started("torchrun").run()
    assert run.manifest.launch.world_size == 2
    assert losses(run) == pytest.approx(losses(other), abs=1e-6)
    assert run.metrics.test == pytest.approx(other.metrics.test, abs=1e-6)
    assert outputs[1][0] == ""


SRUN = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}
OPEN_MPI = {"RANK": "0", "SIZE": "4", "LOCAL_RANK": "0", "LOCAL_SIZE": "2"}


@pytest.mark.contract("A2", "F4")
@pytest.mark.parametrize(
    ("variables", "fragments"),
    [
        (
            SRUN,
            ["SLURM", "srun --ntasks=1 torchrun --nproc_per_node=2 -m finetune", "train.sbatch"],
        ),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, ["MPI", "torchrun --nproc_per_node=2"]),
        ({f"OMPI_COMM_WORLD_{name}": n for name, n in OPEN_MPI.items()}, ["MASTER_ADDR"]),
    ],
    ids=str,
)
def test_processes_that_would_train_separately_are_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str], fragments: list[str],
) -> None:  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    cli(*demo_words(), "--output_dir", tmp_path / "run").refused(*fragments)
    assert not (tmp_path / "run").exists()


TORCHRUN = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"}


@pytest.mark.contract("A14", "F4")
@pytest.mark.parametrize(
    ("variables", "number", "fragments"),
    [
        (TORCHRUN, "2", ["4 processes"]),
        ({"ACCELERATE_MIXED_PRECISION": "no"}, "2", ["1 process"]),
        ({"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}, "3",
         ["1 process"]),
        (SRUN, "2", ["SLURM"]),
        ({}, "0", ["expected 1 or more"]),
        ({}, "two", ["gpu or auto"]),
        pytest.param({}, "gpu", ["no GPU"], marks=pytest.mark.skipif(
            torch.accelerator.is_available(), reason="this machine has one")),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("verb", ["train", "repeat", "predict"])
def test_num_processes_is_refused_under_a_launcher(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, single_label_run: finetune.Run,
    verb: str, variables: dict[str, str], number: str, fragments: list[str],
) -> None:  # fmt: skip
    """Both numbers are named, before the data is read."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    words = [verb, "text", "--dataset", tmp_path / "nowhere.csv", "--output_dir", tmp_path / "run"]
    if verb == "predict":
        words = [verb, single_label_run.path, "nowhere.csv", "--output", tmp_path / "run"]
    refused = cli(*words, f"--num-processes={number}").refused(*fragments)
    assert "SLURM" in refused.stderr or f"--num_processes {number}" in refused.stderr
    assert not (tmp_path / "run").exists()
    if verb == "train" and "SLURM" not in refused.stderr:
        config = write_config(tmp_path, num_processes=number)
        assert cli(*words, "--config", config).refused().stderr == refused.stderr


@pytest.mark.contract("A14")
def test_one_process_is_this_one_and_python_names_launch(
    cli: Cli, tmp_path: Path, reviews: Path, bert: Path
) -> None:
    words = ["text", *flags(dataset=reviews, model=bert, output_dir=tmp_path / "run")]
    for number in ("1", *["auto"] * (not torch.accelerator.is_available())):
        printed = cli(*words, "--dry_run", "--num_processes", number).succeeded().stdout
        assert "1 process" in printed
    config = write_config(tmp_path, num_processes=[2, 3])
    cli(*words, "--dry_run", "--config", config).refused("expected 1 or more, gpu or auto")
    config = write_config(tmp_path, num_processes=2)
    for options in ({"num_processes": 2}, {"config": config}):
        with user_error("num_processes=2", "finetune.launch(recipe, num_processes=2, ...)"):
            finetune.train("text", dataset=str(reviews), model=str(bert), **options)


def write_config(directory: Path, **options: Any) -> str:
    (directory / "config.yaml").write_text(json.dumps(options))  # which is YAML
    return str(directory / "config.yaml")


@pytest.mark.contract("A2")
@pytest.mark.parametrize(
    "variables",
    [
        SRUN | {"WORLD_SIZE": "1"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"},  # a batch script, without srun
        SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1"},
    ],
    ids=str,
)
def test_a_single_process_on_slurm_is_not_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    cli("compare", tmp_path, tmp_path).refused("run.json")


@pytest.mark.contract("A2")
def test_rows_in_python_are_trained_on_in_two_processes(started: Started, reviews: Path) -> None:
    run = started("launch").run("frame")
    assert run.manifest.launch.world_size == 2
    assert run.manifest.data.rows == {"train": 173, "validation": 19, "test": 48}
    labels = pd.read_csv(reviews).set_index("text")["label"]
    assert run.predictions["label"].tolist() == labels[run.predictions["text"]].tolist()


@pytest.mark.contract("A10")
@pytest.mark.parametrize("way", ["torchrun", "accelerate", "terminal"])
def test_the_start_block_a_line_a_step_and_the_table_are_printed_once(
    way: str, started: Started
) -> None:
    run, printed = started(way).run(), started(way).finished.stdout
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[A-Z]", "\n", printed))
    lines = [line.strip() for line in lines if "%|" not in line]
    *steps, validated = [line for line in lines if re.match(r"step \d/3 .* loss ", line)]
    block = "\n".join(lines[: lines.index(steps[0])])
    processes = 2 if way == "torchrun" else 1
    for fact in (
        *("sentiment", "embedded:minilm", "96 train, 40 validation, 40 test", "fp32"),
        *(f"{processes} process", f"{32 // processes} per device", "32 rows per step"),
        *("3 (1 epoch)", "learning rate 0.0001", "positive"),
    ):
        assert fact in block
    for number, (line, loss) in enumerate(zip(steps, losses(run), strict=True), start=1):
        assert line.startswith(f"step {number}/3 ")
        assert f"loss {loss:.4f}" in line
        assert "samples/s" in line
    for name, value in run.metrics.validation.items():
        assert f"{name} {value:.4f}" in validated
    table = "\n".join(lines[lines.index(validated) :])
    for scores in [run.metrics.test, *run.metrics.baseline.values()]:
        for name in ("f1", "accuracy"):
            assert f"{scores[name]:.4f}" in table
    assert "40 rows" in table
    assert "run/report.html" in table
    facts = ("96 train, 40 validation, 40 test", "32 rows per step", "learning rate 0.0001")
    for fact in (*facts, "40 rows", "run/report.html"):
        assert sum(fact in line for line in lines) == 1, fact


@pytest.mark.contract("A10")
def test_a_terminal_has_a_bar_and_a_pipe_has_none(started: Started) -> None:
    bar = re.compile(r"3/3 \[\d\d:\d\d<")
    assert bar.search(started("terminal").finished.stdout)
    for way in ("torchrun", "accelerate", "launch"):
        output = started(way).finished.output
        assert not bar.search(output)
        assert "\r" not in output
        assert output.count("step 1/3 ") == output.count("run/report.html") == 1
    run, printed = started("launch").run(), started("launch").finished.stdout
    expected = [*losses(run), run.metrics.validation["loss"]]  # only rank 0 calls `print`
    values = re.findall(r"^step \d/3 .* loss ([\d.]+)", printed, flags=re.MULTILINE)
    assert values == [f"{loss:.4f}" for loss in expected]


# ---- the Hub -------------------------------------------------------------------------------------

#: The data set of each recipe, its labels, and its rows (`sentiment`: their number).
ON_THE_HUB: dict[str, tuple[str, list[str], list[int]]] = {
    "yelp": (YELP, ["1 star", "2 star", "3 stars", "4 stars", "5 stars"], [356, 40, 100]),
    "sentiment": (SENTIMENT, ["positive", "negative"], []),
    "mnist": (MNIST, [*"0123456789"], [270, 30, 100]),
}


@pytest.mark.contract("A3")
@pytest.mark.parametrize("name", ON_THE_HUB)
def test_the_recipes_of_the_hub_run_unmodified(name: str, started: Started) -> None:
    """`yelp` runs in two processes; the test rows are those of the Hub."""
    launch = started("launch")
    status, printed, _ = launch.json("results").get(name, (0, "", []))
    assert status == 0, printed
    commits = launch.json("hub")["commits"]
    dataset, labels, rows = ON_THE_HUB[name]
    run = launch.run(name)
    assert (run.manifest.status, run.labels) == ("finished", labels)
    assert run.manifest.data.revision == commits[dataset]
    folder = launch.directory / "hub" / "datasets" / dataset
    counts = list(run.manifest.data.rows.values())
    if name == "sentiment":
        table = pd.read_csv(folder / "sentiment_reviews.csv").query("division != 'neutral'")
        assert sum(counts) == table["review"].nunique()
        labels_by_text = table.drop_duplicates("review").set_index("review")["division"]
        assert run.predictions["label"].tolist() == [
            labels_by_text[text] for text in run.predictions["text"]
        ]
        assert run.manifest.model_revision == commits[UNCASED]
        return
    assert counts == rows
    table = pd.read_parquet(next(folder.rglob("test-*.parquet")))
    assert run.predictions["label"].tolist() == [labels[number] for number in table["label"]]
    if name == "yelp":
        assert run.predictions["text"].tolist() == table["text"].tolist()
        assert run.manifest.model_revision == commits[CASED]


@pytest.mark.contract("A3")
def test_data_and_models_are_downloaded_once(started: Started) -> None:
    """Two processes, later commands and pinned revisions use one download."""
    launch = started("launch")
    assert launch.json("results")["again"][0] == 0
    downloads = launch.json("hub")["downloads"]
    for dataset, _, _ in ON_THE_HUB.values():
        files = content(launch.directory / "hub" / "datasets" / dataset)
        assert downloads[dataset] == dict.fromkeys(files, 1)
    for model in (CASED, UNCASED):
        assert downloads[model]["model.safetensors"] == 1
        assert set(downloads[model].values()) == {1}


@pytest.mark.contract("A3")
def test_revisions_pin_data_and_model(started: Started) -> None:
    launch = started("launch")
    results, facts = launch.json("results"), launch.json("hub")
    commits = facts["commits"]
    options = launch.run("sentiment").manifest.options
    pins = (options["dataset_revision"], options["model_revision"])
    assert pins == (commits[SENTIMENT], commits[UNCASED])
    for name, repository, revision in (
        ("no such data", YELP, "0" * 40),
        ("no such model", CASED, "1" * 40),
    ):
        status, printed, _ = results[name]
        assert status == 2
        assert repository in printed
        assert "Traceback" not in printed
        assert any(revision in target for _, target in facts["requests"])


#: What cannot be loaded without the Hub, and the alternatives to type.
WITHOUT_HUB = {
    "yelp": ["Yelp/yelp_review_full", "google-bert/bert-base-cased", "--embedded", "--dataset"],
    "sentiment": ["davidberg/sentiment-reviews", "--embedded", "--model embedded:minilm"],
    "mnist": ["ylecun/mnist", "--embedded", "--dataset"],
    "text --dataset some/data --model some/model": ["some/data", "some/model", "--embedded"],
    "image --dataset some/data --model some/model": ["some/data", "--model embedded:vit"],
    "check yelp": ["Yelp/yelp_review_full", "--embedded", "--dataset"],
}


@pytest.mark.contract("A8")
@pytest.mark.parametrize("words", WITHOUT_HUB)
def test_without_the_hub_one_message_lists_the_alternatives(words: str, cli: Cli) -> None:
    finished = cli(*words.split()).refused()
    for fragment in [*WITHOUT_HUB[words], "HF_HUB_OFFLINE", "HF_HOME"]:
        assert fragment in finished.output
    assert finished.stderr.count("error:") == 1
    assert "Traceback" not in finished.output


@pytest.mark.contract("A8")
def test_a_hub_that_does_not_answer_is_one_message(started: Started) -> None:
    """It comes before the libraries are imported, which would retry for half a minute."""
    status, printed, imported = started("light").json("results")["yelp"]
    assert (status, imported) == (2, [])
    assert printed.count("error:") == 1
    assert "Traceback" not in printed
    for fragment in (*WITHOUT_HUB["yelp"], "http://127.0.0.1:", "HF_ENDPOINT", "HF_HOME"):
        assert fragment in printed


@pytest.mark.contract("A6")
def test_list_help_and_version_import_no_library(started: Started) -> None:
    results = started("light").json("results")
    for name in ("version", "list", "help"):
        status, _, imported = results[name]
        assert (status, imported) == (0, [])
    assert results["version"][1] == f"finetune {finetune.__version__}\n"
    assert [line.split()[0] for line in results["list"][1].splitlines()] == RECIPES
    text = " ".join(results["help"][1].split())
    assert "torchrun --nproc_per_node=2 -m finetune" in text
    for recipe in RECIPES:
        source = (ROOT / "recipes" / f"{recipe}.py").read_text().splitlines()[0].strip('"')
        assert f" {recipe} {source} " in text
        assert source in results["list"][1]
    for verb in ("train", "check", "evaluate", "predict", "compare", "report", "doctor", "list"):
        assert re.search(rf"^  {verb} ", results["help"][1], flags=re.MULTILINE)


# ---- custom recipes ------------------------------------------------------------------------------

WEATHER = '''
"""Sun or rain by two numbers, a page of its own."""

from finetune import Recipe, UserError, option


class Weather(Recipe):
    """Sun or rain."""

    input_column = "inputs"
    own_metrics = ("points",)
    training = dict(
        global_batch_size=8, learning_rate=0.05, weight_decay=0.25, num_train_epochs=2,
        metric_for_best_model="points", greater_is_better=True, precision="fp32",
    )
    embedded = dict(rows=100, factor=3.0, learning_rate=0.04, global_batch_size=8)

    rows: int = option(120, "number of days to draw")
    factor: float = option(2.0, "points of a day that is right")
    reveal: str = option("", "end before the training with the values of these options")

    def load(self):
        import numpy as np
        from datasets import ClassLabel, Dataset, DatasetDict

        if self.rows > 1000:
            raise UserError(f"--rows {self.rows}: expected at most 1000")
        inputs = np.random.default_rng(0).normal(size=(self.rows, 2)).astype("float32")
        labels = (inputs.sum(axis=1) > 0).astype(int)
        self.note(f"{self.rows} rows, {self.factor} points")
        rows = Dataset.from_dict({"id": range(self.rows), "inputs": inputs, "label": labels})
        return DatasetDict(train=rows.cast_column("label", ClassLabel(names=["rain", "sun"])))

    def prepare(self, dataset):
        return dataset.rename_column("label", "labels").remove_columns("id")

    def build_model(self, labels):
        import torch

        class Network(torch.nn.Linear):
            def forward(self, inputs):
                return {"logits": super().forward(inputs)}

        return Network(2, len(labels))

    def adapt(self, model, arguments):
        import json

        values = {**vars(arguments), **vars(self)}
        if self.reveal:
            names = self.reveal.split(",")
            raise UserError(json.dumps({name: values[name] for name in names}))
        return super().adapt(model, arguments)

    def data_collator(self):
        from transformers import default_data_collator

        return default_data_collator

    def compute_metrics(self, prediction):
        right = prediction.predictions.argmax(axis=-1) == prediction.label_ids
        return {"points": self.factor * float(right.mean())}
'''
HEADLINES = '''
"""Weather, registered by a package."""

from weather_tasks_base import Weather


class Headlines(Weather):
    """Registered sun or rain."""

    training = dict(num_train_epochs=1)
'''


@pytest.fixture
def weather(tmp_path: Path) -> Path:
    """A recipe file with its own options, metric and note, which needs no data."""
    path = tmp_path / "path to" / "weather.py"
    path.parent.mkdir()
    path.write_text(WEATHER)
    return path


@pytest.mark.contract("A4")
def test_a_recipe_file_is_a_recipe(weather: Path, cli: Cli, tmp_path: Path) -> None:
    """Its options, arguments, note and metric work by path, as a class and as an instance."""
    text = " ".join(cli(weather, "--help").stdout.split())
    assert "Sun or rain by two numbers, a page of its own." in text
    assert "--rows N number of days to draw (default: 120)" in text
    assert "--factor X points of a day that is right (default: 2.0)" in text
    finished = cli(weather, "--rows", 90, "--output_dir", tmp_path / "run").succeeded()
    assert finished.stdout.count("90 rows, 2.0 points") == 1
    run = finetune.Run.load(tmp_path / "run")
    manifest = run.manifest
    assert manifest.options["rows"] == 90
    assert manifest.data.notes.count("90 rows, 2.0 points") == 1
    assert run.labels == ["rain", "sun"]
    assert manifest.data.rows == {"train": 65, "validation": 7, "test": 18}
    for name, value in dict(global_batch_size=8, learning_rate=0.05, weight_decay=0.25).items():
        assert manifest.arguments[name] == value
    assert manifest.steps == 16
    right = (run.predictions["label"] == run.predictions["prediction"]).mean()
    assert run.metrics.test["points"] == pytest.approx(2 * right, abs=1e-12)
    assert run.metrics.test.keys() == {"loss", "points"}
    again = run.recipe()
    assert (type(again).__name__, again.rows) == ("Weather", 90)
    for recipe, options in ((type(again), {"rows": 90}), (again, {}), (str(weather), {"rows": 90})):
        with pytest.raises(Stopped) as stopped:
            finetune.train(recipe, progress=stop_at_start, num_train_epochs=1, **options)
        (event,) = stopped.value.args
        assert (event.settings.recipe.rows, event.steps) == (90, 8)


@pytest.mark.contract("A4")
@pytest.mark.parametrize("value", ["weather_tasks:Headlines", "weather_tasks"])
def test_an_installed_package_registers_recipes(
    value: str, weather: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It uses an entry point; the training arguments of the base class are merged."""
    site = tmp_path / "site"
    (site / "weather_tasks-1.0.dist-info").mkdir(parents=True)
    shutil.copy(weather, site / "weather_tasks_base.py")
    (site / "weather_tasks.py").write_text(HEADLINES)
    info = site / "weather_tasks-1.0.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: weather-tasks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[finetune.recipes]\nheadlines = {value}\n")
    monkeypatch.syspath_prepend(site)
    names = [line.split()[0] for line in cli("list").stdout.splitlines()]
    assert sorted(names) == sorted([*RECIPES, "headlines"])
    assert " headlines " in cli("--help").stdout
    cli("headlines", "--output_dir", tmp_path / "run", "--no_baseline").succeeded()
    manifest = finetune.Run.load(tmp_path / "run").manifest
    assert (manifest.recipe, manifest.steps) == ("headlines", 10)
    arguments = manifest.arguments
    assert (arguments["learning_rate"], arguments["num_train_epochs"]) == (0.05, 1)


@pytest.mark.contract("A4", "F3")
def test_a_step_imports_the_modules_beside_the_recipe(tmp_path: Path, cli: Cli) -> None:
    """It does not import a folder there that is named like an optional package."""
    step = "        import network_beside_it\n        from importlib.util import find_spec\n"
    step += "        assert find_spec('clearml') is None\n"
    body = WEATHER.replace("    def load(self):", f"    def load(self):\n{step}", 1)
    (tmp_path / "beside.py").write_text(body)
    (tmp_path / "network_beside_it.py").write_text("")
    (tmp_path / "clearml").mkdir()
    cli(tmp_path / "beside.py", "--dry_run").succeeded()


MISTAKEN_RECIPES = {
    "import": ("import no_such_module\n", ["line 1", "no_such_module"]),
    "syntax": ("class Mine(\n", ["line 1"]),
    "unknown argument": (
        "from finetune import TextRecipe\n\n\n"
        "class Mine(TextRecipe):\n    training = dict(learning_rte=1)\n",
        ["learning_rte", "learning_rate"],
    ),
    "undeclared metric": (
        "from finetune import TextRecipe\n\n\nclass Mine(TextRecipe):\n"
        "    def compute_metrics(self, prediction):\n        return {}\n",
        ["compute_metrics", "own_metrics"],
    ),
}


@pytest.mark.contract("A4")
@pytest.mark.parametrize("case", MISTAKEN_RECIPES)
def test_a_mistake_in_a_recipe_file_is_one_message(case: str, cli: Cli, tmp_path: Path) -> None:
    """The second import fails like the first."""
    body, fragments = MISTAKEN_RECIPES[case]
    (tmp_path / "mine.py").write_text(body)
    for _ in range(2):
        finished = cli(tmp_path / "mine.py").refused("mine.py", *fragments)
        assert (finished.stdout, finished.stderr.count("error:")) == ("", 1)


# ---- options -------------------------------------------------------------------------------------

#: The typed words, and then: rows, factor, learning rate, weight decay.
LAYERS = {
    "the recipe": ("", (120, 2.0, 0.05, 0.25)),
    "embedded": ("--embedded", (100, 3.0, 0.04, 0.25)),
    "a file": ("--config FILE", (120, 4.0, 0.03, 0.25)),
    "a file over embedded": ("--embedded --config FILE", (100, 4.0, 0.03, 0.25)),
    "a flag over all": (
        "--learning_rate 0.02 --embedded --config FILE --rows 80",
        (80, 4.0, 0.02, 0.25),
    ),
    "embedded in the file": ("--config EMBEDDED --factor=5", (100, 5.0, 0.04, 0.125)),
    "embedded taken back": ("--config EMBEDDED --embedded false", (120, 2.0, 0.05, 0.125)),
    "dashes": ("--learning-rate=0.02 --weight-decay 0 --embedded", (100, 3.0, 0.02, 0.0)),
}


def revealed(finished: Finished) -> Any:
    """Return the values that the option `reveal` of the recipe `WEATHER` printed."""
    assert finished.status == 2, finished.output
    (line,) = re.findall(r"^error: ({.*})$", finished.stderr, flags=re.MULTILINE)
    return json.loads(line)


@pytest.mark.contract("A5")
@pytest.mark.parametrize("case", LAYERS)
def test_recipe_then_embedded_then_file_then_flags(
    case: str, weather: Path, cli: Cli, tmp_path: Path
) -> None:
    words, expected = LAYERS[case]
    (tmp_path / "FILE").write_text("factor: 4\nlearning-rate: 3e-2\n")
    (tmp_path / "EMBEDDED").write_text("embedded: yes\nweight_decay: 0.125\n")
    typed = [tmp_path / word if word.isupper() else word for word in words.split()]
    names = ("rows", "factor", "learning_rate", "weight_decay")
    finished = cli(weather, *typed, "--reveal", ",".join(names), "--output_dir", tmp_path / "run")
    assert revealed(finished) == dict(zip(names, expected, strict=True))


@pytest.mark.contract("A5")
@pytest.mark.parametrize("words", ["--embedded", "--embedded --config FILE", "--config FILE"])
def test_a_batch_size_of_a_flag_replaces_another_of_the_layers_below(
    words: str, weather: Path, cli: Cli, tmp_path: Path
) -> None:
    """The recipe, its embedded options and the file set `global_batch_size`."""
    (tmp_path / "FILE").write_text("global_batch_size: 16\n")
    typed = [tmp_path / word if word.isupper() else word for word in words.split()]
    typed += ["--per_device_train_batch_size", 4, "--reveal"]
    names = "per_device_train_batch_size,global_batch_size"
    finished = cli(weather, *typed, names, "--output_dir", tmp_path / "run")
    assert revealed(finished)["per_device_train_batch_size"] == 4


@pytest.mark.contract("A4")
def test_a_recipe_file_that_was_edited_is_imported_again(cli: Cli, tmp_path: Path) -> None:
    """In a notebook, the recorded recipe must be the one that runs."""
    path = tmp_path / "edited.py"
    for rows in (120, 130):
        path.write_text(WEATHER.replace("option(120,", f"option({rows},"), encoding="utf-8")
        finished = cli(path, "--reveal", "rows", "--output_dir", tmp_path / "run")
        assert revealed(finished) == {"rows": rows}


@pytest.mark.contract("A5")
def test_keywords_go_over_the_file_and_the_file_over_embedded(
    weather: Path, tmp_path: Path
) -> None:
    (tmp_path / "options.yaml").write_text("factor: 4\nlearning_rate: 3e-2\nweight-decay: 0.5\n")
    with pytest.raises(Stopped) as stopped:
        finetune.train(
            str(weather),
            embedded=True,
            config=str(tmp_path / "options.yaml"),
            learning_rate=0.02,
            progress=stop_at_start,
            output_dir=str(tmp_path / "run"),
        )
    (event,) = stopped.value.args
    recipe, arguments = event.settings.recipe, event.arguments
    assert (recipe.rows, recipe.factor) == (100, 4.0)
    assert (arguments.learning_rate, arguments.weight_decay) == (0.02, 0.5)
    assert event.steps == 2 * 9  # 72 of 100 rows are trained on, in steps of 8


#: Fields of `TrainingArguments` as typed, and their values.
FIELDS: dict[str, tuple[str, Any]] = {
    "adam_beta1": ("0.85", 0.85),
    "adam-epsilon": ("1e-7", 1e-7),
    "data_seed": ("5", 5),
    "gradient-accumulation-steps": ("2", 2),
    "label_smoothing_factor": ("0.1", 0.1),
    "logging-first-step": ("true", True),
    "lr_scheduler_kwargs": ('{"num_cycles": 2}', {"num_cycles": 2}),
    "lr-scheduler-type": ("cosine_with_restarts", "cosine_with_restarts"),
    "max_grad_norm": ("0.7", 0.7),
    "max-steps": ("4", 4),
    "optim": ("sgd", "sgd"),
    "report_to": ("none", []),
    "run-name": ("0x10", "0x10"),
    "save_total_limit": ("1", 1),
    "seed": ("7", 7),
    "warmup-steps": ("2", 2),
}


@pytest.mark.contract("A5")
@pytest.mark.parametrize("source", ["flags", "file"])
def test_fields_of_training_arguments_are_options(
    source: str, weather: Path, cli: Cli, tmp_path: Path
) -> None:
    if source == "flags":
        words = [word for name, (text, _) in FIELDS.items() for word in (f"--{name}", text)]
    else:
        lines = [f"{name}: {text}\n" for name, (text, _) in FIELDS.items()]
        (tmp_path / "options.yaml").write_text("".join(lines))
        words = ["--config", tmp_path / "options.yaml"]
    values = {name.replace("-", "_"): value for name, (_, value) in FIELDS.items()}
    words += ["--reveal", ",".join(values), "--output_dir", tmp_path / "run"]
    assert revealed(cli(weather, *words)) == values


def help_groups(text: str) -> dict[str, dict[str, str]]:
    """Return the options of a help page by heading: a dict from name to text for each."""
    groups: dict[str, dict[str, str]] = {}
    for block in re.split(r"^(?=\S.*:$)", text, flags=re.MULTILINE)[1:]:
        heading, _, body = block.partition("\n")
        entries = re.split(r"^ {1,4}--(?=\w)", body, flags=re.MULTILINE)[1:]
        groups[heading] = {entry.split()[0]: " ".join(entry.split()[1:]) for entry in entries}
    return {heading: options for heading, options in groups.items() if options}


#: Fields that the launcher or the subcommand sets; they are refused as flags.
NOT_TYPED = {"do_train", "do_eval", "do_predict", "local_rank"}


@pytest.mark.contract("A5")
def test_every_field_of_recipe_and_training_arguments_is_in_the_help(cli: Cli) -> None:
    """Each is there once under a heading; the recipe's are separate from the library's."""
    text = cli("text", "--help").stdout
    groups = help_groups(text)
    names = [name for options in groups.values() for name in options]
    assert len(names) == len(set(names))
    assert sorted(names) == sorted(re.findall(r"^ +--(\w+)", text, flags=re.MULTILINE))
    library = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    assert len(library) > 100
    assert library - set(names) == NOT_TYPED
    recipe = {field.name for field in dataclasses.fields(Text)}
    assert {*recipe, "embedded", "config", "dry_run", "global_batch_size", "resume"} <= set(names)
    assert len(groups) >= 3
    for options in groups.values():
        assert not ({"adam_beta1", "fsdp_config"} & set(options) and recipe & set(options))


@pytest.mark.contract("A5")
@pytest.mark.parametrize("name", sorted(NOT_TYPED))
def test_fields_set_by_the_launcher_are_refused(name: str, cli: Cli) -> None:
    cli("text", f"--{name}=1").refused(f"--{name}")


def as_printed(value: Any) -> str:
    value = getattr(value, "value", value)
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.contract("A5")
def test_help_shows_the_defaults_that_a_training_uses(
    cli: Cli, reviews: Path, bert: Path, tmp_path: Path
) -> None:
    """They equal the arguments of a trainer without options."""
    recipe = Text(dataset=str(reviews), model=str(bert))
    training = dict(precision="fp32", load_best_model_at_end=True)  # the rows are few
    arguments = recipe.trainer(output_dir=str(tmp_path / "run"), **training).args
    options: dict[str, str] = {}
    for group in help_groups(cli("text", "--help").stdout).values():
        options |= group
    ours = {field.name: getattr(Text(), field.name) for field in dataclasses.fields(Text)}
    defaults = {
        name: match[1]
        for name, text in options.items()
        if (match := re.search(r"\(default: ([^()]*)\)$", text))
    }
    assert (defaults.pop("output_dir"), defaults.pop("precision")) == ("runs/text", "auto")
    for name in ("use_cpu", "report_to", "dataloader_pin_memory"):
        del defaults[name]  # depends on the machine
    used = {name: ours.get(name, getattr(arguments, name, None)) for name in defaults}
    assert defaults == {name: as_printed(value) for name, value in used.items()}
    assert len(defaults) > 50
    for name, value in ours.items():
        assert (name in defaults) is (value not in ("", None)), name
    for name in ("learning_rate", "num_train_epochs", "warmup_steps"):
        assert "(unset: " in options[name]
    assert (defaults["global_batch_size"], defaults["max_length"]) == ("32", "512")
    assert "--global_batch_size N" in cli("yelp", "--help").stdout
    assert "(default: 4)" in cli("yelp", "--help").stdout


# ---- options keep their names --------------------------------------------------------------------

#: Fields of older `TrainingArguments`, and words of the answer.
RENAMED = dict(
    re.findall(
        r"(\w+): ([^,\n]+)",
        """
    adafactor: --optim adafactor, dispatch_batches: --accelerator_config, no_cuda: --use_cpu,
    evaluate_during_training: --eval_strategy steps, evaluation_strategy: --eval_strategy,
    fsdp_min_num_params: --fsdp_config, fsdp_transformer_layer_cls_to_wrap: --fsdp_config,
    group_by_length: --train_sampling_strategy group_by_length, jit_mode_eval: --torch_compile,
    include_inputs_for_metrics: --include_for_metrics inputs, overwrite_output_dir: --output_dir,
    logging_dir: TENSORBOARD_LOGGING_DIR, per_gpu_eval_batch_size: --per_device_eval_batch_size,
    per_gpu_train_batch_size: --per_device_train_batch_size, push_to_hub_model_id: --hub_model_id,
    push_to_hub_organization: --hub_model_id, push_to_hub_token: --hub_token,
    split_batches: --accelerator_config, torchdynamo: --torch_compile_backend,
    tpu_metrics_debug: --debug tpu_metrics_debug, warmup_ratio: --warmup_steps
    """,
    )
)


@pytest.mark.contract("A12")
@pytest.mark.parametrize("source", ["flags", "dashes", "file", "keywords"])
def test_a_renamed_argument_is_answered_with_its_successor(
    source: str, cli: Cli, tmp_path: Path
) -> None:
    fields = {field.name for field in dataclasses.fields(TrainingArguments)}
    assert fields.isdisjoint(RENAMED)
    if source == "keywords":
        with pytest.raises(finetune.UserError) as refusal:
            finetune.train("yelp", **dict.fromkeys(RENAMED, True))
        lines = list(refusal.value.mistakes)
    else:
        path = tmp_path / "options.yaml"
        path.write_text("".join(f"{name}: true\n" for name in RENAMED))
        names = [name.replace("_", "-") if source == "dashes" else name for name in RENAMED]
        words = ["--config", path] if source == "file" else [f"--{name}=true" for name in names]
        finished = cli("yelp", *words).refused()
        lines = finished.stderr.splitlines()
    for name, successor in RENAMED.items():
        spelled = name.replace("_", "-") if source == "dashes" else name
        (line,) = [line for line in lines if re.search(rf"(?<![\w-]|/)(--|'){spelled}\b", line)]
        assert successor in line


@pytest.mark.contract("A12")
def test_options_keep_their_names(cli: Cli) -> None:
    """All options in `options.txt` exist, except those that the changelog lists as removed."""
    names = (Path(__file__).with_name("options.txt")).read_text().split()
    assert len(names) == len(set(names)) >= 170
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    removed = {
        name
        for line in changelog.splitlines()
        if re.match(r"- Removed\b", line)
        for name in re.findall(r"`--(\w+)`", line)
    }
    if "activation_checkpointing" not in TrainingArguments.__dataclass_fields__:
        # it has another name in transformers 5.16
        removed |= {"activation_checkpointing", "activation_checkpointing_kwargs"}
    help_page = cli("text", "--help").stdout
    assert set(names) - set(re.findall(r"^ +--(\w+)", help_page, flags=re.MULTILINE)) <= removed


VERB_OPTIONS = {
    "predict": "output all_probabilities calibrated csv_safe batch_tokens resume trust_recipe",
    "evaluate": "data trust_recipe text_column label_column",
    "check": "deep json suspects",
    "compare": "trust_recipe",
    "report": "trust_recipe",
    "repeat": "seeds",
    "search": "space trials pruner",
    "export": "output quantize accept_changes trust_recipe",
    "serve": "host port engine trust_recipe",
    "push": "repo yes public",
    "doctor": "help",
}


@pytest.mark.contract("A12")
@pytest.mark.parametrize("verb", VERB_OPTIONS)
def test_options_of_the_verbs_keep_their_names(verb: str, cli: Cli) -> None:
    text = cli(verb, "--help").stdout
    typed = re.findall(r"^ +(?:-\w, )?--([\w-]+)", text, flags=re.MULTILINE)
    assert set(VERB_OPTIONS[verb].split()) <= {name.replace("-", "_") for name in typed}


# ---- a dry run, and the directory of a run -------------------------------------------------------


@pytest.mark.contract("A7")
def test_a_dry_run_collates_a_batch_and_writes_nothing(
    weather: Path, cli: Cli, tmp_path: Path
) -> None:
    for words in (["--dry_run"], ["--dry-run", "true"]):
        finished = cli(weather, *words).succeeded()
        assert "(8, 2)" in finished.stdout  # the inputs of one step
        assert "(8,)" in finished.stdout
        assert "120 rows, 2.0 points" in finished.stdout
        assert "86 train, 10 validation, 24 test" in finished.stdout
        assert not re.search("^step", finished.stdout, flags=re.MULTILINE)
        assert list((tmp_path / "cwd").iterdir()) == []


@pytest.mark.contract("A7")
def test_a_dry_run_of_texts_shows_tokens_and_leaves_an_existing_run(
    cli: Cli, reviews: Path, bert: Path, tmp_path: Path, weather: Path
) -> None:
    output_dir = str(tmp_path / "run")
    finetune.train(str(weather), max_steps=1, baseline=False, output_dir=output_dir)
    before = content(tmp_path)
    options = flags(dataset=reviews, model=bert, global_batch_size=12, output_dir=output_dir)
    finished = cli("text", *options, "--max_length", 8, "--dry_run").succeeded()
    assert "(12, 8)" in finished.stdout  # all reviews have more than 6 tokens
    assert content(tmp_path) == before


@pytest.mark.contract("A7")
@pytest.mark.parametrize(
    ("line", "replacement"),
    [
        ("return default_data_collator", "raise UserError('no batch today')"),
        (
            "return dataset.rename",
            "raise UserError('no batch today')\n        return dataset.rename",
        ),
        ("import numpy as np\n", "raise UserError('no batch today')\n"),
    ],
    ids=["data_collator", "prepare", "load"],
)
def test_a_dry_run_finds_the_mistakes_of_every_step(
    line: str, replacement: str, cli: Cli, tmp_path: Path
) -> None:
    assert WEATHER.count(line) == 1
    (tmp_path / "mine.py").write_text(WEATHER.replace(line, replacement))
    cli(tmp_path / "mine.py", "--dry_run").refused("no batch today")


@pytest.mark.contract("A9")
def test_an_existing_run_is_moved_aside(weather: Path, cli: Cli, tmp_path: Path) -> None:
    output_dir = tmp_path / "run"
    words = [weather, "--max_steps", 1, "--no_baseline", "--save_strategy", "no"]
    words += ["--load_best_model_at_end", "false", "--output_dir", output_dir]
    runs = []
    for number in range(3):
        finished = cli(*words, "--seed", number).succeeded()
        assert (f"{output_dir}.{number}" in finished.stdout) is (number > 0)
        runs.append(content(output_dir))
    assert content(tmp_path / "run.1") == runs[0]
    assert content(tmp_path / "run.2") == runs[1]
    manifest = finetune.Run.load(output_dir).manifest
    assert (manifest.status, manifest.arguments["seed"]) == ("finished", 2)
    assert cli(*words, "--seed", 2, "--resume").status == 0  # a finished run has no checkpoints
    assert content(output_dir) == runs[2]


@pytest.mark.contract("A9")
def test_a_directory_that_is_not_a_run_is_refused_and_unchanged(
    weather: Path, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("words")
    (tmp_path / "file").write_text("words")
    before = content(tmp_path)
    for name in ("thesis", "file"):
        finished = cli(weather, "--max_steps", 1, "--output_dir", tmp_path / name)
        assert finished.status == 2
        assert str(tmp_path / name) in finished.stderr
    assert content(tmp_path) == before


@pytest.mark.contract("A9", "A2")
def test_resume_continues_in_place_and_returns_a_finished_run(
    single_label_run: finetune.Run, reviews: Path, bert: Path, tmp_path: Path
) -> None:
    """A run on rows in Python, stopped in epoch 2, ends with the results of the shared run."""
    arguments = single_label_run.manifest.arguments
    names = ("learning_rate", "num_train_epochs", "global_batch_size", "logging_steps")
    options: dict[str, Any] = {name: arguments[name] for name in names} | dict(
        model=str(bert), max_length=64, precision="fp32", disable_tqdm=True, resume=True
    )
    output_dir = str(tmp_path / "run")
    options |= dict(dataset=pd.read_csv(reviews).to_dict("records"), output_dir=output_dir)
    assert single_label_run.manifest.steps == 30

    def stop(event: Any) -> None:
        if type(event).__name__ == "Logged" and event.step == 14:
            raise Stopped

    with pytest.raises(Stopped):
        finetune.train("text", progress=stop, **options)
    assert (tmp_path / "run" / "checkpoint-10").is_dir()
    events: list[Any] = []
    run = finetune.train("text", progress=events.append, **options)
    assert any("checkpoint-10" in str(event) for event in events)
    assert next(event.step for event in events if type(event).__name__ == "Logged") == 12
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    assert losses(run) == losses(single_label_run)
    pd.testing.assert_frame_equal(run.predictions, single_label_run.predictions)
    before = content(run.path)
    times = {path: path.stat().st_mtime_ns for path in run.path.rglob("*.safetensors")}
    again = finetune.train("text", **options)
    assert again.path == run.path
    assert content(run.path) == before
    assert {path: path.stat().st_mtime_ns for path in times} == times


# ---- seeds ---------------------------------------------------------------------------------------


@pytest.mark.contract("A13")
def test_a_seed_gives_the_same_numbers_and_another_others(reviews: Path, tmp_path: Path) -> None:
    """The model has dropout, so that its masks are tested too."""
    model = write_bert(tmp_path / "bert", dropout=0.2)
    options: dict[str, Any] = dict(dataset=str(reviews), model=str(model), max_steps=4)
    options |= dict(global_batch_size=16, logging_steps=1, precision="fp32", learning_rate=3e-3)
    options |= dict(attention_dropout=0.1, train_samples=100, baseline=False, disable_tqdm=True)
    first, second, other = (
        finetune.train("text", seed=seed, output_dir=str(tmp_path / name), **options)
        for name, seed in (("first", 7), ("second", 7), ("other", 8))
    )
    assert len(losses(first)) == 4
    assert losses(second) == losses(first)
    assert second.metrics.test == first.metrics.test
    pd.testing.assert_frame_equal(second.predictions, first.predictions)
    weights = [(run.path / "model.safetensors").read_bytes() for run in (first, second, other)]
    assert weights[0] == weights[1] != weights[2]
    assert set(losses(other)).isdisjoint(losses(first))
    assert other.predictions["text"].tolist() == first.predictions["text"].tolist()
    assert other.manifest.data.fingerprint == first.manifest.data.fingerprint


@pytest.mark.contract("A13")
def test_the_seed_decides_head_and_order(reviews: Path, bert: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = dict(output_dir=str(tmp_path / "run"), global_batch_size=16)
    heads, batches = [], []
    for seed in (7, 7, 8):
        recipe = Text(dataset=str(reviews), model=str(bert), max_length=64)
        trainer = recipe.trainer(seed=seed, precision="fp32", **options)
        heads.append(trainer.model.classifier.weight.flatten().tolist())
        batches.append(next(iter(trainer.get_train_dataloader()))["input_ids"].tolist())
    assert heads[0] == heads[1] != heads[2]
    assert batches[0] == batches[1] != batches[2]


# ---- progress ------------------------------------------------------------------------------------


@pytest.mark.contract("A10")
def test_progress_is_called_with_events(
    weather: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = dict(output_dir=str(tmp_path / "run"), disable_tqdm=True)
    options |= dict(max_steps=4, logging_steps=2, eval_strategy="steps", eval_steps=4)
    finetune.train(str(weather), progress=print, **options)
    lines = capsys.readouterr().out.splitlines()
    events: list[Any] = []
    run = finetune.train(str(weather), progress=events.append, save_strategy="no", **options)
    assert capsys.readouterr().out == ""
    kinds = [type(event).__name__ for event in events]
    assert kinds.count("Started") == kinds.count("Finished") == 1
    assert kinds[-1] == "Finished"
    assert kinds.index("Started") < kinds.index("Logged")
    by_kind = dict(zip(kinds, events, strict=True))
    assert (by_kind["Started"].steps, by_kind["Started"].arguments.learning_rate) == (4, 0.05)
    assert by_kind["Started"].settings.recipe.rows == 120
    assert isinstance(by_kind["Started"].model, torch.nn.Module)
    notes = [event.sentence for event in events if type(event).__name__ == "Noted"]
    assert [note for note in notes if f"to {tmp_path / 'run'}.1" in note]
    assert by_kind["Finished"].run.path == run.path
    assert by_kind["Finished"].page == run.path / "report.html"
    logged = [event for event in events if type(event).__name__ == "Logged"]
    trained = [(event.step, event.values["loss"]) for event in logged if "loss" in event.values]
    assert trained == list(zip([2, 4], losses(run), strict=True))
    assert [event.max_steps for event in logged] == [4] * len(logged)
    (validated,) = [event.values for event in logged if "eval_points" in event.values]
    assert validated["eval_points"] == run.metrics.validation["points"]
    assert all(str(event) and "\n" not in str(event) for event in events)
    for event in logged[:2]:
        assert len([line for line in lines if f"loss {event.values['loss']:.4f}" in line]) == 1


# ---- the trainer, and loops written by hand ------------------------------------------------------


def losses_by_hand(
    model: torch.nn.Module, rows: Any, collate: Any, steps: int, *, rate: float
) -> list[float]:
    """Train a copy of a model with SGD on rows in order, 16 in each step; return the losses."""
    model = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    names = set(inspect.signature(model.forward).parameters) - {"labels"}
    results = []
    for _, batch in zip(range(steps), DataLoader(rows, 16, collate_fn=collate), strict=False):
        logits = model(**{name: batch[name] for name in names & set(batch)})["logits"]
        loss = cross_entropy(logits, batch["labels"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        results.append(loss.item())
    return results


SGD: dict[str, Any] = dict(optim="sgd", learning_rate=0.1, weight_decay=0.0, max_grad_norm=0.0)
SGD |= dict(lr_scheduler_type="constant", train_sampling_strategy="sequential", max_steps=5)
SGD |= dict(logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True)


@pytest.mark.contract("A11")
@pytest.mark.parametrize("kind", ["ours", "stock"])
def test_the_trainer_and_the_stock_trainer_have_the_losses_of_a_loop(
    kind: str, reviews: Path, bert: Path, tmp_path: Path
) -> None:
    recipe = Text(dataset=str(reviews), model=str(bert), max_length=64)
    torch.manual_seed(0)  # the head is new
    parts = recipe.trainer_kwargs()
    assert isinstance(parts["model"], transformers.BertForSequenceClassification)
    output_dir = str(tmp_path / "run")
    if kind == "ours":
        options = {**SGD, "global_batch_size": 16, "precision": "fp32"}
        with pytest.raises(finetune.UserError, match="it is resume_from_checkpoint='last'"):
            recipe.trainer(output_dir=output_dir, resume=True)
        trainer = recipe.trainer(output_dir=output_dir, **options)
        assert isinstance(trainer, transformers.Trainer)
        assert not (tmp_path / "run").exists()
    else:
        arguments = TrainingArguments(output_dir, per_device_train_batch_size=16, **SGD)
        trainer = transformers.Trainer(args=arguments, **parts)
    data, collate = parts["train_dataset"], parts["data_collator"]
    expected = losses_by_hand(trainer.model, data, collate, 5, rate=0.1)
    trainer.train()
    history = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert history == pytest.approx(expected, abs=1e-6)
    assert max(expected) - min(expected) > 0.01
    evaluated = trainer.evaluate()
    assert {"eval_loss", "eval_accuracy", "eval_f1"} <= set(evaluated)
    assert len(parts["eval_dataset"]) == 19


@pytest.mark.contract("A9", "A11")
def test_the_trainer_deletes_no_checkpoint_of_others_and_evaluates_several_data_sets(
    reviews: Path, bert: Path, tmp_path: Path
) -> None:
    foreign = tmp_path / "run" / "checkpoint-2"
    foreign.mkdir(parents=True)
    (foreign / "model.safetensors").write_text("of another trainer")
    recipe = Text(dataset=str(reviews), model=str(bert), max_length=64, head="random")
    options = dict(precision="fp32", max_steps=2, save_strategy="no", eval_strategy="no")
    trainer = recipe.trainer(output_dir=str(tmp_path / "run"), disable_tqdm=True, **options)
    trainer.train()
    assert (foreign / "model.safetensors").read_text() == "of another trainer"
    rows = trainer.eval_dataset
    trainer.eval_dataset = {"first": rows.select(range(8)), "all": rows}
    scores = trainer.evaluate()
    assert scores["eval_all_loss"] == pytest.approx(trainer.evaluate(rows)["eval_loss"])
    assert "eval_first_loss" in scores
    trainer.log({"loss": 1.5})  # of the user: no step is added up
    assert trainer.state.log_history[-1]["loss"] == 1.5


@pytest.mark.contract("A11")
def test_old_names_of_recipes_work_for_one_release(
    reviews: Path, bert: Path, tmp_path: Path
) -> None:
    """A call works with a warning that names the successor; an override is refused."""
    new = {"TextClassification": finetune.TextRecipe, "ImageClassification": finetune.ImageRecipe}
    assert {name: getattr(finetune, name) for name in new} == new
    recipe = Text(dataset=str(reviews), model=str(bert), max_length=64)
    with pytest.warns(FutureWarning, match="trainer_kwargs"):
        parts = recipe.parts()
    assert parts.keys() == {
        *("model", "train_dataset", "eval_dataset", "data_collator", "processing_class"),
        *("compute_metrics", "compute_loss_func"),
    }
    assert (len(parts["train_dataset"]), len(parts["eval_dataset"])) == (173, 19)
    arguments = TrainingArguments(str(tmp_path), report_to="none", use_cpu=True)
    trainer = transformers.Trainer(args=arguments, **parts)
    outputs = trainer.predict(trainer.eval_dataset)
    is_right = outputs.predictions.argmax(axis=1) == recipe.splits["validation"]["label"][:]
    assert outputs.metrics["test_accuracy"] == pytest.approx(is_right.mean())

    with pytest.raises(finetune.UserError, match="trainer_kwargs"):
        type("Counting", (Text,), {"parts": Text.parts})


LOOP = dict(global_batch_size=16, max_steps=4, learning_rate=3e-3, logging_steps=1)


@pytest.fixture
def loop_words(reviews: Path, bert: Path) -> list[str]:
    """Return the arguments of an example script to train the text recipe."""
    return ["text", *flags(dataset=reviews, model=bert, max_length=64, precision="fp32", **LOOP)]


def printed_losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^step \d+ of 4: loss ([\d.]+)$", output, re.M)]


@pytest.mark.contract("A11")
def test_the_loops_of_the_examples_have_the_losses_of_the_trainer(
    loop_words: list[str], cli: Cli, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli(*loop_words, "--no_baseline", "--output_dir", tmp_path / "run").status == 0
    run = finetune.Run.load(tmp_path / "run")
    validation = run.metrics.validation
    for path in (ROOT / "examples" / "native_ddp.py", ROOT / "examples" / "accelerate_loop.py"):
        capsys.readouterr()
        with (
            mock.patch.object(sys, "argv", [str(path), *loop_words]),
            mock.patch.dict(os.environ),
            pytest.raises(SystemExit) as end,
        ):
            runpy.run_path(str(path), run_name="__main__")
        output = capsys.readouterr().out
        assert end.value.code == 0
        assert printed_losses(output) == pytest.approx(losses(run), abs=6e-5)
        evaluated = re.search(r"^epoch 1: rows 19, loss ([\d.]+), accuracy ([\d.]+)", output, re.M)
        assert evaluated is not None
        assert float(evaluated[1]) == pytest.approx(validation["loss"], abs=1e-5)
        assert float(evaluated[2]) == pytest.approx(validation["accuracy"], abs=1e-5)


@pytest.mark.contract("A11")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["native_ddp", "accelerate_loop"])
def test_the_loops_of_the_examples_in_two_processes(
    name: str, loop_words: list[str], cli: Cli, command: Commands, tmp_path: Path
) -> None:
    assert cli(*loop_words, "--no_baseline", "--output_dir", tmp_path / "run").status == 0
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    path = ROOT / "examples" / f"{name}.py"
    finished = command(*torchrun, path, *loop_words, launcher="script").succeeded()
    run = finetune.Run.load(tmp_path / "run")
    assert printed_losses(finished.stdout) == pytest.approx(losses(run), abs=6e-5)
