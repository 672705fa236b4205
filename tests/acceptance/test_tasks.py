"""Tasks (rows B1 to B8): the task of labels, and the inputs, training and outputs of the model.

Expected values come from the tokenizer and the saved model called by hand, from torch's losses,
from scikit-learn and SciPy, and from the Python values that a file was written from.
"""

import functools
import gc
import inspect
import itertools
import json
import random
import re
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import evaluate
import numpy as np
import pandas as pd
import pytest
import scipy.special
import scipy.stats
import sklearn.metrics
import torch
from PIL import Image as Pillow
from safetensors.torch import load_file, save_file
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    EvalPrediction,
    ViTImageProcessorPil,
)

import finetune
from recipes.image import Image
from recipes.text import Text
from tests.acceptance import data
from tests.acceptance.conftest import TRAINING, Finished, flags, once
from tests.families import FAMILIES, write

ROOT = Path(__file__).parents[2]
Cli = Callable[..., Finished]
Row = dict[str, Any]
#: The number of tokens that texts are truncated to.
LENGTH = 16
#: Options of a training of a few steps without evaluations.
SHORT: dict[str, Any] = {
    **TRAINING,
    "max_length": LENGTH,
    "max_steps": 4,
    "logging_steps": 1,
    "eval_strategy": "no",
    "save_strategy": "no",
    "load_best_model_at_end": False,
    "baseline": False,
}
#: Arguments of `recipe.trainer()`: SGD, an epoch of 32 rows in 4 steps.
STEP: dict[str, Any] = {
    **{name: value for name, value in SHORT.items() if name not in ("max_length", "baseline")},
    "optim": "sgd",
    "learning_rate": 0.1,
    "weight_decay": 0.0,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.0,
    "num_train_epochs": 1,
    "max_steps": -1,
    "global_batch_size": 8,
}


def classifier(path: Path | str, **options: Any) -> Any:
    return AutoModelForSequenceClassification.from_pretrained(path, **options).eval()


def forward(model: Any, inputs: Row) -> np.ndarray:
    """Return the logits for one tokenized text, shape `(outputs,)`."""
    with torch.inference_mode():
        batch = {name: torch.tensor([ids]) for name, ids in inputs.items()}
        return np.asarray(model(**batch).logits[0], dtype=np.float64)


