"""A run directory: what is written, that it is true, and that nothing in the way is lost."""

import dataclasses
import functools
import json
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, log_loss

import finetune
from finetune import Run, TextRecipe, UserError, cli
from finetune.runs import predictions
from finetune.runtime import lock
from finetune.statistics import baseline
from finetune.statistics.resampling import Budget
from finetune.training.directory import clear_way, occupy, refuse_foreign
from finetune.training.manifest import Launch, Process
from tests.runs import trained

pytestmark = pytest.mark.usefixtures("one_thread")
SECRET = "hf_ThisIsASecret0123456789"


class Reviews(TextRecipe):
    """Food, in three classes."""

    label_names = ("dish", "drink", "place")
    training = dict(
        global_batch_size=12,
        learning_rate=1e-2,
        num_train_epochs=4,
        precision="fp32",
        disable_tqdm=True,
    )
    hidden_dropout: float | None = 0.0
    attention_dropout: float | None = 0.0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """150 rows, three classes of unequal size, words that do not quite tell them apart."""
    adjectives = ("awful", "great", "lovely", "dull", "fine")
    lines = ["text,label"]
    for number in range(150):
        name = ("dish", "drink", "drink", "place", "drink")[number % 5]
        said = name if number % 3 else "food"
        lines.append(f"the {said} number {number} was {adjectives[number % 4]},{name}")
    path = tmp_path_factory.mktemp("data") / "food.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(data: Path, tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    output_dir = tmp_path_factory.mktemp("runs") / "food"
    return finetune.train(
        Reviews, dataset=str(data), model=tiny_model, output_dir=str(output_dir), logging_steps=12
    )


@pytest.fixture(scope="module")
def recipe(data: Path, tiny_model: str) -> Reviews:
    return Reviews(dataset=str(data), model=tiny_model)


def make_run(directory: Path, **facts: Any) -> Run:
    """A directory that holds a manifest and a checkpoint."""
    (directory / "checkpoint-3").mkdir(parents=True)
    dataclasses.replace(trained().manifest, **facts).write(directory)
    return Run(directory)


def scores(truth: Any, predicted: Any) -> dict[str, float]:
    """What the recipes report, by scikit-learn."""
    return {
        "accuracy": accuracy_score(truth, predicted),
        "f1": f1_score(truth, predicted, average="macro", labels=np.unique(truth)),
    }


# ---- what is in the directory --------------------------------------------------------------------


def test_the_files_of_a_run(run: Run) -> None:
    assert {path.name for path in run.path.iterdir()} == {
        *("run.json", "metrics.json", "predictions.parquet"),
        *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
        *("training_args.bin", "checkpoint-18", "checkpoint-27", "checkpoint-36"),
        *("report.html", "plots", "README.md", ".lock", "suspects.csv"),
    }


def test_run_json_says_what_made_the_run(run: Run, data: Path, tiny_model: str) -> None:
    manifest = run.manifest
    assert manifest["recipe"] == str(Path(__file__).resolve())
    assert manifest["status"] == "finished"
    assert manifest["options"]["dataset"] == str(data)
    assert manifest["options"]["model"] == tiny_model
    assert manifest["options"]["max_length"] == 512  # also those that nobody typed
    assert manifest["arguments"]["learning_rate"] == 1e-2
    assert manifest["arguments"]["global_batch_size"] == 12
    assert manifest["labels"] == run.labels == ["dish", "drink", "place"]
    assert manifest["data"]["source"] == f"{data} (local)"
    assert manifest["data"]["rows"] == {"train": 108, "validation": 12, "test": 30}
    assert len(manifest["data"]["fingerprint"]) == 16
    assert manifest.launch == Launch(
        parallel_mode="one device",
        world_size=1,
        machines=1,
        n_gpu=0,
        device="cpu",
        precision="fp32",
    )
    assert manifest["versions"]["torch"] == torch.__version__
    assert manifest["versions"]["finetune"] == finetune.__version__
    assert {"python", "transformers", "accelerate", "datasets"} <= manifest["versions"].keys()
    assert manifest["git_revision"] is None or len(manifest["git_revision"]) >= 12
    assert manifest["steps"] == 36
    evaluations = [entry for entry in manifest["history"] if "eval_f1" in entry]
    assert [entry["step"] for entry in evaluations] == [9, 18, 27, 36]
    assert manifest["best_step"] == max(evaluations, key=lambda entry: entry["eval_f1"])["step"]
    assert manifest["train_seconds"] > 0
    assert manifest["speed"]["rows_per_second"] > 0
    assert [entry["step"] for entry in manifest["history"] if "loss" in entry] == [12, 24, 36]


