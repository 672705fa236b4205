"""What is cached: made once, by one process at a time, listed, and removed if nobody uses it."""

import contextlib
import json
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from finetune import UserError
from finetune.cli import cache, dispatch
from finetune.config.settings import Settings
from finetune.data import arrow, caches, digests, sources, tokenize
from finetune.data.encoding import Encoder
from finetune.errors import RunError
from finetune.pipeline import preparation
from finetune.runtime import activity, distributed, lock, sharing, signals, workers
from tests.conftest import HANGS
from tests.jobs import free_port

CACHE = "HF_DATASETS_CACHE"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, which this process stops using afterwards."""
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(caches, "_IN_USE", in_use := {})
    yield tmp_path / "cache"
    for descriptor in in_use.values():
        os.close(descriptor)


def of_files(path: Path, rows: int) -> DatasetDict:
    """Rows in a file, behind an indices mapping."""
    texts = [f"{number} " + "the food was great " * (number % 5) for number in range(2 * rows)]
    Dataset.from_dict({"text": texts, "label": [0, 1] * rows}).save_to_disk(path)
    return DatasetDict(train=Dataset.load_from_disk(path).select(range(0, 2 * rows, 2)))


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*/*/*.arrow")}


def test_the_files_are_the_same_whatever_the_number_of_processes(
    home: Path, tmp_path: Path, tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenize, "PART", 20)
    rows = of_files(tmp_path / "rows", 110)
    encoder = Encoder(AutoTokenizer.from_pretrained(tiny_model), 16)
    found, told = [], []
    for processes in (1, 3):
        monkeypatch.setenv(CACHE, str(home / str(processes)))
        with activity.listening(lambda *work: told.append(work)):
            prepared = tokenize.tokenize(rows, encoder, processes=processes)["train"]
        assert prepared["input_ids"][:] == encoder(rows["train"]["text"][:])["input_ids"]
        found.append(contents(home / str(processes)))

    assert len(found[0]) == 6
    assert found[0] == found[1]
    assert [done for _, done, _, _ in told[-6:]][-1] == 110
    assert {name for name, *_ in told} == {"hashing", "tokenizing train"}


def test_learning_rate_launcher_and_workers_are_no_part_of_the_key(
    home: Path, reviews: Path, tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"dataset": str(reviews), "model": tiny_model, "eval_samples": 9}

    def files(**others: Any) -> dict[str, list[str]]:
        chosen = Settings.from_keywords("text", {**given, **others})
        prepared = preparation.prepare(chosen).settings.recipe.prepared
        lock.release()
        return {
            name: [file["filename"] for file in each.cache_files] for name, each in prepared.items()
        }

    first = files(output_dir=str(tmp_path / "one"))
    monkeypatch.setattr(PreTrainedTokenizerBase, "__call__", None)  # nothing is tokenized
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    others = {"learning_rate": 1e-3, "preprocessing_num_workers": 7, "seed": 7}

    assert files(output_dir=str(tmp_path / "other"), **others) == first


def test_too_few_workers_are_refused() -> None:
    options = {"preprocessing_num_workers": 0, "embedded": True}
    (mistake,) = Settings.from_keywords("text", options).report.sentences("error")
    assert mistake == "--preprocessing_num_workers 0: expected 1 process or more"


# ---- worker processes ----------------------------------------------------------------------------


def children(process: int = 0) -> set[int]:
    """The processes that this one, or that one, has started, zombies among them."""
    found = set()
    for each in psutil.pids():
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(each).ppid() == (process or os.getpid()):
                found.add(each)
    return found


def fails(piece: int) -> Iterator[int]:
    yield 1
    if piece == 3:
        raise UserError("the fourth piece is wrong")


def is_killed(piece: int) -> Iterator[int]:
    yield 1
    if piece == 3:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("work", "error", "message"),
    [
        (fails, UserError, "the fourth piece is wrong"),
        (is_killed, RunError, "ended by SIGKILL.*--preprocessing_num_workers"),
    ],
)
def test_what_ends_a_worker_is_told_and_ends_the_others(
    work: Any, error: type[Exception], message: str
) -> None:
    before = children()
    with pytest.raises(error, match=message):
        workers.share_out(work, range(8), 2, lambda piece, units: None)
    assert children() == before


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_to_this_process_ends_the_workers(name: str) -> None:
    def asks(piece: int) -> Iterator[int]:
        yield 1
        if piece == 0:  # one signal: another might come when nobody handles it any more
            os.kill(os.getppid(), signal.Signals[name])
        os.kill(os.getpid(), signal.Signals[name])  # as a terminal does, which workers leave to it
        threading.Event().wait(HANGS)

    before = children()
    with signals.handled(), pytest.raises(signals.Stopped, match=name):
        workers.share_out(asks, range(8), 2, lambda piece, units: None)
    left = [psutil.Process(each).as_dict(["status", "cmdline"]) for each in children() - before]
    assert left == []


TOKENIZES = """
import os, platform, sys, time
import numpy as np
from datasets import Dataset, DatasetDict
from transformers import AutoTokenizer
from finetune.data import tokenize
from finetune.data.encoding import Encoder
from finetune.runtime import activity

