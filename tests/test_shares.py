"""Shares of an input: processes parse only their own chunks, which together are those of one."""

import contextlib
import csv
import dataclasses
import gzip
import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from finetune import UserError
from finetune.data import files
from finetune.data.files import Chunk
from finetune.data.layout import Layout, ReadOptions
from finetune.predicting import shares
from finetune.predicting.inputs import Input
from tests.test_many_files import workbook

SIZE, ROWS = 16, 75


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 rows: 75 rows are five chunks."""
    monkeypatch.setattr(files, "CHUNK_ROWS", SIZE)


def joined(source: Input, world_size: int) -> list[tuple[int, list[dict[str, Any]], int]]:
    """The chunks that each process parses, in their order; all agree on the size of the others."""
    found: dict[int, Chunk] = {}
    sizes = set()
    for rank in range(world_size):
        mine = source.share(rank, world_size)
        several = [*source.chunks(mine)]
        sizes.add(tuple((chunk.number, len(chunk), chunk.end) for chunk in several))
        assert [not chunk.skipped for chunk in several] == [*map(mine, range(len(several)))]
        assert not any(len(chunk.rows) for chunk in several if chunk.skipped)
        found |= {chunk.number: chunk for chunk in several if not chunk.skipped}
    assert len(sizes) == 1
    assert sorted(found) == [number for number, _, _ in next(iter(sizes))]
    return [(number, found[number].dictionaries(), found[number].end) for number in sorted(found)]


def assert_same_for_every_world(
    path: Path, options: ReadOptions | None = None
) -> list[dict[str, Any]]:
    """Return the rows, in chunks of 16."""
    source = Input.open(str(path), options)
    alone = joined(source, 1)
    assert [len(rows) for _, rows, _ in alone[:-1]] == [SIZE] * (len(alone) - 1)
    assert len(alone) > 3
    for world_size in (2, 3):
        assert joined(source, world_size) == alone
    return [row for _, rows, _ in alone for row in rows]


# ---- texts ---------------------------------------------------------------------------------------

BLANK = {
    n: each for n, each in enumerate(["", " ", "\r", "\u00a0", "\u2003", "\x1c", "\r\r", "\x85 "])
}


def json_lines(end: str = "\n") -> str:
    """Lines that are blank in one alphabet or another among rows."""
    rows = [json.dumps({"n": n, "text": f"é{n}\u2028x"}, ensure_ascii=False) for n in range(ROWS)]
    return "".join(
        f"{BLANK.get(n % 11, '')}\n{'  ' * (n % 2)}{row}{end}" for n, row in enumerate(rows)
    )


def fields(
    end: str = "\n", separator: str = ",", quote: str = "", text: str = "é{n}\u2028x"
) -> str:
    rows = [f"{n}{separator}{quote}{text.format(n=n)}{quote}{end}" for n in range(ROWS)]
    blank = [end * (n % 7 == 0) for n in range(ROWS)]
    head = f"{end}n{separator}text{end}"
    return head + "".join(one for both in zip(rows, blank, strict=True) for one in both)


def singles(end: str = "\n") -> str:
    """A column whose blank lines are empty fields."""
    return f"text{end}" + "".join(f"{n if n % 5 else ''}{end}" for n in range(ROWS))


TEXTS: dict[str, tuple[str, str, str]] = {
    "jsonl": (".jsonl", json_lines(), "utf-8"),
    "ndjson crlf": (".ndjson", json_lines("\r\n"), "utf-8"),
    "json lines in a .json": (".json", json_lines(), "utf-8"),
    "jsonl bom": (".jsonl", "\n" + json_lines()[1:], "utf-8-sig"),
    "jsonl no final newline": (".jsonl", json_lines().rstrip("\n"), "utf-8"),
    "jsonl blank end": (".jsonl", json_lines() + "\n \n\u00a0\n" * 40, "utf-8"),
    "jsonl utf-16": (".jsonl", json_lines(), "utf-16"),
    "jsonl latin-1": (".jsonl", re.sub("[\u2028\u2003]", "", json_lines()), "latin-1"),
    "txt": (".txt", "\n".join(f"é{n}\r\x85" if n % 4 else "" for n in range(ROWS)), "utf-8"),
    "txt crlf": (".txt", "\r\n".join(f"é{n}" for n in range(ROWS)) + "\r\n", "utf-8-sig"),
    "txt utf-16": (".txt", "\n".join(f"Ċ{n}\rx" for n in range(ROWS)), "utf-16"),
    "txt cp1252": (".txt", "\n".join(f"é{n}" for n in range(ROWS)), "cp1252"),
    "csv": (".csv", fields(), "utf-8"),
    "csv crlf": (".csv", fields("\r\n"), "utf-8"),
    "csv cr": (".csv", fields("\r"), "utf-8"),
    "csv cr in between": (".csv", fields(text="{n}\r7,y"), "utf-8"),
    "csv cr at the end": (".csv", fields() + "9,z\r", "utf-8"),
    "csv bom": (".csv", fields().lstrip("\n"), "utf-8-sig"),
    "csv sep": (".csv", "sep=;\n" + fields(separator=";"), "utf-8"),
    "csv semicolons": (".csv", fields(separator=";"), "utf-8"),
    "csv no final newline": (".csv", fields().rstrip("\n"), "utf-8"),
    "csv utf-16": (".csv", fields(), "utf-16"),
    "csv latin-1": (".csv", fields(text="é{n}"), "latin-1"),
    "csv quoted": (".csv", fields(quote='"', text='{n},\n""x""\r\ny\rz'), "utf-8"),
    "csv quoted, utf-16": (".csv", fields(quote='"', text="{n}\n\nx"), "utf-16"),
    "csv quotes are text": (".csv", fields(text='"{n}').replace('"7', "7", 1), "utf-8"),
    "csv of one column": (".csv", singles(), "utf-8"),
    "csv of one column, crlf": (".csv", singles("\r\n"), "utf-8"),
    "csv of one column, cr": (".csv", singles("\r"), "utf-8"),
    "csv of one column, quoted": (".csv", singles().replace("\n7\n", '\n"7"\n'), "utf-8"),
    "csv of one column, blank rows": (".csv", "text\n" + "\n" * ROWS, "utf-8"),
    "tsv": (".tsv", fields(separator="\t"), "utf-8"),
}  # fmt: skip
AS_BYTES = {"csv", "csv crlf", "csv bom", "csv sep", "csv semicolons", "csv no final newline"} | {
    *("csv latin-1", "csv quotes are text", "csv of one column", "csv of one column, crlf"),
    *("csv of one column, blank rows", "tsv"),
}


def read_by_the_library(path: Path, layout: Layout, encoding: str) -> list[Any]:
    """The values of each row as ``csv``, ``json`` or the lines of the file have them."""
    suffix = path.suffix
    text = path.read_bytes().decode(encoding)
    lines = io.StringIO(text, newline="" if suffix in files.SEPARATORS else "\n")
    if suffix == ".txt":
        return [[line.rstrip("\n").removesuffix("\r")] for line in lines]
    if suffix not in files.SEPARATORS:
        return [[*json.loads(line).values()] for line in lines if line.strip()]
    quoting = csv.QUOTE_NONE if layout.quoting == "none" else csv.QUOTE_MINIMAL
    rows = [*csv.reader(lines, delimiter=layout.separator, quoting=quoting)]
    rows = rows[1:] if rows[0] == ["sep=", ""] else rows
    header = next(row for row in rows if row)
    rows = rows[rows.index(header) + 1 :]
    rows = [row or [""] for row in rows] if len(header) == 1 else [row for row in rows if row]
    return [[value or None for value in row] for row in rows]


@pytest.mark.parametrize("name", TEXTS)
def test_texts_in_shares_are_those_of_one_process(name: str, tmp_path: Path) -> None:
    suffix, text, encoding = TEXTS[name]
    path = tmp_path / f"in{suffix}"
    path.write_bytes(text.encode(encoding))

    options = ReadOptions(encoding=encoding if encoding in ("latin-1", "cp1252") else None)
    layout = files.inspected(path, options)[0]

    found = assert_same_for_every_world(path, options)

    assert [[*row.values()] for row in found] == read_by_the_library(path, layout, encoding)
    assert layout.lines_are_rows is (name in AS_BYTES)
    if suffix in files.SEPARATORS:  # the other way to read it knows the same rows and lines
        otherwise = dataclasses.replace(layout, lines_are_rows=False)
        several = files.chunks(path, layout=otherwise)
        assert [row for chunk in several for row in chunk.dictionaries()] == found
        rows = range(len(found))
        assert files.positions(path, rows, layout) == files.positions(path, rows, otherwise)


def test_a_carriage_return_between_two_blocks_of_the_file_is_seen(tmp_path: Path) -> None:
    """Lines are found out to be rows a MiB at a time."""
    path = tmp_path / "in.csv"
    for before, is_so in (("\r", False), ("\r\n", True)):
        head = f"text{before}"
        path.write_text(head.replace("\r", "x" * (2**20 - 5) + "\r", 1) + "a\n" * 3, newline="")
        assert path.read_bytes()[2**20 - 1 : 2**20 + 1] == (b"\ra", b"\r\n")[is_so]
        assert files.inspected(path)[0].lines_are_rows is is_so


@pytest.mark.parametrize("name", [".arrow", ".json", ".xlsx", ".csv.gz", ".jsonl.zip", ".txt.zst"])
def test_other_files_in_shares_are_those_of_one_process(name: str, tmp_path: Path) -> None:
    path, rows = tmp_path / f"in{name}", [{"n": n, "text": f"x{n}"} for n in range(ROWS)]
    match name:
        case ".arrow":
            with pa.OSFile(str(path), "wb") as sink:
                table = pa.Table.from_pylist(rows)
                with pa.ipc.new_file(sink, table.schema) as writer:
                    writer.write_table(table, max_chunksize=10)
        case ".json":
            path.write_text(json.dumps(rows, indent=1))
        case ".xlsx":
            workbook(path, {"A": [("n", "text"), *((n, f"x{n}") for n in range(ROWS))]})
        case ".csv.gz":
            path.write_bytes(gzip.compress(fields(text="x{n}").encode()))
        case ".jsonl.zip":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("in.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        case _:
            with pa.CompressedOutputStream(str(path), "zstd") as stream:
                stream.write("".join(f"x{n}\n" for n in range(ROWS)).encode())

    found = assert_same_for_every_world(path)

    assert [row["text"] for row in found] == [row["text"] for row in rows]


def wrong_at(row: int, suffix: str, quote: str) -> tuple[bytes, int]:
    """A file with a row that cannot be read, and the line of that."""
    if suffix == ".jsonl":
        lines = [b'{"n": %d}' % n for n in range(ROWS)]
        lines[row] = b' {"n": \xff' if quote == "byte" else b"{nothing"
        return b"\n".join(lines), row + 1
    lines = [b"%d,%stext%s" % (n, quote.encode(), quote.encode()) for n in range(ROWS)]
    lines[row] = b"1,\xff" if quote == "" else b"1,2,3"
    return b"\n".join([b"n,text", *lines]), row + 2


@pytest.mark.parametrize(
    ("suffix", "quote"), [(".jsonl", ""), (".jsonl", "byte"), (".csv", ""), (".csv", '"')]
)
def test_a_wrong_row_is_told_by_its_owner_alone(suffix: str, quote: str, tmp_path: Path) -> None:
    row = 2 * SIZE + 3  # of the third chunk, which is that of rank 2
    content, line = wrong_at(row, suffix, quote)
    path = tmp_path / f"in{suffix}"
    path.write_bytes(content.replace(b"\xff", b"?"))
    layout = files.inspected(path)[0]  # as of a file too large to see all of it in advance
    path.write_bytes(content)
    source = Input(str(path), suffix, ["n"], None, layout=layout)

    for rank in (0, 1):
        assert sum(map(len, source.chunks(source.share(rank, 3)))) == ROWS
    with pytest.raises(UserError, match=rf"line {line}\b"):
        [*source.chunks(source.share(2, 3))]


# ---- Parquet -------------------------------------------------------------------------------------


def parquet(path: Path, rows: int, group: int, categories: bool = False) -> Path:
    texts = pa.array([f"text {n % 9}" for n in range(rows)])
    table = pa.table({"text": texts.dictionary_encode() if categories else texts, "n": range(rows)})
    pq.write_table(table, path, row_group_size=group)
    return path


@pytest.mark.parametrize("categories", [False, True])
@pytest.mark.parametrize("group", [1, 5, 16, 17, 40, 64, 100, 1000])
def test_parquet_in_shares_is_that_of_one_process(
    group: int, categories: bool, tmp_path: Path
) -> None:
    """Also where groups are smaller than chunks: they do not make small chunks."""
    found = assert_same_for_every_world(parquet(tmp_path / "in.parquet", 333, group, categories))

    assert found == [{"text": f"text {n % 9}", "n": n} for n in range(333)]


def damaged(path: Path, group: int) -> None:
    """Overwrite the pages of a row group."""
    about = pq.read_metadata(path).row_group(group).column(0)
    start, size = about.dictionary_page_offset, about.total_compressed_size
    content = bytearray(path.read_bytes())
    content[start : start + size] = b"\xff" * size
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("rows", "group", "expected"),
    [
        (256, 64, [{0, 2}, {1, 3}]),
        (260, 64, [{0, 2, 4}, {1, 3}]),
        (480, 60, [{0, 1, 5, 6}, {1, 2, 6, 7}, {2, 3, 7}, {3, 4, 5}]),  # a chunk may be of two
        (128, 64, [{0}, {1}]),
        (128, 128, [{0}, {0}]),
    ],
)
def test_row_groups_of_others_are_not_read(
    rows: int, group: int, expected: list[set[int]], tmp_path: Path
) -> None:
    path = parquet(tmp_path / "in.parquet", rows, group)
    source, content = Input.open(str(path)), path.read_bytes()
    for rank, read in enumerate(expected):
        mine = source.share(rank, len(expected))
        for number in range(len(source.row_groups)):
            path.write_bytes(content)
            damaged(path, number)
            with pytest.raises(UserError) if number in read else contextlib.nullcontext():
                assert sum(map(len, source.chunks(mine))) == rows


@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_no_row_is_decoded_twice(
    world_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for those before a chunk that begins within a row group."""
    source = Input.open(str(parquet(tmp_path / "in.parquet", 2000, 50)))
    whole, decoded = pq.ParquetFile.iter_batches, list[int]()

    def counted(self: pq.ParquetFile, **given: Any) -> Iterator[pa.RecordBatch]:
        looks = given["batch_size"] == 1  # at the dictionary of a row group
        for batch in whole(self, **given if looks else {**given, "batch_size": SIZE}):
            decoded.append(0 if looks else len(batch))
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    for rank in range(world_size):
        decoded.clear()
        [*source.chunks(source.share(rank, world_size))]
        runs = 40 / world_size
        assert sum(decoded) <= 2000 / world_size + (runs + 1) * 2 * SIZE * (world_size > 1)


