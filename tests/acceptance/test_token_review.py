"""Words with labels after the training: suspects and their correction, slices, calibration, a head
from word states, and `check --deep`.
"""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from transformers import AutoModelForTokenClassification, AutoTokenizer

import finetune
from tests.acceptance import data
from tests.acceptance.conftest import TRAINING, Finished, flags, user_error
from tests.acceptance.test_tokens import Entities, chunks, iob2

Cli = Callable[..., Finished]
Sentence = tuple[list[str], list[str]]
Span = tuple[int, int, str]
LENGTH = 48


def spans_of(words: list[str], tags: list[str]) -> list[Span]:
    """Return start, end and type of the entities of words that are joined by blanks."""
    starts = np.cumsum([0, *(len(word) + 1 for word in words)]).tolist()
    return sorted((starts[a], starts[b] - 1, kind) for kind, a, b in chunks(tags))


def damage(sentences: list[Sentence], share: float) -> list[Sentence]:
    """Return sentences with a share of entities left out, of another type or of other words, and
    with spurious ones.
    """
    draw = random.Random(0)
    entities = [chunks(tags) for _, tags in sentences]
    places = [(row, entity) for row, found in enumerate(entities) for entity in sorted(found)]
    for count, (row, entity) in enumerate(draw.sample(places, round(share * len(places)))):
        kind, first, end = entity
        words = len(sentences[row][0])
        used = {word for _, a, b in entities[row] - {entity} for word in range(a, b)}
        if count % 4 == 0:
            entities[row].discard(entity)
        elif count % 4 == 1:
            other = {"dish": "place", "place": "dish"}[kind]
            entities[row] = entities[row] - {entity} | {(other, first, end)}
        elif count % 4 == 2 and end < words and end not in used:
            entities[row] = entities[row] - {entity} | {(kind, first, end + 1)}
        elif 1 not in used:
            entities[row] = entities[row] | {(kind, 1, 2)}
    return [
        (words, iob2(found, len(words)))
        for (words, _), found in zip(sentences, entities, strict=True)
    ]


