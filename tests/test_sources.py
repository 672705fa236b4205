"""Reading a data set from files: every format, every split, words kept as they stand."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, Features, Value

from finetune.data import conversion, files, sources
from finetune.data.layout import ReadOptions
from finetune.errors import UserError
from finetune.runtime import formats, hub

ROWS = {
    "text": ["NA", "null", "None", 'a "quoted", long\nreview', "n/a", "nan"],
    "label": ["NA", "None", "good", "good", "null", "good"],
}
Columns = Mapping[str, Sequence[str | int | None]]
WRITERS: dict[str, Callable[[pd.DataFrame, Path], None]] = {
    ".csv": lambda frame, path: frame.to_csv(path, index=False),
    ".tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    ".jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True),
    ".ndjson": lambda frame, path: frame.to_json(path, orient="records", lines=True),
    ".json": lambda frame, path: frame.to_json(path, orient="records"),
    ".parquet": lambda frame, path: frame.to_parquet(path, index=False),
    ".arrow": lambda frame, path: frame.to_feather(path),
    ".feather": lambda frame, path: frame.to_feather(path),
    ".xlsx": lambda frame, path: frame.to_excel(path, index=False),
}


def write(path: Path, columns: Columns) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    WRITERS[path.suffix](pd.DataFrame(columns), path)
    return str(path)


def test_every_format_is_tested() -> None:
    assert len(files.READERS) >= 5
    assert set(files.READERS) == {*WRITERS, ".txt"}
    assert tuple(WRITERS) == formats.FILES


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_file_gives_its_columns_word_for_word(suffix: str, tmp_path: Path) -> None:
    data = sources.read(write(tmp_path / f"reviews{suffix}", ROWS))

    assert list(data) == ["train"]
    assert data["train"].column_names == ["text", "label", "id"]
    assert data["train"].to_dict() == {**ROWS, "id": [0, 1, 2, 3, 4, 5]}


@pytest.mark.parametrize("suffix", WRITERS)
def test_only_what_is_empty_is_missing(suffix: str, tmp_path: Path) -> None:
    data = sources.read(write(tmp_path / f"gaps{suffix}", {"text": ["fine", None], "label": "x"}))

    assert data["train"]["text"][:] == ["fine", None]


@pytest.mark.parametrize("suffix", WRITERS)
def test_an_id_of_the_source_gives_way_to_the_number_of_the_row(
    suffix: str, tmp_path: Path
) -> None:
    path, notes = write(tmp_path / f"reviews{suffix}", {"id": [70, 80], "text": ["a", "b"]}), []

    assert sources.read(path, note=notes.append)["train"]["id"][:] == [0, 1]
    assert [note.partition(":")[0] for note in notes] == [
        "dropped the column 'id' of the train data"
    ]


def test_the_cache_of_a_file_depends_on_its_quoting(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,label\n"a,01\nb",02\n')
    minimal, literal = (
        sources.read(str(path), options=ReadOptions(quoting=quoting))["train"]["label"][:]
        for quoting in ("minimal", "none")
    )

    assert minimal == ["02"]
    assert literal == ["01", "02"]
    with pytest.raises(UserError, match=r"is not a \.csv or \.tsv file"):
        sources.read(write(tmp_path / "a.jsonl", ROWS), options=ReadOptions(quoting="none"))


@pytest.mark.parametrize(
    ("content", "quoting", "note"),
    [
        ('text\n"a\nb"\nc\n', "minimal", "a.csv: 2 rows in 3 lines, as quoted fields contain line"),
        ('text\n"a\nb"c\n', None, "minimal (1 row) or --csv_quoting none (2 rows, one per line)"),
        ('text\n"a\nb\n', "none", "a.csv: read 2 rows, one per line, with quotation marks as text"),
        ('text,n\n"a, b\nc",1\n', "minimal", "line breaks; --csv_quoting none for 2 rows"),
        ("text,n\n" + '"a, b\nc",1\n' * 4, None, "minimal (4 rows) or --csv_quoting none (8 rows"),
        ('text,n\n"a, b\nc" d,1\n', "none", "as quotes around fields they would leave 1 row"),
        ('text,n\n"a,1\nb,2\n', "none", "as quotes around fields they would not pair up"),
        ('"text","n"\n"a,\nb","1"\n', "minimal", "a.csv: 1 row in 2 lines, as quoted fields"),
        ('text,n\n"a",1\n"b ""c""",2\n', "minimal", ""),
        ('text,n\na,1\n"b" or "c",2\n', "minimal", "a.csv, line 3: text follows a closing"),
    ],
)
def test_the_quoting_of_a_file_is_found(
    content: str, quoting: str | None, note: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(content)

    if quoting is None:
        with pytest.raises(UserError) as refusal:
            files.inspected(path)
        assert note in str(refusal.value)
    else:
        found, told = files.inspected(path)
        assert found.quoting == quoting
        assert note in told
        assert bool(note) is bool(told)


def test_rows_fewer_than_lines_are_told(tmp_path: Path) -> None:
    notes: list[str] = []
    path = write(tmp_path / "a.csv", {"text": ["a\nb\nc", "d"], "label": ["x", "y"]})

    assert len(sources.read(path, note=notes.append)["train"]) == 2
    assert notes == ["a.csv: 2 rows in 4 lines, as quoted fields contain line breaks"]


@pytest.mark.parametrize(
    ("first", "last"), [("review 1,2", "review 2,other"), (",2", "review 2,2")]
)
def test_a_column_is_not_judged_by_its_first_rows(first: str, last: str, tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("\n".join(["text,label", *[first] * 12_000, last]) + "\n")

    rows = sources.read(str(path))["train"]

    assert rows["text"][-1] == "review 2"
    assert str(rows["label"][-1]) == last.partition(",")[2]


def test_a_directory_gives_a_split_for_each_file(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", {"text": ["a", "b", "c"], "label": [1, 2, 1]})
    write(tmp_path / "validation.jsonl", {"text": ["d"], "label": ["1"]})
    write(tmp_path / "test.parquet", {"text": ["e", "f"], "label": [1.0, 2.0]})
    (tmp_path / "README.md").write_text("about these files")
    write(tmp_path / "unlabelled.csv", {"text": ["g"]})

    data = sources.read(str(tmp_path))

    assert {split: rows["text"][:] for split, rows in data.items()} == {
        "train": ["a", "b", "c"],
        "validation": ["d"],
        "test": ["e", "f"],
    }
    assert data["test"]["id"][:] == [0, 1]


def test_a_directory_needs_no_more_than_train(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", ROWS)

    assert list(sources.read(str(tmp_path))) == ["train"]


def test_the_same_file_gives_the_same_rows_twice(reviews: Path) -> None:
    first, second = sources.read(str(reviews)), sources.read(str(reviews))

    assert len(first["train"]) == 200
    assert first["train"].to_dict() == second["train"].to_dict()


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "reviews.csv"
    write(path, {"text": ["before"], "label": ["x"]})
    sources.read(str(path))
    write(path, {"text": ["afterwards"], "label": ["x"]})

    assert sources.read(str(path))["train"]["text"][:] == ["afterwards"]


def test_a_missing_file_is_named_with_the_nearest_that_is_there(reviews: Path) -> None:
    wanted = reviews.with_name("review.csv")

    with pytest.raises(UserError, match=f"no such file.*{wanted}; did you mean 'reviews.csv'"):
        sources.read(str(wanted))


def test_a_missing_file_in_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such file or directory: .*/nowhere/reviews.csv"):
        sources.read(str(tmp_path / "nowhere" / "reviews.csv"))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"reviews.txt": "text"}, r"reviews.txt: expected a file ending in .csv, .tsv, .jsonl"),
        (
            {"a.csv.gz": "text,label\n"},
            r"a.csv.gz is not compressed as its name says: rename it to a.csv",
        ),
        ({"a.csv.xz": ""}, r"expected a file ending in .*; it is compressed: unxz -k a.csv.xz"),
        ({"a.xlsx": ""}, r"a.xlsx is damaged or no spreadsheet"),
        ({"a.zip": ""}, r"what is in it has to be in its name, as .csv.zip; or unzip it"),
        (
            {"a.csv": 'text,label\nfine,x\n"of two\nlines",y\na\0b,x\n'},
            r"a.csv, line 5: the column 'text' holds a null byte, which is no text: is the file",
        ),
        ({"a.xls": ""}, r"expected a file ending in .*; save it as .xlsx"),
        ({"reviews.csv": ""}, r"reviews.csv holds no rows"),
        ({"reviews.csv": "text,label\n"}, r"reviews.csv holds no rows"),
        ({"reviews.csv": "text,text\na,b\n"}, r"reviews.csv: two columns are called 'text'"),
        ({"reviews.csv": "text,label\na,b\nc\n"}, r"reviews.csv, line 3: expected 2 fields.* 1:"),
        ({"reviews.csv": "text,label\na,b,c\n"}, r"reviews.csv, line 2: expected 2 fields.* 3:"),
        (
            {"reviews.csv": 'label,text\na,"b\nc"\nd,"e\nf,g\n'},
            r"reviews.csv, line 4: the file ends in a quoted field; is a quote never closed",
        ),
        (
            {"reviews.jsonl": '{"text": "a"}\n{"text": '},
            r"reviews.jsonl, line 2: ends before a value \(character 1",
        ),
        ({"reviews.jsonl": '[{"text": "a"}]'}, r"reviews.jsonl, line 1: expected an object"),
        (
            {"reviews.jsonl": '{"text": "a"}\n\n{"n": ' + "9" * 23 + "}\n"},
            r"reviews.jsonl, line 3: the column 'n' holds an integer of more than 64 bits; write",
        ),
        (
            {"reviews.jsonl": '{"text": "a"}\n{"n": ' + "9" * 5000 + "}\n"},
            r"reviews.jsonl, line 2: an integer of more than 4,300 digits; write it as text",
        ),
        ({"reviews.parquet": "text"}, r"cannot read .*reviews.parquet: "),
    ],
)
def test_files_that_cannot_be_read(files: dict[str, str], message: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)

    with pytest.raises(UserError, match=message):
        sources.read(str(tmp_path / next(iter(files))))


