"""Write rows with their predictions as CSV, TSV, JSON lines or parquet, resumably.

Finished chunks are kept beside the output, in ``OUTPUT.part/``, one file per chunk. Each file is
written atomically, so a resumed prediction, with any number of processes, skips the existing ones.
The output appears when all are done: joined in that directory, then moved into place.
"""

from __future__ import annotations

import contextlib
import csv
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from finetune.data import delimited
from finetune.data.files import Chunk, Rows
from finetune.errors import UserError
from finetune.predicting.request import Added
from finetune.runtime.files import refuse_link, replacing, to_json, write_whole

_MANIFEST = "manifest.json"
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_PARTS_OF_A_GROUP = 16


@dataclass(frozen=True)
class PartialOutput:
    """The parts of one output.

    Attributes:
        output: The file that they will become.
        csv_safe: Whether to write no formulas, see :func:`write_rows`.
    """

    output: Path
    csv_safe: bool = False
    _known: dict[str, Path] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def directory(self) -> Path:
        """Beside the output, on the same disk."""
        return self.output.with_name(self.output.name + ".part")

    def begin(self, facts: Mapping[str, Any], resume: bool) -> None:
        """Create the directory, or check the one that an interrupted prediction left.

        Args:
            facts: Everything the predictions depend on, by names that a user knows.
            resume: Whether to continue with what is there.

        Raises:
            UserError: if an interrupted prediction is there, and ``resume`` is false or it differs.
        """
        if not self.output.parent.is_dir():
            raise UserError(f"--output {self.output}: no such directory: {self.output.parent}")
        refuse_csv_safe(self.output.suffix, self.csv_safe)
        refuse_link(self.directory)
        manifest = self.directory / _MANIFEST
        if not self.directory.exists():
            self.directory.mkdir()
            write_whole(manifest, to_json(facts, indent=2) + "\n")
            return
        if not resume:
            raise UserError(
                f"{self.directory} holds an interrupted prediction: add --resume to continue it, "
                "or remove that directory"
            )
        before = json.loads(manifest.read_text(encoding="utf-8")) if manifest.exists() else {}
        if changed := [
            f"--resume: {name} has changed (was {before.get(name)}, is {now}); remove "
            f"{self.directory} to start again"
            for name, now in json.loads(to_json(facts)).items()
            if now != before.get(name)
        ]:
            raise UserError(*changed)

    @contextlib.contextmanager
    def after_a_mistake(self, removes: bool = True) -> Iterator[None]:
        """On a mistake midway, say where the finished parts are; remove the directory if none are.

        Args:
            removes: Whether this process may do so: one does, of several that write.

        Raises:
            UserError: the mistake.
        """
        try:
            yield
        except UserError as error:
            if removes and not any(self._done()):
                shutil.rmtree(self.directory)
                raise
            raise UserError(
                *error.mistakes,
                f"finished parts are kept in {self.directory}; remove it if you change INPUT",
            ) from error

    def has(self, number: int) -> bool:
        """Return whether a chunk is done."""
        return self._path(number).exists()

    def write(self, columns: Sequence[str], chunk: Chunk, added: Added) -> None:
        """Write a chunk with its predictions.

        Args:
            columns: Of the input.
            chunk: The rows.
            added: What was predicted.

        Raises:
            UserError: if the format cannot store a column or the types of its values.
        """
        path, suffix = self._path(chunk.number), self.output.suffix
        with replacing(path) as new:
            if suffix == ".parquet":
                _write_parquet(new, columns, chunk, added)
                if first := self._known.get("first") or next(self._done(), None):
                    _schema([first, new])  # what cannot be joined is told now
                self._known["first"] = first or path  # a directory of many parts is not listed
            else:
                with new.open("w", encoding="utf-8", newline="") as file:
                    write_rows(file, suffix, columns, chunk, added, self.csv_safe)

    def finish(self, count: int, columns: Sequence[str]) -> None:
        """Join the parts into the output, a few in memory at a time, and remove the directory.

        Args:
            count: Of the chunks, all of them done.
            columns: Of the input and added.
        """
        parts = [self._path(number) for number in range(count)]
        with replacing(self.output, self.directory) as whole:
            if self.output.suffix == ".parquet":
                with pq.ParquetWriter(whole, schema := _schema(parts)) as writer:
                    for start in range(0, count, _PARTS_OF_A_GROUP):
                        group = parts[start : start + _PARTS_OF_A_GROUP]
                        writer.write_table(pq.read_table(group, schema=schema))
            else:
                with whole.open("w", encoding="utf-8", newline="") as file:
                    write_header(file, self.output.suffix, columns, self.csv_safe)
                with whole.open("ab") as joined:
                    joined.writelines(part.read_bytes() for part in parts)
        shutil.rmtree(self.directory)

    def _done(self) -> Iterator[Path]:
        return self.directory.glob(f"[0-9]*{self.output.suffix}")

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:08d}{self.output.suffix}"


