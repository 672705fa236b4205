"""Words with labels: formats and schemes, training, scores, predictions and the files of a run."""

import json
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, List, Value
from transformers import AutoTokenizer, pipeline
from transformers import Trainer as StockTrainer

import finetune
from tests.acceptance import data
from tests.acceptance.conftest import LENGTH, TRAINING, Finished, flags, user_error
from tests.conftest import ROOT

Cli = Callable[..., Finished]


class Entities(finetune.TokenRecipe):
    """Words with labels."""


# ---- data ----------------------------------------------------------------------------------------

ANN = [("Ann", "B-PER"), ("Lee", "I-PER"), ("Bob", "B-PER"), ("Rome", "B-LOC")]
IOB2 = "Ann B-PER\nLee I-PER\nBob B-PER\nis O\nin O\nRome B-LOC"
IOB1 = "-DOCSTART- -X- O\r\n\r\nAnn N I-PER\r\nLee N I-PER\r\nBob N B-PER\r\nRome N I-LOC\r\n"
IOBES = "Ann\tB-PER\nLee\tE-PER\nBob\tS-PER\n\nin\tO\nRome\tS-LOC\n"
PLAIN = "1 Ann PER\n2 Lee PER\n3 and O\n4 Rome LOC\n\n\n"
TEXT = "Ann Lee, Bob: in Rome"
SPANS = [(0, 7, "PER"), (9, 12, "PER"), (17, 21, "LOC")]
OBJECTS = [{"start": start, "end": end, "label": label} for start, end, label in SPANS]
OFFSETS = [{"start_offset": s, "end_offset": e, "label": label, "id": 1} for s, e, label in SPANS]
STUDIO = [{"start": s, "end": e, "labels": [label], "text": TEXT[s:e]} for s, e, label in SPANS]
LINES = "Ann  \nLee"
JOINED = {"tokens": ["Ann", "Lee", "Bob", "Rome"], "ner_tags": [tag for _, tag in ANN]}
#: Name of a file, its content, options, the words with entities, and how the labels are written.
READ: dict[str, tuple[str, Any, dict[str, Any], list[tuple[str, str]], str]] = {
    "IOB2": ("a.conll", IOB2, {}, ANN, "IOB2"),
    "IOB1, CRLF, documents": ("a.bio", IOB1, {}, ANN, "IOB1"),
    "IOBES, tabs": ("a.iob", IOBES, {}, ANN, "IOBES"),
    "BILOU": ("a.txt", IOBES.replace("E-", "L-").replace("S-", "U-"), {}, ANN, "BILOU"),
    "types": ("a.tsv", PLAIN, dict(token_column="2"), [*ANN[:2], ANN[3]], "without prefixes"),
    "IOB2 as IOB1": ("a.conll", "a I-X\nb I-X\nc O\nd B-X", dict(tag_scheme="iob1"),
                     [("a", "B-X"), ("b", "I-X"), ("d", "B-X")], "IOB1"),
    "names of types": ("a.conll", IOB2, dict(label_map="PER=human,LOC=O"),
                       [(word, tag.replace("PER", "human")) for word, tag in ANN[:3]], "IOB2"),
    "tokens": ("a.jsonl", [JOINED], {}, ANN, "IOB2"),
    "ids": ("a.json", [{"words": JOINED["tokens"], "tags": [3, 4, 3, 1]}],
            dict(label_map="1=B-LOC,3=B-PER,4=I-PER"), ANN, "IOB2"),
    "JSON in a table": ("a.csv", 'tokens,tags\n"[""Ann"",""x""]","[""B-PER"",""O""]"\n', {},
                        ANN[:1], "IOB2"),
    "Prodigy": ("a.jsonl", [{"text": TEXT, "spans": OBJECTS, "answer": "accept",
                             "tokens": [{"text": "Ann", "start": 0, "end": 3, "id": 0}]}],
                {}, ANN, "spans"),
    "doccano": ("a.jsonl", [{"id": 1, "text": TEXT, "label": SPANS, "Comments": []}], {}, ANN,
                "spans"),
    "doccano with relations": ("a.jsonl", [{"text": TEXT, "entities": OFFSETS, "relations": []}],
                               {}, ANN, "spans"),
    "Label Studio": ("a.json", [{"text": TEXT, "label": STUDIO, "id": 7}], {}, ANN, "spans"),
    "Label Studio, line breaks": (
        "a.json", [{"text": LINES, "label": [
            {"start": 0, "end": len(LINES), "labels": ["PER"], "text": "Ann \\nLee"}]}],
        {}, ANN[:2], "spans"),
    "tags and types renamed": ("a.conll", "Ann 1\nin 0\nBob B-PER",
                               dict(label_map="0=O,1=B-PER,PER=human"),
                               [("Ann", "B-PER"), ("Bob", "B-human")], "IOB2"),
    "numbers as types": ("a.conll", "Ann B-1\nLee I-1\nin O", {},
                         [("Ann", "B-1"), ("Lee", "I-1")], "IOB2"),
    "blanks around a span": ("a.jsonl", [{"text": TEXT, "spans": [[7, 12, "PER"]]}], {},
                             [("," , "B-PER"), ("Bob", "I-PER")], "spans"),
    "types like prefixes": ("a.conll", "Ann B\nLee I\nin O", dict(tag_scheme="plain"),
                            [("Ann", "B-B"), ("Lee", "B-I")], "without prefixes"),
    "neighbours made one type": ("a.conll", "Ann PER\nRome LOC\nin O", dict(label_map="LOC=PER"),
                                 [("Ann", "B-PER"), ("Rome", "B-PER")], "without prefixes"),
    "letters are words": ("a.jsonl", [{"text": "\u6771\u4eac\u3067", "spans": [[0, 2, "LOC"]]}],
                          {}, [("\u6771", "B-LOC"), ("\u4eac", "I-LOC")], "spans"),
}  # fmt: skip
SEVEN = {"text": "Ann Lee", "spans": [[0, 7, "PER"]]}
#: Name of a file, its content, options, and fragments of the message.
REFUSED: dict[str, tuple[str, Any, dict[str, Any], list[str]]] = {
    "sequence": ("a.conll", "Al B-X\n\nAnn B-PER\nin O\nLee I-PER", {},
                 ["impossible", "I-PER after", "line 3", "--tag_scheme", "--drop_invalid"]),
    "open entity": ("a.conll", "Ann B-PER\nLee O\nBob S-PER", {}, ["O after B-PER", "line 1"]),
    "short line": ("a.conll", "Ann N B-PER\nin O", {}, ["line 2", "2 more fields"]),
    "prefixes": ("a.conll", "Ann B-PER\nLee PER", {}, ["--tag_scheme", "'PER'", "set plain"]),
    "prefixes in lower case": ("a.conll", "Ann b-PER\nLee i-PER\nRome b-LOC", {},
                               ["'b-PER'", "--label_map b-PER=B-PER,i-PER=I-PER makes",
                                "--tag_scheme plain"]),
    "prefixes without a type": ("a.conll", "Ann B\nLee I\nin O", {},
                                ["--label_map B=B-NAME,I=I-NAME makes"]),
    "prefixes at the end": ("a.conll", "Ann PER-B\nLee PER-I\nin O", {},
                            ["--label_map PER-B=B-PER,PER-I=I-PER makes"]),
    "spans of words": ("a.jsonl", [{**SEVEN, "spans": [[0, 3, "B-PER"], [4, 7, "I-PER"]]}], {},
                       ["'B-PER'", "one span for an entity"]),
    "numbers": ("a.jsonl", [{"tokens": ["a"], "ner_tags": [1]}], {}, ["--label_map 0=O", "line 1"]),
    "fewer tags": ("a.jsonl", [{"tokens": ["a", "b"], "tags": ["B-X"]}], {}, ["2 and 1", "line 1"]),
    "empty word": ("a.jsonl", [{"tokens": ["a", " "], "tags": ["B-X", "O"]}], {}, ["' '"]),
    "inside a word": ("a.jsonl", [SEVEN, {**SEVEN, "spans": [[0, 6, "PER"]]}], {},
                      ["inside a word", "'Ann Le'", "line 2"]),
    "another text": ("a.json", [{"text": "\U0001f600\u6771\u4eac\u3067", "label": [
                         {"start": 2, "end": 4, "labels": ["LOC"], "text": "\u6771\u4eac"}]}],
                     {}, ["'\u6771\u4eac', and '\u4eac\u3067' there", "an emoji counts twice"]),
    "outside": ("a.jsonl", [SEVEN, {**SEVEN, "spans": [[4, 9, "PER"]]}], {}, ["outside", "4 to 9"]),
    "overlap": ("a.jsonl", [{**SEVEN, "spans": [[0, 7, "PER"], [4, 7, "X"]]}], {}, ["overlap"]),
    "no span": ("a.jsonl", [SEVEN, {**SEVEN, "spans": [[0, 7]]}], {}, ["[0, 7]", "line 2"]),
    "missing": ("a.jsonl", [SEVEN, {**SEVEN, "spans": None}], {},
                ["without a list of spans ([] is no entity)", "line 2"]),
    "rejected": ("a.jsonl", [SEVEN, {**SEVEN, "text": "x", "spans": [], "answer": "reject"}], {},
                 ["not accepted", "line 2"]),
    "scheme of spans": ("a.jsonl", [SEVEN], dict(tag_scheme="iob2"), ["has spans, not tags"]),
    "Label Studio's other format": ("a.json", [{"data": {"text": "x"}, "annotations": []}], {},
                                    ["--label_column", "available: data, annotations", "JSON-MIN"]),
    "no entity": ("a.conll", "Ann O\nLee O", {}, ["no entities"]),
    "unknown name": ("a.conll", IOB2, dict(label_map="ORG=O"), ["--label_map", "'ORG'"]),
    "texts": ("a.conll", IOB2, dict(text_columns="a,b", truncation="tail", thresholds="label"),
              ["--text_columns", "--truncation", "--thresholds"]),
    "teacher": ("a.conll", IOB2, dict(teacher="x", unlabelled="y", label_probabilities="z"),
                ["--teacher x: does", "--unlabelled y: does", "--label_probabilities z: does"]),
}  # fmt: skip