def test_the_line_of_a_long_integer_is_told_in_every_encoding(tmp_path: Path) -> None:
    """In UTF-16 an empty line is not empty as bytes."""
    content = '{"text": "a"}\n\n{"n": ' + "9" * 23 + '}\n{"n": "b"}\n'
    (tmp_path / "a.jsonl").write_text(content, encoding="utf-16")
    with pytest.raises(UserError, match=r"a.jsonl, line 3: the column 'n' holds an integer"):
        sources.read(str(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("name", ["test.csv.xz", "test.txt"])
def test_a_split_in_another_format_is_refused(name: str, tmp_path: Path) -> None:
    write(tmp_path / "train.csv", ROWS)
    (tmp_path / name).write_bytes(b"data")

    with pytest.raises(UserError, match=f"{name} would not be read"):
        sources.read(str(tmp_path))


def test_other_files_of_a_directory_are_told(tmp_path: Path) -> None:
    notes: list[str] = []
    for name in ("train.jsonl", "validation.jsonl", "val.csv", "unlabelled.csv"):
        write(tmp_path / name, ROWS)
    (tmp_path / "README.md").write_text("about test.csv")

    assert set(sources.read(str(tmp_path), note=notes.append)) == {"train", "validation"}
    assert notes == ["not read: unlabelled.csv, val.csv (expected train, validation and test)"]


def test_a_file_of_two_encodings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    path.write_bytes(
        ("text,label\n" + "naïve,good\n" * 200_000).encode() + "café,good\n".encode("latin-1")
    )

    with pytest.raises(
        UserError,
        match=r"two.csv is not utf-8 throughout: line 2 is \('naïve'\), line 200002 is not \(byte",
    ):
        sources.read(str(path))


def test_a_short_file_of_two_encodings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    path.write_bytes("text,label\nnaïve,x\ndéjà vu,y\n".encode() + "café,x\n".encode("latin-1"))

    with pytest.raises(
        UserError, match=r"line 2 is \('naïve'\), line 4 is not \(byte 0xe9\); convert"
    ):
        sources.read(str(path))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["test.csv", "valid.csv"], r"expected a file train.*found test.csv, valid.csv"),
        ([], r"expected a file train.*found nothing"),
        (["train.csv", "dev.csv"], r"dev.csv would not be read; expected validation.{csv,tsv,"),
        (["train.csv", "Test.csv"], r"Test.csv would not be read; expected test.{csv,tsv,"),
        (
            ["train.csv", "train.tsv", "test.csv"],
            r"one file for 'train', found train.csv and train.tsv",
        ),
    ],
)
def test_directories_that_cannot_be_read(names: list[str], message: str, tmp_path: Path) -> None:
    for name in names:
        write(tmp_path / name, ROWS)

    with pytest.raises(UserError, match=message):
        sources.read(str(tmp_path))


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("", r"--dataset is required: this recipe has no data set of its own"),
        ("embedded:imbd", r"unknown data set 'embedded:imbd' \(available: embedded:imdb"),
    ],
)
def test_names_that_mean_nothing(dataset: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        sources.read(dataset)


def test_a_data_set_that_cannot_be_had() -> None:
    """Here the Hub is out of reach; a command says so earlier, a notebook comes as far as this."""
    with pytest.raises(UserError, match="'nobody/nothing'"):
        sources.read("nobody/nothing")


def test_where_the_data_came_from(reviews: Path) -> None:
    assert sources.describe(str(reviews)) == f"{reviews} (local)"
    assert sources.describe("Yelp/yelp_review_full") == "Yelp/yelp_review_full (Hub)"
    assert "25,000 IMDB reviews" in sources.describe("embedded:imdb")


def test_nested_values_survive(tmp_path: Path) -> None:
    path = tmp_path / "nested.jsonl"
    rows = [{"text": "fine", "label": "x", "more": {"stars": 5}}]
    path.write_text("\n".join(map(json.dumps, rows)))

    assert sources.read(str(path))["train"][0] == {**rows[0], "id": 0}


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_what_looks_like_a_number_stays_as_written(suffix: str, tmp_path: Path) -> None:
    columns = {"zip": ["007", "080"], "code": ["0E1", "1e5"], "n": ["1.50", None]}

    data = sources.read(write(tmp_path / f"numbers{suffix}", columns))["train"]

    assert data.to_dict() == {**columns, "id": [0, 1]}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_every_text_type_of_parquet_is_text(kind: pa.DataType, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": pa.array(ROWS["text"], kind)}), tmp_path / "a.parquet")

    data = sources.read(str(tmp_path / "a.parquet"))["train"]

    assert data["text"][:] == ROWS["text"]
    assert data.features["text"].dtype in ("string", "large_string")


def test_a_column_of_json_lines_has_the_type_of_all_its_values(tmp_path: Path) -> None:
    """Another one from the second chunk on; ``by`` has no type that is common to its values."""
    path = tmp_path / "reviews.jsonl"
    rows: list[dict[str, Any]] = [{"text": "2020-01-01", "score": n} for n in range(2000)]
    rows += [{"text": None, "score": 0.5, "by": 1}, {"score": None, "by": "x"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    data = sources.read(str(path))["train"]

    assert data["text"][-3:] == ["2020-01-01", None, None]
    assert data["score"][-3:] == [1999.0, 0.5, None]
    assert data["by"][-3:] == [None, 1, "x"]


def test_a_label_of_a_parquet_file_keeps_its_names(tmp_path: Path) -> None:
    label = ClassLabel(names=["bad", "good"])
    features = Features({"text": Value("string"), "label": label})
    rows = {"text": [str(n) for n in range(3000)], "label": [n % 2 for n in range(3000)]}
    Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "reviews.parquet")

    data = sources.read(str(tmp_path / "reviews.parquet"))["train"]

    assert data.features["label"] == label
    assert data.to_dict() == {**rows, "id": list(range(3000))}


def test_a_reading_that_fails_leaves_nothing_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "reviews.csv", ROWS)
    monkeypatch.setattr(hub, "caches", lambda: {"datasets": tmp_path / "cache"})
    with monkeypatch.context() as patched:
        patched.setattr(conversion, "_typed", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            sources.read(path)
    assert [each for each in (tmp_path / "cache").rglob("*") if each.is_file()] == []

    assert sources.read(path)["train"]["text"][:] == ROWS["text"]
    (cached,) = (tmp_path / "cache").rglob("*.arrow")
    assert sources.read(path)["train"].cache_files == [{"filename": str(cached)}]
