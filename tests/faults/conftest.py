"""A tiny recipe whose training is stopped, killed or damaged; what it leaves is compared."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from finetune import Run, cli

RECIPE = '''
"""Reviews, good or bad: nine steps an epoch, and a signal where the environment says."""

import os
import signal

from finetune import TextRecipe


class Faulty(TextRecipe):
    """With the dropout of the model, whose random state a checkpoint must carry."""

    training = dict(
        global_batch_size=16, learning_rate=3e-3, num_train_epochs=2, logging_steps=4,
        eval_strategy="steps", eval_steps=3, save_strategy="steps", save_steps=3,
        save_total_limit=9,
        precision="fp32", disable_tqdm=True, metric_for_best_model="loss", baseline=False,
    )

    def prepare(self, dataset):
        prepared = super().prepare(dataset)
        fault("preparation")
        return prepared

    def trainer_kwargs(self, model=None):
        from transformers import TrainerCallback

        class Faults(TrainerCallback):
            batches = 0

            def on_train_begin(self, args, state, control, **kwargs):
                fault("start")

            def on_step_begin(self, args, state, control, **kwargs):
                fault(f"step {state.global_step}")

            def on_step_end(self, args, state, control, **kwargs):
                fault(f"end of step {state.global_step}")

            def on_epoch_end(self, args, state, control, **kwargs):
                fault(f"end of epoch {round(state.epoch)}")

            def on_prediction_step(self, args, state, control, **kwargs):
                self.batches += 1
                fault(f"batch {self.batches}")

            def on_save(self, args, state, control, **kwargs):
                fault(f"save {state.global_step}")

        return {**super().trainer_kwargs(model), "callbacks": [Faults()]}


def fault(place):
    """FAULT is a place, a comma, and the name of a signal for this process."""
    wanted, _, name = os.environ.get("FAULT", "").partition(",")
    rank = os.environ.get("RANK", "0")
    if wanted == place and rank == os.environ.get("FAULTY_RANK", rank):
        os.kill(os.getpid(), getattr(signal, name))
'''
EPOCH, STEPS = 9, 18
Faulty = Callable[..., int]


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory, tiny_model: str) -> list[str]:
    """What is typed in every test: recipe, data and model."""
    directory = tmp_path_factory.mktemp("recipe")
    recipe, reviews = directory / "faulty.py", directory / "reviews.csv"
    recipe.write_text(RECIPE, encoding="utf-8")
    adjectives = {"bad": ["awful", "dull", "bland"], "good": ["great", "lovely", "fine"]}
    lines = ["text,label"]
    for number in range(200):
        label = ("bad", "good")[number % 2]
        lines.append(f"the food of place {number} was {adjectives[label][number % 3]},{label}")
    reviews.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [str(recipe), "--dataset", str(reviews), "--model", tiny_model]


@pytest.fixture
def faulty(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Faulty:
    """The command line in this process, with a fault at a place."""

    def run(output_dir: Path, *flags: str, fault: str = "") -> int:
        monkeypatch.setenv("FAULT", fault)
        return cli.main([*words, "--output_dir", str(output_dir), *flags])

    return run


@pytest.fixture(scope="session")
def whole(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The directory of the run that nothing happened to, with these flags."""

    @functools.cache
    def run(*flags: str) -> Path:
        os.environ.pop("FAULT", None)
        directory = tmp_path_factory.mktemp("whole") / "run"
        assert cli.main([*words, "--output_dir", str(directory), *flags]) == 0
        return directory

    return run


def history(run: Path) -> list[dict[str, Any]]:
    """What was logged, without the speed."""
    speed = ("runtime", "per_second", "flos")
    return [
        {name: value for name, value in entry.items() if not name.endswith(speed)}
        for entry in Run.load(run).manifest.history
    ]


def assert_same(found: Path, expected: Path, world_size: int = 1) -> None:
    """Hold a run against another, to the bit: weights, optimizer, schedule, random states, log."""
    assert Run.load(found).manifest.status == "finished"
    assert Run.load(found).metrics == Run.load(expected).metrics
    assert Run.load(found).predictions.equals(Run.load(expected).predictions)
    assert history(found)[:-1] == history(expected)[:-1]  # the last line is about the speed
    last = f"checkpoint-{Run.load(expected).manifest.steps}"
    for place in ("", last):
        weights = load_file(found / place / "model.safetensors")
        for name, value in load_file(expected / place / "model.safetensors").items():
            assert torch.equal(weights[name], value), f"{place} {name}"
    states = [f"rng_state_{rank}.pth" for rank in range(world_size)]
    for name in (
        "optimizer.pt",
        "scheduler.pt",
        *(states if world_size > 1 else ["rng_state.pth"]),
    ):
        pair = [torch.load(run / last / name, weights_only=False) for run in (found, expected)]
        assert equal(*pair), name
    best = [Run.load(run).manifest.best_step for run in (found, expected)]
    assert best[0] == best[1]


def equal(one: Any, other: Any) -> bool:
    """Return whether two nested states are equal."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool((one == other).all()) if hasattr(one, "all") else bool(one == other)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of `make faults`: how often each fault was survived, and how long it took."""
    if "FAULT_TIMES" not in os.environ:
        return
    rows: dict[tuple[str, str], list[pytest.TestReport]] = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            if report.when == "call" or outcome != "passed":
                file, _, name = report.nodeid.partition("::")
                name = name.partition("[")[0].removeprefix("test_").replace("_", " ")
                rows.setdefault((Path(file).stem.removeprefix("test_"), name), []).append(report)
    terminalreporter.section("faults")
    for (area, name), reports in sorted(rows.items()):
        passed = sum(report.passed for report in reports)
        seconds = sum(report.duration for report in reports)
        terminalreporter.line(
            f"{area:12} {name:75} {passed:3} of {len(reports):3} {seconds:6.1f} s"
        )