def logits_of(model: Any, path: Path | str, texts: list[str]) -> np.ndarray:
    """Return the logits for texts, one at a time, truncated by the saved tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    return np.stack([forward(model, tokenizer(text, truncation=True)) for text in texts])


# ---- B1: what is read and predicted --------------------------------------------------------------


def table_rows() -> list[Row]:
    """Return 90 rows with texts and labels of every kind."""
    draw = random.Random(3)
    rows = []
    for number, (text, verdict) in enumerate(data.labelled_sentences(90)):
        words, good = len(text.split()), verdict == "good"
        tags = [verdict] + ["long"] * (words > 18) + ["third"] * (number % 3 == 0)
        rows.append(
            {
                "text": text,
                "second": f"the {draw.choice(data.SUBJECTS)} was {'fine' if good else 'dull'}",
                "title": f"{draw.choice(data.PLACES)} menu",
                "verdict": verdict,
                "tags": ";".join(tags[number % 2 :]) or "[]",
                "is_good": int(good),
                "is_long": words > 18,
                "share": round(good + 0.25 + words / 64, 4),
                "words": float(words),
                "stars": 1 + number % 4,
                "grade": ("low", "middle", "high")[number % 3],
            }
        )
    return rows


ROWS, GRADES = table_rows(), "low,middle,high"
Encode = Callable[[Any, Row], list[Row]]
#: The token type and the mask of each token of a single text.
MASKS = {"token_type_ids": 0, "attention_mask": 1}


def head(tokenizer: Any, row: Row) -> list[Row]:
    return [tokenizer(row["text"], truncation=True, max_length=LENGTH)]


def tail(tokenizer: Any, row: Row) -> list[Row]:
    tokenizer.truncation_side = "left"
    return head(tokenizer, row)


def head_tail(tokenizer: Any, row: Row) -> list[Row]:
    """Return 4 tokens from the start and 10 from the end: 128 and 382 of 510 (Sun et al., 2019)."""
    ids = tokenizer(row["text"], add_special_tokens=False)["input_ids"]
    if len(ids) > LENGTH - 2:
        ids = ids[:4] + ids[-10:]
    ids = [tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]
    return [{name: [value] * len(ids) for name, value in MASKS.items()} | {"input_ids": ids}]


def pair(tokenizer: Any, row: Row) -> list[Row]:
    limit: Row = dict(truncation="longest_first", max_length=LENGTH)
    return [tokenizer(row["text"], row["second"], **limit)]


def joined(tokenizer: Any, row: Row) -> list[Row]:
    """Return three texts with separator tokens between them; only the first is truncated."""
    parts = [
        tokenizer(row[name], add_special_tokens=False)["input_ids"]
        for name in ("text", "second", "title")
    ]
    first = parts[0][: LENGTH - 4 - len(parts[1]) - len(parts[2])]
    start, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    ids = [start, *first, end, *parts[1], end, *parts[2], end]
    return [{name: [value] * len(ids) for name, value in MASKS.items()} | {"input_ids": ids}]


def windows(tokenizer: Any, row: Row) -> list[Row]:
    """Return windows that overlap by 4 tokens; the last one is full and ends with the text."""
    overflow: Row = dict(stride=4, return_overflowing_tokens=True)
    tokenizer.truncation_side = "right"
    encoded = tokenizer(row["text"], truncation=True, max_length=LENGTH, **overflow)
    count = len(encoded["input_ids"])
    inputs = [{name: encoded[name][i] for name in ("input_ids", *MASKS)} for i in range(count)]
    return [*inputs[:-1], *tail(tokenizer, row)]


ONE: Row = dict(text_column="text")
PAIR: Row = dict(text_columns="text,second")
SINGLE: Row = dict(label_column="verdict")
#: The task, a function that encodes a row by hand, and options.
KINDS: dict[str, tuple[str, Encode, Row]] = {
    "head": ("single_label", head, ONE | SINGLE),
    "tail": ("single_label", tail, ONE | SINGLE | dict(truncation="tail")),
    "head-tail": ("single_label", head_tail, ONE | SINGLE | dict(truncation="head_tail")),
    "pair": ("single_label", pair, PAIR | SINGLE),
    "three-texts": ("single_label", joined, dict(text_columns="text,second,title") | SINGLE),
    "windows-mean": ("single_label", windows, ONE | SINGLE | dict(long_texts="windows")),
    "windows-max": (
        "regression",
        windows,
        ONE | dict(label_column="share", long_texts="windows", pooling="max"),
    ),
    "lists": ("multi_label", head, ONE | dict(label_column="tags")),
    "separated": ("multi_label", head, ONE | dict(label_column="tags", label_separator=";")),
    "zero-one-columns": ("multi_label", head, ONE | dict(label_columns="is_long,is_good")),
    "two-targets": ("regression", pair, PAIR | dict(label_columns="words,share")),
    "ordinal-numbers": ("ordinal", head, ONE | dict(label_column="stars", task="ordinal")),
    "ordinal-names": ("ordinal", head, ONE | dict(label_column="grade", label_order=GRADES)),
}
#: Those that a test below trains; the others are only read.
TRAINED = ["pair", "three-texts", "windows-mean", "windows-max", "zero-one-columns"]


def label_of(kind: str, row: Row) -> Any:
    """Return the label with which a row of the file was written."""
    task, _, options = KINDS[kind]
    if task == "multi_label" and "label_column" in options:
        return [] if row["tags"] == "[]" else row["tags"].split(";")
    if "label_column" in options:
        value = row[options["label_column"]]
        return value if task == "regression" else str(value)
    values = {name: row[name] for name in options["label_columns"].split(",")}
    return [*values.values()] if task == "regression" else [n for n, v in values.items() if v]


def write_kinds(directory: Path) -> None:
    """Write `ROWS` as a CSV, and as JSON lines with lists of tags."""
    directory.mkdir()
    data.write_csv(directory / "kinds.csv", [*ROWS[0]], [[*row.values()] for row in ROWS])
    lines = [json.dumps(row | {"tags": label_of("lists", row)}) for row in ROWS]
    (directory / "lists.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def table(shared_directory: Path) -> Path:
    """A CSV of `ROWS`; the file of lists is beside it."""
    return once(shared_directory / "kinds", write_kinds) / "kinds.csv"


@pytest.mark.contract("B1", "B2")
@pytest.mark.parametrize("kind", KINDS)
def test_the_labels_are_those_of_the_file_and_the_ids_those_of_the_tokenizer(
    kind: str, table: Path, bert: Path
) -> None:
    """Token ids, token types, masks and labels of all rows are compared."""
    task, encode, options = KINDS[kind]
    file = table.with_name("lists.jsonl") if kind == "lists" else table
    recipe = Text(dataset=str(file), model=str(bert), max_length=LENGTH, **options)
    assert recipe.splits.num_rows == {"train": 65, "validation": 7, "test": 18}
    assert recipe.resolved_task.name == task
    ids = sorted(number for rows in recipe.splits.values() for number in rows["_row"])
    assert ids == list(range(len(ROWS)))
    labels = [label_of(kind, row) for row in ROWS]
    names = options.get("label_order") or options.get("label_columns")
    if task != "regression" or names:
        assert recipe.labels == (names.split(",") if names else sorted({*np.hstack(labels)}))
    cut = 0
    for split, rows in recipe.splits.items():
        expected = []
        for number, label in zip(rows["_row"], rows["label"], strict=True):
            expected += encode(AutoTokenizer.from_pretrained(bert), ROWS[number])
            if task == "regression":
                assert label == pytest.approx(labels[number])
            elif task == "multi_label":
                assert {recipe.labels[i] for i in label} == set(labels[number])
            else:
                assert recipe.labels[label] == labels[number]
        cut += sum(len(inputs["input_ids"]) == LENGTH for inputs in expected)
        for name in expected[0]:
            assert recipe.prepared[split][name][:] == [inputs[name] for inputs in expected]
    assert cut > 20


@pytest.mark.contract("B1", "B4", "E4")
@pytest.mark.parametrize("kind", TRAINED)
def test_a_run_predicts_what_the_saved_model_returns(
    kind: str, table: Path, bert: Path, tmp_path: Path
) -> None:
    """Inputs are made by hand; windows are pooled by the mean or maximum of their logits.

    A document has one prediction, however many windows it has.
    """
    task, encode, options = KINDS[kind]
    place = dict(dataset=str(table), model=str(bert), output_dir=str(tmp_path / "run"))
    run = finetune.train("text", **SHORT, **place, **options)
    model, tokenizer = classifier(run.path), AutoTokenizer.from_pretrained(bert)
    pool = np.max if options.get("pooling") == "max" else np.mean
    predictions = run.predictions
    rows = [ROWS[number] for number in predictions["id"]]
    assert len(rows) == run.statistics.rows == 18
    inputs = [encode(tokenizer, row) for row in rows]
    outputs = np.stack([pool([forward(model, part) for part in row], axis=0) for row in inputs])
    if encode is windows:
        assert max(map(len, inputs)) > 2
    labels = [label_of(kind, row) for row in rows]
    if task == "regression":
        columns, expected = ["prediction"], outputs
        assert predictions["label"].tolist() == pytest.approx(labels)
    elif task == "multi_label":
        columns = [f"probability of {name}" for name in run.labels]
        expected = scipy.special.expit(outputs)
        assert [set(names) for names in predictions["label"]] == [set(names) for names in labels]
        decided = [[n for n, p in zip(run.labels, row, strict=True) if p > 0.5] for row in expected]
        assert [list(names) for names in predictions["prediction"]] == decided
    else:
        columns = [f"probability of {name}" for name in run.labels]
        expected = scipy.special.softmax(outputs, axis=1)
        assert predictions["label"].tolist() == labels
        decided = [run.labels[i] for i in expected.argmax(axis=1)]
        assert predictions["prediction"].tolist() == decided
    np.testing.assert_allclose(predictions[columns], expected, atol=1e-5)
    options = dict(precision="fp32", all_probabilities=task != "regression")
    again = finetune.predict(run, pd.DataFrame(rows), **options)
    np.testing.assert_allclose(again[columns], expected, atol=1e-5)


@pytest.mark.contract("B1")
@pytest.mark.parametrize("family", ["roberta", "gpt2"])
def test_two_columns_are_a_pair_where_the_tokenizer_has_pairs(
    family: str, table: Path, tmp_path: Path
) -> None:
    """RoBERTa puts two separators between them; GPT-2, without pairs, its end-of-text token."""
    base = write(family, tmp_path / family)
    options = dict(model=str(base), max_length=60, label_column="verdict", drop_invalid=True)
    recipe = Text(dataset=str(table), text_columns="second,title", **options)
    tokenizer = AutoTokenizer.from_pretrained(base)
    test, inputs = recipe.splits["test"], recipe.prepared["test"]["input_ids"]
    for number, ids in zip(test["_row"], inputs, strict=True):
        first, second = ROWS[number]["second"], ROWS[number]["title"]
        if family == "roberta":
            assert ids == tokenizer(first, second)["input_ids"]
            assert ids.count(tokenizer.sep_token_id) == 3
        else:
            assert ids == tokenizer(f"{first}{tokenizer.eos_token}{second}")["input_ids"]
            assert ids.count(tokenizer.eos_token_id) == 1
    options |= dict(max_length=10, truncation="tail")
    recipe = Text(dataset=str(table), text_columns="second,title", **options)
    tokenizer.truncation_side = "left"
    lengths = set()
    for number, ids in zip(test["_row"], recipe.prepared["test"]["input_ids"], strict=True):
        texts = [ROWS[number]["second"], ROWS[number]["title"]]
        if family == "roberta":
            assert ids == tokenizer(*texts, truncation="longest_first", max_length=10)["input_ids"]
        else:
            whole, place = tokenizer(texts)["input_ids"], ids.index(tokenizer.eos_token_id)
            assert ids[:place] == whole[0][-place:]
            assert ids[place + 1 :] == whole[1][place + 1 - len(ids) :]
        lengths.add(len(ids))
    assert lengths == {10}


#: Long texts of several kinds: words, one word, white space, lines, deleted characters.
LONG = [
    "the food was great " * 4000,
    "food" * 9000,
    "food" * 300 + " was great" * 4000,
    " " * 9000 + "the food was great " * 4000,
    "the\n\n\t food   was\r\ngreat \n" * 4000,
    "\ufffd\x07" * 9000 + "the food",
    "[SEP] food[MASK] \u2581 <s> " * 3000,
    "\u98df\u7269\u5f88\u597d\n" * 9000,
]


@pytest.mark.contract("B1", "B5", "C10")
@pytest.mark.parametrize(
    ("family", "cut"),
    [
        *itertools.product(["bert", "deberta", "xlm-r", "t5"], ["head", "tail", "pair"]),
        ("bert", "tail of a pair"),
    ],
)
def test_long_texts_have_the_tokens_of_the_whole_text(
    family: str, cut: str, tmp_path: Path
) -> None:
    """Pairs are truncated as with `longest_first`."""
    is_pair = "pair" in cut
    base, size = write(family, tmp_path / "base"), 1500 if is_pair else 40_000
    rows = [
        {"text": f"{text[:size]} {n}", "second": f"{n} {other[:size]}", "label": "ab"[n % 2]}
        for n, (text, other) in enumerate(itertools.product(LONG, [LONG[0], LONG[2], "a b c"]))
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    options: Row = dict(truncation="tail" if "tail" in cut else "head")
    if is_pair:
        options["text_columns"] = "text,second"
    options |= dict(model=str(base), label_column="label", max_length=20)
    recipe, tokenizer = Text(dataset=str(path), **options), AutoTokenizer.from_pretrained(base)
    tokenizer.truncation_side = "left" if "tail" in cut else "right"
    for split, prepared in recipe.prepared.items():
        for number, ids in zip(recipe.splits[split]["_row"], prepared["input_ids"], strict=True):
            text, second = rows[number]["text"], rows[number]["second"]
            limit: Row = dict(truncation="longest_first", max_length=20)
            if is_pair:
                assert ids == tokenizer(text, second, **limit)["input_ids"]
            else:
                assert ids == tokenizer(text, **limit)["input_ids"]


@pytest.mark.contract("B1")
def test_images_in_the_format_of_the_hub_are_those_of_the_image_processor(
    vit: Path, tmp_path: Path
) -> None:
    """Pixels and labels of all images are equal; class names keep their order."""
    photos = data.write_photos(tmp_path / "photos")
    paths = sorted(photos.rglob("*.png"))
    rows = {"image": [*map(str, paths)], "label": [path.parent.name for path in paths]}
    classes = datasets.ClassLabel(names=["up", "down"])
    features = datasets.Features(image=datasets.Image(), label=classes)
    dataset = tmp_path / "train.parquet"
    datasets.Dataset.from_dict(rows, features=features).to_parquet(dataset)
    recipe = Image(dataset=str(dataset), model=str(vit), crop_scale=1.0, horizontal_flip=False)
    processor, collate = ViTImageProcessorPil.from_pretrained(vit), recipe.data_collator()
    assert recipe.labels == ["up", "down"]
    expected: Counter[tuple[str, bytes]] = Counter()
    for path in paths:
        pixels = processor(Pillow.open(path))["pixel_values"][0]
        expected[path.parent.name, np.asarray(pixels, dtype=np.float32).tobytes()] += 1
    for split in recipe.prepared.values():
        batch = collate([split[number] for number in range(len(split))])
        for pixels, label in zip(batch["pixel_values"], batch["labels"], strict=True):
            expected[recipe.labels[label], pixels.numpy().tobytes()] -= 1
    assert len(expected) == 120
    assert set(expected.values()) == {0}


@pytest.mark.contract("B1")
def test_images_are_upright_rgb_on_white(vit: Path, tmp_path: Path) -> None:
    """Camera orientation, gray, transparency and 16 bits, compared with hand-written pixels."""
    draw = np.random.default_rng(0)
    colors = draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    grey = draw.integers(0, 256, (8, 8), dtype=np.uint8)
    alpha = np.where(np.arange(8) < 4, 0, 255).astype(np.uint8) * np.ones((8, 1), np.uint8)
    exif = Pillow.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise
    images = {
        "camera": (Pillow.fromarray(colors), np.rot90(colors, -1)),
        "grey": (Pillow.fromarray(grey), np.stack([grey] * 3, 2)),
        "transparent": (
            Pillow.fromarray(np.dstack([colors, alpha])), np.where(alpha[..., None], colors, 255)
        ),
        "deep": (Pillow.fromarray(grey.astype(np.uint16) << 8), np.stack([grey] * 3, 2)),
    }  # fmt: skip
    for number in range(2):
        (tmp_path / "photos" / "ab"[number]).mkdir(parents=True)
        for name, (image, _) in images.items():
            path = tmp_path / "photos" / "ab"[number] / f"{name}.png"
            image.save(path, exif=exif if name == "camera" else Pillow.Exif())
    recipe = Image(dataset=str(tmp_path / "photos"), model=str(vit), keep_contradictions="first")
    rows = recipe.load()["train"]
    processor, collate = ViTImageProcessorPil.from_pretrained(vit), recipe.data_collator()
    batch = collate([rows.cast_column("image", datasets.Image(decode=False))[n] for n in range(8)])
    for number, file in enumerate(rows["file"]):
        expected = images[Path(file).stem][1].astype(np.uint8)
        pixels = processor(Pillow.fromarray(expected), return_tensors="np")["pixel_values"][0]
        np.testing.assert_array_equal(batch["pixel_values"][number].numpy(), pixels, file)


# ---- B2: which task labels are -------------------------------------------------------------------


def lines_of(labels: list[Any]) -> str:
    """Return JSON lines with 120 different texts and these labels in turn."""
    rows = data.labelled_sentences(120)
    return "".join(
        json.dumps({"text": text, "label": labels[number % len(labels)]}) + "\n"
        for number, (text, _) in enumerate(rows)
    )


#: Labels in turn, flags, the task, and part of the reason.
DECIDED: dict[str, tuple[list[Any], list[str], str, str]] = {
    "words": (["bad", "good"], [], "single label", "word"),
    "booleans": ([True, False], [], "single label", "classes"),
    "few-integers": ([1, 2, 3, 4, 5], [], "single label", "5"),
    "zero-and-one": ([0, 1], [], "single label", "2"),
    "integers-as-text": (["0", "7", "100"], [], "single label", "3"),
    "twenty-integers": ([5 * i for i in range(20)], [], "single label", "20"),
    "ids-from-0": ([*range(30)], [], "single label", "30"),
    "ids-from-1": ([*range(1, 31)], [], "single label", "30"),
    "lists": ([["bad"], ["bad", "good"], []], [], "multi label", "bad"),
    "lists-as-text": (['["bad"]', '["bad", "good"]', "[]"], [], "multi label", "bad"),
    "separated": (["bad;good", "good", "bad"], ["--label_separator", ";"], "multi label", "';'"),
    "fractions": ([0.5, 1.25, 3.0, 2.5], [], "regression", "0.5"),
    "fractions-as-text": (["0.5", "12.25", "3"], [], "regression", "0.5"),
    "three-decimals-as-text": (["0.125", "1.125", "2.250", "3.375"], [], "regression", "0.125"),
    "order": (["a", "c", "b"], ["--label_order", "a,c,b"], "ordinal", "--label_order"),
    "integers-as-numbers": ([1, 2, 3], ["--task", "regression"], "regression", ""),
    "integers-in-order": ([1, 2, 3], ["--task", "ordinal"], "ordinal", ""),
}


@pytest.mark.contract("B2")
@pytest.mark.parametrize("case", DECIDED)
def test_the_task_is_printed_with_its_reason(
    case: str, cli: Cli, bert: Path, tmp_path: Path
) -> None:
    labels, words, task, reason = DECIDED[case]
    (tmp_path / "rows.jsonl").write_text(lines_of(labels), encoding="utf-8")
    place = flags(dataset=tmp_path / "rows.jsonl", model=bert, max_length=32)
    result = cli("text", *place, *words, "--dry_run").succeeded()
    text = " ".join(result.stdout.split())
    printed = re.search(rf"\btask {task.replace(' ', '[ _]')}( \((.+?)\))?", text)
    assert printed, text
    if "--task" not in words:
        assert printed[2], text
        assert reason in printed[2]


#: Labels in turn, flags, the names of the classes and those of each row.
CELLS: dict[str, tuple[list[Any], Row, list[str], list[list[str]]]] = {
    "python-lists": (["['b', 'a']", "[]"], {}, ["a", "b"], [["a", "b"], []]),
    "whole-numbers": ([[10, 2], [], [1]], {}, ["1", "2", "10"], [["2", "10"], [], ["1"]]),
    "blanks": (["b; a", "[]", "c;;c"], {"label_separator": ";"}, [*"abc"], [["a", "b"], [], ["c"]]),
    "merged": ([["b", "a"], ["c"]], {"label_map": "a=x,b=x"}, ["c", "x"], [["x"], ["c"]]),
}


@pytest.mark.contract("B1")
@pytest.mark.parametrize("case", CELLS)
def test_cells_of_several_labels_are_read(case: str, tmp_path: Path) -> None:
    """Lists in JSON and Python syntax, numbers in their order, empty cells, merged labels."""
    labels, options, names, expected = CELLS[case]
    (tmp_path / "rows.jsonl").write_text(lines_of(labels), encoding="utf-8")
    place: Row = dict(dataset=str(tmp_path / "rows.jsonl"), model="none")
    recipe = Text(**place, text_column="text", label_column="label", **options)
    rows = recipe.load()["train"]
    assert (recipe.resolved_task.name, rows.features["label"].feature.names) == (
        "multi_label",
        names,
    )
    decoded = [[names[number] for number in numbers] for numbers in rows["label"]]
    assert decoded == [expected[number % len(labels)] for number in range(120)]


@pytest.mark.contract("B1", "C5")
@pytest.mark.parametrize(("separator", "is_named"), [("|", True), (";", False)])
def test_a_separator_that_no_label_has_is_reported(
    separator: str, is_named: bool, tmp_path: Path
) -> None:
    """The labels may be separated by another one."""
    (tmp_path / "rows.jsonl").write_text(lines_of(["b;a", "a", "b"]), encoding="utf-8")
    place: Row = dict(dataset=str(tmp_path / "rows.jsonl"), model="none")
    recipe = Text(**place, text_column="text", label_column="label", label_separator=separator)
    recipe.load()
    fragments = [f"--label_separator '{separator}'", "'b;a'"]
    assert any(all(part in note for part in fragments) for note in recipe.notes) == is_named


GAPS, NAMES = [4 * i for i in range(21)], ["bad", "good"]
#: Labels in turn, flags, and words of the message.
REFUSED: dict[str, tuple[list[Any], list[str], list[str]]] = {
    "many-integers": (GAPS, [], ["'label'", "21", "--task single_label", "--task regression"]),
    "many-from-2": ([*range(2, 32)], [], ["'label'", "30", "--task single_label"]),
    "words-among-fractions": (
        [0.5, 1.5, 2.5, "none"],
        [],
        ["'label'", "'none'", "line 4", "--task regression", "--task single_label"],
    ),
    "nan-among-integers": (["1", "2", "nan"], [], ["'nan'", "line 3", "--task single_label"]),
    "separator-unnamed": (
        ["bad", "good", "bad;good"],
        [],
        ["'bad;good'", "line 3", "--label_separator ';'", "--task single_label"],
    ),
    "words-as-regression": (NAMES, ["--task", "regression"], ["'bad'", "single_label"]),
    "no-order": (["low", "mid", "high"], ["--task", "ordinal"], ["'mid'", "--label_order"]),
    "order-of-others": (
        ["low", "mid", "high"],
        ["--label_order", "low,mid,hihg"],
        ["'high'", "--label_order"],
    ),
    "order-of-two": (NAMES, ["--task", "ordinal"], ["'good'", "3 or more"]),
    "words-as-sets": (NAMES, ["--task", "multi_label"], ["'label'", "--label_separator"]),
    "one-number-in-lists": ([["bad"], ["good"], 5], [], ["line 3", "5", "JSON list"]),
    "fractions-in-lists": ([["a"], [1.5]], ["--task", "multi_label"], ["[1.5]", "line 2"]),
    "one-label-in-python-lists": (["['a']", "['a', 'b']", "b"], [], ["'b'", "line 3"]),
    "words-among-numbers": ([1, 2, 3, "n/a"], [], ["'n/a'", "line 4", "--task single_label"]),
    "printed-list": (["bad", "good", "['bad' 'good']"], [], ["line 3", "JSON list"]),
    **{
        f"separator-of-all-{sign}": (
            [f"bad{sign}good", f"good{sign}slow", f"bad{sign}slow"],
            [],
            [f"'bad{sign}good'", "line 1", f"--label_separator '{sign}'", "--task single_label"],
        )
        for sign in ("#", "::", "~")
    },
    "zero-one-lists": (
        [[1, 0, 0], [0, 1, 1]],
        [],
        ["[1, 0, 0]", "line 1", "--task regression", "--task multi_label", "--label_columns"],
    ),
    "zero-one-lists-as-sets": (
        [[1, 0, 0], [0, 1, 1]],
        ["--task", "multi_label"],
        ["[1, 0, 0]", "line 1", "--label_columns"],
    ),
    "thousands": (["500", "1.013", "2.500", "1.250"], [], ["'500'", "'1.013'", "1013", "line 2"]),
    "one-number-above-a-thousand": (
        [*map(str, range(12, 40)), "1.277"],
        ["--task", "regression"],
        ["'12'", "'1.277'", "1277", "line 29"],
    ),
    "thousands-of-regression": (
        ["7", "1.000", "2.000", "3.000"],
        ["--task", "regression"],
        ["'7'", "'1.000'", "1000", "line 2"],
    ),
    "separator-in-quotes": (
        ["bad", '"Doe, J",bad', "good"],
        ["--label_separator", ","],
        ['"Doe, J",bad', "line 2"],
    ),
    "decimal-comma": (["0,5", "1,5", "2,5"], [], ["'0,5'", "line 1", "decimal point"]),
    "unknown-task": (NAMES, ["--task", "single"], ["--task", "'single'", "single_label"]),
    "unknown-class": (
        NAMES,
        ["--class_weights", "godo=7"],
        ["--class_weights", "'godo'", "'good'"],
    ),
    "no-weight": (NAMES, ["--class_weights", "good"], ["--class_weights good", "NAME=WEIGHT"]),
    "name-without-weight": (
        ["2", "b", "2", "b"],
        ["--class_weights", "2"],
        ["--class_weights 2: expected one weight for '2'"],
    ),
    "misspelled-balanced": (NAMES, ["--class_weights", "balance"], ["'balance'", "'balanced'"]),
    "several-weights": (
        NAMES,
        ["--class_weights", "bda=2,good=3,good=4"],
        ["bda=2: no class 'bda'; did you mean 'bad'?", "good=4: expected one weight", "for 'good'"],
    ),
    **{
        f"weight-{weight}": (
            NAMES,
            ["--class_weights", f"good={weight}"],
            [f"--class_weights good={weight}: expected one weight for 'good', 1e-06 to 1000000"],
        )
        for weight in ("-1", "0", "nan", "much", "1e60", "1e-300")  # the last overflow float32
    },
    "weights-and-sampling": (
        NAMES,
        ["--class_weights", "balanced", "--class_sampling", "balanced"],
        ["--class_weights", "--class_sampling"],
    ),
    "sampling-of-tags": (
        [["bad"], ["good", "bad"]],
        ["--class_sampling", "balanced"],
        ["--class_sampling balanced", "--class_weights balanced"],
    ),
    "other-loss": (NAMES, ["--loss_function", "soft"], ["--loss_function soft", "focal"]),
    "positive-label": (NAMES, ["--positive_label", "god"], ["god: expected bad or good"]),
    "positive-of-three": (
        ["a", "b", "c"],
        ["--positive_label", "b"],
        ["b: expected two classes", "single_label with 3 outputs"],
    ),
    "positive-of-tags": ([["b"], ["a"]], ["--positive_label", "b"], ["the task multi_label"]),
    "positive-number": ([0.5, 1.5, 3.25], ["--positive_label", "b"], ["the task regression"]),
    "head-tail-of-windows": (
        NAMES,
        ["--truncation", "head_tail", "--long_texts", "windows"],
        ["--truncation head_tail: needs", "--long_texts cut"],
    ),
    "head-tail-of-pairs": (
        NAMES,
        ["--truncation", "head_tail", "--text_columns", "text,label"],
        ["--truncation head_tail: needs a single --text_column"],
    ),
    "metric-of-numbers": (NAMES, ["--metrics", "r2"], ["--metrics r2"]),
    "wrong-direction": (
        NAMES,
        ["--metric_for_best_model", "f1", "--greater_is_better", "false"],
        ["--greater_is_better false", "f1"],
    ),
}


@pytest.mark.contract("B2", "B3", "B6")
@pytest.mark.parametrize("case", REFUSED)
def test_ambiguous_labels_and_unsuitable_options_are_refused(
    case: str, cli: Cli, bert: Path, tmp_path: Path
) -> None:
    """The message has the column, the first such line and the flags that decide."""
    labels, words, fragments = REFUSED[case]
    (tmp_path / "rows.jsonl").write_text(lines_of(labels), encoding="utf-8")
    place = flags(dataset=tmp_path / "rows.jsonl", model=bert, output_dir=tmp_path / "run")
    result = cli("text", *place, *words, "--text_column", "text", "--label_column", "label")
    assert result.status == 2, result.output
    message = " ".join(result.stderr.split())
    for fragment in fragments:
        assert re.search(rf"{re.escape(fragment)}(?!\w)", message), (fragment, message)
    assert "Traceback" not in message
    assert not (tmp_path / "run").exists()


# ---- B3: rare classes ----------------------------------------------------------------------------


def rare_rows() -> list[Row]:
    """Return 112 rows, one in eight of them good, with tags and a grade."""
    texts = data.labelled_sentences(112, labels=["bad"] * 7 + ["good"], seed=5)
    rows = []
    for number, (text, label) in enumerate(texts):
        tags = [label] * (number % 3 > 0) + ["long"] * (len(text) > 90)
        grade = GRADES.split(",")[number % 3]
        rows.append({"text": text, "label": label, "tags": tags, "grade": grade})
    return rows


RARE = rare_rows()
#: The number of outputs for each column of labels.
OUTPUTS = {"label": ["bad", "good"], "tags": ["bad", "good", "long"], "grade": GRADES.split(",")}


def target(row: Row, column: str) -> Any:
    """Return the class id, or 0 and 1 for each tag."""
    if column == "tags":
        return [float(name in row["tags"]) for name in OUTPUTS["tags"]]
    return OUTPUTS[column].index(row[column])


def write_rare(directory: Path) -> None:
    directory.mkdir()
    for split, rows in dict(train=RARE[:32], validation=RARE[32:72], test=RARE[72:]).items():
        lines = [json.dumps(row) for row in rows]
        (directory / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def rare(shared_directory: Path) -> Path:
    """A directory of splits with 32 training rows, 4 of them good."""
    return once(shared_directory / "rare", write_rare)


def recording(batches: list[list[Row]]) -> type[Text]:
    """Return a recipe that records the rows of every micro-batch."""

    class Recording(Text):
        """A recipe that records its rows."""

        def data_collator(self) -> Any:
            collate = super().data_collator()

            def record(rows: list[Row]) -> Row:
                batches.append([{**row} for row in rows])
                return collate(rows)

            return record

    return Recording


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
LABELS, HAS = (np.array([target(row, column) for row in RARE[:32]]) for column in ("label", "tags"))
BALANCED = torch.tensor(
    compute_class_weight("balanced", classes=np.arange(2), y=LABELS), dtype=torch.float32
)
#: The number of rows without a tag for each row with it.
RARITY = torch.tensor((1 - HAS).sum(0) / HAS.sum(0), dtype=torch.float32)


def focal(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the focal loss of each row with gamma 2 (Lin et al., 2017)."""
    right = logits.softmax(-1).gather(1, labels[:, None])[:, 0]
    return -((1 - right) ** 2) * right.log()


