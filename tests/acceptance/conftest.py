"""Fixtures of the acceptance suite: commands, small data and models, and the shared runs.

Acceptance tests only use the command line, the public names of `finetune`, the public methods of
recipes, and files. There are two ways to run a command:

- `cli("check", "text", ...)` runs the command line in the process of the test; fast, for tables.
- `command("text", ...)` starts a process, forked from one that has imported the libraries (see
  `tests/warm.py`). At most 25 of these are allowed, see `tests/acceptance/__init__.py`.

The shared runs are trained once for all workers of pytest-xdist. Tests must not change them, but
can change a copy (`copy_run`).
"""

import contextlib
import io
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from filelock import FileLock

import finetune
from tests.acceptance import data
from tests.conftest import HANGS, LAUNCHERS
from tests.warm import Servers

#: Options of all small trainings: fast, with the same results on every processor.
TRAINING: dict[str, Any] = dict(
    max_length=64,
    learning_rate=3e-3,
    num_train_epochs=3,
    global_batch_size=16,
    logging_steps=2,
    precision="fp32",
    disable_tqdm=True,
)

#: Of the runs that label words: the longest sentence has several windows.
LENGTH = 48


def flags(**options: Any) -> list[str]:
    """Return options as typed words: `flags(max_steps=3)` is `["--max_steps", "3"]`."""
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


# ---- counts of commands and runs -----------------------------------------------------------------


@pytest.fixture(scope="session")
def shared_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all workers of this test session share."""
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "acceptance"
    directory.mkdir(exist_ok=True)
    return directory


def record(directory: Path, kind: str, description: str) -> None:
    """Add a line to a list that all workers share: of started commands or of shared runs."""
    with FileLock(directory / f"{kind}.lock"), (directory / f"{kind}.txt").open("a") as file:
        file.write(description.replace("\n", " ")[:200] + "\n")


# ---- commands ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finished:
    """The exit status and the output of a command."""

    status: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr

    def succeeded(self) -> "Finished":
        """Assert that the exit status is 0; return the command."""
        assert self.status == 0, self.output
        return self

    def refused(self, *fragments: object) -> "Finished":
        """Assert that it was a mistake: status 2, and a message with fragments; return it."""
        assert self.status == 2, self.output
        assert "Traceback" not in self.output
        for fragment in fragments:
            assert str(fragment) in self.stderr, (fragment, self.stderr)
        return self


@contextlib.contextmanager
def user_error(*fragments: str) -> Iterator[None]:
    """Expect a `UserError` whose message has these fragments."""
    with pytest.raises(finetune.UserError) as error:
        yield
    for fragment in fragments:
        assert fragment in str(error.value)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Finished]:
    """Return a function that runs `python -m finetune WORDS` here, in an empty directory."""

    def run(*words: object, stdin: str | bytes = "", encoding: str = "utf-8") -> Finished:
        (tmp_path / "cwd").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / "cwd")
        stdout, stderr, status = io.TextIOWrapper(io.BytesIO(), encoding), io.StringIO(), 0
        typed = stdin if isinstance(stdin, bytes) else stdin.encode()
        with (
            mock.patch.object(sys, "argv", ["finetune", *map(str, words)]),
            mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed))),
            mock.patch.dict(os.environ),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
        ):
            try:
                runpy.run_module("finetune", run_name="__main__", alter_sys=True)
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
        stdout.flush()
        return Finished(status, stdout.buffer.getvalue().decode(), stderr.getvalue())

    return run


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The server processes that commands are forked from."""
    servers = Servers(tmp_path_factory.mktemp("warm"))
    yield servers
    servers.close()


