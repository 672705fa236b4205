"""Data: files are read exactly as they were written (rows C1 to C3 of the contract)."""

import bz2
import csv
import gzip
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import urllib.parse
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict, load_from_disk
from PIL import Image as Picture

import finetune
from recipes.image import Image
from recipes.text import Text
from tests.acceptance import data
from tests.acceptance.conftest import Finished, user_error
from tests.conftest import HANGS, ROOT

Row = tuple[str, str]
Cli = Callable[..., Finished]
#: Words that other readers parse as missing values, numbers or dates, and characters to quote.
ROWS: list[Row] = [
    ("NA", "NA"),
    ("null", "None"),
    ("None", "good"),
    ('a "quoted", long\nreview; with\ttabs | bars', "good"),
    ("nan", "null"),
    ("007", "good"),
    ("1e5", "Ärger"),
    ("2024-01-02", "good"),
    ("naïve — 5 € 語", "NA"),
    ("TRUE", "Ärger"),
]


def text_recipe(dataset: Any, **options: Any) -> Text:
    """Return a recipe that reads the columns `text` and `label`; its model is never loaded."""
    source = str(dataset) if isinstance(dataset, Path) else dataset
    columns = {"text_column": "text", "label_column": "label"}
    if "label_columns" in options:
        del columns["label_column"]
    return Text(**{"dataset": source, "model": "none", **columns, **options})


def rows_of(split: Dataset) -> list[Row]:
    """Return the texts of a split and their label names, in order."""
    names = split.features["label"].names
    pairs = zip(split["text"], split["label"], strict=True)
    return [(text, names[label]) for text, label in pairs]


def refusal(recipe: Text | Image) -> str:
    """Return the error message of a recipe for its data."""
    with pytest.raises(finetune.UserError) as refused:
        _ = recipe.splits
    return str(refused.value)


def read_refusal(path: Path, **options: str) -> str:
    """Return the error message for a file, before its rows are split."""
    with pytest.raises(finetune.UserError) as refused:
        text_recipe(path, **options).load()
    return str(refused.value)


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Return rows as an Arrow table."""
    return pa.table({"text": [text for text, _ in rows], "label": [label for _, label in rows]})


def encode_rows(suffix: str, rows: Sequence[Row] = ROWS, **dialect: Any) -> bytes:
    """Return the content of a text file."""
    if suffix in (".csv", ".tsv"):
        file = io.StringIO()
        separator = {"delimiter": "\t"} if suffix == ".tsv" else {}
        csv.writer(file, **{**separator, **dialect}).writerows([("text", "label"), *rows])
        return file.getvalue().encode()
    objects = [{"text": text, "label": label} for text, label in rows]
    if suffix == ".json":
        return json.dumps(objects, indent=1).encode()
    lines = [json.dumps(row, ensure_ascii=number % 2 == 0) for number, row in enumerate(objects)]
    return "\n".join(lines).encode()


def write_rows(
    path: Path, rows: Sequence[Row] = ROWS, encoding: str = "utf-8", **dialect: Any
) -> Path:
    """Write rows in the format of the file's suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(table_of(rows), path, row_group_size=max(1, len(rows) // 3))
    elif path.suffix == ".xlsx":
        write_workbook(path, [("text", "label"), *rows])
    else:
        content = encode_rows(path.suffix, rows, **dialect)
        path.write_bytes(content if encoding == "utf-8" else content.decode().encode(encoding))
    return path


def zip_content(content: bytes, name: str = "rows.csv") -> bytes:
    """Return a zip archive with one file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return file.getvalue()


def write_arrow(path: Path, kind: Any) -> None:
    """Write an Arrow file or stream."""
    with kind(path, table_of(ROWS).schema) as writer:
        writer.write_table(table_of(ROWS), max_chunksize=3)


def workbook(rows: Sequence[Sequence[Any]]) -> bytes:
    """Return a workbook with one sheet, whose first row has the column names."""
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(list(row))
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def write_workbook(path: Path, rows: Sequence[Sequence[Any]]) -> Path:
    """Write a workbook with one sheet."""
    path.write_bytes(workbook(rows))
    return path


def write_files(folder: Path, **contents: bytes | str) -> Path:
    """Write CSV files into a folder; the keywords are their names."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        encoded = content if isinstance(content, bytes) else content.encode()
        (folder / f"{name}.csv").write_bytes(encoded)
    return folder


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda content: pa.compress(content, codec="zstd", asbytes=True),
    ".zip": zip_content,
}

# ---- C1: formats and layouts ---------------------------------------------------------------------

FRAME = pd.DataFrame(ROWS, columns=["text", "label"])
BINARY: dict[str, Callable[[Path], object]] = {
    "plain.parquet": write_rows,
    "pandas.parquet": lambda path: FRAME.iloc[::-1].iloc[::-1].to_parquet(path),
    "categories.parquet": lambda path: FRAME.astype("category").to_parquet(path, index=False),
    "views.parquet": lambda path: pq.write_table(
        table_of(ROWS).cast(pa.schema({"text": pa.string_view(), "label": pa.large_string()})), path
    ),
    "file.arrow": lambda path: write_arrow(path, pa.ipc.new_file),
    "stream.arrow": lambda path: write_arrow(path, pa.ipc.new_stream),
    "plain.feather": lambda path: pyarrow.feather.write_feather(table_of(ROWS), str(path)),
    "plain.xlsx": write_rows,
    "records.json": lambda path: FRAME.to_json(path, orient="records"),
    "lines.json": lambda path: path.write_bytes(encode_rows(".jsonl")),
    "index.csv": lambda path: FRAME.to_csv(path),
    "index of an index.csv": lambda path: FRAME.assign(**{"Unnamed: 0": FRAME.index}).to_csv(path),
    "UPPER.CSV": lambda path: path.write_bytes(encode_rows(".csv")),
    "100% [a] {b}.csv": write_rows,
}


@pytest.mark.contract("C1")
@pytest.mark.parametrize("packed", COMPRESSORS)
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".json", ".jsonl", ".ndjson"])
def test_a_file_of_text_has_the_rows_that_were_written(
    suffix: str, packed: str, tmp_path: Path
) -> None:
    """Plain and compressed text files are read."""
    path = tmp_path / f"rows{suffix}{packed}"
    content = encode_rows(suffix)
    packer = COMPRESSORS[packed]
    path.write_bytes(zip_content(content, f"rows{suffix}") if packed == ".zip" else packer(content))
    splits = text_recipe(path).load()
    assert {name: rows_of(split) for name, split in splits.items()} == {"train": ROWS}