@pytest.mark.usefixtures("without_report")
def test_the_fingerprint_is_of_the_data_not_of_its_place(
    run: Run, data: Path, tiny_model: str, tmp_path: Path
) -> None:
    text = data.read_text(encoding="utf-8")
    copied, changed = tmp_path / "elsewhere.csv", tmp_path / "changed.csv"
    copied.write_text(text, encoding="utf-8")
    changed.write_text(text.replace("number 17 ", "number 1700 "), encoding="utf-8")
    found = {
        path: finetune.train(
            Reviews,
            dataset=str(path),
            model=tiny_model,
            max_steps=1,
            output_dir=str(tmp_path / path.stem),
        ).manifest["data"]["fingerprint"]
        for path in (copied, changed)
    }
    assert found[copied] == run.manifest["data"]["fingerprint"] != found[changed]


def test_metrics_json_is_of_validation_test_and_baselines(run: Run) -> None:
    metrics = json.loads((run.path / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["schema"] == 1
    assert metrics.pop("schema") == run.metrics.schema
    assert {name: set(scores) for name, scores in metrics.items()} == {
        "validation": {"loss", "accuracy", "f1"},
        "test": {"loss", "accuracy", "f1"},
        "baseline": {"majority class", "TF-IDF + logistic regression"},
        "statistics": {
            *("rows", "metrics", "classes", "confusion", "top_k", "calibration", "coverage"),
            *("beyond", "notes"),
        },
    }
    assert metrics["statistics"]["metrics"].keys() == {
        *("accuracy", "f1", "log_loss", "brier_score", "roc_area")
    }
    assert run.manifest["temperature"] > 0
    assert run.manifest["scoring"] == {"accuracy": {}, "f1": {"average": "macro"}}
    values = [*metrics["validation"].values(), *metrics["test"].values()]
    values += [value for scores in metrics["baseline"].values() for value in scores.values()]
    assert {type(value) for value in values} == {float}


# ---- that it is true -----------------------------------------------------------------------------


def test_predictions_are_of_the_test_rows_in_their_order(run: Run, recipe: Reviews) -> None:
    table, test = run.predictions, recipe.splits["test"]
    assert list(table.columns) == [
        *("id", "text", "tokens", "label", "prediction"),
        *("probability of dish", "probability of drink", "probability of place"),
    ]
    assert table["id"].tolist() == test["id"][:]
    assert table["text"].tolist() == test["text"][:]
    assert table["label"].tolist() == [run.labels[label] for label in test["label"]]
    # the id is the number of the row in the file
    lines = Path(recipe.dataset).read_text(encoding="utf-8").splitlines()[1:]
    read_back = [lines[number].rpartition(",") for number in table["id"]]
    assert [(text, label) for text, _, label in read_back] == list(
        zip(table["text"], table["label"], strict=True)
    )
    splits = {name: set(recipe.splits[name]["id"]) for name in ("train", "validation", "test")}
    assert sum(map(len, splits.values())) == len(set.union(*splits.values())) == 150


def test_the_prediction_is_the_most_probable_class(run: Run) -> None:
    table = run.predictions
    probabilities = table[[f"probability of {name}" for name in run.labels]].to_numpy()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-12)
    assert probabilities.min() > 0
    assert table["prediction"].tolist() == [run.labels[each] for each in probabilities.argmax(1)]


def test_the_metrics_can_be_computed_from_the_predictions(run: Run) -> None:
    table, metrics = run.predictions, run.metrics["test"]
    expected = scores(table["label"], table["prediction"])
    probabilities = table[[f"probability of {name}" for name in run.labels]].to_numpy()
    expected["loss"] = log_loss(table["label"], probabilities, labels=run.labels)
    assert metrics == pytest.approx(expected, rel=1e-6)
    assert table["prediction"].nunique() > 1  # or the order of the rows would not matter


def test_the_validation_metrics_are_those_of_the_model_that_was_kept(
    run: Run, recipe: Reviews, tmp_path: Path
) -> None:
    model = recipe.load_model(run.path, run.labels).eval()
    rows = recipe.prepared["validation"].remove_columns("length")
    batch = recipe.data_collator()(list(rows))
    labels = batch.pop("labels")
    with torch.no_grad():
        logits = model(**batch).logits
    found = scores(labels, logits.argmax(dim=1))
    found["loss"] = torch.nn.functional.cross_entropy(logits, labels).item()
    assert run.metrics["validation"] == pytest.approx(found, rel=1e-4)


def test_the_baselines_are_those_of_scikit_learn(run: Run, recipe: Reviews) -> None:
    train, test = (recipe.splits[name].to_pandas() for name in ("train", "test"))
    terms = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit(train["text"])
    classifier = LogisticRegression(C=10, max_iter=1000)
    classifier.fit(terms.transform(train["text"]), train["label"])
    predicted = {
        "majority class": np.full(len(test), train["label"].mode()[0]),
        "TF-IDF + logistic regression": classifier.predict(terms.transform(test["text"])),
    }
    found = run.metrics["baseline"]
    assert found.keys() == predicted.keys()
    for name, classes in predicted.items():
        assert found[name] == pytest.approx(scores(test["label"], classes)), name
    # 18 of 30 are drinks; macro F1 gives the other two classes their weight
    assert found["majority class"] == pytest.approx({"accuracy": 0.6, "f1": 0.25})
    assert 0.6 < found["TF-IDF + logistic regression"]["accuracy"] < 1


def test_of_very_many_rows_the_baseline_takes_a_seeded_draw(
    recipe: Reviews, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baseline, "MOST_ROWS", 40)

    def found(seed: int) -> dict[str, np.ndarray]:
        rows = recipe.splits, "text", seed, "these rows"
        return dict(recipe.kind.baselines(*rows, fit=True, note=pytest.fail))

    name = "TF-IDF + logistic regression (40 rows)"
    assert list(found(1)) == ["majority class", name]
    np.testing.assert_array_equal(found(1)[name], found(1)[name])


@pytest.mark.usefixtures("without_report")
def test_a_bag_of_words_is_fitted_once_and_only_if_it_is_wanted(
    recipe: Reviews, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outputs(identity: str, fit: bool = True) -> dict[str, np.ndarray]:
        rows = recipe.splits, "text", 1, identity
        return dict(recipe.kind.baselines(*rows, fit=fit, note=pytest.fail))

    first = outputs("once")
    monkeypatch.setattr(LogisticRegression, "fit", lambda *_: pytest.fail("fitted again"))
    again = outputs("once")
    assert first.keys() == again.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert list(outputs("others", fit=False)) == ["majority class"]
    with pytest.raises(pytest.fail.Exception, match="fitted again"):
        outputs("others")


@pytest.mark.parametrize("broken", ["the bag of words", "the metrics of a baseline"])
def test_a_baseline_that_fails_costs_nothing_else(
    broken: str,
    data: Path,
    tiny_model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It used to fail a run that was trained, without statistics or report."""

    def are_logarithms(outputs: np.ndarray) -> bool:
        return np.allclose(np.exp(outputs).sum(axis=1), 1)

    class Fussy(Reviews):
        """Refuses outputs of a baseline."""

        own_metrics = ("accuracy", "f1")

        def compute_metrics(self, prediction: Any) -> dict[str, float]:
            if broken == "the metrics of a baseline" and are_logarithms(prediction.predictions):
                raise ZeroDivisionError("of a baseline")
            return super().compute_metrics(prediction)

    def fail(*_: object) -> None:
        raise MemoryError("Unable to allocate 100. GiB")

    quick = functools.partial(Budget, seconds=0)  # 50 resamples
    monkeypatch.setattr("finetune.pipeline.assess.Budget", quick)
    if broken == "the bag of words":
        monkeypatch.setattr(LogisticRegression, "fit", fail)
    told: list[str] = []
    run = finetune.train(
        Fussy,
        dataset=str(data),
        model=tiny_model,
        max_steps=1,
        split_seed=7,  # a bag of words of the other splits is remembered
        output_dir=str(tmp_path / "run"),
        progress=lambda event: told.append(str(event)),
    )
    assert run.manifest.status == "finished"
    assert run.statistics.metrics["accuracy"]["low"] < run.statistics.metrics["accuracy"]["high"]
    said = ["MemoryError: Unable to allocate 100. GiB", "ZeroDivisionError: of a baseline"]
    expected = said[broken != "the bag of words"]
    # on a slow machine another note tells that the metrics of this recipe's own take too long
    notes = [note for note in run.statistics.notes if note.startswith("no baseline")]
    assert all(expected in note for note in notes)
    assert len(notes) == (1 if broken == "the bag of words" else 2)
    assert set(notes) <= set(told)
    assert set(run.metrics.baseline) == set(run.statistics.beyond)
    assert len(run.metrics.baseline) == (broken == "the bag of words")
    assert (run.path / "report.html").exists()


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize(
    ("training", "said"),
    [
        (dict(num_train_epochs=1), "9 optimizer steps: with fewer than 50"),
        (dict(num_train_epochs=5), "try --num_train_epochs 6"),
        (dict(max_steps=1), "1 optimizer step: with fewer than 50"),
        (dict(max_steps=49), "try --max_steps 50 or more"),
        (dict(num_train_epochs=6), None),
        (dict(max_steps=50), None),
    ],
)
def test_too_few_steps_are_told_before_the_training(
    training: dict[str, Any], said: str | None, data: Path, tiny_model: str, tmp_path: Path
) -> None:
    from finetune.config.settings import Settings
    from finetune.pipeline.preparation import prepare

    options = dict(dataset=str(data), model=tiny_model, output_dir=str(tmp_path / "run"))
    chosen = Settings.from_keywords(Reviews, {**options, **training})
    for _ in range(2):
        prepare(chosen)
    notes = [note for note in chosen.recipe.notes if "optimizer step" in note]
    assert len(notes) == (said is not None)
    if said is not None:
        assert said in notes[0]


def test_half_precision_logits_still_give_probabilities(recipe: Reviews, tmp_path: Path) -> None:
    rows = recipe.splits["test"]
    logits = np.random.default_rng(0).normal(scale=30, size=(len(rows), 3)).astype(np.float16)
    predictions.write(tmp_path, recipe.kind, rows, logits)
    written = Run(tmp_path).predictions.filter(like="probability").to_numpy()
    np.testing.assert_allclose(written.sum(axis=1), 1, rtol=1e-12)


# ---- no secret -----------------------------------------------------------------------------------


def by_keywords(options: dict[str, str], directory: Path) -> None:
    finetune.train("sentiment", **options, max_steps=1)


def by_flags(options: dict[str, str], directory: Path) -> None:
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    assert cli.main(["sentiment", *words, "--max_steps", "1"]) == 0


def by_flags_with_dashes(options: dict[str, str], directory: Path) -> None:
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    assert cli.main(["sentiment", *words, "--max-steps=1"]) == 0


def by_file(options: dict[str, str], directory: Path) -> None:
    config = directory / "options.yaml"
    lines = [f"{name}: {value}" for name, value in {**options, "max_steps": 1}.items()]
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert cli.main(["sentiment", "--config", str(config)]) == 0


@pytest.mark.parametrize("train", [by_keywords, by_flags, by_flags_with_dashes, by_file])
def test_a_token_is_in_no_file_of_the_run(
    train: Callable[[dict[str, str], Path], None],
    reviews: Path,
    tiny_model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_TOKEN", "")  # restored afterwards
    directory = tmp_path / "run"
    train(
        dict(
            dataset=str(reviews),
            model=tiny_model,
            text_column="text",
            label_column="label",
            output_dir=str(directory),
            hub_token=SECRET,
        ),
        tmp_path,
    )
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert {"run.json", "training_args.bin"} <= {path.name for path in files}
    held = [path.name for path in files if SECRET.encode() in path.read_bytes()]
    assert held == []
    assert SECRET not in "".join(capfd.readouterr())
    assert os.environ["HF_TOKEN"] == SECRET  # where the library looks for it


# ---- Run -----------------------------------------------------------------------------------------


def test_load_refuses_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected the directory of a run, .* found None"):
        finetune.predict(None, ["a"])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="is not the directory of a run: no such directory"):
        Run.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"is not the directory of a run: no run\.json in it"):
        Run.load(tmp_path)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UserError, match="is not the directory of a run"):
        Run.load(file)


def test_an_unfinished_run_has_no_metrics_and_says_why(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", status="running")
    sentence = r"has no metrics\.json \(status 'stale'\); to resume it: finetune\.train"
    with pytest.raises(UserError, match=sentence):
        _ = Run.load(run.path).metrics


def test_update_adds_facts_and_keeps_the_others(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", recipe="yelp", status="running")
    run.update(status="finished", steps=3)
    assert (run.manifest.recipe, run.manifest.status, run.manifest.steps) == ("yelp", "finished", 3)
    assert sorted(path.name for path in run.path.iterdir()) == ["checkpoint-3", "run.json"]


def test_a_manifest_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", recipe="yelp")
    before = run.manifest
    with pytest.raises(TypeError, match="keys must be str"):
        run.update(options={("no", "key"): 1})
    assert run.manifest == before


def test_the_recipe_of_a_run_has_its_options(
    reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    run = finetune.train(
        "sentiment",
        dataset=str(reviews),
        model=tiny_model,
        text_column="text",
        label_column="label",
        eval_samples=10,
        max_length=16,
        hidden_dropout=0.25,
        max_steps=1,
        output_dir=str(tmp_path / "run"),
    )
    recipe = Run.load(run.path).recipe()
    assert isinstance(recipe, TextRecipe)
    assert (recipe.dataset, recipe.max_length, recipe.eval_samples) == (str(reviews), 16, 10)
    assert recipe.hidden_dropout == 0.25
    assert recipe.splits["test"]["id"][:] == run.predictions["id"].tolist()


# ---- the way is cleared, and nothing is lost -----------------------------------------------------


def test_a_run_is_moved_to_the_first_free_number(tmp_path: Path) -> None:
    directory = tmp_path / "yelp"
    for number in range(1, 4):
        make_run(directory, steps=number)
        said = clear_way(directory)
        assert said == f"moved the run in {directory} to {directory}.{number}"
        assert [path.name for path in directory.iterdir()] == [".lock"]
    (tmp_path / "yelp.2").rename(tmp_path / "kept")
    make_run(directory, steps=4)
    clear_way(directory)
    moved = [path for path in tmp_path.iterdir() if path != directory]
    numbers = {path.name: Run.load(path).manifest.steps for path in moved}
    assert numbers == {"yelp.1": 1, "kept": 2, "yelp.3": 3, "yelp.2": 4}


def test_an_interrupted_run_can_be_continued_and_that_is_said(tmp_path: Path) -> None:
    make_run(tmp_path / "yelp", status="interrupted")
    said = clear_way(tmp_path / "yelp")
    assert said is not None
    assert "had not finished" in said
    assert said.endswith(f"add `--output_dir {tmp_path / 'yelp.1'} --resume`")
    make_run(tmp_path / "mnist", status="interrupted")
    (tmp_path / "mnist" / "checkpoint-3").rmdir()  # nothing to go on from
    moved = clear_way(tmp_path / "mnist")
    assert moved == f"moved the run in {tmp_path / 'mnist'} to {tmp_path / 'mnist.1'}"


def test_an_empty_directory_is_used(tmp_path: Path) -> None:
    assert clear_way(tmp_path) is None
    assert clear_way(tmp_path / "new") is None
    assert list(tmp_path.parent.glob(f"{tmp_path.name}*")) == [tmp_path]


def test_a_directory_of_something_else_is_refused_and_left_alone(
    reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    foreign = tmp_path / "thesis"
    foreign.mkdir()
    (foreign / "chapter.tex").write_text("words", encoding="utf-8")
    with pytest.raises(UserError, match="holds files but no run"):
        clear_way(foreign)
    file = tmp_path / "file"
    file.write_text("words", encoding="utf-8")
    with pytest.raises(UserError, match="is a file"):
        clear_way(file)
    for output_dir, said in ((foreign, "holds files but no run"), (file, "is a file")):
        with pytest.raises(UserError, match=said):
            finetune.train(
                Reviews, dataset=str(reviews), model=tiny_model, output_dir=str(output_dir)
            )
    assert [path.name for path in foreign.iterdir()] == ["chapter.tex"]
    assert file.read_text(encoding="utf-8") == "words"


def test_a_run_that_is_going_on_is_left_alone(tmp_path: Path) -> None:
    """By its lock: what the manifest says of a process may be of one that is long gone."""
    process = Process(host=platform.node(), pid=os.getppid(), started="2026-01-02T03:04:05+00:00")
    dataclasses.replace(trained().manifest, status="running", process=process).write(tmp_path)
    refuse_foreign(tmp_path)  # the process is there, and not the one that wrote it
    said = (
        f"a run is in progress there (process {process.pid} on {process.host}, started "
        "2026-01-02T03:04:05+00:00); wait for it or stop it, or use another directory"
    )
    with FileLock(tmp_path / ".lock"):
        for refuses in (refuse_foreign, occupy, clear_way):
            with pytest.raises(UserError, match=re.escape(said)):
                refuses(tmp_path)
    occupy(tmp_path)
    lock.release(tmp_path)


@pytest.mark.usefixtures("without_report")
def test_a_model_in_the_directory_of_the_next_run_is_trained_further(
    reviews: Path, tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"dataset": str(reviews), "max_steps": 1, "output_dir": "again"}
    finetune.train("yelp", model=tiny_model, **options)
    further = finetune.train("yelp", model="again", **options)
    assert further.manifest["status"] == "finished"
    assert Run.load("again.1").metrics["test"].keys() == further.metrics["test"].keys()