@dataclass
class Commands:
    """Starts commands and counts them; they are killed at the end of the test.

    Attributes:
        home: The working directory of the commands.
        processes: The started processes.
    """

    home: Path
    shared_directory: Path
    servers: Servers

    def __post_init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def start(
        self, *words: object, launcher: str = "python", num_processes: int = 2,
        env: dict[str, str] | None = None, cwd: Path | None = None, **popen: Any
    ) -> "subprocess.Popen[str]":  # fmt: skip
        """Start `python -m finetune WORDS`, also under `torchrun` or `accelerate`, or a script.

        Args:
            *words: The words after `finetune`; for a `script`, its path and arguments.
            launcher: `python`, `torchrun`, `accelerate`; `fresh` for a new interpreter,
                `script` for `python WORDS`.
            num_processes: The number of processes of torchrun.
            env: Variables to add to the environment.
            cwd: The working directory; `home` by default.
            **popen: Arguments of `subprocess.Popen`.
        """
        environment = {**os.environ, **(env or {})}
        typed = [str(word) for word in words]
        if launcher == "python":
            line = self.servers.words("finetune", typed, environment)
        elif launcher == "torchrun":
            torchrun = ("--standalone", f"--nproc_per_node={num_processes}")
            line = self.servers.torchrun(typed, environment, *torchrun)
        elif launcher == "accelerate":
            line = self.servers.accelerate(typed, environment)
        elif launcher == "fresh":
            line = [*LAUNCHERS["python"], *typed]
        else:
            line = [sys.executable, *typed]
        record(self.shared_directory, "commands", f"{launcher}: {' '.join(typed)}")
        popen = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | popen
        process = subprocess.Popen(line, cwd=cwd or self.home, env=environment, **popen)
        self.processes.append(process)
        return process

    def __call__(self, *words: object, **options: Any) -> Finished:
        """Start a command with `start`, wait for its end and return its output."""
        process = self.start(*words, stdin=subprocess.DEVNULL, **options)
        stdout, stderr = process.communicate(timeout=HANGS)
        return Finished(process.returncode, stdout, stderr)


@pytest.fixture
def command(tmp_path: Path, shared_directory: Path, servers: Servers) -> Iterator[Commands]:
    """Return an object that starts commands in an empty directory."""
    (tmp_path / "home").mkdir()
    commands = Commands(tmp_path / "home", shared_directory, servers)
    yield commands
    for process in commands.processes:
        if process.poll() is None:
            process.kill()
            process.communicate()


# ---- data and models -----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def reviews(shared_directory: Path) -> Path:
    """A CSV of 240 reviews of 6 to 30 words; columns `text` and `label` (bad, good)."""
    return once(shared_directory / "reviews.csv", data.write_reviews)


@pytest.fixture(scope="session")
def spare(shared_directory: Path) -> Path:
    """A TSV of 42 texts without labels, 40 of them different."""
    return once(shared_directory / "spare.tsv", data.write_spare)


@pytest.fixture(scope="session")
def bert(shared_directory: Path) -> Path:
    """The directory of a BERT with 2 layers and hidden size 32, without dropout."""
    return once(shared_directory / "bert", data.write_bert)


@pytest.fixture(scope="session")
def pretrained_bert(shared_directory: Path) -> Path:
    """The directory of a BERT like `bert`, whose norms look trained: a new head is fitted."""
    return once(shared_directory / "pretrained_bert", data.write_pretrained_bert)


@pytest.fixture(scope="session")
def vit(shared_directory: Path) -> Path:
    """The directory of a ViT with one layer for images of 8 x 8 pixels."""
    return once(shared_directory / "vit", data.write_vit)


def once(path: Path, write: Callable[[Path], object]) -> Path:
    """Return `path`; the first worker writes it."""
    with FileLock(path.with_name(f"{path.name}.lock")):
        if not path.exists():
            unfinished = path.with_name(f"unfinished-{path.name}")
            shutil.rmtree(unfinished, ignore_errors=True)  # left by a writer that failed
            write(unfinished)
            unfinished.rename(path)
    return path


# ---- the shared runs -----------------------------------------------------------------------------

Trained = Callable[..., finetune.Run]


@pytest.fixture(scope="session")
def trained(shared_directory: Path) -> Trained:
    """Return a function that returns a shared run, which the first worker trains.

    Its options are added to those of `TRAINING`; None removes one.
    """

    def train(name: str, recipe: Any, **options: Any) -> finetune.Run:
        path = shared_directory / "runs" / name
        with FileLock(shared_directory / f"run-{name}.lock"):
            if not path.exists():
                record(shared_directory, "runs", name)
                chosen = {k: v for k, v in {**TRAINING, **options}.items() if v is not None}
                return finetune.train(recipe, output_dir=str(path), **chosen)
        return finetune.Run.load(path)

    return train


