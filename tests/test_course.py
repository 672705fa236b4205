"""The sentences about the curves of a run: each has its numbers, and what to type."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune.errors import UserError
from finetune.reporting import card, course, page
from finetune.statistics import groups
from finetune.training.manifest import Data, Launch, Manifest, Process
from tests.runs import write_run

ROWS = 400


def history(
    losses: list[float], scores: list[float], *, metric: str = "f1", train: float = -0.1
) -> list[dict[str, Any]]:
    """Evaluations after each epoch of 100 steps, with little noise, and training losses."""
    noise = np.random.default_rng(0).normal(size=(len(losses), 2, groups.GROUPS))
    noise -= noise.mean(axis=-1, keepdims=True)
    found: list[dict[str, Any]] = []
    for place, (loss, score) in enumerate(zip(losses, scores, strict=True)):
        step = 100 * (place + 1)
        found += [
            {"step": each, "loss": 1 + train * each / 100, "learning_rate": 1e-5}
            for each in range(step - 90, step + 1, 10)
        ]
        kept = [
            groups.encode(v + 0.01 * n) for v, n in zip((loss, score), noise[place], strict=True)
        ]
        found.append(
            {
                "step": step,
                "epoch": float(place + 1),
                "eval_loss": loss,
                f"eval_{metric}": score,
                "groups": {"rows": ROWS, "loss": kept[0], metric: kept[1]},
            }
        )
    return found


def manifest(found: list[dict[str, Any]], *, best: int | None = None, **facts: Any) -> Manifest:
    """Of a run of that history; its best checkpoint is that of an epoch."""
    arguments = {
        "metric_for_best_model": "f1",
        "greater_is_better": "True",
        "num_train_epochs": len([each for each in found if "eval_loss" in each]),
        "max_steps": -1,
        "load_best_model_at_end": "True",
        **facts.pop("arguments", {}),
    }
    launch = Launch(
        parallel_mode="", world_size=1, machines=1, n_gpu=0, device="cpu", precision="fp32"
    )
    whole: dict[str, Any] = {
        "status": "finished",
        "recipe": "text",
        "command": "",
        "options": {},
        "embedded_overrides": {},
        "arguments": arguments,
        "labels": ["a", "b"],
        "scoring": {},
        "data": Data(source="", rows={"validation": ROWS}, fingerprint=""),
        "launch": launch,
        "versions": {},
        "git_revision": None,
        "process": Process(host="", pid=0),
        "steps": max((each["step"] for each in found), default=60),
        "history": found,
        "best_step": None if best is None else 100 * best,
        **facts,
    }
    return Manifest(**whole)


OVERFIT = history([0.6, 0.4, 0.3, 0.36, 0.42], [0.7, 0.8, 0.85, 0.85, 0.85])
RISING = history([0.6, 0.5, 0.4, 0.3], [0.6, 0.7, 0.75, 0.8])


def test_a_run_that_overfits() -> None:
    found = course.of(manifest(OVERFIT, best=3))
    first, second, third = found.sentences
    assert first.startswith("Validation loss rose by 0.12")
    assert "(95% CI 0.1" in first
    assert first.endswith(
        "from epoch 3 to epoch 5 while the training loss fell: the model seems to overfit. The "
        "saved model is that of epoch 3."
    )
    assert second.startswith("Validation F1 stopped improving at epoch 3: from there to epoch 5")
    assert third.startswith("From the best checkpoint, epoch 3, to the last validation F1 changed")
    assert third.endswith("no more than noise.")
    assert found.to_do == first
    assert "all 5 evaluations, on 400 validation rows; with so few evaluations" in found.note


def test_a_run_with_many_evaluations_is_told_without_doubt() -> None:
    losses = [0.7, 0.5, 0.42, 0.4, *(0.4 + 0.02 * each for each in range(1, 9))]
    found = course.of(manifest(history(losses, [0.8] * 12), best=4))
    assert ": the model overfits. The saved model is that of epoch 4." in found.sentences[0]
    assert "so few evaluations" not in found.note


def test_a_run_that_still_improves() -> None:
    found = course.of(manifest(RISING, best=4))
    (only,) = found.sentences
    assert only.startswith("Validation F1 rose by 0.05")
    assert only.endswith(
        "from epoch 3 to epoch 4: it still improves. More epochs may help: --num_train_epochs 6."
    )
    assert found.to_do == only
    steps = course.of(manifest(RISING, best=4, arguments={"max_steps": 400}))
    assert steps.sentences[0].endswith("More steps may help: --max_steps 600.")
    stopped = course.of(manifest(RISING, best=4, stopped_early="no improvement"))
    assert stopped.sentences[0].endswith(": it still improves.")


def test_a_best_checkpoint_that_is_not_saved_is_to_do() -> None:
    peak = history([0.5, 0.4, 0.4, 0.4], [0.6, 0.9, 0.8, 0.7])
    last = {"load_best_model_at_end": "False"}
    found = course.of(manifest(peak, arguments=last))
    assert "from the best checkpoint, epoch 2, to the last: more than noise. " in found.to_do
    assert found.to_do.endswith("--load_best_model_at_end true saves the best.")
    saved = course.of(manifest(peak, best=2))
    assert saved.sentences[-1].endswith("more than noise. The best is saved.")
    assert saved.to_do == ""


def test_loss_and_metric_that_disagree() -> None:
    both = history([0.4, 0.3, 0.4, 0.5], [0.6, 0.7, 0.8, 0.9])
    first = course.of(manifest(both, best=4)).sentences[0]
    assert first.startswith("Validation loss rose by 0.2")
    assert "but validation F1 rose by 0.2" in first
    assert "decisions get better, and the mistakes more confident" in first
    other = history([0.5, 0.4, 0.3, 0.2], [0.6, 0.9, 0.8, 0.7])
    first = course.of(manifest(other, best=2)).sentences[0]
    assert first.startswith("Validation loss fell by 0.2")
    assert "but validation F1 fell by 0.2" in first


def test_a_training_loss_that_does_not_fall_is_no_overfitting() -> None:
    worse = history([0.6, 0.4, 0.3, 0.4, 0.5], [0.8] * 5, train=0.1)
    first = course.of(manifest(worse, best=3)).sentences[0]
    assert "the training got worse. The saved model is that of epoch 3. A lower" in first


@pytest.mark.parametrize("evaluations", [0, 1, 2])
def test_few_evaluations_say_what_to_type(evaluations: int) -> None:
    found = course.of(manifest(history([0.5] * evaluations, [0.5] * evaluations), best=None))
    (only,) = found.sentences
    assert only.startswith(f"{evaluations or 'No'} evaluation")
    steps = max(10, 100 * evaluations // 6)
    assert only.endswith(f"--eval_strategy steps --eval_steps {steps}.")
    assert (found.note, found.to_do) == ("", "")


def test_scores_that_are_not_finite_are_left_out() -> None:
    broken = [dict(each) for each in OVERFIT]
    for each in broken:
        if each.get("step") == 100:
            each["loss"] = None
            if "eval_f1" in each:
                each["eval_f1"] = float("nan")
    assert "the model seems to overfit" in course.of(manifest(broken, best=3)).sentences[0]
    nothing = [{**each, "eval_loss": None} if "eval_loss" in each else each for each in OVERFIT]
    assert course.of(manifest(nothing)).sentences[0].startswith("No evaluation has a finite loss")


def test_an_error_falls_where_it_gets_better() -> None:
    errors = history([0.6, 0.5, 0.4, 0.3], [4.0, 3.0, 2.0, 1.0], metric="mse")
    chosen = {"metric_for_best_model": "mse", "greater_is_better": "False"}
    first = course.of(manifest(errors, best=4, arguments=chosen)).sentences[0]
    assert first.startswith("Validation MSE fell by 1.00")
    assert "it still improves" in first


def test_what_was_trained_with_other_settings_is_not_compared() -> None:
    changed = [{"step": 200, "allowed": {"label_smoothing_factor": [0, 0.1]}}]
    assert (
        course.of(manifest(OVERFIT, best=3, resumed=changed))
        .sentences[0]
        .startswith("Validation loss rose by 0.12")
    )
    changed[0]["step"] = 300
    assert "2 evaluations cannot" in course.of(manifest(OVERFIT, resumed=changed)).sentences[0]
    longer = [{"step": 300, "allowed": {"num_train_epochs": [3, 5]}}]
    assert "overfit" in course.of(manifest(OVERFIT, best=3, resumed=longer)).sentences[0]


def test_an_older_run_has_the_noise_of_a_share_of_rows_only() -> None:
    old = history([0.6, 0.4, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8], metric="accuracy")
    for each in old:
        each.pop("groups", None)
    told = course.of(manifest(old, arguments={"metric_for_best_model": "accuracy"}))
    assert told.sentences[0].startswith("Validation accuracy rose by 0.10")
    assert "wider than need be" in told.note
    of_f1 = history([0.6, 0.4, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8])
    for each in of_f1:
        each.pop("groups", None)
    assert course.of(manifest(of_f1)).sentences == []


def test_few_rows_and_a_damaged_history_are_told() -> None:
    few = [dict(each) for each in OVERFIT]
    few[-1] = {**few[-1], "groups": {**few[-1]["groups"], "rows": 12}}
    assert course.of(manifest(few)).sentences == [
        "12 validation rows are too few to tell a trend from chance."
    ]
    few[-1] = {**few[-1], "groups": {"rows": ROWS, "loss": "?", "f1": "?"}}
    with pytest.raises(UserError, match="damaged"):
        course.of(manifest(few))


def test_page_and_card_have_the_sentences(tmp_path: Path) -> None:
    run = write_run(tmp_path, rows=60)
    kept = manifest(OVERFIT)
    changed = {"history": kept.history, "best_step": 300}
    arguments = {**run.manifest.arguments, "metric_for_best_model": "f1"}
    dataclasses.replace(run.manifest, **changed, arguments=arguments).write(tmp_path)
    first = course.of(run.manifest).sentences[0]
    assert "overfit" in first
    assert f"<p>{first}</p>" in page.write(run).read_text(encoding="utf-8")
    training = card.write(run).read_text(encoding="utf-8").partition("## Training")[2]
    assert first in training
    dataclasses.replace(run.manifest, steps=0, history=[]).write(tmp_path)
    assert course.of(run.manifest).sentences == []
    page.write(run)
