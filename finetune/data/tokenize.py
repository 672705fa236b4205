"""Tokenize the splits once, truncated but not padded: each batch is padded to its longest row.

Rows are tokenized on all cores, a file of some thousand rows at a time, and a file that is written
is not written again: not after a kill, nor by another run of the same data, tokenizer and length.
What is in the files does not depend on how many processes, or machines, wrote them.

A text of megabytes is not tokenized whole, see :mod:`finetune.data.shortening`.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict
from datasets.fingerprint import Hasher
from datasets.table import MemoryMappedTable, concat_tables
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from finetune.data import caches, parts, seals
from finetune.data.digests import TEXTS, fingerprint
from finetune.data.encoding import Encoder
from finetune.runtime import activity, distributed, workers
from finetune.runtime.files import replacing

if TYPE_CHECKING:
    from finetune.data.windows import Windows

#: Rows of a file in the cache: what a process that is killed has to tokenize again. Of fewer rows
#: no other process is started.
PART = 5000
#: Files of a split, at most.
_MOST_PARTS = 1000
#: Rows that are tokenized, and written, at once.
_BATCH = 1000
_VERSION = 1  # increment when the same rows should yield other files
#: How arguments of a tokenizer end that say where its files were found.
_FOUND = ("_file", "_or_path", "_files_only", "_dir", "_hash", "token")
#: As ``datasets`` stores them.
_TYPES = {
    "input_ids": pa.list_(pa.int32()),
    **dict.fromkeys(
        ("attention_mask", "token_type_ids", "special_tokens_mask"), pa.list_(pa.int8())
    ),
}
#: Makes columns of a batch of raw rows whose numbers begin with that.
_Encode = Callable[[dict[str, list[Any]], int], Mapping[str, Any]]


@dataclass(frozen=True)
class _Part:
    """Some rows of a split, and the file that holds them tokenized."""

    split: str
    start: int
    stop: int
    path: Path

    @property
    def rows(self) -> int:
        """How many it has."""
        return self.stop - self.start


def tokenize(
    dataset: DatasetDict,
    encoder: Encoder,
    targets: Callable[[Any], np.ndarray] = np.asarray,
    note: Callable[[str], object] = lambda sentence: None,
    windows: Windows | None = None,
    *,
    processes: int | None = None,
    about: Mapping[str, str] | None = None,
) -> DatasetDict:
    """Return splits with the outputs of the tokenizer, ``labels``, and ``length`` in tokens.

    The cache key is data, tokenizer and how rows are truncated or cut into windows, so every rank
    and every later run reuses the result. Few rows that are in memory are not cached.

    Args:
        dataset: Splits with ``text``, or the ``texts`` of several columns, and ``label``.
        encoder: From texts to tokens.
        targets: From the labels of some rows to what a batch has as ``labels``.
        note: Is given a sentence about a cache that was damaged.
        windows: Cuts longer texts into several rows instead, with the number of the text in a
            column :data:`~finetune.data.windows.COLUMN`.
        processes: How many tokenize at once; None for as many as there are cores.
        about: What ``finetune cache`` shows of them: ``source`` and ``tokenizer``.
    """
    encode = _encoding(encoder, targets, windows)
    cached = {name: rows for name, rows in dataset.items() if _is_cached(rows)}
    files: dict[str, list[_Part]] = {}
    how = _how(encoder, windows) if cached else []
    for split, rows in cached.items():
        directory = caches.place(caches.TOKENIZED, _key(split, rows, how))
        caches.use(directory, **(about or {}), split=split, rows=len(rows))
        files[split] = _parts_of(split, len(rows), directory)
    _make([part for each in files.values() for part in each], cached, encode, note, processes)
    tokenized = DatasetDict()
    for split, rows in dataset.items():
        if split in files:
            tokenized[split] = _mapped(files[split])
        else:
            tokenized[split] = _in_memory(split, rows, encode)
    return tokenized


def identity(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of the tokenizer without the padding and truncation that it last used."""
    parts: list[Any] = [type(tokenizer).__name__, tokenizer.truncation_side]
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        backend = json.loads(tokenizer.backend_tokenizer.to_str())
        parts.append({**backend, "padding": None, "truncation": None})
    else:  # how it was found, and where, is no part of it
        known = tokenizer.init_kwargs.items()
        kwargs = {name: each for name, each in known if not name.endswith(_FOUND)}
        parts += [tokenizer.get_vocab(), kwargs]
    if tokenizer.split_special_tokens:
        parts.append("split_special_tokens")
    return str(Hasher.hash(json.dumps(parts, sort_keys=True, default=str)))


def _is_cached(rows: Dataset) -> bool:
    return bool(len(rows)) and (bool(rows.cache_files) or len(rows) > PART)


def _how(encoder: Encoder, windows: Windows | None) -> list[Any]:
    """Return what decides, besides the rows, on what is in the files."""
    how: list[Any] = [identity(encoder.tokenizer), encoder.max_length, _VERSION]
    if windows is not None:
        how += ["windows", windows.shared]
    elif encoder.truncation == "head_tail":  # the others are sides of the tokenizer
        how.append(encoder.truncation)
    return how


def _key(split: str, rows: Dataset, how: list[Any]) -> str:
    """Return the name of a split in the cache."""
    content = fingerprint(DatasetDict({split: rows}), "text")
    return str(Hasher.hash([content, str(rows.features["label"]), *how]))


