"""Fixtures: a Hub on the loopback interface, a tiny model, and the command line in processes.

No test uses another network, retries or sleeps. The libraries read the paths of their caches from
the environment when they are imported, so these are set here, before the first import.
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
    "OMP_NUM_THREADS": "1",  # more threads are slower on matrices this small
}
for _name in ("DATASETS_CACHE", "ENDPOINT", "HUB_CACHE", "MODULES_CACHE", "TOKEN"):
    os.environ.pop(f"HF_{_name}", None)  # all caches are in HF_HOME
#: Timeout in seconds for a process that hangs; no test uses it to measure time.
HANGS = 900
ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = Path(sys.executable).parent
LAUNCHERS = {
    "python": [sys.executable, "-m", "finetune"],
    "torchrun": [str(SCRIPTS / "torchrun"), "--standalone", "--nproc_per_node=2", "-m", "finetune"],
    "accelerate": [str(SCRIPTS / "accelerate"), "launch", "-m", "finetune"],
}
#: The test files that take longest, in this order: so no worker is busy alone at the end.
LONGEST = ("training", "run", "results", "tasks", "predict", "safety", "sets", "defaults")
LONGEST += ("serving",)
#: Fast unit tests of rules that are easy to break. Other unit tests run docs, notebooks and faults,
#: and are slow. What users rely on is covered by the acceptance tests.
QUICK = {
    *("augmentation", "cpu", "docs", "estimates", "exchange", "gpu_check", "head"),
    *("internals", "layout", "losses", "packaging", "recipe", "serving"),
}
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Hub"]:  # noqa: F821
    """A Hub with small repositories that have the same files as the real ones."""
    from tests.hub import build_repositories, serve

    root = tmp_path_factory.mktemp("hub")
    build_repositories(root)
    with serve(root) as server:
        yield server


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The directory of a BERT with 2 layers and hidden size 32, and its tokenizer."""
    from tests.hub import build_repositories
    from tests.hub.repositories import CASED

    root = tmp_path_factory.mktemp("models")
    build_repositories(root)
    return str(next(path.parent for path in root.rglob("config.json") if CASED in str(path)))


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Use one thread: more threads are slower on matrices this small."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def skip_report(patch: pytest.MonkeyPatch) -> None:
    """Skip `report.html`, which takes longer than a small training and has its own tests."""
    from finetune.reporting import page

    patch.setattr(page, "write", lambda run: run.path)


@pytest.fixture
def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip `report.html`."""
    skip_report(monkeypatch)


@pytest.fixture(scope="session")
def uneven_reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV with 240 different reviews of 6 to 30 words; columns `text`, `label`."""
    from tests.acceptance.data import write_reviews

    return write_reviews(tmp_path_factory.mktemp("data") / "reviews.csv")


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Servers"]:  # noqa: F821
    """Servers that start commands without the time for imports, see `tests/warm.py`."""
    from tests.warm import Servers

    servers = Servers(tmp_path_factory.mktemp("warm"))
    yield servers
    servers.close()


@pytest.fixture
def command(tmp_path: Path, warm: "Servers") -> Command:  # noqa: F821
    """Return a function that runs `python -m finetune WORDS` in an empty directory."""
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
    """Add `--contract C3,D5`, which selects the acceptance tests of rows of docs/contract.md."""
    parser.addoption("--contract", default="", help="run the tests of these rows of the contract")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that are slow, start processes or train; `make check` skips them."""
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
    order = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a session whose acceptance tests exceeded the limits of commands and shared runs."""
    if any(len(lines) > limit for _, lines, limit in acceptance_counts(session.config)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the number of commands and shared runs; with `-vv` also list them."""
    for kind, lines, limit in acceptance_counts(config):
        if lines:
            terminalreporter.line(f"acceptance: {len(lines)} {kind} (at most {limit})")
            if config.get_verbosity() > 1:
                terminalreporter.line("".join(f"  {line}\n" for line in sorted(lines)))


def acceptance_counts(config: pytest.Config) -> Iterator[tuple[str, list[str], int]]:
    """Yield, for `commands` and `runs`, the kind, those of this session, and their limit."""
    from tests.acceptance import MAX_COMMANDS, MAX_RUNS

    if hasattr(config, "workerinput"):  # the process that started the workers counts
        return
    directory = config._tmp_path_factory.getbasetemp() / "acceptance"  # type: ignore[attr-defined]
    for kind, limit in (("commands", MAX_COMMANDS), ("runs", MAX_RUNS)):
        file = directory / f"{kind}.txt"
        yield kind, file.read_text().splitlines() if file.exists() else [], limit


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection: it takes 0.2 s in each training."""
    gc.freeze()


@pytest.fixture(autouse=True)
def freeze_imports() -> Iterator[None]:
    """Also exclude the objects that a test has imported."""
    count = len(sys.modules)
    yield
    if len(sys.modules) > count + 50:
        gc.collect()
        gc.freeze()
