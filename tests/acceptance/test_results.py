"""Results of a run: files, figures, comparisons, suspects, reports, and Python functions."""

import html
import json
import logging
import random
import re
import shutil
import socket
from collections.abc import Callable
from html.parser import HTMLParser
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import numpy as np
import pandas as pd
import psutil
import pytest
import torch
import transformers
from PIL import Image
from scipy import stats
from scipy.special import softmax
from sklearn import metrics as sk
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

import finetune
from recipes.text import Text
from tests.acceptance import data
from tests.acceptance.conftest import TRAINING, Commands, Finished, Trained, flags, once, user_error

TEXT_RUNS = ["single_label_run", "multi_label_run", "regression_run", "ordinal_run"]
RUNS = [*TEXT_RUNS, "image_run"]
SHORT = TRAINING | dict(num_train_epochs=1, max_steps=2, baseline=False)


# ---- E1 ------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """A parsed page: its text, tags, attributes and styles."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text, self.style = "", ""
        self.rows: list[list[str]] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_data(self, text: str) -> None:
        if self.lasttag == "style":
            self.style += text
        else:
            self.text += text
            if self.rows and self.rows[-1]:
                self.rows[-1][-1] += text


@pytest.mark.contract("B1", "E1")
def test_pipeline_answers_for_images(image_run: finetune.Run, shared_directory: Path) -> None:
    """`pipeline()` returns the probabilities of `predictions.parquet` for the test images."""
    table = image_run.predictions
    assert (image_run.labels, len(table)) == (["down", "up"], 24)
    assert image_run.metrics.test["accuracy"] > 0.7
    classify = transformers.pipeline("image-classification", model=str(image_run.path))
    files = [str(shared_directory / "photos" / name) for name in table["file"]]
    for (_, row), answers in zip(table.iterrows(), classify(files), strict=True):
        assert answers[0]["label"] == row["prediction"]
        for answer in answers:
            score = row[f"probability of {answer['label']}"]
            assert answer["score"] == pytest.approx(score, abs=1e-5)


@pytest.mark.contract("A4", "E1")
@pytest.mark.parametrize("run", RUNS, indirect=True)
def test_files_of_a_run(run: finetune.Run) -> None:
    """They exist and parse, and the model card has the metrics where the Hub reads them.

    The runs are those of the recipes `text` and `image` on files, without code.
    """
    manifest = json.loads((run.path / "run.json").read_text(encoding="utf-8"))
    assert (manifest["status"], manifest["labels"]) == ("finished", run.labels)
    assert manifest["recipe"] == ("image" if run.labels == ["down", "up"] else "text")
    metrics = json.loads((run.path / "metrics.json").read_text(encoding="utf-8"))
    assert {"validation", "test", "baseline", "statistics"} <= metrics.keys()
    table = pd.read_parquet(run.path / "predictions.parquet")
    assert len(table) == manifest["data"]["rows"]["test"] == metrics["statistics"]["rows"]
    assert table["id"].is_unique
    card = huggingface_hub.ModelCard.load(run.path / "README.md").data
    assert card.library_name == "transformers"
    assert card.pipeline_tag.endswith("-classification")
    results = {result.metric_type: result.metric_value for result in card.eval_results}
    assert results == {name: metrics["test"][name] for name in card.metrics}
    assert set(card.metrics) == metrics["test"].keys() - {"loss"}
    plots = sorted((run.path / "plots").glob("*.png"))
    assert plots
    for plot in plots:
        with Image.open(plot) as image:
            image.load()
            assert min(image.size) > 100
    page = Page(run.path / "report.html")
    assert "svg" in page.tags


@pytest.mark.contract("E1")
def test_run_json_records_where_a_run_came_from(
    single_label_run: finetune.Run, second_seed_run: finetune.Run, ordinal_run: finetune.Run
) -> None:
    """Recipe, model, command, versions of the libraries, and a fingerprint of the rows."""
    manifest = json.loads((single_label_run.path / "run.json").read_text(encoding="utf-8"))
    for library in (torch, transformers, datasets):
        assert manifest["versions"][library.__name__] == library.__version__
    assert manifest["recipe"] == "text"
    assert Path(manifest["options"]["model"]).name == "bert"
    assert manifest["options"]["dataset"] in manifest["command"]
    assert manifest["options"]["model"] in manifest["command"]
    assert "global_batch_size=16" in manifest["command"]
    runs = (single_label_run, second_seed_run, ordinal_run)
    same, again, other = (run.manifest.data.fingerprint for run in runs)
    assert same == again != other


# ---- E2: values ----------------------------------------------------------------------------------


def classes_of(run: finetune.Run) -> tuple[np.ndarray, np.ndarray]:
    """Return the true classes and probabilities of the test rows in `predictions.parquet`."""
    table, names = run.predictions, list(run.labels)
    probabilities = table[[f"probability of {name}" for name in names]].to_numpy()
    assert [names[i] for i in probabilities.argmax(axis=1)] == table["prediction"].tolist()
    return np.array([names.index(label) for label in table["label"]]), probabilities


