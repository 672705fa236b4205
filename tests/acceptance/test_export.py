"""Exports and engines: rows H1 and H5."""

import contextlib
import importlib.metadata as metadata
import importlib.util
import json
import multiprocessing
import os
import pickle
import re
import shutil
import string
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from packaging.requirements import Requirement
from scipy.special import softmax
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import finetune
from tests.acceptance import data
from tests.acceptance.conftest import TRAINING, Finished
from tests.conftest import ROOT
from tests.families import FAMILIES, write

Cli = Callable[..., Finished]
pytestmark = pytest.mark.contract("H1")
ODD = [
    "",
    "good " * 10_000,
    "😀 good 👩‍👩‍👧",
    "Ελληνικά, русский, 中文, العربية",
    "bad\n\n\t[SEP] [MASK]",
]


@pytest.fixture
def copy(exported: finetune.Run, tmp_path: Path) -> Path:
    """A copy of the run with an export, for tests that change it."""
    return Path(shutil.copytree(exported.path, tmp_path / "copy"))


def assert_same_answers(run: finetune.Run, rows: list[Any], **options: Any) -> pd.DataFrame:
    """Compare an export of a run with `finetune.predict`, in a batch and one row at a time."""
    export = finetune.export(run, run.path.parent / f"{run.path.name}-export", **options)
    assert (export.facts.check["changed"], export.facts.check["rows"] > 5) == (0, True)
    assert export.facts.check["largest_difference"] <= 1e-4
    predictor = finetune.Predictor(export.path)
    columns = predictor(rows).columns
    every = {} if export.facts.function is None else {"all_probabilities": True}
    expected = finetune.predict(run, rows, precision="fp32", **every)
    answers = predictor(rows, **every)
    added = expected[answers.columns]
    assert [*columns] == [*finetune.predict(run, rows[:1]).columns[-len(columns) :]]
    scale = 1 if every else expected.select_dtypes("number").std().max() + 1
    pd.testing.assert_frame_equal(answers, added, check_exact=False, rtol=0, atol=1e-5 * scale)
    for number, row in enumerate(rows):
        alone = predictor([row])
        for name in {"label"} & {*alone}:
            assert alone[name][0] == answers[name][number]
    return answers


@pytest.mark.trains
@pytest.mark.parametrize(
    "run",
    ["single_label_run", "ordinal_run", "multi_label_run", "regression_run"],
    indirect=True,
)
def test_an_export_answers_as_its_run(run: finetune.Run, copy_run: Any) -> None:
    texts = [*run.predictions["text"][:20], *ODD]
    assert_same_answers(copy_run(run), texts)


def write_parts(path: Path) -> Path:
    """Write the reviews with a second and a third text, some of them long."""
    rows = pd.read_csv(data.write_reviews(path.with_name("reviews.csv"), 120))
    rows["second"] = [f"{text} " * (1 + number % 9) for number, text in enumerate(rows["text"])]
    rows["third"] = rows["text"][::-1].to_numpy()
    rows.to_csv(path, index=False)
    return path


@pytest.mark.trains
@pytest.mark.parametrize(
    "options",
    [
        {"text_columns": "text,second"},
        {"text_columns": "text,second,third"},
        {"text_column": "second", "truncation": "tail"},
        {"text_column": "second", "truncation": "head_tail"},
        {"text_column": "second", "long_texts": "windows", "pooling": "max", "stride": 5},
    ],
    ids=lambda options: " ".join(options.values() if len(options) == 1 else list(options)[1:2]),
)
def test_texts_become_the_same_tokens(options: Any, bert: Path, tmp_path: Path) -> None:
    table = write_parts(tmp_path / "table.csv")
    values = {**TRAINING, "max_length": 24, "num_train_epochs": 1, "baseline": False, **options}
    values |= {"dataset": str(table), "model": str(bert), "output_dir": str(tmp_path / "run")}
    run = finetune.train("text", **values)
    names = options.get("text_columns", "").split(",")
    frame = pd.read_csv(table)[:20]
    rows = frame["second"].tolist() + ODD
    if len(names) > 1:
        rows = [*frame[names].itertuples(index=False, name=None)]
        rows += [(text, text, text)[: len(names)] for text in ODD]
    answers = assert_same_answers(run, rows)
    card = (run.path / "README.md").read_text(encoding="utf-8")
    assert ("pipeline(" in card) is (options.get("truncation") == "tail")
    tokenizer = json.loads((tmp_path / "run-export" / "tokenizer.json").read_text(encoding="utf-8"))
    is_whole = options.get("truncation") == "head_tail" or "long_texts" in options
    assert (tokenizer["truncation"] is None) is is_whole
    if len(names) > 1:
        predictor = finetune.Predictor(tmp_path / "run-export")
        assert predictor.columns == len(names)
        for columns in (frame, frame.to_dict("list"), {n: frame[n].to_numpy() for n in names}):
            pd.testing.assert_series_equal(predictor(columns)["label"], answers["label"][:20])


