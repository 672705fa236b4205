"""Tokenization truncates, never pads, and is done once for the same data, tokenizer and length."""

import copy
import functools
import re
from pathlib import Path
from typing import Any

import pytest
from datasets import DatasetDict
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from finetune.data.encoding import Encoder
from finetune.data.shortening import shortened
from finetune.data.tokenize import tokenize
from finetune.recipe import TextClassification


class Reviews(TextClassification):
    pass


def recipe(reviews: Path, model: str, **options: Any) -> Reviews:
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
    first = recipe(reviews, tiny_model, max_length=23)  # as no other test
    expected = files(first.prepared)
    assert all(expected.values())
    assert tokenized

    again = recipe(reviews, tiny_model, max_length=23)
    # what it was used with stays in a fast tokenizer; datasets would hash it
    again.processing_class()(["a b", "c"], padding="max_length", truncation=True, max_length=64)
    tokenized.clear()

    assert files(again.prepared) == expected
    assert again.prepared["train"].to_dict() == first.prepared["train"].to_dict()
    assert tokenized == []


def test_what_is_tokenized_is_kept_where_it_is_stopped(
    reviews: Path, tiny_model: str, tokenized: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = recipe(reviews, tiny_model).prepared["train"].to_dict()
    monkeypatch.setattr("finetune.data.tokenize.PART", 40)  # of 144 rows
    tokenized.clear()
    call = PreTrainedTokenizerBase.__call__

    def stop(self: PreTrainedTokenizerBase, *given: Any, **named: Any) -> Any:
        if len(tokenized) == 80:
            raise KeyboardInterrupt
        return call(self, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(PreTrainedTokenizerBase, "__call__", stop)
        with pytest.raises(KeyboardInterrupt):
            _ = recipe(reviews, tiny_model, preprocessing_num_workers=1).prepared
    assert len(tokenized) == 80
    again = recipe(reviews, tiny_model, preprocessing_num_workers=1)

    assert again.prepared["train"].to_dict() == whole
    assert sorted(tokenized) == sorted(again.splits["train"]["text"])  # each once
    assert len(files(again.prepared)["train"]) == 4


@pytest.mark.parametrize("options", [{"max_length": 9}, {"split_seed": 7}])
def test_something_else_is_tokenized_anew(
    options: dict[str, int], reviews: Path, tiny_model: str
) -> None:
    first, other = recipe(reviews, tiny_model), recipe(reviews, tiny_model, **options)

    assert files(first.prepared)["train"] != files(other.prepared)["train"]
    other_lengths = other.prepared["train"]["length"][:]
    assert max(other_lengths) <= other.max_length


#: What is long, and whether its end can be left out.
LONG = {
    "words": ("the food was great " * 4000, True),
    "lines": ("the\n\n\t food   was\r\ngreat \n" * 4000, True),
    "punctuation": ("!?., " * 9000, True),
    "one word": ("food" * 9000, False),
    "one word, then words": ("food" * 300 + " was great" * 4000, True),
    "words, then one": ("the food " * 20 + "food" * 9000, False),
    "white space": (" " * 40_000, False),
    "white space, then words": (" " * 9000 + "the food was great " * 4000, True),
    "characters that are deleted": ("\0\ufffd\x1c \x07" * 9000 + "the food", False),
    "deleted, then words": ("\0\ufffd \x07" * 900 + "the food was great " * 4000, True),
    "combining": ("e\u0301\u0327 \u0301a " * 9000, True),
    "Chinese": ("\u98df\u7269\u5f88\u597d" * 9000, False),
    "Chinese in lines": ("\u98df\u7269\u5f88\u597d\n" * 9000, True),
    "digits": ("1234567 " * 9000, True),
    "special tokens": ("[SEP] food[MASK] \u2581 <s> </s> " * 3000, True),
    "other white space": ("food\xa0was\u3000great\x85" * 4000, False),
}
TRAINERS: dict[str, tuple[Any, Any, Any, Any]] = {
    "WordPiece": (
        models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100),
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
        trainers.WordPieceTrainer,
    ),
    "bytes": (models.BPE(), None, pre_tokenizers.ByteLevel(), trainers.BpeTrainer),
    "Unigram": (
        models.Unigram(),
        normalizers.NFKC(),
        pre_tokenizers.Metaspace(),
        trainers.UnigramTrainer,
    ),
    "no words": (models.BPE(), normalizers.NFC(), None, trainers.BpeTrainer),
}


@functools.cache
@functools.cache
def trained_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    model, normalizer, pre_tokenizer, trainer = TRAINERS[kind]
    backend = Tokenizer(model)
    if normalizer:
        backend.normalizer = normalizer
    if pre_tokenizer:
        backend.pre_tokenizer = pre_tokenizer
    special = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"]
    words = [text[:400] for text, _ in LONG.values()]
    named = {"unk_token": "[UNK]"} if kind == "Unigram" else {}
    backend.train_from_iterator(
        words, trainer(vocab_size=300, special_tokens=special, show_progress=False, **named)
    )
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]"
    )