def binary_focal(
    logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | float = 1.0
) -> torch.Tensor:
    right = torch.where(labels == 1, logits.sigmoid(), 1 - logits.sigmoid())
    return (torch.where(labels == 1, weights, 1.0) * -((1 - right) ** 2) * right.log()).mean()


def weighted_focal(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    weights = torch.tensor([1.0, 7.0])[labels]
    return (weights * focal(logits, labels)).sum() / weights.sum()


def soft(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy with soft labels by class distance (Díaz and Marathe, 2019)."""
    distance = (torch.arange(logits.shape[1])[None] - labels[:, None]).abs()
    return functional.cross_entropy(logits, (-distance.float()).softmax(-1), reduction="none")


TAGS = dict(label_column="tags")
GRADE = dict(label_column="grade", label_order=GRADES)
#: Options of the recipe and of the training, and the loss of the whole global batch.
LOSSES: dict[str, tuple[Row, Row, Loss]] = {
    "plain": ({}, {}, functional.cross_entropy),
    "balanced": (dict(class_weights="balanced"), {}, torch.nn.CrossEntropyLoss(BALANCED)),
    "by-name": (
        dict(class_weights="good=7"),
        {},
        torch.nn.CrossEntropyLoss(torch.tensor([1.0, 7.0])),
    ),
    "smoothed": (
        dict(class_weights="bad=0.5,good=3"),
        dict(label_smoothing_factor=0.2),
        torch.nn.CrossEntropyLoss(torch.tensor([0.5, 3.0]), label_smoothing=0.2),
    ),
    "focal": (dict(loss_function="focal"), {}, lambda *batch: focal(*batch).mean()),
    "focal-by-name": (dict(loss_function="focal", class_weights="good=7"), {}, weighted_focal),
    "soft": (GRADE | dict(loss_function="soft"), {}, lambda *batch: soft(*batch).mean()),
    "tags": (TAGS, {}, functional.binary_cross_entropy_with_logits),
    "tags-balanced": (
        TAGS | dict(class_weights="balanced"),
        {},
        torch.nn.BCEWithLogitsLoss(pos_weight=RARITY),
    ),
    "tags-by-name": (
        TAGS | dict(class_weights="good=5"),
        {},
        torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 5.0, 1.0])),
    ),
    "tags-focal": (TAGS | dict(loss_function="focal"), {}, binary_focal),
    "tags-focal-by-name": (
        TAGS | dict(loss_function="focal", class_weights="good=5"),
        {},
        lambda logits, labels: binary_focal(logits, labels, torch.tensor([1.0, 5.0, 1.0])),
    ),
}


@pytest.mark.contract("B3")
@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("case", LOSSES)
def test_a_step_uses_the_loss_of_the_whole_global_batch(
    case: str, accumulation: int, rare: Path, bert: Path, tmp_path: Path
) -> None:
    """Logged losses and all weights equal those after four steps of gradient descent by hand.

    The steps have different shares of good rows, so a wrong divisor would change them.
    """
    options, training, loss = LOSSES[case]
    options = {"label_column": "label", **options}
    batches: list[list[Row]] = []
    recipe = recording(batches)(dataset=str(rare), model=str(bert), text_column="text", **options)
    training = {**STEP, **training, "gradient_accumulation_steps": accumulation}
    trainer = recipe.trainer(output_dir=str(tmp_path / "run"), **training)
    tokenizer, column = AutoTokenizer.from_pretrained(bert), options["label_column"]
    assert recipe.labels == OUTPUTS[column]
    model = classifier(bert, num_labels=len(recipe.labels))
    model.load_state_dict(trainer.model.state_dict())
    trainer.train()

    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    rows_by_ids = {tuple(tokenizer(row["text"])["input_ids"]): row for row in RARE[:32]}
    rows = [rows_by_ids[tuple(row["input_ids"])] for batch in batches for row in batch]
    assert len(rows) == len({row["text"] for row in rows}) == 32
    assert len(batches) == 4 * accumulation
    for start in range(0, 32, 8):
        step = rows[start : start + 8]
        batch = tokenizer([row["text"] for row in step], padding=True, return_tensors="pt")
        value = loss(model(**batch).logits, torch.tensor([target(row, column) for row in step]))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged == pytest.approx(losses, rel=1e-5)
    stepped = trainer.model.state_dict()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(stepped[name], weight, rtol=0, atol=2e-6, msg=name)


@pytest.mark.contract("B3")
@pytest.mark.parametrize("accumulation", [1, 2])
def test_balanced_sampling_draws_the_classes_equally_often(
    accumulation: int, rare: Path, bert: Path, tmp_path: Path
) -> None:
    """Both classes have as many rows; a row repeats only after all others of its class."""
    batches: list[list[Row]] = []
    options = dict(text_column="text", label_column="label", model=str(bert))
    trainer = recording(batches)(dataset=str(rare), **options).trainer(
        output_dir=str(tmp_path / "run"),
        **STEP | dict(num_train_epochs=2, global_batch_size=16),
        gradient_accumulation_steps=accumulation,
        class_sampling="balanced",
    )
    trainer.train()
    assert [len(rows) for rows in batches] == [16 // accumulation] * 4 * accumulation
    rows = [(row["labels"], *row["input_ids"]) for batch in batches for row in batch]
    for epoch in (rows[:32], rows[32:]):
        assert Counter(row[0] for row in epoch) == {0: 16, 1: 16}
    times = Counter(rows)
    assert sorted(times[row] for row in times if row[0] == 1) == [8] * 4
    assert sorted(times[row] for row in times if row[0] == 0) == [1] * 24 + [2] * 4


@pytest.mark.contract("B3")
@pytest.mark.parametrize("has_metrics", [True, False])
def test_the_loss_of_an_evaluation_is_neither_weighted_nor_focal(
    has_metrics: bool, rare: Path, bert: Path, tmp_path: Path
) -> None:
    """It is the mean over the rows, also if the last batch is smaller."""
    options = dict(text_column="text", label_column="label", class_weights="good=7")
    recipe = Text(dataset=str(rare), model=str(bert), loss_function="focal", **options)
    trainer = recipe.trainer(
        output_dir=str(tmp_path / "run"), **STEP | dict(per_device_eval_batch_size=6)
    )
    if not has_metrics:
        trainer.compute_metrics = None
    rows = recipe.splits["validation"]
    assert len(rows) % 6
    model = classifier(bert, num_labels=2)
    model.load_state_dict(trainer.model.state_dict())
    logits = torch.tensor(logits_of(model, bert, rows["text"][:]))
    expected = functional.cross_entropy(logits, torch.tensor(rows["label"][:]))
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected.item(), rel=1e-5)


# ---- B4: what is folded into the saved model -----------------------------------------------------


def f1(logits: np.ndarray, labels: np.ndarray, threshold: float = 0.5) -> float:
    """Return 2 TP / (2 TP + FP + FN) over all rows and labels."""
    decided = scipy.special.expit(logits) > threshold
    return float(2 * (decided & labels).sum() / max(1, decided.sum() + labels.sum()))


def thresholds_between(logits: np.ndarray) -> list[float]:
    """Return a threshold between each two neighboring probabilities."""
    values = np.unique(scipy.special.expit(logits))
    return [0.0, *((values[1:] + values[:-1]) / 2), 1.0]


@pytest.fixture(params=["one", "label", "none"])
def thresholded(
    request: pytest.FixtureRequest,
    multi_label_run: finetune.Run,
    shared_directory: Path,
    bert: Path,
    tmp_path: Path,
) -> tuple[str, finetune.Run]:
    """Runs with `--thresholds` `one`, `label` and `none`."""
    if request.param == "one":
        return "one", multi_label_run
    options = dict(dataset=str(shared_directory / "tags.jsonl"), model=str(bert))
    options |= {**SHORT, "max_steps": 12, "save_strategy": "steps", "save_steps": 12}
    options["label_column"] = "labels"
    options |= dict(validation_size=60, thresholds=request.param, output_dir=str(tmp_path / "run"))
    return request.param, finetune.train("text", **options)


@pytest.mark.contract("B4")
def test_thresholds_are_the_best_of_validation_and_folded_into_the_bias(
    thresholded: tuple[str, finetune.Run],
) -> None:
    """The saved model differs from a checkpoint only in its bias; 0.5 is its best threshold."""
    kind, run = thresholded
    saved = load_file(run.path / "model.safetensors")
    bias = "classifier.bias"
    (checkpoint,) = [
        path
        for path in run.path.glob("checkpoint-*")
        for weights in [load_file(path / "model.safetensors")]
        if all(torch.equal(weights[name], saved[name]) for name in saved if name != bias)
    ]
    rows = run.recipe().splits["validation"]
    labels = np.array([[i in row for i in range(len(run.labels))] for row in rows["label"]])
    raw = logits_of(classifier(checkpoint), checkpoint, rows["text"][:])
    after = logits_of(classifier(run.path), run.path, rows["text"][:])
    shift = (after - raw).mean(axis=0)
    np.testing.assert_allclose(after - raw, np.broadcast_to(shift, raw.shape), atol=1e-5)
    if kind == "none":
        assert np.array_equal(after, raw)
    elif kind == "one":
        assert np.ptp(shift) < 1e-5
        assert abs(shift[0]) > 0.01
        best = max(f1(raw, labels, threshold) for threshold in thresholds_between(raw))
        assert f1(after, labels) == pytest.approx(best)
    else:
        assert np.ptp(shift) > 0.01
        for label in range(len(run.labels)):
            every, true = raw[:, label], labels[:, label]
            best = max(f1(every, true, threshold) for threshold in thresholds_between(every))
            assert f1(after[:, label], true) == pytest.approx(best)


@pytest.mark.contract("B4")
@pytest.mark.parametrize("loss", ["mse", "mae", "huber"])
def test_numbers_are_learned_in_standard_deviations(
    loss: str, regression_run: finetune.Run, shared_directory: Path, bert: Path, tmp_path: Path
) -> None:
    """They are those of the training rows, so large targets do not dominate the loss."""
    options = dict(dataset=str(shared_directory / "scores.csv"), text_column="text")
    recipe = Text(**options, label_columns="stars,price", model=str(bert), loss_function=loss)
    trainer = recipe.trainer(output_dir=str(tmp_path / "run"), **STEP | dict(global_batch_size=173))
    train = recipe.splits["train"]
    labels = np.array(train["label"][:])
    assert len(labels) == 173
    model = classifier(bert, num_labels=2)
    model.load_state_dict(trainer.model.state_dict())
    outputs = logits_of(model, bert, train["text"][:])
    errors = torch.tensor((outputs - labels) / labels.std(axis=0))
    assert (np.abs(outputs - labels.mean(axis=0)) < labels.std(axis=0)).all()
    assert 0.05 < (errors.abs() > 1).float().mean() < 0.95
    zeros, name = (
        torch.zeros_like(errors),
        dict(mse="mse_loss", mae="l1_loss", huber="huber_loss")[loss],
    )
    expected = getattr(functional, name)(errors, zeros).item()
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(
        recipe.loss(torch.tensor(outputs), torch.tensor(labels)),
        getattr(functional, name)(errors, zeros, reduction="none").mean(dim=1),
        rtol=1e-5,
        atol=1e-7,
    )


@pytest.mark.contract("B4")
def test_checkpoints_of_a_regression_are_in_the_units_of_the_data(
    regression_run: finetune.Run,
) -> None:
    run = regression_run
    texts = run.predictions["text"].tolist()[:20]
    saved = logits_of(classifier(run.path), run.path, texts)
    checkpoints = sorted(run.path.glob("checkpoint-*"))
    outputs = [logits_of(classifier(path), path, texts) for path in checkpoints]
    assert len(outputs) == 3
    assert any(np.allclose(values, saved, rtol=1e-5) for values in outputs)
    for values in outputs:
        assert (values[:, 0] > 0).all()
        assert (values[:, 0] < 10).all()
        assert (values[:, 1] > 50).all()
        assert (values[:, 1] < 700).all()


# ---- B5: families of models ----------------------------------------------------------------------

FAST = ("roberta", "gpt2", "t5", "xlnet")


def write_places(path: Path) -> Path:
    """Write 90 texts of 8 to 30 words in the vocabularies of the families."""
    words = {"bad": ["awful", "dull", "bland"], "good": ["great", "lovely", "fine"]}
    rows = []
    for number in range(90):
        label = ("bad", "good")[number % 2]
        comment = " and ".join([words[label][number % 3]] * (1 + number % 11))
        rows.append([f"the food of place {number} was {comment}", label])
    return data.write_csv(path, ["text", "label"], rows)


@pytest.mark.contract("B5")
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in FAMILIES],
)
def test_a_family_trains_resumes_and_predicts(family: str, tmp_path: Path) -> None:
    """A resumed run has bit-identical weights; padding does not change predictions."""
    base = write(family, tmp_path / "base")
    dataset = write_places(tmp_path / "places.csv")
    options: Row = {**SHORT, "dataset": str(dataset), "model": str(base), "max_length": 48}
    options |= dict(save_strategy="steps", save_steps=2, hidden_dropout=None)
    run = finetune.train("text", output_dir=str(tmp_path / "run"), **options)
    middle = run.path / "checkpoint-2"
    fields = ("dataset", "model", "max_length", "hidden_dropout")
    training = {name: value for name, value in options.items() if name not in (*fields, "baseline")}
    trainer = Text(**{name: options[name] for name in fields}).trainer(
        output_dir=str(tmp_path / "resumed"), **training
    )
    trainer.train(resume_from_checkpoint=str(middle))
    trainer.save_model(str(tmp_path / "resumed"))

    saved, half, resumed = (
        load_file(path / "model.safetensors") for path in (run.path, middle, tmp_path / "resumed")
    )
    assert saved.keys() == resumed.keys()
    assert all(torch.equal(saved[name], resumed[name]) for name in saved)
    assert any(not torch.equal(saved[name], half[name]) for name in saved)

    tokenizer, model = AutoTokenizer.from_pretrained(run.path), classifier(run.path)
    plain = AutoTokenizer.from_pretrained(base)
    assert tokenizer.pad_token == (plain.pad_token or plain.eos_token) is not None
    assert (plain.pad_token is None) == (family in ("gpt2", "llama", "qwen2", "qwen3"))
    assert model.config.pad_token_id == tokenizer.pad_token_id
    texts = ["the food was great", "awful and dull " * 9, "fine", "the food of place 7 was bland"]
    together = finetune.predict(run, texts, all_probabilities=True, precision="fp32")
    one_by_one = pd.concat(
        [finetune.predict(run, [text], all_probabilities=True, precision="fp32") for text in texts]
    )
    columns = ["probability of bad", "probability of good"]
    expected = scipy.special.softmax(logits_of(model, run.path, texts), axis=1)
    assert np.ptp(expected[:, 0]) > 1e-3
    for frame in (together, one_by_one):
        np.testing.assert_allclose(frame[columns], expected, atol=2e-5)


@pytest.mark.contract("B5")
def test_the_documented_families_are_those_tested() -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| ([\w-]+) \| \w+ForSequenceClassification", page, re.MULTILINE)
    assert sorted(listed) == sorted(FAMILIES)
    assert len(listed) >= 20
    contract = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
    assert f"| B5 | the {len(listed)} model families" in contract
    assert f"| B5 | {len(listed) - len(FAST)} of the {len(listed)} families |" in contract
    assert f"export of {len(listed) - 1} of the {len(listed)} families" in contract


# ---- B6: metrics, the best model, early stopping -------------------------------------------------

MODULE = '''
"""What share of the rows is right, and the minutes that the others cost."""

import datasets
import evaluate
import numpy as np


class Mine(evaluate.Metric):
    """Share of right rows, and minutes."""

    def _info(self):
        ids = datasets.Value("int64")
        features = datasets.Features({"predictions": ids, "references": ids})
        return evaluate.MetricInfo("", "", features=features)

    def _compute(self, predictions, references):
        right = np.equal(predictions, references)
        minutes = np.array([5.0, 30.0])[np.array(references)] * ~right
        return {"share_right": right.mean(), "minutes_lost": minutes.mean()}
'''


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """An `evaluate` module that returns `share_right` and `minutes_lost`."""
    path = tmp_path / "mine.py"
    path.write_text(MODULE, encoding="utf-8")
    return path


#: Text in the module, its replacement, and words of the message.
UNUSABLE = {
    "returns a list": ("return {", "return [0.5]  # {", ["mine.py returned [0.5]", "dict"]),
    "returns an array": ("right.mean()", "right", ["share_right", "number"]),
    "a taken name": ('"share_right"', '"accuracy"', ["'accuracy'", "another name"]),
    "other inputs": ('"references": ids', '"labels": ids', ["'labels'", "'references'"]),
    "an error": ("right = ", "right = [][1]  # ", ["mine.py, line 18: IndexError"]),
    "no class": ("(evaluate.Metric)", "", ["one class derived from EvaluationModule"]),
    "a syntax error": ("class Mine", "class", ["mine.py, line 9"]),
    "no direction": ("", "", ["--metric_for_best_model share_right", "--greater_is_better"]),
}


@pytest.mark.contract("B6", "F4")
@pytest.mark.parametrize("case", UNUSABLE)
def test_a_module_that_cannot_be_used_is_refused(
    case: str, module: Path, reviews: Path, bert: Path
) -> None:
    """The message comes before training, with the file and what was expected."""
    old, new, fragments = UNUSABLE[case]
    module.write_text(MODULE.replace(old, new) if old else MODULE, encoding="utf-8")
    best = {"metric_for_best_model": "share_right"} if case == "no direction" else {}
    check = finetune.check(
        "text", dataset=str(reviews), model=str(bert), metrics=f"accuracy,{module}", **best
    )
    (message,) = [error.message for error in check.findings if error.severity == "error"]
    for fragment in fragments:
        assert fragment in message


@pytest.mark.contract("B6")
def test_whole_numbers_are_refused_as_predictions_of_a_regression(
    module: Path, bert: Path, tmp_path: Path
) -> None:
    """`evaluate` would convert 0.9 to 0; with float64 the module gets the numbers."""
    scores = data.write_scores(tmp_path / "scores.csv")
    options = dict(dataset=str(scores), model=str(bert), text_column="text", label_column="stars")
    options |= dict(metrics=f"rmse,{module}", task="regression")
    body = MODULE.replace("minutes = ", "minutes = np.zeros(3)  # ")
    for kind, status in (("int64", 2), ("float64", 0)):
        module.write_text(body.replace('Value("int64")', f'Value("{kind}")'), encoding="utf-8")
        check = finetune.check("text", **options)
        errors = [error.message for error in check.findings if error.severity == "error"]
        assert bool(errors) is (status == 2), errors
        assert all("int64" in error and "float" in error for error in errors)


@pytest.mark.contract("B6")
def test_a_module_imports_what_is_beside_it(module: Path) -> None:
    (module.parent / "costs.py").write_text("MINUTES = [5.0, 30.0]\n", encoding="utf-8")
    body = MODULE.replace("import numpy as np", "import numpy as np\nfrom .costs import MINUTES")
    module.write_text(body.replace("[5.0, 30.0])", "MINUTES)"), encoding="utf-8")
    scoring = finetune.Scoring(mine={"module": str(module)}, accuracy={})
    logits = np.array([[2.0, 1.0], [2.0, 1.0], [0.0, 3.0]])
    outputs = EvalPrediction(predictions=logits, label_ids=np.array([0, 1, 1]))
    expected = {"share_right": 2 / 3, "minutes_lost": 10.0, "accuracy": 2 / 3}
    assert scoring(outputs) == pytest.approx(expected)


def best_of(history: list[Row], metric: str, is_greater: bool) -> tuple[list[int], int]:
    """Return the steps of the evaluations, and the index of the first best one."""
    evaluations = [entry for entry in history if f"eval_{metric}" in entry]
    values = [entry[f"eval_{metric}"] for entry in evaluations]
    best = int(np.argmax(values) if is_greater else np.argmin(values))
    return [entry["step"] for entry in evaluations], best


@pytest.mark.contract("B6")
def test_metrics_by_name_and_path_are_those_of_the_predictions(
    module: Path, bert: Path, tmp_path: Path, cli: Cli
) -> None:
    """Classes differ in size; a number of the module chooses the saved checkpoint."""
    reviews = data.write_reviews(tmp_path / "reviews.csv", labels=("bad", "bad", "good"))
    names = "f1_weighted,precision,recall_micro,matthews_correlation,roc_auc,average_precision"
    words = TRAINING | dict(metrics=f"{names},{module}", output_dir=tmp_path / "run")
    words |= dict(metric_for_best_model="share_right", greater_is_better="true")
    words |= dict(num_train_epochs=6, learning_rate=5e-3, save_total_limit=6)
    cli("text", *flags(dataset=reviews, model=bert, **words), "--no_baseline").succeeded()
    run = finetune.Run.load(tmp_path / "run")
    predictions, test = run.predictions, dict(run.metrics.test)
    assert run.labels == ["bad", "good"]
    true, decided = (predictions[n].map(run.labels.index) for n in ("label", "prediction"))
    score = predictions["probability of good"]
    minutes = np.array([5.0, 30.0])[true] * (true != decided)
    expected = {
        "f1_weighted": sklearn.metrics.f1_score(true, decided, average="weighted"),
        "precision": sklearn.metrics.precision_score(true, decided, average="macro"),
        "recall_micro": sklearn.metrics.recall_score(true, decided, average="micro"),
        "matthews_correlation": sklearn.metrics.matthews_corrcoef(true, decided),
        "roc_auc": sklearn.metrics.roc_auc_score(true, score),
        "average_precision": sklearn.metrics.average_precision_score(true, score),
        "share_right": (true == decided).mean(),
        "minutes_lost": minutes.mean(),
    }
    assert len({round(value, 6) for value in expected.values()}) > 6
    assert {name for name in test if name != "loss"} == set(expected)
    assert {name: test[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    steps, best = best_of(run.manifest.history, "share_right", is_greater=True)
    assert steps == [10, 20, 30, 40, 50, 60]
    saved = load_file(run.path / "model.safetensors")
    weights = load_file(run.path / f"checkpoint-{steps[best]}" / "model.safetensors")
    assert all(torch.equal(saved[name], weights[name]) for name in saved)


@pytest.mark.contract("B6")
@pytest.mark.parametrize(
    ("metric", "is_greater", "patience"),
    [
        ("share_right", False, 1),
        ("share_right", True, 2),
        ("loss", False, 1),
        ("f1", True, 3),
        ("rmse", False, 2),
    ],
)
def test_the_best_checkpoint_is_kept_and_the_training_stops_after_patience(
    metric: str,
    is_greater: bool,
    patience: int,
    module: Path,
    reviews: Path,
    bert: Path,
    tmp_path: Path,
) -> None:
    """There are exactly `--early_stopping_patience` evaluations after the best one."""
    options = dict(dataset=str(reviews), metrics=f"f1,{module}", max_length=64)
    if metric == "rmse":
        scores = data.write_scores(tmp_path / "scores.csv")
        options |= dict(dataset=str(scores), metrics="r2,rmse", text_column="text")
        options |= dict(label_columns="stars,price")
    recipe = Text(model=str(bert), **options)
    training = {name: value for name, value in TRAINING.items() if name != "max_length"}
    training |= dict(learning_rate=1e-2, max_steps=48, save_strategy="steps", save_steps=4)
    training |= dict(eval_strategy="steps", eval_steps=4, save_total_limit=None)
    training |= dict(metric_for_best_model=metric, early_stopping_patience=patience)
    if metric == "share_right":
        training["greater_is_better"] = is_greater
    trainer = recipe.trainer(output_dir=str(tmp_path / "run"), **training)
    trainer.train()
    steps, best = best_of(trainer.state.log_history, metric, is_greater)
    assert steps == [4 * (place + 1) for place in range(best + 1 + patience)]
    assert len(steps) < 12
    stored = load_file(tmp_path / "run" / f"checkpoint-{steps[best]}" / "model.safetensors")
    weights = trainer.model.state_dict()
    assert all(torch.equal(weights[name], stored[name]) for name in stored)


class Undefined(Text):
    """A metric that is better each time, and NaN where it would be 0."""

    own_metrics = ("gain",)
    calls = iter(())

    def compute_metrics(self, prediction: Any) -> dict[str, float]:
        return {"gain": next(self.calls) or float("nan")}


@pytest.mark.contract("B6")
@pytest.mark.parametrize(("scores", "best"), [(range(-1, 99), 8), ([0.0] * 99, None)])
def test_a_metric_that_is_not_defined_is_not_the_best(
    scores: Any, best: int | None, bert: Path, reviews: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """The first call is the try before the training, the next one its first evaluation."""
    monkeypatch.setattr(Undefined, "calls", iter(scores))
    training = dict(max_steps=8, eval_strategy="steps", eval_steps=2, early_stopping_patience=1)
    training |= dict(metric_for_best_model="gain", greater_is_better=True, global_batch_size=8)
    training |= dict(dataset=str(reviews), model=str(bert), output_dir=str(tmp_path / "run"))
    lines: list[Any] = []
    run = finetune.train(Undefined, progress=lines.append, **training)
    assert (run.manifest.steps, run.manifest.best_step) == (8, best)
    note = "no evaluation has a number for gain: the model of the last step is saved"
    assert (note in map(str, lines)) == (best is None)


@pytest.mark.contract("B3")
def test_a_weight_without_effect_is_refused(bert: Path) -> None:
    names = datasets.ClassLabel(names=["bad", "good", "new"])
    features = datasets.Features(text=datasets.Value("string"), label=names)
    rows = {"text": [f"place {n}" for n in range(60)], "label": [n % 2 for n in range(60)]}
    source = datasets.Dataset.from_dict(rows, features)
    with pytest.raises(finetune.UserError, match="no training row is of the class 'new'"):
        finetune.train("text", dataset=source, model=str(bert), class_weights="new=3")


@pytest.mark.contract("B3")
def test_smoothing_and_balanced_sampling_need_one_class_in_python_too(
    rare: Path, bert: Path, tmp_path: Path
) -> None:
    recipe = Text(dataset=str(rare), model=str(bert), text_column="text", label_column="tags")
    for options in (dict(label_smoothing_factor=0.1), dict(class_sampling="balanced")):
        message = f"--{next(iter(options))}.* needs one class a row"
        with pytest.raises(finetune.UserError, match=message):
            recipe.trainer(output_dir=str(tmp_path / "run"), **STEP | options)


DRAW = np.random.default_rng(7)
MANY, TWO = DRAW.integers(0, 4, (2, 60)), DRAW.integers(0, 2, (2, 60))
SETS = DRAW.integers(0, 2, (2, 60, 3))
NUMBERS = DRAW.normal(size=(2, 60, 2)).round(1)
GAP = np.array([[0, 3, 3, 0], [0, 3, 1, 0]])
RANKED = ("roc_auc", "average_precision")
SCORES = DRAW.dirichlet([1, 1, 1, 1], 60)
WEIGHTS: Row = {"sample_weight": 1.0 + np.arange(60) % 3}
AVERAGES = ("micro", "macro", "samples")
Score = Callable[..., Any]


def averaged(name: str) -> Score:
    return functools.partial(getattr(sklearn.metrics, f"{name}_score"), zero_division=0)


def over_targets(function: Score) -> Score:
    """Return a function for the mean of a score over the columns."""
    return lambda true, values: np.mean(
        [function(*both) for both in zip(true.T, values.T, strict=True)]
    )


def kappa(true: np.ndarray, decided: np.ndarray, **options: Any) -> float:
    options |= dict(labels=range(4), weights="quadratic")
    return float(sklearn.metrics.cohen_kappa_score(true, decided, **options))


def roc_area(true: np.ndarray, scores: np.ndarray) -> float:
    scores = scores[:, 1] if scores.shape[1] == 2 else scores
    return float(sklearn.metrics.roc_auc_score(true, scores, multi_class="ovr"))


PRECISION = sklearn.metrics.average_precision_score
OF_NUMBERS: dict[str, Score] = {
    "mae": sklearn.metrics.mean_absolute_error,
    "mse": sklearn.metrics.mean_squared_error,
    "rmse": sklearn.metrics.root_mean_squared_error,
    "r2": sklearn.metrics.r2_score,
    "pearson": lambda *both: scipy.stats.pearsonr(*both).statistic,
    "spearman": lambda *both: scipy.stats.spearmanr(*both).statistic,
}
#: Module, configuration, predictions or scores, references, arguments, reference function.
MODULES: list[tuple[str, str | None, np.ndarray, np.ndarray, Row, Score]] = [
    *(
        (name, None, *MANY, {"average": average} | more, averaged(name))
        for name in ("f1", "precision", "recall")
        for average in ("macro", "micro", "weighted", None)
        for more in ({}, WEIGHTS)
    ),
    *(
        (name, None, *TWO, {"pos_label": label}, averaged(name))
        for name in ("f1", "precision", "recall")
        for label in (0, 1)
    ),
    *(("f1", "multilabel", *SETS, {"average": average}, averaged("f1")) for average in AVERAGES),
    ("accuracy", None, *MANY, WEIGHTS, sklearn.metrics.accuracy_score),
    ("accuracy", "multilabel", *SETS, {}, sklearn.metrics.accuracy_score),
    ("matthews_correlation", None, *MANY, WEIGHTS, sklearn.metrics.matthews_corrcoef),
    ("mean_absolute_error", None, *MANY, WEIGHTS, sklearn.metrics.mean_absolute_error),
    ("quadratic_kappa", None, *MANY, WEIGHTS, kappa),
    ("quadratic_kappa", None, *GAP, {}, kappa),
    ("roc_auc", None, SCORES[:, :2], TWO[1], {}, roc_area),
    ("roc_auc", None, SCORES, MANY[1], {}, roc_area),
    ("average_precision", None, SCORES, MANY[1], {}, PRECISION),
    ("average_precision", "multilabel", SCORES[:, :3], SETS[1], {"average": None}, PRECISION),
    *((name, None, *NUMBERS, {}, over_targets(score)) for name, score in OF_NUMBERS.items()),
    *((name, None, *NUMBERS[..., 0], {}, score) for name, score in OF_NUMBERS.items()),
]


@pytest.mark.contract("B6")
@pytest.mark.parametrize("case", range(len(MODULES)), ids=lambda i: f"{MODULES[i][0]}-{i}")
def test_modules_agree_with_scikit_learn_and_scipy(case: int) -> None:
    name, config, decided, true, arguments, function = MODULES[case]
    metric = evaluate.load(str(ROOT / "metrics" / name), config, keep_in_memory=True)
    word = "prediction_scores" if name in RANKED else "predictions"
    score = metric.compute(**{word: decided}, references=true, **arguments)
    assert score == {name: pytest.approx(function(true, decided, **arguments))}


@pytest.mark.contract("B6")
def test_every_module_is_compared() -> None:
    folders = {path.parent.name for path in (ROOT / "metrics").glob("*/*.py")}
    assert folders == {case[0] for case in MODULES}


# ---- B7: a base that was fine-tuned before -------------------------------------------------------


def by_label(model: Any, text: str, tokenizer: Any) -> dict[str, float]:
    """Return the logits of each label by its name."""
    logits = forward(model.eval(), tokenizer(text, truncation=True))
    return {model.config.id2label[i]: value for i, value in enumerate(logits)}


def write_permuted(run: finetune.Run, order: list[int], directory: Path) -> Path:
    """Write the model of a run with outputs, names and weights, in another order."""
    model = classifier(run.path)
    names = [run.labels[i] for i in order]
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: i for i, name in enumerate(names)}
    model.save_pretrained(directory)
    weights = load_file(directory / "model.safetensors")
    for name in ("classifier.weight", "classifier.bias"):
        weights[name] = weights[name][order].clone()
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    AutoTokenizer.from_pretrained(run.path).save_pretrained(directory)
    return directory


@pytest.mark.contract("B7")
@pytest.mark.parametrize(
    ("task", "order"),
    [
        ("single_label", [0, 1]),
        ("single_label", [1, 0]),
        ("ordinal", [1, 2, 0]),
        ("multi_label", [2, 0, 1]),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value)),
)
def test_a_head_of_the_same_labels_is_continued_by_name(
    task: str, order: list[int], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Before the first step each label has the logits of the base model."""
    run: finetune.Run = request.getfixturevalue(f"{task}_run")
    base = write_permuted(run, order, tmp_path / "base")
    names = ("task", "label_order", "label_column")
    options = {name: getattr(run.recipe(), name) for name in names}
    recipe = Text(dataset=run.manifest.options["dataset"], model=str(base), **options)
    model = recipe.trainer_kwargs()["model"]
    assert list(model.config.id2label.values()) == run.labels
    tokenizer = AutoTokenizer.from_pretrained(base)
    for text in run.predictions["text"][:10]:
        expected = by_label(classifier(base), text, tokenizer)
        assert by_label(model, text, tokenizer) == pytest.approx(expected, abs=1e-5)


@pytest.mark.contract("B7")
@pytest.mark.parametrize(
    "labels",
    [
        pytest.param(("bad", "mixed", "good"), id="more-labels"),
        pytest.param(("up", "down"), id="other-names"),
    ],
)
def test_a_head_of_other_labels_is_replaced_and_that_is_printed(
    labels: tuple[str, ...], single_label_run: finetune.Run, cli: Cli, tmp_path: Path
) -> None:
    base = write_permuted(single_label_run, [0, 1], tmp_path / "base")
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    config["id2label"] = {"0": "awful-ish", "1": "great-ish"}
    config["label2id"] = {"awful-ish": 0, "great-ish": 1}
    (base / "config.json").write_text(json.dumps(config), encoding="utf-8")
    texts = data.labelled_sentences(120, labels=[*data.WORDS])
    rows = [[text, labels[number % len(labels)]] for number, (text, _) in enumerate(texts)]
    dataset = data.write_csv(tmp_path / "rows.csv", ["text", "label"], rows)
    result = cli("text", *flags(dataset=dataset, model=base, max_length=64), "--dry_run")
    assert result.status == 0, result.output
    output = " ".join(result.output.split())
    assert all(word in output for word in ("awful-ish", "great-ish", str(base)))
    model = Text(dataset=str(dataset), model=str(base)).trainer_kwargs()["model"]
    assert list(model.config.id2label.values()) == sorted(labels)
    saved = load_file(base / "model.safetensors")
    assert torch.equal(model.base_model.embeddings.word_embeddings.weight, saved[EMBEDDINGS])
    for row in model.classifier.weight:
        assert all(not torch.allclose(row, old) for old in saved["classifier.weight"])


EMBEDDINGS = "bert.embeddings.word_embeddings.weight"

# ---- B8: a custom recipe -------------------------------------------------------------------------

RECIPE = '''
"""Reviews, every step replaced."""

import torch
from finetune import TextRecipe


class Mine(TextRecipe):
    """Reviews, every step replaced."""

    training = dict(global_batch_size=16, learning_rate=3e-3)
    own_metrics = ("share_good",)

    model: str = ""
    max_length: int = 24

    def load(self):
        from datasets import Dataset, DatasetDict

        rows = {
            "text": [f"the food of kitchen {i} was {('dull', 'fine')[i % 2]}" for i in range(96)],
            "label": [("bad", "good")[i % 2] for i in range(96)],
        }
        return self.labelled(DatasetDict(train=Dataset.from_dict(rows)))

    def prepare(self, dataset):
        longer = dataset.map(lambda row: {"text": row["text"] + " and the menu was usual"})
        return super().prepare(longer)

    def build_model(self, labels):
        model = super().build_model(labels)
        torch.nn.init.zeros_(model.classifier.weight)
        return model

    def adapt(self, model, arguments):
        model.base_model.encoder.requires_grad_(False)
        return super().adapt(model, arguments)

    def data_collator(self):
        collate = super().data_collator()

        def second_segment(rows):
            batch = collate(rows)
            return {**batch, "token_type_ids": torch.ones_like(batch["input_ids"])}

        return second_segment

    def loss(self, logits, labels):
        return 3 * torch.nn.functional.cross_entropy(logits, labels, reduction="none")

    def compute_metrics(self, prediction):
        return {"share_good": float((prediction.predictions.argmax(-1) == 1).mean())}
'''


@pytest.fixture(scope="module")
def custom_run(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> finetune.Run:
    """A run of a recipe file that replaces every step."""
    place = tmp_path_factory.mktemp("custom")
    (place / "mine.py").write_text(RECIPE, encoding="utf-8")
    options = SHORT | dict(
        model=str(bert), max_steps=8, learning_rate=3e-2, output_dir=str(place / "run")
    )
    return finetune.train(str(place / "mine.py"), **options)


@pytest.mark.contract("B8")
def test_load_prepare_and_data_collator_make_the_inputs(
    custom_run: finetune.Run, bert: Path
) -> None:
    """Rows come from `load`, their text from `prepare`, and their segment from the collator."""
    predictions = custom_run.predictions
    assert custom_run.labels == ["bad", "good"]
    assert len(predictions) == 19
    tokenizer, model = AutoTokenizer.from_pretrained(bert), classifier(custom_run.path)
    outputs = []
    for number, label in zip(predictions["id"], predictions["label"], strict=True):
        assert label == ("bad", "good")[number % 2]
        text = f"the food of kitchen {number} was {('dull', 'fine')[number % 2]}"
        inputs = tokenizer(f"{text} and the menu was usual", truncation=True, max_length=24)
        inputs["token_type_ids"] = [1] * len(inputs["input_ids"])
        outputs.append(forward(model, inputs))
    expected = scipy.special.softmax(np.stack(outputs), axis=1)
    columns = ["probability of bad", "probability of good"]
    np.testing.assert_allclose(predictions[columns], expected, atol=1e-5)
    assert np.ptp(expected[:, 0]) > 1e-3


@pytest.mark.contract("B8")
def test_build_model_and_loss_make_the_first_loss(custom_run: finetune.Run) -> None:
    """`build_model` returns logits of 0, `loss` three times the cross-entropy."""
    losses = [entry["loss"] for entry in custom_run.manifest.history if "loss" in entry]
    assert losses[0] == pytest.approx(3 * np.log(2), rel=1e-5)
    assert losses[1] != pytest.approx(losses[0], rel=1e-5)
    predictions = custom_run.predictions
    columns = ["probability of bad", "probability of good"]
    true = predictions["label"].map(custom_run.labels.index)
    expected = 3 * sklearn.metrics.log_loss(true, predictions[columns])
    assert custom_run.metrics.test["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.contract("B8")
def test_adapt_freezes_the_encoder(custom_run: finetune.Run, bert: Path) -> None:
    base, saved = (load_file(path / "model.safetensors") for path in (bert, custom_run.path))
    equal = {
        name: torch.equal(weight, saved[f"bert.{name.removeprefix('bert.')}"])
        for name, weight in base.items()
        if not name.endswith("position_ids")
    }
    assert {name for name in equal if "encoder." in name} == {n for n in equal if equal[n]}
    assert any(equal.values())


@pytest.mark.contract("B8")
def test_compute_metrics_replaces_the_metrics(custom_run: finetune.Run) -> None:
    test = dict(custom_run.metrics.test)
    share = (custom_run.predictions["prediction"] == "good").mean()
    assert {name for name in test if name != "loss"} == {"share_good"}
    assert test["share_good"] == pytest.approx(share)


@pytest.mark.contract("A11", "B8")
def test_a_training_assigns_nothing_to_the_recipe(bert: Path, tmp_path: Path) -> None:
    """Options stay as they were typed. What follows from them is kept by cached properties only,
    and recorded in `run.json`.
    """
    path = data.write_tags(tmp_path / "tags.jsonl")
    options = dict(dataset=str(path), label_column="labels", model=str(bert))
    recipe = Text(**options)
    before = dict(vars(recipe))
    arguments = STEP | dict(max_steps=2)
    recipe.trainer(**arguments, output_dir=str(tmp_path / "trainer")).train()
    assert {name: vars(recipe)[name] for name in before} == before
    assert (recipe.task, recipe.max_length, recipe.class_weights) == ("auto", 512, "none")
    for name in vars(recipe).keys() - before.keys():
        assert isinstance(inspect.getattr_static(type(recipe), name), functools.cached_property)
    assert (recipe.resolved_task.name, recipe.token_limit) == ("multi_label", 128)
    run = finetune.train(
        Text, **options, **arguments, baseline=False, output_dir=str(tmp_path / "run")
    )
    resolved = run.manifest.options
    assert (resolved["task"], resolved["max_length"]) == ("multi_label", 128)


@pytest.mark.contract("B8")
def test_rows_are_loaded_once_and_free_in_the_training(bert: Path, tmp_path: Path) -> None:
    """The rows of the source, before they are split, are not in memory during the training."""
    path = data.write_csv(tmp_path / "a.csv", ["text", "label"], data.labelled_sentences(160))
    sources = []

    class Watched(Text):
        dataset: str = str(path)

        def load(self) -> Any:
            dataset = super().load()
            sources.append(weakref.ref(dataset["train"]))
            return dataset

    def look(event: Any) -> None:
        if type(event).__name__ == "Logged" and "loss" in event.values:
            gc.collect()
            held.append([source() is not None for source in sources])

    held: list[list[bool]] = []
    options = SHORT | dict(model=str(bert), max_steps=2, logging_steps=1)
    finetune.train(Watched, progress=look, output_dir=str(tmp_path / "run"), **options)
    assert held == [[False], [False]]


PREPARE = """def prepare(self, dataset):
        prepared = super().prepare(dataset)
        prepared["{0}"] = prepared["{0}"].select({1})
        return prepared"""
METRICS = "own_metrics = ('m',)\n    def compute_metrics(self, prediction):\n        return {}"


def train_with_step(step: str, folder: Path, bert: Path, **options: Any) -> finetune.Run:
    """Train a recipe with a custom step."""
    source = f"from finetune import TextRecipe\n\n\nclass Mine(TextRecipe):\n\n    {step}\n"
    (folder / "mine.py").write_text(source, encoding="utf-8")
    data.write_csv(folder / "a.csv", ["text", "label"], data.labelled_sentences(160))
    options = TRAINING | dict(dataset=str(folder / "a.csv"), model=str(bert), **options)
    return finetune.train(str(folder / "mine.py"), output_dir=str(folder / "run"), **options)


@pytest.mark.contract("B8", "E1")
def test_metrics_may_be_numbers_of_numpy(bert: Path, tmp_path: Path) -> None:
    step = METRICS.format("{'m': prediction.predictions.mean(dtype='float32')}")
    run = train_with_step(step, tmp_path, bert, max_steps=2, greater_is_better=True)
    baselines = [scores["m"] for scores in run.metrics.baseline.values()]
    assert [type(number) for number in baselines] == [float, float]
    assert (run.path / "report.html").exists()


@pytest.mark.contract("B8", "F4")
@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("def load(self):\n        return None", "load() returned None: expected a DatasetDict"),
        (
            "def split(self, dataset):\n        return {'train': dataset['train']}",
            "expected a DatasetDict with train, validation, test",
        ),
        (PREPARE.format("train", range(9)), "prepare() returned 9 of the 115 train rows"),
        (PREPARE.format("test", range(31, -1, -1)), "the labels or the order of the test rows"),
        ("def prepare(self, dataset):\n        return None", "prepare() returned None: expected"),
        ("def build_model(self, labels):\n        return None", "build_model() returned None"),
        ("def adapt(self, model, arguments):\n        return None", "adapt() returned None"),
        (METRICS.format("{'m': 'good'}"), "returned {'m': 'good'}: expected a dict of numbers"),
        (METRICS.format("None"), "returned None: expected a dict of numbers by name"),
        (METRICS.format("prediction.logits"), "line 8: AttributeError"),
        (METRICS.format("{'n': 1.0}"), "returned n: expected m, the --metric_for_best_model"),
    ],
)
def test_what_a_step_returns_is_checked_before_the_training(
    step: str, message: str, bert: Path, tmp_path: Path
) -> None:
    with pytest.raises(finetune.UserError) as error:
        train_with_step(step, tmp_path, bert)
    assert message in str(error.value)
    assert not (tmp_path / "run").exists()
