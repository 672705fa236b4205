"""The default run: a head that starts from a probe, the frozen encoder beside it, and rates, epochs
and warm-up by rows and parameters (rows G5 and E3).
"""

import functools
import json
import random
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image as Picture
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import accuracy_score, f1_score, log_loss, r2_score
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertModel,
    BertTokenizer,
    ViTImageProcessorPil,
    pipeline,
)

import finetune
from recipes.image import Image
from recipes.text import Text
from recipes.tokens import Tokens
from tests.acceptance import data
from tests.acceptance.conftest import Finished, Trained, flags, user_error
from tests.acceptance.test_results import bag_of_words
from tests.acceptance.test_training import FAULTY, assert_identical
from tests.families import write as write_family

#: A training that leaves the weights as they start, with enough epochs that all rows are encoded.
STILL: dict[str, Any] = dict(learning_rate=1e-12, num_train_epochs=10, weight_decay=0.0)
PROBE: dict[str, Any] = dict(STILL, head="probe")
FROZEN = "frozen encoder + logistic regression"


@pytest.fixture(scope="session")
def still_run(trained: Trained, reviews: Path, pretrained_bert: Path) -> finetune.Run:
    """A run whose model is that of its start: the head is the probe."""
    return trained("still", "text", dataset=str(reviews), model=str(pretrained_bert), **PROBE)