def of_screen(kind: str) -> str:
    """Return the format of the standard output, for an input of this kind."""
    return {".jsonl": ".jsonl", ".tsv": ".tsv", ".txt": ".tsv", "-": ".tsv"}.get(kind, ".csv")


def refuse_csv_safe(suffix: str, csv_safe: bool) -> None:
    """Refuse ``--csv_safe`` where no spreadsheet would read formulas.

    Raises:
        UserError: if the output is neither ``.csv`` nor ``.tsv``.
    """
    if csv_safe and suffix not in _SEPARATORS:
        raise UserError(f"--csv_safe: the output is {suffix}; expected .csv or .tsv")


def write_header(
    file: IO[str], suffix: str, columns: Sequence[str], csv_safe: bool = False
) -> None:
    """Write the names of the columns, where the format has them on top."""
    if suffix in _SEPARATORS:
        _delimited(file, suffix).writerow(map(_harmless, columns) if csv_safe else columns)


def write_rows(
    file: IO[str],
    suffix: str,
    columns: Sequence[str],
    chunk: Chunk,
    added: Added,
    csv_safe: bool = False,
) -> None:
    """Write the rows of a chunk as text.

    Args:
        file: Opened with ``newline=""``.
        suffix: Of a text format.
        columns: Of the input.
        chunk: The rows.
        added: What was predicted.
        csv_safe: Whether to put an apostrophe before what a spreadsheet would run as a formula.

    Raises:
        UserError: if a row has columns that the first rows lack and the format cannot store.
    """
    rows = chunk.dictionaries()
    _refuse_taken(rows, columns, added, others=suffix == ".jsonl")
    new = zip(*added.values(), strict=True)
    whole = (
        {**row, **dict(zip(added, more, strict=True))} for row, more in zip(rows, new, strict=True)
    )
    if suffix == ".jsonl":
        file.writelines(_json(row) + "\n" for row in whole)
    else:
        names, of_value = [*columns, *added], _harmless if csv_safe else _cell
        _delimited(file, suffix).writerows(
            [of_value(row.get(name)) for name in names] for row in whole
        )


def _write_parquet(path: Path, columns: Sequence[str], chunk: Chunk, added: Added) -> None:
    if isinstance(chunk.rows, list):
        _refuse_taken(chunk.rows, columns, added, others=True)
    try:
        table = chunk.table()
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise _no_one_type(error) from error
    for name, values in added.items():
        table = table.append_column(name, pa.array(values))
    metadata = dict(table.schema.metadata or {})
    metadata.pop(b"huggingface", None)  # `datasets` would miss the new columns in it
    pq.write_table(table.replace_schema_metadata(metadata), path)


def _schema(parts: Sequence[Path]) -> pa.Schema:
    """Return the schema that holds the rows of all these parquet files."""
    schemas = [pq.read_schema(part) for part in parts]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise _no_one_type(error) from error


def _delimited(file: IO[str], suffix: str) -> Any:
    # with this end of a line, fields that hold either character of it are quoted; a newline alone
    # is written, row by row
    unix = SimpleNamespace(write=lambda row: file.write(row.removesuffix("\r\n") + "\n"))
    return csv.writer(unix, delimiter=_SEPARATORS[suffix], lineterminator="\r\n")


def _cell(value: Any) -> Any:
    return _json(value) if isinstance(value, (list, dict, bytes)) else value


def _harmless(value: Any) -> Any:
    return delimited.harmless(_cell(value))


def _json(value: Any) -> str:
    return to_json(value, ensure_ascii=False, default=_as_text)


def _as_text(value: Any) -> str:
    """Of a date or a decimal number; JSON has none."""
    if isinstance(value, bytes):
        raise UserError(
            "a column holds bytes, which a text file cannot store: write parquet, e.g. "
            "--output predicted.parquet"
        )
    return str(value)


def _refuse_taken(rows: Rows, columns: Sequence[str], added: Added, others: bool) -> None:
    """JSON lines may have other keys in each line; ``others``: there is a place for them."""
    known = set(columns)
    for row in rows:
        for name in row.keys() - known:
            if name in added or not others:
                advice = (
                    "it is the name of an added column"
                    if name in added
                    else "write JSON lines, e.g. --output predicted.jsonl"
                )
                raise UserError(f"a row has a column '{name}' that the first rows lack: {advice}")


def _no_one_type(error: Exception) -> UserError:
    return UserError(
        f"a column has values of several types ({error}): write JSON lines, e.g. "
        "--output predicted.jsonl"
    )