def mirrored(text: str) -> str:
    """The same words and white space, the last ones first."""
    return "".join(reversed(re.findall(r"[ \t\r\n]+|[^ \t\r\n]+", text)))


def truncating(kind: str, side: str) -> PreTrainedTokenizerFast:
    tokenizer = copy.deepcopy(trained_tokenizer(kind))
    tokenizer.truncation_side = side
    return tokenizer


@pytest.mark.parametrize("case", LONG)
@pytest.mark.parametrize("kind", TRAINERS)
@pytest.mark.parametrize("max_length", [5, 64])
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_shortened_text_has_the_same_tokens(
    side: str, max_length: int, kind: str, case: str
) -> None:
    tokenizer, (text, _) = truncating(kind, side), LONG[case]
    if side == "left":
        text = mirrored(text)
    (short,) = shortened([text], tokenizer, max_length)

    whole, cut = (tokenizer(each, truncation=True, max_length=max_length) for each in (text, short))

    assert text.startswith(short) if side == "right" else text.endswith(short)
    assert cut["input_ids"] == whole["input_ids"]


@pytest.mark.parametrize("case", LONG)
@pytest.mark.parametrize("side", ["right", "left"])
def test_what_is_long_is_cut_where_that_is_safe(side: str, case: str) -> None:
    text, safe = LONG[case]
    if side == "left":
        text = mirrored(text)

    (short,) = shortened([text], truncating("WordPiece", side), 64)

    assert (len(short) < len(text) / 2) is safe


def test_a_tokenizer_without_words_gets_the_whole_text() -> None:
    text, _ = LONG["words"]

    assert shortened([text, "short"], trained_tokenizer("no words"), 16) == [text, "short"]


def test_the_tail_of_a_text_is_kept_in_training_and_in_the_saved_tokenizer(
    tmp_path: Path, tiny_model: str
) -> None:
    path = tmp_path / "reviews.csv"
    rows = [f"{'the food was ' * 9}{'good' if n % 2 else 'awful'},{n % 2}" for n in range(40)]
    path.write_text("\n".join(["text,label", *(f"{n} {row}" for n, row in enumerate(rows))]) + "\n")
    head, tail = (
        recipe(path, tiny_model, max_length=6, truncation=end) for end in ("head", "tail")
    )

    def texts(subject: TextClassification) -> list[str]:
        decode = subject.processing_class().decode
        ids = subject.prepared["train"]["input_ids"][:]
        return [decode(tokens, skip_special_tokens=True) for tokens in ids]

    assert not any("good" in text or "awful" in text for text in texts(head))
    assert all("good" in text or "awful" in text for text in texts(tail))
    tail.processing_class().save_pretrained(tmp_path)
    saved = AutoTokenizer.from_pretrained(tmp_path)
    encoded = saved(tail.splits["train"]["text"][:], truncation=True, max_length=6)["input_ids"]
    assert encoded == tail.prepared["train"]["input_ids"][:]


def test_a_long_text_is_not_tokenized_whole(
    tmp_path: Path, tiny_model: str, tokenized: list[str]
) -> None:
    path = tmp_path / "reviews.csv"
    long = "the food was great " * 20_000
    rows = [f"{long}{n},{n % 2}" if n == 5 else f"place {n},{n % 2}" for n in range(40)]
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    subject = recipe(path, tiny_model, max_length=16)
    (split,) = (name for name, rows in subject.splits.items() if max(map(len, rows["text"])) > 99)

    lengths = subject.prepared[split]["length"][:]
    assert max(map(len, tokenized)) < 1000
    tokenized.clear()
    counts = subject.whole_lengths(split)

    assert counts is not None
    assert max(map(len, tokenized)) <= 2**16
    place = lengths.index(16)
    whole = subject.processing_class()(subject.splits[split]["text"][place], verbose=False)
    assert counts[place] == len(whole["input_ids"])


def test_a_tokenizer_of_the_same_vocabulary_is_another(reviews: Path, tiny_model: str) -> None:
    """What a fast tokenizer does to a text beforehand stands in its `tokenizer.json` alone."""
    splits = recipe(reviews, tiny_model).splits
    plain, other = (AutoTokenizer.from_pretrained(tiny_model) for _ in range(2))
    other.backend_tokenizer.normalizer = normalizers.Replace("food", "service")

    first, second = (tokenize(splits, Encoder(each, 64)) for each in (plain, other))

    assert "food" in plain.decode(first["train"][0]["input_ids"])
    assert "service" in plain.decode(second["train"][0]["input_ids"])