def write_splits(folder: Path, splits: dict[str, list[Sentence]]) -> Path:
    folder.mkdir()
    for name, sentences in splits.items():
        lines = ["\n".join(map(" ".join, zip(*row, strict=True))) for row in sentences]
        (folder / f"{name}.conll").write_text("\n\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def right() -> list[Sentence]:
    return data.entity_sentences(760, seed=5)


@pytest.fixture(scope="module")
def damaged(right: list[Sentence], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of splits with 5% damaged entities."""
    rows = damage(right, 0.05)
    splits = {"train": rows[:400], "validation": rows[400:460], "test": rows[460:]}
    return write_splits(tmp_path_factory.mktemp("damaged") / "splits", splits)


@pytest.fixture(scope="module")
def damaged_run(
    damaged: Path, bert: Path, tmp_path_factory: pytest.TempPathFactory
) -> finetune.Run:
    options = TRAINING | dict(max_length=LENGTH, num_train_epochs=6)
    output = tmp_path_factory.mktemp("run") / "damaged"
    return finetune.train(
        "tokens", dataset=str(damaged), model=str(bert), output_dir=str(output), **options
    )


def listed(run: finetune.Run) -> pd.DataFrame:
    return pd.read_csv(run.path / "suspects.csv", dtype=str, keep_default_na=False)


def cells(row: Any) -> tuple[set[Span], set[Span]]:
    """Return the labelled and the suggested entities of a line."""
    label, suggested = (set(map(tuple, json.loads(row[k]))) for k in ("label", "suggested"))
    return label, suggested


def overlapping(spans: list[Span], others: set[Span]) -> set[Span]:
    first, last = min(start for start, *_ in others), max(end for _, end, _ in others)
    return {span for span in spans if span[0] < last and span[1] > first}


@pytest.mark.contract("E9", "E12")
def test_most_suspected_entities_are_damaged(
    damaged_run: finetune.Run, right: list[Sentence]
) -> None:
    """With 5% damaged entities, at least half of those that may be wrong are damaged."""
    lines = listed(damaged_run)
    is_suspected = lines["why"].str.startswith("label may be wrong")
    assert is_suspected.sum() >= 4
    assert is_suspected.tolist() == sorted(is_suspected, reverse=True)
    truth = {" ".join(words): spans_of(words, tags) for words, tags in right}
    table = damaged_run.predictions.set_index("text")
    is_damaged, kinds = [], set()
    for _, line in lines.iterrows():
        label, suggested = cells(line)
        spans = {}
        for column in ("label", "prediction"):
            cell = table.loc[line["text"], column]
            spans[column] = [(span["start"], span["end"], span["label"]) for span in cell]
        assert label <= set(spans["label"]) - set(spans["prediction"])
        assert suggested <= set(spans["prediction"]) - set(spans["label"])
        kind = "other boundary"
        if {span[:2] for span in label} == {span[:2] for span in suggested}:
            kind = "other type"
        if not label or not suggested:
            kind = "missed" if label else "spurious"
        assert f": {kind}, '" in line["why"]
        kinds.add(kind)
        is_damaged.append(overlapping(truth[line["text"]], label | suggested) != label)
    assert np.mean(np.array(is_damaged)[is_suspected]) >= 0.5
    assert len(kinds) >= 3
    page = (damaged_run.path / "report.html").read_text(encoding="utf-8")
    assert "a label may be wrong" in page
    assert f"{is_suspected.sum()} contradict the label" in page


@pytest.mark.contract("E9", "C8", "E12")
def test_an_edited_list_of_entities_is_applied(
    damaged_run: finetune.Run, damaged: Path, right: list[Sentence], tmp_path: Path
) -> None:
    """`--relabel` replaces the edited entities, leaves out marked rows, and changes no others."""
    lines = listed(damaged_run)
    has_one = ~lines["text"].duplicated(keep=False)
    chosen = lines[has_one].index[:4]
    lines.loc[chosen[:3], "new_label"] = lines.loc[chosen[:3], "suggested"]
    lines.loc[chosen[3], "new_label"] = "drop"
    text_with_two = lines.loc[~has_one, "text"].iloc[0]
    twice = lines[lines["text"] == text_with_two].index
    lines.loc[twice, "new_label"] = lines.loc[twice, "suggested"]
    lines.to_csv(tmp_path / "edited.csv", index=False)
    expected = {}
    for row in damaged_run.predictions.itertuples():
        expected[row.text] = {(span["start"], span["end"], span["label"]) for span in row.label}
    for index in [*chosen[:3], *twice]:
        label, suggested = cells(lines.loc[index])
        text = lines.loc[index, "text"]
        assert label != suggested
        expected[text] = expected[text] - label | suggested
    del expected[lines.loc[chosen[3], "text"]]
    recipe = Entities(dataset=str(damaged), relabel=str(tmp_path / "edited.csv"))
    rows = recipe.splits["test"]
    names = rows.features["label"].feature["tag"].names
    relabelled = {}
    for row in rows:
        words = [row["text"][word["start"] : word["end"]] for word in row["label"]]
        relabelled[row["text"]] = set(
            spans_of(words, [names[word["tag"]] for word in row["label"]])
        )
    assert relabelled == expected
    assert any("relabelled 4 test rows; left out 1 test row" in note for note in recipe.notes)
    excluded = Entities(dataset=str(damaged), exclude=str(tmp_path / "edited.csv")).splits["test"]
    assert set(expected) - set(excluded["text"][:]) == set(lines["text"]) & set(expected)


#: Changes of the first line with a label, and fragments of the message.
EDITS: dict[str, tuple[dict[str, str], list[str]]] = {
    "text of another row": ({"text": "OTHER", "new_label": "[]"}, ["'text' is that of another"]),
    "unknown type": (
        {"new_label": '[[0, 3, "drink"]]'},
        ["no label 'drink'", "(labels: 'dish', 'place')"],
    ),
    "inside a word": ({"new_label": '[[0, 2, "dish"]]'}, ["inside a word", "[0, 2, 'dish']"]),
    "overlap": ({"new_label": '[[0, 3, "dish"], [0, 11, "dish"]]'}, ["overlap"]),
    "no list": ({"new_label": "dish"}, ["JSON list of [start, end, type]", "'dish'"]),
    "no spans": ({"new_label": "[1, 2]"}, ["JSON list of [start, end, type]"]),
    "another label": ({"label": '[[0, 3, "dish"]]', "new_label": "[]"}, ["edit only 'new_label'"]),
}


@pytest.mark.contract("C8", "E9", "F4")
@pytest.mark.parametrize("case", EDITS)
def test_edits_that_are_no_entities_are_refused(
    damaged_run: finetune.Run, damaged: Path, tmp_path: Path, case: str
) -> None:
    changes, fragments = EDITS[case]
    lines = listed(damaged_run)
    index = lines[lines["label"] != "[]"].index[0]
    for name, value in changes.items():
        if value == "OTHER":
            value = next(text for text in lines["text"] if text != lines.loc[index, "text"])
        lines.loc[index, name] = value
    lines.to_csv(tmp_path / "edited.csv", index=False)
    with user_error("--relabel", "edited.csv", f"line {index + 2}", *fragments):
        _ = Entities(dataset=str(damaged), relabel=str(tmp_path / "edited.csv")).splits


@pytest.mark.contract("E2", "E12")
def test_the_calibration_is_that_of_predicted_entities(damaged_run: finetune.Run) -> None:
    confidence, correct = [], []
    for row in damaged_run.predictions.itertuples():
        labels = [(span["start"], span["end"], span["label"]) for span in row.label]
        for span in row.prediction:
            confidence.append(span["probability"])
            correct.append((span["start"], span["end"], span["label"]) in labels)
    values, right = np.array(confidence), np.array(correct)
    error = 0.0
    for low in np.arange(15) / 15:
        inside = (values >= low) & ((values < low + 1 / 15) | (low == 14 / 15))
        if inside.any():
            error += abs(right[inside].mean() - values[inside].mean()) * inside.mean()
    calibration = damaged_run.statistics.calibration
    assert calibration["expected_calibration_error"] == pytest.approx(error, abs=1e-4)
    assert sum(part["rows"] for part in calibration["bins"]) == len(values)
    assert (damaged_run.path / "plots" / "reliability.png").exists()


@pytest.mark.contract("E7", "E12")
def test_slices_of_entities_in_the_report(damaged_run: finetune.Run, damaged: Path) -> None:
    """Entities that training rows have, too, and others; and rows by length."""
    known = set()
    for block in (damaged / "train.conll").read_text().split("\n\n"):
        words, tags = zip(*(line.split() for line in block.splitlines()), strict=True)
        text = " ".join(words)
        for start, end, kind in spans_of(list(words), list(tags)):
            known.add((text[start:end], kind))
    counts = {"entities of the training rows": [0, 0], "other entities": [0, 0]}
    for row in damaged_run.predictions.itertuples():
        predicted = [(span["start"], span["end"], span["label"]) for span in row.prediction]
        for span in row.label:
            name = "other entities"
            if (row.text[span["start"] : span["end"]], span["label"]) in known:
                name = "entities of the training rows"
            counts[name][0] += 1
            counts[name][1] += (span["start"], span["end"], span["label"]) in predicted
    page = (damaged_run.path / "report.html").read_text(encoding="utf-8")
    assert "Entity slices" in page
    assert re.search(r"\d+ to \d+ tokens", page)
    texts = re.sub(r"<[^>]+>|\s+", " ", page)
    for name, (entities, hits) in counts.items():
        assert entities > 20
        pattern = rf"{name}\s+{entities:,}\s+{hits / entities:.4f}"
        assert re.search(pattern, texts), (pattern, texts[texts.index(name) :][:120])


# ---- a head from word states ---------------------------------------------------------------------


def word_states(run: finetune.Run, split: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the last states of the first tokens of words, and their tags, row by row."""
    model = AutoModelForTokenClassification.from_pretrained(run.path).eval()
    tokenizer = AutoTokenizer.from_pretrained(run.path)
    states, tags = [], []
    for row in run.recipe().splits[split]:
        words = [row["text"][word["start"] : word["end"]] for word in row["label"]]
        encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        places = [encoded.word_ids().index(number) for number in range(len(words))]
        with torch.inference_mode():
            states.append(model.bert(**encoded).last_hidden_state[0][places].numpy())
        tags.append(np.array([word["tag"] for word in row["label"]]))
    return states, tags


def unit_length(features: np.ndarray) -> np.ndarray:
    return np.asarray(features / np.linalg.norm(features, axis=1, keepdims=True))


def scaled(training: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Return features with mean 0 and, over all columns together, variance 1 in the training."""
    center = training.mean(axis=0)
    return np.asarray((features - center) / (training - center).std())


def fit(features: np.ndarray, tags: np.ndarray) -> list[LogisticRegression]:
    """Return logistic regressions of the strengths that cross-validation chooses from."""
    models = [LogisticRegression(C=c, tol=1e-8, max_iter=9000) for c in (1e-2, 1e-1, 1.0)]
    return [model.fit(scaled(features, features), tags) for model in models]


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Return that of outputs, apart from the mean of each output and of each row."""
    columns = []
    for outputs in (first, second):
        centered = outputs - outputs.mean(axis=1, keepdims=True)
        columns.append((centered - centered.mean(axis=0)).ravel())
    return float(np.corrcoef(*columns)[0, 1])


@pytest.mark.contract("G5", "E3", "E12")
def test_head_and_baseline_are_regressions_of_word_states(
    pretrained_bert: Path, tmp_path: Path
) -> None:
    """The start of the head has the score of its note; the baseline that of scikit-learn."""
    path = data.write_conll(tmp_path / "rows.conll", 160)
    options = TRAINING | dict(max_length=128, learning_rate=1e-12, num_train_epochs=10)
    run = finetune.train(
        "tokens", dataset=str(path), model=str(pretrained_bert),
        output_dir=str(tmp_path / "run"), **options,
    )  # fmt: skip
    (note,) = (note for note in run.manifest.data.notes if note.startswith("head: "))
    rows = run.manifest.data.rows["validation"]
    assert f", f1 {run.metrics.validation['f1']:.4f} on {rows} validation rows" in note
    states, tags = word_states(run, "train")
    features, true = np.concatenate(states), np.concatenate(tags)
    head = AutoModelForTokenClassification.from_pretrained(run.path).classifier
    logits = features @ head.weight.detach().numpy().T
    expected = [
        model.predict_log_proba(scaled(features, features)) for model in fit(features, true)
    ]
    assert max(correlation(logits, outputs) for outputs in expected) > 0.999
    unit, tested = unit_length(features), word_states(run, "test")
    scores = []
    for model in fit(unit, true):
        hits = total = 0
        for part, labels in zip(*tested, strict=True):
            predicted = model.predict(scaled(unit, unit_length(part)))
            both = [chunks([run.labels[tag] for tag in row]) for row in (predicted, labels)]
            hits += len(both[0] & both[1])
            total += len(both[0]) + len(both[1])
        scores.append(2 * hits / total)
    baseline = run.metrics.baseline["frozen encoder + logistic regression"]["f1"]
    assert min(abs(score - baseline) for score in scores) < 0.01
    assert baseline > 0.3
    recipe = Entities(dataset=str(path), model=str(pretrained_bert), head="random")
    _ = recipe.trainer_kwargs()
    assert not [note for note in recipe.notes if note.startswith("head: ")]


@pytest.mark.contract("G5")
def test_unset_rates_of_words_are_higher(bert: Path, tmp_path: Path) -> None:
    path = data.write_conll(tmp_path / "rows.conll", 160)
    recipe = Entities(dataset=str(path), model=str(bert))
    arguments = recipe.trainer(precision="fp32", disable_tqdm=True, output_dir="unused").args
    assert arguments.learning_rate == 3e-4


# ---- check --deep --------------------------------------------------------------------------------


@pytest.mark.contract("C9", "C6")
def test_deep_finds_words_that_are_labelled_in_one_place_only(
    tmp_path: Path, bert: Path, cli: Cli
) -> None:
    rows = []
    for number in range(60):
        text = f"order {number} was sent to Ann Lee in Rome by post"
        start, city = text.index("Ann"), text.index("Rome")
        spans: list[Any] = [[start, start + 7, "name"], [city, city + 4, "city"]]
        if number == 3:
            spans = spans[1:]
        if number == 4:
            spans[1][2] = "name"
        rows.append({"text": text, "spans": spans})
    rows.append(
        {"text": "order 7  was sent to Ann Lee in Rome by post", "spans": []}
    )  # other spans
    text = "order 8  was sent to Ann Lee in Rome by post"  # as row 8, with another blank
    rows.append({"text": text, "spans": [[s + 1, e + 1, name] for s, e, name in rows[8]["spans"]]})
    rows.append({"text": "we met in Pisa", "spans": [[10, 14, "place"]]})
    path, output = tmp_path / "rows.jsonl", tmp_path / "suspects.csv"
    path.write_text("\n".join(map(json.dumps, rows)))
    splits = dict(test_size=0.1, validation_size=0.1)
    words = flags(dataset=path, model=bert, suspects=output, max_length=LENGTH, **splits)
    result = cli("check", "tokens", "--deep", *words)
    assert "with the same text and different labels" in result.output
    assert "'place' 1" in result.output
    checked = finetune.check(
        "tokens", deep=True, dataset=str(path), model=str(bert), max_length=LENGTH, **splits
    )
    by_name = {finding.name: finding for finding in checked.findings}
    assert by_name["contradictions"].rows == [7, 60]
    assert by_name["duplicates"].count == 1
    train = set(Entities(dataset=str(path), **splits).splits["train"]["_row"])
    suspects = {row.row: row for row in by_name["contradicting_entities"].suspects}
    assert set(suspects) == {3, 4} & train
    for number in suspects:
        assert json.loads(suspects[number].suggested) == rows[5]["spans"]
    lines = pd.read_csv(output, dtype=str, keep_default_na=False)
    edited = lines[lines["suggested"] != ""].copy()
    edited["new_label"] = edited["suggested"]
    edited.to_csv(tmp_path / "edited.csv", index=False)
    recipe = Entities(dataset=str(path), relabel=str(tmp_path / "edited.csv"), **splits)
    for row in recipe.splits["train"]:
        if row["_row"] in (3, 4):
            assert [word["tag"] for word in row["label"]].count(0) == 8
