"""What makes the result may not change when a run is resumed; where it runs may."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import finetune
from finetune import Run, UserError, cli
from finetune.pipeline import changes
from finetune.pipeline.resumption import Resumption
from tests.faults.conftest import STEPS, Faulty, history

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")
CONFIG = "a model configuration of fingerprint '"
OTHERS = {
    "seed": "7",
    "data_seed": "7",
    "split_seed": "7",
    "learning_rate": "1e-3",
    "lr_scheduler_type": "cosine",
    "warmup_steps": "4",
    "weight_decay": "0.1",
    "adam_beta2": "0.9",
    "optim": "sgd",
    "max_grad_norm": "0.5",
    "label_smoothing_factor": "0.1",
    "global_batch_size": "8",
    "num_train_epochs": "3",
    "max_steps": "30",
    "max_length": "8",
    "hidden_dropout": "0.3",
    "train_samples": "100",
    "train_sampling_strategy": "group_by_length",
    "metric_for_best_model": "accuracy",
    "precision": "bf16",
    "truncation": "tail",
}


@pytest.fixture(scope="module")
def interrupted(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("interrupted") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAULT", "step 3,SIGTERM")
        assert cli.main([*words, "--output_dir", str(run)]) == 75
    return run


@pytest.mark.parametrize("name", OTHERS)
def test_another_setting_is_refused_by_name(
    faulty: Faulty, interrupted: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = (interrupted / "run.json").read_bytes()
    assert faulty(interrupted, "--resume", "--dry_run", f"--{name}", OTHERS[name]) == 2
    said = capfd.readouterr().err.splitlines()
    compared = {"precision": "bf16"}.get(name, name)  # what it is resolved to
    assert any(f"was trained with {compared} " in line for line in said)
    assert said[-1].startswith("hint: to resume, restore them")
    assert compared in said[-1].partition("--allow_changed ")[2].split(",")
    assert (interrupted / "run.json").read_bytes() == before


def test_a_dry_run_says_what_it_would_resume_from(
    faulty: Faulty, interrupted: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert faulty(interrupted, "--resume", "--dry_run") == 0
    assert f"would resume from {interrupted / 'checkpoint-4'}" in capfd.readouterr().out


def test_other_data_and_another_model_are_refused(
    interrupted: Path,
    words: list[str],
    tmp_path: Path,
    tiny_model: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    other = tmp_path / "other.csv"
    lines = Path(words[2]).read_text(encoding="utf-8").splitlines()
    lines[5] = lines[5].replace("food", "wine")
    other.write_text("\n".join(lines) + "\n", encoding="utf-8")
    model = shutil.copytree(tiny_model, tmp_path / "model")
    typed = [words[0], "--dataset", str(other), "--model", str(model), "--dry_run", "--resume"]
    assert cli.main([*typed, "--output_dir", str(interrupted)]) == 2
    said = capfd.readouterr().err
    assert "was trained with data of fingerprint '" in said
    assert "was trained with model '" in said


@pytest.mark.parametrize(
    ("file", "before", "after", "told"),
    [
        ("model/config.json", '"hidden_dropout_prob": 0.1', '"hidden_dropout_prob": 0.5', CONFIG),
        ("model/tokenizer.json", '"food"', '"wood"', "a tokenizer of fingerprint '"),
        (
            "faulty.py",
            "super().trainer_kwargs(model)",
            "super().trainer_kwargs(None)",
            "a recipe file of sha256 '",
        ),
    ],
)
def test_a_model_and_a_recipe_that_were_edited_are_refused(
    words: list[str],
    tmp_path: Path,
    tiny_model: str,
    file: str,
    before: str,
    after: str,
    told: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    recipe = shutil.copy(words[0], tmp_path / "faulty.py")
    typed = [str(recipe), *words[1:3], "--model", str(model), "--output_dir", str(tmp_path / "run")]
    assert cli.main([*typed, "--max_steps", "3"]) == 0
    Run.load(tmp_path / "run").update(status="interrupted")
    assert cli.main([*typed, "--max_steps", "3", "--resume", "--dry_run"]) == 0
    text = (tmp_path / file).read_text(encoding="utf-8")
    assert before in text
    (tmp_path / file).write_text(text.replace(before, after), encoding="utf-8")
    capfd.readouterr()
    assert cli.main([*typed, "--max_steps", "3", "--resume", "--dry_run"]) == 2
    assert f"was trained with {told}" in capfd.readouterr().err


def test_the_same_model_by_another_path_and_offline_is_the_same(
    words: list[str], tmp_path: Path, tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tiny_model, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    run, data = ["--output_dir", "run", "--max_steps", "3"], [words[0], *words[1:3]]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert cli.main([*data, *run, "--model", str(tmp_path / "model")]) == 0
    Run.load("run").update(status="interrupted")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert cli.main([*data, *run, "--model", "./model", "--resume", "--dry_run"]) == 0


def test_the_same_data_in_another_place_are_the_same(
    interrupted: Path, words: list[str], tmp_path: Path
) -> None:
    moved = str(shutil.copy(words[2], tmp_path / "moved.csv"))
    typed = [moved if word == words[2] else word for word in words]
    assert cli.main([*typed, "--output_dir", str(interrupted), "--resume", "--dry_run"]) == 0


def test_a_change_that_is_allowed_is_in_force_and_recorded(
    faulty: Faulty, interrupted: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(interrupted, tmp_path / "run")
    changed = ("--learning_rate", "1e-4", "--weight_decay", "0.2")
    assert faulty(run, "--resume", *changed, "--allow_changed", "learning_rate") == 2
    assert "weight_decay" in capfd.readouterr().err
    allowed = "learning_rate,weight_decay"
    assert (
        faulty(run, "--resume", *changed, "--allow_changed", allowed, "--logging_steps", "1") == 0
    )
    assert "with other settings than before: learning_rate, weight_decay" in capfd.readouterr().out
    rates = {entry["step"]: entry["learning_rate"] for entry in history(run) if "loss" in entry}
    assert rates[5] == pytest.approx(1e-4 * (1 - 4 / STEPS))
    (resumed,) = Run.load(run).manifest.resumed
    assert resumed["step"] == 4
    assert resumed["allowed"] == {"learning_rate": [3e-3, 1e-4], "weight_decay": [0.01, 0.2]}
    assert resumed["changed"]["logging_steps"] == [4, 1]
    groups = torch.load(run / f"checkpoint-{STEPS}" / "optimizer.pt")["param_groups"]
    assert {group["weight_decay"] for group in groups} == {0.0, 0.2}


def test_options_that_earlier_releases_did_not_have_had_their_defaults(interrupted: Path) -> None:
    now = Run.load(interrupted).manifest.configuration
    new = {"task", "class_weights", "class_sampling", "thresholds", "long_texts", "pooling"}
    assert new < now.keys()
    earlier = {name: value for name, value in now.items() if name not in new}
    found = Resumption(None, interrupted, None, earlier)
    assert changes.between(found, now) == {}
    weighted = {**now, "class_weights": "balanced"}
    assert changes.between(found, weighted) == {"class_weights": ("none", "balanced")}


def test_an_unknown_name_is_not_allowed(
    faulty: Faulty, interrupted: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert faulty(interrupted, "--resume", "--dry_run", "--allow_changed", "learning_rat") == 2
    assert "unknown name 'learning_rat'; did you mean 'learning_rate'?" in capfd.readouterr().err


def test_accumulation_may_change_and_that_is_said(
    faulty: Faulty, interrupted: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(interrupted, tmp_path / "run")
    assert faulty(run, "--resume", "--gradient_accumulation_steps", "2") == 0
    assert "resumed with 2 accumulation steps instead of 1" in capfd.readouterr().out
    (resumed,) = Run.load(run).manifest.resumed
    assert resumed["changed"]["gradient_accumulation_steps"] == [1, 2]


# ---- a finished run ------------------------------------------------------------------------------


def test_a_finished_run_shows_its_results_and_changes_nothing(
    faulty: Faulty, whole: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    run = whole()
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    capfd.readouterr()
    assert faulty(run, "--resume", fault=f"step {STEPS},SIGKILL") == 0
    said = capfd.readouterr().out
    assert "the run is finished, nothing is left to train; its results:" in said
    assert "test set" in said
    after = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    assert {path for path in after if after[path] != before.get(path)} <= {run / ".lock"}


def test_a_finished_run_is_shown_from_another_directory(
    faulty: Faulty, whole: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = whole()
    last = str(run / f"checkpoint-{STEPS}")
    assert faulty(tmp_path / "other", "--resume_from_checkpoint", last) == 0
    said = capfd.readouterr().out
    assert "nothing is left to train" in said
    assert f"saved to {run}" in said
    assert not (tmp_path / "other").exists()


def test_a_finished_run_that_kept_only_its_best_checkpoint_is_shown_too(
    faulty: Faulty, whole: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    run = whole("--save_total_limit", "1")
    assert faulty(run, "--save_total_limit", "1", "--resume") == 0
    assert "nothing is left to train" in capfd.readouterr().out


def test_a_finished_run_goes_on_to_more_epochs_at_a_rate_above_zero(
    faulty: Faulty, whole: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(whole(), tmp_path / "run")
    assert faulty(run, "--num_train_epochs", "4", "--logging_steps", "1", "--resume") == 0
    assert f"continues a finished run at step {STEPS}: from there the learning rate" in (
        capfd.readouterr().out
    )
    rates = {entry["step"]: entry["learning_rate"] for entry in history(run) if "loss" in entry}
    assert rates[STEPS + 1] == pytest.approx(3e-3 / 2)
    assert Run.load(run).manifest.steps == 2 * STEPS
    assert faulty(run, "--num_train_epochs", "3", "--resume") == 2
    assert "was trained with num_train_epochs 4" in capfd.readouterr().err


@pytest.mark.faults
def test_results_of_before_are_not_taken_for_those_of_a_run_that_goes_on(
    faulty: Faulty, whole: Callable[..., Path], tmp_path: Path
) -> None:
    run = shutil.copytree(whole(), tmp_path / "run")
    more = ("--num_train_epochs", "3", "--resume")
    assert faulty(run, *more, fault="step 20,SIGTERM") == 75
    told = "its training was continued and has not ended (status 'interrupted')"
    with pytest.raises(UserError, match=re.escape(told)):
        finetune.report(run)
    with pytest.raises(UserError, match=re.escape(told)):
        finetune.compare([whole(), run])
    assert told in finetune.evaluate(run).notes[0]
    assert faulty(run, *more) == 0
    assert finetune.report(run).page.exists()


# ---- where there is nothing to go on from --------------------------------------------------------


def test_resume_starts_in_the_same_directory_where_there_is_no_checkpoint(
    faulty: Faulty, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert faulty(run, "--resume", "--max_steps", "2", "--save_strategy", "no") == 0
    assert faulty(tmp_path / "killed", fault="start,SIGTERM") == 75
    assert "no checkpoint was saved yet: start again" in capfd.readouterr().out
    assert faulty(tmp_path / "killed", "--resume", "--max_steps", "2") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed", "run"]
    assert Run.load(tmp_path / "killed").manifest.steps == 2


def test_the_two_flags_do_not_go_together(
    faulty: Faulty, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert faulty(tmp_path / "run", "--resume", "--resume_from_checkpoint", "last") == 2
    assert "--resume and --resume_from_checkpoint are mutually exclusive" in capfd.readouterr().err


def test_a_job_that_is_started_again_leaves_the_run_of_another_alone(
    faulty: Faulty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed before it could move that one aside."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert faulty(tmp_path / "run", "--max_steps", "3") == 0
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert faulty(tmp_path / "run", "--max_steps", "3") == 0
    moved = Run.load(tmp_path / "run.1").manifest.process
    assert (moved.job, Run.load(tmp_path / "run").manifest.process.job) == ("slurm 7", "slurm 8")


@pytest.mark.parametrize("name", ["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"])
def test_a_job_that_is_started_again_resumes_by_itself(
    faulty: Faulty, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    assert faulty(run, "--max_steps", "6", fault="step 3,SIGTERM") == 75
    monkeypatch.setenv(name, "1")
    assert faulty(run, "--max_steps", "6") == 0
    assert Run.load(run).manifest.steps_before == 4


def test_a_collator_that_draws_is_said_not_to_be_exact(
    interrupted: Path, words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for draws, expected in (("random.random()", True), ("numpy.random.rand()", True), ("0", False)):
        run = tmp_path / str(len(draws))
        recipe = tmp_path / f"drawing{len(draws)}.py"
        method = (
            "    def data_collator(self):\n        import random, numpy\n"
            "        collate = super().data_collator()\n"
            f"        return lambda rows: ({draws}, collate(rows))[1]\n\n"
        )
        text = Path(words[0]).read_text(encoding="utf-8")
        recipe.write_text(text.replace("    def prepare", f"{method}    def prepare"), "utf-8")
        typed = [str(recipe), *words[1:], "--output_dir", str(run), "--max_steps", "6"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FAULT", "step 3,SIGTERM")
            assert cli.main(typed) == 75
            patch.delenv("FAULT")
            capfd.readouterr()
            assert cli.main([*typed, "--resume"]) == 0
        assert ("the data collator draws random numbers" in capfd.readouterr().out) == expected


@pytest.mark.parametrize("allowed", [None, "labels", "labels,label_columns"])
def test_another_number_of_outputs_cannot_be_allowed(tmp_path: Path, allowed: str | None) -> None:
    before = {"labels": ["stars", "cost"], "label_columns": "stars,cost"}
    now = {"labels": ["stars", "cost", "words"], "label_columns": "stars,cost,words"}
    found = Resumption(None, tmp_path, None, before)
    with pytest.raises(UserError) as refusal:
        changes.refuse_changes(found, now, allowed)
    said = str(refusal.value)
    assert 'was trained with labels ["stars", "cost"], now it is ["stars", "cost", "words"]' in said
    assert "a model of 2 outputs cannot go on with 3" in said
    assert "--allow_changed" not in said

    renamed = {"labels": ["a", "b"], "label_columns": "a,b"}
    changes.refuse_changes(found, renamed, "labels,label_columns")
    changes.refuse_changes(found, {**before, "labels": ["a", "b"]}, "labels")
    with pytest.raises(UserError, match="--allow_changed labels,label_columns"):
        changes.refuse_changes(found, renamed, None)
