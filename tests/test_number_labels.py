"""Numbers as labels: of every type, several a row, and what is none is refused with its place."""

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, DatasetDict, List, Value

from finetune.data import numbers, positions, sources
from finetune.errors import UserError


def rows_of(**columns: list[Any]) -> DatasetDict:
    count = len(next(iter(columns.values())))
    table = {"id": list(range(count)), "text": [f"text {row}" for row in range(count)], **columns}
    return DatasetDict(train=Dataset.from_dict(table))


def lines(split: str, rows: Sequence[int]) -> str:
    return f"lines {', '.join(str(row + 2) for row in rows)}"


def encoded(dataset: DatasetDict, *columns: str, drop: bool = False) -> tuple[Dataset, list[str]]:
    notes: list[str] = []
    found = numbers.encoded(dataset, columns, drop=drop, note=notes.append, places=lines)
    return found["train"], notes


def test_a_number_among_lists_is_none() -> None:
    rows = DatasetDict(train=Dataset.from_dict({"score": [[1.0, 2.0], [3.0, 4.0]]}),
                       test=Dataset.from_dict({"score": [5.0, 6.0]}))  # fmt: skip
    with pytest.raises(UserError, match="2 of 2 test rows with a value that is no number in"):
        encoded(rows, "score")


@pytest.mark.parametrize("labels", [[[1.0, 2.0], [3.0, 5.0]], [True, False], [1.0, 2.0]])
def test_remarks_take_labels_however_they_are_kept(labels: list[Any]) -> None:
    assert numbers.remarks(Dataset.from_dict({"label": labels}), ["score"]) == []


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, -3],
        [1.5, 2.0, 1e30],
        ["1", " 2.5 ", "-3e2"],
        [1.5, 2, 3],
        [Decimal("1.25"), Decimal(2)],
    ],
)
def test_numbers_of_every_type_are_float32(values: list[Any]) -> None:
    found, notes = encoded(rows_of(score=values), "score")
    assert found.features["label"] == Value("float32")
    assert found["label"][:] == [np.float32(value) for value in values]
    assert found.column_names == ["id", "text", "label"]
    assert notes == []


def test_several_columns_are_a_list() -> None:
    found, _ = encoded(rows_of(a=[1, 2], b=["0.5", "-1"], label=["x", "y"]), "b", "a")
    assert found.features["label"] == List(Value("float32"), length=2)
    assert found["label"][:] == [[0.5, 1.0], [-1.0, 2.0]]


def test_what_is_no_finite_number_is_refused_with_its_place() -> None:
    rows = rows_of(score=["1", "", "nan", "n/a", "3,5", "-inf", None, "1e39", "7"])
    with pytest.raises(UserError) as caught:
        encoded(rows, "score")
    advice = "; --drop_invalid leaves them out"
    assert caught.value.mistakes == (
        f"2 of 9 train rows with no number in 'score': lines 3, 8{advice}",
        f"3 of 9 train rows with a number that is not finite in float32 in 'score' ('nan', "
        f"'-inf', '1e39'): lines 4, 7, 9{advice}",
        f"2 of 9 train rows with a value that is no number in 'score' ('n/a', '3,5'; "
        f"expected a decimal point and no other sign): lines 5, 6{advice}",
    )
    found, notes = encoded(rows, "score", drop=True)
    assert found["label"][:] == [1.0, 7.0]
    assert found["text"][:] == ["text 0", "text 8"]
    assert [note.partition(" in ")[0] for note in notes] == [
        "dropped 2 of 9 train rows with no number",
        "dropped 3 of 9 train rows with a number that is not finite",
        "dropped 2 of 9 train rows with a value that is no number",
    ]


def test_a_test_set_of_hidden_numbers_is_refused(tmp_path: Path) -> None:
    train, hidden = rows_of(score=[0.5, 2, 3])["train"], rows_of(score=["-1.0", "-1"])["train"]
    message = (
        "^all 2 test rows have the label -1, and no training row has one below 0; if its labels "
        "are hidden, --dataset_splits test=none does not"
    )
    with pytest.raises(UserError, match=message):
        encoded(DatasetDict(train=train, test=hidden), "score")
    both = DatasetDict(train=rows_of(score=[-1, 2])["train"], test=hidden)
    assert encoded(both, "score")[0]["label"][:] == [-1, 2]


@pytest.mark.parametrize("value", [True, {"a": 1}, "1_000", "five"])
def test_other_values_are_no_numbers(value: Any) -> None:
    with pytest.raises(UserError, match="no number in 'score'"):
        encoded(rows_of(score=[value, value]), "score")