@pytest.mark.contract("C1")
@pytest.mark.parametrize("name", BINARY)
def test_other_formats_have_the_rows_that_were_written(name: str, tmp_path: Path) -> None:
    """Parquet, Arrow, spreadsheets, layouts of JSON, and odd file names are read."""
    BINARY[name](tmp_path / name)
    splits = text_recipe(tmp_path / name).load()
    assert {name: rows_of(split) for name, split in splits.items()} == {"train": ROWS}


def write_parts(folder: Path, name: str) -> Path:
    for number, row in enumerate(ROWS):
        write_files(folder, **{f"{name}{number + 1}": encode_rows(".csv", [row])})
    return folder


def write_splits(folder: Path) -> str:
    write_files(folder, train=encode_rows(".csv", ROWS[:5]))
    (folder / "validation.jsonl").write_bytes(encode_rows(".jsonl", ROWS[3:6]))
    pq.write_table(table_of(ROWS[2:6]), folder / "test.parquet")
    (folder / "README.md").write_text("about test.csv")
    return str(folder)


def write_shards(folder: Path) -> str:
    for number in range(2):
        name = f"train-{number:05}-of-00002"
        write_files(folder / "data", **{name: encode_rows(".csv", ROWS[5 * number :][:5])})
    write_files(folder / "data", **{"test-00000-of-00001": encode_rows(".csv", ROWS[2:6])})
    return str(folder)


def write_split_folders(folder: Path) -> str:
    write_files(folder / "train", a=encode_rows(".csv", ROWS[:4]), b=encode_rows(".csv", ROWS[4:]))
    write_files(folder / "validation", a=encode_rows(".csv", ROWS[3:6]))
    write_files(folder / "test", a=encode_rows(".csv", ROWS[2:6]))
    return str(folder)


def write_class_folders(folder: Path) -> str:
    for split, count in (("train", 10), ("test", 4)):
        for number, (text, label) in enumerate(ROWS[:count]):
            path = folder / split / label / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n", encoding="utf-8")
    return str(folder)


def frames_by_split() -> DatasetDict:
    return DatasetDict(train=Dataset.from_pandas(FRAME), test=Dataset.from_pandas(FRAME[2:6]))


def save_to_disk(folder: Path) -> str:
    frames_by_split().save_to_disk(folder)
    return str(folder)


BY_CLASS = sorted(ROWS, key=lambda row: row[1])
LAYOUTS: dict[str, tuple[Callable[[Path], Any], dict[str, list[Row]]]] = {
    "pattern": (lambda folder: write_parts(folder, "part") / "part*.csv", {"train": ROWS}),
    "numbered": (lambda folder: write_parts(folder, "train_"), {"train": ROWS}),
    "splits": (write_splits, {"train": ROWS[:5], "validation": ROWS[3:6], "test": ROWS[2:6]}),
    "shards": (write_shards, {"train": ROWS, "test": ROWS[2:6]}),
    "split folders": (write_split_folders,
                      {"train": ROWS, "validation": ROWS[3:6], "test": ROWS[2:6]}),
    "class folders": (write_class_folders,
                      {"train": BY_CLASS, "test": sorted(ROWS[:4], key=lambda row: row[1])}),
    "saved": (save_to_disk, {"train": ROWS, "test": ROWS[2:6]}),
    "pandas": (lambda folder: FRAME.set_index(pd.Index(range(9, -1, -1))), {"train": ROWS}),
    "polars": (lambda folder: pl.DataFrame(FRAME.to_dict("list")), {"train": ROWS}),
    "arrow": (lambda folder: table_of(ROWS), {"train": ROWS}),
    "Dataset": (lambda folder: Dataset.from_pandas(FRAME), {"train": ROWS}),
    "dicts": (lambda folder: FRAME.to_dict("records"), {"train": ROWS}),
    "dict of splits": (lambda folder: {"train": FRAME, "test": FRAME[2:6].to_dict("records")},
                       {"train": ROWS, "test": ROWS[2:6]}),
    "DatasetDict": (lambda folder: frames_by_split(), {"train": ROWS, "test": ROWS[2:6]}),
}  # fmt: skip


@pytest.mark.contract("C1")
@pytest.mark.parametrize("name", LAYOUTS)
def test_several_files_and_rows_in_python_have_their_rows_in_order(
    name: str, tmp_path: Path
) -> None:
    """Part 2 comes before part 10; class folders are sorted by name."""
    make, expected = LAYOUTS[name]
    splits = text_recipe(make(tmp_path / "data")).load()
    assert {name: rows_of(split) for name, split in splits.items()} == expected


@pytest.mark.contract("C1")
def test_splits_of_other_names_are_named_by_a_flag(tmp_path: Path) -> None:
    """`--dataset_splits` names them or leaves one out; names of `datasets` are recognized."""
    contents = {"train": encode_rows(".csv"), "dev": encode_rows(".csv", ROWS[:3])}
    write_files(tmp_path, **contents, test=encode_rows(".csv", ROWS[3:]))
    recipe = text_recipe(tmp_path)
    expected = {"train": ROWS, "validation": ROWS[:3], "test": ROWS[3:]}
    assert {name: rows_of(split) for name, split in recipe.load().items()} == expected
    assert any("--dataset_splits validation=dev" in note for note in recipe.notes)
    splits = text_recipe(tmp_path, dataset_splits="validation=dev,test=none").load()
    sizes = {name: rows_of(split) for name, split in splits.items()}
    assert sizes == {"train": ROWS, "validation": ROWS[:3]}
    assert "each once" in refusal(text_recipe(tmp_path, dataset_splits="test=dev,test=test"))
    write_files(tmp_path, val=encode_rows(".csv"))
    message = refusal(text_recipe(tmp_path))
    assert "dev, val" in message
    assert "--dataset_splits validation=" in message


@pytest.mark.contract("C1")
def test_what_is_not_read_is_printed(tmp_path: Path) -> None:
    """Tables and other files beside those of the splits are listed."""
    write_files(tmp_path, train=encode_rows(".csv"), old=encode_rows(".csv", ROWS[:3]))
    (tmp_path / "more.xls").write_text("x")
    recipe = text_recipe(tmp_path)
    assert rows_of(recipe.load()["train"]) == ROWS
    notes = " ".join(recipe.notes)
    assert "not read: old" in notes
    assert "not read: more.xls" in notes


