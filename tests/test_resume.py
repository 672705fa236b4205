"""A run that was stopped and continued is the run that was not stopped."""

import ast
import functools
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from finetune import Run, UserError, cli

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")
RECIPE = '''
"""Reviews, good or bad: nine steps an epoch, stopped where the environment says."""

import os

from finetune import TextRecipe


class Stoppable(TextRecipe):
    """With the dropout of the model, whose random state a checkpoint must carry."""

    training = dict(
        global_batch_size=16, learning_rate=3e-3, num_train_epochs=3, logging_steps=3,
        precision="fp32", disable_tqdm=True, metric_for_best_model="loss",
    )

    def trainer_kwargs(self, model=None):
        from transformers import TrainerCallback

        class Stop(TrainerCallback):
            def on_step_begin(self, args, state, control, **kwargs):
                if state.global_step == int(os.environ.get("STOP_AT", -1)):
                    raise KeyboardInterrupt

        return {**super().trainer_kwargs(model), "callbacks": [Stop()]}
'''
EPOCH, STEPS = 9, 27
# The accuracy stays what it is, so that the first epoch is the best, and the last is not.
FLAT = ("--learning_rate", "1e-5", "--metric_for_best_model", "accuracy")
STEPWISE = ("--save_strategy", "steps", "--save_steps", "4", "--save_total_limit", "9")
RESUME = ("--resume_from_checkpoint", "last")
Finetune = Callable[..., int]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, tiny_model: str) -> list[str]:
    """What is typed in every test: recipe, data and model."""
    directory = tmp_path_factory.mktemp("recipe")
    recipe, reviews = directory / "stoppable.py", directory / "reviews.csv"
    recipe.write_text(RECIPE, encoding="utf-8")
    adjectives = {"bad": ["awful", "dull", "bland"], "good": ["great", "lovely", "fine"]}
    lines = ["text,label"]
    for number in range(200):
        label = ("bad", "good")[number % 2]
        lines.append(f"the food of place {number} was {adjectives[label][number % 3]},{label}")
    reviews.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [str(recipe), "--dataset", str(reviews), "--model", tiny_model]


