"""Long texts in windows: every token is read, and everything is said of documents, once each."""

import itertools
import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from datasets import DatasetDict
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

import finetune
from finetune import Run, TextClassification, UserError, cli
from finetune.data import lengths, tokenize, windows
from finetune.data.windows import Windows
from finetune.predicting import engine
from finetune.reporting import card
from finetune.tasks.single_label import probability_of

pytestmark = [pytest.mark.usefixtures("one_thread", "without_report"), pytest.mark.trains]
MOST, STRIDE = 16, 4
RECIPES_OWN = ("train_samples", "eval_samples", "pooling")
RECIPE = '''
"""Reviews in windows, stopped where the environment says."""

import os

from finetune import TextClassification


class Stoppable(TextClassification):
    training = dict(
        global_batch_size=16, learning_rate=3e-3, num_train_epochs=2, logging_steps=3,
        precision="fp32", disable_tqdm=True, metric_for_best_model="loss",
    )

    def parts(self, model=None):
        from transformers import TrainerCallback

        class Stop(TrainerCallback):
            def on_step_begin(self, args, state, control, **kwargs):
                if state.global_step == int(os.environ.get("STOP_AT", -1)):
                    raise KeyboardInterrupt

        return {**super().parts(model), "callbacks": [Stop()]}
'''


class Reviews(TextClassification):
    training = dict(
        global_batch_size=16,
        learning_rate=3e-3,
        num_train_epochs=2,
        precision="fp32",
        disable_tqdm=True,
    )