def test_the_example_in_the_docs_needs_no_torch(exported: finetune.Run, tmp_path: Path) -> None:
    """In a new process: the example of docs/serving.md, then `Predictor`."""
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.S)
    script = f"""
import json, pickle, sys
import finetune
predictor = finetune.Predictor("runs/yelp/export")
texts = {["", "good fine great", "bad " * 500, "good bad 中文"]!r}
answers = pickle.loads(pickle.dumps(predictor))(texts)
heavy = {{"torch", "transformers", "datasets", "sklearn"}} & {{*sys.modules}}
{example}
print(json.dumps([sorted(heavy), predict(texts), answers.to_dict("list"), predictor.digest]))
"""
    shutil.copytree(exported.path / "export", tmp_path / "runs" / "yelp" / "export")
    words = [sys.executable, "-c", script]
    process = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    heavy, pairs, answers, digest = json.loads(process.stdout)
    assert heavy == []
    assert [label for label, _ in pairs] == answers["label"]
    assert [score for _, score in pairs] == pytest.approx(answers["probability"], abs=1e-6)
    assert digest == finetune.Predictor(exported, "onnxruntime").digest
    tokenizer = AutoTokenizer.from_pretrained(exported.path)
    model = AutoModelForSequenceClassification.from_pretrained(exported.path)
    texts = ["", "good fine great", "bad " * 500, "good bad 中文"]
    batch = tokenizer(texts, truncation=True, padding=True, return_tensors="pt")
    logits = model(**batch).logits.detach().numpy()
    np.testing.assert_allclose(answers["probability"], softmax(logits, axis=1).max(1), atol=1e-5)


#: Texts with the names of special tokens, which a tokenizer reads as these if it is not told.
SPECIAL = [f"good {token} bad food" for token in ("</s>", "<|endoftext|>", "[SEP]", "<pad>", "<s>")]
SPECIAL += ["<unk> <mask> <eos>", "[CLS]good[PAD]", "", " ", "a", "great " * 100]