def _mapped(files: list[_Part]) -> Dataset:
    """Return the rows of a split; joining data sets of each file takes 20 ms a file."""
    tables = [MemoryMappedTable.from_file(str(part.path)) for part in files]
    return Dataset(concat_tables(tables), fingerprint=files[0].path.parent.name)


def _parts_of(split: str, rows: int, directory: Path) -> list[_Part]:
    """Return the files of a split, which depend on nothing but how many rows it has."""
    size = max(PART, -(-rows // _MOST_PARTS))
    bounds = [(start, min(start + size, rows)) for start in range(0, rows, size)]
    return [_Part(split, *each, directory / "{}-{}.arrow".format(*each)) for each in bounds]


def _make(
    files: list[_Part],
    dataset: Mapping[str, Dataset],
    encode: _Encode,
    note: Callable[[str], object],
    processes: int | None,
) -> None:
    """Write the files that are not there whole.

    While another run of this machine writes them, wait for it; machines that share the cache each
    write some, and wait for the last ones of the others.
    """
    missing = [part for part in files if not seals.intact(part.path, note)]
    if not missing:
        return
    distributed.invite()
    progress = _Tokenizing(dataset)
    with contextlib.ExitStack() as turn:
        # sorted, so that no two runs wait for each other
        for directory in sorted({part.path.parent for part in missing}):
            turn.enter_context(caches.making(directory))
        missing = [part for part in missing if not seals.intact(part.path, note)]
        progress.begin(missing)
        waited = False
        while missing:
            rows = sum(part.rows for part in missing)
            written = Counter[_Part]()

            def advance(part: _Part, rows: int, written: Counter[_Part] = written) -> None:
                written[part] += rows
                progress.advance(part, rows)

            workers.share_out(
                functools.partial(_write, dataset=dataset, encode=encode),
                missing,
                min(processes or workers.available(), -(-rows // PART)),
                advance,
            )
            others = [part for part in missing if written[part] < part.rows]
            missing = [part for part in others if not seals.intact(part.path, note)]
            for part in set(others) - set(missing):
                progress.advance(part, part.rows)
            if missing:
                directory = missing[0].path.parent
                caches.wait_for_other_machines(directory, len(missing), tell=not waited)
                waited = True


class _Tokenizing:
    """Tells how far the splits are.

    Args:
        dataset: The splits.
    """

    def __init__(self, dataset: Mapping[str, Dataset]) -> None:
        self._rows = {split: len(rows) for split, rows in dataset.items()}
        self._done = dict(self._rows)

    def begin(self, missing: list[_Part]) -> None:
        """Count what is missing as not done."""
        for part in missing:
            self._done[part.split] -= part.rows

    def advance(self, part: _Part, rows: int) -> None:
        """Count rows of a part as done, and tell."""
        self._done[part.split] += rows
        activity.advance(f"tokenizing {part.split}", self._done[part.split], self._rows[part.split])


def _write(part: _Part, dataset: Mapping[str, Dataset], encode: _Encode) -> Iterator[int]:
    """Write a file whole or not at all, unless another machine does; yield the rows of each batch
    that is done.
    """
    with caches.claimed(part.path, part.start) as mine:
        if not mine or seals.intact(part.path, lambda sentence: None):
            return
        rows = dataset[part.split].select(range(part.start, part.stop))
        with replacing(part.path) as new, pa.OSFile(str(new), "wb") as file:
            yield from _written(rows, part.start, encode, file)
        seals.seal(part.path)


def _in_memory(split: str, rows: Dataset, encode: _Encode) -> Dataset:
    if not len(rows):
        return rows.remove_columns(rows.column_names)
    sink = pa.BufferOutputStream()
    done = 0
    for count in _written(rows, 0, encode, sink):
        done += count
        activity.advance(f"tokenizing {split}", done, len(rows))
    return Dataset.from_buffer(sink.getvalue())


def _written(rows: Dataset, start: int, encode: _Encode, sink: Any) -> Iterator[int]:
    """Write rows, tokenized, batch by batch; yield how many raw rows each batch had."""
    names = [name for name in ("text", TEXTS, "label") if name in rows.column_names]
    writer = schema = None
    for batch in rows.select_columns(names).iter(batch_size=_BATCH):
        assert isinstance(batch, dict)
        columns = encode(batch, start)
        table = pa.table({name: _array(name, values) for name, values in columns.items()})
        if writer is None:
            writer, schema = pa.ipc.new_stream(sink, table.schema), table.schema
        writer.write_table(table.cast(schema), max_chunksize=_BATCH)
        start += len(batch["label"])
        yield len(batch["label"])
    assert writer is not None
    writer.close()


def _array(name: str, values: Any) -> pa.Array:
    if isinstance(values, np.ndarray) and values.ndim > 1:
        values = list(values)
    return pa.array(values, _TYPES.get(name))


def _encoding(
    encoder: Encoder, targets: Callable[[Any], np.ndarray], windows: Windows | None
) -> _Encode:
    """Return what makes columns of a batch of raw rows."""

    def encode(batch: dict[str, list[Any]], start: int) -> Mapping[str, Any]:
        encoded = encoder(parts.read_by_model(batch, several=TEXTS in batch))
        return {
            **encoded,
            "labels": targets(batch["label"]),
            "length": [len(tokens) for tokens in encoded["input_ids"]],
        }

    if windows is None:
        return encode
    from finetune.data.windows import encode as encode_windows

    return functools.partial(encode_windows, windows=windows, targets=targets)
