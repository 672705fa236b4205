"""Tokenize the splits once, truncated but not padded: each batch is padded to its longest row.

``datasets.map`` does it, in several processes, under a lock: who comes second waits, and reads what
is there. What is cached depends on nothing but the rows, the tokenizer and how texts are cut.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from datasets import Dataset, DatasetDict, arrow_dataset
from datasets.fingerprint import Hasher, generate_random_fingerprint
from datasets.table import MemoryMappedTable, concat_tables
from filelock import FileLock, Timeout
from joblib import cpu_count
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from finetune.data import arrow, caches, parts
from finetune.data.digests import TEXTS
from finetune.data.encoding import Encoder
from finetune.data.windows import COLUMN, Windows
from finetune.errors import RunError
from finetune.runtime import activity
from finetune.runtime.files import write_whole

_VERSION = 2  # increment when the same rows should yield other files
#: Rows that one process tokenizes in the time in which another starts; so many in memory, as those
#: of a prediction, are not cached.
_FEW = 5000
#: How arguments of a tokenizer end that say where its files were found.
_PLACES = ("_file", "_or_path", "_files_only", "_dir", "_hash", "token")
_FILES = "files.json"
_PARALLELISM = "TOKENIZERS_PARALLELISM"
_FORKS_WORKERS: ContextVar[bool] = ContextVar("forks_workers", default=False)


def tokenize(
    dataset: DatasetDict,
    encoder: Encoder,
    targets: Callable[[Any], np.ndarray] = np.asarray,
    windows: Windows | None = None,
    *,
    processes: int | None = None,
    about: Mapping[str, str] | None = None,
) -> DatasetDict:
    """Return splits with the outputs of the tokenizer, ``labels``, and ``length`` in tokens.

    Args:
        dataset: Splits with ``text``, or the ``texts`` of several columns, and ``label``.
        encoder: From texts to tokens.
        targets: From the labels of some rows to what a batch has as ``labels``.
        windows: Cuts longer texts into several rows instead, with the number of the text in a
            column :data:`~finetune.data.windows.COLUMN`.
        processes: How many tokenize at once; None for as many as there are cores.
        about: What ``finetune cache`` shows of them: ``source`` and ``tokenizer``.

    Raises:
        RunError: If a process that tokenizes was killed.
    """
    encode, tokenized = _Encode(encoder, targets, windows), DatasetDict()
    for split, rows in dataset.items():
        if rows.cache_files or len(rows) > _FEW:
            directory = caches.place(caches.TOKENIZED, _key(rows, encode))
            caches.use(directory, **(about or {}), split=split, rows=len(rows))
            tokenized[split] = _cached(split, rows, encode, directory, processes)
        else:
            tokenized[split] = _mapped(split, rows, encode, 1, keep_in_memory=True)
    return tokenized


def identity(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of the tokenizer without the padding and truncation that it last used."""
    facts: list[Any] = [type(tokenizer).__name__, tokenizer.truncation_side]
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        backend = json.loads(tokenizer.backend_tokenizer.to_str())
        facts.append({**backend, "padding": None, "truncation": None})
    else:  # where its files were found is no part of it
        arguments = tokenizer.init_kwargs.items()
        kwargs = {name: value for name, value in arguments if not name.endswith(_PLACES)}
        facts += [tokenizer.get_vocab(), kwargs]
    if tokenizer.split_special_tokens:
        facts.append("split_special_tokens")
    return str(Hasher.hash(json.dumps(facts, sort_keys=True, default=str)))


@dataclass(frozen=True)
class _Encode:
    """Makes columns of a batch of raw rows, in this process or in one of several."""

    encoder: Encoder
    targets: Callable[[Any], np.ndarray]
    windows: Windows | None

    def __call__(self, batch: dict[str, list[Any]], numbers: list[int]) -> dict[str, Any]:
        labels = self.targets(batch["label"])
        if self.windows is None:
            columns = dict(self.encoder(parts.read_by_model(batch, several=TEXTS in batch)))
        else:
            columns, documents = self.windows.columns(batch["text"])
            columns[COLUMN] = np.asarray(numbers)[documents]
            labels = labels[documents]
        lengths = [len(tokens) for tokens in columns["input_ids"]]
        return {**columns, "labels": labels, "length": lengths}


def _key(rows: Dataset, encode: _Encode) -> str:
    """Return the name of tokenized rows in the cache, from all that decides on what they are."""
    digests = [xxhash.xxh3_128() for _ in range(3)]  # of order, lengths and content
    for name in _columns(rows):
        digests[0].update(f"{name} {rows.features[name]}\n".encode())
        for numbers, values in arrow.pieces(rows, name):
            digests[0].update(numbers.tobytes())
            _hash(values, digests[1], digests[2])
    encoder, windows = encode.encoder, encode.windows
    cut = encoder.truncation if windows is None else f"windows {windows.shared}"
    content = [digest.hexdigest() for digest in digests]
    return str(
        Hasher.hash([*content, identity(encoder.tokenizer), encoder.max_length, cut, _VERSION])
    )