model, rows, parts, host = sys.argv[1:]
tokenize.PART, begun = 10, 0
if host:
    platform.node = lambda: host

def targets(labels):
    global begun
    begun += 1
    write(f"makes {labels[0]}")
    if begun > int(parts):
        time.sleep(1000)
    return np.asarray(labels)

def tell(work, done, *others):
    if work == "tokenizing train":
        write(f"done {done}")

def write(line):  # at once: the workers write to the same pipe
    os.write(1, f"{line}\\n".encode())

with activity.listening(tell, write):
    encoder = Encoder(AutoTokenizer.from_pretrained(model), 16)
    rows = DatasetDict(train=Dataset.load_from_disk(rows))
    tokenize.tokenize(rows, encoder, targets, processes=2)
"""


class Tokenizing(subprocess.Popen[str]):
    """A process that tokenizes with two workers, each of which stands still after some parts."""

    def __init__(self, rows: Path, model: str, parts: int, host: str = "") -> None:
        words = [sys.executable, "-c", TOKENIZES, model, str(rows), str(parts), host]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        super().__init__(words, stdout=subprocess.PIPE, stderr=self.errors, text=True)

    def lines_until(self, word: str) -> list[str]:
        assert self.stdout is not None
        lines = []
        for line in self.stdout:
            lines.append(line)
            if word in line:
                return lines
        status = self.wait(HANGS)
        self.errors.seek(0)
        raise AssertionError(f"ended with {status} before {word!r}: {lines} {self.errors.read()}")


@pytest.mark.processes
def test_a_kill_leaves_whole_files_and_nobody_and_who_waits_goes_on(
    home: Path, tmp_path: Path, tiny_model: str
) -> None:
    texts = [f"the food was great {number}" for number in range(60)]
    Dataset.from_dict({"text": texts, "label": [0, 1] * 30}).save_to_disk(tmp_path / "rows")
    first, second = Tokenizing(tmp_path / "rows", tiny_model, 1), None
    try:
        first.lines_until("done 20")
        started = [psutil.Process(each) for each in children(first.pid)]
        assert len(started) == 2, (first.poll(), started)
        second = Tokenizing(tmp_path / "rows", tiny_model, 9)
        (said,) = second.lines_until("waiting")
        assert f"another run (process {first.pid} on " in said
        assert "is preparing the same data: waiting for it" in said

        first.kill()
        first.wait(HANGS)
        rest, _ = second.communicate(timeout=HANGS)
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()

    assert second.returncode == 0
    assert psutil.wait_procs(started, HANGS)[1] == []
    numbers = [int(line.split()[1]) for line in rest.splitlines() if "done" in line]
    assert numbers == [30, 40, 50, 60]  # what was finished was not made again
    (directory,) = home.glob("finetune-tokenized/*")
    arrow = sorted(path.name for path in directory.glob("*.arrow"))
    assert len(arrow) == 6
    assert not list(directory.glob(".*.tmp"))
    encoder = Encoder(AutoTokenizer.from_pretrained(tiny_model), 16)
    files = sorted(directory.glob("*.arrow"), key=lambda path: int(path.stem.partition("-")[0]))
    written = [ids for path in files for ids in Dataset.from_file(str(path))["input_ids"]]
    assert written == encoder(texts)["input_ids"]


@pytest.mark.processes
def test_machines_that_share_the_cache_share_out_what_is_to_be_tokenized(
    home: Path, tmp_path: Path, tiny_model: str
) -> None:
    texts = [f"the food was great {number}" for number in range(80)]
    Dataset.from_dict({"text": texts, "label": range(80)}).save_to_disk(tmp_path / "rows")
    first = Tokenizing(tmp_path / "rows", tiny_model, 1, "node1")
    second = None
    try:
        lines = first.lines_until("done 20")
        while sum("makes" in line for line in lines) < 4:  # two parts done, two stood still at
            lines += first.lines_until("makes")
        began = [int(line.split()[1]) for line in lines if "makes" in line]
        second = Tokenizing(tmp_path / "rows", tiny_model, 99, "node2")
        theirs = second.lines_until("waiting")
        first.kill()
        rest, _ = second.communicate(timeout=HANGS)
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()

    assert second.returncode == 0
    made = [int(line.split()[1]) for line in theirs if "makes" in line]
    assert sorted(began) == [0, 10, 20, 30]
    assert sorted(made) == [40, 50, 60, 70]  # not those of the first machine, done or begun
    assert theirs[-1].startswith(f"waiting for 2 files that another machine (process {first.pid} ")
    again = [int(line.split()[1]) for line in rest.splitlines() if "makes" in line]
    assert len(again) == 2  # those that had only begun, once their machine was lost
    assert {*again} < {*began}
    assert rest.splitlines()[-1] == "done 80"


# ---- ranks ---------------------------------------------------------------------------------------


class Store(dict[str, bytes]):
    """What of torch's store is used to share."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