def write_other_columns(folder: Path) -> str:
    write_files(folder, a=encode_rows(".csv"), b=b"body,label\nx,good\n")
    return str(folder / "*.csv")


def write_other_types(folder: Path) -> str:
    """Write a second part with missing ids, which pandas converts to floats."""
    for name, ids in {"a": [1234567890123456789, 1], "b": [None, 1.0]}.items():
        columns = {"text": ["x", "y"], "label": ["good", "bad"], "id": ids}
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return str(folder / "*.parquet")


UNREADABLE: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "no such file": (lambda folder: str(write_files(folder, reviews="") / "review.csv"),
                     ["review.csv", "'reviews.csv'"]),
    "no such pattern": (lambda folder: str(folder / "*.csv"), ["*.csv"]),
    "other columns": (write_other_columns, ["a.csv", "b.csv", "'text'", "'body'"]),
    "other types": (write_other_types, ["train", "write them alike", "id"]),
    "no training rows": (lambda folder: str(write_files(folder, test=encode_rows(".csv"))),
                         ["train split", "it has: test"]),
    "other names": (lambda folder: str(write_files(folder, a=encode_rows(".csv"), b="")),
                    ["--dataset", "*.csv"]),
    "nothing": (lambda folder: "", ["--dataset"]),
    "a transform": (lambda folder: Dataset.from_pandas(FRAME).with_transform(dict),
                    ["train data", "with_transform", "map"]),
}  # fmt: skip
FOREIGN = ("a.xls", "a.ods", "a.csv.xz", "a.zip", "a.parquet.gz")


@pytest.mark.contract("C1", "F4")
@pytest.mark.parametrize("case", [*UNREADABLE, *FOREIGN])
def test_missing_and_unsupported_files_are_refused(case: str, tmp_path: Path) -> None:
    """The message names the file and what to type."""
    if case in FOREIGN:
        (tmp_path / case).write_bytes(b"PK\x03\x04 content")
        source, fragments = str(tmp_path / case), [case, ".xlsx", ".zip"]
    else:
        make, fragments = UNREADABLE[case]
        source = make(tmp_path)
    with user_error(*fragments):
        text_recipe(source).load()


# ---- C1, C3: files that lie beside data ----------------------------------------------------------

HALVES = {"0": ROWS[:5], "1": ROWS[5:]}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"