def sets_of(run: finetune.Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return true and predicted labels as 0 and 1, and probabilities, from the same file."""
    table, names = run.predictions, list(run.labels)
    true, predicted = (
        np.array([[name in row for name in names] for row in table[column]]).astype(int)
        for column in ("label", "prediction")
    )
    return true, predicted, table[[f"probability of {name}" for name in names]].to_numpy()


def numbers_of(run: finetune.Run) -> tuple[np.ndarray, np.ndarray]:
    """Return true and predicted numbers, shape `(rows, targets)`, from the same file."""
    columns = [[f"{kind} of {name}" for name in run.labels] for kind in ("label", "prediction")]
    true, predicted = (run.predictions[names].to_numpy(np.float64) for names in columns)
    return true, predicted


def of_numbers(true: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Return the metrics of a regression, means over targets."""
    pairs = list(zip(true.T, predicted.T, strict=True))
    return {
        "r2": float(np.mean([sk.r2_score(*pair) for pair in pairs])),
        "mae": float(np.mean([sk.mean_absolute_error(*pair) for pair in pairs])),
        "rmse": float(np.mean([sk.root_mean_squared_error(*pair) for pair in pairs])),
        "pearson": float(np.mean([stats.pearsonr(*pair).statistic for pair in pairs])),
        "spearman": float(np.mean([stats.spearmanr(*pair).statistic for pair in pairs])),
    }


def of_classes(true: np.ndarray, probabilities: np.ndarray, *, ordered: bool) -> dict[str, float]:
    """Return the metrics of single-label rows."""
    predicted, labels = probabilities.argmax(axis=1), [*range(probabilities.shape[1])]
    if len(labels) == 2:
        area = sk.roc_auc_score(true, probabilities[:, 1])
    else:
        area = sk.roc_auc_score(true, probabilities, multi_class="ovr")
    values = {
        "accuracy": sk.accuracy_score(true, predicted),
        "f1": sk.f1_score(true, predicted, average="macro"),
        "log_loss": sk.log_loss(true, probabilities, labels=labels),
        "brier_score": sk.brier_score_loss(true, probabilities, labels=labels),
        "roc_area": area,
    }
    if len(labels) == 2:
        values |= of_positive(true, probabilities, 1)
    if len(labels) > 10:
        values["top_5_accuracy"] = sk.top_k_accuracy_score(true, probabilities, k=5, labels=labels)
    if ordered:
        values["quadratic_kappa"] = sk.cohen_kappa_score(true, predicted, weights="quadratic")
        values["mean_absolute_error"] = sk.mean_absolute_error(true, predicted)
    return values


def of_positive(true: np.ndarray, probabilities: np.ndarray, positive: int) -> dict[str, float]:
    """Return the scores of one of two classes."""
    predicted = probabilities.argmax(axis=1)
    names = ("precision_binary", "recall_binary", "f1_binary")
    chosen = dict(average="binary", pos_label=positive, zero_division=0)
    scores = sk.precision_recall_fscore_support(true, predicted, **chosen)[:3]
    area = sk.average_precision_score(true == positive, probabilities[:, positive])
    return {**dict(zip(names, scores, strict=True)), "average_precision": area}


def of_sets(true: np.ndarray, predicted: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    """Return the metrics of multi-label rows."""
    pairs = list(zip(true.T, probabilities.T, strict=True))
    losses = [sk.log_loss(*pair) for pair in pairs]
    return {
        **{
            f"f1_{average}": sk.f1_score(true, predicted, average=average, zero_division=0)
            for average in ("micro", "macro", "samples")
        },
        "subset_accuracy": sk.accuracy_score(true, predicted),
        "average_precision": sk.average_precision_score(true, probabilities),
        "hamming_loss": sk.hamming_loss(true, predicted),
        "log_loss": float(np.mean(losses)),
        "brier_score": float(np.mean([sk.brier_score_loss(*pair) for pair in pairs])),
    }


def figures(run: finetune.Run) -> dict[str, float]:
    """Return every metric of a run, from scikit-learn and SciPy on `predictions.parquet`."""
    if run.manifest.task == "regression":
        return of_numbers(*numbers_of(run))
    if run.manifest.task == "multi_label":
        return of_sets(*sets_of(run))
    return of_classes(*classes_of(run), ordered=run.manifest.task == "ordinal")


@pytest.mark.contract("E2")
@pytest.mark.parametrize("run", [*RUNS, "flipped_run"], indirect=True)
def test_metrics_are_those_of_scikit_learn(run: finetune.Run) -> None:
    """Every metric and the loss in `metrics.json`; intervals contain the value."""
    expected = figures(run)
    table = run.statistics.metrics
    assert table.keys() == expected.keys()
    for name, value in expected.items():
        assert table[name]["value"] == pytest.approx(value, abs=1e-6), name
        if np.isnan(table[name]["low"]):  # labels with few rows have none
            assert name == "average_precision"
            assert any(re.search(rf"\b{name}\b", note) for note in run.statistics.notes)
            continue
        ends = [table[name][end] for end in ("low", "high")]
        assert ends[0] < value < ends[1] or value == ends[1] == 1, name
        if name not in ("mae", "rmse", "log_loss", "mean_absolute_error"):
            assert table[name]["low"] >= (-1 if name in ("pearson", "spearman") else 0), name
            assert table[name]["high"] <= 1, name
    if run.manifest.task == "regression":
        true, predicted = numbers_of(run)
        training = np.array(run.recipe().splits["train"]["label"][:], dtype=np.float64)
        loss = (((true - predicted) / training.std(axis=0)) ** 2).mean()
    else:
        loss = expected["log_loss"]
    assert run.metrics.test["loss"] == pytest.approx(loss, rel=1e-5)
    scores = {name: value for name, value in run.metrics.test.items() if name != "loss"}
    assert scores == pytest.approx({name: expected[name] for name in scores}, abs=1e-6)
    assert run.metrics.validation.keys() == run.metrics.test.keys()


@pytest.mark.contract("E2")
@pytest.mark.parametrize("run", ["flipped_run", "ordinal_run", "image_run"], indirect=True)
def test_classes_and_probabilities_are_those_of_scikit_learn(run: finetune.Run) -> None:
    """Scores of classes, confusion matrix and calibration."""
    true, probabilities = classes_of(run)
    predicted, statistics, names = probabilities.argmax(axis=1), run.statistics, list(run.labels)
    right = predicted == true
    assert statistics.classes is not None
    assert [*statistics.classes] == names
    scores = sk.precision_recall_fscore_support(true, predicted, zero_division=0)
    for number, (name, row) in enumerate(statistics.classes.items()):
        for score, values in zip(("precision", "recall", "f1"), scores, strict=False):
            assert row[score]["value"] == pytest.approx(values[number]), (name, score)
            assert 0 <= row[score]["low"] <= row[score]["high"] <= 1
        has = true == number
        assert row["support"] == has.sum()
        for score, function in (
            ("roc_area", sk.roc_auc_score),
            ("pr_area", sk.average_precision_score),
        ):
            expected = function(has, probabilities[:, number])
            assert row[score]["value"] == pytest.approx(expected, abs=1e-6)
        for score, among in (("recall", has), ("precision", predicted == number)):
            if among.any():
                test = stats.binomtest(int(right[among].sum()), int(among.sum()))
                ends = [row[score]["low"], row[score]["high"]]
                assert ends == pytest.approx(test.proportion_ci(method="wilson"), abs=1e-6)
    assert statistics.confusion == sk.confusion_matrix(true, predicted).tolist()
    assert statistics.calibration is not None
    error = calibration_error(true, probabilities)
    assert statistics.calibration["expected_calibration_error"] == pytest.approx(error)
    assert 0 < statistics.calibration["calibrated"] < 1


def calibration_error(true: np.ndarray, probabilities: np.ndarray) -> float:
    """Return the expected calibration error with 15 bins (Guo et al., 2017)."""
    sure, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == true
    bins = np.minimum((sure * 15).astype(int), 14)
    gaps = [abs((right[bins == n] - sure[bins == n]).sum()) for n in range(15)]
    return float(sum(gaps) / len(true))


@pytest.mark.contract("E2")
@pytest.mark.parametrize("run", ["ordinal_run", "single_label_run"], indirect=True)
def test_what_the_temperature_changes_on_the_test_rows_is_reported(run: finetune.Run) -> None:
    """Calibration error and log loss, before and after; nothing if there is no temperature."""
    assert run.statistics.calibration is not None
    scaling = run.statistics.calibration.get("temperature")
    assert (scaling is None) == (run.manifest.temperature is None) == (len(run.labels) == 2)
    if scaling is None:
        return
    assert scaling["temperature"] == run.manifest.temperature != 1
    true, probabilities = classes_of(run)
    scaled = softmax(np.log(probabilities) / run.manifest.temperature, axis=1)
    shown = []
    for name, scores in (("before", probabilities), ("after", scaled)):
        error, loss = calibration_error(true, scores), sk.log_loss(true, scores)
        expected = {"expected_calibration_error": error, "log_loss": loss}
        assert scaling[name] == pytest.approx(expected, rel=1e-4), name
        shown += [f"{error:.3f}", f"{loss:.4f}"]
    assert len({*shown}) == 4
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert all(figure in page for figure in shown)


@pytest.mark.contract("B6", "E2", "E5", "E6")
def test_the_scores_of_two_classes_are_those_of_the_positive_one(
    reviews: Path, bert: Path, single_label_run: finetune.Run, tmp_path: Path,
    cli: Callable[..., Finished]
) -> None:  # fmt: skip
    """The class is named in start block, report, card and evaluation, and chooses the model."""
    options = TRAINING | dict(dataset=reviews, model=bert, num_train_epochs=2)
    options |= dict(positive_label="bad", metrics="recall_binary,f1_binary,average_precision,f1")
    trained = cli("text", *flags(**options, output_dir=tmp_path / "run")).succeeded()
    assert "positive: bad (--positive_label)" in trained.stdout
    run, scores = finetune.Run.load(tmp_path / "run"), {}
    true, probabilities = classes_of(run)
    for number, name in enumerate(run.labels):
        scores[name] = of_positive(true, probabilities, number)
        assert len({round(value, 4) for value in scores[name].values()}) > 2
    assert scores["bad"] != pytest.approx(scores["good"], abs=1e-3)
    names = ("recall_binary", "f1_binary", "average_precision")
    for name, value in scores["bad"].items():
        assert run.statistics.metrics[name]["value"] == pytest.approx(value, abs=1e-6), name
    for name in names:
        assert run.metrics.test[name] == pytest.approx(scores["bad"][name], abs=1e-6)
        assert run.metrics.baseline["majority class"][name] == 0 or name == "average_precision"
    best = [row for row in run.manifest.history if row["step"] == run.manifest.best_step]
    validated = max(row.get("eval_recall_binary", 0) for row in best)
    assert run.metrics.validation["recall_binary"] == pytest.approx(validated)
    assert run.statistics.positive_label == "bad"
    text = html.unescape((run.path / "report.html").read_text(encoding="utf-8"))
    assert f"average precision (at most the 5 lowest): 'bad' {scores['bad'][names[2]]:.3f}." in text
    assert "positive class: bad" in text
    assert "the positive class is bad" in (run.path / "README.md").read_text(encoding="utf-8")
    run.predictions[["text", "label"]].to_csv(tmp_path / "in.csv", index=False)
    evaluated = cli("evaluate", run.path, "--data", tmp_path / "in.csv").succeeded().stdout
    assert "positive class: bad" in evaluated
    values = dict(line.split()[:2] for line in evaluated.splitlines() if line.count(" ") > 2)
    for name in names:
        assert float(values[name]) == pytest.approx(scores["bad"][name], abs=6e-5)
    for name in ("positive_label", "teacher"):
        with user_error(f"--{name}: not an option of this recipe for reading rows"):
            finetune.evaluate(run, tmp_path / "in.csv", **{name: "good"})
    again = finetune.evaluate(run)
    assert again.metrics == pytest.approx(dict(run.metrics.test), rel=1e-4)
    # the first run decides which class is positive; unset, it is the second
    true, probabilities = classes_of(single_label_run)
    other = {name: of_positive(true, probabilities, n) for n, name in enumerate(run.labels)}
    assert single_label_run.statistics.positive_label == "good"
    for positive, first, second in (
        ("bad", run, single_label_run),
        ("good", single_label_run, run),
    ):
        comparison = finetune.compare([first, second])
        compared = [part["f1_binary"]["value"] for part in comparison.metrics]
        expected = [part[positive]["f1_binary"] for part in (scores, other)]
        assert sorted(compared) == pytest.approx(sorted(expected), abs=1e-6)
        assert f"positive class: {positive}" in comparison.scores(["f1"]).caption
    assert comparison.settings["positive_label"] == ["None", "bad"]


@pytest.mark.contract("B6")
@pytest.mark.parametrize(
    ("names", "positive"),
    [
        (("positive", "negative"), "positive"),
        (("Yes", "No"), "Yes"),
        (("1", "0"), "1"),
        (("spam", "ham"), "spam"),
        (("good", "bad"), "bad"),
        (("yes", "true"), "true"),
    ],
)
def test_the_positive_class_has_a_name_that_says_so(
    names: tuple[str, str], positive: str, reviews: Path, bert: Path
) -> None:
    """Else it is the second one."""
    recipe = type("Named", (Text,), {"label_names": names})(
        dataset=str(reviews), model=str(bert), label_map=f"good={names[0]},bad={names[1]}"
    )
    assert recipe.labels == list(names)
    assert recipe.resolved_task.positive_name == positive


@pytest.mark.contract("E2")
def test_labels_are_those_of_scikit_learn(multi_label_run: finetune.Run) -> None:
    """Precision, recall, F1, average precision and support of each label, co-occurrences."""
    true, predicted, probabilities = sets_of(multi_label_run)
    statistics = multi_label_run.statistics
    assert statistics.classes is not None
    scores = sk.precision_recall_fscore_support(true, predicted, average=None, zero_division=0)
    for number, row in enumerate(statistics.classes.values()):
        for score, values in zip(("precision", "recall", "f1", "support"), scores, strict=True):
            value = row[score]["value"] if score != "support" else row[score]
            assert value == pytest.approx(values[number])
        area = sk.average_precision_score(true[:, number], probabilities[:, number])
        assert row["pr_area"]["value"] == pytest.approx(area, abs=1e-6)


@pytest.mark.contract("E2")
def test_targets_are_those_of_scikit_learn(regression_run: finetune.Run) -> None:
    """Every metric of each target is right."""
    true, predicted = numbers_of(regression_run)
    targets = regression_run.statistics.targets
    assert targets is not None
    assert [*targets] == ["stars", "price"]
    for number, row in enumerate(targets.values()):
        values = {name: interval["value"] for name, interval in row.items()}
        expected = of_numbers(true[:, [number]], predicted[:, [number]])
        assert values == pytest.approx(expected, abs=1e-6)


def shown_numbers(words: list[str]) -> list[tuple[float, float]]:
    """Return the numbers in a line, each with half a unit of its last digit."""
    numbers = []
    for word in words:
        plain = word.strip("[](),;").replace("\N{MINUS SIGN}", "-").replace(",", "")
        if re.fullmatch(r"[+-]?\d+(\.\d+)?", plain):
            digits = len(plain.partition(".")[2])
            numbers.append((float(plain), 0.5000001 * 10**-digits))
    return numbers


def assert_shown(words: list[str], *values: float) -> None:
    """Assert that the first numbers in a line are these values, rounded."""
    numbers = shown_numbers(words)
    assert len(numbers) >= len(values), words
    for (number, half_unit), value in zip(numbers, values, strict=False):
        assert abs(number - value) <= half_unit, (words, value)


@pytest.mark.contract("E2")
@pytest.mark.parametrize("run", RUNS, indirect=True)
def test_the_report_shows_these_figures(run: finetune.Run) -> None:
    """Figures of model, baselines and differences are rounded and have their interval."""
    page = Page(run.path / "report.html")
    rows: dict[str, list[str]] = {}
    for row in page.rows:
        rows.setdefault(row[0] if row else "", row[1:])
    table, baselines = run.statistics.metrics, run.metrics.baseline
    names = [name for name in run.metrics.test if name != "loss"]
    first = run.manifest.arguments["metric_for_best_model"].removeprefix("eval_")
    names.sort(key=lambda name: name != first)
    for cell, name in zip(rows["fine-tuned"], names, strict=True):
        interval = table[name]
        ends = [interval[end] for end in ("value", "low", "high")]
        assert_shown(cell.split(), *(end for end in ends if np.isfinite(end)))
    for baseline, scores in baselines.items():
        for cell, name in zip(rows[baseline], names, strict=True):
            assert (cell == "undefined") is not (name in scores and np.isfinite(scores[name]))
            if cell != "undefined":
                assert_shown(cell.split(), scores[name])


@pytest.mark.contract("E2")
@pytest.mark.parametrize("run", TEXT_RUNS, indirect=True)
def test_evaluate_prints_these_figures(
    run: finetune.Run, tmp_path: Path, cli: Callable[..., Finished]
) -> None:
    """There is a line for each metric: the value, then the ends of its interval."""
    kinds = {"multi_label": "labels", "regression": "stars,price"}
    table = run.predictions.copy()
    if run.manifest.task == "regression":
        table = table.rename(columns={f"label of {name}": name for name in run.labels})
        table[["text", *run.labels]].to_csv(tmp_path / "in.csv", index=False)
        source = tmp_path / "in.csv"
    else:
        column = kinds.get(run.manifest.task or "", "label")
        table[column] = [list(label) if column == "labels" else label for label in table["label"]]
        source = tmp_path / "in.jsonl"
        table[["text", column]].to_json(source, orient="records", lines=True)
    result = cli("evaluate", run.path, "--data", source).succeeded()
    lines = [re.split(r"\s{2,}", line.strip()) for line in result.stdout.splitlines() if line]
    rows = lines[1 : 1 + len(run.statistics.metrics)]
    for interval, row in zip(run.statistics.metrics.values(), rows, strict=True):
        ends = [interval[end] for end in ("value", "low", "high")]
        assert_shown(" ".join(row[1:]).split(), *(end for end in ends if np.isfinite(end)))


# ---- E2: intervals -------------------------------------------------------------------------------


@pytest.mark.contract("E2")
def test_the_interval_of_a_share_is_corrected_for_bias(single_label_run: finetune.Run) -> None:
    """Macro F1: Wilson's interval at the effective sample size around the value without its bias,
    both by a jackknife over rows (Efron and Stein, 1981).
    """
    table = single_label_run.predictions
    rows = len(table)
    scores = [
        sk.f1_score(part["label"], part["prediction"], average="macro")
        for part in (table, *(table.drop(index) for index in table.index))
    ]
    value, without = scores[0], np.array(scores[1:])
    bias = (rows - 1) * (without.mean() - value)
    assert abs(bias) > 1e-3
    variance = (rows - 1) * without.var()
    effective = min(rows, value * (1 - value) / variance)  # few rows are wrong
    square = stats.t.ppf(0.975, rows - 1) ** 2 / effective
    center = value - bias
    ends = np.roots([1 + square, -2 * center - square, center**2])  # Wilson (1927)
    interval = single_label_run.statistics.metrics["f1"]
    expected = [value, min(value, *ends), max(value, *ends)]
    assert list(interval.values()) == pytest.approx(expected, abs=1e-5)


Measure = Callable[[np.ndarray], float]


def spread(measure: Measure, rows: int, draws: int = 1500) -> float:
    """Return the width of a 95% bootstrap interval: 3.92 standard deviations."""
    generator = np.random.default_rng(0)
    values = [measure(generator.integers(rows, size=rows)) for _ in range(draws)]
    return float(3.92 * np.std(values))


def macro_f1(true: np.ndarray, predicted: np.ndarray, classes: int) -> float:
    """Return the macro F1 of classes from their counts, which is fast."""
    right = np.bincount(true[true == predicted], minlength=classes)
    either = np.bincount(true, minlength=classes) + np.bincount(predicted, minlength=classes)
    return float(np.mean(2 * right / np.maximum(either, 1)))


def measures_of_classes(true: np.ndarray, probabilities: np.ndarray) -> dict[str, Measure]:
    """Return the metrics of a resample of single-label rows, by name."""
    predicted, classes = probabilities.argmax(axis=1), probabilities.shape[1]
    right, off = predicted == true, np.abs(predicted - true)
    losses = -np.log(probabilities[np.arange(len(true)), true])
    squares = ((probabilities - np.eye(classes)[true]) ** 2).sum(axis=1)

    def kappa(rows: np.ndarray) -> float:
        distances = (true[rows][:, None] - predicted[rows][None, :]) ** 2
        return float(1 - (off[rows] ** 2).mean() / distances.mean())

    measures: dict[str, Measure] = {
        "accuracy": lambda rows: right[rows].mean(),
        "f1": lambda rows: macro_f1(true[rows], predicted[rows], classes),
        "log_loss": lambda rows: losses[rows].mean(),
        "brier_score": lambda rows: squares[rows].mean() / (2 if classes == 2 else 1),
    }
    if classes > 2:
        measures |= {
            "quadratic_kappa": kappa,
            "mean_absolute_error": lambda rows: off[rows].mean(),
        }
    return measures


def measures_of_sets(
    true: np.ndarray, predicted: np.ndarray, probabilities: np.ndarray
) -> dict[str, Measure]:
    """Return the metrics of a resample of multi-label rows, by name."""
    both, either = true * predicted, true + predicted
    samples = 2 * both.sum(1) / np.maximum(either.sum(1), 1)
    losses = -np.log(np.where(true, probabilities, 1 - probabilities)).mean(axis=1)
    return {
        "f1_micro": lambda rows: 2 * both[rows].sum() / either[rows].sum(),
        "f1_macro": lambda rows: (2 * both[rows].sum(0) / either[rows].sum(0)).mean(),
        "f1_samples": lambda rows: samples[rows].mean(),
        "subset_accuracy": lambda rows: (true == predicted)[rows].all(axis=1).mean(),
        "hamming_loss": lambda rows: (true != predicted)[rows].mean(),
        "log_loss": lambda rows: losses[rows].mean(),
        "brier_score": lambda rows: ((true - probabilities)[rows] ** 2).mean(),
    }


def measures_of_numbers(true: np.ndarray, predicted: np.ndarray) -> dict[str, Measure]:
    """Return the metrics of a resample of regression rows, by name."""
    errors = predicted - true
    ranks = [stats.rankdata(values, axis=0) for values in (true, predicted)]

    def correlation(one: np.ndarray, other: np.ndarray) -> float:
        one, other = one - one.mean(axis=0), other - other.mean(axis=0)
        scale = np.sqrt((one**2).sum(axis=0) * (other**2).sum(axis=0))
        return float(((one * other).sum(axis=0) / scale).mean())

    return {
        "r2": lambda rows: (1 - (errors[rows] ** 2).mean(0) / true[rows].var(0)).mean(),
        "mae": lambda rows: np.abs(errors[rows]).mean(),
        "rmse": lambda rows: np.sqrt((errors[rows] ** 2).mean(axis=0)).mean(),
        "pearson": lambda rows: correlation(true[rows], predicted[rows]),
        "spearman": lambda rows: correlation(ranks[0][rows], ranks[1][rows]),
    }


@pytest.mark.contract("E2")
@pytest.mark.parametrize("run", TEXT_RUNS, indirect=True)
def test_intervals_of_many_rows_are_as_wide_as_those_of_the_bootstrap(
    run: finetune.Run, tmp_path: Path
) -> None:
    """With 900 rows they have the same width; that of accuracy is Wilson's to 2%."""
    path = tmp_path / "in.csv"
    if run.manifest.task == "regression":
        frame = pd.read_csv(data.write_scores(path, rows=900))
    elif run.manifest.task == "multi_label":
        frame = pd.read_json(data.write_tags(path, rows=900), lines=True)
    else:
        frame = pd.read_csv(data.write_reviews(path, rows=900, labels=run.labels, seed=4))
    evaluation = finetune.evaluate(run, frame)
    assert evaluation.statistics is not None
    if run.manifest.task == "regression":
        predictions = finetune.predict(run, frame["text"], precision="fp32")
        measures = measures_of_numbers(
            frame[["stars", "price"]].to_numpy(), predictions.iloc[:, 1:].to_numpy(np.float64)
        )
    else:
        predictions = finetune.predict(run, frame["text"], precision="fp32", all_probabilities=True)
        columns = [f"probability of {name}" for name in run.labels]
        probabilities = predictions[columns].to_numpy(np.float64)
        if run.manifest.task == "multi_label":
            true = np.array([[name in row for name in run.labels] for row in frame["labels"]])
            measures = measures_of_sets(
                true.astype(int), (probabilities > 0.5).astype(int), probabilities
            )
        else:
            codes = np.array([run.labels.index(label) for label in frame["label"]])
            measures = measures_of_classes(codes, probabilities)
    ratios = {}
    for name, measure in measures.items():
        interval = evaluation.statistics.metrics[name]
        assert interval["value"] == pytest.approx(measure(np.arange(900)), abs=1e-5), name
        draws = 200 if name == "quadratic_kappa" else 1500
        ratios[name] = (interval["high"] - interval["low"]) / spread(measure, 900, draws)
    assert {name: ratio for name, ratio in ratios.items() if not 0.89 < ratio < 1.2} == {}
    if "accuracy" in measures:
        interval = evaluation.statistics.metrics["accuracy"]
        wilson = stats.binomtest(round(interval["value"] * 900), 900).proportion_ci(method="wilson")
        # 1,000 resamples have a standard error of 0.0012, and other kernels round differently
        assert [interval["low"], interval["high"]] == pytest.approx(
            [wilson.low, wilson.high], abs=0.006
        )


@pytest.mark.contract("E2")
@pytest.mark.slow
def test_intervals_contain_the_true_value(single_label_run: finetune.Run) -> None:
    """In 400 simulated sets of 200 rows, about 95% of the intervals contain it."""
    texts = [text for text, _ in data.labelled_sentences(3000, seed=8)]
    predictions = finetune.predict(
        single_label_run, texts, precision="fp32", all_probabilities=True
    )
    score = predictions["probability of good"].to_numpy()
    is_good = np.clip(0.1 + 0.8 * score, 0.02, 0.98)  # the probability that each text is good
    is_predicted = score > 0.5
    right = np.where(is_predicted, is_good, 1 - is_good).mean()
    f1 = [
        2 * chance[side].sum() / (chance.sum() + side.sum())
        for chance, side in ((is_good, is_predicted), (1 - is_good, ~is_predicted))
    ]
    truth = {"accuracy": right, "f1": float(np.mean(f1))}
    generator, hits = np.random.default_rng(0), dict.fromkeys(truth, 0)
    for _ in range(400):
        chosen = generator.integers(len(texts), size=200)
        drawn = np.where(generator.random(200) < is_good[chosen], "good", "bad")
        frame = pd.DataFrame({"text": [texts[i] for i in chosen], "label": drawn})
        evaluation = finetune.evaluate(single_label_run, frame)
        assert evaluation.statistics is not None
        for name, value in truth.items():
            interval = evaluation.statistics.metrics[name]
            hits[name] += interval["low"] <= value <= interval["high"]
    for name, count in hits.items():
        assert 0.92 <= count / 400 <= 0.985, (name, count)


@pytest.mark.slow
@pytest.mark.contract("E2", "E12")
def test_intervals_of_entities_contain_the_true_value(entity_run: finetune.Run) -> None:
    """In 400 simulated sets of 100 sentences, each with a chance that its predictions are right."""
    generator = np.random.default_rng(0)
    sentences = [words for words, _ in data.entity_sentences(1500, seed=8)]
    texts = [" ".join(words) for words in sentences]
    predictions = finetune.predict(entity_run, texts, precision="fp32")["entities"]
    is_right = generator.choice([0.6, 0.98], size=len(texts))
    sums = {name: np.zeros(3) for name in ("dish", "place")}  # right, true, predicted entities
    right_words = 0.0
    for words, chance, entities in zip(sentences, is_right, predictions, strict=True):
        right_words += len(words)
        for entity in entities:
            other = {"dish": "place", "place": "dish"}[entity["label"]]
            sums[entity["label"]] += chance, chance, 1
            sums[other][1] += (1 - chance) / 2
            length = len(" ".join(words)[entity["start"] : entity["end"]].split())
            right_words -= length * (1 - chance)
    right, true, predicted = sum(sums.values())
    of_types = {name: 2 * hits / (a + b) for name, (hits, a, b) in sums.items()}
    truth = {
        "precision": right / predicted,
        "recall": right / true,
        "f1": 2 * right / (true + predicted),
        "f1_macro": float(np.mean(list(of_types.values()))),
        "token_accuracy": right_words / sum(map(len, sentences)),
        **of_types,
    }
    hits = dict.fromkeys(truth, 0)
    for _ in range(400):
        rows = []
        for number in generator.integers(len(texts), size=100):
            spans = []
            for entity in predictions[number]:
                place = {"start": entity["start"], "end": entity["end"]}
                draw = generator.random()
                if draw < is_right[number]:
                    spans.append({**place, "label": entity["label"]})
                elif draw < (1 + is_right[number]) / 2:
                    other = {"dish": "place", "place": "dish"}[entity["label"]]
                    spans.append({**place, "label": other})
            rows.append({"text": texts[number], "spans": spans})
        statistics = finetune.evaluate(entity_run, rows).statistics
        assert statistics is not None
        for name, value in truth.items():
            interval = statistics.metrics.get(name) or statistics.classes[name]["f1"]
            hits[name] += interval["low"] <= value <= interval["high"]
    for name, count in hits.items():
        assert 0.92 <= count / 400 <= 0.985, (name, count)


# ---- E3 ------------------------------------------------------------------------------------------


def bag_of_words(training: list[str], tested: list[str]) -> tuple[Any, Any]:
    """Return TF-IDF over one- and two-word terms of training and test texts."""
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    return vectorizer.fit_transform(training), vectorizer.transform(tested)


def baselines_of(run: finetune.Run) -> tuple[dict[str, float], dict[str, float]]:
    """Return the scores of the majority and TF-IDF baselines, from scikit-learn."""
    training, table = run.recipe().splits["train"], run.predictions
    terms, test_terms = bag_of_words(training["text"][:], table["text"].tolist())
    if run.manifest.task == "regression":
        targets = np.array(training["label"][:], dtype=np.float64)
        mean, deviation = targets.mean(axis=0), targets.std(axis=0)
        fitted = Ridge(alpha=1.0).fit(terms, (targets - mean) / deviation)
        true, _ = numbers_of(run)
        constant = np.tile(mean, (len(table), 1))
        first = {
            "mae": sk.mean_absolute_error(true, constant),
            "r2": sk.r2_score(true, constant),
            "rmse": float(
                sk.root_mean_squared_error(true, constant, multioutput="raw_values").mean()
            ),
        }
        return first, of_numbers(true, fitted.predict(test_terms) * deviation + mean)
    labels = np.array(training["label"][:])
    fitted = LogisticRegression(C=10, max_iter=1000).fit(terms, labels)
    true, probabilities = classes_of(run)
    ordered = run.manifest.task == "ordinal"
    shares = np.bincount(labels, minlength=probabilities.shape[1]) / len(labels)
    first = of_classes(true, np.tile(shares, (len(true), 1)), ordered=ordered)
    return first, of_classes(true, fitted.predict_proba(test_terms), ordered=ordered)


@pytest.mark.contract("E3")
@pytest.mark.parametrize("run", ["flipped_run", "ordinal_run", "regression_run"], indirect=True)
def test_baselines_are_those_of_scikit_learn(run: finetune.Run) -> None:
    """They are fitted on training rows and scored on test rows; differences are right, too."""
    recorded, differences = run.metrics.baseline, run.statistics.differences
    assert len(recorded) == 2
    assert differences.keys() == recorded.keys()
    (first, simple), (second, words) = recorded.items()
    assert first == ("mean" if run.manifest.task == "regression" else "majority class")
    assert second.startswith("TF-IDF")
    values = figures(run)
    for scores, expected in zip((simple, words), baselines_of(run), strict=True):
        for name in scores.keys() & expected.keys():
            assert scores[name] == pytest.approx(expected[name], abs=1e-5), name
        assert len(scores.keys() & expected.keys()) >= 2
    for baseline, gaps in differences.items():
        scores = {name: value for name, value in recorded[baseline].items() if name != "loss"}
        assert gaps.keys() == {name for name, value in scores.items() if pd.notna(value)}
        for name, gap in gaps.items():
            expected_gap = values[name] - recorded[baseline][name]
            assert gap["value"] == pytest.approx(expected_gap, abs=1e-5), (baseline, name)
            assert gap["low"] <= gap["value"] <= gap["high"]


@pytest.mark.contract("E3")
def test_baselines_of_label_sets(multi_label_run: finetune.Run) -> None:
    """They are the prevalence of labels, and a logistic regression on TF-IDF for each label."""
    run = multi_label_run
    training, table = run.recipe().splits["train"], run.predictions
    has = np.array([[i in row for i in range(3)] for row in training["label"][:]])
    terms, test_terms = bag_of_words(training["text"][:], table["text"].tolist())
    scores = [
        LogisticRegression(C=10, max_iter=1000).fit(terms, column).predict_proba(test_terms)[:, 1]
        for column in has.T
    ]
    true, _, _ = sets_of(run)
    (first, simple), (second, words) = run.metrics.baseline.items()
    assert (first, second[:6]) == ("prevalence", "TF-IDF")
    expected = sk.average_precision_score(true, np.stack(scores, axis=1))
    assert words["average_precision"] == pytest.approx(expected, abs=1e-5)
    assert simple["average_precision"] == pytest.approx(true.mean(axis=0).mean())
    assert list(run.statistics.differences) == [first, second]
    for baseline, gaps in run.statistics.differences.items():
        assert gaps.keys() == run.metrics.baseline[baseline].keys() - {"loss"}
        for name in gaps:
            gap = figures(run)[name] - run.metrics.baseline[baseline][name]
            assert gaps[name]["value"] == pytest.approx(gap, abs=1e-5)


@pytest.mark.contract("E3")
def test_differences_to_a_baseline_have_paired_intervals(flipped_run: finetune.Run) -> None:
    """With 2,500 rows they are as wide as the paired bootstrap's; accuracy has Newcombe's."""
    training, table = flipped_run.recipe().splits["train"], flipped_run.predictions
    terms, test_terms = bag_of_words(training["text"][:], table["text"].tolist())
    labels = np.array(training["label"][:])
    words = LogisticRegression(C=10, max_iter=1000).fit(terms, labels).predict(test_terms)
    true, probabilities = classes_of(flipped_run)
    predicted = probabilities.argmax(axis=1)
    constant = np.full(len(true), np.bincount(labels).argmax())
    differences = flipped_run.statistics.differences.values()
    for gaps, other in zip(differences, (constant, words), strict=True):

        def gain(rows: np.ndarray, other: np.ndarray = other) -> float:
            return macro_f1(true[rows], predicted[rows], 2) - macro_f1(true[rows], other[rows], 2)

        assert gaps["f1"]["value"] == pytest.approx(gain(np.arange(len(true))), abs=1e-6)
        ratio = (gaps["f1"]["high"] - gaps["f1"]["low"]) / spread(gain, len(true))
        assert 0.88 < ratio < 1.2
        ends = [gaps["accuracy"]["low"], gaps["accuracy"]["high"]]
        assert ends == pytest.approx(newcombe(true, other, predicted), abs=1e-6)


#: Words of a verdict, and the signs of both ends of the interval of the difference.
VERDICTS = {"not beat": 0, "not better": 0, "beats": 1, "better than": 1, "worse than": -1}


def verdicts(text: str, baseline: str) -> set[int]:
    """Return the verdicts on a baseline in the sentences of a page, as values of `VERDICTS`."""
    pattern = rf"({'|'.join(VERDICTS)})[^.]*{re.escape(baseline)}"
    return {VERDICTS[verb] for verb in re.findall(pattern, " ".join(text.split()))}


@pytest.mark.contract("E3")
def test_a_model_that_beats_no_baseline_is_reported_as_such(
    reviews: Path, bert: Path, tmp_path: Path, cli: Callable[..., Finished]
) -> None:
    """The end of the training, the report and the card name the baseline."""
    words = ["--dataset", reviews, "--model", bert, "--output_dir", tmp_path / "run"]
    words += ["--max_steps", "1", "--learning_rate", "1e-9", "--max_length", "64"]
    result = cli("text", *words, "--precision", "fp32", "--disable_tqdm", "true").succeeded()
    run = finetune.Run.load(tmp_path / "run")
    assert run.metrics.baseline["TF-IDF + logistic regression"]["f1"] > run.metrics.test["f1"]
    for text in (
        result.output,
        Page(run.path / "report.html").text,
        (run.path / "README.md").read_text(encoding="utf-8"),
    ):
        assert verdicts(text, "TF-IDF + logistic regression") == {-1}
    for name, value in run.metrics.test.items():
        if name != "loss":
            assert f"{value:.4f}" in result.stdout


@pytest.mark.contract("E3")
@pytest.mark.parametrize("run", ["flipped_run", "single_label_run"], indirect=True)
def test_the_verdict_follows_the_interval(run: finetune.Run) -> None:
    """Report and card state for each baseline whether the model beats it."""
    assert run.statistics.differences["majority class"]["f1"]["low"] > 0
    card = (run.path / "README.md").read_text(encoding="utf-8")
    for text in (Page(run.path / "report.html").text, card):
        for baseline, gaps in run.statistics.differences.items():
            sign = int(gaps["f1"]["low"] > 0) - int(gaps["f1"]["high"] < 0)
            assert verdicts(text, baseline) == {sign}


# ---- E6 ------------------------------------------------------------------------------------------


def newcombe(true: np.ndarray, first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Return Newcombe's interval (1998, method 10) for the difference of paired accuracies."""
    one, other, rows = first == true, second == true, len(true)
    a, b = int((one & other).sum()), int((one & ~other).sum())
    c, d = int((~one & other).sum()), int((~one & ~other).sum())
    before, after = (
        stats.binomtest(count, rows).proportion_ci(method="wilson") for count in (a + b, a + c)
    )
    product = (a + b) * (c + d) * (a + c) * (b + d)
    together = a * d - b * c
    together = max(0.0, together - rows / 2) if together > 0 else together
    phi = together / np.sqrt(product) if product else 0.0
    x, y = (a + b) / rows, (a + c) / rows

    def reach(up: float, down: float) -> float:
        return float(np.sqrt(up**2 - 2 * phi * up * down + down**2))

    return (
        y - x - reach(y - after.low, before.high - x),
        y - x + reach(after.high - y, x - before.low),
    )


@pytest.fixture
def drawn_runs(
    single_label_run: finetune.Run, copy_run: Callable[..., finetune.Run], tmp_path: Path
) -> list[finetune.Run]:
    """Two runs with 700 simulated predictions; the second is right more often."""
    generator = np.random.default_rng(0)
    true = generator.integers(2, size=700)
    hard = generator.normal(size=700)
    runs = []
    for name, skill in (("weak", 0.7), ("strong", 1.5)):
        run = copy_run(single_label_run)
        run.path.rename(tmp_path / name)
        noise = 0.7 * hard + generator.normal(size=700)
        good = 1 / (1 + np.exp(-(skill * (2 * true - 1) + noise)))
        names = np.array(["bad", "good"])
        frame = pd.DataFrame(
            {
                "id": np.arange(700),
                "text": [f"row {n}" for n in range(700)],
                "tokens": 4,
                "label": names[true],
                "prediction": names[(good > 0.5).astype(int)],
                "probability of bad": 1 - good,
                "probability of good": good,
            }
        )
        frame.to_parquet(tmp_path / name / "predictions.parquet")
        runs.append(finetune.Run.load(tmp_path / name))
    return runs


@pytest.mark.contract("E6")
def test_differences_of_runs_are_paired(drawn_runs: list[finetune.Run]) -> None:
    """Value and interval on 700 rows equal those by hand; the second minus the first."""
    first, second = drawn_runs
    comparison = finetune.compare([first, second])
    true, first_scores = classes_of(first)
    _, second_scores = classes_of(second)
    first_classes, second_classes = first_scores.argmax(axis=1), second_scores.argmax(axis=1)
    assert (comparison.names, comparison.rows) == ([str(first.path), str(second.path)], 700)
    before, after = (of_classes(true, p, ordered=False) for p in (first_scores, second_scores))
    (gaps,) = comparison.differences
    assert gaps.keys() == before.keys()
    for name, gap in gaps.items():
        assert gap["value"] == pytest.approx(after[name] - before[name], abs=1e-6), name
        assert comparison.metrics[1][name]["value"] == pytest.approx(after[name], abs=1e-6)
        sign = -1 if name in ("log_loss", "brier_score") else 1
        assert min(sign * gap["low"], sign * gap["high"]) > 0, name
    ends = [gaps["accuracy"]["low"], gaps["accuracy"]["high"]]
    assert ends == pytest.approx(newcombe(true, first_classes, second_classes), abs=1e-6)
    pairs = [measures_of_classes(true, p) for p in (first_scores, second_scores)]
    for name in pairs[0]:
        width = spread(lambda rows: pairs[1][name](rows) - pairs[0][name](rows), 700)  # noqa: B023
        for end in ("low", "high"):  # each end in turn: the rows are always the same
            ratio = 2 * abs(gaps[name][end] - gaps[name]["value"]) / width
            assert 0.88 < ratio < 1.2, (name, end, ratio)
    assert set(comparison.disagreements) == set(np.flatnonzero(first_classes != second_classes))
    assert re.search(
        r"strong\b.* (better|beats)\b.*weak|weak\b.* worse\b.*strong", comparison.verdicts[0]
    )
    (back,) = finetune.compare([second, first]).differences
    assert back["f1"]["value"] == pytest.approx(-gaps["f1"]["value"])
    assert back["f1"]["high"] < 0


@pytest.mark.contract("E6")
def test_several_comparisons_are_corrected_for_their_number(
    drawn_runs: list[finetune.Run], tmp_path: Path
) -> None:
    """Holm's method, by hand from the intervals of the first metric: a difference that is
    significant in one comparison may be chance among five.
    """
    first, _ = drawn_runs
    wrong = np.flatnonzero(first.predictions["prediction"] != first.predictions["label"])
    runs = []
    for number, count in enumerate((12, 6, 6, 6, 6)):  # rows that only this run gets right
        path = shutil.copytree(first.path, tmp_path / f"{number} corrected {count}")
        table = first.predictions.copy()
        for row in wrong[:count]:
            label = table.loc[row, "label"]
            table.loc[row, ["prediction", f"probability of {label}"]] = [label, 0.51]
            other = {"good": "bad", "bad": "good"}[label]
            table.loc[row, f"probability of {other}"] = 0.49
        table.to_parquet(path / "predictions.parquet")
        runs.append(finetune.Run.load(path))
    comparison = finetune.compare([first, *runs])
    gaps = [differences["f1"] for differences in comparison.differences]
    raw = [2 * stats.norm.sf(1.96 * gap["value"] / (gap["value"] - gap["low"])) for gap in gaps]
    assert max(raw) < 0.05
    assert 5 * raw[0] < 0.05 < 4 * min(raw[1:])
    assert ["may be chance" in verdict for verdict in comparison.verdicts] == [False] + 4 * [True]
    assert all("Holm" in verdict for verdict in comparison.verdicts)
    for run in runs:
        (verdict,) = finetune.compare([first, run]).verdicts
        assert "better" in verdict
        assert not re.search("chance|Holm", verdict)


@pytest.mark.contract("E6")
def test_a_page_is_not_overwritten_unless_it_is_named(
    single_label_run: finetune.Run, tmp_path: Path, cli: Callable[..., Finished]
) -> None:
    """Without `--output` the next unused name is used and printed."""
    folder = tmp_path / "cwd"  # the working directory of `cli`
    folder.mkdir()
    (folder / "comparison.html").write_text("mine")
    result = cli("compare", single_label_run.path, single_label_run.path)
    assert (folder / "comparison.html").read_text() == "mine"
    assert "comparison.1.html" in result.stdout
    assert "table" in Page(folder / "comparison.1.html").tags


@pytest.mark.contract("E6")
@pytest.mark.parametrize("run", RUNS, indirect=True)
def test_a_run_does_not_differ_from_itself(run: finetune.Run) -> None:
    """Every difference is 0, and no setting differs."""
    comparison = finetune.compare([run, run.path])
    gaps = comparison.differences[0]
    assert gaps.keys() == figures(run).keys()
    for name, gap in gaps.items():
        assert gap["value"] == pytest.approx(0, abs=1e-12)
        has_interval = not np.isnan(run.statistics.metrics[name]["low"])
        assert (gap["low"] <= 0 <= gap["high"]) is has_interval, name
    assert (len(comparison.disagreements), comparison.settings) == (0, {})


@pytest.mark.contract("E6")
def test_two_trainings_are_compared(
    single_label_run: finetune.Run,
    second_seed_run: finetune.Run,
    tmp_path: Path,
    cli: Callable[..., Finished],
) -> None:
    """The command prints the difference and the changed setting, and writes a page."""
    page = tmp_path / "page.html"
    result = cli("compare", single_label_run.path, second_seed_run.path, "--output", page)
    assert result.status == 0, result.output
    comparison = finetune.compare([single_label_run, second_seed_run])
    assert comparison.settings["seed"] == ["42", "7"]
    shutil.copytree(single_label_run.path, tmp_path / "copy")
    patient = finetune.Run.load(tmp_path / "copy")
    patient.update(arguments=patient.manifest.arguments | {"early_stopping_patience": 5})
    assert finetune.compare([single_label_run, patient]).settings == {
        "early_stopping_patience": ["None", "5"]
    }
    assert comparison.headline == ["f1", "accuracy"]
    assert {"seed", "data_seed", "command"} >= comparison.settings.keys()
    (gaps,) = comparison.differences
    before, after = figures(single_label_run), figures(second_seed_run)
    for name in ("accuracy", "f1", "roc_area", "log_loss"):
        assert gaps[name]["value"] == pytest.approx(after[name] - before[name], abs=1e-6)
    lines = [line for line in result.stdout.splitlines() if "difference to" in line]
    (line,) = [line for line in lines if len(re.findall(r"\d\.\d{4}", line)) == 2]
    numbers = line.partition(str(single_label_run.path))[2].split()
    assert_shown(numbers, *(gaps["f1"][end] for end in ("value", "low", "high")))
    assert re.search(r"\bseed\b.*\b42\b.*\b7\b", result.stdout)
    (line,) = [line for line in result.stdout.splitlines() if "TF-IDF" in line]
    baseline = single_label_run.metrics.baseline["TF-IDF + logistic regression"]
    assert_shown(re.findall(r"\d\.\d+", line), baseline["f1"], baseline["accuracy"])
    parsed = Page(page)
    assert str(second_seed_run.path) in parsed.text
    assert_no_network(parsed)


@pytest.mark.contract("E6")
@pytest.mark.parametrize(
    ("change", "fragments"),
    [
        (lambda table: table.iloc[:-1], ["test rows", "--split_seed", "--eval_samples"]),
        (lambda table: table.iloc[::-1].reset_index(drop=True), ["test rows", "--split_seed"]),
        (lambda table: table.assign(text=table["text"] + "."), ["test rows", "--dataset"]),
        (
            lambda table: table.assign(label=["bad", *table["label"][1:-1], "bad"]),
            ["labels", "--label_column"],
        ),
    ],
    ids=["fewer rows", "another order", "other texts", "other labels"],
)
def test_runs_on_other_rows_are_refused(
    single_label_run: finetune.Run,
    copy_run: Callable[..., finetune.Run],
    change: Callable[[pd.DataFrame], pd.DataFrame],
    fragments: list[str],
) -> None:
    """The message names the difference and the flags that remove it."""
    other = copy_run(single_label_run)
    change(other.predictions).to_parquet(other.path / "predictions.parquet")
    with user_error(*fragments, str(single_label_run.path), str(other.path)):
        finetune.compare([single_label_run, other])


@pytest.mark.contract("E6")
def test_runs_of_other_tasks_are_refused(
    single_label_run: finetune.Run,
    multi_label_run: finetune.Run,
    regression_run: finetune.Run,
    ordinal_run: finetune.Run,
) -> None:
    """The message names the tasks or classes; a single run is refused, too."""
    for other, fragments in (
        (multi_label_run, ["single_label", "multi_label"]),
        (regression_run, ["single_label", "regression"]),
        (ordinal_run, ["mixed"]),
    ):
        with user_error(*fragments):
            finetune.compare([single_label_run, other])
    with pytest.raises(finetune.UserError, match="two"):
        finetune.compare([single_label_run])


# ---- E7 ------------------------------------------------------------------------------------------


def assert_no_network(page: Page) -> None:
    """Assert that a page has no scripts and loads no other resource."""
    assert not {"script", "link", "iframe", "object", "embed", "base"} & {*page.tags}
    for tag, name, value in page.attributes:
        if name in ("src", "srcset", "poster", "data", "action", "background", "xlink:href"):
            assert value.startswith(("data:", "#")), (tag, name, value)
        if name == "href" and tag != "a":
            assert value.startswith(("data:", "#")), (tag, value)
        assert not name.startswith("on"), (tag, name)
    styles = page.style + " ".join(value for _, name, value in page.attributes if name == "style")
    assert "@import" not in styles
    assert not re.search(r"url\(\s*['\"]?(?!data:|#|['\")])", styles)


@pytest.mark.contract("E7")
@pytest.mark.parametrize("run", RUNS, indirect=True)
def test_a_report_is_one_file_for_every_screen(run: finetune.Run) -> None:
    """It needs no other file and no network, fits a phone, and has dark colors."""
    page = Page(run.path / "report.html")
    assert_no_network(page)
    assert page.tags.count("svg") >= len([*(run.path / "plots").glob("*.png")]) > 0
    metas = [value for tag, name, value in page.attributes if tag == "meta" and name == "content"]
    assert any("width=device-width" in value for value in metas)
    assert "prefers-color-scheme: dark" in page.style
    assert "overflow-x: auto" in page.style
    ids = [value for _, name, value in page.attributes if name == "id"]
    links = [value for tag, name, value in page.attributes if (tag, name) == ("a", "href")]
    assert {link[1:] for link in links if link.startswith("#")} <= {*ids}


@pytest.mark.contract("E7", "E1")
def test_the_report_is_made_again_from_the_directory(
    single_label_run: finetune.Run,
    copy_run: Callable[..., finetune.Run],
    cli: Callable[..., Finished],
) -> None:
    """`report RUN` writes lost pages, plots, cards and suspects with the same figures."""
    run = copy_run(single_label_run)
    lost = ["report.html", "README.md", "suspects.csv"]
    lines = (run.path / "suspects.csv").read_bytes().count(b"\n")
    for name in lost:
        (run.path / name).unlink()
    shutil.rmtree(run.path / "plots")
    assert cli("report", run.path).status == 0
    rows, again = (Page(r.path / "report.html").rows for r in (single_label_run, run))
    assert rows == again
    assert any((run.path / "plots").glob("*.png"))
    assert (run.path / "suspects.csv").read_bytes().count(b"\n") == lines > 1


# ---- E9 ------------------------------------------------------------------------------------------


def write_flipped(folder: Path, splits: dict[str, list[tuple[str, str]]]) -> Path:
    """Write splits of texts with two labels, and flip 5% of the training and test labels.

    The true label of each text is in `right.json` beside the folder.
    """
    folder.mkdir()
    generator = np.random.default_rng(0)
    first, second = sorted({label for rows in splits.values() for _, label in rows})
    for split, rows in splits.items():
        wrong = {*generator.permutation(len(rows))[: len(rows) // 20 * (split != "validation")]}
        other = {first: second, second: first}
        flipped = [(text, other[y] if n in wrong else y) for n, (text, y) in enumerate(rows)]
        data.write_csv(folder / f"{split}.csv", ["text", "label"], flipped)
    right = {text: label for rows in splits.values() for text, label in rows}
    folder.with_name("right.json").write_text(json.dumps(right))
    return folder


def mislabelled(run: finetune.Run, folder: Path, fewest: int) -> np.ndarray:
    """Return which of the listed rows have a flipped label, at least half of them."""
    right = json.loads(folder.with_name("right.json").read_text())
    listed = pd.read_csv(run.path / "suspects.csv", dtype=str, keep_default_na=False)
    is_suspected = listed["why"] == "label may be wrong"
    suspected = listed[is_suspected]
    assert len(suspected) >= fewest
    assert is_suspected.tolist() == sorted(is_suspected, reverse=True)
    is_wrong = np.array([right[row["text"]] != row["label"] for _, row in listed.iterrows()])
    assert is_wrong[is_suspected].mean() >= 0.5
    assert (suspected["suggested"] != suspected["label"]).all()
    tested = run.predictions.set_index("text")
    chosen = tested.loc[listed["text"]]
    assert chosen["label"].tolist() == listed["label"].tolist()
    assert chosen["prediction"].tolist() == listed["suggested"].tolist()
    assert set(listed["split"]) == {"test"}
    return is_wrong


def opinions(rows: int) -> list[tuple[str, str]]:
    """Return texts of seven words, most of which depend on the label; two thirds are good."""
    draw = random.Random(0)
    texts = []
    for number in draw.sample(range(10_000), rows):
        label, other = ("good", "bad") if len(texts) % 3 else ("bad", "good")
        chosen = [label if draw.random() < 0.8 else other for _ in range(7)]
        words = " ".join(draw.choice(data.WORDS[name]) for name in chosen)
        texts.append((f"{draw.choice(data.PLACES)} {number}: {words}", label))
    return texts


@pytest.fixture(scope="session")
def flipped(shared_directory: Path) -> Path:
    """A directory of splits with 5% flipped labels."""
    rows = opinions(3600)
    splits = {"train": rows[:1000], "validation": rows[1000:1100], "test": rows[1100:]}
    return once(shared_directory / "flipped", lambda path: write_flipped(path, splits))


@pytest.fixture(scope="session")
def flipped_run(trained: Trained, flipped: Path, bert: Path) -> finetune.Run:
    """A run on rows with 5% flipped labels."""
    return trained("flipped", "text", dataset=str(flipped), model=str(bert))


@pytest.mark.contract("E9")
def test_most_suspected_labels_are_wrong(flipped_run: finetune.Run, flipped: Path) -> None:
    """With 5% flipped labels, at least half of the listed rows are flipped ones."""
    is_wrong = mislabelled(flipped_run, flipped, fewest=4)
    assert is_wrong.mean() >= 0.5


@pytest.mark.contract("E9", "E3")
@pytest.mark.slow
def test_most_suspected_labels_of_real_sentences_are_wrong(tmp_path: Path) -> None:
    """The same holds for MiniLM on the embedded sentences, which beats TF-IDF."""
    recipe = Text(dataset="embedded:rotten-tomatoes", model="embedded:minilm")
    names = recipe.splits["train"].features["label"].names
    splits = {
        split: [(row["text"], names[row["label"]]) for row in rows.shuffle(seed=0)]
        for split, rows in recipe.splits.items()
    }
    splits["train"] = splits["train"][:3000]
    folder = write_flipped(tmp_path / "sentences", splits)
    options = TRAINING | dict(learning_rate=1e-4, num_train_epochs=1, global_batch_size=32)
    options |= dict(dataset=str(folder), model="embedded:minilm")
    run = finetune.train("text", output_dir=str(tmp_path / "run"), **options)
    mislabelled(run, folder, fewest=4)
    assert run.statistics.differences["TF-IDF + logistic regression"]["accuracy"]["low"] > 0


@pytest.mark.contract("E9")
def test_an_edited_list_is_applied(
    flipped_run: finetune.Run, flipped: Path, bert: Path, tmp_path: Path
) -> None:
    """`--relabel` changes the edited rows and drops those marked, and no others."""
    listed = pd.read_csv(flipped_run.path / "suspects.csv", dtype=str, keep_default_na=False)
    listed.loc[0, "new_label"] = listed.loc[0, "suggested"]
    listed.loc[1, "new_label"] = "drop"
    listed.to_csv(tmp_path / "edited.csv", index=False)
    options = dict(dataset=str(flipped), model=str(bert))
    expected = pd.read_csv(flipped / "test.csv").set_index("text")["label"].to_dict()
    rows = Text(relabel=str(tmp_path / "edited.csv"), **options).splits["test"]
    names = rows.features["label"].names
    relabelled = dict(zip(rows["text"][:], (names[i] for i in rows["label"][:]), strict=True))
    checked = finetune.check("text", relabel=str(tmp_path / "edited.csv"), **options)
    assert checked.splits["test"].rows == len(expected) - 1
    excluded = Text(exclude=str(tmp_path / "edited.csv"), **options).splits["test"]["text"][:]
    assert {*expected} - {*excluded} == {*listed["text"]}
    expected[listed.loc[0, "text"]] = listed.loc[0, "suggested"]
    del expected[listed.loc[1, "text"]]
    assert relabelled == expected


# ---- E10 -----------------------------------------------------------------------------------------


@pytest.mark.contract("E10")
@pytest.mark.parametrize(
    "variable",
    [
        "GLOO_SOCKET_IFNAME",
        pytest.param(
            "NCCL_SOCKET_IFNAME",
            marks=pytest.mark.skipif(
                not torch.distributed.is_nccl_available(), reason="this torch has no NCCL"
            ),
        ),
    ],
)
def test_doctor_shows_the_machine_and_what_to_export(
    cli: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """It prints devices, interfaces, and the line to type for a wrong variable."""
    monkeypatch.setenv(variable, "nosuch0")
    result = cli("doctor").succeeded()
    # not the accelerator that torch was built for, if the machine has none
    kind = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    assert re.search(rf"(?is)\bdevices?\b.{{,80}}\b{kind}\b", result.stdout)
    assert {"nccl", "gloo"} <= {*re.findall(r"\w+", result.stdout)}
    states = psutil.net_if_stats()
    addresses = {
        name: [a.address for a in entries if a.family in (socket.AF_INET, socket.AF_INET6)]
        for name, entries in psutil.net_if_addrs().items()
    }
    up = [name for name, some in addresses.items() if states[name].isup and some]
    listed = [
        re.findall(r"[\w.@:-]+", line)
        for line in result.stdout.splitlines()
        if "interfaces" in line
    ]
    assert any([word for word in words if word in up] == up for words in listed)
    to_others = [
        name for name in up
        if not all((ip := ip_address(a)).is_loopback or ip.is_link_local for a in addresses[name])
    ]  # fmt: skip
    exported = re.findall(rf"\bexport {variable}='?=?([^'\s]+)", result.stdout)
    if to_others:
        assert set(exported) <= {*to_others}
        assert len(exported) == 1
    else:
        assert re.search(rf"\bunset {variable}\b", result.stdout)
    assert f"{variable}=nosuch0" in result.stdout
    assert torch.__version__ in result.stdout


@pytest.mark.contract("A14", "A15", "E10")
@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("python", ["--num_processes", 2]),
        pytest.param("torchrun", [], marks=pytest.mark.slow),
    ],
)
def test_doctor_times_an_all_reduce_of_two_processes(
    command: Commands, launcher: str, words: list[Any]
) -> None:
    """Two ranks time an all-reduce of DDP's bucket sizes."""
    result = command("doctor", "--json", *words, launcher=launcher).succeeded()
    assert re.search(r"\b2 (of|/) 2\b", result.stderr)
    rows = re.findall(r"(\d+) MB\D+([\d.]+)\D+([\d.]+)\D+([\d.]+)", result.stderr)
    answer = json.loads(result.stdout)  # of rank 0 only
    assert (len(answer["hosts"]), answer["devices"]["training"][:7]) == (2, "runs on")
    for row, times in zip(rows, answer["all_reduces"], strict=True):
        assert float(row[1]) == pytest.approx(times["seconds"] * 1e3, abs=0.01)
    assert [int(size) for size, *_ in rows[:2]] == [1, 25]
    for size, milliseconds, rate, bus in rows:
        assert float(milliseconds) > 0
        expected = int(size) / float(milliseconds)  # MB/ms is GB/s
        assert float(rate) == pytest.approx(expected, rel=0.1, abs=0.01)
        assert float(bus) == pytest.approx(float(rate), abs=0.011)  # 2 (n - 1) / n is 1 for two


# ---- E11 -----------------------------------------------------------------------------------------


def library_state() -> list[Any]:
    """Return the levels, handlers and progress bars of the libraries."""
    loggers = [logging.getLogger(name) for name in (None, "transformers", "datasets", "finetune")]
    return [
        *((logger.level, logger.propagate, [*logger.handlers]) for logger in loggers),
        transformers.logging.get_verbosity(),
        transformers.utils.logging.is_progress_bar_enabled(),
        datasets.utils.logging.get_verbosity(),
        datasets.are_progress_bars_disabled(),
        huggingface_hub.utils.are_progress_bars_disabled(),
        huggingface_hub.utils.logging.get_verbosity(),
    ]


VERBS: dict[str, Callable[[finetune.Run, Path, dict[str, Any]], Any]] = {
    "train": lambda run, folder, options: finetune.train(
        "text", output_dir=str(folder / "run"), **(SHORT | options)
    ),
    "check": lambda run, folder, options: finetune.check("text", **options),
    "evaluate": lambda run, folder, options: finetune.evaluate(run),
    "evaluate data": lambda run, folder, options: finetune.evaluate(run, options["dataset"]),
    "predict": lambda run, folder, options: finetune.predict(run, ["a text"]),
    "predict_file": lambda run, folder, options: finetune.predict_file(
        run, options["dataset"], folder / "out.csv"
    ),
    "compare": lambda run, folder, options: finetune.compare([run, run], folder / "page.html"),
    "report": lambda run, folder, options: finetune.report(run),
    "push": lambda run, folder, options: finetune.push(run, "name", dry_run=True),
}


@pytest.mark.contract("E11")
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("unusual", [False, True], ids=["usual", "changed by the caller"])
def test_functions_print_nothing_and_change_no_logging(
    single_label_run: finetune.Run,
    copy_run: Callable[..., finetune.Run],
    reviews: Path,
    bert: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    verb: str,
    unusual: bool,
) -> None:
    """The settings of the caller stay, and standard output stays empty."""
    run = copy_run(single_label_run)
    before = library_state()
    if unusual:
        transformers.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        datasets.utils.logging.set_verbosity_error()
        datasets.disable_progress_bars()
    else:
        transformers.utils.logging.enable_progress_bar()
        datasets.enable_progress_bars()
    chosen = library_state()
    capfd.readouterr()
    try:
        VERBS[verb](run, tmp_path, dict(dataset=str(reviews), model=str(bert)))
        assert library_state() == chosen
        out, err = capfd.readouterr()
        assert out == ""
        if verb != "train" or unusual:  # else it has progress bars
            assert err == ""
    finally:
        transformers.logging.set_verbosity(before[4])
        (transformers.utils.logging.enable_progress_bar if before[5] else (lambda: None))()
        datasets.utils.logging.set_verbosity(before[6])
        (datasets.disable_progress_bars if before[7] else datasets.enable_progress_bars)()


@pytest.mark.contract("A2", "E11")
def test_every_verb_is_a_function(
    single_label_run: finetune.Run, reviews: Path, bert: Path, tmp_path: Path
) -> None:
    """They return the documented types, with these attributes."""
    run = single_label_run
    assert all(callable(getattr(finetune, verb.split()[0])) for verb in (*VERBS, "launch"))
    assert finetune.Run.load(str(run.path)).path == finetune.Run.load(run).path == run.path
    manifest = run.manifest
    assert (manifest.status, manifest.recipe) == ("finished", "text")
    assert manifest.task == run.task.name == "single_label"
    for name, value in (("run.json", manifest), ("metrics.json", run.metrics)):
        stored = json.loads((run.path / name).read_text())
        assert stored["schema"] == value.schema == value["schema"] == 1
    assert run.metrics.validation == stored["validation"]
    assert manifest.options["dataset"] == str(reviews)
    assert manifest.arguments["learning_rate"] == 3e-3
    assert manifest["labels"] == manifest.labels == run.labels == ["bad", "good"]
    assert sum(manifest.data.rows.values()) == 240
    assert manifest.launch.world_size == 1
    assert manifest.versions["transformers"] == transformers.__version__
    assert manifest.steps is not None
    steps = [row["step"] for row in manifest.history if "eval_loss" in row]
    assert steps == [manifest.steps // 3, manifest.steps * 2 // 3, manifest.steps]
    assert run.metrics["test"] == run.metrics.test == stored["test"]
    assert run.metrics["statistics"]["rows"] == run.statistics.rows == len(run.predictions) == 48
    interval = run.statistics.metrics["accuracy"]
    assert interval["low"] < interval["value"] == run.metrics.test["accuracy"] < interval["high"]
    assert run.unfinished is None
    shutil.copytree(run.path, tmp_path / "continued")
    continued = finetune.Run.load(tmp_path / "continued")
    continued.update(steps=None, status="running")
    with pytest.warns(UserWarning, match="was resumed and has not finished"):
        finetune.predict(continued, ["a text"])
    assert type(run.recipe()).__name__ == "Text"
    assert run.recipe().model == str(run.path)
    model = run.model()
    assert not model.training
    assert model.config.num_labels == 2
    options = dict(dataset=str(reviews), model=str(bert), global_batch_size=16, num_train_epochs=3)
    checked = finetune.check("text", **options)
    assert checked.status == 3  # 30 steps are few
    rows = {name: split.rows for name, split in checked.splits.items()}
    assert rows == manifest.data.rows
    assert checked.steps == manifest.steps
    warnings = [f.message for f in checked.findings if f.severity == "warning"]
    assert [message.partition(":")[0] for message in warnings] == ["30 optimizer steps"]
    assert [f.severity for f in checked.findings] == ["warning", "info", "info"]
    evaluation = finetune.evaluate(run)
    assert evaluation.notes == []
    comparison = finetune.compare([run, run])
    assert (len(comparison.metrics), len(comparison.differences)) == (2, 1)
    assert [len(table) for table in comparison.tables] == [len(run.predictions)] * 2
