"""Splits: exact sizes, no row in two of them, and all of it decided by one seed of their own."""

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from finetune.data import digests, plan, splits
from finetune.data.plan import Plan
from finetune.data.stratification import stratified
from finetune.errors import UserError
from finetune.recipe import TextClassification

SPLITS = ("train", "validation", "test")


class Reviews(TextClassification):
    pass


def rows(size: int, classes: int = 2, first: int = 0) -> Dataset:
    """Rows `first` to `first + size`, each with its own text; the last class is a tenth of them."""
    numbers = np.arange(first, first + size)
    labels = np.where(numbers % 10 == 9, classes - 1, numbers % (classes - 1))
    return with_labels([f"review {number}" for number in numbers], labels.tolist())


def with_labels(texts: list[str], labels: list[int]) -> Dataset:
    names = [f"class {number}" for number in range(max(labels) + 1)]
    return Dataset.from_dict(
        {"id": list(range(len(texts))), "text": texts, "label": labels}
    ).cast_column("label", ClassLabel(names=names))


def carve(
    seed: int = 42,
    train_samples: int | None = None,
    eval_samples: int | None = None,
    notes: list[str] | None = None,
    keep_contradictions: str = "none",
    **sources: Dataset,
) -> DatasetDict:
    how = Plan(
        seed=seed,
        train_samples=train_samples,
        eval_samples=eval_samples,
        keep_contradictions=keep_contradictions,
    )
    told = [] if notes is None else notes
    return splits.three_way(DatasetDict(sources), how, column="text", note=told.append)[0]


def shares(dataset: Dataset) -> dict[int, float]:
    return {label: count / len(dataset) for label, count in Counter(dataset["label"]).items()}


@pytest.mark.parametrize("size", [100, 1000, 1003])
def test_sizes_shares_and_no_row_in_two_splits(size: int) -> None:
    source = rows(size, classes=3)
    result = carve(train=source)

    test = round(0.2 * size)
    validation = round(0.1 * (size - test))
    assert list(result) == list(SPLITS)
    assert result.num_rows == {
        "train": size - test - validation,
        "validation": validation,
        "test": test,
    }
    ids = [each for name in SPLITS for each in result[name]["id"]]
    assert sorted(ids) == source["id"][:]
    for name in SPLITS:
        for label, share in shares(result[name]).items():
            assert share == pytest.approx(shares(source)[label], abs=1.01 / len(result[name]))


def test_order_is_that_of_the_source() -> None:
    result = carve(train=rows(500), train_samples=200, eval_samples=30)

    for name in SPLITS:
        ids = result[name]["id"][:]
        assert ids == sorted(ids)
        assert ids != list(range(ids[0], ids[0] + len(ids)))  # drawn from everywhere


def test_validation_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan.MOST_VALIDATION_ROWS == 10_000
    monkeypatch.setattr(plan, "MOST_VALIDATION_ROWS", 7)

    assert carve(train=rows(1000)).num_rows == {"train": 793, "validation": 7, "test": 200}


def test_validation_of_a_large_source_is_ten_thousand_rows() -> None:
    result = carve(train=rows(101_000), test=rows(10, first=200_000))

    assert result.num_rows == {"train": 91_000, "validation": 10_000, "test": 10}


def test_an_official_test_set_is_untouched() -> None:
    test = with_labels(["same", "same", "review 3"], [0, 1, 1])
    notes: list[str] = []
    result = carve(train=rows(100), test=test, notes=notes)

    assert result["test"].to_dict() == test.to_dict()
    assert result.num_rows == {"train": 89, "validation": 10, "test": 3}
    assert "review 3" not in {*result["train"]["text"], *result["validation"]["text"]}
    assert notes == [
        "2 test rows with the same text but different labels (1 text): no model can be right on "
        "all of them",
        "dropped 1 training row also found in the validation or test set (1 with a different "
        "label)",
    ]


def test_given_validation_and_test_are_kept() -> None:
    given = {"validation": rows(20, first=500), "test": rows(30, first=600)}
    result = carve(train=rows(100), **given)

    assert len(result["train"]) == 100
    for name, expected in given.items():
        assert result[name].to_dict() == expected.to_dict()


def test_a_test_set_is_carved_beside_a_given_validation_set() -> None:
    result = carve(train=rows(100), validation=rows(20, first=500))

    assert result.num_rows == {"train": 80, "validation": 20, "test": 20}


def test_duplicates_are_dropped_first_and_counted() -> None:
    texts = [f"review {number % 100}" for number in range(130)]
    notes: list[str] = []
    result = carve(train=with_labels(texts, [number % 2 for number in range(130)]), notes=notes)

    assert notes == ["dropped 30 exact duplicates"]
    assert result.num_rows == {"train": 72, "validation": 8, "test": 20}
    assert sorted(each for name in SPLITS for each in result[name]["id"]) == list(range(100))


