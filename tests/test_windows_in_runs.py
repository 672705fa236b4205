"""Runs on long texts in windows: what they say, leave behind, go on from, and refuse."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from datasets import DatasetDict
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import finetune
from finetune import Run, UserError, cli
from finetune.data import lengths
from finetune.data.encoding import Encoder
from finetune.pipeline import lengths as lengths_of_recipes
from finetune.reporting import card
from finetune.tasks.single_label import probability_of
from tests.long_texts import MOST, Reviews, logits_by_hand, reviews

pytestmark = [pytest.mark.usefixtures("one_thread", "without_report"), pytest.mark.trains]
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


# ---- a run ---------------------------------------------------------------------------------------


def test_a_run_speaks_of_documents(windowed: Run, documents: Path) -> None:
    manifest, table = windowed.manifest, windowed.predictions
    assert manifest.status == "finished"
    assert len(table) == manifest.data.rows["test"] == windowed.statistics.rows == 24
    texts = pd.read_csv(documents)["text"]
    assert table["text"].tolist() == texts[table["id"]].tolist()
    whole = windowed.recipe().processing_class()(table["text"].tolist(), verbose=False)["input_ids"]
    assert table["tokens"].tolist() == [len(each) for each in whole]
    assert table["tokens"].max() > MOST
    rows = windowed.recipe().prepared["train"]
    assert manifest.steps == 2 * (len(rows) // 16)
    assert windowed.metrics.test["accuracy"] == (table["label"] == table["prediction"]).mean()


def test_predict_is_the_evaluation(windowed: Run) -> None:
    table = windowed.predictions
    found = finetune.predict(windowed, table[["text"]], precision="fp32", all_probabilities=True)
    names = [probability_of(name) for name in windowed.labels]
    assert len(found) == len(table)
    assert found[names].to_numpy() == pytest.approx(table[names].to_numpy(), abs=1e-5)
    again = finetune.evaluate(windowed)
    assert again.rows == len(table)
    assert again.metrics == pytest.approx(windowed.metrics.test, abs=1e-5)


@pytest.mark.parametrize("how", ["mean", "max"])
def test_the_card_says_how_to_pool_by_hand(
    windowed: Run, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = windowed.manifest.options
    windowed.update(options={**before, "pooling": how})
    written = card.of(windowed).text
    windowed.update(options=before)
    blocks = re.findall(r"```python\n(.*?)```", written, flags=re.DOTALL)
    assert len(blocks) == 2
    monkeypatch.chdir(windowed.path.parent)
    texts = windowed.predictions["text"].tolist()
    classifier = AutoModelForSequenceClassification.from_pretrained(windowed.path)
    expected = logits_by_hand(classifier, texts, how)
    for text, row in zip(texts[:8], expected, strict=False):
        names: dict[str, Any] = {"text": text}
        exec("".join(blocks), names)
        assert names["logits"].tolist() == pytest.approx(row.tolist(), abs=1e-5)


def test_a_pipeline_cuts_where_the_training_did(windowed: Run) -> None:
    assert AutoTokenizer.from_pretrained(windowed.path).model_max_length == MOST
    text = max(windowed.predictions["text"], key=len)
    classify = transformers.pipeline("text-classification", model=str(windowed.path), device="cpu")
    (found,) = classify([text], truncation=True, top_k=None)
    tokenizer = AutoTokenizer.from_pretrained(windowed.path)
    batch = tokenizer(text, truncation=True, max_length=MOST, return_tensors="pt")
    with torch.inference_mode():
        expected = windowed.model()(**batch).logits.softmax(-1)[0].tolist()
    assert sorted(each["score"] for each in found) == pytest.approx(sorted(expected), abs=1e-5)
    with pytest.raises((IndexError, RuntimeError)):  # what it does without, as the card says
        classify([text])


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
    documents: Path, short_model: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    own = {name: each for name, each in options.items() if name in RECIPES_OWN}
    others = {name: each for name, each in options.items() if name not in own}
    subject = reviews(documents, short_model, **own)
    done = finetune.train(subject, output_dir=str(tmp_path / "run"), baseline=False, **others)
    assert done.status == "finished"
    rows = done.recipe().prepared["train"]
    if "max_tokens_per_batch" in options:
        assert done.manifest.steps < 2 * (len(rows) // 16)
    else:
        assert done.manifest.steps == 2 * (len(rows) // 16)
    assert len(done.predictions) == min(24, own.get("eval_samples", 24))
    assert len(set(rows["document"])) == min(86, own.get("train_samples", 86))


def test_balanced_weights_are_those_of_windows(short_model: str, tmp_path: Path) -> None:
    rows = [f"place {number} was " + "fine " * 40 + ",long" for number in range(20)]
    rows += [f"spot {number} was dull,short" for number in range(20)]
    (tmp_path / "some.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    recipe = reviews(tmp_path / "some.csv", short_model, class_weights="balanced")
    targets = np.asarray(recipe.prepared["train"]["labels"][:])
    assert recipe.weights is not None
    first, second = (recipe.weights * np.bincount(targets)).tolist()
    assert first == pytest.approx(second)
    assert np.bincount(targets)[0] > 3 * np.bincount(targets)[1]


def test_numbers_have_windows_too(documents: Path, short_model: str, tmp_path: Path) -> None:
    frame = pd.read_csv(documents)
    frame["label"] = (frame["label"] == "good") + frame["text"].str.len() / 100
    frame.to_csv(tmp_path / "rows.csv", index=False)
    subject = reviews(tmp_path / "rows.csv", short_model, task="regression")
    trainer = subject.trainer(output_dir=str(tmp_path / "run"))
    output = trainer.predict(subject.prepared["test"])
    rows = subject.splits["test"]
    assert output.label_ids.tolist() == pytest.approx(rows["label"][:], rel=1e-6)
    trainer.model.name_or_path = short_model
    by_hand = logits_by_hand(trainer.model.eval(), rows["text"][:], "mean")
    assert output.predictions == pytest.approx(by_hand, abs=1e-5)


# ---- resuming ------------------------------------------------------------------------------------


def test_a_resumed_run_is_the_same_and_other_windows_are_refused(
    documents: Path,
    short_model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe = tmp_path / "stoppable.py"
    recipe.write_text(RECIPE, encoding="utf-8")

    def train(name: str, *flags: str, stop_at: int = -1) -> int:
        monkeypatch.setenv("STOP_AT", str(stop_at))
        words = ["--dataset", str(documents), "--model", short_model, "--max_length", str(MOST)]
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
        (
            ("--long_texts", "windows", "--truncation", "tail"),
            "--truncation has no effect: with --long_texts windows nothing is truncated",
        ),
        (("--stride", "3"), "--stride has no effect: needs --long_texts windows"),
        (("--pooling", "max"), "--pooling has no effect: needs --long_texts windows"),
        (
            ("--thresholds", "label"),
            "--thresholds has no effect: only a task of several labels a row has any",
        ),
    ],
)
def test_the_start_says_what_becomes_of_long_texts(
    documents: Path,
    short_model: str,
    flags: tuple[str, ...],
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe = tmp_path / "stoppable.py"
    recipe.write_text(RECIPE, encoding="utf-8")
    words = [str(recipe), "--dataset", str(documents), "--model", short_model, "--max_length", "16"]
    assert cli.main([*words, "--dry_run", *flags]) == 0
    subject = reviews(documents, short_model)
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
    short_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(short_model)
    texts = ["food " * (8 if number % 2 else 40) for number in range(200)]
    ids = tokenizer(texts, truncation=True, max_length=10)["input_ids"]
    encoder = Encoder(tokenizer, max_length=10)
    found = np.array([len(each) for each in ids])
    assert set(found) == {10}  # half of them are just as long
    said = lengths.cut(lambda numbers: [texts[each] for each in numbers], found, encoder)
    assert said == "50.0% of the training texts (100 of 200) cut at --max_length 10"
    monkeypatch.setattr(lengths, "_SAMPLE", 50)
    said = lengths.cut(lambda numbers: [texts[each] for each in numbers], found, encoder)
    assert re.fullmatch(r"about [45]\d\.\d% of the training texts cut at --max_length 10", said)
    none = lengths.cut(lambda numbers: [], np.full(5, 3), encoder)
    assert none == "none of the training texts is longer than --max_length 10"


def test_a_document_that_dominates_is_noted(short_model: str, tmp_path: Path) -> None:
    lines = [
        f"place {number} was {('dull', 'fine')[number % 2]},{number % 2}" for number in range(60)
    ]
    lines[0] = f"place 0 was {'dull ' * 600},0"
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")
    subject = reviews(path, short_model, split_seed=1)
    assert 0 in subject.splits["train"]["id"][:]
    assert lengths_of_recipes.dominating(subject) == (
        "--long_texts windows: 240 of 282 training windows (85.1%) are of the document with "
        "id 0, and each counts as a row in training; shorten it if it should not weigh so much"
    )


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "mistakes"),
    [
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
    documents: Path, short_model: str, options: dict[str, Any], mistakes: list[str]
) -> None:
    with pytest.raises(UserError) as error:
        reviews(documents, short_model, **({"stride": None} | options)).check()
    assert [each.replace(short_model, "MODEL") for each in error.value.mistakes] == mistakes


def test_more_positions_than_the_model_has_where_nothing_truncates(
    documents: Path, short_model: str
) -> None:
    class Whole(Reviews):
        def prepare(self, dataset: DatasetDict) -> DatasetDict:
            tokenizer = self.processing_class()
            return dataset.map(
                lambda row: {**tokenizer(row["text"], verbose=False), "labels": row["label"]}
            )

    subject = Whole(dataset=str(documents), model=short_model)
    subject.max_length = 32
    with pytest.raises(UserError) as error:
        _ = subject.prepared
    rows = subject.splits["train"]
    first = next(row for row in rows if len(row["text"].split()) > 20)
    (said,) = error.value.mistakes
    tokens = len(subject.processing_class()(first["text"], verbose=False).input_ids)
    line = first["id"] + 2
    assert said.startswith(
        f"a text of the train data (line {line}) has {tokens} tokens, --model {short_model} has 32 "
    )
    assert said.endswith(
        "truncate in prepare() of the recipe, with tokenizer(..., truncation=True, "
        "max_length=self.max_length)"
    )