def write(path: Path, content: Any) -> Path:
    """Write texts as they are, and rows as JSON lines or as a JSON document."""
    if isinstance(content, str):
        path.write_bytes(content.encode())
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, content)), encoding="utf-8")
    else:
        path.write_text(json.dumps(content), encoding="utf-8")
    return path


def labelled_words(rows: Dataset) -> list[list[tuple[str, str]]]:
    """Return the words of each row with an entity, and their tags."""
    names = rows.features["label"].feature["tag"].names
    sentences = []
    for row in rows:
        words = []
        for word in row["label"]:
            if word["tag"]:
                words.append((row["text"][word["start"] : word["end"]], names[word["tag"]]))
        sentences.append(words)
    return sentences


@pytest.mark.contract("B9", "C1", "C3")
@pytest.mark.parametrize("case", READ)
def test_words_with_tags_and_spans_are_read(tmp_path: Path, case: str) -> None:
    name, content, options, expected, scheme = READ[case]
    recipe = Entities(dataset=str(write(tmp_path / name, content)), **options)
    words = [word for row in labelled_words(recipe.source["train"]) for word in row]
    assert words == expected
    assert scheme in recipe.report.facts.task_reason


@pytest.mark.contract("B9", "C3", "C5", "F4")
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_entity_is_refused(tmp_path: Path, case: str) -> None:
    name, content, options, fragments = REFUSED[case]
    with user_error(*fragments):
        _ = Entities(dataset=str(write(tmp_path / name, content)), **options).splits


