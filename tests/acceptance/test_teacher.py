"""A model learns from a teacher, from rows without a label and from soft labels (row G6).

Losses are compared with formulas on the saved model of the teacher, which `transformers` loads.
`test_training.py` has the cases of D1.
"""

# ruff: noqa: F401, F811

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from torch.distributions import Bernoulli, Categorical, kl_divergence
from torch.nn import functional

import finetune
from finetune import Run
from recipes.image import Image
from recipes.text import Text
from tests.acceptance import data, native_loop
from tests.acceptance.conftest import TRAINING, Finished, flags, user_error
from tests.acceptance.test_training import Train, assert_identical, faulty, train, typed_again

pytestmark = pytest.mark.usefixtures("one_thread")
Cli = Callable[..., Finished]
WEIGHT, TEMPERATURE, BATCH = 0.3, 3.0, 24


def first_batch(recipe: Any, rows: range) -> tuple[float, torch.Tensor]:
    """Return the loss of some of the rows that a recipe trains on, and logits of a new model."""
    torch.manual_seed(0)
    parts = recipe.trainer_kwargs()
    taken = parts["train_dataset"].select(rows)
    logits, labels = outputs_and_labels(parts["model"], taken, parts["data_collator"])
    return float(parts["compute_loss_func"]({"logits": logits}, labels)), logits


def first_step(
    recipe: Any, rows: range, directory: Path, options: dict[str, Any]
) -> tuple[float, torch.Tensor]:
    """Return the logged loss of a step on some of the rows that a recipe trains on, and the logits
    before it.
    """
    options = {**SGD, "max_steps": 1, "global_batch_size": len(rows), **options}
    trainer = recipe.trainer(output_dir=str(directory), precision="fp32", **options)
    trainer.train_dataset = trainer.train_dataset.select(rows)
    logits, _ = outputs_and_labels(trainer.model, trainer.train_dataset, trainer.data_collator)
    trainer.train()
    return trainer.state.log_history[0]["loss"], logits


def outputs_and_labels(model: Any, rows: Any, collate: Any) -> tuple[torch.Tensor, torch.Tensor]:
    names = {"input_ids", "attention_mask", "token_type_ids", "image", "labels", "label"}
    batch = collate(list(rows.select_columns(sorted(names & set(rows.column_names)))))
    labels = batch.pop("labels")
    with torch.no_grad():
        logits = model.eval()(**batch)["logits"]
    assert logits.std() > 0
    return logits, labels


