"""Fixtures: the Hub on the loopback interface, a tiny model, and the command line in processes.

Nothing here or in a test reaches a network, retries, or sleeps until something else is done. The
libraries read their caches from the environment when they are imported, so it is set here, before
any of them is.
"""

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_CACHE = tempfile.TemporaryDirectory(prefix="finetune-tests-")
os.environ |= {
    "HF_HOME": _CACHE.name,
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "COLUMNS": "100",
    "OMP_NUM_THREADS": "1",  # more threads only wait for each other over matrices this small
}
for _name in ("DATASETS_CACHE", "ENDPOINT", "HUB_CACHE", "MODULES_CACHE", "TOKEN"):
    os.environ.pop(f"HF_{_name}", None)  # the caches are those below HF_HOME
#: Seconds after which a process counts as one that hangs; no test measures time by it.
HANGS = 900
ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = Path(sys.executable).parent
LAUNCHERS = {
    "python": [sys.executable, "-m", "finetune"],
    "torchrun": [str(SCRIPTS / "torchrun"), "--standalone", "--nproc_per_node=2", "-m", "finetune"],
    "accelerate": [str(SCRIPTS / "accelerate"), "launch", "-m", "finetune"],
}
#: Files that take longest: one of them at the end would keep one worker alone.
LONGEST = ("training", "run", "results", "tasks", "predict", "safety")
#: Unit tests that are quick and hold a subtle rule; the others run pages, notebooks and faults, and
#: are slow. What users rely on is in the acceptance tests.
QUICK = {
    *("augmentation", "cpu", "docs", "estimates", "exchange", "gpu_check", "head", "kernels"),
    *("layout", "losses", "recipe"),
}
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Hub"]:  # noqa: F821
    """The Hub, with small repositories in the shapes of the real ones."""
    from tests.hub import build_repositories, serve

    root = tmp_path_factory.mktemp("hub")
    build_repositories(root)
    with serve(root) as server:
        yield server


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with a BERT of two layers and 32 dimensions, and its tokenizer."""
    from tests.hub import build_repositories
    from tests.hub.repositories import CASED

    root = tmp_path_factory.mktemp("models")
    build_repositories(root)
    return str(next(path.parent for path in root.rglob("config.json") if CASED in str(path)))


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """More threads only wait for each other over matrices this small."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the page, which takes longer than a small training; it has tests of its own."""
    from finetune.reporting import page

    monkeypatch.setattr(page, "write", lambda run: run.path)


@pytest.fixture(scope="session")
def uneven_reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV of 200 distinct reviews, `text` and `label` (bad, good), of very unequal lengths."""
    words = {"bad": ["awful", "dull", "bland"], "good": ["great", "lovely", "fine"]}
    lines = ["text,label"]
    for number in range(200):
        label = ("bad", "good")[number % 2]
        comment = " ".join([words[label][number % 3]] * (1 + number % 11))
        lines.append(f"the food of place {number} was {comment},{label}")
    path = tmp_path_factory.mktemp("data") / "reviews.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Servers"]:  # noqa: F821
    """Starts commands without their imports, see `tests/warm.py`."""
    from tests.warm import Servers

    servers = Servers(tmp_path_factory.mktemp("warm"))
    yield servers
    servers.close()


@pytest.fixture
def command(tmp_path: Path, warm: "Servers") -> Command:  # noqa: F821
    """Run `python -m finetune WORDS` (or under another launcher) in an empty directory."""
    home = tmp_path / "cwd"
    home.mkdir()

    def run(
        *words: str | Path,
        launcher: str = "python",
        cwd: Path = home,
        env: dict[str, str] | None = None,
        timeout: float = HANGS,
    ) -> "subprocess.CompletedProcess[str]":
        environment = dict(os.environ) if env is None else env
        typed = list(map(str, words))
        if launcher == "python":
            start = warm.words("finetune", typed, environment)
        elif launcher == "torchrun":
            start = warm.torchrun(typed, environment)
        else:
            start = [*LAUNCHERS[launcher], *typed]
        return subprocess.run(
            start,
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--contract C3,D5`: only the acceptance tests of these rows of docs/contract.md."""
    parser.addoption("--contract", default="", help="run the tests of these rows of the contract")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is slow, and what starts processes or trains: `make check` leaves that out."""
    if rows := set(filter(None, config.getoption("--contract").split(","))):
        items[:] = [
            item
            for item in items
            if rows & {row for mark in item.iter_markers("contract") for row in mark.args}
        ]
    for item in items:
        if item.path.parent.name == "acceptance":
            item.add_marker("trains")
        elif item.path.stem.removeprefix("test_") not in QUICK:
            item.add_marker("slow")
        if {"command", "warm"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("processes")
    items.sort(key=lambda item: item.path.stem not in [f"test_{name}" for name in LONGEST])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a session whose acceptance tests started or trained more than they may."""
    if any(len(lines) > limit for _, lines, limit in acceptance_counts(session.config)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print how many commands the acceptance tests started and how many shared runs they trained.

    With `-vv` each of them.
    """
    for kind, lines, limit in acceptance_counts(config):
        if lines:
            terminalreporter.line(f"acceptance: {len(lines)} {kind} (at most {limit})")
            if config.get_verbosity() > 1:
                terminalreporter.line("".join(f"  {line}\n" for line in sorted(lines)))


def acceptance_counts(config: pytest.Config) -> Iterator[tuple[str, list[str], int]]:
    """Yield `commands` and `runs`: those of this session, and how many there may be."""
    from tests.acceptance import MAX_COMMANDS, MAX_RUNS

    if hasattr(config, "workerinput"):  # counted by the process that started the workers
        return
    directory = config._tmp_path_factory.getbasetemp() / "acceptance"  # type: ignore[attr-defined]
    for kind, limit in (("commands", MAX_COMMANDS), ("runs", MAX_RUNS)):
        file = directory / f"{kind}.txt"
        yield kind, file.read_text().splitlines() if file.exists() else [], limit


def pytest_collection_finish() -> None:
    """Each training looks for garbage: not among what was imported, a fifth of a second long."""
    gc.freeze()


@pytest.fixture(autouse=True)
def imports_are_no_garbage() -> Iterator[None]:
    """Nor among what a test has imported."""
    before = len(sys.modules)
    yield
    if len(sys.modules) > before + 50:
        gc.collect()
        gc.freeze()
