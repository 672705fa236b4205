"""Data: labels, texts and faults in rows (rows C4 and C5 of the contract)."""

import csv
import datetime
import decimal
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, Features, Value

import finetune
from recipes.image import Image
from tests.acceptance import data
from tests.acceptance.test_data import (
    read_refusal,
    refusal,
    rows_of,
    text_recipe,
    write_files,
    write_rows,
    write_workbook,
)

# ---- C4: labels and texts stay as written --------------------------------------------------------

NAMES = [
    *("00", "007", "0", "1.0", "1", "1e5", "TRUE", "True", "NA", "null", "None", "nan", "N/A"),
    "[NULL]",
    *(" good", "good", "good ", "Good", "caf\u00e9", "cafe\u0301", "-", "#", "<b>&amp;</b>"),
]
NAMED_ROWS = [(f"text {number} of it", NAMES[number % len(NAMES)]) for number in range(220)]


@pytest.mark.contract("C4")
@pytest.mark.parametrize(
    "suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet", ".xlsx", "frame"]
)
def test_names_of_labels_stay_as_written(suffix: str, tmp_path: Path) -> None:
    """Label names keep their form and their blanks in every format; those of missing values are
    reported.
    """
    is_frame = suffix == "frame"
    frame = pd.DataFrame(NAMED_ROWS, columns=["text", "label"])
    source = frame if is_frame else write_rows(tmp_path / f"rows{suffix}", NAMED_ROWS)
    recipe = text_recipe(source, task="single_label")
    assert rows_of(recipe.load()["train"]) == NAMED_ROWS
    assert sorted(recipe.labels) == sorted(NAMES)
    (note,) = [note for note in recipe.notes if "may be a missing value" in note]
    assert note.startswith("'N/A', '[NULL]', 'nan', 'null': ")


def numbered(count: int = 60, **columns: Sequence[Any]) -> list[dict[str, Any]]:
    """Return rows with a text each, and with the values of each column in turn."""
    rows = []
    for number in range(count):
        row: dict[str, Any] = {"text": f"text {number} of it"}
        for name, values in columns.items():
            row[name] = values[number % len(values)]
        rows.append(row)
    return rows


#: Rows that can be read, but are not what they seem, and a part of what is said about them.
DOUBTFUL: dict[str, tuple[Any, str]] = {
    "labelled by nobody": (
        numbered(label=[["a"], [], ["b"], []]),
        "30 training rows without a label, and one label in each of the others",
    ),
    "split column": (
        numbered(label=["a", "b", "b"], Split=["train", "dev", "train", "test"]),
        "the column 'Split' names splits ('train', 'dev', 'test'), but is not used",
    ),
    "classes without rows": (
        Dataset.from_list(
            numbered(label=[0, 2]),
            Features(text=Value("string"), label=ClassLabel(names=["a", "b", "c"])),
        ),
        "no row has the label 'b', which the data declares",
    ),
}


@pytest.mark.contract("C3", "C4")
@pytest.mark.parametrize("case", DOUBTFUL)
def test_rows_that_may_not_be_what_they_seem_are_reported(case: str) -> None:
    rows, expected = DOUBTFUL[case]
    recipe = text_recipe(rows)
    _ = recipe.splits
    assert [note for note in recipe.notes if expected in note]


@pytest.mark.contract("C3")
@pytest.mark.parametrize("values", [[["train"], ["test"]], [{"train": 1}, {"train": 2}], [True]])
def test_a_column_called_set_may_have_any_values(values: list[Any]) -> None:
    recipe = text_recipe(numbered(label=["a", "b", "b"], set=values, answer=values))
    assert sum(map(len, recipe.splits.values())) == 60
    assert not [note for note in recipe.notes if "names splits" in note]


@pytest.mark.contract("C5")
def test_rows_that_were_not_accepted_in_prodigy_are_refused_or_left_out() -> None:
    """Unless the column ``answer`` has other values, or is the label."""
    rows = numbered(label=["a", "b", "b"], answer=["accept", "reject", "accept", "ignore"])
    message = refusal(text_recipe(rows))
    assert "30 of 60 train rows that were not accepted" in message
    assert "--drop_invalid" in message
    recipe = text_recipe(rows, drop_invalid=True)
    assert sum(map(len, recipe.splits.values())) == 30
    others = [row | {"answer": "maybe" if row["answer"] == "ignore" else "reject"} for row in rows]
    assert sum(map(len, text_recipe(others).splits.values())) == 60
    recipe = text_recipe(rows, label_column="answer")
    assert recipe.labels == ["accept", "ignore", "reject"]


