"""Words with labels in use: export, predictor, server and push: rows H1 to H3 and H5."""

import json
import multiprocessing
import pickle
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import tokenizers
import torch
from fastapi.testclient import TestClient
from huggingface_hub import ModelCard
from scipy.special import softmax
from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

import finetune
from tests.acceptance.conftest import LENGTH, Finished, user_error
from tests.acceptance.test_export import OTHER as OTHER_TEXTS
from tests.acceptance.test_push import EXPORT, SENT, server  # noqa: F401
from tests.acceptance.test_tokens import chunks, short_rows, spans
from tests.families import FAMILIES, write
from tests.hub import Hub

Cli = Callable[..., Finished]
SENTENCE = "the service was cellar 7 ( lovely ) terrace 7 ( great menu ) rude 7"
#: Texts that a tokenizer may read in its own way; none, and one with thousands of words.
ODD = [
    "",
    " \u200b\n",
    "\u0000",
    "[CLS] cellar [SEP] 7 ##y",
    "\U0001f600 cellar 7 \u6771\u4eac (lovely) na\u00efve\r\n\tgreat",
    "cellar 7 ( lovely ) " * 500,
]


def assert_same_entities(first: Any, second: Any, tolerance: float = 1e-4) -> None:
    """Compare the entities of rows, and their probabilities."""
    assert list(map(spans, first)) == list(map(spans, second))
    probabilities = [
        [span["probability"] for cell in rows for span in cell] for rows in (first, second)
    ]
    np.testing.assert_allclose(*probabilities, rtol=0, atol=tolerance)


def directly(export: Path, text: str) -> list[tuple[int, int, str, float]]:
    """Return the entities of a text in one window, by onnxruntime and tokenizers alone."""
    facts = json.loads((export / "export.json").read_text())
    tokenizer = tokenizers.Tokenizer.from_file(str(export / "tokenizer.json"))
    session = onnxruntime.InferenceSession(export / "model.onnx")
    words = list(re.finditer(r"\w+|[^\w\s]", text))
    row = tokenizer.encode([word[0] for word in words], is_pretokenized=True)
    values = {"input_ids": row.ids, "token_type_ids": row.type_ids}
    values["attention_mask"] = row.attention_mask
    (logits,) = session.run(None, {name: np.array([values[name]]) for name in facts["inputs"]})
    probabilities = softmax(logits[0], axis=1)
    tokens = [row.word_ids.index(number) for number in range(len(words))]
    tags = [facts["labels"][probabilities[token].argmax()] for token in tokens]
    entities = []
    for kind, first, end in sorted(chunks(tags), key=lambda chunk: chunk[1]):
        mean = probabilities[tokens[first:end]].max(axis=1).mean()
        entities.append((words[first].start(), words[end - 1].end(), kind, float(mean)))
    return entities


@pytest.mark.contract("H1")
def test_an_export_answers_as_its_run_and_as_onnxruntime(exported_entities: finetune.Run) -> None:
    """In a batch and alone, short and in windows, from texts and from words."""
    run, export = exported_entities, exported_entities.path / "export"
    facts = json.loads((export / "export.json").read_text())
    assert facts["check"]["changed"] == facts["check"]["neighbours"]["changed"] == 0
    assert facts["check"]["largest_difference"] <= 1e-4
    # 1, 4, 16 and 48 words: of 48 words, special tokens leave room for fewer in a window
    assert facts["check"]["rows"] == run.manifest.data.rows["validation"] + 4
    predictor = finetune.Predictor(export)
    for row in short_rows(run):
        (answer,) = predictor([row.text])["entities"]
        expected = directly(export, row.text)
        assert spans(answer) == [tuple(span[:3]) for span in expected]
        scores = [span["probability"] for span in answer]
        assert scores == pytest.approx([span[3] for span in expected], abs=1e-5)
    texts = run.predictions["text"].tolist()
    assert max(run.predictions["tokens"]) > 2 * LENGTH
    expected = finetune.predict(run, texts + ODD, precision="fp32")["entities"]
    assert_same_entities(predictor(texts + ODD)["entities"], expected)
    assert_same_entities([predictor([text])["entities"][0] for text in texts + ODD], expected)
    assert_same_entities(finetune.Predictor(run)(texts + ODD)["entities"], expected)
    words = [text.split() for text in texts]  # its words are separated by blanks
    assert_same_entities(predictor(words)["entities"], expected[: len(texts)])
    assert expected[len(texts) :].map(len).tolist()[:3] == [0, 0, 0]


