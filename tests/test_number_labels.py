"""Numbers as labels: of every type, several a row, and what is none is refused with its place."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, DatasetDict, List, Value

from finetune.data import numbers, sources
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


@pytest.mark.parametrize(
    "values", [[1, 2, -3], [1.5, 2.0, 1e30], ["1", " 2.5 ", "-3e2"], [1.5, 2, 3]]
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
        "3 of 9 train rows with a number that is not finite in float32 in 'score' ('nan', '-inf', "
        f"'1e39'): lines 4, 7, 9{advice}",
        "2 of 9 train rows with a value that is no number in 'score' ('n/a', '3,5'; expected a "
        f"decimal point): lines 5, 6{advice}",
    )
    found, notes = encoded(rows, "score", drop=True)
    assert found["label"][:] == [1.0, 7.0]
    assert found["text"][:] == ["text 0", "text 8"]
    assert [note.partition(" in ")[0] for note in notes] == [
        "dropped 2 of 9 train rows with no number",
        "dropped 3 of 9 train rows with a number that is not finite",
        "dropped 2 of 9 train rows with a value that is no number",
    ]


@pytest.mark.parametrize("value", [True, {"a": 1}, "1_000", "five"])
def test_other_values_are_no_numbers(value: Any) -> None:
    with pytest.raises(UserError, match="no number in 'score'"):
        encoded(rows_of(score=[value, value]), "score")


def test_a_file_is_named_by_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('text,score\n"two\nlines",1\nok,2\nbad,inf\nworse,x\n', encoding="utf-8")

    def places(split: str, rows: Sequence[int]) -> str:
        return sources.places(str(path), split, rows)

    with pytest.raises(UserError) as caught:
        numbers.encoded(
            sources.read(str(path), None), ["score"], drop=False, note=print, places=places
        )
    assert [each.partition(": ")[2] for each in caught.value.mistakes] == [
        "line 5; --drop_invalid leaves them out",
        "line 6; --drop_invalid leaves them out",
    ]


def test_what_looks_like_numbers() -> None:
    assert numbers.are_numbers([1, 2.5, "3", None, ""])
    assert not numbers.are_numbers(["1", "two"])
    assert not numbers.are_numbers([True, False])
    assert not numbers.are_numbers(["1", "inf"])
    assert not numbers.are_numbers([None, ""])


def of_targets(*columns: Any) -> Dataset:
    table = {"id": range(len(columns[0])), **{str(n): each for n, each in enumerate(columns)}}
    return encoded(DatasetDict(train=Dataset.from_dict(table)), *list(table)[1:])[0]


def test_a_constant_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"'b' is 0\.1 in all 3 training rows"):
        numbers.remarks(of_targets([1.0, 2.0, 4.0], [0.1, 0.1, 0.1]), ["a", "b"])
    with pytest.raises(UserError, match=r"'label' is 3 in all 2 training rows"):
        numbers.remarks(of_targets([3, 3]), [])


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