def test_duplicates_differ_in_white_space_at_most() -> None:
    texts = [
        *(f"review {number}" for number in range(100)),
        " review  7\n",
        "review\xa08",
        "review9",
    ]
    notes: list[str] = []
    result = carve(train=with_labels(texts, [n % 2 for n in range(103)]), notes=notes)

    assert notes[0].startswith("dropped 4 training rows with the same text but different labels")
    assert sum(result.num_rows.values()) == 99


def test_every_row_of_the_test_set_is_kept_out_of_training() -> None:
    """Whatever byte the hash of a text ends in; one of 256 ends in a zero."""
    notes: list[str] = []
    result = carve(train=rows(2000), test=rows(1000), notes=notes)

    assert result["test"]["text"][:] == rows(1000)["text"][:]
    assert not set(result["test"]["text"]) & {
        *result["train"]["text"],
        *result["validation"]["text"],
    }
    assert notes == ["dropped 1,000 training rows also found in the validation or test set"]


def contradictory(**options: str) -> tuple[DatasetDict, list[str]]:
    """A hundred texts, ten of them again with their label and ten with the other one, twice."""
    texts = [f"review {number}" for number in [*range(100), *range(10), *range(90, 100)]]
    labels = [number % 2 for number in range(100)]
    labels += [*labels[:10], *(1 - label for label in labels[90:])]
    notes: list[str] = []
    source = with_labels([*texts, *texts[-10:]], [*labels, *labels[-10:]])
    result = carve(train=source, notes=notes, **options)
    return result, notes


def test_all_rows_of_contradictions_are_dropped_and_told_apart() -> None:
    result, notes = contradictory()

    assert notes == [
        "dropped 30 training rows with the same text but different labels (10 texts); "
        "--keep_contradictions first keeps one of each",
        "dropped 10 exact duplicates",
    ]
    assert sorted(each for name in SPLITS for each in result[name]["id"]) == list(range(90))


def test_the_first_of_contradictions_is_kept_if_asked_for() -> None:
    result, notes = contradictory(keep_contradictions="first")

    assert notes == [
        "30 training rows with the same text but different labels (10 texts): the first of each "
        "is kept, 20 rows dropped",
        "dropped 10 exact duplicates",
    ]
    assert sorted(each for name in SPLITS for each in result[name]["id"]) == list(range(100))


def test_numbers_do_not_contradict_each_other() -> None:
    texts, labels = ["same", "same", *(f"text {n}" for n in range(40))], [0.5, 0.75, *[1.0] * 40]
    notes: list[str] = []

    carve(train=Dataset.from_dict({"text": texts, "label": labels}), notes=notes)

    assert notes == ["dropped 1 exact duplicate"]


def test_nothing_but_contradictions_is_refused() -> None:
    with pytest.raises(UserError, match="no training rows are left: dropped 2 training rows with"):
        carve(train=with_labels(["a", "a"], [0, 1]))


def test_an_option_of_the_recipe_keeps_the_first(reviews: Path) -> None:
    content = reviews.read_text()
    reviews.write_text(content + content.splitlines()[1].replace(",bad", ",good") + "\n")

    dropped, kept = (
        Reviews(dataset=str(reviews), model="none", **options)
        for options in ({}, {"keep_contradictions": "first"})
    )

    assert sum(dropped.splits.num_rows.values()) == 199
    assert sum(kept.splits.num_rows.values()) == 200
    with pytest.raises(UserError, match="--keep_contradictions last: expected none or first"):
        Reviews(keep_contradictions="last")