@pytest.mark.contract("H1", "E4", "E5")
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_an_engine_answers_as_torch(exported_entities: finetune.Run, engine: str) -> None:
    run, texts = exported_entities, exported_entities.predictions["text"].tolist()
    predictor = pickle.loads(pickle.dumps(finetune.Predictor(run, engine)))
    assert (predictor.engine, predictor.task, predictor.columns) == (engine, "tokens", 1)
    assert predictor.labels == ["dish", "place"]
    expected = finetune.predict(run, texts, precision="fp32")["entities"]
    answers = finetune.predict(run, texts, precision="fp32", engine=engine)["entities"]
    assert_same_entities(answers, expected)
    assert (16, 24, "place") in spans(predictor([SENTENCE])["entities"][0])
    metrics = finetune.evaluate(run, engine=engine).metrics
    assert metrics == pytest.approx(run.metrics.test, abs=1e-4)


@pytest.mark.contract("H5")
def test_frames_with_missing_rows_in_processes(exported_entities: finetune.Run) -> None:
    """Of texts and of lists of words, as pandas reads them of Parquet, beside other columns."""
    predictor = finetune.Predictor(exported_entities.path / "export")
    words: list[Any] = [np.array(SENTENCE.split(), dtype=object), None]
    columns: list[dict[str, Any]] = [
        {"text": [SENTENCE, None], "tokens": [14, 15]},
        {"text": ["other", "other"], "tokens": words},
        {"text": [SENTENCE, pd.NA], "tokens": [[{"text": "the"}], None]},
    ]
    frames = [pd.DataFrame(rows, index=[7, 8]) for rows in columns]
    expected = finetune.predict(exported_entities, [SENTENCE], precision="fp32")["entities"]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        answers = [*pool.map(predictor, frames[:1]), *map(predictor, frames[1:])]
    answers += [finetune.predict(exported_entities, frame, precision="fp32") for frame in frames]
    for answer in answers:
        assert answer.index.tolist() == [7, 8]
        assert_same_entities(answer["entities"][:1], expected)
        assert answer["entities"].isna().tolist() == [False, True]
    for batch, message in [
        ({"tokens": ['["the", "service"]']}, "row 1: expected a list of words in 'tokens', found"),
        ([["the", " "]], "row 1: expected words, found ['the', ' ']"),
        ([7], "row 1: expected a text, found 7"),
        ({"words": [7]}, "no column 'text' (available: words)"),
    ]:
        with user_error(message):
            predictor(batch)
    with user_error("all_probabilities: the model predicts entities"):
        predictor([SENTENCE], all_probabilities=True)


@pytest.mark.contract("E12")
@pytest.mark.parametrize("suffix", [".txt", ".tsv"])
def test_lines_of_words_with_tags_are_not_predicted_as_texts(
    suffix: str, exported_entities: finetune.Run, tmp_path: Path
) -> None:
    """In a ``.conll`` they are sentences; other lines are texts."""
    path = tmp_path / f"rows{suffix}"
    path.write_text("Ann\tB-PER\nleft\tO\n\nLee\tB-PER\n")
    output = tmp_path / "out.csv"
    with user_error("its lines are words with a tag", ".conll"):
        finetune.predict_file(exported_entities, path, output)
    path.write_text("text\nB-movies are fun\nwhat about vitamin B\n")
    assert finetune.predict_file(exported_entities, path, output).rows >= 2


