"""A15: what programs and agents read, the JSON object of each verb and the skill."""

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pandas as pd
import pytest

import finetune
from tests.acceptance.conftest import TRAINING, Finished, flags
from tests.conftest import ROOT

Cli = Callable[..., Finished]
SKILL = ROOT / "finetune" / "skills" / "finetune-classifier" / "SKILL.md"


def answer(finished: Finished) -> dict[str, Any]:
    """Return the one JSON object on standard output; its status is that of the command."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    facts: dict[str, Any] = json.loads(finished.stdout, parse_constant=refuse)
    assert facts["status"] == finished.status
    assert "Traceback" not in finished.stderr
    return facts


def stored(run: finetune.Run, name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((run.path / name).read_text())
    return facts


@pytest.mark.contract("A15")
def test_a_training_answers_with_the_figures_of_its_files(
    cli: Cli, reviews: Path, bert: Path, tmp_path: Path
) -> None:
    """With three test rows some intervals have no ends; a finished run is returned as it is."""
    options = TRAINING | dict(dataset=reviews, model=bert, output_dir=tmp_path / "run")
    words = [
        "text",
        *flags(**options | dict(num_train_epochs=1, eval_samples=3, train_samples=48)),
        "--json",
    ]
    finished = cli(*words).succeeded()
    facts = answer(finished)
    run = finetune.Run.load(tmp_path / "run")
    metrics = stored(run, "metrics.json")
    assert facts["run"] == str(run.path)
    for name in ("validation", "test", "baseline"):
        assert facts[name] == metrics[name]
    assert facts["intervals"] == metrics["statistics"]["metrics"]
    assert None in [interval["low"] for interval in facts["intervals"].values()]
    assert facts["differences"] == metrics["statistics"]["differences"]
    assert (facts["labels"], facts["task"]) == (["bad", "good"], "single_label")
    assert facts["rows"] == {"train": 48, "validation": 3, "test": 3}
    assert len(facts["verdicts"]) >= 2
    for text in (*facts["verdicts"], "test loss", f"step {facts['steps']}/"):
        assert text in finished.stderr
    again = answer(cli(*words, "--resume"))
    assert again["test"] == facts["test"]
    assert "--json" not in run.manifest.command
    assert answer(cli(*words, "--dry_run")) == dict(
        schema=1, status=0, run=str(run.path), dry_run=True
    )


@pytest.mark.contract("A15")
def test_each_verb_answers_with_the_figures_of_the_text(
    cli: Cli, single_label_run: finetune.Run, second_seed_run: finetune.Run, reviews: Path
) -> None:
    runs = [single_label_run, second_seed_run]
    paths = [run.path for run in runs]
    scores = [stored(run, "metrics.json") for run in runs]

    evaluated = answer(cli("evaluate", paths[0], "--json").succeeded())
    assert evaluated["recorded"] == scores[0]["test"]
    assert evaluated["metrics"] == pytest.approx(scores[0]["test"], abs=1e-6)
    other = answer(cli("evaluate", paths[0], "--data", reviews, "--json").succeeded())
    assert (other["rows"], other["rows_trained_on"]) == (240, 173)
    right = other["metrics"]["accuracy"]
    assert other["statistics"]["metrics"]["accuracy"]["value"] == right
    predict = ["predict", paths[0], reviews]
    rows = pd.read_csv(io.StringIO(cli(*predict, "--precision", "fp32").succeeded().stdout))
    assert right == (rows["label"] == rows["predicted label"]).mean()

    text = rows["text"][0]
    (row,) = answer(cli("predict", paths[0], "--text", text, "--precision", "fp32", "--json"))[
        "predictions"
    ]
    assert (row["text"], row["label"]) == (text, rows["predicted label"][0])
    assert row["probability"] == pytest.approx(rows["probability"][0], abs=1e-6)
    assert row["probability of bad"] + row["probability of good"] == pytest.approx(1)

    compared = answer(cli("compare", *paths, "--json").succeeded())
    assert compared["names"] == list(map(str, paths))
    for score, metrics in zip(scores, compared["metrics"], strict=True):
        assert metrics["f1"] == score["statistics"]["metrics"]["f1"]
    gap = scores[1]["test"]["f1"] - scores[0]["test"]["f1"]
    assert compared["differences"][0]["f1"]["value"] == pytest.approx(gap)
    predictions = [run.predictions["prediction"] for run in runs]
    assert compared["disagreements"] == (predictions[0] != predictions[1]).sum()

    listed = answer(cli("list", paths[0].parent, "--json").succeeded())["runs"]
    for run, score in zip(runs, scores, strict=True):
        assert listed[run.path.name] == {"status": "finished", "test": score["test"]}
    recipes = answer(cli("list", "--json").succeeded())["recipes"]
    assert [line.split()[0] for line in cli("list").stdout.splitlines()] == list(recipes)
    machine = answer(cli("doctor", "--json").succeeded())
    assert machine["machine"]["versions"] in cli("doctor").stdout


@pytest.mark.contract("A15", "F4")
@pytest.mark.parametrize(
    ("words", "mistakes"),
    [
        ("text --json --learning_rat 1 --seed x", 4),
        ("evaluate nowhere --json", 1),
        ("compare nowhere --json", 1),
        ("predict RUN reviews.csv --json", 1),
        ("list nowhere --json", 1),
        ("check --json", 1),
        ("doctor --json --fast", 1),
        ("nonsense --json", 1),
        ("search text --json", 1),
    ],
)
def test_mistakes_are_an_object_too(
    cli: Cli, single_label_run: finetune.Run, words: str, mistakes: int
) -> None:
    finished = cli(*words.replace("RUN", str(single_label_run.path)).split())
    facts = answer(finished)
    assert facts.keys() == {"schema", "status", "errors"}
    assert (finished.status, len(facts["errors"])) == (2, mistakes)
    assert finished.stderr == "".join(f"error: {mistake}\n" for mistake in facts["errors"])


@pytest.mark.contract("A15")
def test_an_answer_that_cannot_be_written(tmp_path: Path) -> None:
    """A reader that has closed the pipe does not mind; a full disk is a failure."""
    words = [sys.executable, "-m", "finetune", "list", "--json"]
    with open("/dev/full", "w") as full:
        finished = subprocess.run(words, cwd=tmp_path, stdout=full, stderr=PIPE, text=True)
    assert finished.returncode == 1
    assert finished.stderr.endswith("\nerror: standard output: No space left on device\n")
    reader, writer = os.pipe()
    os.close(reader)
    finished = subprocess.run(words, cwd=tmp_path, stdout=writer, stderr=PIPE, text=True)
    os.close(writer)
    assert finished.returncode == 0
    assert "Traceback" not in finished.stderr
    assert "error" not in finished.stderr


@pytest.mark.contract("A15")
def test_the_skill_is_installed_and_not_overwritten(cli: Cli, tmp_path: Path) -> None:
    printed = cli("skill").succeeded().stdout.strip()
    path = tmp_path / "cwd" / printed
    assert path.read_bytes() == SKILL.read_bytes()
    cli("skill").succeeded()
    path.write_text("my own\n")
    cli("skill").refused(printed, "--force")
    assert path.read_text() == "my own\n"
    cli("skill", "--force").succeeded()
    assert path.read_bytes() == SKILL.read_bytes()
    cli("skill", tmp_path / "more").succeeded()
    assert (tmp_path / "more" / "finetune-classifier" / "SKILL.md").exists()


@pytest.mark.contract("A15")
def test_the_skill_is_followed_word_by_word(cli: Cli, tmp_path: Path, bert: Path) -> None:
    """On the data of docs/quickstart.md, with a small model and few rows, for the time."""
    text = SKILL.read_text(encoding="utf-8")
    name, description = re.findall(r"^(?:name|description): (.*)$", text, re.MULTILINE)
    assert (name, len(description) <= 1024) == (SKILL.parent.name, True)
    home = tmp_path / "cwd"
    home.mkdir()
    quickstart = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    script = re.findall(r"```python\n(.*?)```", quickstart, re.DOTALL)[0]
    exec(script.replace('"reviews.csv"', f"{str(home / 'reviews.csv')!r}").replace(
        '"new.csv"', f"{str(home / 'new.csv')!r}"), {})  # fmt: skip
    shutil.copytree(bert, home / "minilm")
    config = home / "task.yaml"
    config.write_text("train_samples: 200\neval_samples: 60\nmax_length: 32\nnum_train_epochs: 1\n")
    steps = re.findall(r"^    python -m finetune ([^\n]*)$|```yaml\n(.*?)```", text, re.M | re.S)
    answers = []
    for words, added in steps:
        if added:
            with config.open("a") as file:
                file.write(added.replace("embedded:minilm", "minilm"))
        else:
            answers.append(answer(cli(*shlex.split(words))))
    assert [facts["status"] for facts in answers] == [2, 3, 0, 0, 0, 0, 0, 0, 0, 0]
    refused, checked, first, evaluated, one, file, second, compared, listed, resumed = answers
    fixes = [finding["fix"] for finding in refused["findings"] if finding["severity"] == "error"]
    assert [fix.split()[0] for fix in fixes] == ["--drop_invalid"]
    assert {"error"}.isdisjoint(finding["severity"] for finding in checked["findings"])
    assert any("--label_map Positive=positive" in finding["fix"] for finding in checked["findings"])
    assert first["labels"] == ["negative", "positive"]
    assert {"accuracy", "f1"} <= first["test"].keys() & first["intervals"].keys()
    assert first["verdicts"]
    assert (home / first["run"] / "report.html").exists()
    assert (evaluated["rows"], evaluated["rows_trained_on"]) == (100, 0)
    assert "statistics" in evaluated
    assert one["predictions"][0]["label"] in first["labels"]
    labelled = pd.read_csv(home / file["output"])
    assert {*labelled} >= {"review", "sentiment", "label", "probability"}
    assert compared["names"] == [first["run"], second["run"]]
    assert len(compared["verdicts"]) == len(compared["differences"]) == 1
    assert {*listed["runs"]} == {"first", "second"}
    assert resumed["test"] == first["test"]