@pytest.mark.trains
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[] if name == "gpt2" else pytest.mark.slow) for name in FAMILIES],
)
def test_a_family_is_exported(family: str, tmp_path: Path, monkeypatch: Any) -> None:
    """Or refused, as documented. All texts of the run have one character; those asked any length.
    The example of docs/serving.md, `Predictor` and plain transformers give the same answers.
    """
    characters = string.ascii_lowercase + string.digits
    rows = [[text, ("bad", "good")[number % 3 == 0]] for number, text in enumerate(characters)]
    dataset = data.write_csv(tmp_path / "rows.csv", ["text", "label"], rows)
    options = {**TRAINING, "dataset": str(dataset), "model": str(write(family, tmp_path / "base"))}
    options |= dict(max_steps=1, max_length=48, baseline=False, output_dir=str(tmp_path / "run"))
    run = finetune.train("text", **options)
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| ([\w-]+) \| (yes|no)", page, re.M))
    if table[family] == "no":
        with pytest.raises(finetune.UserError, match=r"torch.onnx cannot export models of the .*'"):
            finetune.export(run)
        assert not (run.path / "export").exists()
        return
    if family != "gpt2":  # tracing takes seconds
        small = finetune.export(run, tmp_path / "small", quantize="int8", accept_changes=True)
        assert small.facts.quantized["bytes"] < 0.8 * small.facts.check["bytes"]
    export = finetune.export(run, tmp_path / "runs" / "yelp" / "export")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", page, re.S)[0], names)
    tokenizer = AutoTokenizer.from_pretrained(run.path)
    model = AutoModelForSequenceClassification.from_pretrained(run.path).eval()
    predictor = finetune.Predictor(export.path)
    # T5 has the mark of the end as a word, and refuses a text with two of them
    texts = [text for text in SPECIAL if family != "t5" or "</s>" not in text]
    for text in texts:
        batch = tokenizer([text], truncation=True, return_tensors="pt")
        if not batch["input_ids"].numel():
            batch = {name: torch.full((1, 1), tokenizer.pad_token_id) for name in batch}
            batch["attention_mask"] = torch.ones((1, 1), dtype=torch.int64)
        with torch.no_grad():
            expected = softmax(model(**batch).logits.numpy()[0])
        answers = predictor([text, *texts])
        for label, probability in [
            *names["predict"]([text]),
            names["predict"]([*texts, text])[-1],
            (answers["label"][0], answers["probability"][0]),
        ]:
            assert (label, probability) == (
                run.labels[expected.argmax()],
                pytest.approx(expected.max(), abs=1e-5),
            ), text


@pytest.mark.parametrize("engine", ["torch", "onnxruntime", "openvino"])
def test_an_engine_answers_as_torch(exported: finetune.Run, engine: str) -> None:
    texts = [*ODD, *exported.predictions["text"]]
    expected = finetune.predict(exported, texts, precision="fp32")
    predictor = finetune.Predictor(exported, engine)
    assert (predictor.engine, predictor.task, predictor.columns) == (engine, "single_label", 1)
    assert predictor.labels == exported.labels
    assert re.fullmatch("[0-9a-f]{64}", predictor.digest)
    answers = pickle.loads(pickle.dumps(predictor))(texts)
    exact = engine != "openvino"  # which computes in bf16 where it can
    np.testing.assert_allclose(
        answers["probability"], expected["probability"], atol=1e-5 if exact else 0.02
    )
    verb = finetune.predict(exported, texts, engine=engine, precision="fp32")
    np.testing.assert_allclose(verb["probability"], expected["probability"], atol=1e-5)
    assert verb["label"].tolist() == expected["label"].tolist()
    scores = finetune.evaluate(exported, engine=engine).metrics
    assert scores == pytest.approx(exported.metrics.test, abs=1e-4)


def test_missing_texts_get_missing_answers(exported: finetune.Run) -> None:
    predictor = finetune.Predictor(exported.path / "export")
    frame = pd.DataFrame({"text": ["good", None, "bad"], "other": 1}, index=[7, 8, 9])
    answers = predictor(frame)
    assert answers.index.tolist() == [7, 8, 9]
    assert answers.isna().to_numpy().tolist() == [[False] * 2, [True] * 2, [False] * 2]
    assert predictor({"text": np.array(["good", "bad"])})["label"].notna().all()
    missing = pd.array(["good", pd.NA], dtype="string")
    assert predictor({"text": missing})["label"].notna().tolist() == [True, False]
    assert len(predictor([])) == 0
    assert predictor([]).columns.tolist() == ["label", "probability"]


@pytest.mark.contract("H5")
def test_processes_answer_as_one(exported: finetune.Run, tmp_path: Path) -> None:
    """Over Parquet files, of which one has a missing text and one has no rows."""
    rows = exported.predictions[["text"]]
    for number, part in enumerate([rows[:7], rows[:0], rows[7:]]):
        part.to_parquet(tmp_path / f"{number}.parquet")
    shards = [pd.read_parquet(path) for path in sorted(tmp_path.iterdir())]
    shards[0].loc[3, "text"] = None
    predictor = finetune.Predictor(exported.path / "export")
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        answers = pd.concat(pool.map(predictor, shards))
    expected = finetune.predict(exported, rows["text"].tolist(), precision="fp32")
    expected.loc[3, ["label", "probability"]] = None
    assert answers["label"].fillna("").tolist() == expected["label"].fillna("").tolist()
    np.testing.assert_allclose(answers["probability"], expected["probability"], atol=1e-5)


