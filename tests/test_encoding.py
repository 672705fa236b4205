"""Tokens of pairs, of joined texts and of both ends of a text."""

import copy
import functools
import itertools
import random
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from finetune import UserError
from finetune.data.encoding import Encoder, allotted, knows_pairs, separator

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


WORDS = [
    "the",
    "food",
    "was",
    "great",
    "but",
    "service",
    "slow",
    ",",
    "café",
    "!",
    "unbelievable",
    "12",
]
SIDES = {"head": "right", "tail": "left", "head_tail": "right"}


def tokenizer_of(kind: str, form: str, truncation: str = "head") -> PreTrainedTokenizerFast:
    """One that knows pairs and token types, one that puts a token before a text, or one that adds
    nothing, as GPT-2.
    """
    tokenizer = copy.deepcopy(trained_tokenizer(kind))
    cls_sep: Any = [("[CLS]", 2), ("[SEP]", 3)]
    templates: dict[str, Any] = {
        "pairs": dict(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=cls_sep
        ),
        "begins": dict(single="[CLS] $A", pair="[CLS] $A $B", special_tokens=cls_sep[:1]),
    }
    if form in templates:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            **templates[form]
        )
    else:
        tokenizer.backend_tokenizer.post_processor = processors.Sequence([])
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer.truncation_side = SIDES[truncation]
    if form != "pairs":
        tokenizer.eos_token = "[SEP]"
    return tokenizer


