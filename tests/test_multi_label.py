"""Any number of labels a row: cells and columns that hold them, statistics, thresholds, and the
whole path on a tiny model.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics
import torch
from scipy.special import expit
from transformers import pipeline

import finetune
from finetune import Run, TextRecipe, UserError
from finetune.pipeline.compare import compare
from finetune.pipeline.evaluate import evaluate
from finetune.reporting import wording
from finetune.statistics import average_precision, multi_label
from finetune.statistics.scored import ScoredLabels
from finetune.tasks.multi_label import MultiLabel
from tests.jobs import jobs
from tests.warm import Servers

WORDS = {"service": "waiter", "food": "soup", "price": "bill"}


class Texts(TextRecipe):
    """Of a file."""

    dataset: str = ""


def table(rows: int = 240) -> pd.DataFrame:
    """Texts that say which labels they have: none, one, two or three."""
    found = []
    for number in range(rows):
        names = [name for place, name in enumerate(WORDS) if number >> place & 1]
        said = " and ".join(WORDS[name] for name in names) or "weather"
        found.append({"text": f"the {said} of visit {number}", "label": names})
    return pd.DataFrame(found)


def written(path: Path, labels: list[Any]) -> str:
    frame = pd.DataFrame({"text": [f"text {n}" for n in range(len(labels))], "label": labels})
    frame.to_json(path, orient="records", lines=True)
    return str(path)


def loaded(path: str, **options: Any) -> tuple[list[str], list[list[int]]]:
    recipe = Texts(dataset=path, **options)
    rows = recipe.load()["train"]
    assert recipe.task == "multi_label"
    return list(rows.features["label"].feature.names), rows["label"][:]


# ---- how labels are read -------------------------------------------------------------------------

CELLS: list[Any] = [["b", "a"], [], ["c", "c "], ["a"]]


def test_a_column_of_lists(tmp_path: Path) -> None:
    assert loaded(written(tmp_path / "rows.jsonl", CELLS)) == (
        ["a", "b", "c"],
        [[0, 1], [], [2], [0]],
    )


def test_lists_in_json_and_in_python_syntax(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    cells = ['["b", "a"]', "[]", "['c', 'c ']", '["a"]']
    pd.DataFrame({"text": ["one", "two", "three", "four"], "label": cells}).to_csv(path)
    assert loaded(str(path)) == (["a", "b", "c"], [[0, 1], [], [2], [0]])


def test_an_empty_list_has_no_labels_beside_a_separator(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", ["b; a", "[]", "c"])
    assert loaded(path, label_separator=";") == (["a", "b", "c"], [[0, 1], [], [2]])


def test_an_empty_field_beside_a_separator_is_refused_with_what_to_write(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text,label\none,a;b\ntwo,\nthree,b\n")
    with pytest.raises(UserError, match=r"in 'label' \(a row .* is written \[\]\): line 3; --drop"):
        loaded(str(path), label_separator=";")


def test_labels_with_a_separator(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", ["b; a", "c", "c;;c", "a"])
    names, rows = loaded(path, label_separator=";")
    assert (names, rows) == (["a", "b", "c"], [[0, 1], [2], [2], [0]])


@pytest.mark.parametrize(
    ("true", "false"), [(1, 0), (True, False), ("1", "0"), (1.0, 0.0), ("yes", "no")]
)
def test_a_column_for_each_label(tmp_path: Path, true: Any, false: Any) -> None:
    frame = pd.DataFrame(
        {"text": list("abcd"), "sad": [true, false, false, true], "fun": [true, false, true, false]}
    )
    frame.to_parquet(path := tmp_path / "rows.parquet")
    options = {"task": "multi_label"} if true == "yes" else {}
    names, rows = loaded(str(path), label_columns="sad,fun", **options)
    assert (names, rows) == (["sad", "fun"], [[0, 1], [], [1], [0]])


def test_labels_are_renamed_and_merged(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", CELLS)
    assert loaded(path, label_map="a=x,b=x") == (["c", "x"], [[1], [], [0], [1]])


def test_whole_numbers_are_labels(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", [[10, 2], [], [2], [1]])
    assert loaded(path) == (["1", "2", "10"], [[1, 2], [], [1], [0]])


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([["a"], ["a", "b"], "b"], {"task": "multi_label"}, "holds 'b': line 3"),
        ([["a"], ["a", "b"], "b"], {"task": "multi_label"}, 'like the others; write ["b"]'),
        ([["a"], ["a", "b"], 5], {}, 'expected a list like the others; write ["5"]'),
        ([[1], [1, 2], 5], {}, "line 3; expected a list like the others; write [5]"),
        ([3, 4], {"task": "multi_label"}, "; one label a row is --task single_label"),
        (["a", "b"], {"task": "multi_label"}, "separated by commas are --label_separator ','"),
        ([["a"], ["a", None]], {}, "1 of 2 train rows without a label"),
        ([["1"], [], [1]], {}, "expected a list of words"),
        (['["a"]', '["a", "b"]', "b"], {}, "holds 'b': line 3; expected a list like the others"),
        ([["a"], [1.5]], {"task": "multi_label"}, "holds [1.5]: line 2; expected a list of words"),
        (["a", "b"], {"label_separator": ";", "task": "single_label"}, "a row has one label, with"),
        (["a;b"], {"label_separator": ""}, "--label_separator: expected a character such as ';'"),
        ([["a"], None], {}, "1 of 2 train rows without a label"),
        ([["a"], [["b"]]], {}, "--label_column: 'label' holds [['b']]: line 2"),
    ],
)
def test_cells_that_cannot_be_read(
    tmp_path: Path, labels: list[Any], options: dict[str, Any], message: str
) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"text": f"text {n}", "label": each}) for n, each in enumerate(labels)]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError) as refusal:
        Texts(dataset=str(path), **options).load()
    assert message in str(refusal.value)


def test_a_column_of_other_values_is_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame({"text": list("abc"), "sad": [0, 1, 2], "fun": [0, 1, 1]})
    frame.to_parquet(tmp_path / "rows.parquet")
    frame.to_csv(tmp_path / "rows.csv", index=False)
    for name, place in (("rows.parquet", "row 3"), ("rows.csv", "line 4")):
        texts = Texts(dataset=str(tmp_path / name), label_columns="sad,fun", task="multi_label")
        with pytest.raises(UserError) as refusal:
            texts.load()
        told = f"--label_columns: 'sad' holds '2': {place}; expected 0 and 1"
        assert str(refusal.value) == told
    frame.astype({"fun": str}).replace({"fun": {"0": "x"}}).to_csv(tmp_path / "words.csv")
    with pytest.raises(UserError, match=r"'fun' holds 'x': line 2; expected 0 and 1 in"):
        Texts(dataset=str(tmp_path / "words.csv"), label_columns="sad,fun").load()


def test_a_single_column_of_several_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", CELLS)
    with pytest.raises(UserError, match="--label_columns sad: expected two columns or more"):
        Texts(dataset=path, label_columns="sad").load()


@pytest.mark.parametrize("cell", [[], "[]"])
def test_training_rows_that_all_have_no_label_are_refused(tmp_path: Path, cell: Any) -> None:
    path = written(tmp_path / "rows.jsonl", [cell] * 40)
    with pytest.raises(
        UserError, match="no training row has a label: all lists of labels in 'label' are empty"
    ):
        _ = Texts(dataset=path, task="multi_label").splits


def test_labels_that_training_does_not_have_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    table(40).to_json(tmp_path / "data" / "train.jsonl", orient="records", lines=True)
    other = table(10)
    other["label"] = [["food"], ["fod"]] * 5
    other["text"] += " again"
    other.to_json(tmp_path / "data" / "test.jsonl", orient="records", lines=True)
    with pytest.raises(
        UserError, match="test data has labels in 'label' that the training data does not"
    ):
        _ = Texts(dataset=str(tmp_path / "data")).splits


# ---- statistics ----------------------------------------------------------------------------------


def scored(rows: int = 300, seed: int = 0, sharp: float = 1.5) -> ScoredLabels:
    generator = np.random.default_rng(seed)
    has = generator.random((rows, 4)) < [0.5, 0.3, 0.1, 0.05]
    logits = sharp * (2 * has - 1) + generator.normal(size=has.shape) - 0.5
    return ScoredLabels(list("abcd"), has, expit(logits))


def test_values_are_those_of_scikit_learn() -> None:
    rows = scored(600)
    found = multi_label.scores(rows)
    has, given = rows.labels.astype(int), rows.decided.astype(int)
    for average in ("micro", "macro", "samples"):
        expected = sklearn.metrics.f1_score(has, given, average=average, zero_division=0)
        assert found[f"f1_{average}"]["value"] == pytest.approx(expected)
    assert found["subset_accuracy"]["value"] == sklearn.metrics.accuracy_score(has, given)
    assert found["hamming_loss"]["value"] == pytest.approx(sklearn.metrics.hamming_loss(has, given))
    average = sklearn.metrics.average_precision_score(has, rows.probabilities)
    assert found["average_precision"]["value"] == pytest.approx(average)
    for each in found.values():
        assert each["low"] < each["value"] < each["high"]


def test_equal_probabilities_are_one_threshold() -> None:
    rows = scored()
    rounded = ScoredLabels(rows.names, rows.labels, rows.probabilities.round(1))
    found = multi_label.scores(rounded)["average_precision"]["value"]
    expected = sklearn.metrics.average_precision_score(rows.labels, rounded.probabilities)
    assert found == pytest.approx(expected)


def test_differences_are_those_of_the_values() -> None:
    first, second = scored(600), scored(600, sharp=2.5)
    one, other = multi_label.scores(first), multi_label.scores(second)
    for name, gap in multi_label.differences(first, second).items():
        assert gap["value"] == pytest.approx(other[name]["value"] - one[name]["value"])
        assert gap["low"] <= gap["value"] <= gap["high"]


def test_a_label_of_few_rows_has_no_interval_of_its_average_precision() -> None:
    found = multi_label.of_labels(scored(rows=150))
    for name in "abcd":
        assert ("pr_area" in found[name]) == (
            found[name]["support"] >= average_precision.FEWEST_ROWS
        )
    assert found["d"]["support"] < average_precision.FEWEST_ROWS < found["a"]["support"]


def coverage(rows: int, repeats: int) -> dict[str, float]:
    """How often the intervals hold the truth, which is that of very many rows."""
    whole = multi_label.scores(scored(200_000, seed=10**6))
    inside: dict[str, list[bool]] = {name: [] for name in whole}
    for repeat in range(repeats):
        for name, each in multi_label.scores(scored(rows, seed=repeat)).items():
            if not np.isnan(each["low"]):
                inside[name].append(each["low"] <= whole[name]["value"] <= each["high"])
    return {name: float(np.mean(each)) for name, each in inside.items()}


@pytest.mark.slow
def test_intervals_hold_the_truth(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 400 rows with labels of 50, 30, 10 and 5%: 20 rows have the rarest on average."""
    found = coverage(400, 2000)
    with capsys.disabled():
        print(found)
    assert all(0.93 <= share <= 0.97 for share in found.values()), found