@pytest.fixture
def run(request: pytest.FixtureRequest) -> finetune.Run:
    """The shared run whose fixture is named by the parameter."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def single_label_run(trained: Trained, reviews: Path, bert: Path) -> finetune.Run:
    """Two classes, three epochs with a checkpoint for each, baselines and report."""
    return trained("single_label", "text", dataset=str(reviews), model=str(bert))


@pytest.fixture(scope="session")
def exported(trained: Trained, shared_directory: Path, reviews: Path, bert: Path) -> finetune.Run:
    """A run like `single_label_run`, with its export."""
    run = trained("exported", "text", dataset=str(reviews), model=str(bert), num_train_epochs=1)
    with FileLock(shared_directory / "export.lock"):
        if not (run.path / "export").exists():
            finetune.export(run)
    return run


@pytest.fixture(scope="session")
def second_seed_run(trained: Trained, reviews: Path, bert: Path) -> finetune.Run:
    """`single_label_run` with `--seed 7`: the same test rows, different predictions."""
    return trained("second_seed", "text", dataset=str(reviews), model=str(bert), seed=7)


@pytest.fixture(scope="session")
def multi_label_run(trained: Trained, shared_directory: Path, bert: Path) -> finetune.Run:
    """None to three labels for each row, as lists in a JSON lines file."""
    path = once(shared_directory / "tags.jsonl", data.write_tags)
    return trained("multi_label", "text", dataset=str(path), model=str(bert), label_column="labels")


@pytest.fixture(scope="session")
def regression_run(trained: Trained, shared_directory: Path, bert: Path) -> finetune.Run:
    """Two targets, `stars` (about 1 to 5) and `price` (about 100 to 500)."""
    path = once(shared_directory / "scores.csv", data.write_scores)
    options = dict(text_column="text", label_columns="stars,price", num_train_epochs=5)
    return trained("regression", "text", dataset=str(path), model=str(bert), **options)


@pytest.fixture(scope="session")
def ordinal_run(trained: Trained, shared_directory: Path, bert: Path) -> finetune.Run:
    """Three classes in the order bad < mixed < good."""
    path = once(
        shared_directory / "grades.csv",
        lambda path: data.write_reviews(path, labels=("bad", "mixed", "good")),
    )
    options = dict(task="ordinal", label_order="bad,mixed,good", num_train_epochs=5)
    return trained("ordinal", "text", dataset=str(path), model=str(bert), **options)


@pytest.fixture(scope="session")
def image_run(trained: Trained, shared_directory: Path, vit: Path) -> finetune.Run:
    """Two classes of images of 8 x 8 pixels."""
    path = once(shared_directory / "photos", data.write_photos)
    options = dict(learning_rate=1e-2, num_train_epochs=6, max_length=None)
    return trained("image", "image", dataset=str(path), model=str(vit), **options)


@pytest.fixture(scope="session")
def sentences(shared_directory: Path) -> Path:
    """A CoNLL file of 240 sentences with entities of two types, place and dish."""
    return once(shared_directory / "sentences.conll", data.write_conll)


@pytest.fixture(scope="session")
def entity_run(trained: Trained, sentences: Path, bert: Path) -> finetune.Run:
    """Two types; most entities are found."""
    options = dict(max_length=LENGTH, num_train_epochs=6)
    return trained("entities", "tokens", dataset=str(sentences), model=str(bert), **options)


@pytest.fixture(scope="session")
def exported_entities(shared_directory: Path, entity_run: finetune.Run) -> finetune.Run:
    """A copy of `entity_run`, with its export."""

    def write(path: Path) -> None:
        shutil.copytree(entity_run.path, path)
        finetune.export(path)

    return finetune.Run.load(once(shared_directory / "exported_entities", write))


@pytest.fixture
def copy_run(tmp_path: Path) -> Callable[[finetune.Run], finetune.Run]:
    """Return a function that copies a shared run, for tests that change it."""

    def copy(run: finetune.Run) -> finetune.Run:
        shutil.copytree(run.path, tmp_path / "copies" / run.path.name)
        return finetune.Run.load(tmp_path / "copies" / run.path.name)

    return copy