@pytest.mark.contract("B9", "C5")
@pytest.mark.parametrize(
    ("name", "content", "renamed"),
    [
        ("a.conll", "Ann B-PER\nLee B-O", "B-O=B-gas"),
        ("a.jsonl", [{"text": "Ann Lee", "spans": [[0, 3, "PER"], [4, 7, "O"]]}], "O=gas"),
    ],
)
def test_a_type_that_is_read_as_no_entity_is_named(
    tmp_path: Path, name: str, content: Any, renamed: str
) -> None:
    dataset = str(write(tmp_path / name, content))
    recipe = Entities(dataset=dataset)
    assert labelled_words(recipe.source["train"]) == [[("Ann", "B-PER")]]
    assert any("is read as no entity" in text for text in recipe.report.sentences("warning"))
    recipe = Entities(dataset=dataset, label_map=renamed)
    assert labelled_words(recipe.source["train"]) == [[("Ann", "B-PER"), ("Lee", "B-gas")]]
    assert not recipe.report.sentences("warning")


@pytest.mark.contract("B9", "C5")
def test_invalid_rows_are_left_out_and_a_type_of_the_test_file_is_named(tmp_path: Path) -> None:
    write(tmp_path / "train.conll", f"{IOB2}\n\nAnn B-PER\nis O\nLee I-PER")
    write(tmp_path / "test.conll", "Acme B-ORG\n")
    with user_error("impossible", "train"):
        _ = Entities(dataset=str(tmp_path)).source
    recipe = Entities(dataset=str(tmp_path), drop_invalid=True)
    assert labelled_words(recipe.source["train"]) == [ANN]
    with user_error("test data has labels", "'ORG'", "line 1"):
        _ = recipe.splits