#: Hides all packages but those named by a list, and those of Python.
IMAGE = """
import sys, importlib.metadata as metadata
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if (top := name.partition(".")[0]) in OTHERS:
            raise ModuleNotFoundError(f"{top} is not in the image", name=name)
sys.meta_path.insert(0, Hidden())
import finetune
for export in EXPORTS:
    print(finetune.Predictor(export)(["good", "cellar 7 ( lovely )"]).to_json())
"""


def required(names: set[str]) -> set[str]:
    """Return installed packages with all that they need, by name."""
    names = {re.sub(r"[-_.]+", "-", name).lower() for name in names}
    visited = set[str]()
    while missing := names - visited:
        visited |= missing
        for name in missing:
            with contextlib.suppress(
                metadata.PackageNotFoundError
            ):  # the server is tested elsewhere
                lines = map(Requirement, metadata.requires(name) or [])
                lines = [
                    line for line in lines if not line.marker or line.marker.evaluate({"extra": ""})
                ]
                names |= {re.sub(r"[-_.]+", "-", line.name).lower() for line in lines}
    return visited


@pytest.mark.contract("H5")
def test_an_image_has_the_packages_of_a_predictor(
    exported: finetune.Run, exported_entities: finetune.Run
) -> None:
    """With the packages of docker/serve.requirements.txt, a model answers."""
    text = (ROOT / "docker" / "serve.requirements.txt").read_text(encoding="utf-8")
    packages = required({*re.findall(r"^[a-z-]+", text, re.M)})
    assert {"onnxruntime", "numpy"} <= packages
    modules = metadata.packages_distributions()
    others = [
        module
        for module, owners in modules.items()
        if not {re.sub(r"[-_.]+", "-", owner).lower() for owner in owners} & packages
    ]
    others.remove("finetune")
    assert {"torch", "transformers", "datasets", "pyarrow"} <= {*others}
    exports = [str(run.path / "export") for run in (exported, exported_entities)]
    script = f"OTHERS, EXPORTS = {others!r}, {exports!r}\n{IMAGE}"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    answers = [json.loads(line) for line in process.stdout.splitlines()]
    expected = finetune.Predictor(exported.path / "export")(["good"])
    assert answers[0]["probability"]["0"] == expected["probability"][0]
    entities = finetune.Predictor(exported_entities.path / "export")(["cellar 7 ( lovely )"])
    assert answers[1]["entities"]["1"] == entities["entities"][0] != []


def assert_independent_of_neighbours(predictor: finetune.Predictor, run: Path) -> None:
    """The answer to a text is the same alone, in a batch, and beside an odd text that pads it."""
    texts = [*finetune.Run.load(run).predictions["text"], *ODD]
    odd = "!" * 300 + " zzzz qqq 12345 " * 20

    alone = pd.concat([predictor([text]) for text in texts])
    for frames in (
        [predictor(texts)],
        [predictor([text, odd])[:1] for text in texts],
        [predictor(texts[first : first + 3]) for first in range(0, len(texts), 3)],
    ):
        together = pd.concat(frames)
        assert together["label"].tolist() == alone["label"].tolist()
        np.testing.assert_allclose(together["probability"], alone["probability"], atol=1e-4)
    expected = finetune.predict(run, texts, precision="fp32")
    np.testing.assert_allclose(alone["probability"], expected["probability"], atol=0.05)


