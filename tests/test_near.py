"""Rows that are nearly the same: what is found is what comparing all with all finds."""

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, List, Value

from finetune.data import near, splits
from finetune.data.near import Part, resembling
from finetune.data.plan import Plan
from finetune.errors import UserError
from finetune.runtime import extras
from recipes.text import Text

WORDS = [f"word{number}" for number in range(300)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))


def drawn(rows: int, seed: int = 1) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randint(1, 60))) for _ in range(rows)]


def edited(text: str, number: int, seed: int) -> str:
    generator = random.Random(seed)
    words = text.split()
    for _ in range(number):
        words[generator.randrange(len(words))] = generator.choice(WORDS)
    return " ".join(words)


def with_labels(texts: list[str], labels: list[int] | None = None) -> Dataset:
    content = {
        "id": range(len(texts)),
        "text": texts,
        "label": labels or [number % 2 for number in range(len(texts))],
    }
    return Dataset.from_dict(content).cast_column("label", ClassLabel(names=["bad", "good"]))


def compared(texts: list[str], column: str = "text") -> near.Resembling:
    rows = with_labels(texts)
    return resembling([], Part(rows, np.arange(len(rows))), column, within=True)


def pairs(text: str) -> set[Any]:
    words = text.lower().split()
    return set(itertools.pairwise(words)) or set(words)


def jaccard(one: str, other: str) -> float:
    return len(pairs(one) & pairs(other)) / len(pairs(one) | pairs(other))


def test_what_is_found_is_what_comparing_all_with_all_finds() -> None:
    base = drawn(300)
    texts = [*base, *(edited(text, n % 6, n) for n, text in enumerate(base * 2))]
    random.Random(3).shuffle(texts)
    found = compared(texts)
    kept: list[int] = []
    for number, text in enumerate(texts):
        alike = [each for each in kept if jaccard(texts[each], text) >= 0.8]
        assert (found.row[number] >= 0) == bool(alike), text
        if alike:
            assert found.row[number] in alike
            like = texts[found.row[number]]
            assert found.similarity[number] == pytest.approx(jaccard(like, text))
        else:
            kept.append(number)
    assert 100 < (found.row >= 0).sum() < 600


def test_texts_that_differ_in_case_and_marks_are_the_same() -> None:
    assert compared(["A fine, fine film!", "a fine fine film", "???", "!!!"]).row.tolist() == [
        *(-1, 0),
        *(-1, -1),
    ]


def test_letters_are_words_where_no_spaces_are_written() -> None:
    text = "这部电影非常好看我很喜欢它的故事和演员们的表演"
    assert compared([text, text[:-1], "这是一部完全不同的电影没有人会喜欢"]).row.tolist() == [
        -1,
        0,
        -1,
    ]


def test_thousands_of_rows_of_one_template_are_one() -> None:
    body = " ".join(WORDS[:40])
    found = compared(
        [f"ticket {number} {body} sent on day {number % 28}" for number in range(3000)]
    )
    assert found.row.tolist() == [-1, *[0] * 2999]


def test_each_text_of_a_pair_has_to_resemble() -> None:
    passage = " ".join(WORDS[:60])
    texts = [[passage, "who was it"], [passage + " end", "who was it"], [passage, "why was it so"]]
    rows = (
        with_labels([""] * 3)
        .add_column("texts", texts)
        .cast_column(  # type: ignore[call-arg]
            "texts", List(Value("string"))
        )
    )
    found = resembling([], Part(rows, np.arange(3)), "text", within=True)
    assert found.row.tolist() == [-1, 0, -1]


def test_what_was_compared_stands_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [text for text in drawn(50) for _ in range(2)]
    first = compared(texts)
    (kept,) = tmp_path.glob("finetune-near/*.npz")
    with monkeypatch.context() as patch:
        patch.delattr(near, "_compared")
        assert compared(texts).row.tolist() == first.row.tolist()
    kept.write_bytes(kept.read_bytes()[:-9])
    assert compared(texts).row.tolist() == first.row.tolist()


LONG = [" ".join(random.Random(n).choices(WORDS, k=50)) for n in range(200)]


def carve(plan: Plan, **sources: Dataset) -> tuple[DatasetDict, list[str]]:
    notes: list[str] = []
    dataset = DatasetDict(sources)
    return splits.three_way(dataset, plan, column="text", note=notes.append)[0], notes


def test_near_duplicates_are_dropped_before_rows_are_split() -> None:
    texts = [*LONG, *(f"{text} again" for text in LONG[:60])]
    labels = [n % 2 for n in range(200)] + [(n + (n < 7)) % 2 for n in range(60)]
    rows = with_labels(texts, labels)
    both, notes = carve(Plan(drop_duplicates="near"), train=rows)
    assert notes == [
        "dropped 60 near-duplicates (7 with a different label than the row that is kept)"
    ]
    assert sum(both.num_rows.values()) == 200
    assert sorted(each for split in both.values() for each in split["id"]) == list(range(200))
    again, _ = carve(Plan(drop_duplicates="near"), train=rows)
    assert [split["id"][:] for split in again.values()] == [s["id"][:] for s in both.values()]
    untouched, notes = carve(Plan(drop_overlap="near"), train=rows)  # of which it has no others
    assert (sum(untouched.num_rows.values()), notes) == (260, [])


def test_the_oldest_of_near_duplicates_is_kept() -> None:
    rows = with_labels([*LONG, *(f"{text} again" for text in LONG)])
    rows = rows.add_column("day", [*range(200, 400), *range(200)])  # type: ignore[call-arg]
    both, _ = carve(Plan(drop_duplicates="near", time_column="day"), train=rows)
    assert sorted(each for split in both.values() for each in split["id"]) == list(range(200, 400))


def test_rows_like_held_out_rows_are_dropped() -> None:
    train = with_labels(
        [*LONG[:150], *(f"{text} again" for text in LONG[150:170]), f"{LONG[0]} again"]
    )
    validation = with_labels([*LONG[150:180], *(f"so {text}" for text in LONG[180:185])])
    test = with_labels([*LONG[180:], f"{LONG[199]} again"])
    sources = {"train": train, "validation": validation, "test": test}
    both, notes = carve(Plan(drop_overlap="near"), **sources)
    assert notes == [
        "dropped 5 validation rows nearly the same as rows of the test set",
        "dropped 20 training rows nearly the same as rows of the validation or test set",
    ]
    assert both.num_rows == {"train": 151, "validation": 30, "test": 21}
    both, notes = carve(Plan(drop_duplicates="near"), **sources)
    assert both.num_rows == {"train": 170, "validation": 35, "test": 21}
    assert notes == ["dropped 1 near-duplicate"]


def test_the_flags_reach_the_splits() -> None:
    recipe = Text(model="m", drop_duplicates="near", drop_overlap="near")
    assert (recipe.plan().drop_duplicates, recipe.plan().drop_overlap) == ("near", "near")
    with pytest.raises(UserError, match=r"--drop_overlap all: expected exact or near"):
        Text(model="m", drop_overlap="all")  # type: ignore[arg-type]


def test_a_missing_package_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(UserError) as refused:
        Text(model="m", drop_duplicates="near")
    assert refused.value.mistakes == (
        "--drop_duplicates near: datasketch is not installed; pip install 'trainer-recipes[check]'",
    )
    Text(model="m")