def test_a_file_is_named_by_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('text,score\n"two\nlines",1\nok,2\nbad,inf\nworse,x\n', encoding="utf-8")

    def places(split: str, rows: Sequence[int]) -> str:
        return positions.places(str(path), split, rows)

    with pytest.raises(UserError) as caught:
        numbers.encoded(
            sources.read(str(path), None), ["score"], drop=False, note=print, places=places
        )
    assert [each.rpartition(": ")[2] for each in caught.value.mistakes] == [
        "line 5; --drop_invalid leaves them out",
        "line 6; --drop_invalid leaves them out",
    ]


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("1,137", "; '1,137' may be 1137 or 1.137; expected a decimal point and no other sign)"),
        ("3,5", "; expected a decimal point and no other sign)"),
        ("12,500,000.5", "; expected a decimal point and no other sign)"),
        ("12 kg", "('12 kg'): "),
    ],
)
def test_what_a_comma_may_be_is_told(value: str, meant: str) -> None:
    with pytest.raises(UserError) as caught:
        encoded(rows_of(score=["1", value, "2"]), "score")
    assert meant in str(caught.value)


def test_where_nothing_is_a_number_nothing_is_dropped() -> None:
    with pytest.raises(UserError) as caught:
        encoded(rows_of(score=["good", "bad"]), "score")
    assert str(caught.value) == (
        "2 of 2 train rows with a value that is no number in 'score' ('good', "
        "'bad'): lines 2, 3; is it the right column? words are labels of --task single_label"
    )


@pytest.mark.parametrize("values", [[16777216.0, 16777217.0], ["1e-46", "2e-46"]])
def test_numbers_that_float32_rounds_to_one_are_refused(values: list[Any]) -> None:
    with pytest.raises(UserError) as caught:
        encoded(rows_of(score=[1.0, 2.0], far=values), "score", "far")
    low, high = map(float, values)
    assert str(caught.value) == (
        f"'far' holds numbers from {low!r} to {high!r}, all the same in "
        "float32: subtract a constant from them, or scale them"
    )
    same = encoded(rows_of(far=[values[1], values[1]]), "far")[0]  # of one number remarks tell
    assert len(set(same["label"])) == 1


def of_targets(*columns: Any) -> Dataset:
    table = {"id": range(len(columns[0])), **{str(n): each for n, each in enumerate(columns)}}
    return encoded(DatasetDict(train=Dataset.from_dict(table)), *list(table)[1:])[0]


def test_a_constant_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"'b' is 0\.1 in all 3 training rows"):
        numbers.remarks(of_targets([1.0, 2.0, 4.0], [0.1, 0.1, 0.1]), ["a", "b"])
    with pytest.raises(UserError, match=r"'stars' is 3 in all 2 training rows"):
        numbers.remarks(of_targets([3, 3]), ["stars"])
    with pytest.raises(UserError, match=r"'stars' is 0 to 3e-39, with a standard deviation that"):
        numbers.remarks(of_targets([0.0, 1e-39, 3e-39]), ["stars"])


def test_numbers_that_are_hard_to_learn_are_said() -> None:
    usual = np.random.default_rng(0).normal(size=2000)
    assert numbers.remarks(of_targets(usual), []) == []
    far, skewed = usual + 1e6, usual.copy()
    skewed[0] = 1e4
    found = numbers.remarks(of_targets(far, skewed), ["a", "b"])
    assert len(found) == 2
    assert "'a' has a standard deviation of 1 around 1e+06" in found[0]
    assert "multiples of 0.062 only" in found[0]
    assert "'b' has values up to 45 standard deviations from its mean" in found[1]


def test_a_column_of_lists_is_several_targets() -> None:
    found, _ = encoded(rows_of(score=[[1.0, 2.0], [3.5, -1.0]]), "score")
    assert found.features["label"] == List(Value("float32"), length=2)
    assert found["label"][:] == [[1.0, 2.0], [3.5, -1.0]]
    with pytest.raises(UserError) as caught:
        encoded(rows_of(score=[[1.0, 2.0], [3.5], [1.0, float("inf")]]), "score")
    assert [each.partition(" in 'score'")[0] for each in caught.value.mistakes] == [
        "1 of 3 train rows with a value that is no number",
        "1 of 3 train rows with a number that is not finite in float32",
    ]
    as_text, _ = encoded(rows_of(score=["[1.0, 2]", " [3.5, -1]"]), "score")
    assert as_text["label"][:] == [[1.0, 2.0], [3.5, -1.0]]