@pytest.mark.contract("C4")
def test_lists_of_one_label_are_classes_if_they_are_asked_for() -> None:
    assert text_recipe(numbered(label=[["a"], ["b"]]), task="single_label").labels == ["a", "b"]


@pytest.mark.contract("C5")
def test_held_out_numbers_that_are_all_the_same_are_refused() -> None:
    """As the hidden labels of a benchmark, which are -1."""
    splits = {"train": numbered(label=[0.5, 1.5, 4]), "test": numbered(9, label=[-1.0])}
    message = refusal(text_recipe(splits, task="regression"))
    assert "all 9 test rows have the same label, -1" in message
    assert "--dataset_splits test=none" in message


@pytest.mark.contract("C4")
@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([-999] * 3, ["3 of 53 train rows with -999 in 'label', while the others are from 1 to 4"]),
        ([9999] * 70, ["70 of 120 train rows with 9999"]),
        ([-2, 6], []),
    ],
)
def test_numbers_far_from_all_others_are_reported(
    others: list[int], expected: list[str], tmp_path: Path
) -> None:
    """They may stand for a missing value."""
    numbers = [1, 2, 2.5, 3, 4] * 10 + others
    rows = [(f"text {row} of it", number) for row, number in enumerate(numbers)]
    recipe = text_recipe(write_rows(tmp_path / "a.csv", rows), task="regression")
    _ = recipe.splits
    notes = [finding.message for finding in recipe.report.findings if finding.name == "outliers"]
    assert len(notes) == len(expected)
    assert all(map(str.startswith, notes, expected))


@pytest.mark.contract("C4")
@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([0, 1, 2], ["0", "1", "2"]),
        ([2, 10, 1], ["1", "2", "10"]),
        ([True, False], ["False", "True"]),
        ([1.0, 2.0], ["1", "2"]),
    ],
)
def test_values_that_are_no_text_have_the_names_of_their_values(
    values: list[Any], names: list[str], tmp_path: Path
) -> None:
    """Numbers in their order, booleans, and whole numbers that are stored as floats."""
    frame = pd.DataFrame({"text": [f"text {number}" for number in range(90)]})
    frame["label"] = [values[number % len(values)] for number in range(90)]
    frame.to_parquet(tmp_path / "a.parquet")
    recipe = text_recipe(tmp_path / "a.parquet", task="single_label")
    assert recipe.labels == names
    expected = [str(int(value) if isinstance(value, float) else value) for value in frame["label"]]
    assert [label for _, label in rows_of(recipe.load()["train"])] == expected


@pytest.mark.contract("C4")
def test_names_travel_into_the_model_and_the_predictions(tmp_path: Path, bert: Path) -> None:
    """`id2label` in `config.json`, by class id, and `predictions.parquet` have the names."""
    data.write_csv(tmp_path / "rows.csv", ["text", "label"], NAMED_ROWS)
    run = finetune.train(
        "text",
        dataset=str(tmp_path / "rows.csv"),
        model=str(bert),
        output_dir=str(tmp_path / "run"),
        task="single_label",
        max_length=16,
        max_steps=2,
        global_batch_size=8,
        precision="fp32",
        baseline=False,
        disable_tqdm=True,
    )
    config = json.loads((run.path / "config.json").read_text(encoding="utf-8"))
    names = [config["id2label"][str(number)] for number in range(len(NAMES))]
    assert sorted(names) == sorted(NAMES)
    assert config["label2id"] == {name: number for number, name in enumerate(names)}
    assert run.labels == names
    frame = pd.read_parquet(run.path / "predictions.parquet")
    assert len(frame) == 44
    assert dict(zip(frame["text"], frame["label"], strict=True)).items() <= dict(NAMED_ROWS).items()
    assert set(frame["prediction"]) <= set(NAMES)


ODD_TEXTS = ["NA", "null", "None", "nan", "123", "007", "1e5", "1.50", "2024-01-02", "TRUE", " x "]