def write_tables(folder: Path, files: dict[str, Any]) -> Path:
    """Write rows or texts by the names of their files."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_text(content)
        else:
            write_rows(path, content)
    return folder


def map_saved(folder: Path) -> Path:
    save_to_disk(folder)
    load_from_disk(folder)["train"].map(lambda row: {"text": row["text"].upper()})
    return folder


def save_again(folder: Path) -> Path:
    Dataset.from_pandas(FRAME.iloc[::-1]).save_to_disk(folder, num_shards=4)
    Dataset.from_pandas(FRAME).save_to_disk(folder, num_shards=2)
    return folder


def save_fewer_splits(folder: Path) -> Path:
    everything = frames_by_split()
    DatasetDict(everything | {"validation": everything["test"]}).save_to_disk(folder)
    everything.save_to_disk(folder)
    return folder


def lose_a_shard(folder: Path) -> Path:
    save_again(folder)
    (folder / "data-00001-of-00002.arrow").unlink()
    return folder


def write_hive(folder: Path) -> Path:
    for label in sorted({label for _, label in ROWS}):
        texts = [text for text, name in ROWS if name == label]
        part = folder / f"label={urllib.parse.quote(label)}" / "part-0.parquet"
        part.parent.mkdir(parents=True)
        pq.write_table(pa.table({"text": texts}), part)
    return folder


def write_spark(folder: Path) -> Path:
    """Write two parts as Spark does, with a part of a job that did not end."""
    job = "7f3c0a52-53c9-4f0a-9c0e-0f3d5a1b2c3d-c000.snappy.parquet"
    for number, part in HALVES.items():
        write_rows(folder / f"part-0000{number}-{job}", part)
        (folder / f".part-0000{number}-{job}.crc").write_bytes(b"crc")
    write_rows(folder / "_temporary" / "0" / f"part-00002-{job}", ROWS[:3])
    (folder / "_SUCCESS").touch()
    return folder


def link_to_nothing(folder: Path) -> Path:
    write_tables(folder, {f"train-0000{n}-of-00002.csv": part for n, part in HALVES.items()})
    (folder / "more.csv").symlink_to(folder / "gone.csv")
    return folder


BY_FOLDER = sorted(ROWS, key=lambda row: urllib.parse.quote(row[1]))
#: Contents of a directory, the rows of its splits (or words of the message), and words of notes.
BESIDE: dict[str, tuple[Callable[[Path], Path], dict[str, list[Row]] | list[str], list[str]]] = {
    "mapped": (map_saved, {"train": ROWS, "test": ROWS[2:6]}, ["not read: train/cache-"]),
    "mapped split": (lambda folder: map_saved(folder) / "train", {"train": ROWS}, ["cache-"]),
    "mapped pattern": (lambda folder: map_saved(folder) / "train/*.arrow", {"train": ROWS},
                       ["cache-"]),
    "saved again": (save_again, {"train": ROWS}, ["not read: data-00000-of-00004.arrow"]),
    "fewer splits": (save_fewer_splits, {"train": ROWS, "test": ROWS[2:6]},
                     ["not read: validation/data-"]),
    "lost": (lose_a_shard, ["state.json", "data-00001-of-00002.arrow is missing"], []),
    "info": (lambda folder: write_tables(folder, {
        "data.csv": ROWS, "dataset_info.json": "{}", "dataset_infos.json": "{}"}),
        {"train": ROWS}, []),
    "old shards": (lambda folder: write_tables(folder, {
        "train-00000-of-00001.csv": ROWS, "train-00000-of-00002.csv": ROWS[:5],
        "train-00001-of-00002.csv": ROWS[5:]}),
                   ["'train-00000-of-00001.csv', 'train-00000-of-00002.csv'", "pattern"], []),
    "missing shard": (lambda folder: write_tables(folder, {
        "train-00000-of-00002.csv": ROWS[:5], "train-00001-of-00002.csv.incomplete": "text"}),
        ["found 'train-00000-of-00002.csv': remove", "pattern"], []),
    "shards from 1": (lambda folder: write_tables(folder, {
        "train-1-of-2.csv": ROWS[:5], "train-2-of-2.csv": ROWS[5:]}), {"train": ROWS}, []),
    "hashed shards": (lambda folder: write_tables(folder, {
        f"data/train-0000{number}-of-00002-a1b2c3d4e5f60718.parquet": part
        for number, part in HALVES.items()}), {"train": ROWS}, []),
    "two formats": (lambda folder: write_tables(folder, {"train.csv": ROWS, "train.jsonl": ROWS}),
                    ["train.csv and train.jsonl", "two formats", "/*.csv'"], []),
    "packed": (lambda folder: write_tables(folder, {"train.csv": ROWS, "train.csv.gz": "x"}),
               ["train.csv.gz", "two formats"], []),
    "spark": (write_spark, {"train": ROWS}, ["not read: _SUCCESS, _temporary/0/part-00002"]),
    "hive": (write_hive, {"train": BY_FOLDER}, ["'label' is in the names of folders"]),
    "hive and column": (lambda folder: write_tables(folder, {"label=x/0.csv": ROWS}),
                        {"train": ROWS}, ["'label' is read from the file, not its folder"]),
    "hive splits": (lambda folder: write_tables(folder, {
        "split=train/0.csv": ROWS, "split=test/0.csv": ROWS[2:6]}),
        {"train": ROWS, "test": ROWS[2:6]}, []),
    "hive pattern": (lambda folder: write_hive(folder) / "*/*.parquet", {"train": BY_FOLDER}, []),
    "delta": (lambda folder: write_tables(folder, {
        "part.parquet": ROWS, "_delta_log/0.json": "{}"}), ["_delta_log", "old rows"], []),
    "iceberg": (lambda folder: write_tables(folder, {
        "data/0.parquet": ROWS, "metadata/v1.metadata.json": "{}"}),
                ["v1.metadata.json", "old rows"], []),
    "link": (link_to_nothing, ["more.csv", "link to a missing file"], []),
    "pointer": (lambda folder: write_tables(folder, {"train.csv": POINTER}),
                ["train.csv", "Git LFS", "git lfs pull"], []),
    "pointer of Parquet": (
        lambda folder: write_tables(folder, {"a.parquet": POINTER}) / "a.parquet",
        ["a.parquet", "git lfs pull"], []),
    "pointers of texts": (lambda folder: write_tables(folder, {"good/1.txt": "x",
                                                      "bad/1.txt": POINTER}),
                          ["1.txt", "git lfs pull"], []),
    "backups": (lambda folder: write_tables(folder, {
        "train.csv": ROWS, "train.csv~": "x", "train.csv.bak": "x", "#train.csv#": "x",
        "train (1).csv": ROWS[:3], ".train.csv.swp": "x", ".~lock.train.csv#": "x",
        "~$train.xlsx": "x", ".DS_Store": "x", "Thumbs.db": "x", "train.csv.part": "x"}),
        {"train": ROWS}, ["train (1)", "train.csv.bak, train.csv.part, train.csv~, ~$train.xlsx",
                          "Thumbs.db", "#train.csv#"]),
    "open workbook": (lambda folder: write_tables(folder, {"a.xlsx": ROWS, "~$a.xlsx": "x"}),
                      {"train": ROWS}, ["not read: ~$a.xlsx"]),
    "class folders": (lambda folder: write_tables(folder, {
        "__MACOSX/good/1.txt": "x", "bad/desktop.ini": "x", "bad/1.txt": "a",
        "good/1.txt": "b", "good/1.txt~": "x", "good/.1.txt.swp": "x"}),
        {"train": [("a", "bad"), ("b", "good")]}, ["__MACOSX/good/1.txt", "bad/desktop.ini"]),
    "empty": (lambda folder: write_tables(folder, {"a-1.csv": ROWS, "a-2.csv": ""}),
              ["a-2.csv", "no rows"], []),
    "parquet metadata": (
        lambda folder: write_tables(folder, {"part.parquet": ROWS, "_metadata": "x"}),
        {"train": ROWS}, ["not read: _metadata"]),
    "brackets": (lambda folder: write_tables(folder / "a [1]*", {"x.csv": ROWS}) / "*.csv",
                 {"train": ROWS}, []),
}  # fmt: skip


@pytest.mark.contract("C1", "C3", "F4")
@pytest.mark.parametrize("name", BESIDE)
def test_what_lies_beside_data_is_not_read_as_data(name: str, tmp_path: Path) -> None:
    """Each file is read right, named as not read, or refused; hidden files are not data."""
    make, expected, notes = BESIDE[name]
    recipe = text_recipe(make(tmp_path / "data"))
    if isinstance(expected, list):
        with user_error(*expected):
            recipe.load()
        return
    splits = recipe.load()
    assert {split: rows_of(rows) for split, rows in splits.items()} == expected
    for note in notes:
        assert note in " ".join(recipe.notes)


@pytest.mark.contract("C3", "B1")
def test_a_pointer_in_place_of_an_image_is_refused(tmp_path: Path) -> None:
    folder = data.write_photos(tmp_path / "photos", rows=8)
    (folder / "up" / "001.png").write_text(POINTER)
    message = refusal(Image(dataset=str(folder), model="none"))
    assert "001.png" in message
    assert "git lfs pull" in message


def pixels(image: Picture.Image) -> bytes:
    return np.asarray(image.convert("RGB")).tobytes()


@pytest.mark.contract("C1", "B1")
@pytest.mark.parametrize("layout", ["folders", "split folders", "paths", "bytes"])
def test_images_have_their_pixels_and_labels(layout: str, tmp_path: Path) -> None:
    """Images are read from class folders, a table of paths and a table of bytes."""
    folder = data.write_photos(tmp_path / "photos", rows=8)
    files = sorted(folder.rglob("*.png"))
    source, splits = folder, {"train": files}
    if layout == "split folders":
        source, splits = tmp_path / "split", {"train": [], "test": []}
        for number, path in enumerate(files):
            name = ("train", "test")[number % 4 == 3]
            target = source / name / path.parent.name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
            splits[name].append(path)
    elif layout == "paths":
        source = tmp_path / "list.csv"
        rows = [(path.relative_to(tmp_path), path.parent.name) for path in files]
        data.write_csv(source, ["photo", "kind"], rows)
    elif layout == "bytes":
        source = tmp_path / "list.parquet"
        images = [{"bytes": path.read_bytes(), "path": path.name} for path in files]
        labels = [path.parent.name for path in files]
        Dataset.from_dict({"image": images, "label": labels}).to_parquet(source)
    columns = {"image_column": "photo", "label_column": "kind"} if layout == "paths" else {}
    loaded = Image(dataset=str(source), model="none", **columns).load()
    assert set(loaded) == set(splits)
    for name, paths in splits.items():
        rows = loaded[name]
        names = [rows.features["label"].names[label] for label in rows["label"]]
        assert names == [path.parent.name for path in paths]
        assert [pixels(image) for image in rows["image"]] == [
            pixels(Picture.open(path)) for path in paths
        ]


@pytest.fixture
def split_photos(tmp_path: Path) -> Path:
    """Class folders in `learn` and `test`."""
    for name, path in ((n, p) for n in ("learn", "test") for p in photo_files(tmp_path)):
        target = tmp_path / "split" / name / path.parent.name / f"{name}-{path.name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return tmp_path / "split"


def photo_files(folder: Path) -> list[Path]:
    return sorted(data.write_photos(folder / "photos", rows=8).rglob("*.png"))


@pytest.mark.contract("C1", "C7", "F4")
def test_splits_of_image_folders_are_named_by_the_option(split_photos: Path) -> None:
    """Absent names are refused, and so are options of other sources."""
    place = dict(dataset=str(split_photos), model="none")
    assert set(Image(**place, dataset_splits="train=learn,test=none").load()) == {"train"}
    for option, value in (("dataset_splits", "train=absent"), ("dataset_revision", "main")):
        with user_error(value.rpartition("=")[2], f"--{option}"):
            Image(**place, **{option: value}).load()


@pytest.mark.contract("E5")
def test_image_folders_of_the_test_split_alone_are_evaluated(
    image_run: finetune.Run, split_photos: Path
) -> None:
    shutil.rmtree(split_photos / "learn")
    assert finetune.evaluate(image_run, data=str(split_photos)).rows == 8


@pytest.mark.contract("F4")
def test_images_without_a_data_set_are_asked_for(
    cli: Cli, split_photos: Path, vit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not read from the current directory."""
    monkeypatch.chdir(split_photos)
    cli("image", "--model", vit, "--output_dir", "run").refused("--dataset is required")