def test_a_command_exports_and_names_the_engine(copy: Path, cli: Cli, tmp_path: Path) -> None:
    result = cli("export", copy, "--quantize", "int8", "--output", tmp_path / "small")
    assert result.status == 0, result.stderr
    assert re.search(r"fp32 +\d.* 0 of \d+ ", result.stdout)
    assert re.search(r"int8.*accuracy.*95% CI", result.stdout)
    facts = json.loads((tmp_path / "small" / "export.json").read_text())
    assert facts["quantized"]["weights"] == "int8"
    assert facts["quantized"]["bytes"] < facts["check"]["bytes"]
    assert {*facts["quantized"]["difference"]["accuracy"]} >= {"value", "low", "high"}
    for check in (facts["check"], facts["quantized"]):
        assert check["neighbours"]["rows"] > 20
        assert check["neighbours"]["changed"] == 0
    assert_independent_of_neighbours(finetune.Predictor(tmp_path / "small"), copy)
    rows = tmp_path / "rows.csv"
    rows.write_text("text\ngood\nbad\n")
    words = ["predict", copy, rows, "--output", tmp_path / "out.csv", "--engine", "onnxruntime"]
    result = cli(*words)
    assert result.status == 0, result.stderr
    assert "samples/s in fp32 by onnxruntime" in result.stdout
    assert len(pd.read_csv(tmp_path / "out.csv")) == 2


@pytest.mark.contract("E4", "H1")
def test_a_prediction_is_not_resumed_with_another_export(copy: Path, tmp_path: Path) -> None:
    """It would join the answers of two models, such as fp32 and int8."""
    rows, output = tmp_path / "rows.csv", tmp_path / "out.csv"
    pd.DataFrame({"text": ["good"] * 1100}).to_csv(rows, index=False)

    def stop(event: Any) -> None:
        if getattr(event, "done", 0) > 1024:  # the first part is written
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finetune.predict_file(copy, rows, output, engine="onnxruntime", progress=stop)
    os.utime(copy / "export" / "model.onnx", (0, 0))
    with pytest.raises(finetune.UserError, match=r"--resume.*the model of"):
        finetune.predict_file(copy, rows, output, engine="onnxruntime", resume=True)


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "onnx"}, r"--engine onnx: expected torch, onnxruntime, openvino"),
        ({"engine": "onnxruntime", "precision": "bf16"}, r"--precision bf16: .* expects fp32"),
        ({"engine": "onnxruntime", "cpu_kernels": "auto"}, r"--cpu_kernels auto: .* expects off"),
    ],
)
def test_options_that_an_engine_lacks(exported: finetune.Run, options: Any, message: str) -> None:
    with pytest.raises(finetune.UserError, match=message):
        finetune.predict(exported, ["good"], **options)


def test_an_engine_needs_an_export_of_this_model(copy: Path, second_seed_run: finetune.Run) -> None:
    with pytest.raises(finetune.UserError, match=r"has no export; to make one: .* export "):
        finetune.evaluate(second_seed_run, engine="onnxruntime")
    shutil.copy(second_seed_run.path / "model.safetensors", copy)
    with pytest.raises(finetune.UserError, match=r"another model than .*; to make it again: "):
        finetune.Predictor(copy, "onnxruntime")
    with pytest.raises(finetune.UserError, match=r"--engine torch: .* is an export"):
        finetune.Predictor(copy / "export", "torch")


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json", "export.json"])
def test_a_changed_or_missing_file_is_refused(copy: Path, name: str) -> None:
    path = copy / "export" / name
    content = path.read_bytes()
    path.write_bytes(content[:-40] + b"x" * 40)
    with pytest.raises(finetune.UserError, match=rf"{name} (has changed|is damaged)"):
        finetune.Predictor(copy / "export")
    path.unlink()
    with pytest.raises(finetune.UserError, match=rf"nor a whole export|{name} is missing"):
        finetune.Predictor(copy / "export")


def test_edited_facts_are_refused(copy: Path) -> None:
    path = copy / "export" / "export.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps(facts | {"labels": facts["labels"][::-1]}))
    with pytest.raises(finetune.UserError, match=r"export\.json has changed since the export"):
        finetune.Predictor(copy / "export")