@pytest.mark.contract("B9", "C3")
def test_blanks_around_spans_are_reported_with_their_lines(tmp_path: Path) -> None:
    padded = {"text": "Ann  Lee", "spans": [[0, 4, "PER"], [3, 8, "PER"]]}
    rows = [SEVEN, padded, SEVEN | {"spans": [[0, 6, "PER"]]}, SEVEN, padded | {"text": "Bob  Lee"}]
    recipe = Entities(dataset=str(write(tmp_path / "a.jsonl", rows)), drop_invalid=True)
    _ = recipe.source
    (sentence,) = [text for text in recipe.report.sentences("info") if "blanks" in text]
    expected = "2 of 5 train rows with blanks at the beginning or end of a span: lines 2, 5; "
    assert sentence == f"{expected}the blanks are left out"


@pytest.mark.contract("B9", "C5")
def test_types_without_a_tag_for_no_entity_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", "Ann PER\nis other\nhere other")
    recipe = Entities(dataset=str(path))
    _ = recipe.source
    (sentence,) = recipe.report.sentences("warning")
    assert sentence.startswith("no word has the tag O: each is in an entity of 'PER', 'other'")
    recipe = Entities(dataset=str(path), label_map="other=O")
    assert labelled_words(recipe.source["train"]) == [[("Ann", "B-PER")]]
    assert not recipe.report.sentences("warning")


@pytest.mark.contract("B9", "C5")
def test_spans_after_an_emoji_are_reported_where_a_shift_would_not_be_seen(tmp_path: Path) -> None:
    """In a script without spaces a shifted span is whole words, too; a text in it says more."""
    place = "\u5317\u4eac"
    text = f"\U0001f600 {place}!"
    rows = [
        {"text": text, "spans": [[2, 4, "PLACE"]]},
        {"text": text, "spans": [{"start": 2, "end": 4, "label": "PLACE", "text": place}]},
        {"text": f"{place} \U0001f600", "spans": [[0, 2, "PLACE"]]},
        {"text": "\U0001f600 Lee", "spans": [[2, 5, "PER"]]},
    ]
    recipe = Entities(dataset=str(write(tmp_path / "a.jsonl", rows)))
    _ = recipe.source
    (sentence,) = recipe.report.sentences("warning")
    assert sentence.startswith("1 of 4 train rows with a span after an emoji")


@pytest.mark.contract("B9", "C5")
def test_numbers_of_words_are_not_taken_for_words_in_silence(tmp_path: Path) -> None:
    recipe = Entities(dataset=str(write(tmp_path / "a.tsv", PLAIN)))
    _ = recipe.source
    (sentence,) = recipe.report.sentences("warning")
    assert "--token_column: the column '1' has numbers only" in sentence


@pytest.mark.contract("G6", "F4")
def test_a_command_refuses_each_option_of_a_teacher_once(sentences: Path, cli: Cli) -> None:
    options = dict(teacher="x", unlabelled="y", teacher_weight=0.3)
    result = cli("tokens", *flags(dataset=sentences, model="none", **options))
    assert result.status == 2
    for name, value in options.items():
        (line,) = (line for line in result.stderr.splitlines() if f"--{name} " in line)
        assert f"--{name} {value}: does not apply to the labels of words" in line


