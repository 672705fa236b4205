"""Tokenization truncates, never pads, and is done once for the same data, tokenizer and length."""

from pathlib import Path
from typing import Any

import pytest
from datasets import DatasetDict
from tokenizers import normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from finetune.data.tokenize import tokenize
from finetune.recipe import TextClassification


class Reviews(TextClassification):
    pass


def recipe(reviews: Path, model: str, **options: int) -> Reviews:
    return Reviews(dataset=str(reviews), model=model, **options)


def files(dataset: DatasetDict) -> dict[str, list[str]]:
    return {
        split: [file["filename"] for file in rows.cache_files] for split, rows in dataset.items()
    }


def test_rows_are_truncated_and_never_padded(reviews: Path, tiny_model: str) -> None:
    subject = recipe(reviews, tiny_model, max_length=7)
    tokenizer = subject.processing_class()

    for split, rows in subject.prepared.items():
        raw = subject.splits[split]
        assert rows.column_names == [
            *("input_ids", "token_type_ids", "attention_mask", "labels", "length")
        ]
        whole = tokenizer(raw["text"][:])["input_ids"]
        assert all(len(each) > 7 for each in whole)
        assert rows["input_ids"][:] == [[*each[:6], tokenizer.sep_token_id] for each in whole]
        assert rows["labels"][:] == raw["label"][:]
        assert set(rows["length"]) == {7}
        assert all(all(mask) for mask in rows["attention_mask"])


def test_length_is_that_of_each_row(tmp_path: Path, tiny_model: str) -> None:
    path = tmp_path / "reviews.csv"
    texts = [" ".join(["food"] * (number % 13 + 1) + [str(number)]) for number in range(60)]
    path.write_text("text,label\n" + "".join(f"{text},{len(text) % 2}\n" for text in texts))
    rows = recipe(path, tiny_model, max_length=9).prepared["train"]

    assert rows["length"][:] == [len(each) for each in rows["input_ids"]]
    assert len(set(rows["length"])) > 3
    assert max(rows["length"]) == 9


@pytest.fixture
def tokenized(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text that a tokenizer of the library is given from here on."""
    seen: list[str] = []
    call = PreTrainedTokenizerBase.__call__

    def remember(self: PreTrainedTokenizerBase, text: list[str], *given: Any, **named: Any) -> Any:
        seen.extend(text)
        return call(self, text, *given, **named)

    monkeypatch.setattr(PreTrainedTokenizerBase, "__call__", remember)
    return seen


def test_only_the_rows_drawn_are_tokenized(
    reviews: Path, tiny_model: str, tokenized: list[str]
) -> None:
    subject = recipe(reviews, tiny_model, train_samples=11, eval_samples=5)

    assert subject.prepared.num_rows == {"train": 11, "validation": 5, "test": 5}
    drawn = [text for rows in subject.splits.values() for text in rows["text"]]
    assert sorted(tokenized) == sorted(drawn)


def test_the_same_is_not_tokenized_again(
    reviews: Path, tiny_model: str, tokenized: list[str]
) -> None:
    first = recipe(reviews, tiny_model)
    expected = files(first.prepared)
    assert all(expected.values())
    assert tokenized

    again = recipe(reviews, tiny_model)
    # what it was used with stays in a fast tokenizer; datasets would hash it
    again.processing_class()(["a b", "c"], padding="max_length", truncation=True, max_length=64)
    tokenized.clear()

    assert files(again.prepared) == expected
    assert again.prepared["train"].to_dict() == first.prepared["train"].to_dict()
    assert tokenized == []


@pytest.mark.parametrize("options", [{"max_length": 9}, {"split_seed": 7}])
def test_something_else_is_tokenized_anew(
    options: dict[str, int], reviews: Path, tiny_model: str
) -> None:
    first, other = recipe(reviews, tiny_model), recipe(reviews, tiny_model, **options)

    assert files(first.prepared)["train"] != files(other.prepared)["train"]
    other_lengths = other.prepared["train"]["length"][:]
    assert max(other_lengths) <= other.max_length


def test_a_tokenizer_of_the_same_vocabulary_is_another(reviews: Path, tiny_model: str) -> None:
    """What a fast tokenizer does to a text beforehand stands in its `tokenizer.json` alone."""
    splits = recipe(reviews, tiny_model).splits
    plain, other = (AutoTokenizer.from_pretrained(tiny_model) for _ in range(2))
    other.backend_tokenizer.normalizer = normalizers.Replace("food", "service")

    first, second = tokenize(splits, plain, 64), tokenize(splits, other, 64)

    assert "food" in plain.decode(first["train"][0]["input_ids"])
    assert "service" in plain.decode(second["train"][0]["input_ids"])