def _hash(values: pa.Array, lengths: xxhash.xxh3_128, content: xxhash.xxh3_128) -> None:
    """Add texts, lists of texts, or labels to two hashes, the same however they are stored."""
    if arrow.is_text(values.type):
        lengths.update(pc.binary_length(values).to_numpy(zero_copy_only=False).tobytes())
        content.update(b"".join(text.as_buffer() for text in values))
    elif pa.types.is_list(values.type) and arrow.is_text(values.type.value_type):
        lengths.update(pc.list_value_length(values).to_numpy(zero_copy_only=False).tobytes())
        _hash(values.flatten(), lengths, content)
    else:
        content.update("\n".join(map(str, values.to_pylist())).encode() + b"\n")


def _columns(rows: Dataset) -> list[str]:
    return [name for name in ("text", TEXTS, "label") if name in rows.column_names]


def _cached(
    split: str, rows: Dataset, encode: _Encode, directory: Path, processes: int | None
) -> Dataset:
    """Return the rows from the cache, where they are written first if need be."""
    result = _load(directory)
    if result is not None:
        return result
    with _locked(directory):
        result = _load(directory)  # which another process has written meanwhile
        if result is not None:
            return result
        most = -(-len(rows) // _FEW)
        mapped = _mapped(
            split,
            rows,
            encode,
            min(processes or cpu_count(), most),
            cache_file_name=str(directory / "rows.arrow"),
        )
        paths = [Path(file["filename"]) for file in mapped.cache_files]
        write_whole(directory / _FILES, json.dumps({p.name: p.stat().st_size for p in paths}))
    result = _load(directory)
    assert result is not None
    return result


def _load(directory: Path) -> Dataset | None:
    """Return rows from the cache; None unless all files are there as they were written."""
    try:
        sizes = json.loads((directory / _FILES).read_text(encoding="utf-8"))
        if any((directory / name).stat().st_size != size for name, size in sizes.items()):
            return None
    except (OSError, ValueError):
        return None
    tables = [MemoryMappedTable.from_file(str(directory / name)) for name in sizes]
    return Dataset(concat_tables(tables), fingerprint=directory.name)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Let one process at a time tokenize rows; the others wait for it."""
    lock = FileLock(directory / ".lock", thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        activity.say("another run is tokenizing the same data: waiting for it")
        lock.acquire(poll_interval=0.5)
    except OSError as error:
        raise caches.unwritable(error) from error
    try:
        yield
    finally:
        lock.release()


def _mapped(split: str, rows: Dataset, encode: _Encode, processes: int, **options: Any) -> Dataset:
    """Return tokenized rows; a worker's own error is raised here."""
    token = _FORKS_WORKERS.set(True)
    environment, parallelism = os.environ, os.environ.get(_PARALLELISM)
    try:
        with _progress(f"tokenizing {split}", len(rows)):
            return rows.select_columns(_columns(rows)).map(
                encode,
                with_indices=True,
                batched=True,
                batch_size=1000 if encode.windows is None else 100,  # texts, of many windows
                remove_columns=_columns(rows),
                num_proc=processes if processes > 1 else None,
                load_from_cache_file=False,
                new_fingerprint=generate_random_fingerprint(),
                **options,
            )
    except Exception as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # after which datasets 5.2 times out
            raise error.__context__ from None
        if "subprocesses has abruptly died" in str(error):
            raise RunError(
                "a process that tokenizes was killed, perhaps for lack of memory: start again "
                "with fewer of them (--preprocessing_num_workers)"
            ) from error
        raise
    finally:
        _FORKS_WORKERS.reset(token)
        os.environ = environment  # noqa: B003  # which datasets 5.2 replaces by a copy
        if parallelism is None:
            os.environ.pop(_PARALLELISM, None)


def _follow_parent() -> None:
    """In a process of ``datasets.map``, which would outlive a killed parent: end soon after it."""

    def watch(parent: int) -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    if _FORKS_WORKERS.get():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent decides
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by which the pool of the parent ends it
        threading.Thread(target=watch, args=(os.getppid(),), daemon=True).start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_follow_parent)


@contextlib.contextmanager
def _progress(work: str, total: int) -> Iterator[None]:
    """Report how far ``datasets.map`` is; its bar is the only one whom it tells (datasets 5.2)."""

    class Bar:
        def __init__(self, **options: Any) -> None:
            self.done = 0

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def update(self, rows: int) -> None:
            self.done += rows
            activity.advance(work, self.done, total)

    bar = arrow_dataset.hf_tqdm
    arrow_dataset.hf_tqdm = Bar
    try:
        yield
    finally:
        arrow_dataset.hf_tqdm = bar
