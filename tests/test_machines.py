"""Jobs of two machines: two launchers on this one, and two network namespaces with addresses."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

import finetune
from finetune import Run
from tests.conftest import ROOT
from tests.jobs import TORCHRUN, Job, Jobs, free_port, jobs, rank_without_launcher
from tests.warm import Servers

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.processes]
REGRESSION = str(ROOT / "examples" / "regression.py")
ADDRESSES = ("10.77.0.1", "10.77.0.2")

#: What both machines are told, what only the one and the other is, and what both must say.
REFUSALS = {
    "to write half a run each": (
        [],
        [],
        "--output_dir runs/mine: the machines do not share it",
    ),
    "to write into each other's files": (
        ["--save_on_each_node"],
        [],
        "--save_on_each_node: the machines share runs/mine",
    ),
    "flags that differ": (
        [],
        ["--learning_rate=0.1", "--learning_rate=0.2"],
        "the machines differ in --learning_rate: rank 0 has 0.1, rank 1 has 0.2",
    ),
    "options that differ": (
        [],
        ["--scale=1", "--scale=2"],
        "the machines differ in --scale: rank 0 has 1.0, rank 1 has 2.0",
    ),
    "data that differ": (["--private_data"], [], "the machines differ in data"),
}
RECIPE = '''
import os
from examples.regression import Regression

class Mine(Regression):
    """The regression toy with two options more."""

    scale: float = 1.0
    private_data: bool = False

    def load(self):
        return Regression(noise=float(os.environ["RANK"]) * self.private_data).load()
'''
TRY = """
import contextlib, io, json, os, sys
from finetune import cli
from finetune.runtime import distributed

found = {}
for name, directory, port, words in json.loads(sys.argv[1]):
    os.chdir(directory)
    os.environ["MASTER_PORT"] = port
    said, in_error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(in_error):
        status = cli.main(words)
    distributed.leave()
    found[name] = (status, said.getvalue(), in_error.getvalue())
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def started() -> Iterator[Jobs]:
    with jobs() as every:
        yield every


@pytest.fixture(scope="module", autouse=True)
def refusing(
    started: Jobs, tmp_path_factory: pytest.TempPathFactory, warm: Servers
) -> tuple[Path, list[Job]]:
    """Two ranks that try every refusal, one after the other, while the other tests run.

    They are started as a cluster starts them, without torchrun.
    """
    place = tmp_path_factory.mktemp("refusing")
    (place / "mine.py").write_text(RECIPE)
    (place / "trying.py").write_text(TRY)
    for name in ("first", "second"):
        (place / name).mkdir()
    ports = {name: str(free_port()) for name in REFUSALS}
    ranks = []
    for rank, here in enumerate(("first", "second")):
        cases = []
        for name, (both, each, _) in REFUSALS.items():
            directory = place / ("first" if "--save_on_each_node" in both else here)
            words = ["../mine.py", "--num_train_epochs=1", *both, *each[rank : rank + 1]]
            cases.append((name, str(directory), ports[name], words))
        ranks.append(
            started.start(
                warm.words("trying", [json.dumps(cases)], os.environ),
                place,
                rank_without_launcher(rank, 2, port=0),
            )
        )
    return place, ranks


@pytest.fixture(scope="module")
def refusals(refusing: tuple[Path, list[Job]]) -> list[dict[str, tuple[int, str, str]]]:
    """Exit status, standard output and standard error, by name, of each of the two."""
    ended = ends(refusing[1])
    assert [done.returncode for done in ended] == [0, 0], ended
    return [json.loads(done.stdout) for done in ended]


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    """Where each machine starts: disks of their own."""
    each = [tmp_path / name for name in ("first", "second")]
    for directory in each:
        directory.mkdir()
    return each


@pytest.fixture
def options(reviews: Path, tiny_model: str) -> dict[str, object]:
    """Of a training that learns something, whatever the machines draw at random."""
    return {
        "dataset": str(reviews),
        "model": tiny_model,
        "text_column": "text",
        "label_column": "label",
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "learning_rate": 3e-3,
        "num_train_epochs": 4,
        "global_batch_size": 16,
        "precision": "fp32",
        "train_sampling_strategy": "random",
    }