@pytest.fixture
def finetune(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Finetune:
    """The command line in this process; `stop_at` a step."""

    def run(output_dir: Path, *flags: str, stop_at: int = -1) -> int:
        monkeypatch.setenv("STOP_AT", str(stop_at))
        return cli.main([*words, "--output_dir", str(output_dir), *flags])

    return run


@pytest.fixture(scope="module")
def whole(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The directory of the run that was not stopped, with these flags."""

    @functools.cache
    def run(*flags: str) -> Path:
        directory = tmp_path_factory.mktemp("whole") / "run"
        assert cli.main([*words, "--output_dir", str(directory), *flags]) == 0
        return directory

    return run


def content(run: Path) -> dict[str, bytes]:
    """Every file of a directory, by its path in it."""
    files = (path for path in run.rglob("*") if path.is_file())
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def learned(run: Path) -> list[dict[str, Any]]:
    """What was logged, without the speed."""
    speed = ("runtime", "per_second", "flos", "memory_mib")
    return [
        {name: value for name, value in entry.items() if not name.endswith(speed)}
        for entry in Run.load(run).manifest["history"]
    ]


def assert_same_run(found: Path, expected: Path) -> None:
    assert Run.load(found).manifest["status"] == "finished"
    assert Run.load(found).metrics == Run.load(expected).metrics
    assert Run.load(found).predictions.equals(Run.load(expected).predictions)
    assert learned(found)[:-1] == learned(expected)[:-1]  # the last line is about the speed
    for checkpoint in ("", f"checkpoint-{Run.load(expected).manifest['steps']}"):
        weights = load_file(found / checkpoint / "model.safetensors")
        for name, value in load_file(expected / checkpoint / "model.safetensors").items():
            assert torch.equal(weights[name], value), f"{checkpoint} {name}"


# ---- one process ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "stop_at", "went_on_from"),
    [
        ((), EPOCH, EPOCH),
        ((), EPOCH + 4, EPOCH),
        (("--gradient_accumulation_steps", "2", "--lr_scheduler_type", "cosine"), 20, 2 * EPOCH),
        (STEPWISE, 14, 12),
        (("--train_sampling_strategy", "group_by_length"), EPOCH, EPOCH),
        (("--max_tokens_per_batch", "256", *STEPWISE), 14, 12),
    ],
    ids=[
        "after an epoch",
        "in an epoch",
        "accumulation",
        "from the middle of an epoch",
        "group_by_length",
        "steps of a number of tokens",
    ],
)
def test_stopped_and_continued_is_not_stopped(
    finetune: Finetune,
    whole: Callable[..., Path],
    tmp_path: Path,
    flags: tuple[str, ...],
    stop_at: int,
    went_on_from: int,
) -> None:
    stopped = tmp_path / "stopped"
    assert finetune(stopped, *flags, stop_at=stop_at) == 130
    checkpoints = [int(path.name.partition("-")[2]) for path in stopped.glob("checkpoint-*")]
    assert max(checkpoints) == went_on_from
    assert finetune(stopped, *flags, *RESUME) == 0
    assert_same_run(stopped, whole(*flags))


def test_a_path_says_which_checkpoint(
    finetune: Finetune, whole: Callable[..., Path], tmp_path: Path
) -> None:
    copied = shutil.copytree(whole(), tmp_path / "copied")
    first = str(copied / f"checkpoint-{EPOCH}")
    assert finetune(copied, "--resume_from_checkpoint", first) == 0
    assert_same_run(copied, whole())
    assert Run.load(copied).manifest["steps"] == STEPS


def test_resuming_a_finished_run_trains_no_further_step(
    finetune: Finetune, whole: Callable[..., Path], tmp_path: Path
) -> None:
    run = shutil.copytree(whole(), tmp_path / "run")
    assert finetune(run, *RESUME, stop_at=STEPS) == 0  # 130 if it began another
    assert_same_run(run, whole())
    assert Run.load(run).manifest["steps"] == STEPS


# ---- early stopping ------------------------------------------------------------------------------

#: The first epoch is the best of six, so that the third one stops.
STOPS = (*FLAT, "--num_train_epochs", "6", "--early_stopping_patience", "2")


def test_a_training_stops_early_and_says_when_and_why(
    finetune: Finetune, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert finetune(tmp_path / "run", *STOPS) == 0
    run = Run.load(tmp_path / "run")
    said = capfd.readouterr().out
    reason = (
        rf"stopped early at step {3 * EPOCH} of {6 * EPOCH}: validation accuracy has not improved "
        rf"on 0\.\d{{4}} \(step {EPOCH}\) for 2 evaluations"
    )
    assert re.search(rf"^{reason}$", said, re.MULTILINE)
    assert re.fullmatch(reason, run.manifest.stopped_early or "")
    assert (run.manifest.steps, run.manifest.best_step) == (3 * EPOCH, EPOCH)
    # the schedule spans the six epochs that were asked for
    rates = {e["step"]: e["learning_rate"] for e in run.manifest.history if "learning_rate" in e}
    assert rates[3 * EPOCH] == pytest.approx(1e-5 * (1 - (3 * EPOCH - 1) / (6 * EPOCH)))


@pytest.mark.parametrize("patience_before", [("--early_stopping_patience", "2"), ()])
def test_patience_is_not_forgotten_when_a_run_is_resumed(
    patience_before: tuple[str, ...], finetune: Finetune, tmp_path: Path
) -> None:
    epochs, run = (*FLAT, "--num_train_epochs", "6"), tmp_path / "run"
    assert finetune(run, *epochs, *patience_before, stop_at=2 * EPOCH + 1) == 130
    assert finetune(run, *STOPS, *RESUME) == 0
    # without patience before there is nothing to remember: two more evaluations
    assert Run.load(run).manifest.steps == (3 if patience_before else 4) * EPOCH


def test_a_run_that_stopped_early_goes_on_with_more_patience_only(
    finetune: Finetune, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert finetune(tmp_path / "run", *STOPS) == 0
    capfd.readouterr()
    before = content(tmp_path / "run")
    assert finetune(tmp_path / "run", *STOPS, *RESUME, stop_at=3 * EPOCH) == 0
    assert "test set" in capfd.readouterr().out
    assert content(tmp_path / "run") == before
    assert finetune(tmp_path / "run", *STOPS[:-1], "3", *RESUME) == 0
    assert Run.load(tmp_path / "run").manifest.steps == 4 * EPOCH


# ---- what is said, and what is kept --------------------------------------------------------------


def test_there_must_be_something_to_resume(
    finetune: Finetune, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert finetune(run, *RESUME) == 2
    assert capfd.readouterr().err == (
        f"error: --resume_from_checkpoint last: no checkpoint in {run}; "
        "leave the flag out to start from the beginning\n"
    )
    assert finetune(run, "--resume_from_checkpoint", str(tmp_path)) == 2
    assert "expected 'last' or a directory" in capfd.readouterr().err
    assert not run.exists()


def test_an_interrupted_run_says_so_and_how_to_go_on(
    finetune: Finetune, words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert finetune(run, stop_at=EPOCH) == 130
    assert Run.load(run).manifest["status"] == "interrupted"
    with pytest.raises(
        UserError, match=r"has no metrics.json \(status 'interrupted'\); to resume it: "
    ):
        _ = Run.load(run).metrics
    (said,) = re.findall(
        r"^interrupted; to resume at step 9: (.*)$", capfd.readouterr().out, re.MULTILINE
    )
    _, *typed = shlex.split(said)
    assert typed == ["-m", "finetune", *words, "--output_dir", str(run), "--resume"]


def test_before_the_first_checkpoint_there_is_no_way_on(
    finetune: Finetune, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert finetune(tmp_path / "run", stop_at=2) == 130
    assert "no checkpoint was saved yet" in capfd.readouterr().out
    assert finetune(tmp_path / "run", "--max_steps", "1") == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "moved the run in" in said
    assert "--resume_from_checkpoint" not in said


def test_in_a_notebook_the_way_on_is_python(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    import finetune

    recipe, _, dataset, _, model = words
    options: dict[str, Any] = dict(dataset=dataset, model=model, output_dir=str(tmp_path / "run"))
    monkeypatch.setenv("STOP_AT", str(EPOCH))
    with pytest.raises(KeyboardInterrupt):
        finetune.train(recipe, progress=print, **options)
    (said,) = re.findall(
        r"^interrupted; to resume at step 9: (.*)$", capfd.readouterr().out, re.MULTILINE
    )
    call = ast.parse(said, mode="eval").body
    assert isinstance(call, ast.Call)
    given = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    assert given == {**options, "resume": True}


def test_a_second_run_moves_an_interrupted_one_aside_whole(
    finetune: Finetune, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert finetune(run, stop_at=EPOCH) == 130
    before = content(run)
    assert f"checkpoint-{EPOCH}/optimizer.pt" in before
    assert finetune(run) == 0
    assert content(tmp_path / "run.1") == before
    assert Run.load(run).manifest["status"] == "finished"
    assert finetune(run, "--max_steps", "1") == 0
    assert content(tmp_path / "run.1") == before
    assert Run.load(tmp_path / "run.2").manifest["steps"] == STEPS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.1", "run.2"]


def test_a_second_run_says_how_to_resume_the_one_it_moved_aside_and_that_works(
    finetune: Finetune,
    whole: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The sentence quotes shell commands and flags: they are followed to the letter."""
    monkeypatch.chdir(tmp_path)
    run = Path("run")
    assert Run.load(whole(*FLAT)).manifest["best_step"] == EPOCH
    assert finetune(run, *FLAT, stop_at=2 * EPOCH) == 130
    capfd.readouterr()
    # another run comes between, with other checkpoints of the same names
    assert finetune(run, *FLAT, "--seed", "7") == 0
    _, _, said = " ".join(capfd.readouterr().out.split()).partition("moved the run in run to run.1")
    added = []
    for quoted in re.findall(r"`([^`]+)`", said):
        if quoted.startswith("--"):
            added += shlex.split(quoted)
        else:
            subprocess.run(quoted, shell=True, check=True)
    assert "--resume" in added
    assert finetune(run, *FLAT, *added) == 0
    manifests = {path.parent: Run.load(path.parent).manifest for path in Path().rglob("run.json")}
    seeds = {path: manifest["arguments"]["seed"] for path, manifest in manifests.items()}
    assert sorted(seeds.values()) == [7, 42]
    (continued,) = (path for path, seed in seeds.items() if seed == 42)
    assert_same_run(continued, whole(*FLAT))


@pytest.mark.parametrize("stop_at", [2 * EPOCH, -1], ids=["interrupted", "finished"])
def test_a_run_that_was_moved_goes_on_with_its_own_best_model(
    finetune: Finetune, whole: Callable[..., Path], tmp_path: Path, stop_at: int
) -> None:
    """The library remembers where the best checkpoint lay: another run is there now."""
    assert finetune(tmp_path / "run", *FLAT, stop_at=stop_at) in (0, 130)
    assert finetune(tmp_path / "run", *FLAT, "--seed", "7") == 0
    moved = tmp_path / "run.1"
    assert finetune(moved, *FLAT, *RESUME) == 0
    assert_same_run(moved, whole(*FLAT))


def test_a_path_is_not_broken_where_it_is_said(
    finetune: Finetune, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Or it could not be copied: hyphens are no places to fold a path or a flag."""
    run = tmp_path / "-".join(["a"] * 20) / "run"
    assert finetune(run, "--max_steps", "1") == 0
    capfd.readouterr()
    assert finetune(run, "--max_steps", "1") == 0
    said = capfd.readouterr().out.split()
    assert f"{run}.1" in said


# ---- two processes -------------------------------------------------------------------------------


@pytest.mark.processes
def test_two_processes_that_resume_end_like_those_that_were_not_stopped(
    command: Callable[..., "subprocess.CompletedProcess[str]"], words: list[str], tmp_path: Path
) -> None:
    """Stopped by taking away all that the second epoch left: each launch takes ten seconds."""

    def launch(output_dir: Path, *flags: str) -> None:
        options = ("--output_dir", output_dir, "--num_train_epochs", "2", *flags)
        done = command(*words, *options, launcher="torchrun")
        assert done.returncode == 0, done.stderr

    whole = tmp_path / "whole"
    launch(whole)
    stopped = shutil.copytree(
        whole, tmp_path / "stopped", ignore=lambda _, names: {f"checkpoint-{2 * EPOCH}"} & {*names}
    )
    for written_at_the_end in ("metrics.json", "predictions.parquet", "model.safetensors"):
        (stopped / written_at_the_end).unlink()
    launch(stopped, *RESUME)
    for run in (whole, stopped):
        launched = Run.load(run).manifest["launch"]
        assert (launched["world_size"], launched["parallel_mode"]) == (2, "DistributedDataParallel")
    found, expected = Run.load(stopped).metrics, Run.load(whole).metrics
    for split in ("validation", "test"):
        assert found[split] == pytest.approx(expected[split], rel=1e-6)
    assert learned(stopped)[:-1] == learned(whole)[:-1]