@pytest.fixture(scope="module")
def model(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model, with 32 positions."""
    directory = tmp_path_factory.mktemp("model") / "tiny"
    config = AutoConfig.from_pretrained(tiny_model, max_position_embeddings=32)
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(directory)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(directory)
    return str(directory)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 documents of 4 to 130 words, good or bad."""
    path = tmp_path_factory.mktemp("data") / "documents.csv"
    words = {"bad": ["awful", "dull", "bland"], "good": ["great", "lovely", "fine"]}
    lines = ["text,label"]
    for number in range(120):
        label = ("bad", "good")[number % 2]
        body = " ".join(words[label][each % 3] for each in range((1, 4, 20, 130)[number // 2 % 4]))
        lines.append(f"place {number} was {body},{label}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def reviews(documents: Path, model: str, **options: Any) -> Reviews:
    usual = {"max_length": MOST, "long_texts": "windows", "stride": STRIDE}
    return Reviews(dataset=str(documents), model=model, **(usual | options))


@pytest.fixture(scope="module")
def run(documents: Path, model: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    directory = tmp_path_factory.mktemp("runs") / "reviews"
    return finetune.train(reviews(documents, model), output_dir=str(directory), baseline=False)


# ---- windows -------------------------------------------------------------------------------------


def by_the_library(tokenizer: Any, text: str, stride: int) -> list[list[int]]:
    """As the card of a run says it."""
    tokenizer.truncation_side = "right"
    options = {"max_length": MOST, "truncation": True}
    found = tokenizer(text, stride=stride, return_overflowing_tokens=True, **options)["input_ids"]
    tokenizer.truncation_side = "left"
    found[-1] = tokenizer(text, **options)["input_ids"]
    tokenizer.truncation_side = "right"
    return found


@pytest.mark.parametrize("piece", [2**16, 20])
@pytest.mark.parametrize("stride", [0, 4, 13])
@pytest.mark.parametrize("count", [0, 1, 13, 14, 15, 24, 25, 60])
def test_windows_are_those_of_the_library_and_the_last_is_full(
    model: str, count: int, stride: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenize, "_PIECE", piece)
    tokenizer = AutoTokenizer.from_pretrained(model)
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
    documents: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = reviews(documents, model)
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
    assert reviews(documents, model).prepared["train"].to_dict() == whole


def test_the_cache_knows_mode_and_stride_but_not_the_pooling(documents: Path, model: str) -> None:
    def file(**options: Any) -> str:
        rows = reviews(documents, model, **options).prepared["train"]
        return str(rows.cache_files[0]["filename"])

    different = [{}, {"stride": 5}, {"stride": 0}, {"long_texts": "cut", "stride": None}]
    assert len({file(**options) for options in different}) == len(different)
    assert file() == file(stride=None) == file(pooling="max")


# ---- pooling -------------------------------------------------------------------------------------


def logits_by_hand(classifier: Any, texts: list[str], how: str) -> np.ndarray:
    tokenizer = AutoTokenizer.from_pretrained(classifier.name_or_path)
    found = []
    for text in texts:
        with torch.inference_mode():
            each = classifier(torch.tensor(by_the_library(tokenizer, text, STRIDE))).logits.numpy()
        found.append(each.mean(axis=0) if how == "mean" else each.max(axis=0))
    return np.stack(found)


@pytest.mark.parametrize("how", ["mean", "max"])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_evaluation_is_of_documents(
    documents: Path, model: str, how: str, size: int, tmp_path: Path
) -> None:
    subject = reviews(documents, model, pooling=how)
    trainer = subject.trainer(output_dir=str(tmp_path), per_device_eval_batch_size=size)
    output = trainer.predict(subject.prepared["test"])
    rows = subject.splits["test"]
    trainer.model.name_or_path = model
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


def test_an_evaluation_in_batches_is_refused(documents: Path, model: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        reviews(documents, model).trainer(output_dir=str(tmp_path), eval_do_concat_batches=False)
    assert list(error.value.mistakes) == [
        "--eval_do_concat_batches false: --long_texts windows needs the outputs for all windows of "
        "a text together; leave it out"
    ]


# ---- a run ---------------------------------------------------------------------------------------


def test_a_run_speaks_of_documents(run: Run, documents: Path) -> None:
    manifest, table = run.manifest, run.predictions
    assert manifest.status == "finished"
    assert len(table) == manifest.data.rows["test"] == run.statistics.rows == 24
    texts = pd.read_csv(documents)["text"]
    assert table["text"].tolist() == texts[table["id"]].tolist()
    whole = run.recipe().processing_class()(table["text"].tolist(), verbose=False)["input_ids"]
    assert table["tokens"].tolist() == [len(each) for each in whole]
    assert table["tokens"].max() > MOST
    rows = run.recipe().prepared["train"]
    assert manifest.steps == 2 * (len(rows) // 16)
    assert run.metrics.test["accuracy"] == (table["label"] == table["prediction"]).mean()


def test_predict_is_the_evaluation(run: Run) -> None:
    table = run.predictions
    found = finetune.predict(run, table[["text"]], precision="fp32", all_probabilities=True)
    names = [probability_of(name) for name in run.labels]
    assert len(found) == len(table)
    assert found[names].to_numpy() == pytest.approx(table[names].to_numpy(), abs=1e-5)
    again = finetune.evaluate(run)
    assert again.rows == len(table)
    assert again.metrics == pytest.approx(run.metrics.test, abs=1e-5)


@pytest.mark.parametrize("how", ["mean", "max"])
def test_the_card_says_how_to_pool_by_hand(
    run: Run, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run.manifest.options
    run.update(options={**before, "pooling": how})
    written = card.of(run).text
    run.update(options=before)
    blocks = re.findall(r"```python\n(.*?)```", written, flags=re.DOTALL)
    assert len(blocks) == 2
    monkeypatch.chdir(run.path.parent)
    texts = run.predictions["text"].tolist()
    classifier = AutoModelForSequenceClassification.from_pretrained(run.path)
    expected = logits_by_hand(classifier, texts, how)
    for text, row in zip(texts[:8], expected, strict=False):
        names: dict[str, Any] = {"text": text}
        exec("".join(blocks), names)
        assert names["logits"].tolist() == pytest.approx(row.tolist(), abs=1e-5)


def test_a_pipeline_cuts_where_the_training_did(run: Run) -> None:
    assert AutoTokenizer.from_pretrained(run.path).model_max_length == MOST
    text = max(run.predictions["text"], key=len)
    classify = transformers.pipeline("text-classification", model=str(run.path), device="cpu")
    (found,) = classify([text], truncation=True, top_k=None)
    tokenizer = AutoTokenizer.from_pretrained(run.path)
    batch = tokenizer(text, truncation=True, max_length=MOST, return_tensors="pt")
    with torch.inference_mode():
        expected = run.model()(**batch).logits.softmax(-1)[0].tolist()
    assert sorted(each["score"] for each in found) == pytest.approx(sorted(expected), abs=1e-5)
    with pytest.raises((IndexError, RuntimeError)):  # what it does without, as the card says
        classify([text])


@pytest.mark.processes
def test_two_processes_are_one(documents: Path, model: str, tmp_path: Path) -> None:
    options = {"hidden_dropout": 0.0}
    one, two = (
        finetune.launch(
            reviews(documents, model, **options),
            num_processes=processes,
            output_dir=str(tmp_path / str(processes)),
            gradient_accumulation_steps=3 - processes,
            per_device_eval_batch_size=5 * processes,
            baseline=False,
        )
        for processes in (1, 2)
    )
    assert two.manifest.launch.world_size == 2
    assert two.metrics.test == pytest.approx(one.metrics.test, abs=1e-4)
    numbers = [name for name, kind in one.predictions.dtypes.items() if kind.kind == "f"]
    assert numbers
    assert two.predictions[numbers].to_numpy() == pytest.approx(
        one.predictions[numbers].to_numpy(), abs=1e-4
    )
    assert two.predictions["text"].tolist() == one.predictions["text"].tolist()


@pytest.mark.parametrize(
    "options",
    [
        {"train_sampling_strategy": "group_by_length"},
        {"max_tokens_per_batch": 512, "train_sampling_strategy": "group_by_length"},
        {"train_samples": 40, "eval_samples": 10, "pooling": "max"},
    ],
    ids=lambda options: ",".join(options),
)
def test_steps_are_of_windows(
    documents: Path, model: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    own = {name: each for name, each in options.items() if name in RECIPES_OWN}
    others = {name: each for name, each in options.items() if name not in own}
    subject = reviews(documents, model, **own)
    done = finetune.train(subject, output_dir=str(tmp_path / "run"), baseline=False, **others)
    assert done.status == "finished"
    rows = done.recipe().prepared["train"]
    if "max_tokens_per_batch" in options:
        assert done.manifest.steps < 2 * (len(rows) // 16)
    else:
        assert done.manifest.steps == 2 * (len(rows) // 16)
    assert len(done.predictions) == min(24, own.get("eval_samples", 24))
    assert len(set(rows["document"])) == min(86, own.get("train_samples", 86))


def test_numbers_have_windows_too(documents: Path, model: str, tmp_path: Path) -> None:
    frame = pd.read_csv(documents)
    frame["label"] = (frame["label"] == "good") + frame["text"].str.len() / 100
    frame.to_csv(tmp_path / "rows.csv", index=False)
    subject = reviews(tmp_path / "rows.csv", model, task="regression")
    trainer = subject.trainer(output_dir=str(tmp_path / "run"))
    output = trainer.predict(subject.prepared["test"])
    rows = subject.splits["test"]
    assert output.label_ids.tolist() == pytest.approx(rows["label"][:], rel=1e-6)
    trainer.model.name_or_path = model
    by_hand = logits_by_hand(trainer.model.eval(), rows["text"][:], "mean")
    assert output.predictions == pytest.approx(by_hand, abs=1e-5)


# ---- predict -------------------------------------------------------------------------------------


def test_a_document_of_any_length_has_few_windows_at_once(
    run: Run, monkeypatch: pytest.MonkeyPatch
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
    monkeypatch.setattr(tokenize, "_PIECE", 1000)
    short = run.predictions["text"].tolist()[:5]
    told: list[int] = []
    predictor = engine.Predictor(run, "fp32")
    found = predictor.texts([*short, "dull food " * 20_000, ""], told.append)
    assert total > 4000
    assert most <= 64 + 4 * 16
    assert told == sorted(told)
    assert (told[-1], found.shape) == (7, (7, 2))
    monkeypatch.undo()
    assert found[:5] == pytest.approx(predictor.texts(short), abs=1e-5)


def test_a_recipe_that_prepares_its_texts_is_pooled_too(run: Run) -> None:
    class Louder(Reviews):
        def prepare(self, dataset: DatasetDict) -> DatasetDict:
            return super().prepare(dataset.map(lambda row: {"text": row["text"] + " "}))

    texts = run.predictions["text"].tolist()
    predictor = engine.Predictor(run, "fp32")
    expected = predictor.texts(texts)
    options = {**run.manifest.options, "model": str(run.path)}
    predictor.recipe = Louder(**options)
    assert predictor.texts(texts) == pytest.approx(expected, abs=1e-5)


# ---- resuming ------------------------------------------------------------------------------------


def test_a_resumed_run_is_the_same_and_other_windows_are_refused(
    documents: Path,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe = tmp_path / "stoppable.py"
    recipe.write_text(RECIPE, encoding="utf-8")

    def train(name: str, *flags: str, stop_at: int = -1) -> int:
        monkeypatch.setenv("STOP_AT", str(stop_at))
        words = ["--dataset", str(documents), "--model", model, "--max_length", str(MOST)]
        words += ["--no_baseline", "--save_strategy", "steps", "--save_steps", "10"]
        words += ["--long_texts", "windows", "--output_dir", str(tmp_path / name)]
        return cli.main([str(recipe), *words, *flags])

    resume = ("--resume_from_checkpoint", "last", "--eval_strategy", "steps", "--eval_steps", "10")
    every = resume[2:]
    assert train("whole", *every) == 0
    assert train("stopped", *every, stop_at=25) == 130
    capsys.readouterr()
    assert train("stopped", *resume, "--stride", "7", "--pooling", "max") == 2
    said = capsys.readouterr().err
    assert "stride null, now it is 7" in said
    assert "pooling 'mean', now it is 'max'" in said
    assert train("stopped", *resume) == 0
    whole, stopped = (Run.load(tmp_path / name) for name in ("whole", "stopped"))
    assert stopped.metrics == whole.metrics
    assert stopped.predictions.equals(whole.predictions)


# ---- what is said --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            (),
            "long texts {share:.1%} of the training texts ({cut} of {rows}) cut at --max_length 16",
        ),
        (("--truncation", "tail"), "({cut} of {rows}) cut at --max_length 16"),
        (
            ("--long_texts", "windows"),
            "long texts {windows:,} training windows of up to 16 tokens, 4 shared with the next: "
            "{mean:.1f} a document on average, at most {most}; logits pooled by mean",
        ),
        (("--long_texts", "windows"), "= 16 windows per step"),
    ],
)
def test_the_start_says_what_becomes_of_long_texts(
    documents: Path,
    model: str,
    flags: tuple[str, ...],
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe = tmp_path / "stoppable.py"
    recipe.write_text(RECIPE, encoding="utf-8")
    words = [str(recipe), "--dataset", str(documents), "--model", model, "--max_length", "16"]
    assert cli.main([*words, "--dry_run", *flags]) == 0
    subject = reviews(documents, model)
    texts = subject.splits["train"]["text"][:]
    whole = subject.processing_class()(texts, verbose=False)["input_ids"]
    counts = np.bincount(subject.prepared["train"]["document"][:])
    cut = sum(len(each) > MOST for each in whole)
    facts = {"cut": cut, "rows": len(texts), "share": cut / len(texts), "windows": counts.sum()}
    line = line.format(**facts, mean=counts.mean(), most=counts.max())
    said = " ".join(capsys.readouterr().out.split())
    assert line in said
    assert "document (" not in said  # no column of ours in the batch that is shown


def test_the_share_of_a_sample_is_said_to_be_about(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = ["food " * (8 if number % 2 else 40) for number in range(200)]
    ids = tokenizer(texts, truncation=True, max_length=10)["input_ids"]
    found = np.array([len(each) for each in ids])
    assert set(found) == {10}  # half of them are just as long
    said = lengths.cut(texts, found, tokenizer, 10)
    assert said == "50.0% of the training texts (100 of 200) cut at --max_length 10"
    monkeypatch.setattr(lengths, "_SAMPLE", 50)
    said = lengths.cut(texts, found, tokenizer, 10)
    assert re.fullmatch(r"about [45]\d\.\d% of the training texts cut at --max_length 10", said)
    short = ["dull"] * 5
    none = lengths.cut(short, np.full(5, 3), tokenizer, 10)
    assert none == "none of the training texts is longer than --max_length 10"


def test_a_document_that_dominates_is_noted(model: str, tmp_path: Path) -> None:
    lines = [
        f"place {number} was {('dull', 'fine')[number % 2]},{number % 2}" for number in range(60)
    ]
    lines[0] = f"place 0 was {'dull ' * 600},0"
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")
    subject = reviews(path, model, split_seed=1)
    assert 0 in subject.splits["train"]["id"][:]
    assert subject.dominating() == (
        "--long_texts windows: 240 of 282 training windows (85.1%) are of the document with "
        "id 0, and each counts as a row in training; shorten it if it should not weigh so much"
    )


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "mistakes"),
    [
        (
            {"long_texts": "cut", "stride": 4, "pooling": "max"},
            [
                "--stride 4: has a meaning only with --long_texts windows",
                "--pooling max: has a meaning only with --long_texts windows",
            ],
        ),
        (
            {"truncation": "tail"},
            ["--truncation tail: with --long_texts windows nothing is truncated"],
        ),
        (
            {"stride": 14},
            [
                "--stride 14: expected 0 to 13 tokens, as a window of --max_length 16 has 14 "
                "beside 2 special tokens"
            ],
        ),
        (
            {"stride": -1},
            [
                "--stride -1: expected 0 to 13 tokens, as a window of --max_length 16 has 14 "
                "beside 2 special tokens"
            ],
        ),
        (
            {"long_texts": "whole"},
            ["--long_texts whole: expected cut or windows"],
        ),
        (
            {"max_length": 64},
            ["--max_length 64: MODEL has 32 positions; expected 32 or fewer tokens"],
        ),
    ],
)
def test_what_cannot_be_is_refused(
    documents: Path, model: str, options: dict[str, Any], mistakes: list[str]
) -> None:
    with pytest.raises(UserError) as error:
        reviews(documents, model, **({"stride": None} | options)).check()
    assert [each.replace(model, "MODEL") for each in error.value.mistakes] == mistakes


def test_more_positions_than_the_model_has_where_nothing_truncates(
    documents: Path, model: str
) -> None:
    class Whole(Reviews):
        def prepare(self, dataset: DatasetDict) -> DatasetDict:
            tokenizer = self.processing_class()
            return dataset.map(
                lambda row: {**tokenizer(row["text"], verbose=False), "labels": row["label"]}
            )

    subject = Whole(dataset=str(documents), model=model)
    subject.max_length = 32
    with pytest.raises(UserError) as error:
        _ = subject.prepared
    rows = subject.splits["train"]
    first = next(row for row in rows if len(row["text"].split()) > 20)
    (said,) = error.value.mistakes
    tokens = len(subject.processing_class()(first["text"], verbose=False).input_ids)
    assert said.startswith(
        f"the row with id {first['id']} of train has {tokens} tokens, --model {model} has 32 "
    )
    assert said.endswith(
        "truncate in prepare() of the recipe, with tokenizer(..., truncation=True, "
        "max_length=self.max_length)"
    )