def states(run: finetune.Run, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the inputs of the head, the means of the last states, and the logits of the rows."""
    model = AutoModelForSequenceClassification.from_pretrained(run.path).eval()
    tokenizer = AutoTokenizer.from_pretrained(run.path)
    pooled, means, logits = [], [], []
    for text in run.recipe().splits[split]["text"][:]:
        batch = tokenizer(text, return_tensors="pt", truncation=True)
        with torch.inference_mode():
            encoded = model.bert(**batch)
            pooled.append(encoded.pooler_output[0].numpy())
            means.append(encoded.last_hidden_state[0].mean(dim=0).numpy())
            logits.append(model(**batch).logits[0].numpy())
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    return np.array(pooled), np.array(means) / lengths, np.array(logits)


def scaled(training: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Return features with mean 0 and, over all columns together, variance 1 in the training."""
    center = training.mean(axis=0)
    return (features - center) / (training - center).std()


def labels(run: finetune.Run, split: str) -> np.ndarray:
    return np.array(run.recipe().splits[split]["label"][:])


def regressions(features: np.ndarray, targets: np.ndarray) -> list[LogisticRegression]:
    """Return logistic regressions of the strengths that cross-validation chooses from."""
    models = [LogisticRegression(C=c, tol=1e-8, max_iter=9000) for c in (1e-2, 1e-1, 1.0)]
    return [model.fit(features, targets) for model in models]


@pytest.mark.contract("G5")
def test_the_head_starts_from_logistic_regression(still_run: finetune.Run) -> None:
    """Its direction is scikit-learn's; its size leaves the training rows a loss to learn from.
    Outputs shrink towards the logarithm of the odds of the classes: decisions hardly change.
    """
    pooled, _, logits = states(still_run, "train")
    features, true = scaled(pooled, pooled), labels(still_run, "train")
    difference = logits[:, 1] - logits[:, 0]

    def correlation(model: LogisticRegression) -> float:
        return float(np.corrcoef(model.decision_function(features), difference)[0, 1])

    model = max(regressions(features, true), key=correlation)
    assert correlation(model) > 0.9999
    odds = np.log(true.mean() / (1 - true.mean()))
    decisions = model.decision_function(features)
    scale = difference.std() / decisions.std()
    assert difference == pytest.approx(odds + scale * (decisions - odds), abs=0.02)
    loss = log_loss(true, torch.tensor(logits).softmax(dim=-1).numpy())
    own_loss = log_loss(true, model.predict_proba(features))
    assert loss == pytest.approx(max(own_loss, 0.75 * np.log(2)), abs=0.02)
    (note,) = (note for note in still_run.manifest.data.notes if note.startswith("head: "))
    validated, _, _ = states(still_run, "validation")
    predicted = model.predict(scaled(pooled, validated))
    share = accuracy_score(labels(still_run, "validation"), predicted)
    assert f"of {len(pooled)} rows, accuracy {share:.4f} on" in note


@pytest.mark.contract("G5")
@pytest.mark.parametrize("more", [{}, {"final_epochs": 1}, {"refit": True}])
def test_where_rows_are_few_the_head_starts_from_the_mean_of_the_states(
    more: dict[str, Any], reviews: Path, pretrained_bert: Path, tmp_path: Path
) -> None:
    """The model is one of the library with one more layer. Its outputs are those of scikit-learn's
    regression of the states of the base, which are averaged here: of the training rows, and before
    the final epochs or a refit of the validation rows, too.
    """
    options: dict[str, Any] = dict(dataset=str(reviews), model=str(pretrained_bert))
    options |= dict(precision="fp32", disable_tqdm=True, output_dir=str(tmp_path / "run"))
    run = finetune.train("text", **options, **STILL, **more)
    directory = run.path / "refit" if "refit" in more else run.path
    base = AutoModel.from_pretrained(pretrained_bert).eval()
    model = AutoModelForSequenceClassification.from_pretrained(directory).eval()
    assert model.config.num_hidden_layers == base.config.num_hidden_layers + 1
    tokenizer = AutoTokenizer.from_pretrained(run.path)
    parts = ["train", "validation"][: 1 + len(more)]
    means, read, outputs = [], [], []
    with torch.inference_mode():
        for text in (text for part in parts for text in run.recipe().splits[part]["text"]):
            batch = tokenizer(text, return_tensors="pt", truncation=True)
            mean = base(**batch).last_hidden_state[0].mean(dim=0)
            means.append(((mean - mean.mean()) / mean.std(correction=0)).numpy())
            read.append(model.bert(**batch).last_hidden_state[0, 0].numpy())
            outputs.append(np.diff(model(**batch).logits[0].numpy()).item())
    assert np.abs(np.array(read) - np.array(means)).max() < 0.1
    features = np.tanh(means)
    true = np.concatenate([labels(run, part) for part in parts])
    distances = []
    for regression in regressions(scaled(features, features), true):
        decisions = regression.decision_function(scaled(features, features))
        distances.append(np.abs(decisions - outputs).max() / decisions.std())
    assert min(distances) < 0.1
    (note,) = (note for note in run.manifest.data.notes if note.startswith("head: "))
    assert "one more layer returns the mean" in note
    assert run.manifest.options["head"] == "mean"


@pytest.mark.contract("G5", "E1")
@pytest.mark.parametrize("family", ["distilbert", "electra", "deberta-v3"])
def test_the_head_of_a_family_starts_from_the_mean_of_the_states(
    family: str, reviews: Path, tmp_path: Path
) -> None:
    """The saved model, of the library and loaded by it, reads the mean of the states of the base,
    and gives the outputs of scikit-learn's regression of what it reads.
    """
    path = data.train_norms(write_family(family, tmp_path / "base"))
    recipe = Text(dataset=str(reviews), model=str(path), max_length=64)
    trainer = recipe.trainer(precision="fp32", disable_tqdm=True, output_dir="unused")
    assert recipe.resolved_options()["head"] == "mean"
    assert not any("trained from random values" in note for note in recipe.notes)
    trainer.save_model(str(tmp_path / "saved"))
    base = AutoModel.from_pretrained(path).eval()
    answers = pipeline("text-classification", str(tmp_path / "saved"), top_k=None, device="cpu")
    assert answers.model.config.num_hidden_layers == base.config.num_hidden_layers + 1
    means, read, outputs = [], [], []
    for text in recipe.splits["train"]["text"]:
        batch = answers.tokenizer(text, return_tensors="pt", truncation=True, max_length=64)
        with torch.inference_mode():
            mean = base(**batch).last_hidden_state[0].mean(dim=0)
            first = answers.model.base_model(**batch).last_hidden_state[0, 0]
        means.append(((mean - mean.mean()) / mean.std(correction=0)).numpy())
        read.append(first.numpy())
        scores = {answer["label"]: answer["score"] for answer in answers(text, truncation=True)[0]}
        outputs.append(np.log(scores["good"] / scores["bad"]))
    assert np.abs(np.array(read) - np.array(means)).max() < 0.1
    activation = torch.nn.functional.relu if family == "distilbert" else torch.nn.functional.gelu
    features = activation(torch.tensor(np.array(read)) + 2).numpy()
    true = np.array(recipe.splits["train"]["label"][:])
    distances = []
    for regression in regressions(scaled(features, features), true):
        decisions = regression.decision_function(scaled(features, features))
        distances.append(np.abs(decisions - outputs).max() / decisions.std())
    assert min(distances) < 0.01


@pytest.mark.contract("G5")
def test_the_head_of_many_classes_starts_with_the_score_of_its_note(
    pretrained_bert: Path, tmp_path: Path
) -> None:
    """Some classes are far from the other rows, so the means of the outputs differ by class."""
    draw = np.random.default_rng(0)
    words = ["good", "bad", "film", "actor", "story", "plot", "fine", "dull"]
    counts = draw.integers(1, 4, size=(480, len(words)))
    classes = np.arange(len(counts)) % len(words)
    counts[np.arange(len(counts)), classes] += 6
    texts = []
    for row in counts:
        text = np.repeat(words, row)
        texts.append(" ".join(draw.permutation(text)))
    path = tmp_path / "rows.csv"
    pd.DataFrame({"text": texts, "label": [words[c] for c in classes]}).to_csv(path, index=False)
    recipe = Text(dataset=str(path), model=str(pretrained_bert), max_length=64)
    trainer = recipe.trainer(precision="fp32", disable_tqdm=True, output_dir="unused")
    (note,) = (note for note in recipe.notes if note.startswith("head: "))
    accuracy = trainer.evaluate()["eval_accuracy"]
    assert f"accuracy {accuracy:.4f} on" in note
    assert accuracy > 0.5


@pytest.mark.contract("G5")
def test_a_random_head_is_not_fitted(reviews: Path, pretrained_bert: Path, bert: Path) -> None:
    """With `--head random`, and where the base has random weights, no head is fitted."""
    for name, options in {
        "random": dict(model=str(pretrained_bert), head="random"),
        "not_pretrained": dict(model=str(bert)),
    }.items():
        recipe = Text(dataset=str(reviews), max_length=64, **options)
        trainer = recipe.trainer(output_dir=f"unused-{name}", precision="fp32", disable_tqdm=True)
        head = trainer.model.classifier
        assert head.weight.std().item() == pytest.approx(0.1, rel=0.3)  # its initializer_range
        assert not any(note.startswith("head: ") for note in recipe.notes)


@pytest.mark.contract("G5")
def test_a_mean_that_hardly_differs_leaves_the_head_random(
    reviews: Path, pretrained_bert: Path, tmp_path: Path
) -> None:
    """Also before the final epochs: the states of this base are the same for every text."""
    shutil.copytree(pretrained_bert, tmp_path / "base")
    base = AutoModel.from_pretrained(pretrained_bert)
    with torch.no_grad():
        for table in ("word_embeddings", "position_embeddings"):
            getattr(base.embeddings, table).weight.zero_()
    base.save_pretrained(tmp_path / "base")
    options: dict[str, Any] = dict(dataset=str(reviews), model=str(tmp_path / "base"))
    options |= dict(precision="fp32", disable_tqdm=True, output_dir=str(tmp_path / "run"))
    run = finetune.train("text", **options, **STILL, final_epochs=1)
    (note,) = (note for note in run.manifest.data.notes if note.startswith("head: "))
    assert "random weights, because the inputs of the last layer hardly differ" in note
    model = AutoModelForSequenceClassification.from_pretrained(run.path)
    assert model.classifier.weight.std().item() == pytest.approx(0.1, rel=0.3)  # as it was made


@pytest.mark.contract("G5", "F4")
def test_a_head_that_cannot_read_the_mean_is_refused(
    reviews: Path, tmp_path: Path, cli: Callable[..., Finished], vit: Path, bert: Path
) -> None:
    other = write_family("mpnet", tmp_path / "mpnet")
    for words, message in {
        ("text", "--model", other): "expected a model of type bert, camembert, deberta-v2",
        ("text", "--model", bert, "--adapter", "lora"): "--adapter lora cannot store its layer",
        ("image", "--model", vit): "invalid choice: 'mean'",
    }.items():
        failed = cli(*words, "--dataset", reviews, "--head", "mean", "--dry_run")
        assert failed.status == 2
        assert message in failed.stderr


@pytest.mark.contract("E3")
def test_the_frozen_encoder_is_a_baseline(still_run: finetune.Run) -> None:
    """It is a logistic regression of the means of the last states, scored on the test rows."""
    _, training, _ = states(still_run, "train")
    _, tested, _ = states(still_run, "test")
    true = labels(still_run, "test")
    scores = still_run.metrics.baseline[FROZEN]
    expected = []
    for model in regressions(scaled(training, training), labels(still_run, "train")):
        probabilities = model.predict_proba(scaled(training, tested))
        predicted = probabilities.argmax(axis=1)
        f1 = f1_score(true, predicted, average="macro")
        expected.append((accuracy_score(true, predicted), f1))
    found = (scores["accuracy"], scores["f1"])
    assert any(found == pytest.approx(values, abs=1e-4) for values in expected)
    gap = still_run.statistics.differences[FROZEN]["accuracy"]["value"]
    assert gap == pytest.approx(still_run.metrics.test["accuracy"] - scores["accuracy"])
    page = (still_run.path / "report.html").read_text(encoding="utf-8")
    assert FROZEN in page
    is_better = still_run.statistics.differences[FROZEN]["f1"]["low"] > 0
    assert ("label more rows" in page) != is_better


@pytest.mark.contract("E3")
def test_the_frozen_encoder_of_a_short_training_has_few_rows(
    reviews: Path, pretrained_bert: Path, tmp_path: Path
) -> None:
    """A tenth of the rows of two epochs, and its name says so."""
    options: dict[str, Any] = dict(dataset=str(reviews), model=str(pretrained_bert), head="probe")
    options |= dict(num_train_epochs=2, disable_tqdm=True, output_dir=str(tmp_path / "run"))
    run = finetune.train("text", **options)
    assert f"{FROZEN} (35 rows)" in run.metrics.baseline


@pytest.mark.contract("G5", "E3")
def test_numbers_start_from_ridge_regression(
    trained: Trained, shared_directory: Path, pretrained_bert: Path
) -> None:
    """The outputs are in the units of the data, and so are those of the frozen encoder."""
    from tests.acceptance.conftest import once
    from tests.acceptance.data import write_scores

    path = once(shared_directory / "scores.csv", write_scores)
    options = dict(text_column="text", label_columns="stars,price", **STILL)
    run = trained("still_numbers", "text", dataset=str(path), model=str(pretrained_bert), **options)
    _, means, outputs = states(run, "train")
    targets = labels(run, "train")
    assert r2_score(targets, outputs) > 0.3
    _, tested, _ = states(run, "test")
    ridge = RidgeCV(np.logspace(-2, 5, 15))
    deviation = targets.std(axis=0)
    ridge.fit(scaled(means, means), targets / deviation)
    predicted = ridge.predict(scaled(means, tested)) * deviation
    score = run.metrics.baseline["frozen encoder + ridge regression"]["r2"]
    assert score == pytest.approx(r2_score(labels(run, "test"), predicted), abs=1e-3)


# ---- the start of every kind of head -------------------------------------------------------------


@dataclass
class Start:
    """A trainer before its first step, and how to make the inputs of its head without it.

    Attributes:
        recipe: The recipe, whose labels are classes, or several of `labels` a row.
        trainer: Its trainer; all training rows are encoded for the head.
        base: The model without a head, whose last layer is called `layer`.
        batches: The inputs of each training row, for the model alone; of windows, of each window.
        targets: The labels of these rows.
        has_bias: Whether the last layer has a bias.
    """

    recipe: Any
    trainer: Any
    base: Any
    layer: str
    batches: list[dict[str, Any]]
    targets: list[Any]
    has_bias: bool = True


def start(recipe: Any, model: Path, **inputs: Any) -> Start:
    """Return the start of a training of a recipe; `inputs` are attributes of :class:`Start`."""
    options: dict[str, Any] = dict(num_train_epochs=10, report_to="none", output_dir="unused")
    trainer = recipe.trainer(precision="fp32", disable_tqdm=True, **options)
    kind = type(trainer.model)  # the class of the library
    base = kind.from_pretrained(model, num_labels=len(recipe.labels)).eval()
    inputs.setdefault("layer", "classifier")
    inputs.setdefault("targets", recipe.splits["train"]["label"][:])
    return Start(recipe, trainer, base, **inputs)


def encoded(model: Path, *columns: Iterable[str]) -> list[dict[str, Any]]:
    """Return the tokenized texts of each row."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    return [tokenizer(*texts, return_tensors="pt") for texts in zip(*columns, strict=True)]


def write_clauses(path: Path) -> Path:
    """Write rows of one clause, whose last word depends on the label, and of a place."""
    draw = random.Random(0)
    rows = []
    for number in range(240):
        label = ("bad", "good")[number % 3 == 0]
        words = data.WORDS[label if draw.random() < 0.9 else "mixed"]
        clause = f"the {draw.choice(data.SUBJECTS)} was {draw.choice(words)}"
        rows.append([f"{draw.choice(data.PLACES)} {number}: {clause}", label])
    return data.write_csv(path, ["text", "label"], rows)


def a_head_without_bias(folder: Path, reviews: Path, pretrained_bert: Path) -> Start:
    """GPT-2 reads the state of the last token."""
    model = data.train_norms(write_family("gpt2", folder / "gpt2"))
    path = write_clauses(folder / "rows.csv")
    recipe = Text(dataset=str(path), model=str(model), max_length=64)
    batches = encoded(model, recipe.splits["train"]["text"][:])
    return start(recipe, model, layer="score", batches=batches, has_bias=False)


def text_pairs(folder: Path, reviews: Path, pretrained_bert: Path) -> Start:
    frame = pd.read_csv(reviews)
    frame[["place", "text"]] = frame["text"].str.split(": ", expand=True)
    frame.to_csv(folder / "pairs.csv", index=False)
    options = dict(dataset=str(folder / "pairs.csv"), text_columns="place,text", max_length=64)
    recipe = Text(model=str(pretrained_bert), head="probe", **options)
    frame = frame.iloc[recipe.splits["train"]["_row"][:]]
    batches = encoded(pretrained_bert, frame["place"], frame["text"])
    return start(recipe, pretrained_bert, batches=batches)


def long_texts_in_windows(folder: Path, reviews: Path, pretrained_bert: Path) -> Start:
    """Windows of 16 tokens, which overlap by 4; the last one is full and ends with the text."""
    options = dict(long_texts="windows", max_length=16)
    recipe = Text(dataset=str(reviews), model=str(pretrained_bert), head="probe", **options)
    batches, targets = [], []
    for text, label in zip(*(recipe.splits["train"][n][:] for n in ("text", "label")), strict=True):
        (whole,) = encoded(pretrained_bert, [text])
        (first, *ids), last = whole["input_ids"][0].tolist()[:-1], whole["input_ids"][0, -1].item()
        starts = [*range(0, max(1, len(ids) - 4), 10)]
        starts[-1] = max(0, len(ids) - 14)
        for begin in starts:
            window = torch.tensor([[first, *ids[begin : begin + 14], last]])
            batches.append({"input_ids": window})
            targets.append(label)
    return start(recipe, pretrained_bert, batches=batches, targets=targets)


def images(folder: Path, reviews: Path, pretrained_bert: Path) -> Start:
    """Bright on the left or on the right: a training flips them, but not those for the head."""
    for number in range(160):
        pixels = np.random.default_rng(number).integers(0, 60, (8, 8, 3))
        pixels[:4, :4] += 190 * (number % 2)
        pixels[:4, 4:] += 190 * (1 - number % 2)
        path = folder / "photos" / ("right", "left")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Picture.fromarray(pixels.astype(np.uint8)).save(path)
    model = data.train_norms(data.write_vit(folder / "vit"))
    recipe = Image(dataset=str(folder / "photos"), model=str(model))
    processor = ViTImageProcessorPil.from_pretrained(model)
    files = recipe.splits["train"]["file"][:]
    batches = [
        processor(Picture.open(folder / "photos" / file), return_tensors="pt") for file in files
    ]
    return start(recipe, model, batches=batches)


def many_classes(folder: Path, reviews: Path, pretrained_bert: Path) -> Start:
    """More than 200, of one word each, with one word of another class; every other one has nine
    times the weight.
    """
    names, draw = [f"w{number:03d}" for number in range(210)], random.Random(0)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *names]
    tokenizer = BertTokenizer(vocab={token: number for number, token in enumerate(tokens)})
    sizes = dict(hidden_size=256, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1)
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(tokens), initializer_range=0.3, **sizes)
    BertModel(config).save_pretrained(folder / "wide")
    model = data.train_norms(folder / "wide")
    tokenizer.save_pretrained(model)
    rows = []
    for number in range(5 * len(names)):
        name = names[number % len(names)]
        text = [name] * 3 + [draw.choice(names)] + [name] * (number // len(names))
        rows.append([" ".join(text), name.upper()])
    path = data.write_csv(folder / "rows.csv", ["text", "label"], rows)
    options = dict(dataset=str(path), max_length=16, hidden_dropout=0.0, attention_dropout=0.0)
    weights = {name.upper(): 1 + 8 * (number % 2) for number, name in enumerate(names)}
    recipe = Text(model=str(model), head="probe", class_weights=weights, **options)
    return start(recipe, model, batches=encoded(model, recipe.splits["train"]["text"][:]))


def many_labels(folder: Path, reviews: Path, pretrained_bert: Path) -> Start:
    """15 words, of which a row has one to three; some are in few rows."""
    names = [word for words in data.WORDS.values() for word in words]
    draw = random.Random(0)
    lines = []
    for number in range(240):
        labels = draw.sample(names, draw.randint(1, 3))
        text = f"{number}: the food was {' and '.join(labels)}"
        lines.append(json.dumps({"text": text, "label": labels}))
    (folder / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    options = dict(dataset=str(folder / "rows.jsonl"), label_column="label", max_length=24)
    recipe = Text(model=str(pretrained_bert), head="probe", **options)
    texts = recipe.splits["train"]["text"][:]
    return start(recipe, pretrained_bert, batches=encoded(pretrained_bert, texts))


STARTS = {
    function.__name__.replace("_", " "): function
    for function in (
        *(a_head_without_bias, text_pairs, long_texts_in_windows),
        *(images, many_classes, many_labels),
    )
}


@pytest.fixture(scope="module")
def starts(
    reviews: Path, pretrained_bert: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Start]:
    """Return a function from a name in `STARTS` to its start, which is made once."""

    @functools.cache
    def make(name: str) -> Start:
        return STARTS[name](tmp_path_factory.mktemp("start"), reviews, pretrained_bert)

    return make


def inputs_of_head(case: Start) -> np.ndarray:
    """Return what the last layer reads of each row, from the library alone."""
    inputs = []

    def record(module: Any, arguments: Any) -> None:
        inputs.append(arguments[0].reshape(-1, arguments[0].shape[-1])[-1].numpy())

    hook = case.base.get_submodule(case.layer).register_forward_pre_hook(record)
    for batch in case.batches:
        with torch.inference_mode():
            case.base(**batch)
    hook.remove()
    return np.array(inputs, dtype=np.float64)


def best_correlation(features: np.ndarray, classes: Any, outputs: Any, *, has_bias: bool) -> float:
    """Return the correlation of outputs with the decisions of the most similar regression; without
    a bias, the cosine.
    """
    correlations = []
    for strength in (1e-2, 1e-1, 1.0):
        model = LogisticRegression(C=strength, tol=1e-8, max_iter=9000, fit_intercept=has_bias)
        decisions = model.fit(features, classes).decision_function(features)
        if has_bias:
            correlations.append(np.corrcoef(decisions, outputs)[0, 1])
        else:
            lengths = np.linalg.norm(decisions) * np.linalg.norm(outputs)
            correlations.append(decisions @ outputs / lengths)
    return float(max(correlations))


@pytest.mark.contract("G5")
@pytest.mark.parametrize("name", STARTS)
def test_every_kind_of_head_starts_from_a_linear_model(
    name: str, starts: Callable[[str], Start]
) -> None:
    """It is scikit-learn's regression of the inputs of the head, up to the size of the outputs."""
    case = starts(name)
    layer = case.trainer.model.get_submodule(case.layer)
    assert (layer.bias is not None) == case.has_bias
    weight = layer.weight.detach().double().numpy()
    bias = layer.bias.detach().double().numpy() if case.has_bias else 0.0
    features = inputs_of_head(case)
    outputs = features @ weight.T + bias
    if case.has_bias:
        features -= features.mean(axis=0)
    features /= np.sqrt((features**2).mean())
    (note,) = (note for note in case.recipe.notes if note.startswith("head: "))
    assert f"regression of {len(features)} rows" in note
    labels = len(case.recipe.labels)
    if name == "many labels":
        has = np.array([[label in row for label in range(labels)] for row in case.targets])
        for number in range(labels):
            one = has[:, number], outputs[:, number]
            assert best_correlation(features, *one, has_bias=True) > 0.9999, number
    elif name == "many classes":
        alphas = np.logspace(-2, 5, 15)
        one_hot = np.eye(labels)[case.targets]
        heavy = [name in case.recipe.labels[1::2] for name in case.recipe.labels]
        weights = np.where(heavy, 9.0, 1.0)[case.targets]
        similarities = []
        for row_weights in (weights / weights.mean(), None):
            ridge = RidgeCV(alphas).fit(features, one_hot / one_hot.std(axis=0), row_weights)
            expected = ridge.predict(features) * one_hot.std(axis=0)
            pair = [values - values.mean(axis=0) for values in (expected, outputs)]
            similarities.append(np.corrcoef(*map(np.ravel, pair))[0, 1])
        assert similarities[0] > 0.9999 > similarities[1]
    else:
        difference = outputs[:, 1] - outputs[:, 0]
        pair = case.targets, difference
        assert best_correlation(features, *pair, has_bias=case.has_bias) > 0.9999


@pytest.mark.contract("G5")
@pytest.mark.parametrize("name", [name for name in STARTS if name != "many labels"])
def test_the_note_has_the_score_of_the_model_that_starts(
    name: str, starts: Callable[[str], Start]
) -> None:
    """Several labels are scored with the thresholds that evaluations of a run fit."""
    case = starts(name)
    score = case.trainer.evaluate()["eval_accuracy"]
    rows = len(case.recipe.splits["validation"])
    (note,) = (note for note in case.recipe.notes if note.startswith("head: "))
    assert f"accuracy {score:.4f} on {rows} validation rows" in note
    assert score > 0.5


NO_MEMORY = """
import torch

from finetune import TextRecipe


class Mine(TextRecipe):
    def build_model(self, labels):
        model = super().build_model(labels)
        model.register_forward_pre_hook(lambda *_: torch.empty(1 << 50))
        return model
"""


@pytest.mark.contract("G5", "D9")
def test_memory_that_runs_out_before_the_training_names_what_helps(
    reviews: Path, pretrained_bert: Path, tmp_path: Path, cli: Callable[..., Finished]
) -> None:
    (tmp_path / "mine.py").write_text(NO_MEMORY)
    # with a seed of its own: the states of the rows of other tests are cached
    options = flags(dataset=reviews, model=pretrained_bert, num_train_epochs=10, split_seed=7)
    failed = cli(tmp_path / "mine.py", *options)
    assert failed.status == 1
    assert "out of memory" in failed.stderr
    assert "--head random" in failed.stderr
    assert "Traceback" not in failed.output


@pytest.mark.contract("G5", "D5")
@pytest.mark.parametrize(("head", "rows"), [("probe", 96), ("mean", 173)])
def test_a_resume_keeps_a_head_that_was_fitted(
    head: str, rows: int,
    reviews: Path, pretrained_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A run that failed in step 31 ends with the weights of one that did not."""
    options: dict[str, Any] = dict(dataset=str(reviews), model=str(pretrained_bert), max_length=64)
    options |= dict(label_column="label", hidden_dropout=0.1, max_steps=60)
    options |= dict(learning_rate=1e-4, save_steps=30, eval_steps=30, head=head)
    runs = [tmp_path / "whole", tmp_path / "resumed"]
    whole = finetune.train(str(FAULTY), output_dir=str(runs[0]), **options)
    assert any(f"logistic regression of {rows} rows" in note for note in whole.manifest.data.notes)
    monkeypatch.setenv("FAULT", "step 31,raise")
    with pytest.raises(ValueError, match="broken at step 31"):
        finetune.train(str(FAULTY), output_dir=str(runs[1]), **options)
    monkeypatch.delenv("FAULT")
    resumed = finetune.train(str(FAULTY), output_dir=str(runs[1]), resume=True, **options)
    assert any(f"logistic regression of {rows} rows" in n for n in resumed.manifest.data.notes)
    assert_identical(runs[1], runs[0])


# ---- unset rates, epochs and warm-up -------------------------------------------------------------

#: Learning rate, epochs and warm-up of 173 training rows in steps of 32 on a small model.
SMALL = (1e-4, 20.0, 0.1)


def schedule(recipe: finetune.TextRecipe, **options: Any) -> tuple[Any, ...]:
    """Return learning rate, epochs and warm-up of a trainer."""
    options |= dict(precision="fp32", disable_tqdm=True, output_dir="unused")
    arguments = recipe.trainer(**options).args
    return arguments.learning_rate, arguments.num_train_epochs, arguments.warmup_steps


@pytest.mark.contract("G5")
def test_unset_rates_follow_rows_and_model(reviews: Path, bert: Path) -> None:
    """What is typed stays; an adapter has ten times the rate; more steps an epoch, fewer epochs."""

    def text(**options: Any) -> Text:
        return Text(dataset=str(reviews), model=str(bert), max_length=64, **options)

    assert schedule(text()) == SMALL
    assert schedule(text(), learning_rate=None) == SMALL
    assert schedule(text(), learning_rate=5e-4) == (5e-4, *SMALL[1:])
    assert schedule(text(), num_train_epochs=2, warmup_steps=0) == (1e-4, 2, 0)
    assert schedule(text(adapter="lora"))[0] == pytest.approx(1e-3)
    assert schedule(text(freeze="base"))[0] == pytest.approx(1e-3)
    assert schedule(text(), global_batch_size=16)[1] == 11  # (100 + 5 * 2) * 16 / 173
    assert schedule(text(), per_device_train_batch_size=8)[1] == 6
    assert schedule(text(), global_batch_size=2)[1] == 3


@pytest.mark.contract("G5")
def test_the_rate_is_halved_where_the_head_reads_the_mean(
    reviews: Path, bert: Path, pretrained_bert: Path, single_label_run: finetune.Run
) -> None:
    """Not where no layer is added: the base has random weights, or a head for these labels."""

    def text(model: Path, **options: Any) -> Text:
        return Text(dataset=str(reviews), model=str(model), max_length=64, **options)

    assert schedule(text(pretrained_bert))[0] == pytest.approx(5e-5)
    assert schedule(text(pretrained_bert, head="probe"))[0] == pytest.approx(1e-4)
    for model in (bert, single_label_run.path):
        recipe = text(model, head="mean")
        assert schedule(recipe)[0] == pytest.approx(1e-4)
        assert recipe.resolved_options()["head"] == "probe"
        assert any(note.startswith("--head mean adds no layer") for note in recipe.notes)


@pytest.mark.contract("G5")
def test_the_head_reads_the_mean_for_every_task_with_few_rows(
    reviews: Path, pretrained_bert: Path
) -> None:
    """Not for numbers of pairs, nor for the words of a text: each is read by itself."""
    frame = pd.read_csv(reviews)
    texts = frame["text"]
    columns = {
        "multi_label": [[label, "all"] for label in frame["label"]],
        "regression": texts.str.len() / 7,
        "ordinal": texts.str.len() % 3,
    }
    for task, labels in columns.items():
        rows = pd.DataFrame({"text": texts, "label": labels})
        recipe = Text(dataset=rows, model=str(pretrained_bert), max_length=64, task=task)
        assert schedule(recipe)[0] == pytest.approx(5e-5), task
        assert recipe.resolved_options()["head"] == "mean", task
        rows["other"] = "another text"
        pairs = Text(dataset=rows, model=str(pretrained_bert), text_columns="text,other", task=task)
        head = "probe" if task == "regression" else "mean"  # numbers compare the two
        assert pairs.resolved_options()["head"] == head, task
    words = pd.DataFrame({"tokens": texts.str.split(), "tags": texts.str.split()})
    words["tags"] = words["tags"].map(lambda tokens: ["B-FIRST"] + ["O"] * (len(tokens) - 1))
    recipe = Tokens(dataset=words, model=str(pretrained_bert), max_length=64)
    assert schedule(recipe)[0] == pytest.approx(3e-4)
    assert recipe.resolved_options()["head"] == "probe"


@pytest.mark.contract("D2", "G5")
def test_the_advised_step_is_that_of_few_rows(
    reviews: Path, bert: Path, cli: Callable[..., Finished]
) -> None:
    """A step that does not divide is refused before the data is read, unless rows decide it."""
    words = flags(dataset=reviews, model=bert, gradient_accumulation_steps=3, train_samples=60)
    cli("text", *words, "--dry_run").refused("--global_batch_size 8 cannot", "give 6 or 9")
    cli("text", *words, "--dry_run", "--global_batch_size", 32).refused("give 30 or 33")


@pytest.mark.contract("G5", "D2")
def test_few_rows_make_small_steps(reviews: Path, bert: Path) -> None:
    """A default step of 32 rows would leave an epoch of them without a step."""

    def length(rows: int, **typed: Any) -> tuple[int, int]:
        recipe = Text(dataset=str(reviews), model=str(bert), max_length=64, train_samples=rows)
        typed |= dict(precision="fp32", disable_tqdm=True, output_dir="unused")
        arguments = recipe.trainer(**typed).args
        assert len(recipe.prepared["train"]) == rows
        return arguments.global_batch_size, arguments.num_train_epochs

    assert length(6) == (6, 50)
    assert length(20) == (8, 25)  # two steps an epoch
    assert length(90) == (8, 10)  # (100 + 5 * 2) * 8 / 90
    assert length(96) == (32, 20)
    assert length(90, global_batch_size=30) == (30, 20)
    assert length(90, per_device_train_batch_size=32) == (32, 25)


@pytest.mark.contract("G5")
def test_the_rates_of_a_recipe_are_for_its_own_model(
    reviews: Path, bert: Path, pretrained_bert: Path
) -> None:
    class Mine(finetune.TextRecipe):
        dataset: str = str(reviews)
        model: str = str(bert)
        training = dict(global_batch_size=32, learning_rate=3e-3, num_train_epochs=2)

    assert schedule(Mine()) == (3e-3, 2, 0)
    assert schedule(Mine(model=str(pretrained_bert))) == (5e-5, *SMALL[1:])


@pytest.mark.contract("G5", "A7")
def test_unset_rates_are_printed_with_the_reason(
    reviews: Path, bert: Path, tmp_path: Path, cli: Callable[..., Finished]
) -> None:
    words = flags(dataset=reviews, model=bert, output_dir=tmp_path / "run", max_length=64)
    output = cli("text", *words, "--dry_run").succeeded().output
    assert (
        "learning_rate 0.0001, num_train_epochs 20, warmup_steps 0.1: chosen for 173 rows" in output
    )
    typed = cli("text", *words, "--dry_run", "--learning_rate", "0.002").succeeded().output
    assert "num_train_epochs 20, warmup_steps 0.1: chosen for 173 rows" in typed
    assert "learning_rate 0.0001" not in typed


@pytest.mark.contract("G5", "D6")
def test_a_resume_keeps_the_rates(
    reviews: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other rows a step would give other epochs; the resumed run has those of its start."""
    recipe = tmp_path / "unset.py"
    recipe.write_text(
        "from tests.acceptance.faulty import Faulty\n"
        "class Unset(Faulty):\n"
        "    training = dict(learning_rate=None, num_train_epochs=None, global_batch_size=16,"
        " save_steps=60, eval_steps=60)\n",
        encoding="utf-8",
    )
    options: dict[str, Any] = dict(dataset=str(reviews), model=str(bert), max_length=64)
    options |= dict(output_dir=str(tmp_path / "run"), label_column="label")
    monkeypatch.setenv("FAULT", "step 61,raise")
    with pytest.raises(ValueError, match="broken at step 61"):
        finetune.train(str(recipe), **options)
    started = finetune.Run.load(tmp_path / "run").manifest.arguments
    monkeypatch.delenv("FAULT")
    changes = dict(resume=True, global_batch_size=8, allow_changed="global_batch_size")
    changes |= dict(gradient_accumulation_steps=1)
    run = finetune.train(str(recipe), **options, **changes)
    for name in ("learning_rate", "num_train_epochs", "warmup_steps"):
        assert run.manifest.arguments[name] == started[name]
    sentence = "learning_rate 0.0001, num_train_epochs 11.0, warmup_steps 0.1"
    assert any(sentence in note for note in run.manifest.data.notes)


@pytest.mark.contract("G5", "D6")
def test_a_constant_rate_resumes_without_a_warm_up(
    reviews: Path, bert: Path, tmp_path: Path
) -> None:
    """The stored warm-up has no effect; typed in the command, it is refused."""
    options: dict[str, Any] = dict(dataset=str(reviews), model=str(bert), max_length=16)
    options |= dict(output_dir=str(tmp_path / "run"), lr_scheduler_type="constant")
    options |= dict(train_samples=64, save_strategy="steps", save_steps=10, baseline=False)
    options |= dict(global_batch_size=8, disable_tqdm=True, head="random")
    finetune.train("text", **options, max_steps=10)
    run = finetune.train("text", **options, max_steps=11, resume_from_checkpoint="last")
    assert run.manifest.steps == 11
    with pytest.raises(finetune.UserError, match="--warmup_steps has no effect"):
        finetune.train("text", **options, max_steps=10, warmup_steps=0.1)


@pytest.mark.contract("G5")
@pytest.mark.parametrize("labels", ["a" * 6 + "b", "a" * 60 + "b" * 2 + "c"])
def test_a_rare_class_is_no_obstacle(labels: str, pretrained_bert: Path, tmp_path: Path) -> None:
    """With one or two rows of a class the head is fitted or stays random, and the rest works."""
    frame = pd.DataFrame({"text": [f"row {number}" for number in range(len(labels))]})
    frame["label"] = list(labels)
    frame.to_csv(tmp_path / "train.csv", index=False)
    frame.assign(text=frame["text"] + " again").to_csv(tmp_path / "validation.csv", index=False)
    frame.assign(text=frame["text"] + " tested").to_csv(tmp_path / "test.csv", index=False)
    recipe = Text(dataset=str(tmp_path), model=str(pretrained_bert), max_length=64)
    options = dict(precision="fp32", disable_tqdm=True, output_dir="unused")
    recipe.trainer(num_train_epochs=20, **options)
    assert any(note.startswith("head: ") for note in recipe.notes)


@pytest.mark.contract("G5")
def test_a_head_whose_inputs_say_nothing_stays_random(
    pretrained_bert: Path, tmp_path: Path
) -> None:
    frame = pd.DataFrame({"text": [f"row {number}" for number in range(120)]})
    frame["label"] = np.random.default_rng(0).choice(["a", "b"], len(frame))
    frame.to_csv(tmp_path / "rows.csv", index=False)
    options = dict(model=str(pretrained_bert), head="probe", max_length=64)
    recipe = Text(dataset=str(tmp_path / "rows.csv"), **options)
    recipe.trainer(precision="fp32", disable_tqdm=True, output_dir="unused")
    (note,) = (note for note in recipe.notes if note.startswith("head: "))
    assert "random weights, because logistic regression" in note


@pytest.mark.contract("G5", "G6")
def test_a_head_whose_inputs_hardly_differ_stays_random(reviews: Path) -> None:
    """A linear model of them would have very large weights, and the layer such gradients."""
    options: dict[str, Any] = dict(model="embedded:minilm", layers=1, head="probe", max_length=64)
    recipe = Text(dataset=str(reviews), **options)
    trainer = recipe.trainer(precision="fp32", disable_tqdm=True, output_dir="unused")
    (note,) = (note for note in recipe.notes if note.startswith("head: "))
    assert "random weights, because the inputs of the last layer hardly differ" in note
    model: Any = trainer.model
    assert model.classifier.weight.norm(dim=1).max() < 1


@pytest.mark.contract("G5")
def test_few_rows_keep_the_last_epoch(reviews: Path, bert: Path) -> None:
    """Unless the user chooses."""

    def keeps_best(**options: Any) -> bool:
        recipe = Text(dataset=str(reviews), model=str(bert), max_length=64)
        options |= dict(precision="fp32", disable_tqdm=True, output_dir="unused")
        return bool(recipe.trainer(**options).args.load_best_model_at_end)

    assert not keeps_best()
    assert keeps_best(load_best_model_at_end=True)
    assert keeps_best(metric_for_best_model="loss")
    assert keeps_best(early_stopping_patience=2)
    assert keeps_best(num_train_epochs=2)


@pytest.mark.contract("G5")
def test_what_takes_the_final_epochs_away(
    reviews: Path, bert: Path, cli: Callable[..., Finished]
) -> None:
    """A typed value that is the default does not; a schedule that needs evaluations does."""

    def has_final_epochs(**options: Any) -> bool:
        words = flags(dataset=reviews, model=bert, max_length=64, **options)
        return "final_epochs 3: " in cli("text", *words, "--dry_run").succeeded().output

    assert has_final_epochs()
    assert has_final_epochs(load_best_model_at_end="false")
    assert not has_final_epochs(load_best_model_at_end="true")
    assert not has_final_epochs(lr_scheduler_type="reduce_lr_on_plateau")
    words = flags(dataset=reviews, model=bert, final_epochs=1, lr_scheduler_type="greedy")
    cli("text", *words, "--dry_run").refused("--final_epochs 1: greedy needs evaluations")


@pytest.mark.contract("G5", "D5", "E5")
def test_few_rows_end_with_the_validation_rows(reviews: Path, bert: Path, tmp_path: Path) -> None:
    """They are scored before. A run that was killed after its last checkpoint ends the same."""
    options: dict[str, Any] = dict(dataset=str(reviews), model=str(bert), max_length=64)
    options |= dict(global_batch_size=64, precision="fp32", disable_tqdm=True, learning_rate=1e-4)
    default = finetune.train("text", **options, output_dir=str(tmp_path / "default"))
    without = finetune.train("text", **options, output_dir=str(tmp_path / "0"), final_epochs=0)
    assert any(note.startswith("final_epochs 3: ") for note in default.manifest.data.notes)
    assert not any("final_epochs" in note for note in without.manifest.data.notes)
    assert default.metrics.validation == without.metrics.validation
    rows = tmp_path / "validation.csv"
    frame = default.recipe().splits["validation"].to_pandas()[["text", "label"]]
    frame["label"] = [default.labels[label] for label in frame["label"]]
    frame.to_csv(rows, index=False)
    count = len(pd.read_csv(rows))
    before, after = (finetune.evaluate(run, data=str(rows)) for run in (without, default))
    assert (before.rows_trained_on, after.rows_trained_on) == (0, count)
    assert before.metrics["loss"] == pytest.approx(without.metrics.validation["loss"], rel=1e-5)
    assert after.metrics["loss"] < before.metrics["loss"] - 1e-4
    for run, names in ((without, ["train"]), (default, ["train", "validation"])):
        parts = [run.recipe().splits[name].to_pandas() for name in names]
        training, tested = pd.concat(parts), run.predictions
        terms, test_terms = bag_of_words(training["text"].tolist(), tested["text"].tolist())
        model = LogisticRegression(C=10, max_iter=1000).fit(terms, training["label"])
        predicted = [run.labels[number] for number in model.predict(test_terms)]
        expected = (tested["label"] == predicted).mean()  # another one in each run
        assert run.metrics.baseline["TF-IDF + logistic regression"]["accuracy"] == expected
    shutil.copytree(default.path, tmp_path / "killed")
    finetune.Run.load(tmp_path / "killed").update(status="running")
    for name in ("metrics.json", "model.safetensors"):
        (tmp_path / "killed" / name).unlink()
    finetune.train("text", **options, output_dir=str(tmp_path / "killed"), resume=True)
    assert_identical(tmp_path / "killed", default.path)
    options |= dict(final_epochs=0, allow_changed="final_epochs", resume=True, refit=True)
    with user_error("--refit: default was trained on its validation rows"):
        finetune.train("text", **options, output_dir=str(default.path))
    assert not (default.path / "refit").exists()


@pytest.mark.contract("G5")
@pytest.mark.trains
def test_a_warm_up_in_steps_is_shorter_in_the_final_epochs(
    reviews: Path, bert: Path, tmp_path: Path
) -> None:
    """It is the same share of these steps: the rate would hardly rise in so few."""
    rates: dict[int, list[float]] = {}

    def collect(event: Any) -> None:
        values = getattr(event, "values", {})
        if "learning_rate" in values:
            rates.setdefault(event.max_steps, []).append(values["learning_rate"])

    options: dict[str, Any] = dict(dataset=str(reviews), model=str(bert), max_length=64)
    options |= dict(learning_rate=1e-4, warmup_steps=20, max_steps=24, final_epochs=1)
    options |= dict(precision="fp32", logging_steps=1, baseline=False, disable_tqdm=True)
    finetune.train("text", **options, progress=collect, output_dir=str(tmp_path / "run"))
    main = rates.pop(24)
    (final,) = rates.values()
    assert max(main) == pytest.approx(1e-4)
    assert max(final) > 0.7e-4


@pytest.mark.contract("G5", "E3")
def test_baselines_have_thresholds_of_rows_that_they_were_not_fitted_to(
    bert: Path, tmp_path: Path
) -> None:
    """With final epochs, too: they are the same as without."""
    rows = data.write_tags(tmp_path / "tags.jsonl")
    options: dict[str, Any] = dict(dataset=str(rows), label_column="labels", model=str(bert))
    options |= dict(max_length=32, num_train_epochs=1, precision="fp32", disable_tqdm=True)
    runs = []
    for count in (0, 1):
        directory = str(tmp_path / str(count))
        runs.append(finetune.train("text", **options, final_epochs=count, output_dir=directory))
    without, final = runs
    assert without.metrics.baseline == final.metrics.baseline
    notes = [run.manifest.data.notes for run in runs]
    assert ["baselines are fitted" in "".join(lines) for lines in notes] == [False, True]


@pytest.mark.contract("G5")
def test_validation_rows_of_the_user_are_not_trained_on(
    reviews: Path, bert: Path, tmp_path: Path
) -> None:
    """Nor where the user sets the length of the training."""

    def final_epochs(dataset: Path, **typed: Any) -> float | None:
        recipe = Text(dataset=str(dataset), model=str(bert), max_length=64)
        typed |= dict(precision="fp32", disable_tqdm=True, output_dir="unused")
        value: float | None = recipe.trainer(**typed).args.final_epochs
        return value

    assert final_epochs(reviews) == 3
    assert not final_epochs(reviews, num_train_epochs=2)
    assert not final_epochs(reviews, max_steps=2)
    assert not final_epochs(reviews, load_best_model_at_end=True)
    with pytest.raises(finetune.UserError, match="final_epochs: a trainer does not have it"):
        final_epochs(reviews, final_epochs=2)
    frame = pd.read_csv(reviews)
    (tmp_path / "splits").mkdir()
    frame.iloc[20:].to_csv(tmp_path / "splits" / "train.csv", index=False)
    frame.iloc[:20].to_csv(tmp_path / "splits" / "validation.csv", index=False)
    assert not final_epochs(tmp_path / "splits")


@pytest.mark.contract("G5", "D6")
def test_a_finished_run_of_few_rows_takes_more_epochs(
    reviews: Path, bert: Path, tmp_path: Path
) -> None:
    """It still saves the model of the last epoch."""
    options: dict[str, Any] = dict(dataset=str(reviews), model=str(bert), max_length=64)
    options |= dict(output_dir=str(tmp_path / "run"), global_batch_size=64, precision="fp32")
    options |= dict(baseline=False, disable_tqdm=True)
    assert finetune.train("text", **options).manifest.steps == 25 * 2
    exported = tmp_path / "run" / "export"
    exported.mkdir()
    changed = options | dict(resume=True, learning_rate=3e-3, final_epochs=0, refit=True)
    changed |= dict(allow_changed="learning_rate,final_epochs")
    with user_error("--refit: the run is finished, and its refit has the same learning_rate"):
        finetune.train("text", **changed)
    assert exported.exists()
    said: list[str] = []
    changed = options | dict(resume=True, learning_rate=3e-3, allow_changed="learning_rate")
    finetune.train("text", **changed, progress=lambda event: said.append(str(event)))
    (sentence,) = [text for text in said if "learning_rate: 0.003 instead of" in text]
    assert sentence.endswith("; the run is finished and stays as it is")
    run = finetune.train("text", **options, resume=True, num_train_epochs=26)
    assert (run.manifest.steps, run.manifest.best_step) == (26 * 2, None)
    assert not exported.exists()  # of an earlier model
    assert (tmp_path / "run" / "export.1").exists()


@pytest.mark.contract("G5")
@pytest.mark.parametrize("typed", [dict(save_strategy="no"), dict(eval_strategy="no")])
def test_many_rows_are_not_called_few(
    typed: dict[str, Any], bert: Path, tmp_path: Path, cli: Callable[..., Finished]
) -> None:
    """Without checkpoints the last model is saved, for another reason than the rows."""
    rows = pd.DataFrame({"text": [f"row {number}" for number in range(1500)]})
    rows.assign(label=["a", "b"] * 750).to_csv(tmp_path / "rows.csv", index=False)
    words = flags(dataset=tmp_path / "rows.csv", model=bert, max_length=64, **typed)
    output = cli("text", *words, "--dry_run").succeeded().output
    assert "num_train_epochs 4" in output
    assert "too few to choose" not in output
