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
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict, arrow_dataset
from datasets.fingerprint import Hasher
from filelock import FileLock, Timeout
from joblib import cpu_count
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from finetune.data import caches, parts
from finetune.data.digests import TEXTS, fingerprint
from finetune.data.encoding import Encoder
from finetune.data.windows import COLUMN, Windows, documents_of
from finetune.errors import RunError
from finetune.runtime import activity

_VERSION = 3  # increment when the same rows should yield other files
#: Rows that one process tokenizes in the time in which another starts; so many in memory, as those
#: of a prediction, are not cached.
_FEW = 5000
#: How arguments of a tokenizer end that say where its files are.
_PLACES = ("_file", "_or_path", "_files_only", "_dir", "_hash", "token")
_PARALLELISM = "TOKENIZERS_PARALLELISM"
_FORKS_WORKERS: ContextVar[bool] = ContextVar("forks_workers", default=False)


def tokenize(
    dataset: DatasetDict,
    encoder: Encoder,
    targets: Callable[[Any], np.ndarray] = np.asarray,
    windows: Windows | None = None,
    *,
    processes: int | None = None,
) -> DatasetDict:
    """Return splits with the outputs of the tokenizer, ``labels``, and ``length`` in tokens.

    Args:
        dataset: Splits with ``text``, or the ``texts`` of several columns, and ``label``.
        encoder: From texts to tokens.
        targets: From the labels of some rows to what a batch has as ``labels``.
        windows: Cuts longer texts into several rows instead, with a column ``document``.
        processes: How many tokenize at once; None for as many as there are cores.

    Raises:
        RunError: If a process that tokenizes was killed.
        UserError: If the cache cannot be written.
    """
    encode, tokenized = _Encode(encoder, targets, windows), DatasetDict()
    for split, rows in dataset.items():
        read = [name for name in ("text", TEXTS, "label") if name in rows.column_names]
        rows, work = rows.select_columns(read), f"tokenizing {split}"
        key = _key(dataset, rows, split, encode)
        if not rows.cache_files and len(rows) <= _FEW:
            tokenized[split] = _map(rows, encode, work, new_fingerprint=key, keep_in_memory=True)
            continue
        directory = caches.place(caches.TOKENIZED, key)
        caches.make(directory)
        count = min(processes or cpu_count(), -(-len(rows) // _FEW))
        options = dict(new_fingerprint=key, cache_file_name=f"{directory}/rows.arrow")
        try:
            with _lock(directory):
                try:
                    tokenized[split] = _map(rows, encode, work, count, **options)
                    documents = documents_of(tokenized[split])
                    texts = tokenized[split] if documents is None else np.unique(documents)
                    is_damaged = len(texts) != len(rows)
                except (pa.ArrowInvalid, OSError):
                    is_damaged = True
                if is_damaged:
                    for path in directory.glob("*.arrow"):
                        path.unlink()
                    tokenized[split] = _map(rows, encode, work, count, **options)
        except OSError as error:
            raise caches.unwritable(error) from error
    return tokenized


@contextlib.contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """Let one process at a time tokenize rows; the others wait, and say so."""
    lock = FileLock(directory / ".lock", thread_local=False)
    try:
        lock.acquire(timeout=1)
    except Timeout:
        activity.say("another run is tokenizing the same rows; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


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


def _key(dataset: DatasetDict, rows: Dataset, split: str, encode: _Encode) -> str:
    """Return the name of tokenized rows in the cache, from all that decides on what they are."""
    encoder, windows = encode.encoder, encode.windows
    cut = encoder.truncation if windows is None else f"windows {windows.shared}"
    facts = [fingerprint(dataset, "text"), split, str(rows.features), identity(encoder.tokenizer)]
    return str(Hasher.hash([*facts, encoder.max_length, cut, _VERSION]))


def _map(rows: Dataset, encode: _Encode, work: str, processes: int = 1, **options: Any) -> Dataset:
    """Return tokenized rows, those from the cache if they are there."""
    token = _FORKS_WORKERS.set(True)
    environment, parallelism = os.environ, os.environ.get(_PARALLELISM)
    try:
        with _progress(work, len(rows)):
            return rows.map(
                encode,
                with_indices=True,
                batched=True,
                batch_size=1000 if encode.windows is None else 100,  # texts, of many windows
                remove_columns=rows.column_names,
                num_proc=processes if processes > 1 else None,
                load_from_cache_file=True,
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


def _end_with_parent() -> None:
    """End a process of ``datasets.map`` soon after its parent, whose lock it would hold forever."""

    def watch(parent: int) -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    if _FORKS_WORKERS.get():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent decides
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by which the pool of the parent ends it
        threading.Thread(target=watch, args=(os.getppid(),), daemon=True).start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_end_with_parent)


@contextlib.contextmanager
def _progress(work: str, total: int) -> Iterator[None]:
    """Report how far ``datasets.map`` is in place of its bar, the only one it tells (5.2)."""

    class Bar(contextlib.nullcontext[Any]):
        def __init__(self, **options: Any) -> None:
            super().__init__(self)
            self.done = 0

        def update(self, rows: int) -> None:
            self.done += rows
            activity.advance(work, self.done, total)

    bar = arrow_dataset.hf_tqdm
    arrow_dataset.hf_tqdm = Bar
    try:
        yield
    finally:
        arrow_dataset.hf_tqdm = bar
