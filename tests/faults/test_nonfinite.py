"""A loss or a gradient that is not finite: the run stops, or skips, before the weights change."""

import json
import math
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import TrainerCallback

from finetune import Run, cli
from finetune.errors import Diverged
from finetune.reporting import curves
from finetune.runtime.files import to_json
from finetune.training.arguments import FinetuneArguments
from finetune.training.loss import GlobalLoss
from finetune.training.manifest import Metrics, Statistics
from finetune.training.nonfinite import MOST_OVERFLOWS, MOST_SKIPPED, Verdicts
from finetune.training.trainer import Trainer
from recipes.yelp import Yelp

pytestmark = [pytest.mark.usefixtures("one_thread", "without_report"), pytest.mark.trains]
RECIPE = '''
"""Reviews, good or bad, whose loss or gradient is broken at the steps that are named."""

import json
import os

import torch

from finetune import TextRecipe


class Broken(TextRecipe):
    """`BREAK` is loss, constant, gradient or weights, `AT` steps, `RANK` the process."""

    training = dict(
        global_batch_size=16, learning_rate=3e-3, num_train_epochs=2, logging_steps=1,
        precision="fp32", disable_tqdm=True, save_strategy="steps", save_steps=2,
        eval_strategy="no", load_best_model_at_end=False, save_total_limit=9,
    )

    def adapt(self, model, arguments):
        self.calls, self.model_itself = 0, model
        model.register_forward_pre_hook(self.saw, with_kwargs=True)
        self.accumulation = arguments.gradient_accumulation_steps
        if os.environ.get("BREAK") == "gradient":
            bias = model.classifier.bias
            bias.register_hook(lambda grad: grad * float("inf") if self.breaks() else None)
        return model

    def saw(self, module, args, inputs):
        if self.calls == int(os.environ["AT"].split(",")[0]) - 1 and "SAW" in os.environ:
            rows = zip(inputs["input_ids"].tolist(), inputs["attention_mask"].sum(1).tolist())
            with open(os.environ["SAW"], "w") as file:
                json.dump([tokens[:length] for tokens, length in rows], file)

    def breaks(self):
        step = (self.calls - 1) // self.accumulation + 1
        here = os.environ.get("RANK", "0") == os.environ.get("BROKEN_RANK", "0")
        return here and str(step) in os.environ["AT"].split(",") and self.model_itself.training

    def loss(self, logits, labels):
        if self.model_itself.training:
            self.calls += 1
        losses = super().loss(logits, labels)
        kind = os.environ.get("BREAK")
        if kind == "loss" and self.breaks():
            losses = losses * float("nan")
        if kind == "constant" and self.breaks():  # whose gradient is finite
            losses = losses + float("inf")
        if kind == "weights" and self.breaks():
            with torch.no_grad():
                self.model_itself.classifier.bias[0] = float("inf")
            losses = 0 * self.model_itself.classifier.weight.sum() * torch.ones(len(labels))
        return losses
'''
Finetune = Callable[..., int]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, tiny_model: str) -> list[str]:
    """What is typed in every test: recipe, data and model."""
    directory = tmp_path_factory.mktemp("recipe")
    recipe, reviews = directory / "broken.py", directory / "reviews.csv"
    recipe.write_text(RECIPE, encoding="utf-8")
    lines = ["text,label"]
    for number in range(200):
        word, label = (("dull", "bad"), ("fine", "good"))[number % 2]
        lines.append(
            f"the food of place {number} was {' '.join([word] * (1 + number % 13))},{label}"
        )
    reviews.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [str(recipe), "--dataset", str(reviews), "--model", tiny_model]