@pytest.mark.contract("C10")
def test_two_readers_of_a_new_file_both_read_it(tmp_path: Path) -> None:
    """The second reader starts while the first one writes its copy."""
    path = tmp_path / "long.csv"
    path.write_text("text,label\n" + "".join(f"row {n},{n % 2}\n" for n in range(400_000)))
    environment = os.environ | {"HF_HOME": str(tmp_path / "cache")}
    readers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.acceptance.reader", str(path), f"{0.25 * number}"],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(5)
    ]  # fmt: skip
    for reader in readers:
        printed, errors = reader.communicate(timeout=HANGS)
        assert printed == "400000\n", errors


# ---- C2: encodings, separators, quotes and line ends ---------------------------------------------

WESTERN = "the people of Müller's café said: it is larger, größer | «CAFÉ», «voilà\xa0»; naïve"
ENCODINGS: dict[str, tuple[str, str]] = {
    "utf-8": ("日本語 — 5 € é ß", ""),
    "utf-8-sig": ("日本語 — 5 € é ß", ""),
    "utf-16": ("日本語 — 5 € é ß", "utf-16"),
    "utf-16-le": ("日本語 — 5 € é ß", "utf-16"),
    "cp1252": (f"{WESTERN} — “5 €”", "1252"),
    "latin-1": (WESTERN, "1252"),
}
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}


@pytest.mark.contract("C2")
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL], ids=["some", "all"])
@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_encoding_separator_quotes_and_line_ends_are_detected(
    encoding: str, separator: str, quoting: Any, end: str, tmp_path: Path
) -> None:
    """Quoted line breaks, separators and quotes are read; unusual choices are printed."""
    sample, name = ENCODINGS[encoding]
    sign = SEPARATORS[separator]
    rows = [
        (f'{number} {sample}{sign} "so"{end}it {sign} was', ("good", "größer")[number % 2])
        if number % 3 == 0
        else (f"{number} {sample.replace(sign, ' ')}", ("good", "größer")[number % 2])
        for number in range(24)
    ]
    dialect = {"delimiter": sign, "quoting": quoting, "lineterminator": end}
    path = write_rows(tmp_path / "rows.csv", rows, encoding, **dialect)
    recipe = text_recipe(path)
    assert rows_of(recipe.load()["train"]) == rows
    notes = " ".join(recipe.notes)
    assert ("--encoding" in notes) == bool(name)
    assert name in notes
    assert ("--csv_separator" in notes) == (separator != "comma")
    if separator != "comma":
        assert separator in notes


#: Forms of the line for Excel, and the encoding of the file.
EXCEL = {"sep={}": "utf-8-sig", '"sep={}"': "utf-8", "sep={}{}": "utf-16", '"sep={}"{}': "utf-8"}


@pytest.mark.contract("C2")
@pytest.mark.parametrize("line", EXCEL)
@pytest.mark.parametrize("separator", [*SEPARATORS.values(), "^"])
def test_the_line_of_excel_names_the_separator(separator: str, line: str, tmp_path: Path) -> None:
    """It is no header, and line numbers count it."""
    encoding = EXCEL[line]
    path = write_rows(tmp_path / "a.csv", encoding=encoding, delimiter=separator)
    content = f"{line.format(separator, separator)}\r\n{path.read_bytes().decode(encoding)}"
    path.write_bytes(content.encode(encoding))
    recipe = text_recipe(path)
    assert rows_of(recipe.load()["train"]) == ROWS
    assert any("first line says" in note for note in recipe.notes)
    path.write_bytes(f"{content}short\r\n".encode(encoding))
    lines = len(content.splitlines())
    assert f"line {lines + 1}: expected 2 fields" in read_refusal(path)


