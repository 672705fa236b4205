"""Reading a data set from files: every format, every split, words kept as they stand."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd
import pytest

from finetune.data import sources
from finetune.errors import UserError

ROWS = {
    "text": ["NA", "null", "None", 'a "quoted", long\nreview', "n/a", "nan"],
    "label": ["NA", "None", "good", "good", "null", "good"],
}
Columns = Mapping[str, Sequence[str | int | None]]
WRITERS: dict[str, Callable[[pd.DataFrame, Path], None]] = {
    ".csv": lambda frame, path: frame.to_csv(path, index=False),
    ".tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    ".jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True),
    ".parquet": lambda frame, path: frame.to_parquet(path, index=False),
}


def write(path: Path, columns: Columns) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    WRITERS[path.suffix](pd.DataFrame(columns), path)
    return str(path)


def test_every_format_is_tested() -> None:
    assert len(sources.READERS) >= 4
    assert set(sources.READERS) == set(WRITERS)


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
    path = write(tmp_path / f"reviews{suffix}", {"id": [70, 80], "text": ["a", "b"]})

    assert sources.read(path)["train"]["id"][:] == [0, 1]


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    path = tmp_path / "from_a_spreadsheet.csv"
    path.write_text("\ufefftext,label\nfine,good\n", encoding="utf-8")

    assert sources.read(str(path))["train"].column_names == ["text", "label", "id"]


@pytest.mark.parametrize(
    ("first", "last"), [("review 1,2", "review 2,other"), (",2", "review 2,2")]
)
def test_a_column_is_not_judged_by_its_first_rows(first: str, last: str, tmp_path: Path) -> None:
    """The reader takes 10,000 rows at a time, and would take their types for those of the file."""
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
        ({"reviews.txt": "text"}, r"reviews.txt: expected a file that ends in .csv, .tsv, .jsonl"),
        ({"reviews.csv": ""}, r"reviews.csv is empty"),
        ({"reviews.jsonl": '{"text": '}, r"cannot read .*reviews.jsonl as json"),
        ({"reviews.parquet": "text"}, r"cannot read .*reviews.parquet as parquet"),
    ],
)
def test_files_that_cannot_be_read(files: dict[str, str], message: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)

    with pytest.raises(UserError, match=message):
        sources.read(str(tmp_path / next(iter(files))))


def test_a_csv_that_is_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes("text,label\ncafé,good\n".encode("latin-1"))

    with pytest.raises(UserError, match=r"cannot read .*latin.csv as csv: .*utf-8"):
        sources.read(str(path))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["test.csv", "valid.csv"], r"expected a file train.*found test.csv, valid.csv"),
        ([], r"expected a file train.*found nothing"),
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
        ("", r"--dataset: this recipe names no data set of its own"),
        ("embedded:imbd", r"unknown data set 'embedded:imbd' \(there are: embedded:imdb"),
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