@pytest.fixture
def finetune(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Finetune:
    """The command line in this process; `broken` says what, `at` the steps."""

    def run(output_dir: Path, *flags: str, broken: str = "loss", at: str = "-1") -> int:
        monkeypatch.setenv("BREAK", broken)
        monkeypatch.setenv("AT", at)
        return cli.main([*words, "--output_dir", str(output_dir), *flags])

    return run


def same_weights(one: Path, other: Path) -> bool:
    left, right = (load_file(each / "model.safetensors") for each in (one, other))
    return all(torch.equal(left[name], right[name]) for name in left)


def strict(path: Path) -> Any:
    """What a parser reads that knows the standard only."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{path}: {constant}")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def assert_all_json_is_json(directory: Path) -> None:
    files = list(directory.rglob("*.json"))
    assert files
    for path in files:
        strict(path)


def checkpoints(run: Path) -> list[str]:
    return sorted(path.name for path in run.glob("*checkpoint-*"))


@pytest.mark.parametrize("broken", ["loss", "constant", "gradient"])
@pytest.mark.parametrize(
    "flags",
    [(), ("--max_grad_norm", "0"), ("--gradient_accumulation_steps", "2")],
    ids=["clipped", "not clipped", "accumulation"],
)
def test_a_run_stops_before_the_weights_change(
    finetune: Finetune,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    broken: str,
    flags: tuple[str, ...],
) -> None:
    run = tmp_path / "run"
    assert finetune(run, *flags, broken=broken, at="5") == 1
    error = capfd.readouterr().err
    what = "gradient norm" if broken == "gradient" else "loss"
    assert error.count("error:") == 1
    assert "Traceback" not in error
    assert re.search(rf"^error: the {what} is (nan|inf) at step 5 \(learning rate ", error, re.M)
    assert "The last checkpoint, checkpoint-4, is good" in error
    manifest = Run.load(run).manifest
    assert manifest.status == "diverged"
    assert manifest.failure is not None
    assert manifest.failure in error
    (record,) = strict(run / "nonfinite.json")["steps"]
    assert (record["step"], record["not_finite"]) == (5, what.split()[0])
    assert 0 < record["learning_rate"] < 3e-3
    assert len(record["micro_batches"]) == (2 if "accumulation" in str(flags) else 1)
    assert len(set(record["rows"])) == 16
    assert checkpoints(run) == ["checkpoint-2", "checkpoint-4"]
    assert_all_json_is_json(run)


def test_the_rows_are_those_that_the_model_saw(
    finetune: Finetune, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second epoch, of a run that was resumed in it."""
    monkeypatch.setenv("SAW", str(tmp_path / "saw.json"))
    run, late = tmp_path / "run", ("--save_steps", "10")
    assert finetune(run, *late, at="12") == 1
    first = strict(run / "nonfinite.json")["steps"]
    (tmp_path / "saw.json").unlink()
    assert finetune(run, *late, "--resume", at="2") == 1
    (record,) = strict(run / "nonfinite.json")["steps"]
    assert [record] == first
    assert (record["step"], record["epoch"]) == (12, 1)
    texts = Path(words[2]).read_text(encoding="utf-8").splitlines()[1:]
    tokenizer = transformers.AutoTokenizer.from_pretrained(words[4])
    named = [tokenizer(texts[row].rpartition(",")[0])["input_ids"] for row in record["rows"]]
    saw = json.loads((tmp_path / "saw.json").read_text())
    assert len({str(tokens) for tokens in saw}) > 8
    assert sorted(named) == sorted(saw)


def test_after_it_diverged_a_run_goes_on_from_its_last_checkpoint(
    finetune: Finetune, tmp_path: Path
) -> None:
    assert finetune(tmp_path / "whole") == 0
    run = tmp_path / "run"
    assert finetune(run, at="5") == 1
    assert finetune(run, "--resume") == 0
    assert same_weights(run, tmp_path / "whole")
    assert Run.load(run).manifest.failure is None


@pytest.mark.parametrize("broken", ["loss", "constant", "gradient"])
def test_a_skipped_step_leaves_weights_optimizer_and_schedule(
    finetune: Finetune, tmp_path: Path, broken: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    flags = ("--on_nonfinite", "skip", "--save_steps", "1", "--save_total_limit", "99")
    assert finetune(run, *flags, broken=broken, at="5") == 0
    assert re.search(r"^step +5/18 .*skipped_steps 1$", capfd.readouterr().out, re.MULTILINE)
    assert same_weights(run / "checkpoint-4", run / "checkpoint-5")
    assert not same_weights(run / "checkpoint-5", run / "checkpoint-6")
    counts = [
        torch.load(run / f"checkpoint-{step}" / "optimizer.pt")["state"][0]["step"]
        for step in (4, 5, 6)
    ]
    assert [int(each) for each in counts] == [4, 4, 5]
    manifest = Run.load(run).manifest
    assert (manifest.status, manifest.skipped_steps, manifest.steps) == ("finished", 1, 18)
    rates = {e["step"]: e["learning_rate"] for e in manifest.history if "learning_rate" in e}
    assert 5 not in rates  # there is no loss to log
    assert rates[6] == pytest.approx(3e-3 * (1 - 4 / 18))
    assert manifest.train_loss is not None
    assert math.isfinite(manifest.train_loss)
    assert_all_json_is_json(run)


def test_the_mean_loss_leaves_a_skipped_step_out(finetune: Finetune, tmp_path: Path) -> None:
    losses = {}
    for every in ("1", "3"):
        run = tmp_path / every
        flags = ("--on_nonfinite", "skip", "--logging_steps", every, "--max_steps", "6")
        assert finetune(run, *flags, at="5") == 0
        history = Run.load(run).manifest.history
        losses[every] = {entry["step"]: entry["loss"] for entry in history if "loss" in entry}
    assert losses["3"][6] == pytest.approx((losses["1"][4] + losses["1"][6]) / 2)


def test_skipping_gives_up_after_ten_in_a_row(
    finetune: Finetune, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, skip = tmp_path / "run", ("--on_nonfinite", "skip")
    assert finetune(run, *skip, at=",".join(map(str, [2, *range(4, 14)]))) == 1
    assert "at step 13, the 10th step in a row" in capfd.readouterr().err
    assert len(strict(run / "nonfinite.json")["steps"]) == 11
    assert Run.load(run).manifest.status == "diverged"
    # resumed from step 12, after nine in a row
    assert finetune(run, *skip, "--resume", at="1") == 1
    assert finetune(run, *skip, "--resume", at="2") == 0
    assert Run.load(run).manifest.skipped_steps == 11


def test_weights_that_are_not_finite_are_not_saved(
    finetune: Finetune, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, last = tmp_path / "run", tmp_path / "last"
    assert finetune(run, broken="weights", at="6") == 1
    assert "error: the weights are not finite after step 6" in capfd.readouterr().err
    assert Run.load(run).manifest.status == "diverged"
    assert checkpoints(run) == ["checkpoint-2", "checkpoint-4"]
    unsaved = ("--save_strategy", "no", "--max_steps", "6")
    assert finetune(last, *unsaved, broken="weights", at="6") == 1
    assert not (last / "model.safetensors").exists()


def test_the_flag_is_one_of_two(
    finetune: Finetune, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert finetune(tmp_path / "run", "--on_nonfinite", "skp") == 2
    expected = "--on_nonfinite skp: expected stop or skip; did you mean 'skip'?"
    assert expected in capfd.readouterr().err


# ---- the loss scaler of fp16, which needs a GPU --------------------------------------------------


def test_the_steps_that_a_loss_scaler_skips_are_normal() -> None:
    scaled = Verdicts(skips=False, scaled=True)
    for _ in range(3):
        overflows = [scaled.of(loss=False, gradient=True) for _ in range(MOST_OVERFLOWS - 1)]
        assert set(overflows) == {"go"}
        assert scaled.of(loss=False, gradient=False) == "go"
    assert scaled.skipped == 0
    assert [scaled.of(loss=False, gradient=True) for _ in range(MOST_OVERFLOWS)][-1] == "stop"
    assert "the loss scaler has skipped 20 steps in a row" in scaled.why()
    assert Verdicts(skips=False, scaled=True).of(loss=True, gradient=True) == "stop"
    skips = Verdicts(skips=True, scaled=True)
    found = [skips.of(loss=True, gradient=True) for _ in range(MOST_SKIPPED)]
    assert found == [*["skip"] * (MOST_SKIPPED - 1), "stop"]


# ---- JSON ----------------------------------------------------------------------------------------


def test_json_has_null_where_a_number_is_not_finite() -> None:
    content = {"a": [math.nan, 1.5, (math.inf,)], "b": {"c": -math.inf}, "d": "NaN"}
    assert json.loads(to_json(content)) == {"a": [None, 1.5, [None]], "b": {"c": None}, "d": "NaN"}
    assert to_json({"a": 1.0}, indent=1) == json.dumps({"a": 1.0}, indent=1)


def test_a_score_that_is_not_finite_is_null_in_the_file_and_nan_again(tmp_path: Path) -> None:
    interval = {"value": 0.5, "low": math.nan, "high": math.nan}
    statistics = Statistics(rows=1, metrics={"mine": interval}, beyond={})
    Metrics(validation={"loss": math.nan}, test={"mine": 0.5}, statistics=statistics).write(
        tmp_path
    )
    assert strict(tmp_path / "metrics.json")["validation"] == {"loss": None}
    found = Metrics.read(tmp_path)
    assert math.isnan(found.validation["loss"])
    assert found.statistics is not None
    assert math.isnan(found.statistics.metrics["mine"]["low"])


def test_curves_leave_out_what_is_not_finite() -> None:
    entry = {"loss": 0.5, "learning_rate": 0.1, "eval_loss": 0.5, "eval_accuracy": 0.5}
    broken: dict[str, Any] = dict.fromkeys(entry)
    history = [{"step": step, **(broken if step == 5 else entry)} for step in range(1, 6)]
    plot = curves.learning_curves(history, None)
    assert plot is not None
    assert "final validation loss 0.500" in plot.alt
    assert len(curves.overlaid({"one": history}, "eval_accuracy")) == 3


# ---- two processes -------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("broken", ["constant", pytest.param("gradient", marks=pytest.mark.faults)])
def test_all_ranks_stop_at_the_step_that_is_broken_on_one(
    command: Callable[..., "subprocess.CompletedProcess[str]"],
    words: list[str],
    tmp_path: Path,
    broken: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"BREAK": broken, "AT": "5", "BROKEN_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    run = tmp_path / "run"
    done = command(*words, "--output_dir", run, launcher="torchrun")
    assert done.returncode == 1
    assert done.stderr.count("error: the ") == 1
    assert " at step 5 (learning rate" in done.stderr
    assert Run.load(run).manifest.status == "diverged"
    (record,) = strict(run / "nonfinite.json")["steps"]
    assert [each["rank"] for each in record["micro_batches"]] == [0, 1]
    if broken == "constant":  # the rank is known
        assert record["rows"] == record["micro_batches"][1]["rows"]
    assert len(record["rows"]) == (8 if broken == "constant" else 16)
    skips = ("--output_dir", tmp_path / "skips", "--on_nonfinite", "skip")
    done = command(*words, *skips, launcher="torchrun")
    assert done.returncode == 0, done.stderr
    manifest = Run.load(tmp_path / "skips").manifest
    assert (manifest.status, manifest.skipped_steps) == ("finished", 1)


# ---- the gate of a GPU, on the CPU's fused optimizers --------------------------------------------


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.linear(x)}


class Late(Trainer):
    """As on a GPU: the flag is read a step later."""

    def watch(self) -> None:
        super().watch()
        self.reads_late = True


class Recorded(TrainerCallback):
    """Keeps the weights after each step."""

    def __init__(self) -> None:
        self.weights: list[torch.Tensor] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.weights.append(kwargs["model"].linear.weight.detach().clone())


@pytest.mark.parametrize("every", [100, 1], ids=["read a step later", "read before it is logged"])
def test_a_fused_optimizer_is_held_back(tmp_path: Path, every: int) -> None:
    """What `found_inf` does in torch's fused steps, until the flag is read."""
    x = [[0.1 * row, 1.0] for row in range(16)]
    x[11] = [math.nan, 1.0]
    data = datasets.Dataset.from_dict({"x": x, "labels": [0, 1] * 8}).with_format("torch")
    recorded = Recorded()
    arguments = FinetuneArguments(
        output_dir=str(tmp_path),
        use_cpu=True,
        precision="fp32",
        global_batch_size=2,
        optim="adamw_torch_fused",
        weight_decay=0.1,
        learning_rate=0.1,
        logging_steps=every,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Late(
        model=Net(),
        args=arguments,
        train_dataset=data,
        compute_loss_func=GlobalLoss(Yelp().loss),
        callbacks=[recorded],
    )
    with pytest.raises(Diverged, match=r"the loss is nan at step \d \(learning rate"):
        trainer.train()
    (record,) = strict(tmp_path / "nonfinite.json")["steps"]
    assert 11 in record["rows"]
    step = record["step"]
    assert 3 <= step < 24
    assert len(recorded.weights) == step  # it was not known before
    assert not torch.equal(recorded.weights[step - 3], recorded.weights[step - 2])
    assert torch.equal(recorded.weights[step - 2], recorded.weights[step - 1])
    assert torch.equal(trainer.model.linear.weight, recorded.weights[step - 1])
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == (step - 1 if every == 1 else 0)
    assert all(map(math.isfinite, losses))