@pytest.mark.contract("C2")
@pytest.mark.parametrize(
    ("content", "options", "rows"),
    [
        (b"text,label\nwhat \xbeuto,good\n", {"encoding": "cp1250"}, [("what ľuto", "good")]),
        (b"text,label\nwhat \xbeuto,good\n", {"encoding": "latin-1"}, [("what ¾uto", "good")]),
        (b"a,b;label,text;c\n1,2;good,x;3\n", {"csv_separator": ","}, [("x;3", "2;good")]),
        (b"text\tlabel\na,b\tgood\n", {"csv_separator": "tab"}, [("a,b", "good")]),
        (b"text^label\na,b^good\n", {"csv_separator": "^"}, [("a,b", "good")]),
        (b"sep=;\ntext,label\nx;y,good\n", {"csv_separator": ","}, [("x;y", "good")]),
        (b"text,label\rx,good\ry,bad", {}, [("x", "good"), ("y", "bad")]),
        (b'text,label\n"a,01\nb",02\n', {"csv_quoting": "minimal"}, [("a,01\nb", "02")]),
        (b'text,label\n"a,01\nb",02\n', {"csv_quoting": "none"}, [('"a', "01"), ('b"', "02")]),
        (b'text,label\n"a" b,x\nc,y\n', {"csv_quoting": "none"}, [('"a" b', "x"), ("c", "y")]),
    ],
    ids=[
        *("cp1250", "latin-1", "comma", "tab", "other", "sep", "CR", "minimal", "none", "marks"),
    ],
)  # fmt: skip
def test_what_is_detected_can_be_overridden(
    content: bytes, options: dict[str, str], rows: list[Row], tmp_path: Path
) -> None:
    """`--encoding`, `--csv_separator` and `--csv_quoting` override the detection."""
    (tmp_path / "rows.csv").write_bytes(content)
    columns = {"label_column": "b;label", "text_column": "text;c"} if b"b;label" in content else {}
    recipe = text_recipe(tmp_path / "rows.csv", task="single_label", **options, **columns)
    assert rows_of(recipe.load()["train"]) == rows


@pytest.mark.contract("C2")
@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1251", "Отличный фильм, всем советую посмотреть его ещё раз"),  # noqa: RUF001
        ("gb18030", "这部电影非常好看, 我还想再看一遍。"),
        ("shift_jis", "とても良い映画でした。もう一度見たいと思います。"),
        ("cp1250", "Łódź jest piękna, a książka była świetna i ciekawa"),
        ("mac_roman", "das Mädchen, das größer ist"),
        ("mac_roman", "un café au déjeuner"),
        ("cp850", "das Mädchen, das älter ist"),
        ("cp850", "un café, déjà vu"),
    ],
)
def test_other_alphabets_are_read_in_the_encoding_that_is_named(
    encoding: str, text: str, tmp_path: Path
) -> None:
    rows = [(f"{number} {text}", "good") for number in range(20)]
    path = write_rows(tmp_path / "rows.csv", rows, encoding)
    assert "--encoding" in read_refusal(path)
    assert rows_of(text_recipe(path, encoding=encoding).load()["train"]) == rows


@pytest.mark.contract("C1", "C3")
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_texts_of_megabytes_are_read_whole(suffix: str, tmp_path: Path) -> None:
    """They contain quotes, separators and line breaks."""
    long = 'so "long", and\tso on;\nplain\n' * 200_000
    rows = [("short", "good"), (long, "bad"), ("short", "good")]
    assert rows_of(text_recipe(write_rows(tmp_path / f"a{suffix}", rows)).load()["train"]) == rows


@pytest.mark.contract("C2")
@pytest.mark.parametrize("sheet", ["Tickets", "Old"])
def test_the_sheet_of_a_spreadsheet_is_printed_and_overridable(sheet: str, tmp_path: Path) -> None:
    """The sheet is the first one with rows, or that of `--sheet`."""
    book = openpyxl.Workbook()
    book.active.title = "Cover"
    for name, rows in (("Tickets", ROWS[:6]), ("Old", ROWS[6:])):
        book.create_sheet(name)
        for row in [("text", "label"), *rows]:
            book[name].append(row)
    book.save(tmp_path / "rows.xlsx")
    recipe = text_recipe(tmp_path / "rows.xlsx", **({"sheet": "Old"} if sheet == "Old" else {}))
    assert rows_of(recipe.load()["train"]) == (ROWS[6:] if sheet == "Old" else ROWS[:6])
    if sheet == "Tickets":
        (note,) = [note for note in recipe.notes if "--sheet" in note]
        assert "Tickets" in note


@pytest.mark.contract("C2")
def test_the_detected_choice_is_printed_at_each_start(
    cli: Callable[..., Any], tmp_path: Path, bert: Path
) -> None:
    """It is, with the flags that override it, also by the second start, which reads the cache."""
    rows = [(f"{text}, café", label) for text, label in data.labelled_sentences(60)]
    path = write_rows(tmp_path / "rows.csv", rows, "cp1252", delimiter=";")
    words = ["check", "text", "--dataset", path, "--model", bert, "--max_length", "64"]
    pages = [cli(*words).stdout for _ in range(2)]
    for fragment in ("rows.csv", "cp1252", "'café'", "--encoding", "semicolon", "--csv_separator"):
        assert [fragment in page for page in pages] == [True, True]


@pytest.mark.contract("C2")
def test_the_encoding_of_files_in_class_folders_is_reported(tmp_path: Path) -> None:
    path = Path(write_class_folders(tmp_path)) / "train" / ROWS[0][1] / "0.txt"
    path.write_text("café", encoding="cp1252")
    recipe = text_recipe(tmp_path)
    assert "café" in recipe.load()["train"]["text"]
    (note,) = [note for note in recipe.notes if "cp1252" in note]
    name = f"train/{ROWS[0][1]}/0.txt"
    assert note == f"1 file read as cp1252, such as {name} (--encoding)"


# ---- C3: no row is lost, merged or shifted -------------------------------------------------------

PIECES = [
    *('"', '""', ",", ";", "\t", "|", "\n", "\r\n", "\u2028", "\u2029", "\u0085", "\x0b", "\x0c"),
    *("\x1c", "\\", "'", "#", "é", "€", "語", "😀", "NA", "word", " ", "\u00a0", "=1+1", "<b>"),
]


def random_rows(excluded: str, count: int = 3000) -> list[Row]:
    """Return rows of random characters, without those in `excluded`, around a number."""
    draw = random.Random(0)
    rows = []
    for number in range(count):
        signs = [draw.choice(PIECES) for _ in range(draw.randint(1, 12))]
        signs = [sign for sign in signs if not set(sign) & set(excluded)]
        signs.insert(draw.randint(0, len(signs)), f"w{number}")
        rows.append(("".join(signs), draw.choice(["good", "bad", "so"])))
    return rows