def outputs_of(run: Run, texts: list[str]) -> torch.Tensor:
    """Return the outputs of a saved model, without the thresholds that are part of its bias."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(run.path).eval()
    outputs = native_loop.logits(model, run.path, texts, TRAINING["max_length"])
    if thresholds := run.statistics.thresholds:
        outputs = outputs + torch.logit(torch.tensor([thresholds[name] for name in run.labels]))
    return outputs


def label_losses(run: Run, logits: torch.Tensor, labels: list[Any]) -> torch.Tensor:
    """Return the loss of each row without a teacher."""
    if run.manifest.task == "single_label":
        return functional.cross_entropy(logits, torch.tensor(labels), reduction="none")
    if run.manifest.task == "ordinal":
        distances = (torch.arange(3) - torch.tensor(labels)[:, None]).abs()
        soft = (-distances.float()).softmax(dim=-1)
        return functional.cross_entropy(logits, soft, reduction="none")
    if run.manifest.task == "multi_label":
        indicators = torch.tensor([[float(n in row) for n in range(3)] for row in labels])
        losses = functional.binary_cross_entropy_with_logits(logits, indicators, reduction="none")
        return losses.mean(dim=-1)
    return squares(run, logits, torch.tensor(labels))


def teacher_losses(run: Run, logits: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """Return how much the outputs of each row differ from those of the teacher."""
    if run.manifest.task == "regression":
        return squares(run, logits, outputs)
    kind: Any = Bernoulli if run.manifest.task == "multi_label" else Categorical
    models = [kind(logits=values / TEMPERATURE) for values in (outputs, logits)]
    losses: torch.Tensor = TEMPERATURE**2 * kl_divergence(*models)
    return losses.mean(dim=-1) if losses.dim() == 2 else losses


def squares(run: Run, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    deviation = torch.tensor(run.manifest.task_facts["deviation"])
    return (((outputs - targets) / deviation) ** 2).mean(dim=-1)


SGD: dict[str, Any] = dict(
    optim="sgd", learning_rate=0.1, warmup_steps=0, max_steps=4, logging_steps=1,
    weight_decay=0.0, max_grad_norm=0.0, train_sampling_strategy="sequential",
    eval_strategy="no", save_strategy="no", load_best_model_at_end=False, disable_tqdm=True,
)  # fmt: skip
TASKS: dict[str, dict[str, Any]] = {
    "single_label_run": dict(teacher_temperature=TEMPERATURE),
    "ordinal_run": dict(
        task="ordinal", label_order="bad,mixed,good", loss_function="soft",
        teacher_temperature=TEMPERATURE,
    ),
    "multi_label_run": dict(label_column="labels", teacher_temperature=TEMPERATURE),
    "regression_run": dict(label_columns="stars,price"),
}  # fmt: skip


@pytest.mark.contract("G6")
@pytest.mark.parametrize("run", TASKS, indirect=True)
def test_the_loss_of_a_row_is_that_of_its_label_and_of_the_teacher(
    run: Run, request: pytest.FixtureRequest
) -> None:
    """The last ten rows have no label: the teacher alone counts, and each row counts as one."""
    options = run.manifest.options
    texts = [f"the menu was {word} {n}" for n, word in enumerate(data.WORDS["good"] * 2)]
    recipe = Text(
        dataset=options["dataset"], model=options["model"], max_length=64, teacher=str(run.path),
        teacher_weight=WEIGHT, unlabelled=[{"text": text} for text in texts],
        **TASKS[request.node.callspec.params["run"]],
    )  # fmt: skip
    count = len(recipe.splits["train"])
    labelled = recipe.splits["train"].select(range(count - BATCH + 10, count))
    loss, logits = first_batch(recipe, range(count - BATCH + 10, count + 10))
    outputs = outputs_of(run, [*labelled["text"], *texts])
    assert bool(run.statistics.thresholds) == (run.manifest.task == "multi_label")
    losses = teacher_losses(run, logits, outputs)
    assert losses.mean() > 1e-3
    taught = label_losses(run, logits[:-10], labelled["label"][:])
    losses[:-10] = (1 - WEIGHT) * taught + WEIGHT * losses[:-10]
    assert loss == pytest.approx(float(losses.mean()), rel=1e-4)


#: Loss function, class weights and label smoothing of the loss of a label.
LOSSES: dict[str, tuple[str | None, str, float]] = {
    "focal": ("focal", "none", 0.0),
    "weights": (None, "bad=1,good=3", 0.0),
    "smoothing": (None, "none", 0.2),
    "all": ("focal", "bad=1,good=3", 0.2),
}


@pytest.mark.contract("B3", "G6")
@pytest.mark.parametrize("name", LOSSES)
def test_focal_loss_weights_and_smoothing_are_of_the_label_alone(
    single_label_run: Run, tmp_path: Path, name: str
) -> None:
    """The last ten rows have no label; the loss of a step is divided by its rows."""
    function, weights, smoothing = LOSSES[name]
    options = single_label_run.manifest.options
    texts = [f"the menu was {word} {n}" for n, word in enumerate(data.WORDS["good"] * 2)]
    recipe = Text(
        dataset=options["dataset"], model=options["model"], max_length=64,
        teacher=str(single_label_run.path), teacher_weight=WEIGHT, teacher_temperature=TEMPERATURE,
        unlabelled=[{"text": text} for text in texts], loss_function=function,
        class_weights=weights,
    )  # fmt: skip
    train = recipe.splits["train"]
    rows = range(len(train) - BATCH + 10, len(train) + 10)
    loss, logits = first_step(recipe, rows, tmp_path / "run", {"label_smoothing_factor": smoothing})
    labelled = train.select(rows[:-10])
    labels = labelled["label"][:]
    assert set(labels) == {0, 1}
    by_class = -logits[:-10].log_softmax(dim=-1)  # the loss of each row, were it of this class
    if function:
        by_class = (1 - logits[:-10].softmax(dim=-1)) ** 2 * by_class
    if weights != "none":
        counts = np.bincount(train["label"][:])
        by_class = by_class * torch.tensor([1.0, 3.0]) * float(len(train) / (counts @ [1, 3]))
    smoothed = (1 - smoothing) * functional.one_hot(torch.tensor(labels)) + smoothing / 2
    taught = (by_class * smoothed).sum(dim=-1)
    losses = teacher_losses(
        single_label_run, logits, outputs_of(single_label_run, [*labelled["text"], *texts])
    )
    losses[:-10] = (1 - WEIGHT) * taught + WEIGHT * losses[:-10]
    assert loss == pytest.approx(float(losses.mean()), rel=1e-4)
    plain = label_losses(single_label_run, logits[:-10], labels)
    assert float((taught - plain).abs().mean()) > 1e-3


@pytest.mark.contract("G6")
def test_several_teachers_are_averaged_and_labels_are_matched_by_name(
    single_label_run: Run, second_seed_run: Run, reviews: Path, bert: Path
) -> None:
    """The classes of the data have another order than those of the teachers."""
    teachers = [single_label_run, second_seed_run]
    reordered = type("Reordered", (Text,), {"label_names": ("good", "bad")})
    recipe = reordered(
        dataset=str(reviews), model=str(bert), max_length=64, teacher_temperature=TEMPERATURE,
        teacher=[str(run.path) for run in teachers], teacher_weight=WEIGHT,
    )  # fmt: skip
    assert recipe.labels == ["good", "bad"]
    loss, logits = first_batch(recipe, range(BATCH))
    rows = recipe.splits["train"].select(range(BATCH))
    texts = rows["text"][:]
    shares = [(outputs_of(run, texts) / TEMPERATURE).softmax(dim=-1) for run in teachers]
    assert not torch.allclose(shares[0], shares[1], atol=1e-3)
    mean = torch.stack(shares).mean(dim=0).flip(-1)
    losses = teacher_losses(single_label_run, logits, TEMPERATURE * mean.log())
    taught = label_losses(single_label_run, logits, rows["label"][:])
    expected = ((1 - WEIGHT) * taught + WEIGHT * losses).mean()
    assert loss == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.contract("G6")
def test_images_have_a_teacher_too(image_run: Run, vit: Path) -> None:
    dataset = image_run.manifest.options["dataset"]
    recipe = Image(
        dataset=dataset, model=str(vit), teacher=str(image_run.path), teacher_weight=1.0,
        teacher_temperature=TEMPERATURE, crop_scale=1.0, horizontal_flip=False,
    )  # fmt: skip
    loss, logits = first_batch(recipe, range(BATCH))
    files = recipe.splits["train"]["file"][:BATCH]
    answers = finetune.predict(
        image_run, pd.DataFrame({"file": [str(Path(dataset) / name) for name in files]}),
        all_probabilities=True,
    )  # fmt: skip
    names = [f"probability of {name}" for name in recipe.labels]
    outputs = torch.tensor(answers[names].to_numpy()).log().float()
    expected = teacher_losses(image_run, logits, outputs).mean()
    assert loss == pytest.approx(float(expected), rel=1e-3)


@pytest.mark.contract("G6")
@pytest.mark.parametrize(
    ("smoothing", "weights"), [(0.0, None), (0.2, None), (0.2, "bad=1,good=3")], ids=str
)
def test_soft_labels_are_learned_as_by_cross_entropy_with_probabilities(
    reviews: Path, bert: Path, tmp_path: Path, smoothing: float, weights: str | None
) -> None:
    """Votes become shares, the targets of the cross-entropy of torch."""
    votes = pd.read_csv(reviews)
    votes[["yes", "no"]] = 1 + np.random.default_rng(0).integers(0, 5, (len(votes), 2))
    votes.to_csv(tmp_path / "votes.csv", index=False)
    recipe = Text(
        dataset=str(tmp_path / "votes.csv"), model=str(bert), max_length=64,
        class_weights=weights or "none", label_probabilities={"good": "yes", "bad": "no"},
    )  # fmt: skip
    options = {**SGD, "label_smoothing_factor": smoothing, "global_batch_size": BATCH}
    trainer = recipe.trainer(output_dir=str(tmp_path / "run"), precision="fp32", **options)
    rows = recipe.prepared["train"].select(range(BATCH)).remove_columns(["length", "labels"])
    with torch.no_grad():
        logits = trainer.model.eval()(**trainer.data_collator(list(rows)))["logits"]
    cells = recipe.splits["train"].select(range(BATCH)).to_pandas()[["no", "yes"]]
    counts = torch.tensor(cells.to_numpy(dtype=np.float32))
    classes = None
    if weights:
        sizes = np.bincount(recipe.splits["train"]["label"][:])
        classes = torch.tensor([1.0, 3.0]) * float(sizes.sum() / (sizes @ [1, 3]))
    shares = counts / counts.sum(dim=1, keepdim=True)
    expected = functional.cross_entropy(logits, shares, classes, label_smoothing=smoothing)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(float(expected), rel=1e-5)
    rows = recipe.splits["train"].to_pandas()
    is_good = rows["label"] == recipe.labels.index("good")
    contrary = int((is_good & (rows["yes"] < rows["no"])).sum())
    contrary += int((~is_good & (rows["no"] < rows["yes"])).sum())
    (message,) = (f.message for f in recipe.report.findings if "fewer votes" in f.message)
    assert message == f"{contrary} of 173 train rows whose label has fewer votes than another one"


@pytest.mark.contract("A11", "G6")
def test_the_stock_trainer_learns_from_a_teacher_as_ours_does(
    single_label_run: Run, spare: Path, reviews: Path, bert: Path, tmp_path: Path
) -> None:
    """Everything that the loss needs is in the labels; the stock one takes two micro-batches."""
    recipe = Text(
        dataset=str(reviews), model=str(bert), max_length=64, unlabelled=str(spare),
        teacher=str(single_label_run.path),
    )  # fmt: skip
    ours = str(tmp_path / "ours")
    trainer = recipe.trainer(output_dir=ours, precision="fp32", global_batch_size=BATCH, **SGD)
    parts = recipe.trainer_kwargs()
    parts["model"].load_state_dict(trainer.model.state_dict())
    trainer.train()
    sizes = dict(per_device_train_batch_size=BATCH // 2, gradient_accumulation_steps=2)
    arguments = transformers.TrainingArguments(
        str(tmp_path / "stock"), use_cpu=True, report_to="none", **sizes, **SGD
    )
    stock = transformers.Trainer(args=arguments, **parts)
    stock.train()
    history = [
        [entry["loss"] for entry in one.state.log_history if "loss" in entry]
        for one in (trainer, stock)
    ]
    assert history[0] == pytest.approx(history[1], rel=1e-5)
    assert len(set(history[0])) == SGD["max_steps"]


@pytest.mark.contract("C6", "E5", "G6")
def test_unlabelled_rows_are_trained_on_and_nothing_else_knows_them(
    single_label_run: Run, reviews: Path, bert: Path, tmp_path: Path, cli: Cli
) -> None:
    """Rows of each split are dropped and counted; baselines are those without a teacher."""
    run = single_label_run
    tested = run.predictions["text"].tolist()
    others = [text for text in pd.read_csv(reviews)["text"] if text not in tested]
    texts = [text for text, _ in data.labelled_sentences(30, seed=5)]
    repeated = [f"{text} " for text in tested[:4]] + others + texts[:1]
    extra = pd.DataFrame({"text": texts + repeated, "label": "ugly"})
    extra.to_json(tmp_path / "extra.jsonl", orient="records", lines=True)
    words = flags(**{**TRAINING, "disable_tqdm": "true"}, dataset=reviews, model=bert)
    words += ["--teacher", run.path, "--unlabelled", tmp_path / "extra.jsonl"]
    words += ["--output_dir", tmp_path / "student", "--num_train_epochs", 1]
    output = cli("text", *words).succeeded().output
    for sentence in (
        "4 of 227 unlabelled rows that are also in the test data",
        "19 of 227 unlabelled rows that are also in the validation data",
        "173 of 227 unlabelled rows that are also in the train data",
        "1 of 227 unlabelled rows that are exact duplicates",
        f"the answers of {run.path.name} have weight 0.5, and 1 in 30 unlabelled rows",
    ):
        assert sentence in output
    assert "other rows or splits" not in output
    student = Run.load(tmp_path / "student")
    rows = {"train": 173, "validation": 19, "test": 48, "unlabelled": 30}
    assert student.manifest.data.rows == rows
    assert student.manifest.steps == (173 + 30) // TRAINING["global_batch_size"]
    assert student.predictions["text"].tolist() == tested
    assert student.metrics.baseline == run.metrics.baseline
    card = (student.path / "README.md").read_text(encoding="utf-8")
    assert f"Teacher: {run.path.name}, weight 0.5, temperature 2" in card
    assert "30 unlabelled" in card
    assert str(run.path) not in card

    labelled = [(text, "good") for text in texts[:7]] + [("a new text", "bad")]
    data.write_csv(tmp_path / "new.csv", ["text", "label"], labelled)
    assert finetune.evaluate(student, str(tmp_path / "new.csv")).rows_trained_on == 7
    extra.head(20).to_json(tmp_path / "extra.jsonl", orient="records", lines=True)
    evaluation = finetune.evaluate(student, str(tmp_path / "new.csv"))
    assert evaluation.rows_trained_on is None
    assert "--unlabelled have changed since the training" in " ".join(evaluation.notes)
    # the model needs neither its teacher nor these texts any more
    (tmp_path / "extra.jsonl").unlink()
    evaluation = finetune.evaluate(student)
    assert evaluation.metrics["f1"] == pytest.approx(student.metrics.test["f1"])
    evaluation = finetune.evaluate(student, str(tmp_path / "new.csv"))
    assert evaluation.rows_trained_on is None
    assert "extra.jsonl" in " ".join(evaluation.notes)


@pytest.mark.contract("C8", "G6")
def test_unlabelled_rows_that_are_nearly_other_rows_are_dropped(
    single_label_run: Run, reviews: Path, bert: Path
) -> None:
    tested = single_label_run.predictions["text"].tolist()
    long = [text for text in tested if len(text.split()) > 20][:3]
    assert len(long) == 3
    new = "in the morning nobody could tell whether the old station was open or closed to us"
    texts = [f"{text}!" for text in long] + ["the soup was warm", new, f"{new} again"]
    recipe = Text(
        dataset=str(reviews), model=str(bert), max_length=64, drop_overlap="near",
        drop_duplicates="near", teacher=str(single_label_run.path),
        unlabelled=pd.DataFrame({"text": texts}),
    )  # fmt: skip
    assert len(recipe.trainer_kwargs()["train_dataset"]) == len(recipe.splits["train"]) + 2
    notes = " ".join(recipe.notes)
    assert "3 of 6 unlabelled rows that are nearly the same as a row of the test data" in notes
    assert "1 of 6 unlabelled rows that are nearly the same as another one" in notes


@pytest.mark.contract("G6")
def test_an_export_answers_as_its_run(
    exported: Run, spare: Path, reviews: Path, bert: Path
) -> None:

    def labels(teacher: Path) -> np.ndarray:
        recipe = Text(
            dataset=str(reviews), model=str(bert), max_length=64, unlabelled=str(spare),
            teacher=str(teacher), teacher_temperature=TEMPERATURE,
        )  # fmt: skip
        rows = recipe.trainer_kwargs()["train_dataset"]
        return np.array(rows.with_format("numpy")["labels"][:])

    by_run, by_export = labels(exported.path), labels(exported.path / "export")
    assert by_run.shape == (173 + 40, 1 + 1 + 2)  # class, weight of the teacher, its answers
    assert by_run[:, 1].tolist() == [0.5] * 173 + [1.0] * 40
    np.testing.assert_allclose(by_run, by_export, atol=1e-4)
    options = dict(dataset=str(reviews), model=str(bert), teacher=str(exported.path / "export"))
    findings = " ".join(finding.message for finding in finetune.check("text", **options).findings)
    assert "is an export, which does not say what it was trained on" in findings
    assert len(np.unique(by_run[:, 2].round(4))) > 50


@pytest.mark.contract("D5", "D6", "G6")
def test_a_training_with_a_teacher_resumes_to_the_bit(
    single_label_run: Run, second_seed_run: Run, spare: Path, train: Train, cli: Cli, tmp_path: Path
) -> None:
    """Also from the final epochs; another teacher and other unlabelled rows are refused."""
    words = ["--teacher", single_label_run.path, "--unlabelled", spare, "--max_length", 64]
    words += ["--final_epochs", 1, "--num_train_epochs", 1]
    whole = train(tmp_path / "whole", *words).succeeded()
    assert f"training and validation rows, {144 + 40 + 40} in all" in whole.output
    assert "was trained on other rows or splits" in whole.output
    again = train(tmp_path / "next", "--teacher", tmp_path / "whole", "--dry_run").succeeded()
    assert "teacher whole was trained on the validation rows, too" in again.output
    stopped = train(tmp_path / "an early stop", *words, fault="preparation,SIGTERM")
    command = stopped.stderr.partition("; to start again: python -m finetune ")[2]
    assert shlex.split(command)[-len(words) :] == list(map(str, words))
    steps = Run.load(tmp_path / "whole").manifest.steps
    assert steps == (144 + 40) // 16
    for step in (5, steps + 2):
        run = tmp_path / f"stopped at {step}"
        stopped = train(run, *words, fault=f"step {step},SIGTERM")
        assert stopped.status == 75
        if step == 5:
            other = ["--teacher", second_seed_run.path]
            train(run, *words, *other, "--resume").refused("was trained with teacher")
            (tmp_path / "other.csv").write_text("text\nanother text\n", encoding="utf-8")
            other = ["--unlabelled", tmp_path / "other.csv"]
            train(run, *words, *other, "--resume").refused("was trained with unlabelled")
        cli(*typed_again(stopped)).succeeded()
        assert_identical(run, tmp_path / "whole")


@pytest.mark.contract("D5", "D6", "G6")
def test_soft_labels_and_fewer_layers_resume_to_the_bit(
    train: Train, faulty: dict[str, str], cli: Cli, tmp_path: Path
) -> None:
    """Other votes are refused, which are no part of the fingerprint of the data."""
    shutil.copytree(faulty["dataset"], tmp_path / "votes")
    file = tmp_path / "votes" / "train.csv"
    votes = pd.read_csv(file)
    votes[["yes", "no"]] = 1 + np.random.default_rng(0).integers(0, 5, (len(votes), 2))
    votes.to_csv(file, index=False)
    words = ["--dataset", tmp_path / "votes", "--label_probabilities", "good=yes,bad=no"]
    words += ["--layers", 1, "--max_steps", 6]
    train(tmp_path / "whole", *words).succeeded()
    run = tmp_path / "run"
    stopped = train(run, *words, fault="step 4,SIGTERM")
    assert stopped.status == 75
    votes.assign(yes=votes["yes"] + 1).to_csv(file, index=False)
    refused = train(run, *words, "--resume").refused("was trained with soft_labels")
    assert "with data" not in refused.stderr
    votes.to_csv(file, index=False)
    cli(*typed_again(stopped)).succeeded()
    assert_identical(run, tmp_path / "whole")
    assert Run.load(run).manifest.steps_before == 4
    assert transformers.AutoConfig.from_pretrained(run).num_hidden_layers == 1


@pytest.mark.contract("G6")
def test_answers_are_computed_once_and_only_a_missing_part_again(
    single_label_run: Run, bert: Path, tmp_path: Path
) -> None:
    """A part has the answers to the training rows, or to the rows without a label."""
    rows = data.labelled_sentences(60, seed=11)
    data.write_csv(tmp_path / "rows.csv", ["text", "label"], rows)
    options: dict[str, Any] = dict(
        dataset=str(tmp_path / "rows.csv"), model=str(bert), max_length=64,
        teacher=str(single_label_run.path), unlabelled=[{"text": "a line that only this test has"}],
    )  # fmt: skip
    folder = Path(datasets.config.HF_DATASETS_CACHE) / "finetune-teachers"
    earlier = set(folder.glob("*/*.npy"))

    def labels() -> np.ndarray:
        rows = Text(**options).trainer_kwargs()["train_dataset"]
        return np.array(rows.with_format("numpy")["labels"][:])

    with mock.patch.object(Run, "model", autospec=True, side_effect=Run.model) as load_model:
        first = labels()
        parts = sorted(set(folder.glob("*/*.npy")) - earlier, key=lambda path: path.stat().st_size)
        assert len(parts) == 2
        assert load_model.called
        load_model.reset_mock()
        np.testing.assert_array_equal(labels(), first)
        load_model.assert_not_called()
        written = parts[1].stat().st_mtime_ns
        parts[0].unlink()
        np.testing.assert_allclose(labels(), first, atol=1e-6)
        load_model.assert_called_once()
    assert parts[0].exists()
    assert parts[1].stat().st_mtime_ns == written


BOTH = dict(text_columns="text,other")
VOTES = dict(dataset="votes", label_probabilities="bad=minus,good=plus")
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no run": (dict(teacher="nowhere"), "nowhere is not the directory of a run"),
    "empty": (dict(teacher=""), "--teacher: expected a value, found an empty text"),
    "task": (dict(teacher="ordinal"), "the task 'single_label', found 'ordinal'"),
    "labels": (
        dict(teacher="single", label_map="bad=poor"),
        "the labels 'good', 'poor', found 'bad', 'good'",
    ),
    "columns": (dict(teacher="single", **BOTH), "the columns 'text', 'other', found 'text'"),
    "no teacher": (dict(unlabelled="spare"), "needs --teacher RUN"),
    "weight alone": (dict(teacher_weight=0.7), "--teacher_weight 0.7: needs --teacher RUN"),
    "weight": (dict(teacher="single", teacher_weight=0.0), "above 0, at most 1"),
    "temperature": (dict(teacher="single", teacher_temperature=0.0), "more than 0 and finite"),
    "numbers": (
        dict(
            teacher="regression", teacher_temperature=3.0, dataset="scores",
            label_columns="stars,price",
        ),
        "--teacher_temperature: the task regression has no probabilities",
    ),
    "sampling": (
        dict(teacher="single", class_sampling="balanced"),
        "--class_sampling balanced: not supported with --teacher",
    ),
    "directory": (dict(teacher="run"), "expected a path outside of --output_dir"),
    "texts": (dict(teacher="single", unlabelled="gaps"), "without a text in 'text': lines 3, 5"),
    "no column": (dict(teacher="single", unlabelled="names"), "no column 'text' in the unlabelled"),
    "no rows": (dict(teacher="single", unlabelled="reviews"), "--unlabelled: no rows are left"),
    "splits": (dict(teacher="single", unlabelled="folder"), "split, train; found train, test"),
    "test split": (dict(teacher="single", unlabelled="tested"), "tested: expected a file, a"),
    "no file": (dict(teacher="single", unlabelled="no.csv"), "--unlabelled: no such file"),
    "Hub": (dict(teacher="single", unlabelled="a/b"), "\n  --unlabelled FILE: your own files"),
    "damaged": (dict(teacher="damaged"), "--teacher {damaged} cannot be loaded"),
    "votes": (VOTES, "3 of 173 train rows whose probabilities or votes are negative, missing"),
    "vote column": ({**VOTES, "label_probabilities": "bad=a,good=plus"}, "no column 'a'"),
    "vote class": (
        {**VOTES, "label_probabilities": "bad=minus"}, "expected each class once, with a column"
    ),
    "votes and labels": (
        dict(dataset="tags", label_column="labels", label_probabilities="bad=text"),
        "--label_probabilities needs one class a row",
    ),
}  # fmt: skip


@pytest.mark.contract("F4", "G6")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_taught_is_refused(
    name: str, single_label_run: Run, ordinal_run: Run, regression_run: Run, multi_label_run: Run,
    reviews: Path, bert: Path, spare: Path, tmp_path: Path, cli: Cli,
) -> None:  # fmt: skip
    rows = pd.read_csv(reviews)
    rows.assign(other=rows["text"]).to_csv(tmp_path / "both.csv", index=False)
    votes = rows.assign(plus=1.5, minus="0.5")
    recipe = Text(dataset=str(reviews), model=str(bert))
    votes.loc[votes["text"].isin(recipe.splits["train"]["text"][:3]), "minus"] = ["-1", "", "many"]
    votes.to_csv(tmp_path / "votes.csv", index=False)
    data.write_csv(tmp_path / "gaps.csv", ["text", "n"], [("a", 1), ("", 2), ("b", 3), (" ", 4)])
    data.write_csv(tmp_path / "names.csv", ["title"], [("a",), ("b",)])
    (tmp_path / "folder").mkdir()
    for split in ("train", "test"):
        data.write_csv(tmp_path / "folder" / f"{split}.csv", ["text"], [("a",), ("b",)])
    (tmp_path / "tested").mkdir()
    shutil.copy(tmp_path / "folder" / "test.csv", tmp_path / "tested")
    shutil.copytree(single_label_run.path, tmp_path / "damaged")
    weights = tmp_path / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    paths: dict[str, Any] = dict(
        single=single_label_run.path, ordinal=ordinal_run.path, regression=regression_run.path,
        scores=regression_run.manifest.options["dataset"], spare=spare, reviews=reviews,
        tags=multi_label_run.manifest.options["dataset"],
    )  # fmt: skip
    paths |= {path.stem: path for path in tmp_path.glob("*.csv")}
    paths |= {name: tmp_path / name for name in ("folder", "run", "tested", "damaged")}
    if name == "directory":
        (tmp_path / "run").mkdir()
    changed, fragment = REFUSED[name]
    options = {"dataset": "both", "model": bert, "output_dir": tmp_path / "run", **changed}
    typed = {key: paths.get(str(value), value) for key, value in options.items()}
    fragment = fragment.replace("{damaged}", str(tmp_path / "damaged"))
    cli("text", *flags(**typed), "--precision", "fp32").refused(fragment)
    assert not list((tmp_path / "run").glob("*"))