def flags(options: dict[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items()]


def static(rank: int, port: int, address: str = "127.0.0.1") -> list[str]:
    meeting = [f"--node_rank={rank}", f"--master_addr={address}", f"--master_port={port}"]
    return ["--nnodes=2", *meeting, "--nproc_per_node=1"]


def c10d(port: int) -> list[str]:
    meeting = ["--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_id=tests"]
    return ["--nnodes=2", *meeting, "--nproc_per_node=1"]


def ends(pair: Sequence[Job]) -> list["subprocess.CompletedProcess[str]"]:
    return [job.ended() for job in pair]


# ---- two launchers -------------------------------------------------------------------------------


def test_a_shared_directory_has_one_run_and_it_is_that_of_one_process(
    started: Jobs,
    directories: list[Path],
    tmp_path: Path,
    options: dict[str, object],
    warm: Servers,
) -> None:
    shared, port = tmp_path / "run", free_port()
    words = ["sentiment", *flags(options), "--num_threads=1", f"--output_dir={shared}"]
    pair = [
        started.start(warm.torchrun(words, os.environ, *static(rank, port)), directories[rank])
        for rank in range(2)
    ]
    one = finetune.train("sentiment", **options, output_dir=str(tmp_path / "one"))
    first, second = ends(pair)
    assert first.returncode == 0, first.stderr
    assert second.returncode == 0, second.stderr
    assert "2 processes on 2 machines, 1 thread each" in " ".join(first.stdout.split())
    assert first.stdout.count("Test set,") == 1
    assert "rows per step" not in second.stdout
    assert "Test set," not in second.stdout
    assert {path.name for path in tmp_path.glob("run*")} == {"run"}
    assert not [path for directory in directories for path in directory.iterdir()]
    run = Run.load(shared)
    assert run.manifest["status"] == "finished"
    assert (run.manifest["launch"]["machines"], run.manifest["launch"]["world_size"]) == (2, 2)
    assert one.metrics["test"]["loss"] < 0.68  # it has learned something
    for split in ("validation", "test"):
        assert run.metrics[split] == pytest.approx(one.metrics[split], abs=1e-6)


def test_private_directories_have_the_whole_run_each_with_save_on_each_node(
    started: Jobs, directories: list[Path], options: dict[str, object], warm: Servers
) -> None:
    words = ["sentiment", *flags(options), "--save_on_each_node", "--num_threads=1"]
    port = free_port()
    start = warm.torchrun(words, os.environ, *c10d(port))
    first, second = ends([started.start(start, each) for each in directories])
    assert first.returncode == 0, first.stderr
    assert second.returncode == 0, second.stderr
    runs = [each / "runs" / "sentiment" for each in directories]
    files = [{path.relative_to(run).as_posix() for path in run.rglob("*")} for run in runs]
    assert {"model.safetensors", "predictions.parquet", "run.json"} <= files[0]
    own = ["checkpoint-36/rng_state_0.pth", "checkpoint-36/rng_state_1.pth"]
    assert sorted(name for name in files[0] ^ files[1] if "checkpoint-36" in name) == own
    assert {name for name in files[0] ^ files[1] if "rng_state" not in name} == set()
    weights, again = ((run / "model.safetensors").read_bytes() for run in runs)
    assert weights == again
    for run in runs:
        assert Run.load(run).manifest["status"] == "finished"
        assert Run.load(run).manifest["launch"]["machines"] == 2
        loaded = AutoModelForSequenceClassification.from_pretrained(run).state_dict()
        saved = load_file(run / "model.safetensors")
        assert all(loaded[name].equal(saved[name]) for name in saved)
    assert Run.load(runs[0]).metrics == Run.load(runs[1]).metrics
    said = " ".join((first.stdout + second.stdout).split())  # either is rank 0
    assert said.count("2 processes on 2 machines") == 1
    assert said.count("Test set,") == 1


@pytest.mark.slow
def test_torchrun_shows_the_refusal_in_both_logs(started: Jobs, directories: list[Path]) -> None:
    port, words = free_port(), [REGRESSION, "--output_dir", "runs/mine"]
    pair = [
        started.start([*TORCHRUN, *static(rank, port), "-m", "finetune", *words], directories[rank])
        for rank in range(2)
    ]
    for done in ends(pair):
        assert done.returncode == 1  # torchrun's
        assert done.stdout == ""
        assert done.stderr.count("error: --output_dir runs/mine: the machines do not share it") == 1
        assert "add --save_on_each_node" in done.stderr
    assert not [path for directory in directories for path in directory.iterdir()]


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFUSALS)
def test_the_machines_refuse(
    name: str,
    refusals: list[dict[str, tuple[int, str, str]]],
    refusing: tuple[Path, list[Job]],
) -> None:
    for rank in refusals:
        status, said, in_error = rank[name]
        assert in_error.startswith("error: ")
        assert REFUSALS[name][2] in in_error
        assert in_error.count("\n") == 1
        assert (status, said) == (2, "")
    place, _ = refusing
    assert not [*(place / "first").iterdir(), *(place / "second").iterdir()]


# ---- two namespaces ------------------------------------------------------------------------------


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def namespaces() -> Iterator[list[tuple[str, str]]]:
    """Two, each with the end of a cable between them: their names."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    ends = [(f"ft{os.getpid()}{end}", f"ft{os.getpid()}{end}") for end in "ab"]
    (first, cable), (second, other) = ends
    try:
        try:
            ip("netns", "add", first)
            ip("netns", "add", second)
            ip("netns", "exec", first, "true")
            link = ["link", "add", cable, "netns", first, "type", "veth"]
            ip(*link, "peer", "name", other, "netns", second)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
        for (namespace, device), address in zip(ends, ADDRESSES, strict=True):
            ip("-n", namespace, "address", "add", f"{address}/24", "dev", device)
            ip("-n", namespace, "link", "set", "lo", "up")
            ip("-n", namespace, "link", "set", device, "up")
        yield ends
    finally:
        for namespace, _ in ends:
            subprocess.run(["ip", "netns", "delete", namespace], check=False, capture_output=True)


def test_machines_with_addresses_of_their_own(
    namespaces: list[tuple[str, str]], started: Jobs, tmp_path: Path
) -> None:
    """The port is theirs alone, and gloo is told its interface."""
    words = [REGRESSION, "--num_train_epochs=1", "--num_threads=3", "--output_dir=run"]
    first, second = ends(
        [
            started.start(
                ["ip", "netns", "exec", namespace, *TORCHRUN, *meeting, "-m", "finetune", *words],
                tmp_path,
                {"GLOO_SOCKET_IFNAME": device},
            )
            for rank, (namespace, device) in enumerate(namespaces)
            for meeting in [static(rank, 29500, ADDRESSES[0])]
        ]
    )
    assert first.returncode == 0, first.stderr
    assert second.returncode == 0, second.stderr
    assert "2 processes on 2 machines, 3 threads each" in " ".join(first.stdout.split())
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (manifest["status"], manifest["launch"]["machines"]) == ("finished", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