def test_other_ranks_read_split_hash_and_tokenize_nothing(
    home: Path, reviews: Path, tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    monkeypatch.setattr("finetune.runtime.distributed.store_of_job", lambda: store)
    for name, value in {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "x"}.items():
        monkeypatch.setenv(name, value)
    options = {"dataset": str(reviews), "model": tiny_model, "output_dir": str(tmp_path / "run")}

    def prepared(rank: str) -> preparation.Prepared:
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("LOCAL_RANK", rank)
        return preparation.prepare(Settings.from_keywords("text", options))

    first = prepared("0")
    lock.release()
    (shared,) = (Path(path.decode()) for path in store.values())
    assert shared.stat().st_mode & 0o077 == 0
    for name in ("sources.read", "splits.three_way", "digests.digests", "tokenize.tokenize"):
        monkeypatch.setattr(f"finetune.data.{name}", None)
    other = prepared("1")
    sharing.forget()

    assert not shared.exists()
    assert other.configuration == first.configuration
    assert other.steps == first.steps
    for which in ("splits", "prepared"):
        theirs, ours = (getattr(each.settings.recipe, which) for each in (first, other))
        for name in theirs:
            assert ours[name].to_dict() == theirs[name].to_dict()
            assert ours[name].cache_files == theirs[name].cache_files
    assert other.settings.recipe.labels == first.settings.recipe.labels


def test_what_cannot_be_pickled_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    monkeypatch.setattr("finetune.runtime.distributed.store_of_job", lambda: store)
    for name, value in {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    sharing.give("a recipe", lambda: None)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")

    assert sharing.taken("a recipe") is None
    assert not store


def answers_of(rank: Callable[[int, int, Any], None]) -> list[Any]:
    """Run two ranks, each in a process; return what they put into the queue."""
    context = multiprocessing.get_context("fork")
    answers, port = context.Queue(), free_port()
    both = [context.Process(target=rank, args=(number, port, answers)) for number in (0, 1)]
    for process in both:
        process.start()
    try:
        got: list[Any] = []
        began = time.monotonic()
        while len(got) < len(both):
            assert time.monotonic() - began < HANGS
            # looked at before the queue: what a process that ended has put there can be had
            failed = [process.exitcode for process in both if process.exitcode]
            try:
                got.append(answers.get(timeout=1))
            except queue.Empty:
                assert not failed, f"a rank failed with {failed}"
        return got
    finally:
        for process in both:
            process.join(60)
            process.kill()


def meet(rank: int, port: int, answers: Any) -> None:
    """Be a rank whose preparation takes longer than the process group waits."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    timeout = 2.0
    pause = 1.5 * timeout if rank == 0 else 0.0

    def prepared() -> str:
        if told := sharing.taken("rows"):
            return str(told)
        threading.Event().wait(pause)  # it is the time that passes which is tested
        sharing.give("rows", f"of rank {rank}")
        return f"of rank {rank}"

    rows = distributed.rank_zero_first(prepared)
    distributed.join(None, round(timeout), use_cpu=True)
    answers.put((distributed.gather(rank), rows))
    distributed.leave()


@pytest.mark.processes
def test_a_preparation_slower_than_the_process_group_waits_is_no_timeout() -> None:
    assert answers_of(meet) == [([0, 1], "of rank 0")] * 2


def come(rank: int, port: int, answers: Any) -> None:
    """Be the only rank of one of two machines; that of the first one waits for the other."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    def prepared() -> str:
        store = distributed.store_of_job()
        distributed.invite()
        if rank == 0:
            store.wait(["came"])  # or the other machine would be waiting for this one
        store.set("came", "1")
        return f"of rank {rank}"

    rows = distributed.rank_zero_first(prepared)
    # as every caller does: rank 0 keeps the store, and must not end while the other looks at it
    distributed.join(None, HANGS, use_cpu=True)
    distributed.gather(rank)
    answers.put(rows)
    distributed.leave()


@pytest.mark.processes
def test_another_machine_begins_when_rank_0_has_something_to_share() -> None:
    assert {*answers_of(come)} == {"of rank 0", "of rank 1"}


# ---- hashes of texts -----------------------------------------------------------------------------


def test_hashes_of_many_texts_are_computed_once(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_KEPT", 20)
    texts = {"text": [f" text {number % 30}" for number in range(40)], "other": ["x", "y"] * 20}
    Dataset.from_dict(texts).to_parquet(tmp_path / "rows.parquet")

    def hashed(column: str, *numbers: int) -> dict[str, Any]:
        rows = sources.read(str(tmp_path / "rows.parquet"))["train"]
        rows = rows.select(numbers) if numbers else rows
        wanted = np.arange(len(rows) - 10)  # the others may be invalid
        found = vars(digests.digests(rows, column, wanted))
        return {name: each[wanted].tolist() for name, each in found.items()}

    first = {column: hashed(column) for column in texts}
    few = hashed("text", *range(35, 0, -1))
    kept = sorted((home / "finetune-digests").glob("*.npz"))
    assert len(kept) == 3

    def none(*given: Any) -> None:
        raise AssertionError("hashed again")

    with monkeypatch.context() as patch:
        patch.setattr(digests, "_hash_rows", none)
        assert {column: hashed(column) for column in texts} == first
        assert hashed("text", *range(35, 0, -1)) == few
    assert first["text"]["exact"] != first["text"]["plain"] != first["other"]["plain"]
    assert few["exact"][:5] == first["text"]["exact"][5:0:-1]  # of texts 35 to 31, 30 rows later

    for path in kept:
        path.write_bytes(path.read_bytes()[:-40])
    assert hashed("text") == first["text"]
    monkeypatch.setattr(digests, "_hash_rows", none)
    rows = sources.read(str(tmp_path / "rows.parquet"))["train"]
    with pytest.raises(AssertionError, match="hashed again"):  # those that are missing
        digests.digests(rows, "text")


def test_the_hash_of_a_column_tells_where_its_buffers_end() -> None:
    def hashed(offsets: bytes, content: bytes) -> str:
        column = pa.StringArray.from_buffers(2, pa.py_buffer(offsets), pa.py_buffer(content))
        return arrow.content_hash(Dataset(pa.table({"text": column})), "text")

    offsets = np.array([0, 4, 8], np.int32).tobytes()
    assert hashed(offsets, b"abcdefghXXXX") != hashed(offsets + b"abcd", b"efghXXXX")
    assert hashed(offsets, b"abcdefgh") == hashed(offsets, b"abcdefgh")


# ---- the verb ------------------------------------------------------------------------------------


@pytest.fixture
def filled(home: Path, tmp_path: Path, tiny_model: str) -> Path:
    """A cache with tokenized rows that this process uses, and old ones that nobody does."""
    rows = of_files(tmp_path / "rows", 30)
    encoder = Encoder(AutoTokenizer.from_pretrained(tiny_model), 16)
    about = {"source": "reviews.csv (local)", "tokenizer": "tiny"}
    tokenize.tokenize(rows, encoder, about=about)
    old = home / caches.TOKENIZED / "0123456789abcdef"
    old.mkdir()
    (old / "0-9.arrow").write_bytes(bytes(3_000_000))
    (old / ".used").touch()
    os.utime(old / ".used", (time.time() - 40 * 86400,) * 2)
    (home / "someone___else").mkdir()
    (home / "someone___else" / "rows.arrow").write_bytes(b"theirs")
    baselines = home / "finetune-baselines"
    baselines.mkdir()
    (baselines / "fedcba9876543210.json").write_text("{}")
    return home


def test_the_cache_is_listed(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch.main(["cache"]) == 0

    said = capsys.readouterr().out
    assert "0123456789abcdef  3.0 MB" in said
    assert "tokenized rows of train, 30" in said
    assert "reviews.csv (local), tiny" in said
    assert "baseline" in said
    assert "3 entries, 3.0 MB" in said
    assert "theirs" not in said


@pytest.mark.parametrize(
    ("words", "removed", "kept"),
    [
        (["--older_than", "30"], 1, 0),
        (["--older_than", "90"], 0, 0),
        (["0123456789abcdef", "fedcba9876543210"], 2, 0),
        (["--all"], 2, 1),
    ],
)
def test_what_nobody_uses_is_removed(
    filled: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    removed: int,
    kept: int,
) -> None:
    assert dispatch.main(["cache", "--remove", *words]) == 0

    said = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("removed ") for line in said) == removed
    held = [line for line in said if line.startswith("kept ")]
    assert len(held) == kept
    assert all(line.endswith("used by a running process") for line in held)
    assert len(caches.entries()) == 3 - removed
    assert (filled / "someone___else" / "rows.arrow").read_bytes() == b"theirs"


def test_only_the_last_entries_keep_a_file_open(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches, "_MOST_IN_USE", 2)
    for name in "abcb":
        caches.use(caches.place(caches.TOKENIZED, name))

    assert [path.name for path in caches._IN_USE] == ["b", "c"]
    first, *others = sorted(caches.entries(), key=lambda entry: entry.name)
    assert caches.remove(first) is None
    assert {caches.remove(entry) for entry in others} == {"used by a running process"}


def test_removed_rows_are_made_again(home: Path, tmp_path: Path, tiny_model: str) -> None:
    rows = of_files(tmp_path / "rows", 30)
    encoder = Encoder(AutoTokenizer.from_pretrained(tiny_model), 16)
    first = tokenize.tokenize(rows, encoder)["train"].to_dict()
    for descriptor in caches._IN_USE.values():
        os.close(descriptor)
    caches._IN_USE.clear()
    (entry,) = caches.entries()

    assert caches.remove(entry) is None
    assert caches.entries() == []
    assert tokenize.tokenize(rows, encoder)["train"].to_dict() == first
    assert json.loads((entry.path / "about.json").read_text())["rows"] == 30


@pytest.mark.parametrize(
    ("words", "mistake"),
    [
        (["--remove"], "expected the names of entries, --older_than DAYS or --all, one of them"),
        (["--remove", "--all", "--older_than", "3"], "one of them; found 2"),
        (["--all"], "say what to remove: add --remove"),
        (["abc"], "say what to remove: add --remove"),
        (["--remove", "0123456789abcdee"], "did you mean '0123456789abcdef'?"),
        (["--remove", "../someone___else"], "no entry '../someone___else'"),
        (["--remove", "--older_than", "-1"], "--older_than -1: expected a number of days"),
        (["--remove", "--older_than", "soon"], "argument --older_than"),
        (["--delete"], "unknown option --delete"),
    ],
)
def test_mistakes_of_the_verb(filled: Path, words: list[str], mistake: str) -> None:
    with pytest.raises(UserError) as caught:
        cache.main(words)

    assert mistake in str(caught.value)
    assert len(caches.entries()) == 3