def text(words: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def ids_of(tokenizer: PreTrainedTokenizerBase, part: str) -> list[int]:
    return list(tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"])


@pytest.mark.parametrize(
    ("form", "expected"), [("pairs", True), ("begins", False), ("none", False)]
)
def test_what_knows_pairs(form: str, expected: bool) -> None:
    tokenizer = tokenizer_of("WordPiece", form)
    assert knows_pairs(tokenizer) is (form == "pairs")
    assert separator(tokenizer) == ("\n" if form == "pairs" else "[SEP]")
    tokenizer.sep_token, tokenizer.eos_token = "[MASK]", "[SEP]"
    assert separator(tokenizer) == "[MASK]"


@pytest.mark.parametrize("truncation", ["head", "tail"])
@pytest.mark.parametrize("kind", TRAINERS)
@pytest.mark.parametrize("max_length", [8, 9, 64])
def test_a_pair_is_what_the_tokenizer_makes_of_it(
    max_length: int, kind: str, truncation: Any
) -> None:
    tokenizer = tokenizer_of(kind, "pairs", truncation)
    rows = [(text(a, a), text(b, b + 50)) for a in (0, 1, 3, 7, 40) for b in (0, 1, 4, 9, 40)]

    encoded = Encoder(tokenizer, max_length, truncation)(rows)

    expected = tokenizer(
        *(list(each) for each in zip(*rows, strict=True)),
        truncation="longest_first",
        max_length=max_length,
    )
    assert dict(encoded) == dict(expected)
    assert {1 in types for types in encoded["token_type_ids"]} == {True}
    assert max(map(len, encoded["input_ids"])) == max_length


def by_the_library(first: int, second: int, budget: int) -> tuple[int, int]:
    """`longest_first` as the crate `tokenizers` has it (utils/truncation.rs): what both keep."""
    swapped = first > second
    short, long = sorted((first, second))
    if first + second <= budget:
        return first, second
    long = short if short > budget else max(short, budget - short)
    if short + long > budget:
        short = budget // 2
        long = short + budget % 2
    return (long, short) if swapped else (short, long)


@pytest.mark.parametrize("truncation", ["head", "tail"])
@pytest.mark.parametrize("max_length", [9, 10])
@pytest.mark.parametrize("kind", ["WordPiece", "bytes"])
def test_long_parts_are_shortened_without_other_tokens(
    kind: str, max_length: int, truncation: Any
) -> None:
    """Also where the odd token of the budget is that of the longer of two long parts."""
    tokenizer = tokenizer_of(kind, "pairs", truncation)
    long = [each[:2000] for each, _ in LONG.values()]
    others = [text(4, 1), text(400, 2), "", long[0], long[0] + " food"]
    rows = [(each, other) for each in long for other in others]
    rows += [(other, each) for each, other in rows]
    ids = {part: ids_of(tokenizer, part) for row in rows for part in row}

    encoded = Encoder(tokenizer, max_length, truncation)(rows)

    for number, row in enumerate(rows):
        first, second = (ids[part] for part in row)
        keeps = by_the_library(len(first), len(second), max_length - 3)
        cut = [
            part[len(part) - most :] if truncation == "tail" else part[:most]
            for part, most in zip((first, second), keeps, strict=True)
        ]
        assert encoded["input_ids"][number] == [2, *cut[0], 3, *cut[1], 3]


@pytest.mark.parametrize(
    ("lengths", "budget", "kept"),
    [
        ([3, 4], 10, [3, 4]),
        ([3, 40], 10, [3, 7]),
        ([40, 3], 10, [7, 3]),
        ([40, 40], 11, [5, 6]),
        ([12, 40], 11, [5, 6]),
        ([40, 12], 11, [6, 5]),
        ([6, 5], 10, [5, 5]),
        ([9, 2, 9], 12, [5, 2, 5]),
        ([9, 0, 9, 9], 11, [3, 0, 4, 4]),
        ([], 3, []),
    ],
)
def test_the_longest_part_is_truncated_first(
    lengths: list[int], budget: int, kept: list[int]
) -> None:
    assert allotted(lengths, budget) == kept


@pytest.mark.parametrize("truncation", ["head", "tail"])
@pytest.mark.parametrize("kind", TRAINERS)
@pytest.mark.parametrize("form", ["begins", "none", "pairs"])
@pytest.mark.parametrize("parts", [2, 3])
def test_joined_parts_by_hand(parts: int, form: str, kind: str, truncation: Any) -> None:
    tokenizer = tokenizer_of(kind, form, truncation)
    if form == "pairs":
        parts, tokenizer.sep_token = 3, "[SEP]"
    before, after = {"pairs": ([2], [3]), "begins": ([2], []), "none": ([], [])}[form]
    lengths = [0, 1, 5, 30] if parts == 3 else [0, 1, 2, 5, 9, 30]
    rows = [
        tuple(text(words, seed) for seed, words in enumerate(each))
        for each in itertools.product(lengths, repeat=parts)
    ]
    max_length = 16

    encoded = Encoder(tokenizer, max_length, truncation)(rows)

    for number, row in enumerate(rows):
        pieces = [ids_of(tokenizer, part) for part in row]
        if kind == "Unigram":  # only the first part of a text gets the mark of a beginning
            whole = ids_of(tokenizer, "[SEP]".join(row))
            pieces = [list(g) for g in split_at(whole, 3)]
        budget = max_length - len(before) - len(after) - (parts - 1)
        kept = allotted([min(len(piece), budget) for piece in pieces], budget)
        cut = [
            piece[len(piece) - most :] if truncation == "tail" else piece[:most]
            for piece, most in zip(pieces, kept, strict=True)
        ]
        middle = cut[0] + [token for each in cut[1:] for token in (3, *each)]
        assert encoded["input_ids"][number] == [*before, *middle, *after], row
        assert encoded["token_type_ids"][number] == [0] * len(encoded["input_ids"][number])
        if len(encoded["input_ids"][number]) < max_length:  # as `pipeline()` gets it
            joined = tokenizer(separator(tokenizer).join(row))
            assert joined["input_ids"] == encoded["input_ids"][number]


def split_at(ids: list[int], separator_id: int) -> list[list[int]]:
    groups: list[list[int]] = [[]]
    for each in ids:
        if each == separator_id:
            groups.append([])
        else:
            groups[-1].append(each)
    return groups


def test_parts_without_a_special_token_between_are_lines() -> None:
    tokenizer = tokenizer_of("bytes", "none")
    tokenizer.eos_token = None
    assert separator(tokenizer) == "\n"
    rows = [("the food", "was great"), (text(30, 1), text(2, 2))]
    short, long = Encoder(tokenizer, 12)(rows)["input_ids"]
    tokens = tokenizer.convert_ids_to_tokens(short)
    assert [*tokens[:2], *tokens[-2:]] == ["Ġthe", "Ġfood", "was", "Ġgreat"]
    assert "Ċ" in tokens
    assert len(long) == 12
    assert "Ċ" in tokenizer.convert_ids_to_tokens(long)


def test_a_tokenizer_in_python_joins_as_well() -> None:
    """It knows no characters: parts are found by their tokens. Each is a byte here, plus three."""
    tokenizer = ByT5Tokenizer()
    rows = [("abcdefgh", "xy", "123456"), ("ab", "c", "")]
    long, short = Encoder(tokenizer, 10)(rows)["input_ids"]
    assert long == [*(ord(each) + 3 for each in "abc"), 1, ord("x") + 3, ord("y") + 3, 1, 52, 53, 1]
    assert short == [100, 101, 1, 102, 1, 1]
    (pair,) = Encoder(tokenizer, 8)([("abcdefgh", "xy")])["input_ids"]
    assert pair == [100, 101, 102, 103, 1, 123, 124, 1]


@pytest.mark.parametrize("form", ["pairs", "none"])
def test_too_few_tokens_for_all_parts_are_refused(form: str) -> None:
    tokenizer = tokenizer_of("WordPiece", form)
    tokenizer.sep_token = "[SEP]"
    fewest = {("pairs", 2): 5, ("pairs", 3): 7, ("none", 2): 3, ("none", 3): 5}
    for parts in (2, 3):
        most = fewest[form, parts]
        Encoder(tokenizer, most).refuse_too_short(parts)
        (row,) = Encoder(tokenizer, most)([("food was",) * parts])["input_ids"]
        assert len(row) == most
        with pytest.raises(UserError) as refused:
            Encoder(tokenizer, most - 1).refuse_too_short(parts)
        assert str(refused.value) == (
            f"--max_length {most - 1}: {parts} columns, with the special tokens around and between "
            f"them, need {most} tokens or more"
        )


@pytest.mark.parametrize("case", LONG)
@pytest.mark.parametrize("kind", TRAINERS)
@pytest.mark.parametrize("max_length", [5, 64])
def test_both_ends_of_a_text_are_kept(max_length: int, kind: str, case: str) -> None:
    tokenizer, (long, _) = tokenizer_of(kind, "pairs"), LONG[case]
    texts = [long[:5000], text(3, 1), text(100, 2), ""]

    encoded = Encoder(tokenizer, max_length, "head_tail")(texts)

    for number, each in enumerate(texts):
        ids = ids_of(tokenizer, each)
        head, budget = max_length // 4, max_length - 2
        if len(ids) > budget:
            ids = ids[:head] + ids[len(ids) - (budget - head) :]
        assert encoded["input_ids"][number] == [2, *ids, 3]
        assert encoded["attention_mask"][number] == [1] * (len(ids) + 2)


def test_the_ends_are_those_of_sun_et_al() -> None:
    tokenizer = tokenizer_of("WordPiece", "pairs")
    words = [f"{number}" for number in range(1000)]
    (ids,) = Encoder(tokenizer, 512, "head_tail")([" ".join(words)])["input_ids"]
    whole = ids_of(tokenizer, " ".join(words))
    assert ids[1:129] == whole[:128]
    assert ids[129:-1] == whole[-382:]


@pytest.mark.parametrize("form", ["pairs", "begins"])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_lengths_before_truncation(parts: int, form: str) -> None:
    tokenizer = tokenizer_of("WordPiece", form)
    tokenizer.sep_token = "[SEP]"
    long = "the food was great " * 5_000
    rows: list[Any] = [(text(9, 1),) * parts, (long,) * parts, (text(2, 1),) * parts]
    if parts == 1:
        rows = [row for (row,) in rows]
    encoder = Encoder(tokenizer, 16)

    lengths = encoder.whole_lengths(rows)

    def whole(row: Any) -> int:
        if parts == 1:
            return len(tokenizer(row, verbose=False)["input_ids"])
        if parts == 2 and form == "pairs":
            return len(tokenizer(*row, verbose=False)["input_ids"])
        return len(tokenizer("[SEP]".join(row), verbose=False)["input_ids"])

    assert lengths.tolist() == [whole(row) for row in rows]


def test_texts_of_five_megabytes_are_not_tokenized_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their tokens are those of the whole text, unless its beginning has too few."""
    tokenizer = tokenizer_of("WordPiece", "pairs")
    texts = ["the food was great " * 270_000, " " * 5_000_000 + "the food"]
    expected = tokenizer(texts, truncation=True, max_length=32)["input_ids"]
    ids, food = (ids_of(tokenizer, text) for text in (texts[0][:2000], "food"))
    sizes: list[int] = []
    call = PreTrainedTokenizerBase.__call__

    def remember(self: PreTrainedTokenizerBase, text: Any, *more: Any, **options: Any) -> Any:
        sizes.extend(map(len, [text] if isinstance(text, str) else text))
        return call(self, text, *more, **options)

    monkeypatch.setattr(PreTrainedTokenizerBase, "__call__", remember)
    encoder = Encoder(tokenizer, 32)
    assert encoder(texts)["input_ids"] == expected
    long, short = encoder([(texts[0], texts[0]), (texts[0], "food")])["input_ids"]
    assert long == [2, *ids[:14], 3, *ids[:15], 3]
    assert short == [2, *ids[: 29 - len(food)], 3, *food, 3]
    assert sorted(sizes)[-2] < 20_000