@pytest.mark.contract("C4")
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet", ".xlsx", "frame"])
def test_cells_that_look_like_numbers_or_nulls_stay_text(suffix: str, tmp_path: Path) -> None:
    """So do ids of 20 digits in another column."""
    columns = {
        "text": [*ODD_TEXTS, "words"],
        "label": ["x", "y"] * 6,
        "customer": [f"1234567890123456789{number:02}" for number in range(12)],
        "code": ["0E1", "007", "1.50", "NA", "null", "1e5"] * 2,
    }
    frame, source = pd.DataFrame(columns), tmp_path / f"rows{suffix}"
    if suffix == ".jsonl":
        frame.to_json(source, orient="records", lines=True)
    elif suffix == ".parquet":
        frame.to_parquet(source)
    elif suffix == ".xlsx":
        write_workbook(source, [tuple(columns), *frame.itertuples(index=False)])
    elif suffix != "frame":
        frame.to_csv(source, index=False, sep="\t" if suffix == ".tsv" else ",")
    rows = text_recipe(frame if suffix == "frame" else source).load()["train"]
    for column in ("text", "customer", "code"):
        assert rows[column][:] == columns[column]
    if suffix == ".jsonl":
        number = '{{"text": "words", "label": "x", "customer": {}}}'
        source.write_text(number.format(2**63))
        message = read_refusal(source)
        assert "line 1" in message
        assert "'customer'" in message
        source.write_text("\n".join(map(number.format, (-(2**63), 2**63 - 1))))
        customers = text_recipe(source).load()["train"]["customer"]
        assert customers[:] == [-(2**63), 2**63 - 1]


@pytest.mark.contract("C1", "C4")
def test_values_of_a_spreadsheet_are_written_as_a_csv_of_it(tmp_path: Path) -> None:
    """Dates, numbers, booleans and Windows line breaks; empty rows are skipped."""
    moment = datetime.datetime(2024, 2, 3, 4, 5)
    cells = [
        ("text", "label", "when", "share"),
        ("a fine_x000D_\nfilm", 1, datetime.date(2024, 2, 3), 0.5),
        (),
        ("naïve café", True, moment, 12345678.0),
        ("words", "x", None, 2**53 + 2),
        ("more", "x", None, 1234567890123456789),  # of which the file has 16 digits
    ]
    recipe = text_recipe(write_workbook(tmp_path / "a.xlsx", cells), task="single_label")
    rows = recipe.load()["train"]
    assert rows["text"][:] == ["a fine\r\nfilm", "naïve café", "words", "more"]
    assert [label for _, label in rows_of(rows)] == ["1", "TRUE", "x", "x"]
    assert rows["when"][:] == ["2024-02-03", "2024-02-03 04:05:00", None, None]
    assert rows["share"][:] == ["0.5", "12345678", str(2**53 + 2), "1.234567890123457e+18"]