@pytest.mark.parametrize("seed", range(5))
def test_the_threshold_is_the_best_one(seed: int) -> None:
    generator = np.random.default_rng(seed)
    has = generator.random(60) < 0.3
    sure = np.round(expit(2 * has + generator.normal(size=60) - 2), 2)
    found = multi_label.threshold(sure, has)
    every = [sklearn.metrics.f1_score(has, sure > each) for each in np.linspace(0, 1, 501)]
    assert sklearn.metrics.f1_score(has, sure > found) == pytest.approx(max(every))


def test_after_the_shift_one_half_decides() -> None:
    rows = scored(sharp=0.7)
    for kind in ("one", "label"):
        task = MultiLabel(labels=rows.names, thresholds=kind)
        after = task.fitted(rows.outputs, rows.labels)
        assert after is not None
        moved = task.scored(rows.labels, after(rows.outputs))
        found = [multi_label.scores(each)["f1_micro"]["value"] for each in (rows, moved)]
        assert found[1] > found[0] + 0.02
    assert (
        MultiLabel(labels=rows.names, thresholds="none").fitted(rows.outputs, rows.labels) is None
    )


def test_labels_that_cannot_be_learned_are_told(tmp_path: Path) -> None:
    rows = table(160)
    (tmp_path / "data").mkdir()
    for split, part in (("train", rows[:100]), ("validation", rows[100:130]), ("test", rows[130:])):
        frame = part[["text"]].copy()
        for name in ("service", "food"):
            frame[name] = [int(name in names) for names in part["label"]]
        frame["price"] = 0
        frame["all"] = 1
        if split == "validation":
            frame["food"] = [1] * 3 + [0] * 27
        frame.to_csv(tmp_path / "data" / f"{split}.csv", index=False)
    options = dict(
        dataset=str(tmp_path / "data"), label_columns="service,food,price,all", task="multi_label"
    )
    recipe = Texts(**options)
    assert recipe.kind.remarks(recipe.splits) == [
        "labels that cannot be learned: 'price' (0), 'all' (100) of 100 training rows have it"
    ]
    each = Texts(**options, thresholds="label")
    assert each.kind.remarks(each.splits)[1:] == [
        "--thresholds label: below 10 validation rows a label has the threshold of all labels "
        "together, not one of its own: 'food' (3), 'price' (0) of 30 validation rows have it"
    ]