@pytest.mark.trains
def test_refusals(copy: Path, image_run: finetune.Run, tmp_path: Path) -> None:
    with pytest.raises(finetune.UserError, match="expected a run that reads texts"):
        finetune.export(image_run, tmp_path / "out")
    with pytest.raises(finetune.UserError, match="exists and is no export"):
        finetune.export(copy, tmp_path)
    with pytest.raises(finetune.UserError, match="--quantize int4: expected int8"):
        finetune.export(copy, tmp_path / "out", quantize="int4")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"model_type": "longformer"}))
    with pytest.raises(
        finetune.UserError, match=r"cannot export models of the type 'longformer'; use"
    ):
        finetune.export(copy, tmp_path / "out")
    (copy / "config.json").write_text(json.dumps(config))
    find = importlib.util.find_spec
    hide = lambda name: None if "onnx" in name else find(name)  # noqa: E731
    with mock.patch.object(importlib.util, "find_spec", hide):
        for call in (lambda: finetune.export(copy), lambda: finetune.Predictor(copy / "export")):
            with pytest.raises(finetune.UserError, match=r"pip install 'trainer-recipes\[onnx\]'"):
                call()
    predictor = finetune.Predictor(copy / "export")
    for batch, message in [
        ("good", "put it into a list"),
        ([1], "row 1: expected a text, found 1"),
        ([("good", "bad")], r"row 1: expected 1 texts \(text\), found 2"),
        (["half \ud83d"], "expected a text"),
        (None, "expected a list of rows, found None"),
        (pd.DataFrame([["good", "bad"]], columns=["text", "text"]), "two columns named 'text'"),
        ({"words": ["good"]}, r"no column 'text' \(available: words\)"),
    ]:
        with pytest.raises(finetune.UserError, match=message):
            predictor(batch)


OWN = """
from finetune import TextRecipe


class Mine(TextRecipe):
    def prepare(self, dataset):
        return super().prepare(dataset)
"""
SLOW = """
from transformers import ByT5Tokenizer

from finetune import TextRecipe


class Mine(TextRecipe):
    def processing_class(self):
        return ByT5Tokenizer(model_max_length=64)
"""
OTHER = """
import torch

from finetune import TextRecipe


class Mine(TextRecipe):
    def load_model(self, directory, labels):
        model = super().load_model(directory, labels)
        forward = model.forward

        def other(input_ids=None, attention_mask=None, token_type_ids=None, labels=None):
            outputs = forward(input_ids, attention_mask, token_type_ids, labels=labels)
            if torch.compiler.is_exporting():
                outputs["logits"] = outputs["logits"] * 1.1
            return outputs

        model.forward = other
        return model
"""


PADDED = """
from finetune import TextRecipe


class Mine(TextRecipe):
    def load_model(self, directory, labels):
        model = super().load_model(directory, labels)
        forward = model.forward

        def other(input_ids=None, attention_mask=None, token_type_ids=None, labels=None):
            outputs = forward(input_ids, attention_mask, token_type_ids, labels=labels)
            outputs["logits"] = outputs["logits"] * (1 + 0.01 * input_ids.shape[1])
            return outputs

        model.forward = other
        return model
"""


@pytest.mark.trains
@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (OWN, finetune.UserError, r"the recipe has its own prepare\(\); use finetune.predict"),
        (SLOW, finetune.UserError, r"ByT5Tokenizer is not a fast tokenizer; use finetune.predict"),
        (OTHER, finetune.RunError, "the export does not answer as the run: "),
        (PADDED, finetune.RunError, r"in a batch or padded, \d+ of \d+ have .* difference is 0.*"),
    ],
)
def test_a_model_that_answers_otherwise_leaves_no_export(
    reviews: Path, bert: Path, tmp_path: Path, source: str, error: Any, message: str
) -> None:
    (tmp_path / "mine.py").write_text(source)
    options = {**TRAINING, "dataset": str(reviews), "model": str(bert), "max_steps": 1}
    options |= {"output_dir": str(tmp_path / "run"), "baseline": False}
    run = finetune.train(str(tmp_path / "mine.py"), **options)
    before = sorted(path.name for path in run.path.iterdir())
    with pytest.raises(error, match=message):
        finetune.export(run, trust_recipe=True)
    assert sorted(path.name for path in run.path.iterdir()) == before