@pytest.mark.contract("B9", "C1", "C6", "C7")
def test_rows_in_python_with_class_ids_repeated_sentences_and_documents(tmp_path: Path) -> None:
    tags = List(ClassLabel(names=["O", "B-PER", "I-PER"]))
    features = Features({"tokens": List(Value("string")), "ner_tags": tags, "doc": Value("int64")})
    rows: dict[str, list[Any]] = {"tokens": [], "ner_tags": [], "doc": []}
    for number in range(40):
        rows["tokens"].append(["Ann", f"Lee{number % 30}", "left"])
        rows["ner_tags"].append([1, 2, 0])
        rows["doc"].append(number % 10)
    recipe = Entities(dataset=Dataset.from_dict(rows, features=features), group_column="doc")
    splits = recipe.splits
    assert sum(map(len, splits.values())) == 30  # ten sentences are there twice
    assert labelled_words(splits["train"])[0] == [("Ann", "B-PER"), ("Lee0", "I-PER")]
    groups = [set(part["doc"]) for part in splits.values()]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 10


# ---- training ------------------------------------------------------------------------------------


@pytest.mark.contract("B9", "A11", "D1")
def test_the_stock_trainer_has_the_loss_of_a_hand_written_loop(
    sentences: Path, bert: Path, tmp_path: Path
) -> None:
    """Accumulation and padding do not matter: it is the mean over the first tokens of words."""
    options: dict[str, Any] = dict(dataset=str(sentences), model=str(bert), max_length=128)
    recipe = Entities(train_samples=16, **options)
    trainer = StockTrainer(
        args=finetune_arguments(tmp_path, gradient_accumulation_steps=4), **recipe.trainer_kwargs()
    )
    model = trainer.model
    assert isinstance(model, torch.nn.Module)
    tokenizer = AutoTokenizer.from_pretrained(bert)
    losses = []
    for row in recipe.splits["train"]:
        words = [row["text"][word["start"] : word["end"]] for word in row["label"]]
        encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            logits = model(**encoded).logits[0]
        places = [encoded.word_ids().index(number) for number in range(len(words))]
        tags = torch.tensor([word["tag"] for word in row["label"]])
        losses += torch.nn.functional.cross_entropy(logits[places], tags, reduction="none").tolist()
    trainer.train()
    (entry,) = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert entry["loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def finetune_arguments(directory: Path, **more: Any) -> Any:
    """Return arguments of a stock training of one step on 16 rows."""
    from transformers import TrainingArguments

    return TrainingArguments(
        output_dir=str(directory), per_device_train_batch_size=4, max_steps=1, logging_steps=1,
        report_to=[], learning_rate=0.0, lr_scheduler_type="constant", disable_tqdm=True, **more,
    )  # fmt: skip


# ---- scores and predictions ----------------------------------------------------------------------


def chunks(tags: list[str]) -> set[tuple[str, int, int]]:
    """Return type, first word and end of the entities of a sentence, as `seqeval` does."""
    found = set()
    previous, kind, begin = "O", "", 0
    for number, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        if previous != "O" and (prefix in "BO" or name != kind):
            found.add((kind, begin, number))
        if prefix != "O" and (prefix == "B" or previous == "O" or name != kind):
            begin = number
        previous, kind = prefix, name
    return found


def iob2(entities: set[tuple[str, int, int]], words: int) -> list[str]:
    """Return the IOB2 tags of entities."""
    tags = ["O"] * words
    for kind, begin, end in entities:
        tags[begin:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - begin - 1)]
    return tags


