"""Write rows with their predictions as CSV, TSV, JSON lines or parquet, resumably.

Finished chunks are stored beside the output, in ``OUTPUT.part/``, one file per chunk. Each file is
written atomically, so a resumed prediction, with any number of processes, skips the existing ones.
The output appears when all are done: joined in that directory, then moved into place.
"""

from __future__ import annotations

import contextlib
import csv
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from finetune.errors import UserError
from finetune.predicting.inputs import STANDARD_INPUT, Chunk
from finetune.runtime.files import refuse_link, replacing, to_json, write_whole
from finetune.runtime.formats import SEPARATORS, escape_formula

#: The values of the added columns, by name.
Added = Mapping[str, list[Any]]
_MANIFEST = "manifest.json"
_PARTS_OF_A_GROUP = 16


@dataclass(frozen=True)
class PartialOutput:
    """The parts of one output.

    Attributes:
        output: The file that they will become.
        csv_safe: Whether to escape formulas, see :func:`write_rows`.
    """

    output: Path
    csv_safe: bool = False

    @property
    def directory(self) -> Path:
        """Beside the output, on the same disk."""
        return self.output.with_name(self.output.name + ".part")

    def begin(self, facts: Mapping[str, Any], resume: bool) -> None:
        """Create the directory, or check the one that an interrupted prediction left.

        Args:
            facts: Everything that the predictions depend on, by names that a user knows.
            resume: Whether to continue an interrupted prediction.

        Raises:
            UserError: If there is an interrupted prediction, and ``resume`` is false or it differs.
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
        recorded = json.loads(manifest.read_text(encoding="utf-8")) if manifest.exists() else {}
        if changes := [
            f"--resume: {name} has changed (was {recorded.get(name)}, is {value}); remove "
            f"{self.directory} to start again"
            for name, value in json.loads(to_json(facts)).items()
            if value != recorded.get(name)
        ]:
            raise UserError(*changes)

    @contextlib.contextmanager
    def explain_mistakes(self, is_remover: bool = True) -> Iterator[None]:
        """On a mistake, name the directory of the finished parts, or remove it if there are none.

        Args:
            is_remover: Whether this process may remove it: one may, of several that write.

        Raises:
            UserError: The mistake.
        """
        try:
            yield
        except UserError as error:
            if is_remover and not any(self.directory.glob(f"[0-9]*{self.output.suffix}")):
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

        Raises:
            UserError: If the format cannot store a column.
        """
        with replacing(self._path(chunk.number)) as new:
            if self.output.suffix == ".parquet":
                pq.write_table(_table(chunk, added), new)
            else:
                with new.open("w", encoding="utf-8", newline="") as file:
                    write_rows(file, self.output.suffix, columns, chunk, added, self.csv_safe)

    def finish(self, count: int, columns: Sequence[str]) -> None:
        """Join the parts into the output, a few in memory at a time, and remove the directory.

        Args:
            count: How many chunks there are, all of them done.
            columns: Of the input and added.
        """
        parts = [self._path(number) for number in range(count)]
        with replacing(self.output, self.directory) as whole:
            if self.output.suffix == ".parquet":
                # a part may lack a value in a column, and with it the type
                schemas = [pq.read_schema(part) for part in parts]
                schema = pa.unify_schemas(schemas, promote_options="permissive")
                with pq.ParquetWriter(whole, schema) as writer:
                    for start in range(0, count, _PARTS_OF_A_GROUP):
                        group = parts[start : start + _PARTS_OF_A_GROUP]
                        writer.write_table(pq.read_table(group, schema=schema))
            else:
                with whole.open("w", encoding="utf-8", newline="") as file:
                    write_header(file, self.output.suffix, columns, self.csv_safe)
                with whole.open("ab") as joined:
                    joined.writelines(part.read_bytes() for part in parts)
        shutil.rmtree(self.directory)

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:08d}{self.output.suffix}"


def screen_format(kind: str) -> str:
    """Return the format of the standard output, for an input of this kind."""
    tabular = {".jsonl": ".jsonl", ".tsv": ".tsv", ".txt": ".tsv", STANDARD_INPUT: ".tsv"}
    return tabular.get(kind, ".csv")


def refuse_csv_safe(suffix: str, csv_safe: bool) -> None:
    """Refuse ``--csv_safe`` where no spreadsheet would read formulas.

    Raises:
        UserError: If the output is neither ``.csv`` nor ``.tsv``.
    """
    if csv_safe and suffix not in SEPARATORS:
        raise UserError(f"--csv_safe: the output is {suffix}; expected .csv or .tsv")


def write_header(
    file: IO[str], suffix: str, columns: Sequence[str], csv_safe: bool = False
) -> None:
    """Write the names of the columns, where the format has them on top."""
    if suffix in SEPARATORS:
        names = map(escape_formula, columns) if csv_safe else columns
        _csv_writer(file, suffix).writerow(names)


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
        added: The predictions.
        csv_safe: Whether to put an apostrophe before what a spreadsheet would run as a formula.

    Raises:
        UserError: If a column holds bytes.
    """
    names = [*columns, *added]
    values = [*(chunk.values(name) for name in columns), *added.values()]
    rows = zip(*values, strict=True)
    if suffix == ".jsonl":
        file.writelines(_json(dict(zip(names, row, strict=True))) + "\n" for row in rows)
        return
    cells = ([_cell(value) for value in row] for row in rows)
    _csv_writer(file, suffix).writerows(
        [escape_formula(cell) for cell in row] if csv_safe else row for row in cells
    )


def _table(chunk: Chunk, added: Added) -> pa.Table:
    """Return the rows with their predictions; JSON is text in Parquet."""
    table = chunk.rows if isinstance(chunk.rows, pa.Table) else pa.table(chunk.rows)
    for number, field in enumerate(table.schema):
        if field.type == pa.json_():
            texts = table.column(number).cast(pa.string())
            table = table.set_column(number, field.name, texts)
    for name, values in added.items():
        table = table.append_column(name, pa.array(values))
    metadata = dict(table.schema.metadata or {})
    metadata.pop(b"huggingface", None)  # `datasets` would miss the new columns in it
    return table.replace_schema_metadata(metadata)


def _csv_writer(file: IO[str], suffix: str) -> Any:
    # with this end of a line, fields that hold either character of it are quoted; a newline alone
    # is written, row by row
    unix = SimpleNamespace(write=lambda row: file.write(row.removesuffix("\r\n") + "\n"))
    return csv.writer(unix, delimiter=SEPARATORS[suffix], lineterminator="\r\n")


def _cell(value: Any) -> Any:
    return _json(value) if isinstance(value, (list, dict, bytes)) else value


def _json(value: Any) -> str:
    return to_json(value, ensure_ascii=False, default=_as_text)


def _as_text(value: Any) -> str:
    """Return a date or a decimal number as JSON has it, which has neither."""
    if isinstance(value, bytes):
        raise UserError(
            "a column holds bytes, which a text file cannot store: write parquet, e.g. "
            "--output predicted.parquet"
        )
    return str(value)