@pytest.mark.contract("C1", "C4")
def test_types_of_parquet_keep_their_values(tmp_path: Path) -> None:
    """Decimals, categories, durations, times, lists, structs and class names are kept."""
    count = 6
    columns: dict[str, pa.Array] = {
        "text": pa.array([f"text {number}" for number in range(count)]),
        "label": pa.array(["x", "y"] * 3).dictionary_encode(),
        "price": pa.array([decimal.Decimal(f"{number}.50") for number in range(count)]),
        "lasted": pa.array([datetime.timedelta(seconds=number) for number in range(count)]),
        "at": pa.array([datetime.datetime(2024, 1, 1 + number) for number in range(count)]),
        "tags": pa.array([["a"], [], None, ["b", "c"], ["d"], []]),
        "more": pa.array([{"stars": number} for number in range(count)]),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    rows = text_recipe(tmp_path / "a.parquet").load()["train"]
    assert [label for _, label in rows_of(rows)] == ["x", "y"] * 3
    for name in ("price", "lasted", "at", "tags", "more"):
        assert rows[name][:] == columns[name].to_pylist()
    features = Features({"text": Value("string"), "label": ClassLabel(names=["z", "a"])})
    classes = Dataset.from_dict({"text": list("stuvw"), "label": [0, 1, 0, 1, 1]}, features)
    classes.to_parquet(tmp_path / "b.parquet")
    loaded = text_recipe(tmp_path / "b.parquet").load()["train"]
    assert rows_of(loaded) == list(zip("stuvw", "zazaa", strict=True))
    assert loaded.features["label"].names == ["z", "a"]


# ---- C5: one message with column, line and flag --------------------------------------------------


def csv_text(
    count: int = 40, changes: dict[int, str] | None = None, head: str = "body,queue"
) -> str:
    """Return a CSV of tickets; `changes` replaces rows by their number, from 0."""
    rows = [f"ticket {number} is open,{('bad', 'good')[number % 2]}" for number in range(count)]
    for number, row in (changes or {}).items():
        rows[number] = row
    return "\n".join([head, *rows]) + "\n"


def only(label: str, count: int = 40, first: int = 0) -> str:
    rows = [f"ticket {number} is new,{label}" for number in range(first, first + count)]
    return "\n".join(["body,queue", *rows]) + "\n"


FAULTY: dict[str, tuple[dict[str, str], dict[str, Any], list[str]]] = {
    "missing texts": (
        {"a": csv_text(changes={3: ",bad", 7: "  ,good", 8: '"",bad'})},
        {},
        ["3 of 40", "'body'", "lines 5, 9, 10", "--drop_invalid"],
    ),
    "missing label": (
        {"a": csv_text(changes={30: "ticket 30,"})},
        {},
        ["1 of 40", "'queue'", "line 32", "--drop_invalid"],
    ),
    "no label at all": (
        {"a": only("")},
        {},
        ["40 of 40", "'queue'", "is --label_column the right column?"],
    ),
    "lines of quoted rows": (
        {"a": csv_text(changes={0: '"of\nthree\nlines",bad', 5: ",good"})},
        {},
        ["'body'", "line 9"],
    ),
    "missing text of the test set": (
        {"train": csv_text(), "test": csv_text(9, {4: ",bad"})},
        {},
        ["1 of 9 test", "'body'", "line 6", "--drop_invalid"],
    ),
    "missing text of the second file": (
        {"train-1": csv_text(), "train-2": csv_text(9, {4: ",bad"})},
        {},
        ["train-2.csv line 6"],
    ),
    "one class": ({"a": only("good")}, {}, ["'good'", "'queue'"]),
    "class of the test set": (
        {"train": csv_text(), "test": csv_text(9, {4: "ticket x,odd"})},
        {},
        ["'odd'", "'queue'", "line 6", "--label_map"],
    ),
    "class of the validation set": (
        {"train": csv_text(), "validation": csv_text(9, {1: "ticket x,odd"})},
        {},
        ["validation", "'odd'", "'queue'", "line 3", "--label_map"],
    ),
    "empty test set": ({"train": csv_text(), "test": "body,queue\n"}, {}, ["test.csv"]),
    "empty training set": ({"train": "body,queue\n", "test": csv_text()}, {}, ["train.csv"]),
    "nothing": ({"a": ""}, {}, ["a.csv"]),
    "wrong text column": (
        {"a": csv_text()},
        {"text_column": "bodi"},
        ["--text_column", "'bodi'", "'body'", "body, queue"],
    ),
    "wrong label column": (
        {"a": csv_text()},
        {"label_column": "Queue"},
        ["--label_column", "'Queue'", "'queue'"],
    ),
    "column of one split": (
        {"train": csv_text(), "test": csv_text(9, head="body,label")},
        {},
        ["'queue'", "test"],
    ),
    "list": (
        {"a": csv_text(changes={4: 'ticket 4,"[""a"", ""b""]"'})},
        {"task": "single_label"},
        ["'queue'", "line 6", "--task multi_label"],
    ),
    "list that decides nothing": (
        {"a": csv_text(changes={4: "ticket 4,bad;good"})},
        {},
        ["'queue'", "'bad;good'", "line 6", "--label_separator ';'", "--task single_label"],
    ),
    "no labels": ({"a": only("[]")}, {"task": "multi_label"}, ["'queue'"]),
    "word in a column of 0 and 1": (
        {
            "a": csv_text(changes={4: "ticket 4,1,2"}, head="body,queue,kind")
            .replace("bad", "1,0")
            .replace("good", "0,1")
        },
        {"label_column": "", "label_columns": "queue,kind", "task": "multi_label"},
        ["'kind'", "'2'", "line 6", "0 and 1"],
    ),
    "words as numbers": (
        {"a": csv_text()},
        {"task": "regression"},
        ["40 of 40", "'queue'", "'bad'", "--task single_label"],
    ),
    "no text": (
        {"a": "body,queue\n" + "".join(f"{number},{'ab'[number % 2]}\n" for number in range(40))},
        {},
        ["--text_column", "'body'"],
    ),
}


@pytest.mark.contract("C5")
@pytest.mark.parametrize("case", FAULTY)
def test_a_fault_of_the_data_is_one_message_with_column_line_and_flag(
    case: str, tmp_path: Path
) -> None:
    """Each fault stops a training."""
    files, options, fragments = FAULTY[case]
    write_files(tmp_path, **files)
    source = tmp_path / "a.csv" if "a" in files else tmp_path
    columns = {"text_column": "body", "label_column": "queue"}
    with pytest.raises(finetune.UserError) as refused:
        _ = text_recipe(source, **{**columns, **options}).splits
    (message,) = (text.replace(f"{tmp_path}", "") for text in refused.value.mistakes)
    for fragment in fragments:
        assert re.search(rf"(?<!\d){re.escape(fragment)}(?!\d)", message), fragment


@pytest.mark.contract("C5")
@pytest.mark.parametrize(
    ("suffix", "place"),
    [(".jsonl", "lines 3, 5"), (".parquet", "rows 2, 3"), (".xlsx", "rows 3, 4")],
)
def test_a_missing_value_is_found_in_every_format(suffix: str, place: str, tmp_path: Path) -> None:
    """The message has the line of a text file, otherwise the row; frames count from 0."""
    objects = [{"body": "a", "queue": "x"}, {"body": None, "queue": "y"}, {"queue": "x"}]
    frame, path = pd.DataFrame(objects), tmp_path / f"rows{suffix}"
    if suffix == ".jsonl":
        path.write_text("\n\n".join(map(json.dumps, objects)))
    elif suffix == ".parquet":
        frame.to_parquet(path)
    else:
        write_workbook(path, [("body", "queue"), ("a", "x"), (None, "y"), (None, "x")])
    options = {"text_column": "body", "label_column": "queue"}
    message = refusal(text_recipe(path, **options))
    assert "2 of 3" in message
    assert place in message
    assert "positions 1, 2" in refusal(text_recipe(frame, **options))


@pytest.mark.contract("C5", "C9")
@pytest.mark.parametrize(
    ("suffix", "column", "values", "fragments"),
    [
        (".jsonl", "body", [*"abcd", 7, *"fgh"], ["--text_column", "'body'", "7", "line 5"]),
        (".jsonl", "body", [7, *"bcdefgh"], ["--text_column", "'body'", "7", "line 1"]),
        (".jsonl", "body", [*"abcdefg", ["h", "i"]], ["'body'", "['h', 'i']", "line 8"]),
        (".jsonl", "body", [*"abcdefg", {"a": 1}], ["'body'", "{'a': 1}", "line 8"]),
        (".parquet", "body", [None, *map(str.encode, "bcdefgh")], ["'body'", "b'b'", "rows 2, 3"]),
        (".parquet", "queue", [b"x", b"y"] * 4, ["--label_column", "'queue'", "b'x'"]),
    ],
)  # fmt: skip
def test_values_that_are_no_text_are_refused_before_a_training(
    suffix: str, column: str, values: list[Any], fragments: list[str], tmp_path: Path
) -> None:
    """Training and `check` refuse them."""
    columns = {"body": [f"text {n}" for n in range(8)], "queue": ["x", "y"] * 4} | {column: values}
    path = tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    else:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        path.write_text("\n".join(map(json.dumps, rows)))
    options = {"text_column": "body", "label_column": "queue"}
    message = refusal(text_recipe(path, **options))
    for fragment in fragments:
        assert fragment in message
    checked = finetune.check("text", dataset=str(path), model="none", **options)
    assert checked.status == 2
    errors = [finding.message for finding in checked.findings if finding.severity == "error"]
    assert [error for error in errors if f"'{column}'" in error]


@pytest.mark.contract("C5")
def test_all_faults_of_the_data_come_at_once(tmp_path: Path) -> None:
    """Missing texts and labels in two splits are one message each."""
    write_files(
        tmp_path,
        train=csv_text(changes={3: ",bad", 5: "ticket 5,"}),
        test=csv_text(9, {4: ",bad"}),
    )
    with pytest.raises(finetune.UserError) as refused:
        text_recipe(tmp_path, text_column="body", label_column="queue").load()
    places = [re.findall(r"lines? \d+", message) for message in refused.value.mistakes]
    assert places == [["line 5"], ["line 7"], ["line 6"]]


@pytest.mark.contract("C5")
def test_invalid_rows_are_left_out_if_asked_for_and_counted(tmp_path: Path) -> None:
    """`--drop_invalid` drops these rows and no others."""
    changes = {3: ",bad", 7: "  ,good", 30: "ticket 30,", 31: ","}
    write_files(tmp_path, a=csv_text(changes=changes))
    columns = {"text_column": "body", "label_column": "queue"}
    recipe = text_recipe(tmp_path / "a.csv", drop_invalid=True, **columns)
    rows = list(csv.reader(csv_text().splitlines()))[1:]
    expected = [tuple(row) for number, row in enumerate(rows) if number not in changes]
    assert rows_of(recipe.load()["train"]) == expected
    notes = " ".join(recipe.notes)
    for fragment in ("3 of 40", "lines 5, 9, 33", "2 of 40", "lines 32, 33"):
        assert fragment in notes


@pytest.mark.contract("C5", "B1")
def test_pairs_that_lack_a_text_are_left_out(tmp_path: Path) -> None:
    """A missing text is null in Parquet and empty in a CSV, first or second."""
    frame = pd.DataFrame(csv.DictReader(csv_text().splitlines())).assign(answer="yes")
    frame.loc[3, "answer"] = None
    frame.loc[7, "body"] = None
    for name in ("a.csv", "a.parquet"):
        path = tmp_path / name
        frame.to_csv(path, index=False) if name == "a.csv" else frame.to_parquet(path)
        columns = {"text_columns": "body,answer", "label_column": "queue"}
        assert "--drop_invalid" in refusal(text_recipe(path, **columns))
        rows = text_recipe(path, drop_invalid=True, **columns).load()["train"]
        expected = frame.drop(index=[3, 7])
        assert rows["texts"][:] == expected[["body", "answer"]].to_numpy().tolist()
        names = rows.features["label"].names
        assert [names[number] for number in rows["label"]] == expected["queue"].tolist()


@pytest.mark.contract("C5")
@pytest.mark.parametrize(
    ("first", "second", "fragments"),
    [
        ("good", "GOOD", ["'GOOD'", "'good'", "--label_map GOOD=good"]),
        ("good", "good ", ["'good'", "'good '", "--label_map 'good =good'"]),
        ("good", " good", ["' good'", "'good'"]),
        ("caf\u00e9", "cafe\u0301", ["caf\u00e9", "cafe"]),
        ("good", "good\u200b", ["good\\u200b"]),
        ("1", "01", ["'01'", "'1'", "--label_map 01=1"]),
        ("1", "1.0", ["'1.0'", "'1'", "--label_map 1.0=1"]),
    ],
)
def test_labels_that_differ_by_case_or_blanks_are_reported_and_kept(
    first: str, second: str, fragments: list[str], tmp_path: Path
) -> None:
    """They stay two classes; the note names both and the flag that merges them."""
    rows = [(f"text {number}", (first, second)[number % 3 == 0]) for number in range(60)]
    data.write_csv(tmp_path / "a.csv", ["text", "label"], rows)
    recipe = text_recipe(tmp_path / "a.csv", task="single_label")
    assert rows_of(recipe.load()["train"]) == rows
    _ = recipe.splits
    assert any(all(part in note for part in fragments) for note in recipe.notes), recipe.notes
    if second == "GOOD":
        merged = text_recipe(tmp_path / "a.csv", label_map="GOOD=good,good=good")
        message = refusal(merged)
        assert ("'good'" in message, "'GOOD'" in message) == (True, False)


@pytest.mark.contract("C4", "C5")
def test_labels_in_lists_that_differ_by_blanks_are_reported_and_kept(tmp_path: Path) -> None:
    """Blanks around a separator are no part of a label."""
    lists = [["good"], ["good ", "bad"], ["bad"]]
    lines = [{"text": f"text {n}", "label": lists[n % 3]} for n in range(60)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    recipe = text_recipe(tmp_path / "a.jsonl")
    assert recipe.labels == ["bad", "good", "good "]
    assert any("'good '" in note and "--label_map" in note for note in recipe.notes)
    rows = [(f"text {n}", ("good", " good ; bad")[n % 2]) for n in range(60)]
    data.write_csv(tmp_path / "a.csv", ["text", "label"], rows)
    assert text_recipe(tmp_path / "a.csv", label_separator=";").labels == ["bad", "good"]


@pytest.mark.contract("C5", "B1")
def test_a_damaged_image_is_refused_by_its_name(tmp_path: Path) -> None:
    """The message comes before training."""
    folder = data.write_photos(tmp_path / "photos", rows=40)
    path = sorted(folder.rglob("*.png"))[7]
    path.write_bytes(path.read_bytes()[:50])
    message = refusal(Image(dataset=str(folder), model="none"))
    assert path.name in message
    assert "--drop_invalid" in message
    recipe = Image(dataset=str(folder), model="none", drop_invalid=True)
    assert len(recipe.load()["train"]) == 39
    assert any(path.name in note for note in recipe.notes)
