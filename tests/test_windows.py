"""Long texts in windows: every token is read, and evaluation and prediction are of documents."""

import itertools
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from datasets import DatasetDict
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer

from finetune import Run, UserError
from finetune.data import shortening, tokenize, windows
from finetune.data.windows import Windows
from finetune.predicting import engine
from tests.long_texts import MOST, STRIDE, Reviews, by_the_library, logits_by_hand, reviews

pytestmark = [pytest.mark.usefixtures("one_thread", "without_report"), pytest.mark.trains]


# ---- windows -------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [2**16, 20])
@pytest.mark.parametrize("stride", [0, 4, 13])
@pytest.mark.parametrize("count", [0, 1, 13, 14, 15, 24, 25, 60])
def test_windows_are_those_of_the_library_and_the_last_is_full(
    short_model: str, count: int, stride: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shortening, "_PIECE", piece)
    tokenizer = AutoTokenizer.from_pretrained(short_model)
    text = " ".join(["was", "dull", "[SEP]", "food"][each % 4] for each in range(count))
    found = list(Windows(tokenizer, MOST, stride).rows(["a", text, "the food"]))

    own = [row for number, row, _ in found if number == 1]
    assert [row["input_ids"] for row in own] == by_the_library(tokenizer, text, stride)
    assert own[0].keys() == tokenizer(text).keys()
    assert [is_last for number, _, is_last in found if number == 1][:-1] == [False] * (len(own) - 1)
    assert [number for number, _, is_last in found if is_last] == [0, 1, 2]
    assert found[0][1] == tokenizer("a")
    assert found[-1][1] == tokenizer("the food")


def test_every_token_is_in_a_window_and_neighbours_share_the_stride() -> None:
    tokens = list(range(1000))
    for parts in ([tokens], [tokens[:7], [], tokens[7:500], tokens[500:]]):
        found = [window for window, _ in windows.cut(iter(parts), room=14, shared=4)]
        assert {token for window in found for token in window} == set(tokens)
        assert {len(window) for window in found} == {14}
        pairs = list(itertools.pairwise(found))
        assert [len({*one} & {*two}) for one, two in pairs[:-1]] == [4] * (len(pairs) - 1)
        assert len({*pairs[-1][0]} & {*pairs[-1][1]}) >= 4


def test_tokenizers_in_python_have_windows_too() -> None:
    tokenizer = transformers.ByT5Tokenizer()  # a byte is a token, and one ends the text
    found = [row for _, row, _ in Windows(tokenizer, 8, 2).rows(["abcdefghijklmn"])]
    texts = [tokenizer.decode(row["input_ids"], skip_special_tokens=True) for row in found]
    assert texts == ["abcdefg", "fghijkl", "hijklmn"]
    assert all(row["input_ids"][-1] == tokenizer.eos_token_id for row in found)
    assert all(row["attention_mask"] == [1] * 8 for row in found)


def test_rows_are_windows_with_the_label_of_their_document(
    documents: Path, short_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = reviews(documents, short_model)
    tokenizer = subject.processing_class()
    for split, rows in subject.prepared.items():
        raw, numbers = subject.splits[split], rows["document"][:]
        assert sorted(set(numbers)) == list(range(len(raw)))
        expected = [by_the_library(tokenizer, text, STRIDE) for text in raw["text"]]
        assert [len(each) for each in expected] == np.bincount(numbers).tolist()
        assert rows["input_ids"][:] == [ids for each in expected for ids in each]
        assert rows["labels"][:] == [raw["label"][number] for number in numbers]
        assert rows["length"][:] == [len(ids) for ids in rows["input_ids"]]
        assert subject.whole_lengths(split) == [
            len(tokenizer(text).input_ids) for text in raw["text"]
        ]
    whole = subject.prepared["train"].to_dict()
    monkeypatch.setattr(tokenize, "PART", 20)
    assert reviews(documents, short_model).prepared["train"].to_dict() == whole


def test_the_cache_knows_mode_and_stride_but_not_the_pooling(
    documents: Path, short_model: str
) -> None:
    def file(**options: Any) -> str:
        rows = reviews(documents, short_model, **options).prepared["train"]
        return str(rows.cache_files[0]["filename"])

    different = [{}, {"stride": 5}, {"stride": 0}, {"long_texts": "cut", "stride": None}]
    assert len({file(**options) for options in different}) == len(different)
    assert file() == file(stride=None) == file(pooling="max")


# ---- pooling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["mean", "max"])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_evaluation_is_of_documents(
    documents: Path, short_model: str, how: str, size: int, tmp_path: Path
) -> None:
    subject = reviews(documents, short_model, pooling=how)
    trainer = subject.trainer(output_dir=str(tmp_path), per_device_eval_batch_size=size)
    output = trainer.predict(subject.prepared["test"])
    rows = subject.splits["test"]
    trainer.model.name_or_path = short_model
    expected = logits_by_hand(trainer.model.eval(), rows["text"][:], how)

    assert output.predictions.shape == expected.shape == (len(rows), 2)
    assert output.predictions == pytest.approx(expected, abs=1e-5)
    assert output.label_ids.tolist() == rows["label"][:]
    loss = cross_entropy(torch.tensor(expected), torch.tensor(rows["label"][:])).item()
    assert output.metrics["test_loss"] == pytest.approx(loss, abs=1e-5)
    right = (expected.argmax(-1) == rows["label"][:]).mean()
    assert output.metrics["test_accuracy"] == pytest.approx(right)