def test_each_text_is_hashed_once(reviews: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For duplicates, for the fingerprint of the run and for that of what is tokenized."""
    hashed: list[bytes] = []
    blake = hashlib.blake2b

    def counting(content: bytes, **named: int) -> Any:
        hashed.append(content)
        return blake(content, **named)

    monkeypatch.setattr(hashlib, "blake2b", counting)
    found = Reviews(dataset=str(reviews), model="none").splits
    expected = digests.fingerprint(found, "text")

    assert digests.fingerprint(found, "text") == expected
    for name, rows in found.items():
        digests.fingerprint(DatasetDict({name: rows}), "text")
    assert len(hashed) == 200


def test_clean_data_gives_no_notes() -> None:
    notes: list[str] = []
    carve(train=rows(100), test=rows(10, first=100), notes=notes)

    assert notes == []


@pytest.mark.parametrize("samples", [1, 2, 3, 17, 100, 720])
def test_draws_are_exact(samples: int) -> None:
    result = carve(train=rows(1000, classes=3), train_samples=samples, eval_samples=samples)

    assert result.num_rows == {
        "train": samples,
        "validation": min(samples, 80),
        "test": min(samples, 200),
    }


def test_draws_are_part_of_what_was_carved() -> None:
    whole = carve(train=rows(500))
    drawn = carve(train=rows(500), train_samples=50, eval_samples=20)

    for name in SPLITS:
        assert set(drawn[name]["id"]) < set(whole[name]["id"])
        assert shares(drawn[name])[1] == pytest.approx(0.1)


def test_splits_depend_on_the_seed() -> None:
    first, again, other = (
        carve(train=rows(500), seed=seed, train_samples=50) for seed in (42, 42, 43)
    )

    for name in SPLITS:
        assert first[name].to_dict() == again[name].to_dict()
        assert first[name]["id"][:] != other[name]["id"][:]


def test_a_recipe_splits_by_split_seed(reviews: Path) -> None:
    def ids(**options: int) -> dict[str, list[int]]:
        recipe = Reviews(dataset=str(reviews), model="none", **options)
        return {name: recipe.splits[name]["id"][:] for name in SPLITS}

    assert ids() == ids(split_seed=42)
    assert ids(split_seed=7) != ids()
    assert [len(each) for each in ids(train_samples=11, eval_samples=5).values()] == [11, 5, 5]


@pytest.mark.parametrize("trial", range(20))
def test_stratified_keeps_shares_to_less_than_a_row(trial: int) -> None:
    generator = np.random.default_rng(trial)
    labels = generator.choice(generator.integers(1, 9), size=generator.integers(1, 400))
    size = int(generator.integers(0, len(labels) + 1))

    drawn = stratified(labels, size, seed=trial)

    assert len(drawn) == size
    assert np.array_equal(drawn, np.unique(drawn))
    for label in np.unique(labels):
        exact = (labels == label).sum() * size / len(labels)
        assert abs((labels[drawn] == label).sum() - exact) < 1


def test_fingerprint_is_of_the_content_not_of_the_place(reviews: Path, tmp_path: Path) -> None:
    def fingerprint(path: Path, **options: int) -> str:
        recipe = Reviews(dataset=str(path), model="none", **options)
        return digests.fingerprint(recipe.splits, "text")

    moved = tmp_path / "elsewhere" / "other.csv"
    moved.parent.mkdir()
    moved.write_bytes(reviews.read_bytes())
    content = reviews.read_text()
    text, label, order = (tmp_path / f"{name}.csv" for name in ("text", "label", "order"))
    text.write_text(content.replace("place 7 ", "place seven "))
    label.write_text(content.replace("place 7 was lovely,good", "place 7 was lovely,bad"))
    header, *lines = content.splitlines()
    order.write_text("\n".join([header, *reversed(lines)]) + "\n")
    expected = fingerprint(reviews)

    assert fingerprint(moved) == expected
    for changed in (text, label, order):
        assert changed.read_text() != content
        assert fingerprint(changed) != expected
    assert fingerprint(reviews, split_seed=1) != expected


def test_fingerprint_is_of_texts_labels_order_and_split() -> None:
    texts, labels = ["a", "b", "c"], [0, 1, 1]
    alike = [{"train": with_labels(texts, labels)} for _ in range(2)]
    other = [
        {"train": with_labels(texts, [1, 1, 0])},
        {"train": with_labels(texts[::-1], labels[::-1])},
        {"train": with_labels(["a", "b", "d"], labels)},
        {"test": with_labels(texts, labels)},
    ]

    prints = [digests.fingerprint(DatasetDict(each), "text") for each in [*alike, *other]]

    assert prints[0] == prints[1]
    assert len(set(prints)) == 1 + len(other)


def test_two_rows_are_too_few() -> None:
    rows = Dataset.from_dict(
        {"text": ["a", "b"], "label": [0, 1]},
        features=Features({"text": Value("string"), "label": ClassLabel(names=["x", "y"])}),
    )
    carved = carve(train=rows)
    assert carved.num_rows == {"train": 2, "validation": 0, "test": 0}  # refused before training


def test_a_class_of_one_row_stays_in_training() -> None:
    """Were it carved away, the evaluation would have a label that training does not know."""
    labels = ["common"] * 60 + ["usual"] * 40 + [f"rare {number}" for number in range(12)]
    names = sorted(set(labels))
    rows = Dataset.from_dict(
        {
            "text": [f"row {number}" for number in range(112)],
            "label": [names.index(each) for each in labels],
        },
        features=Features({"text": Value("string"), "label": ClassLabel(names=names)}),
    )
    carved = carve(train=rows)
    assert carved.num_rows == {"train": 81, "validation": 9, "test": 22}
    assert set(carved["train"]["label"]) == set(range(len(names)))
