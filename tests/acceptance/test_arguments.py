"""Training arguments of the library: each is honoured, or refused in one message.

`make arguments` trains with all of them; here they are tried up to one collated batch.
"""

import dataclasses
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig

import finetune
from recipes.text import Text
from tests import arguments
from tests.acceptance.conftest import TRAINING, Finished, flags, user_error

Cli = Callable[..., Finished]
#: Arguments that contradict others; `make arguments` tries them alone.
ALONE = {"bf16", "greater_is_better", "optim", "save_strategy", "torch_compile", "eval_strategy"}
ALONE |= {"logging_strategy", "lr_scheduler_type", "max_steps", "output_dir"}


@pytest.fixture
def words(reviews: Path, bert: Path, tmp_path: Path) -> list[str]:
    """A recipe, its data and its model."""
    paths = flags(dataset=reviews, model=bert, output_dir=tmp_path / "run")
    return ["text", *paths, *shlex.split(arguments.BASE)]


@pytest.mark.contract("A5")
def test_every_argument_of_the_library_is_tried() -> None:
    """Those of a new release need a line in `ATTEMPTS` if their type does not say a value."""
    assert arguments.missing_lines() == []
    names = {attempt.name for attempt in arguments.all_attempts()}
    assert names >= {field.name for field in dataclasses.fields(TrainingArguments)}
    keys = {f"accelerator_config.{field.name}" for field in dataclasses.fields(AcceleratorConfig)}
    assert names >= keys


@pytest.mark.contract("A5", "F4")
def test_an_argument_is_refused_in_one_message(words: list[str], cli: Cli) -> None:
    """Before the training: exit status 2, no traceback, the flag and the reason."""
    wrong = {}
    refused = [a for a in arguments.ATTEMPTS if a.outcome not in arguments.OUTCOMES]
    assert len(refused) > 50
    for attempt in refused:
        finished = cli(*words, *shlex.split(attempt.words), "--dry_run")
        messages = re.findall(r"error: (.*)", finished.stderr)
        if (finished.status, len(messages)) != (2, 1) or attempt.outcome not in messages[0]:
            wrong[attempt.words] = finished.output
    assert wrong == {}


@pytest.mark.contract("A5")
def test_all_other_arguments_are_accepted(words: list[str], cli: Cli) -> None:
    """In groups: one with each name, and with one set of the flags that they need."""
    groups: dict[tuple[str, int], list[str]] = {}
    counts: Counter[str] = Counter()
    for attempt in arguments.ATTEMPTS:
        if attempt.outcome in arguments.OUTCOMES and attempt.name not in ALONE:
            key = (attempt.given, counts[attempt.name])
            groups.setdefault(key, shlex.split(attempt.given))
            groups[key] += shlex.split(attempt.words.removeprefix(attempt.given))
            counts[attempt.name] += 1
    for group in groups.values():
        cli(*words, *group, "--dry_run").succeeded()


#: Options that are lists, as typed.
LISTS = {"include_for_metrics": ["inputs", "loss"], "report_to": ["tensorboard", "mlflow"]}


@pytest.mark.contract("A5")
@pytest.mark.parametrize("source", ["flags", "file", "keywords"])
def test_lists_are_options(source: str, words: list[str], cli: Cli, tmp_path: Path) -> None:
    """In the shell words, in YAML and in Python lists; the trainer gets them."""
    typed = [word for name, values in LISTS.items() for word in (f"--{name}", *values)]
    if source == "file":
        lines = [f"{name}: [{', '.join(values)}]\n" for name, values in LISTS.items()]
        (tmp_path / "options.yaml").write_text("".join(lines))
        typed = ["--config", str(tmp_path / "options.yaml")]
    if source == "keywords":
        settings: dict[str, Any] = {"dataset": words[2], "model": words[4]}
        trainer = Text(**settings).trainer(output_dir=str(tmp_path / "run"), max_steps=1, **LISTS)
        assert {name: getattr(trainer.args, name) for name in LISTS} == LISTS
        with user_error("report_to", "expected text or a list of texts, found [1]"):
            Text(**settings).trainer(output_dir=str(tmp_path / "run"), report_to=[1])
    else:
        cli(*words, *typed, "--dry_run").succeeded()
        wrong = cli(*words, *typed, "--include_for_metrics", "inputs", "output", "--dry_run")
        wrong.refused("--include_for_metrics output: expected inputs, loss")