def test_pooling_in_parts_is_pooling_at_once() -> None:
    generator = np.random.default_rng(0)
    outputs = generator.normal(size=(50, 3)).astype(np.float32)
    numbers = np.sort(np.concatenate([np.arange(9), generator.integers(9, size=41)]))
    for how, by_hand in (("mean", np.mean), ("max", np.max)):
        expected = np.stack([by_hand(outputs[numbers == each], axis=0) for each in range(9)])
        assert windows.pooled(outputs, numbers, how) == pytest.approx(expected, abs=1e-6)
        pool = windows.Pool(9, how)
        for some in np.array_split(generator.permutation(50), 7):
            pool.add(numbers[some], outputs[some])
        assert pool.outputs == pytest.approx(expected, abs=1e-6)


def test_an_evaluation_in_batches_is_refused(
    documents: Path, short_model: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        reviews(documents, short_model).trainer(
            output_dir=str(tmp_path), eval_do_concat_batches=False
        )
    assert list(error.value.mistakes) == [
        "--eval_do_concat_batches false: --long_texts windows needs the outputs for all windows of "
        "a text together; leave it out"
    ]


# ---- predict -------------------------------------------------------------------------------------


def test_a_document_of_any_length_has_few_windows_at_once(
    windowed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Row(dict):  # type: ignore[type-arg]
        __hash__ = object.__hash__

    alive: weakref.WeakSet[Row] = weakref.WeakSet()
    most = total = 0
    framed = Windows._framed

    def counting(self: Windows, ids: list[int]) -> Row:
        nonlocal most, total
        row = Row(framed(self, ids))
        alive.add(row)
        most, total = max(most, len(alive)), total + 1
        return row

    monkeypatch.setattr(Windows, "_framed", counting)
    monkeypatch.setattr(engine, "_MOST_WAITING", 64)
    monkeypatch.setattr(engine, "_TOKENIZED_AT_ONCE", 16)
    monkeypatch.setattr(shortening, "_PIECE", 1000)
    short = windowed.predictions["text"].tolist()[:5]
    told: list[int] = []
    predictor = engine.Predictor(windowed, "fp32")
    found = predictor.texts([*short, "dull food " * 20_000, ""], told.append)
    assert total > 4000
    assert most <= 64 + 4 * 16
    assert told == sorted(told)
    assert (told[-1], found.shape) == (7, (7, 2))
    monkeypatch.undo()
    assert found[:5] == pytest.approx(predictor.texts(short), abs=1e-5)


def test_a_recipe_that_prepares_its_texts_is_pooled_too(windowed: Run) -> None:
    class Louder(Reviews):
        def prepare(self, dataset: DatasetDict) -> DatasetDict:
            return super().prepare(dataset.map(lambda row: {"text": row["text"] + " "}))

    texts = windowed.predictions["text"].tolist()
    predictor = engine.Predictor(windowed, "fp32")
    expected = predictor.texts(texts)
    options = {**windowed.manifest.options, "model": str(windowed.path)}
    predictor.recipe = Louder(**options)
    assert predictor.texts(texts) == pytest.approx(expected, abs=1e-5)