def test_fewer_rows_than_a_parquet_file_says_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parquet(tmp_path / "in.parquet", 100, 50)
    whole = pq.ParquetFile.iter_batches

    def cut(self: pq.ParquetFile, **given: Any) -> Iterator[pa.RecordBatch]:
        *others, last = whole(self, **given)
        return iter([*others, last.slice(0, last.num_rows - 1)])

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", cut)
    with pytest.raises(UserError, match="rows 97 to 100 are missing: is it damaged"):
        [*files.chunks(path)]


# ---- who has which chunk -------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize(
    "row_groups",
    [[1], [500], [0, 40, 0, 3], [7] * 300, [16] * 9, [1600] * 10, [9000, *[20] * 30], [1500] * 100],
)
def test_each_chunk_is_dealt_once_and_evenly(row_groups: list[int], world_size: int) -> None:
    chunks = -(-sum(row_groups) // SIZE)
    for groups in (row_groups, ()):
        dealt = [shares.dealt(rank, world_size, groups) for rank in range(world_size)]

        owned = np.array([[mine(number) for mine in dealt] for number in range(chunks)])

        assert (owned.sum(axis=1) == 1).all()
        assert owned.sum(axis=0).max() <= -(-chunks // world_size)


def test_a_process_has_chunks_of_few_row_groups() -> None:
    """Of ten for eight processes: a whole one, and a part of one or two of the others."""
    for rank in range(8):
        mine = shares.dealt(rank, 8, [1600] * 10)
        assert len({number // 100 for number in range(1000) if mine(number)}) in (2, 3)
    several = shares.dealt(0, 2, [16_000])  # a group for all: as if there were none
    assert [several(number) for number in range(4)] == [True, False, True, False]


@pytest.mark.parametrize("row_groups", [[], [4000] * 4])
def test_progress_is_how_far_a_process_is_among_its_own_rows(row_groups: list[int]) -> None:
    rows, told = 1000 * SIZE, list[tuple[float, int]]()
    mine = shares.dealt(0, 4, row_groups)
    paced = shares.paced(lambda *at: told.append(at), rows, mine)

    for number in filter(mine, range(1000)):
        paced((number + 1) * SIZE, -1)
    paced(rows, -1)

    assert told[:-1] == [(4 * SIZE * n, 4 * SIZE * n) for n in range(1, 251)]
    assert told[-1] == (rows, rows)


def test_progress_of_one_process_is_the_position() -> None:
    assert shares.paced(print, 100, lambda number: True) is print