#: The file, how it is written, characters that it cannot contain, and the options needed.
EXHAUSTIVE: dict[str, tuple[str, dict[str, Any], str, dict[str, str]]] = {
    "minimal": ("a.csv", {}, "", {}),
    "all quoted": ("a.csv", {"quoting": csv.QUOTE_ALL, "lineterminator": "\n"}, "", {}),
    "semicolons": ("a.csv", {"delimiter": ";"}, "", {"csv_separator": ";"}),
    "tabs": ("a.tsv", {}, "", {}),
    "utf-16": ("a.csv", {"encoding": "utf-16"}, "", {}),
    "literal": ("a.tsv", {"quoting": csv.QUOTE_NONE, "quotechar": None, "lineterminator": "\n"},
                "\t\r\n", {"csv_quoting": "none"}),
    "jsonl": ("a.jsonl", {}, "", {}),
    "json": ("a.json", {}, "", {}),
    "parquet": ("a.parquet", {}, "", {}),
    "xlsx": ("a.xlsx", {}, "\r\x0b\x0c\x1c=", {}),
}  # fmt: skip


@pytest.mark.contract("C3")
@pytest.mark.parametrize("case", EXHAUSTIVE)
def test_every_row_of_a_file_is_read_in_order(case: str, tmp_path: Path) -> None:
    """The 3,000 rows have random quotes, separators, line breaks and line separators."""
    name, dialect, excluded, options = EXHAUSTIVE[case]
    rows = random_rows(excluded)
    write_rows(tmp_path / name, rows, **dialect)
    assert rows_of(text_recipe(tmp_path / name, **options).load()["train"]) == rows


HEAD = "text,label\n"
SHORT_ROWS = [(f"text of row {number}", "good" if number % 2 else "bad") for number in range(200)]
REFUSED: dict[str, tuple[str, str | bytes, list[str]]] = {
    "null byte": ("a.csv", f'{HEAD}w,good\n"x\ny",bad\nx\0y,good\n', ["line 5"]),
    "null byte in another column": ("a.csv", f"{HEAD}w,good\nx,go\0od\n", ["line 3"]),
    "short row": ("a.csv", f"{HEAD}x,good\ny\n", ["line 3", "2", "1"]),
    "short row after quoted lines": ("a.csv", f'{HEAD}"x\ny",good\nz\n', ["line 4"]),
    "long row": ("a.csv", f'{HEAD}"x\ny",good\nz,,bad\n', ["line 4", "2", "3"]),
    "long row far down": ("a.csv", HEAD + "x,good\n" * 5000 + "y,a,b\n", ["line 5002"]),
    "unquoted separator": ("a.csv", f"{HEAD}x,good\nso, so,bad\n", ["line 3"]),
    "open quote": ("a.csv", 'label,text\ngood,"x\nbad\n', ["line 2"]),
    "open quote far down": ("a.csv", HEAD + "x,good\n" * 3000 + '"y\nz,bad\n', ["line 3002"]),
    "two readings": (
        "a.csv",
        HEAD + '"x, y\nz",good\n' * 4,
        ["--csv_quoting minimal", "--csv_quoting none", "4", "8"],
    ),
    "text after a quote": (
        "a.csv",
        f'{HEAD}x,good\n"y" or z,bad\nw,good\n',
        ["line 3", "--csv_quoting none"],
    ),
    "lone quotes": ("a.csv", f'{HEAD}"x,good\n"y,bad\nz,good\n', ["line 2", "--csv_quoting none"]),
    "text after a quote, and separators": (
        "a.csv",
        f'{HEAD}"x, y",good\n"so" and, so,bad\n',
        ["line 3", "--csv_quoting none"],
    ),
    "escaped quotes": ("a.csv", HEAD + '"he said \\"no\\", twice",good\n' * 3, ["line 2"]),
    "one name twice": ("a.csv", "text,text,label\nx,y,good\n", ["'text'"]),
    "names again": ("a.csv", f"{HEAD}x,good\ny,bad\n{HEAD}z,good\n", ["line 4"]),
    "two encodings": (
        "a.csv",
        f"{HEAD}naïve,x\ndéjà vu,y\n".encode() + "café,x\n".encode("latin-1"),
        ["line 2", "line 4"],
    ),
    "names again after a byte order mark": (
        "a.csv",
        f"{HEAD}x,good\ny,bad\n\ufeff{HEAD}z,good\n",
        ["line 4"],
    ),
    "quoted names again after a byte order mark": (
        "a.csv",
        f'{HEAD}x,good\n\ufeff"text","label"\nz,good\n',
        ["line 3"],
    ),
    "names again of an index": ("a.csv", f",{HEAD}0,x,good\n,{HEAD}0,z,bad\n", ["line 3"]),
    "names again in a sheet": (
        "a.xlsx",
        workbook([("text", "label"), ("x", "good"), ("text", "label"), ("z", "bad")]),
        ["row 3"],
    ),
    "two encodings in each line": (
        "a.csv",
        HEAD.encode() + ("Très beau film,".encode() + "José Muñoz\n".encode("latin-1")) * 9,
        ["line 2", "UTF-8", "--encoding"],
    ),
    "two encodings, of one character": (
        "a.csv",
        f"{HEAD}in Hawai\u02bbi,x\n".encode() + "café,x\n".encode("latin-1"),
        ["line 2", "line 3"],
    ),
    "another alphabet far down": (
        "a.csv",
        (HEAD + "a plain line,x\n" * 100_000).encode() + "Хороший фильм,y\n".encode("cp1251") * 300,
        ["line 100002", "--encoding"],
    ),
    "two encodings far apart": (
        "a.csv",
        (HEAD + "naïve,x\n" * 100_000).encode() + "café,x\n".encode("latin-1"),
        ["line 2", "line 100002", "--encoding"],
    ),
    "no text": ("a.csv", bytes(range(256)) * 20, []),
    "gzip without its name": ("a.csv", gzip.compress(encode_rows(".csv")), ["a.csv.gz"]),
    "its name without gzip": ("a.csv.gz", encode_rows(".csv"), ["a.csv"]),
    "no object": ("a.jsonl", '{"text": "x", "label": "y"}\n\n["x", "y"]\n', ["line 3"]),
    "half a character": ("a.jsonl", '{"text": "x"}\n{"text": "\\ud83d"}\n', ["line 2"]),
    "nested without end": ("a.jsonl", '{"text": "x", "m": ' + "[" * 100_000, ["line 1"]),
    "key twice": ("a.jsonl", '{"text": "x", "label": "y", "text": "z"}\n', ["line 1", "'text'"]),
    "cut off line": ("a.jsonl", '{"text": "x", "label": "y"}\n\n{"text": "z", "la', ["line 3"]),
    "large number in a list": ("a.jsonl", '{"text": "x", "m": [[1], [18446744073709551616]]}\n',
                               ["line 1", "'m'"]),
    "key twice in an array": ("a.json", '[{"text": "x", "text": "y"}]', ["'text'"]),
    "columns": ("a.json", '{"text": {"1": "a"}, "label": {"1": "x"}}', ["orient='records'"]),
    "cut off array": ("a.json", '[\n{"text": "x", "label": "y"},\n{"text": "z", "l', ["line 3"]),
}  # fmt: skip