#: Byte-level BPE, and a Unigram model of SentencePiece; others are slow. BART has no such head.
FAST = ("roberta", "xlm-r")
WORD_PIECE = ("bert", "distilbert", "electra", "mpnet")
OTHER_FAMILIES = [
    pytest.param(name, marks=[] if name in FAST else pytest.mark.slow)
    for name in FAMILIES
    if name != "bart"
]


@pytest.mark.contract("B5", "B9", "H1", "E12")
@pytest.mark.usefixtures("one_thread", "without_report")
@pytest.mark.parametrize("family", OTHER_FAMILIES)
def test_a_family_labels_words(family: str, tmp_path: Path) -> None:
    """Each word is read as after a blank; an export answers as its run and as the library."""
    rows = []
    for number in range(60):
        word = ("awful", "dull", "bland", "great", "lovely", "fine")[number % 6]
        text = f"the food of place {number}, ({word}) and {word}!"
        end = text.index(",")
        rows.append({"text": text, "spans": [{"start": 12, "end": end, "label": "place"}]})
    run = finetune.train(
        "tokens", dataset=rows, model=str(write(family, tmp_path / "base")), head="random",
        max_length=48, max_steps=2, global_batch_size=16, learning_rate=1e-8, precision="fp32",
        baseline=False, disable_tqdm=True, output_dir=str(tmp_path / "run"),
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(run.path)
    model = AutoModelForTokenClassification.from_pretrained(run.path).eval()
    texts = run.predictions["text"].tolist()
    assert len(texts) == 12
    predicted = finetune.predict(run, texts, precision="fp32")["entities"]
    assert sum(map(len, predicted)) > 12
    for text, entities in zip(texts, predicted, strict=True):
        words = list(re.finditer(r"\w+|[^\w\s]", text))
        encoded = tokenizer([w[0] for w in words], is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            ids = model(**encoded).logits[0].argmax(dim=-1).tolist()
        places = [encoded.word_ids().index(number) for number in range(len(words))]
        found = chunks([run.labels[ids[place]] for place in places])
        expected = [(words[a].start(), words[b - 1].end(), kind) for kind, a, b in found]
        assert spans(entities) == sorted(expected)
    card = (run.path / "README.md").read_text(encoding="utf-8")
    assert ("pipeline(" in card) == (family in WORD_PIECE)
    assert ("import finetune" in card) == (family not in WORD_PIECE)
    if family in ("longformer", "xlnet"):
        with pytest.raises(finetune.UserError, match=r"torch.onnx cannot export models of the .*'"):
            finetune.export(run)
        return
    predictor = finetune.Predictor(finetune.export(run).path)
    assert_same_entities(predictor(texts)["entities"], predicted)
    words_of_texts = [re.findall(r"\w+|[^\w\s]", text) for text in texts]
    lists = finetune.predict(run, pd.DataFrame({"tokens": words_of_texts}), precision="fp32")
    assert_same_entities(predictor(words_of_texts)["entities"], lists["entities"])
    assert [len(cell) for cell in lists["entities"]] == [len(cell) for cell in predicted]


#: A recipe whose exported model answers otherwise than in the run, and one with its own windows.
OTHER = OTHER_TEXTS.replace("TextRecipe", "TokenRecipe")
OWN = """
from finetune import TokenRecipe


class Mine(TokenRecipe):
    def prepare(self, dataset):
        return super().prepare(dataset)
"""


@pytest.mark.contract("H1")
@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (OTHER, finetune.RunError, "the export does not answer as the run: 0 of 23 rows"),
        (OWN, finetune.UserError, r"the recipe has its own prepare\(\); use finetune.predict"),
    ],
    ids=["other", "own"],
)
def test_a_model_that_answers_otherwise_leaves_no_export(
    entity_run: finetune.Run, copy_run: Any, tmp_path: Path, source: str, error: Any, message: str
) -> None:
    run = copy_run(entity_run)
    (tmp_path / "mine.py").write_text(source)
    manifest = json.loads((run.path / "run.json").read_text())
    manifest["recipe"] = str(tmp_path / "mine.py")
    (run.path / "run.json").write_text(json.dumps(manifest))
    with (
        pytest.warns(UserWarning, match="importing the recipe"),
        pytest.raises(error, match=message),
    ):
        finetune.export(run.path, trust_recipe=True)
    assert not (run.path / "export").exists()


