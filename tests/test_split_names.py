"""What is named like held-out data is never trained on, or left unread, without a word."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pytest

import finetune
from finetune.data import memory, sources
from finetune.data.split_names import advice, for_training
from finetune.errors import UserError

FRAME = pd.DataFrame({"text": ["a fine day", "a dull day"], "label": ["good", "bad"]})
ROWS = [{"text": "a", "label": "x"}]


def written(directory: Path, names: Sequence[str]) -> None:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        FRAME.to_csv(directory / name, index=False)


def options(sentence: str) -> dict[str, str]:
    words = shlex.split(sentence.partition("--dataset_splits")[2])[0].rstrip(",")
    return dict(each.split("=") for each in words.split(","))


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["reviews-train.csv", "reviews-test.csv"], {"train": "reviews-train",
                                                     "test": "reviews-test"}),
        (["Reviews.csv", "Reviews Test.csv"], {"train": "Reviews", "test": "Reviews Test"}),
        (["a_train_1.csv", "a_train_2.csv", "a_dev.csv"], {"train": "a_train",
                                                           "validation": "a_dev"}),
        (["2021.csv", "2021.valid.csv"], {"train": "2021", "validation": "2021.valid"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("pattern", [False, True])
def test_names_with_a_split_in_them_are_not_pooled(
    names: Sequence[str], splits: Mapping[str, str], pattern: bool, tmp_path: Path
) -> None:
    written(tmp_path, names)
    dataset = str(tmp_path / "*.csv") if pattern else str(tmp_path)
    with pytest.raises(UserError, match="--dataset_splits") as refusal:
        sources.read(dataset)
    assert "to read several files as one" not in str(refusal.value)
    assert options(str(refusal.value)) == splits
    found = sources.read(dataset, names=splits)
    assert set(found) == set(splits)
    assert sum(map(len, found.values())) == 2 * len(names)


def test_folders_where_an_option_cannot_say_it(tmp_path: Path) -> None:
    written(tmp_path, ["2020-train.csv", "2021-train.csv", "2021-test.csv"])
    with pytest.raises(UserError, match="into a folder for each split"):
        sources.read(str(tmp_path / "*.csv"))
    written(tmp_path / "two", ["a/x.csv", "a/x-test.csv", "b/x.csv", "b/x-test.csv"])
    with pytest.raises(UserError, match="into a folder for each split"):
        sources.read(str(tmp_path / "two" / "*" / "*.csv"))


def test_files_of_one_kind_are_pooled(tmp_path: Path) -> None:
    written(tmp_path, ["x-test-a.csv", "x-test-b.csv", "latest.csv", "contest.csv"])
    assert len(sources.read(str(tmp_path / "x-*.csv"))["train"]) == 4
    assert len(sources.read(str(tmp_path / "*test.csv"))["train"]) == 4
    assert advice(["evaluation-of-teachers", "reviews"]) == ""


def test_splits_in_memory_of_other_names_are_not_left_out() -> None:
    whole = {"train": ROWS, "val": ROWS, "Test": ROWS}
    with pytest.raises(UserError, match="the splits 'val' and 'Test' would not be read") as refusal:
        sources.read(memory.named(whole))
    names = options(str(refusal.value))
    assert names == {"validation": "val", "test": "Test"}
    assert set(sources.read(memory.named(whole), names=names)) == {"train", "validation", "test"}
    with pytest.raises(UserError, match="the split 'val' would not be read") as refusal:
        sources.read(memory.named(whole), names={"test": "Test"})
    assert options(str(refusal.value)) == names
    none = {"validation": "none", "test": "none"}
    assert set(sources.read(memory.named(whole), names=none)) == {"train"}


def test_other_splits_may_stay_unread() -> None:
    both = {"train": ROWS, "validation": ROWS, "val": ROWS, "validation_matched": ROWS}
    notes: list[str] = []
    sources.read(memory.named(both), note=notes.append)
    assert [each.partition(";")[0] for each in notes] == [
        "not read: the split 'val'", "not read: the split 'validation_matched'"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("there", "name"),
    [
        (["Test", "Train"], "Train"),
        (["dev", "training"], "training"),
        (["held_test", "fit"], "fit"),
        (["fit", "held_out"], "fit"),
        (["Test"], "NAME"),
        (["a", "b"], "NAME"),
    ],
)
def test_no_test_set_is_offered_for_training(there: Sequence[str], name: str) -> None:
    assert for_training(there) == name
    with pytest.raises(UserError, match=rf"--dataset_splits train={name} takes another"):
        sources.read(memory.named(dict.fromkeys(there, ROWS)))


@pytest.mark.parametrize(
    ("column", "values", "is_told"),
    [
        ("split", ["train", "train", "val", "test"], True),
        ("Fold", ["Train", "Test", "", "Dev"], True),
        ("fold", ["1", "2", "3", "4"], False),
        ("subset", ["train", "web", "test", "test"], False),
        ("set", ["train"] * 4, False),
        ("mode", ["train", "test", "train", "test"], False),
    ],
)
def test_a_column_of_splits_is_told(
    column: str, values: list[str], is_told: bool, tiny_model: str, tmp_path: Path
) -> None:
    words = "fine warm dull cold".split()  # noqa: SIM905
    rows = [
        {"text": f"a {words[n % 4]} day {n}", "label": "ab"[n // 2 % 2], column: values[n % 4]}
        for n in range(80)
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "a.csv", index=False)
    options = {"text_column": "text", "label_column": "label", "model": tiny_model}
    found = finetune.check("text", dataset=str(tmp_path / "a.csv"), **options).findings
    told = [each for each in found if each.name == "split_column"]
    assert [each.severity for each in told] == ["warning"] * is_told
    sentence = f"'{column}' says which split each row belongs to, and is not read; write a file"
    assert all(each.sentence.startswith(sentence) for each in told)