# ---- the whole path ------------------------------------------------------------------------------


def test_a_loss_of_the_recipes_own_takes_no_weights_that_the_loss_would_have(
    tmp_path: Path, tiny_model: str
) -> None:
    class Own(Texts):
        def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return ((logits - labels) ** 2).mean(-1)

    path = tmp_path / "rows.jsonl"
    table().to_json(path, orient="records", lines=True)
    options = dict(dataset=str(path), model=tiny_model)
    with pytest.raises(UserError, match="--class_weights balanced: the recipe has a loss of its"):
        _ = Own(**options, class_weights="balanced").weights
    assert Own(**options).weights is None
    assert Texts(**options, class_weights="balanced").weights is not None


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("labels") / "rows.jsonl"
    table().to_json(path, orient="records", lines=True)
    return path


def trained(data: Path, model: str, directory: Path, **options: Any) -> Run:
    usual: dict[str, Any] = dict(learning_rate=5e-3, num_train_epochs=6, global_batch_size=16)
    usual |= dict(model=model, precision="fp32", output_dir=str(directory))
    return finetune.train("text", dataset=str(data), **usual | options)


@pytest.fixture(scope="module")
def run(data: Path, tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(data, tiny_model, tmp_path_factory.mktemp("runs") / "run")


@pytest.mark.trains
def test_a_model_is_trained_and_judged(run: Run) -> None:
    statistics, manifest = run.statistics, run.manifest
    assert manifest.task == "multi_label"
    assert run.headline[0] == manifest.arguments["metric_for_best_model"] == "f1_micro"
    assert statistics.metrics["f1_micro"]["value"] > 0.8
    assert set(run.metrics.baseline) == {"prevalence", "TF-IDF + logistic regression"}
    assert statistics.beyond["prevalence"]["f1_micro"]["low"] > 0
    page = (run.path / "report.html").read_text()
    assert "Each label by itself" in page
    assert "Labels of the same rows" in page


@pytest.mark.trains
def test_scores_are_those_of_the_predictions_that_are_written(run: Run) -> None:
    table = run.predictions
    has, given = (
        np.array([[name in cell for name in run.labels] for cell in table[column]])
        for column in ("label", "prediction")
    )
    page = (run.path / "report.html").read_text()
    for average in ("micro", "macro"):
        name = f"f1_{average}"
        expected = sklearn.metrics.f1_score(has, given, average=average, zero_division=0)
        assert run.metrics.test[name] == pytest.approx(expected, abs=1e-12)
        found = run.statistics.metrics[name]
        assert found["value"] == pytest.approx(expected, abs=1e-12)
        assert found["low"] < found["high"]
        assert wording.rounded(found)[0] in page
    again = run.kind.scored_in(table)
    assert np.array_equal(again.decided, given)


@pytest.mark.trains
def test_the_saved_model_decides_at_one_half(run: Run) -> None:
    found = run.predictions
    classify = pipeline("text-classification", model=str(run.path), top_k=None)
    texts = found["text"].tolist()[:20]
    for row, scores in zip(found.itertuples(), classify(texts), strict=False):
        probabilities = {each["label"]: each["score"] for each in scores}
        assert {name for name, each in probabilities.items() if each > 0.5} == set(row.prediction)
        for name, each in probabilities.items():
            at = found.columns.get_loc(f"probability of {name}")
            assert found.iloc[row.Index, at] == pytest.approx(each, abs=1e-4)
    own = finetune.predict(run, texts, all_probabilities=True)
    assert [list(each) for each in own["label"]] == [
        list(each) for each in found["prediction"][:20]
    ]


@pytest.mark.trains
def test_predictions_are_written_and_evaluated(run: Run, data: Path, tmp_path: Path) -> None:
    again = evaluate(run, str(data))
    assert again.statistics is not None
    assert again.metrics["f1_micro"] == pytest.approx(again.statistics.metrics["f1_micro"]["value"])
    assert evaluate(run).metrics == pytest.approx(run.metrics.test, abs=1e-6)


@pytest.fixture(scope="module")
def rare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts with labels that one row in seven has: at 0.5 a model gives none for many steps."""
    rows = table(280)
    rows.loc[rows.index % 3 != 0, "text"] = [
        f"the weather of visit {n}" for n in range(280) if n % 3
    ]
    rows["label"] = [[] if number % 3 else names for number, names in enumerate(rows["label"])]
    rows.to_json(
        path := tmp_path_factory.mktemp("rare") / "rows.jsonl", orient="records", lines=True
    )
    return path


OFTEN = dict(
    learning_rate=2e-3, num_train_epochs=3, eval_strategy="steps", eval_steps=4, save_steps=4
)


def scores_by_step(run: Run) -> dict[int, float]:
    history = run.manifest.history
    return {each["step"]: each["eval_f1_micro"] for each in history if "eval_f1_micro" in each}


@pytest.mark.usefixtures("without_report")
@pytest.mark.trains
@pytest.mark.parametrize("thresholds", ["one", "label"])
def test_the_model_is_chosen_by_what_is_saved(
    rare: Path, tiny_model: str, tmp_path: Path, thresholds: str
) -> None:
    run = trained(rare, tiny_model, tmp_path / "run", thresholds=thresholds, **OFTEN)
    scores, best = scores_by_step(run), run.manifest.best_step or 0
    assert min(scores.values()) > 0.2
    assert scores[best] == max(scores.values()) > min(scores.values())
    validation = run.metrics.validation
    assert validation["f1_micro"] == pytest.approx(scores[best])
    recipe = run.recipe()
    rows = recipe.splits["validation"]
    told = [[recipe.labels[label] for label in row] for row in rows["label"]]
    frame = pd.DataFrame({"text": rows["text"][:], "label": told})
    frame.to_json(held := tmp_path / "held.jsonl", orient="records", lines=True)
    again = evaluate(run, str(held)).metrics
    assert {name: again[name] for name in validation} == pytest.approx(validation, abs=1e-5)


@pytest.mark.usefixtures("without_report")
@pytest.mark.trains
def test_thresholds_are_the_same_however_it_is_launched(
    rare: Path, tiny_model: str, tmp_path: Path, warm: Servers
) -> None:
    """In two processes, with micro-batches, and resumed."""
    usual: dict[str, Any] = dict(
        **OFTEN,
        global_batch_size=16,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        lr_scheduler_type="constant",
    )
    usual |= dict(max_steps=24, precision="fp32", baseline=False)
    words = [f"--{name}={value}" for name, value in (usual | {"model": tiny_model}).items()]
    with jobs() as every:
        typed = ["text", f"--dataset={rare}", *words, "--output_dir=two"]
        two = every.start(warm.torchrun(typed, os.environ), tmp_path)
        one = trained(rare, tiny_model, tmp_path / "one", **usual)
        small = trained(
            rare, tiny_model, tmp_path / "small", **usual, gradient_accumulation_steps=4
        )
        trained(rare, tiny_model, tmp_path / "resumed", **usual | {"max_steps": 12})
        usual["resume_from_checkpoint"] = "last"
        resumed = trained(rare, tiny_model, tmp_path / "resumed", **usual)
        ended = two.ended()
    assert ended.returncode == 0, ended.stderr
    assert resumed.manifest.steps_before == 12
    for other in (small, resumed, Run.load(tmp_path / "two")):
        assert scores_by_step(other) == pytest.approx(scores_by_step(one), abs=1e-6)
        assert other.metrics.validation == pytest.approx(one.metrics.validation, abs=1e-5)
        assert other.statistics.thresholds == pytest.approx(one.statistics.thresholds, abs=1e-5)


@pytest.mark.trains
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_rows_that_all_have_no_label_are_evaluated(run: Run, tmp_path: Path, name: str) -> None:
    frame = pd.DataFrame(
        {"text": [f"the weather of day {n}" for n in range(6)], "label": ["[]"] * 6}
    )
    path = str(tmp_path / name)
    frame.to_csv(path) if name == "rows.csv" else written(tmp_path / name, [[]] * 6)
    found = evaluate(run, path)
    assert found.rows == 6
    assert 0 <= found.metrics["subset_accuracy"] <= 1


@pytest.mark.usefixtures("without_report")
@pytest.mark.trains
def test_two_runs_are_compared(run: Run, data: Path, tiny_model: str, tmp_path: Path) -> None:
    other = trained(data, tiny_model, tmp_path / "other", thresholds="label", seed=1)
    found = compare([run, other], page=tmp_path / "page.html")
    assert set(found.metrics[0]) >= {"f1_micro", "subset_accuracy", "average_precision"}
    assert found.tests[0].p_value <= 1


def test_the_loss_of_a_row_is_the_mean_over_its_labels() -> None:
    task = MultiLabel(labels=["a", "b", "c"])
    logits, has = torch.randn(5, 3), torch.randint(0, 2, (5, 3)).float()
    expected = torch.nn.BCEWithLogitsLoss(reduction="none")(logits, has).mean(dim=1)
    assert torch.allclose(task.loss(logits, has), expected)