@pytest.mark.contract("C3")
@pytest.mark.parametrize("case", REFUSED)
def test_a_malformed_file_is_refused_with_its_line(
    case: str, tmp_path: Path, single_label_run: finetune.Run
) -> None:
    """Training and `predict` refuse it."""
    name, content, fragments = REFUSED[case]
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    message = read_refusal(path).replace(f"{tmp_path}", "")
    assert name in message
    for fragment in fragments:
        assert re.search(rf"(?<![\w.]){re.escape(fragment)}(?!\d|\.gz)", message), fragment
    with pytest.raises(finetune.UserError) as refused:
        finetune.predict_file(single_label_run, path, tmp_path / "predicted.csv")
    assert name in str(refused.value)
    for line in re.findall(r"line \d+", message):
        assert line in str(refused.value)
    assert not (tmp_path / "predicted.csv").exists()


@pytest.mark.contract("C3")
def test_a_quote_that_is_never_closed_is_refused_where_quotes_enclose_fields(
    tmp_path: Path,
) -> None:
    """The message has the line where the quote starts."""
    (tmp_path / "a.csv").write_text(f'{HEAD}x,good\n"y,bad\nz,good\n')
    message = read_refusal(tmp_path / "a.csv", csv_quoting="minimal")
    assert "a.csv, line 3" in message
    assert "--csv_quoting none" in message


@pytest.mark.contract("C3")
@pytest.mark.parametrize("packed", [".gz", ".bz2", ".zst", ".zip"])
def test_a_truncated_archive_is_refused(packed: str, tmp_path: Path) -> None:
    """It is refused wherever it is cut off; so is an archive of two files."""
    content = COMPRESSORS[packed](encode_rows(".csv", SHORT_ROWS))
    path = tmp_path / f"a.csv{packed}"
    for size in (len(content) - 1, len(content) - 9, len(content) // 2, 30):
        path.write_bytes(content[:size])
        assert path.name in read_refusal(path)
    path.write_bytes(content)
    assert rows_of(text_recipe(path).load()["train"]) == SHORT_ROWS
    if packed == ".zip":
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("b.csv", encode_rows(".csv"))
        assert path.name in read_refusal(path)


@pytest.mark.contract("C3")
@pytest.mark.parametrize("name", ["plain.parquet", "file.arrow", "plain.xlsx"])
def test_a_truncated_table_is_refused(name: str, tmp_path: Path) -> None:
    """Truncated Parquet, Arrow and Excel files are refused."""
    BINARY[name](tmp_path / name)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) * 3 // 4])
    assert name in read_refusal(tmp_path / name)


@pytest.mark.contract("C3")
def test_a_formula_that_was_never_computed_is_refused(tmp_path: Path) -> None:
    """The message names the cell. Programs that write workbooks often compute no values."""
    path = write_workbook(tmp_path / "a.xlsx", [("text", "label"), ("x", "good"), ("=A2", "bad")])
    message = read_refusal(path)
    assert "a.xlsx" in message
    assert "A3" in message


REPORTED: dict[str, tuple[str, list[Row], list[str]]] = {
    "lines in quotes": (
        f'{HEAD}"x\n\ny, z",good\n"w",bad\n',
        [("x\n\ny, z", "good"), ("w", "bad")],
        ["2 rows", "4 lines", "line 2"],
    ),
    "blank lines": (
        f"\n{HEAD}\nx,good\n\n\ny,bad\n\n",
        [("x", "good"), ("y", "bad")],
        [],
    ),
}


@pytest.mark.contract("C3")
@pytest.mark.parametrize("case", REPORTED)
def test_a_file_that_can_be_read_in_one_way_only_is_read_and_reported(
    case: str, tmp_path: Path
) -> None:
    """The report has the line, or the counts of rows and lines, and the flag for the other way."""
    content, rows, fragments = REPORTED[case]
    (tmp_path / "a.csv").write_text(content)
    recipe = text_recipe(tmp_path / "a.csv")
    assert rows_of(recipe.load()["train"]) == rows
    assert len(recipe.notes) == bool(fragments)
    for fragment in fragments:
        assert re.search(rf"(?<!\d){re.escape(fragment)}(?!\d)", recipe.notes[0]), fragment


@pytest.mark.contract("C4")
def test_a_boolean_among_fractions_stays_a_boolean(tmp_path: Path) -> None:
    """Arrow would convert it to 1."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": 1.5, "label": "p"}\n{"x": true, "label": "n"}\n', encoding="utf-8")
    values = list(text_recipe(path).read()["train"]["x"])
    assert [(value, type(value)) for value in values] == [(1.5, float), (True, bool)]


@pytest.mark.contract("C3")
@pytest.mark.parametrize("third", ["third", '"third"'])
def test_a_blank_line_of_a_one_column_file_is_a_row(
    third: str, tmp_path: Path, single_label_run: finetune.Run
) -> None:
    """It has no text, so it gets no prediction, but it keeps its position."""
    (tmp_path / "a.csv").write_text(f"text\nfirst\n\n{third}\n\n\nsixth\n")
    finetune.predict_file(single_label_run, tmp_path / "a.csv", tmp_path / "out.parquet")
    frame = pd.read_parquet(tmp_path / "out.parquet")
    texts = ["first", None, "third", None, None, "sixth"]
    assert [text if isinstance(text, str) else None for text in frame["text"]] == texts
    assert frame["label"].notna().tolist() == [text is not None for text in texts]