@pytest.mark.contract("H1")
def test_a_command_exports_in_8_bits(
    exported_entities: finetune.Run, cli: Cli, tmp_path: Path
) -> None:
    words = ["--quantize", "int8", "--output", tmp_path / "small", "--accept_changes"]
    result = cli("export", exported_entities.path, *words).succeeded()
    assert re.search(r"fp32 +\d.* 0 of 23 ", result.stdout)
    assert re.search(r"with int8: f1.*95% CI", result.stdout)
    texts = exported_entities.predictions["text"].tolist()
    predictor = finetune.Predictor(tmp_path / "small")
    alone = [predictor([text])["entities"][0] for text in texts]
    assert_same_entities(predictor(texts)["entities"], alone)


@pytest.mark.contract("H2")
def test_a_server_answers_with_entities(exported_entities: finetune.Run) -> None:
    """Places count characters of the text, not units of UTF-16."""
    classify = pipeline(
        "token-classification",
        model=str(exported_entities.path),
        aggregation_strategy="first",
    )
    texts = [SENTENCE, f"\U0001f600 {SENTENCE}", "x"]
    predictor = finetune.Predictor(exported_entities.path / "export")
    with TestClient(finetune.create_app(predictor)) as client:
        answer = client.post("/predict", json={"texts": texts}).json()
        one = client.post("/predict", json={"text": SENTENCE}).json()
        health = client.get("/health").json()
        api = client.get("/openapi.json").json()
    assert answer["model"] == health["model"] == predictor.digest
    assert one["predictions"] == answer["predictions"][:1]
    assert (health["task"], health["labels"]) == ("tokens", ["dish", "place"])
    assert "Labels: dish, place." in api["info"]["description"]
    schema = api["components"]["schemas"]["Entity"]
    for text, prediction in zip(texts, answer["predictions"], strict=True):
        assert list(prediction) == ["entities"]
        expected = classify(text)
        assert bool(expected) == (text != "x")
        found = prediction["entities"]
        assert [list(entity) for entity in found] == [schema["required"]] * len(expected)
        for entity, group in zip(found, expected, strict=True):
            places = (group["start"], group["end"], group["entity_group"])
            assert (entity["start"], entity["end"], entity["label"]) == places
            assert entity["probability"] == pytest.approx(group["score"], abs=1e-4)


@pytest.mark.contract("H3")
def test_a_pushed_model_has_scores_of_entities(
    exported_entities: finetune.Run,
    server: Hub,  # noqa: F811
    cli: Cli,
    tmp_path: Path,
) -> None:
    cli("push", exported_entities.path, "--repo", "entities", "--yes").succeeded()
    files = server.repositories["me/entities"].files
    assert files.keys() == SENT | EXPORT
    for name, content in files.items():
        (tmp_path / "theirs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "theirs" / name).write_bytes(content)
    card = ModelCard.load(tmp_path / "theirs" / "README.md")
    assert card.data.pipeline_tag == "token-classification"
    scores = {result.metric_type: result.metric_value for result in card.data.eval_results}
    expected = exported_entities.metrics.test
    assert {*scores} >= {"f1", "precision", "recall"}
    assert scores == {name: expected[name] for name in scores}
    assert {result.task_type for result in card.data.eval_results} == {"token-classification"}
    (model,) = re.findall(r'pipeline\("token-classification", model="(.*?)", aggr', card.text)
    assert model == "me/entities"
    classify = pipeline(
        "token-classification", model=str(tmp_path / "theirs"), aggregation_strategy="first"
    )
    expected = [(e["start"], e["end"], e["entity_group"]) for e in classify(SENTENCE)]
    answers = finetune.Predictor(tmp_path / "theirs" / "export")([SENTENCE])
    assert spans(answers["entities"][0]) == expected != []
