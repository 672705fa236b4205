"""The best model for the budget (rows G1 to G4): adapters for every task, minutes, pruning."""

# ruff: noqa: F401, F811

import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from peft import PeftModel
from PIL import Image as Pillow
from safetensors.torch import load_file
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from transformers.models.auto.image_processing_auto import AutoImageProcessor

import finetune
from finetune import Run
from tests.acceptance.conftest import TRAINING, Finished, flags
from tests.acceptance.test_training import (
    FAULTY,
    LENGTH,
    Options,
    Train,
    faulty,
    jobs,
    numbers,
    options,
    sources,
    table,
    train,
    typed_again,
)

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")
Cli = Callable[..., Finished]


# ---- G1: adapters --------------------------------------------------------------------------------


def outputs_by_hand(name: str, path: Path, rows: pd.DataFrame) -> np.ndarray:
    """Return the outputs of a saved model for rows, one at a time."""
    if name == "images":
        model: Any = AutoModelForImageClassification.from_pretrained(path)
        processor: Any = AutoImageProcessor.from_pretrained(path)
        pictures = [Pillow.open(file).convert("RGB") for file in rows["file"]]
        batches = [processor(picture, return_tensors="pt") for picture in pictures]
    else:
        model = AutoModelForSequenceClassification.from_pretrained(path)
        tokenizer = AutoTokenizer.from_pretrained(path)
        columns = ["text", "second"] if name == "pair" else ["text"]
        cut = dict(truncation=True, max_length=LENGTH, return_tensors="pt")
        batches = [tokenizer(*row, **cut) for row in rows[columns].itertuples(index=False)]
    with torch.no_grad():
        return torch.cat([model.eval()(**batch).logits for batch in batches]).double().numpy()


@pytest.mark.contract("G1")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("single label", {"lora_dora": True}),
        ("ordinal", {"lora_rslora": True, "lora_rank": 4}),
        *((name, {}) for name in ("multi label", "regression", "pair", "images")),
    ],
)
def test_an_adapter_is_trained_for_every_task(
    options: Options, table: Path, tmp_path: Path, name: str, kind: dict[str, Any]
) -> None:
    """The merged model in the root makes the predictions; the base and `adapter/` are the same."""
    chosen = options(name, adapter="lora", **kind)
    run = finetune.train(chosen.pop("recipe", "text"), output_dir=tmp_path, **chosen)
    weights = load_file(tmp_path / "model.safetensors")
    auto: Any = AutoModelForSequenceClassification
    auto = AutoModelForImageClassification if name == "images" else auto
    base = auto.from_pretrained(chosen["model"], num_labels=len(run.labels))
    before = {name: value.clone() for name, value in base.state_dict().items()}
    moved = {name for name in before if not torch.equal(before[name], weights[name])}
    in_layers = {name for name in moved if not name.startswith("classifier")}
    assert moved - in_layers == {"classifier.weight", "classifier.bias"}
    layers = {name for name in before if re.search(r"\.layers?\.\d+\.|\.pooler\.", name)}
    assert in_layers == {name for name in layers if before[name].dim() == 2}
    merged = PeftModel.from_pretrained(base, tmp_path / "adapter").merge_and_unload().state_dict()
    assert all(torch.allclose(merged[name], weights[name], atol=1e-6) for name in weights)

    rows = pd.read_csv(table / "test.csv")
    if name == "images":
        rows = run.predictions.assign(file=f"{chosen['dataset']}/" + run.predictions["file"])
    outputs = torch.tensor(outputs_by_hand(name, tmp_path, rows))
    columns = [f"probability of {label}" for label in run.labels]
    if name == "regression":
        columns = [f"prediction of {label}" for label in run.labels]
    else:
        outputs = outputs.sigmoid() if name == "multi label" else outputs.softmax(dim=-1)
    np.testing.assert_allclose(run.predictions[columns], outputs, rtol=1e-4, atol=1e-5)
    assert finetune.evaluate(run).metrics == pytest.approx(dict(run.metrics.test), abs=1e-5)