@pytest.mark.contract("D11", "E1")
def test_evaluations_in_bf16_do_not_change_the_saved_model(
    single_label_run: finetune.Run, reviews: Path, bert: Path, tmp_path: Path
) -> None:
    """The library casts the model in place; only the predictions may differ."""
    options = {**TRAINING, "dataset": str(reviews), "model": str(bert), "baseline": False}
    run = finetune.train("text", output_dir=str(tmp_path), bf16_full_eval=True, **options)
    weights = load_file(run.path / "model.safetensors")
    expected = load_file(single_label_run.path / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert all(torch.equal(weight, expected[name]) for name, weight in weights.items())
    frames = [pd.read_parquet(r.path / "predictions.parquet") for r in (run, single_label_run)]
    first, second = (frame["probability of good"].to_numpy() for frame in frames)
    assert 0 < np.abs(first - second).max() < 0.05


@pytest.mark.contract("E1")
def test_a_model_that_was_cast_after_the_training_is_not_saved(
    reviews: Path, bert: Path, tmp_path: Path
) -> None:
    recipe = Text(dataset=str(reviews), model=str(bert))
    trainer = recipe.trainer(output_dir=str(tmp_path / "run"), max_steps=1, precision="fp32")
    trainer.train()
    shutil.rmtree(tmp_path / "run")
    trainer.model.to(torch.bfloat16)  # type: ignore[union-attr]
    with pytest.raises(AssertionError, match="bfloat16"):
        trainer.save_model()
    assert not list(tmp_path.rglob("*.safetensors"))


class WithLosses(Text):
    """A recipe whose metric is the mean of the largest losses."""

    own_metrics = ("worst",)

    def compute_metrics(self, prediction: Any) -> dict[str, float]:
        rows = len(prediction.label_ids)
        assert len(prediction.losses) == len(prediction.inputs) == rows
        return {"worst": float(np.sort(prediction.losses)[-10:].mean())}


@pytest.mark.contract("B8", "D3")
def test_metrics_get_the_loss_of_each_row(reviews: Path, bert: Path, tmp_path: Path) -> None:
    """`include_for_metrics`: not that of its batch; a report, which has none, is tried before."""
    data: dict[str, Any] = {"dataset": str(reviews), "model": str(bert)}
    options: dict[str, Any] = dict(include_for_metrics=["inputs", "loss"], precision="fp32")
    options |= dict(output_dir=str(tmp_path / "run"), per_device_eval_batch_size=5)
    trainer = WithLosses(**data).trainer(**options)
    outputs = trainer.predict(trainer.eval_dataset)
    logits, targets = torch.tensor(outputs.predictions), torch.tensor(outputs.label_ids)
    losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    worst = losses.sort().values[-10:].mean().item()
    assert outputs.metrics is not None
    assert outputs.metrics["test_worst"] == pytest.approx(worst, abs=1e-6)
    with user_error("compute_metrics() of", "NoneType"):
        finetune.train(WithLosses, **data, **options)


@pytest.mark.contract("A5", "G4")
def test_steps_are_timed_without_evaluations(words: list[str], cli: Cli) -> None:
    """`--max_minutes` with arguments that need evaluations and checkpoints."""
    typed = flags(max_minutes=0.01, eval_strategy="steps", eval_steps=4, save_steps=4)
    start = words.index("--num_train_epochs")
    del words[start : start + 2]
    plateau = ["--lr_scheduler_type", "reduce_lr_on_plateau", "--lr_scheduler_kwargs"]
    cli(*words, *typed, *plateau, '{"patience": 1}').succeeded()
