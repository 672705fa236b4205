"""Tokenize the splits once, truncated but not padded: each batch is padded to its longest row.

``datasets.map`` does it, in several processes, under a lock: who comes second waits, and reads what
is there. What is cached depends on nothing but the rows, the tokenizer and how texts are cut.

Rows of several columns of text, such as a pair of sentences, have ``texts``, the parts that the
model reads, beside ``text``, in which people and the bag of words read them joined by line breaks.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict, Features, List, Value, arrow_dataset
from datasets.fingerprint import Hasher
from filelock import FileLock
from joblib import cpu_count

from finetune.data import caches
from finetune.data.digests import TEXTS, fingerprint
from finetune.data.encoding import COLUMN, Encoder, Read, Windows, first_lengths
from finetune.errors import RunError, UserError
from finetune.runtime import activity

_VERSION = 3  # increment when the same rows should yield other files
#: Rows that one process tokenizes in the time in which another starts; so many in memory, as those
#: of a prediction, are not cached.
_FEW = 5000
_FORKS_WORKERS: ContextVar[bool] = ContextVar("forks_workers", default=False)


def combined(dataset: DatasetDict, columns: Sequence[str]) -> DatasetDict:
    """Return ``dataset`` with ``text`` and ``texts`` instead of ``columns``, which are texts, none
    missing, in the order in which the model reads them.
    """

    def combine(*texts: Sequence[str]) -> dict[str, list[Any]]:
        rows = [list(row) for row in zip(*texts, strict=True)]
        return {"text": ["\n".join(row) for row in rows], TEXTS: rows}

    splits = DatasetDict()
    for split, rows in dataset.items():
        features = {name: kind for name, kind in rows.features.items() if name not in columns}
        splits[split] = rows.map(
            combine,
            batched=True,
            input_columns=[*columns],
            remove_columns=[*columns],
            features=Features({**features, "text": Value("string"), TEXTS: List(Value("string"))}),
            new_fingerprint=Hasher.hash([rows._fingerprint, [*columns], "parts"]),
        )
    return splits


def read_by_model(rows: dict[str, list[Any]] | Dataset) -> list[Read]:
    """Return what the model reads of raw rows: their ``text``, or their several ``texts``."""
    columns = rows.column_names if isinstance(rows, Dataset) else [*rows]
    texts = list(rows[TEXTS if TEXTS in columns else "text"][:])
    if TEXTS in columns and list(rows["text"][:]) != ["\n".join(row) for row in texts]:
        raise UserError(f"the recipe changes 'text' and not '{TEXTS}', which is tokenized")
    return texts


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
    encode = partial(_encode, encoder=encoder, targets=targets, windows=windows)
    cut = encoder.truncation if windows is None else f"windows {windows.shared}"
    facts = [Hasher.hash(encoder.tokenizer), encoder.max_length, cut, _VERSION]
    tokenized = DatasetDict()
    for split, rows in dataset.items():
        read = [name for name in ("text", TEXTS, "label") if name in rows.column_names]
        rows = rows.select_columns(read)
        work = f"tokenizing {split}"
        key = Hasher.hash([fingerprint(dataset, "text"), split, str(rows.features), *facts])
        # few texts at once: one may have megabytes, or many windows
        options = dict(batch_size=100, new_fingerprint=key)
        if not rows.cache_files and len(rows) <= _FEW:
            tokenized[split] = _map(rows, encode, work, keep_in_memory=True, **options)
            continue
        directory = caches.directory(caches.TOKENIZED, key)
        count = min(processes or cpu_count(), -(-len(rows) // _FEW))
        num_proc = count if count > 1 else None  # 1 would start another process
        options |= dict(num_proc=num_proc, cache_file_name=f"{directory}/rows.arrow")
        try:
            with FileLock(directory / ".lock"):
                with contextlib.suppress(pa.ArrowInvalid, OSError):
                    tokenized[split] = _map(rows, encode, work, **options)
                if split not in tokenized or len(first_lengths(tokenized[split])) != len(rows):
                    for path in directory.glob("*.arrow"):  # cut off by a crash of the machine
                        path.unlink()
                    tokenized[split] = _map(rows, encode, work, **options)
        except OSError as error:
            raise caches.unwritable(error) from error
    return tokenized


def _encode(
    batch: dict[str, list[Any]],
    numbers: list[int],
    encoder: Encoder,
    targets: Callable[[Any], np.ndarray],
    windows: Windows | None,
) -> dict[str, Any]:
    labels = targets(batch["label"])
    if windows is None:
        columns: dict[str, Any] = dict(encoder(read_by_model(batch)))
    else:
        places, rows = zip(*windows.rows(batch["text"]), strict=True)
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        columns[COLUMN] = np.asarray(numbers)[[*places]]
        labels = labels[[*places]]
    return {**columns, "labels": labels, "length": [*map(len, columns["input_ids"])]}


def _map(rows: Dataset, encode: Callable[..., Any], work: str, **options: Any) -> Dataset:
    token = _FORKS_WORKERS.set(True)
    environment = os.environ
    parallelism = os.environ.get("TOKENIZERS_PARALLELISM")
    bar = arrow_dataset.hf_tqdm
    finished_rows = 0

    def update(count: int) -> None:
        nonlocal finished_rows
        finished_rows += count
        activity.advance(work, finished_rows, len(rows))

    # nothing else is told by `datasets.map` how far it is
    arrow_dataset.hf_tqdm = lambda **_: contextlib.nullcontext(SimpleNamespace(update=update))
    try:
        options |= dict(with_indices=True, batched=True, load_from_cache_file=True)
        return rows.map(encode, remove_columns=rows.column_names, **options)
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
        arrow_dataset.hf_tqdm = bar
        _FORKS_WORKERS.reset(token)
        os.environ = environment  # noqa: B003  # which datasets 5.2 replaces by a copy
        if parallelism is None:
            os.environ.pop("TOKENIZERS_PARALLELISM", None)


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


os.register_at_fork(after_in_child=_end_with_parent)
