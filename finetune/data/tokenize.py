"""Tokenize the splits once, truncated but not padded: the collator pads a batch to its longest row.

``datasets.map`` tokenizes in several processes under a lock: a second run waits, then reads the
cache. The cache key depends only on the rows, the tokenizer and how texts are cut.

With several text columns, such as a pair of sentences, rows have ``texts``, the parts for the
model, and ``text``, the parts joined by line breaks for people and for the bag of words.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict, Features, List, Value
from datasets.fingerprint import Hasher
from filelock import FileLock
from joblib import cpu_count

from finetune.data import caches
from finetune.data.digests import TEXTS, fingerprint
from finetune.data.encoding import COLUMN, Encoder, Read, Windows, to_columns, tokens_read
from finetune.errors import RunError, UserError
from finetune.runtime import activity, internals

_VERSION = 4  # increment when the same rows should yield other files
#: Rows per process: a process starts in the time in which another tokenizes so many. Up to this
#: many rows in memory, e.g. in a prediction, are not cached.
_FEW = 5000
_FORKS_WORKERS: ContextVar[bool] = ContextVar("forks_workers", default=False)


def combined(dataset: DatasetDict, columns: Sequence[str]) -> DatasetDict:
    """Replace text ``columns``, in the order in which the model reads them, by ``text`` and, if
    there are several, ``texts``. Rows that lack one of them are left out later, with their labels.
    """
    if list(columns) == ["text"]:
        return dataset
    if len(columns) == 1:
        return dataset.rename_column(columns[0], "text")

    def combine(*texts: Sequence[str]) -> dict[str, list[Any]]:
        rows = list(map(list, zip(*texts, strict=True)))
        return {"text": ["\n".join(filter(None, row)) for row in rows], TEXTS: rows}

    splits = DatasetDict()
    for split, rows in dataset.items():
        features = {name: kind for name, kind in rows.features.items() if name not in columns}
        features |= {"text": Value("string"), TEXTS: List(Value("string"))}
        with internals.map_progress(lambda count: None):  # no bar
            splits[split] = rows.map(
                combine,
                batched=True,
                input_columns=list(columns),
                remove_columns=list(columns),
                features=Features(features),
            )
    return splits


def read_by_model(rows: dict[str, list[Any]] | Dataset) -> list[Read]:
    """Return the input of the model in raw rows: ``texts`` if there are any, else ``text``."""
    columns = rows.column_names if isinstance(rows, Dataset) else list(rows)
    texts = list(rows[TEXTS if TEXTS in columns else "text"][:])
    if TEXTS in columns and list(rows["text"][:]) != list(map("\n".join, texts)):
        raise UserError(f"the recipe changes 'text' but not '{TEXTS}', which the model reads")
    return texts


def tokenize(
    dataset: DatasetDict,
    encoder: Encoder,
    targets: Callable[[Any], np.ndarray],
    windows: Windows | None,
    processes: int | None,
) -> DatasetDict:
    """Return the splits with the columns of the tokenizer, ``labels``, and ``length`` in tokens.

    Args:
        dataset: Splits with ``text`` or ``texts``, and ``label``.
        encoder: Tokenizes the texts.
        targets: Converts the labels of a batch of rows to ``labels``.
        windows: Cuts long texts into several rows with a column ``document``; None truncates them.
        processes: The number of processes; None for the number of cores.

    Raises:
        RunError: If a process that tokenizes was killed.
        UserError: If the cache cannot be written.
    """
    encode = partial(_encode, encoder=encoder, targets=targets, windows=windows)
    cut = encoder.tokenizer.truncation_side if windows is None else f"windows {windows.shared}"
    facts = [Hasher.hash(encoder.tokenizer), encoder.max_length, cut, _VERSION]
    facts.append(encoder.is_head_tail)
    content = fingerprint(dataset, "text")
    tokenized = DatasetDict()
    for split, rows in dataset.items():
        rows = rows.select_columns([n for n in ("text", TEXTS, "label") if n in rows.column_names])
        work = f"tokenizing {split}"
        key = Hasher.hash([content, split, str(rows.features), *facts])
        # small batches, because a text may have megabytes or many windows
        options = dict(batch_size=100, new_fingerprint=key)
        if not rows.cache_files and len(rows) <= _FEW:
            tokenized[split] = _map(rows, encode, work, keep_in_memory=True, **options)
            continue
        directory = caches.directory("finetune-tokenized", key)
        count = min(processes or cpu_count(), -(-len(rows) // _FEW))
        num_proc = count if count > 1 else None  # with 1, `map` would start a process
        options |= dict(num_proc=num_proc, cache_file_name=f"{directory}/rows.arrow")
        try:
            with FileLock(directory / ".lock"):
                with contextlib.suppress(pa.ArrowInvalid, OSError):
                    tokenized[split] = _map(rows, encode, work, **options)
                if split not in tokenized or len(tokens_read(tokenized[split])) != len(rows):
                    for path in directory.glob("*.arrow"):  # truncated when the machine crashed
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
    if windows is None:
        columns: dict[str, Any] = dict(encoder(read_by_model(batch)))
        columns["labels"] = targets(batch["label"])
    else:
        places, rows = zip(*windows.rows(batch["text"], batch["label"]), strict=True)
        columns = to_columns(rows)
        columns[COLUMN] = np.asarray(numbers)[list(places)]
        if "labels" not in columns:
            columns["labels"] = targets(batch["label"])[list(places)]
    return {**columns, "length": list(map(len, columns["input_ids"]))}


def _map(rows: Dataset, encode: Callable[..., Any], work: str, **options: Any) -> Dataset:
    token = _FORKS_WORKERS.set(True)
    finished_rows = 0

    def update(count: int) -> None:
        nonlocal finished_rows
        finished_rows += count
        activity.advance(work, finished_rows, len(rows))

    try:
        options |= dict(with_indices=True, batched=True, load_from_cache_file=True)
        with internals.map_progress(update), internals.restored_environment():
            return rows.map(encode, remove_columns=rows.column_names, **options)
    except Exception as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # datasets 5.2 raises a timeout then
            raise error.__context__ from None
        if "subprocesses has abruptly died" in str(error):
            raise RunError(
                "a process that tokenizes was killed, probably out of memory: start again with "
                "fewer processes (--preprocessing_num_workers N)"
            ) from error
        raise
    finally:
        _FORKS_WORKERS.reset(token)


def _end_with_parent() -> None:
    """End a ``datasets.map`` worker soon after its parent, whose lock it would keep."""

    def watch(parent: int) -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    if _FORKS_WORKERS.get():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the parent decides
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the pool of the parent sends it
        threading.Thread(target=watch, args=(os.getppid(),), daemon=True).start()


os.register_at_fork(after_in_child=_end_with_parent)