def tags_of(classify: Any, words: list[str]) -> list[str]:
    """Return the most probable tag of the first token of each word."""
    encoded = classify.tokenizer(words, is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        predicted = classify.model(**encoded).logits[0].argmax(dim=-1).tolist()
    ids, names = encoded.word_ids(), classify.model.config.id2label
    return [names[predicted[ids.index(number)]] for number in range(len(words))]


def spans(cell: Any) -> list[tuple[int, int, str]]:
    return [(span["start"], span["end"], span["label"]) for span in cell]


def tags_of_words(text: str, cell: Any) -> list[str]:
    """Return the IOB2 tags of the words of a text with spans."""
    tags = []
    for word in re.finditer(r"\w+|[^\w\s]", text):
        tag = "O"
        for start, end, name in spans(cell):
            if start <= word.start() < end:
                tag = f"B-{name}" if word.start() == start else f"I-{name}"
        tags.append(tag)
    return tags


def short_rows(run: finetune.Run) -> Iterator[Any]:
    """Yield the test rows that are one window."""
    for row in run.predictions.itertuples():
        if row.tokens <= LENGTH:
            yield row


@pytest.mark.contract("E12", "E5")
def test_an_entity_of_another_type_is_wrong(entity_run: finetune.Run, tmp_path: Path) -> None:
    """Rows with the types exchanged: only words outside of entities are right."""
    exchanged = {"dish": "place", "place": "dish"}
    right, words, lines = 0, 0, []
    for row in entity_run.predictions.itertuples():
        labels = [[start, end, exchanged[name]] for start, end, name in spans(row.label)]
        lines.append(json.dumps({"text": row.text, "spans": labels}))
        true = [tag.split("-") for tag in tags_of_words(row.text, row.label)]
        predicted = tags_of_words(row.text, row.prediction)
        for (prefix, *name), other in zip(true, predicted, strict=True):
            right += other == "-".join([prefix, *map(exchanged.get, name)])
            words += 1
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    result = finetune.evaluate(entity_run, data=str(tmp_path / "rows.jsonl"))
    assert result.metrics["token_accuracy"] == pytest.approx(right / words)
    assert result.metrics["f1"] == 0


@pytest.mark.contract("E12", "E2")
def test_scores_are_those_of_seqeval(entity_run: finetune.Run) -> None:
    table = entity_run.predictions
    right, true, predicted = 0, 0, 0
    by_type: dict[str, list[int]] = {"dish": [0, 0, 0], "place": [0, 0, 0]}
    for row in table.itertuples():
        sets = set(spans(row.label)), set(spans(row.prediction))
        for name, counts in by_type.items():
            labels, predictions = ({span for span in part if span[2] == name} for part in sets)
            for place, part in enumerate((labels & predictions, labels, predictions)):
                counts[place] += len(part)
    right, true, predicted = map(sum, zip(*by_type.values(), strict=True))
    f1 = {name: 2 * hits / (a + b) for name, (hits, a, b) in by_type.items()}
    test = entity_run.metrics.test
    assert test["precision"] == pytest.approx(right / predicted)
    assert test["recall"] == pytest.approx(right / true)
    assert test["f1"] == pytest.approx(2 * right / (true + predicted))
    assert test["f1_macro"] == pytest.approx(np.mean(list(f1.values())))
    hits, words = [], 0
    for row in table.itertuples():
        tags = [tags_of_words(row.text, cell) for cell in (row.label, row.prediction)]
        assert len(tags[0]) == row.words
        hits.append(sum(one == other for one, other in zip(*tags, strict=True)))
        words += row.words
    assert table["right_words"].tolist() == hits
    assert test["token_accuracy"] == pytest.approx(sum(hits) / words)
    assert 0.5 < test["f1"] < 1
    statistics = entity_run.statistics
    for name, counts in by_type.items():
        assert statistics.classes[name]["f1"]["value"] == pytest.approx(f1[name])
        assert statistics.classes[name]["support"] == counts[1]
    matrix = np.array(statistics.confusion)
    assert matrix[:-1].sum() == true
    assert matrix[:, :-1].sum() == predicted
    assert matrix.trace() == right
    interval = statistics.metrics["f1"]
    assert interval["low"] < interval["value"] < interval["high"] < interval["low"] + 0.2
    assert next(iter(entity_run.metrics.baseline)) == "no entity"
    assert entity_run.metrics.baseline["no entity"]["f1"] == 0
    assert entity_run.manifest.arguments["metric_for_best_model"] == "f1"


@pytest.mark.contract("E12", "E1")
def test_entities_are_those_of_seqeval_and_of_pipeline(entity_run: finetune.Run) -> None:
    """Entities of words are those of `pipeline`, with their probabilities."""
    classify = pipeline(
        "token-classification", model=str(entity_run.path), aggregation_strategy="first"
    )
    true_words = {" ".join(words): tags for words, tags in data.entity_sentences()}
    rows = list(short_rows(entity_run))
    assert len(entity_run.predictions) > len(rows) > 20
    for row in rows:
        answers = classify(row.text)
        assert [(e["start"], e["end"], e["entity_group"]) for e in answers] == spans(row.prediction)
        scores = [span["probability"] for span in row.prediction]
        assert scores == pytest.approx([entity["score"] for entity in answers], abs=1e-5)
        words = row.text.split()
        starts = np.cumsum([0, *(len(word) + 1 for word in words)])
        both = [chunks(true_words[row.text]), chunks(tags_of(classify, words))]
        for found, cell in zip(both, (row.label, row.prediction), strict=True):
            places = [(starts[a], starts[b] - 1, kind) for kind, a, b in found]
            assert sorted(places) == spans(cell)
        tags = [iob2(found, len(words)) for found in both]
        assert row.right_words == np.sum(np.array(tags[0]) == np.array(tags[1]))
    config = json.loads((entity_run.path / "config.json").read_text())
    assert list(config["id2label"].values()) == ["O", "B-dish", "I-dish", "B-place", "I-place"]


@pytest.mark.contract("B9", "E4")
def test_each_word_of_a_long_text_is_predicted_once(entity_run: finetune.Run) -> None:
    """The windows of a text are those of the training, and each entity is in one of them."""
    table = entity_run.predictions
    rows = table[table["tokens"] > LENGTH]
    assert len(rows) > 1
    answers = finetune.predict(entity_run, rows["text"].tolist(), precision="fp32")["entities"]
    for row, answer in zip(rows.itertuples(), answers, strict=True):
        assert row.words == len(row.text.split())
        assert spans(answer) == spans(row.prediction)
        places = [place for start, end, _ in spans(answer) for place in (start, end)]
        assert places == sorted(set(places))
    assert rows["right_words"].sum() > 0.8 * rows["words"].sum()


SENTENCE = "the service was cellar 7 ( lovely ) terrace 7 ( great menu ) rude 7"
INPUTS = {
    "rows.jsonl": json.dumps({"id": 3, "text": SENTENCE, "entities": "mine"}),
    "rows.csv": f"id,text\n3,{SENTENCE}\n4,\n",
    "words.jsonl": json.dumps({"id": 3, "tokens": SENTENCE.split()}),
    "words.conll": "\n".join(SENTENCE.split()),
    "rows.txt": f"{SENTENCE}\n",
}


@pytest.mark.contract("E12", "E4")
@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
@pytest.mark.parametrize("name", INPUTS)
def test_predictions_in_each_format(
    entity_run: finetune.Run, tmp_path: Path, name: str, suffix: str
) -> None:
    path = write(tmp_path / name, INPUTS[name])
    output = tmp_path / f"out{suffix}"
    finetune.predict_file(entity_run, path, output, precision="fp32")
    read = {
        ".jsonl": lambda path: pd.read_json(path, lines=True, precise_float=True),
        ".csv": pd.read_csv,
    }
    table = read.get(suffix, pd.read_parquet)(output)
    column = "predicted entities" if name == "rows.jsonl" else "entities"
    cells = [json.loads(cell) if isinstance(cell, str) else cell for cell in table[column]]
    expected = finetune.predict(entity_run, [SENTENCE], precision="fp32")
    assert list(cells[0]) == expected["entities"][0]
    assert {(16, 24, "place"), (27, 33, "dish")} <= set(spans(cells[0]))
    if name == "rows.csv":
        assert cells[1] is None or cells[1] != cells[1]


@pytest.mark.contract("E12", "E4")
def test_words_beside_a_text_are_named(entity_run: finetune.Run, tmp_path: Path, cli: Cli) -> None:
    row = {"text": f"- {SENTENCE}", "tokens": SENTENCE.split()}
    path = write(tmp_path / "rows.jsonl", [row])
    answer = cli("predict", entity_run.path, path).succeeded()
    assert "the words in 'tokens' were read, not 'text'" in answer.stderr
    texts = cli("predict", entity_run.path, path, "--text_column", "text").succeeded()
    assert "were read, not" not in texts.stderr
    (start, *_), *_ = spans(json.loads(answer.stdout)["entities"])
    (later, *_), *_ = spans(json.loads(texts.stdout)["entities"])
    assert later == start + 2


@pytest.mark.contract("E12")
def test_one_text_and_texts_without_words(entity_run: finetune.Run, cli: Cli) -> None:
    answer = cli("predict", entity_run.path, "--text", SENTENCE).succeeded()
    assert re.match(r"cellar 7: place 0\.\d{4}, lovely: dish 0\.\d{4}, ", answer.stdout)
    empty = finetune.predict(entity_run, ["", None])["entities"]
    assert empty[0] == []
    assert empty[1] is None
    cli("predict", entity_run.path, "--text", "x", "--calibrated").refused("no temperature")
    with user_error("--all_probabilities: the run predicts entities"):
        finetune.predict(entity_run, ["x"], all_probabilities=True)


@pytest.mark.contract("E5", "E12")
def test_other_data_is_evaluated(entity_run: finetune.Run, sentences: Path, tmp_path: Path) -> None:
    assert finetune.evaluate(entity_run).metrics == pytest.approx(entity_run.metrics.test)
    table = entity_run.predictions
    row = table[table["label"].map(len) > 0].iloc[0]
    rows = [{"text": row["text"], "spans": list(row["label"])}]
    result = finetune.evaluate(entity_run, str(write(tmp_path / "rows.jsonl", rows)))
    right = set(spans(row["label"])) & set(spans(row["prediction"]))
    assert result.metrics["recall"] == pytest.approx(len(right) / len(row["label"]))
    assert result.rows_trained_on == 0
    rows[0]["spans"][0]["label"] = "drink"
    with user_error("does not know", "'drink'", "--label_map"):
        finetune.evaluate(entity_run, str(write(tmp_path / "other.jsonl", rows)))


@pytest.mark.contract("E5", "E12", "A12")
def test_columns_and_scheme_of_other_data_are_flags_of_evaluate(
    entity_run: finetune.Run, tmp_path: Path, cli: Cli
) -> None:
    """Neighbours of one type are two entities in IOB2, and one in types without prefixes."""
    words = SENTENCE.split()
    expected = set(spans(finetune.predict(entity_run, [SENTENCE], precision="fp32")["entities"][0]))
    assert (16, 24, "place") in expected
    tags = ["O"] * len(words)
    tags[3:5] = ["B-place", "B-place"]  # cellar, 7
    path = write(tmp_path / "rows.jsonl", [{"tokens": ["x"], "mine": words, "ner_tags": tags}])
    data_and_words = ["--data", path, "--token_column", "mine"]
    for scheme, found in (("iob2", 0), ("plain", 1)):
        typed = [*data_and_words, "--tag_scheme", scheme, "--json"]
        if scheme == "plain":
            typed += ["--label_map", "B-place=place"]
        answer = json.loads(cli("evaluate", entity_run.path, *typed).succeeded().stdout)
        assert answer["metrics"]["precision"] == pytest.approx(found / len(expected))
    cli("evaluate", entity_run.path, *data_and_words, "--tag_scheme", "iob").refused(
        "'iob'", "plain"
    )
    cli("evaluate", entity_run.path, "--data", path).refused("with more words than tags")


@pytest.mark.contract("E12", "E7", "F5")
def test_the_report_marks_the_words(
    entity_run: finetune.Run, copy_run: Callable[[finetune.Run], finetune.Run]
) -> None:
    run = copy_run(entity_run)
    table = run.predictions
    table["text"] = "<b>" + table["text"].str.slice(3)
    table.to_parquet(run.path / "predictions.parquet")
    page = finetune.report(run).page.read_text(encoding="utf-8")
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    marked = re.findall(r'<mark class="(good|bad)">([^<]*) <small>(dish|place)</small>', page)
    assert {kind for kind, *_ in marked} == {"good", "bad"}
    assert "spurious" in page
    assert "missed" in page
    card = (run.path / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: token-classification" in card
    assert 'aggregation_strategy="first"' in card


@pytest.mark.contract("E6", "E12")
def test_a_run_is_compared(entity_run: finetune.Run) -> None:
    comparison = finetune.compare([entity_run, entity_run])
    assert comparison.differences[0]["f1"]["value"] == 0


@pytest.mark.contract("B9", "C9")
def test_the_page_of_words_has_the_output_of_check(
    bert: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its script writes a row with a mistake, which `check` prints as the page does."""
    page = (ROOT / "docs" / "words.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    command, error = re.findall(r"    python -m finetune (check .*)\n((?:    .*\n)+)", page)[0]
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    exec(script, {})
    result = cli(*shlex.split(command.replace("embedded:minilm", str(bert))))
    assert result.status == 2
    assert textwrap.dedent(error) in result.stdout


@pytest.mark.contract("B9", "C9")
def test_check_counts_types(sentences: Path, bert: Path, cli: Cli) -> None:
    words = flags(dataset=sentences, model=bert, max_length=TRAINING["max_length"])
    result = cli("check", "tokens", *words)
    assert result.status == 0, result.output
    assert "task: tokens" in result.output
    assert "place" in result.output