@pytest.mark.contract("G1", "G3")
@pytest.mark.parametrize(
    ("package", "extra", "words"),
    [("peft", "adapters", ["text", "--adapter", "lora"]), ("optuna", "search", ["search", "text"])],
)
def test_a_missing_package_is_answered_with_the_line_that_installs_it(
    cli: Cli,
    faulty: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    extra: str,
    words: list[str],
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = cli(*words, *flags(**faulty, output_dir=tmp_path / "run"))
    assert result.status == 2, result.output
    assert f"needs {package}: pip install 'trainer-recipes[{extra}]'" in result.stderr
    assert not (tmp_path / "run").exists()
    if package == "optuna":
        with pytest.raises(
            finetune.UserError, match=re.escape(f"pip install 'trainer-recipes[{extra}]'")
        ):
            finetune.search("text", **faulty, output_dir=tmp_path / "run")


# ---- G4: minutes ---------------------------------------------------------------------------------

#: Minutes for some epochs of `faulty.py`: it has 144 rows, nine steps in each epoch.
MINUTES = 0.008
TIMED = re.compile(r"an epoch takes (\S+) minutes without evaluations: --num_train_epochs ([\d.]+)")


@pytest.mark.contract("G4")
def test_a_training_has_as_many_epochs_as_fit_into_the_minutes(
    train: Train, tmp_path: Path
) -> None:
    """The learning rate falls in equal parts to 0 at the last step."""
    result = train(tmp_path / "run", "--max_minutes", MINUTES).succeeded()
    ((minutes, epochs),) = TIMED.findall(result.stdout)
    minutes, epochs = float(minutes), float(epochs)
    assert epochs == pytest.approx(MINUTES / minutes, rel=0.006)  # three digits are printed
    run = Run.load(tmp_path / "run")
    assert run.manifest.arguments["num_train_epochs"] == pytest.approx(epochs, rel=1e-5)
    steps = run.manifest.steps
    assert steps == pytest.approx(9 * epochs, abs=1)
    rates = {e["step"]: e["learning_rate"] for e in numbers(run) if "learning_rate" in e}
    expected = {step: 3e-3 * (1 - (step - 1) / steps) for step in range(1, steps + 1)}
    assert rates == pytest.approx(expected)


@pytest.mark.contract("G4", "D5")
def test_a_resumed_training_keeps_the_epochs_of_its_minutes(
    train: Train, cli: Cli, tmp_path: Path
) -> None:
    stopped = train(tmp_path / "run", "--max_minutes", MINUTES, fault="end of step 2,SIGTERM")
    assert stopped.status == 75, stopped.output
    ((_, epochs),) = TIMED.findall(stopped.stdout)
    again = typed_again(stopped)
    assert "--max_minutes" in again
    resumed = cli(*again).succeeded()
    assert not TIMED.search(resumed.stdout)
    run = Run.load(tmp_path / "run")
    assert run.manifest.arguments["num_train_epochs"] == pytest.approx(float(epochs), rel=1e-5)
    assert run.manifest.steps == math.ceil(9 * run.manifest.arguments["num_train_epochs"])
    assert run.manifest.steps_before == 2


@pytest.mark.contract("G4", "D6")
def test_other_minutes_are_other_epochs(train: Train, cli: Cli, tmp_path: Path) -> None:
    """Only if they are allowed: refused by name, and with fewer steps than are trained."""
    stopped = train(tmp_path / "run", "--max_minutes", MINUTES, fault="end of step 2,SIGTERM")
    again = [word for word in typed_again(stopped) if word != "--max_minutes"]
    again.remove(str(MINUTES))
    cli(*again, "--max_minutes", 9 * MINUTES).refused("--allow_changed max_minutes\n")
    again += ["--allow_changed", "max_minutes", "--max_minutes"]
    cli(*again, MINUTES / 100).refused("fits 1 steps, 2 are trained: give more minutes")
    resumed = cli(*again, 9 * MINUTES).succeeded()
    ((minutes, epochs),) = TIMED.findall(resumed.stdout)
    assert float(epochs) == pytest.approx(9 * MINUTES / float(minutes), rel=0.006)
    run = Run.load(tmp_path / "run")
    assert run.manifest.arguments["num_train_epochs"] == pytest.approx(float(epochs), rel=1e-5)
    assert (run.manifest.status, run.manifest.steps_before) == ("finished", 2)
    assert run.manifest.steps == math.ceil(9 * run.manifest.arguments["num_train_epochs"])
    assert "max_minutes" in run.manifest.resumed[0]["differences"]


@pytest.mark.contract("G4")
def test_two_processes_have_the_same_steps_in_the_minutes(jobs: Callable[[int], Path]) -> None:
    """Each process writes the steps that it trains, the timed ones too."""
    directory = jobs(2) / "timed"
    lines = [(directory / f"rank{rank}.jsonl").read_text().splitlines() for rank in range(2)]
    steps = [[json.loads(line)[0] for line in part] for part in lines]
    run = Run.load(directory / "run")
    assert run.manifest.status == "finished"
    assert steps[0] == steps[1] == [*range(1, 5), *range(1, run.manifest.steps + 1)]
    assert run.manifest.steps == math.ceil(9 * run.manifest.arguments["num_train_epochs"])


@pytest.mark.contract("G4", "F4")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--max_minutes 0.01 --num_train_epochs 2", "--max_minutes and --num_train_epochs are mut"),
        (
            "--max_minutes 0.01 --max_steps 5",
            "--max_minutes and --max_steps are mutually exclusive",
        ),
        ("--max_minutes 0.01 --dry_run", "--max_minutes and --dry_run are mutually exclusive"),
        ("--max_minutes 0", "--max_minutes 0: expected more than 0"),
        ("--max_minutes -1", "--max_minutes -1"),
        ("--max_minutes nan", "--max_minutes nan"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(
    train: Train, tmp_path: Path, words: str, message: str
) -> None:
    train(tmp_path / "run", *words.split()).refused(message)
    assert not (tmp_path / "run").exists()


# ---- G3: pruning ---------------------------------------------------------------------------------


@pytest.mark.contract("G3")
@pytest.mark.parametrize("pruner", ["hyperband", "none"])
def test_trials_that_are_worse_than_others_are_stopped_early(
    reviews: Path, bert: Path, tmp_path: Path, pruner: str
) -> None:
    """Most of the rates teach little; with `none` their trials are trained to the end."""
    chosen = TRAINING | dict(dataset=str(reviews), model=str(bert), metric_for_best_model="loss")
    chosen |= dict(train_samples=96, eval_samples=40, baseline=False)
    del chosen["learning_rate"]
    space = {"learning_rate": "1e-6..1e-2:log"}
    said: list[str] = []
    runs = finetune.search(
        "text",
        **chosen,
        space=space,
        trials=6,
        pruner=pruner,
        progress=lambda event: said.append(str(event)),
        output_dir=tmp_path / "s",
    ).runs
    ends = re.findall(r"^(trial-\d+): pruned after epoch (\d) ", "\n".join(said), re.M)
    assert bool(ends) is (pruner == "hyperband")
    assert {name for name, _ in ends} == {r.path.name for r in runs if r.status == "pruned"}
    assert all(int(epoch) < 3 for _, epoch in ends)
    assert {r.path.name for r in runs if r.status == "finished"}.isdisjoint(
        name for name, _ in ends
    )
    for run in runs:
        if run.status != "pruned":
            assert sum("eval_loss" in entry for entry in run.manifest.history) == 3


@pytest.mark.contract("G3", "D7")
def test_an_interrupted_search_goes_on_in_the_same_process(
    cli: Cli, faulty: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook: the trial that Ctrl-C stopped is not taken for one of another worker."""
    words = ["search", FAULTY, *flags(**faulty, space="learning_rate=1e-4..1e-2:log", trials=2)]
    words += flags(num_train_epochs=1, output_dir=tmp_path / "s")
    monkeypatch.setenv("FAULT", "end of step 5,SIGINT")
    stopped = cli(*words)
    assert stopped.status == 75, stopped.output
    assert "to continue, type the same command again" in stopped.stderr
    monkeypatch.delenv("FAULT")
    result = cli(*words).succeeded()
    assert "Best of 2 trials" in result.stdout
    assert len(finetune.RunSet.load(tmp_path / "s").runs) == 2
