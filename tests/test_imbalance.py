"""Rare classes in training: weights, sampling and losses by name, the same however it is launched.

That several processes change nothing is shown in test_tasks.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy
from transformers import PrinterCallback, TrainingArguments

from finetune import TextRecipe, UserError

pytestmark = [pytest.mark.usefixtures("one_thread", "without_report"), pytest.mark.trains]
STEPS, BATCH = 6, 16
CASES: dict[str, dict[str, Any]] = {
    "weights": dict(class_weights="balanced"),
    "smoothed": dict(class_weights="bad=1,good=7", label_smoothing_factor=0.2),
    "focal": dict(class_weights="balanced", loss_function="focal"),
    "sampling": dict(class_sampling="balanced"),
    "by length": dict(class_sampling="balanced", train_sampling_strategy="group_by_length"),
}


class Rare(TextRecipe):
    """Reviews of which few are good, without dropout."""

    training = dict(
        optim="sgd",
        learning_rate=0.1,
        max_grad_norm=0,
        max_steps=STEPS,
        global_batch_size=BATCH,
        train_sampling_strategy="random",
        precision="fp32",
        logging_steps=1,
        eval_strategy="no",
        save_strategy="no",
        load_best_model_at_end=False,
        disable_tqdm=True,
    )
    hidden_dropout: float | None = 0.0
    attention_dropout: float | None = 0.0


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, tiny_model: str) -> dict[str, str]:
    """One review in eight is good."""
    lines = ["text,label"]
    for number in range(240):
        label, words = (("bad", "awful"), ("good", "great"))[number % 8 == 0]
        lines.append(
            f"the food of place {number} was {' '.join([words] * (1 + number % 5))},{label}"
        )
    path = tmp_path_factory.mktemp("rare") / "reviews.csv"
    path.write_text("\n".join(lines) + "\n")
    return {"dataset": str(path), "model": tiny_model}


def trainer_of(source: dict[str, str], directory: str, options: dict[str, Any]) -> Any:
    own = {name: options[name] for name in ("class_weights", "loss_function") if name in options}
    training = {name: value for name, value in options.items() if name not in own}
    trainer = Rare(**source, **own).trainer(output_dir=directory, **training)
    trainer.remove_callback(PrinterCallback)
    return trainer


def losses(trainer: transformers.Trainer) -> list[float]:
    trainer.train()
    return [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]


def observe(source: dict[str, str], directory: str) -> dict[tuple[str, int], list[float]]:
    """The losses of every case, with one micro-batch a step and with two."""
    found = {
        (name, steps): losses(
            trainer_of(source, directory, {"gradient_accumulation_steps": steps, **options})
        )
        for name, options in CASES.items()
        for steps in (1, 2)
    }
    return found


@pytest.fixture(scope="module")
def one(source: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Any:
    return observe(source, str(tmp_path_factory.mktemp("one")))


@pytest.mark.parametrize(("name", "smoothing"), [("weights", 0.0), ("smoothed", 0.2)])
def test_the_loss_of_a_step_is_torchs_weighted_mean_over_the_whole_batch(
    name: str,
    smoothing: float,
    source: dict[str, str],
    one: dict[tuple[str, int], list[float]],
    tmp_path: Path,
) -> None:
    trainer = trainer_of(source, str(tmp_path), CASES[name])
    batch = next(iter(trainer.get_train_dataloader()))
    labels = batch.pop("labels")
    batch.pop("length", None)
    assert len(labels) == BATCH
    with torch.no_grad():
        logits = trainer.model.eval()(**batch).logits
    rows = np.bincount(trainer.train_dataset["labels"][:])
    weights = (1 / rows) if name == "weights" else np.array([1.0, 7.0])
    expected = cross_entropy(
        logits, labels, torch.tensor(weights, dtype=torch.float32), label_smoothing=smoothing
    )
    assert one[name, 1][0] == pytest.approx(expected.item(), rel=1e-5)
    assert one[name, 2][0] == pytest.approx(expected.item(), rel=1e-5)


def test_the_loss_of_a_step_is_focal(source: dict[str, str]) -> None:
    recipe = Rare(**source, loss_function="focal")
    logits, labels = torch.tensor([[0.0, 1.0], [2.0, 0.0]]), torch.tensor([1, 1])
    right = torch.softmax(logits, dim=-1)[:, 1]
    found = recipe.trainer_kwargs()["compute_loss_func"]({"logits": logits}, labels)
    torch.testing.assert_close(found, (-((1 - right) ** 2) * right.log()).mean())


def test_the_librarys_trainer_divides_by_the_rows_of_a_step(
    source: dict[str, str], tmp_path: Path
) -> None:
    """The weights are 1 on average over the training rows, so the scale is the same."""
    recipe = Rare(**source, class_weights="balanced")

    def trained(accumulation: int) -> list[float]:
        transformers.set_seed(42)
        ours = ("global_batch_size", "precision", "train_sampling_strategy")
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=BATCH // accumulation,
            gradient_accumulation_steps=accumulation,
            train_sampling_strategy="sequential",
            use_cpu=True,
            **{name: each for name, each in recipe.training.items() if name not in ours},
        )
        return losses(transformers.Trainer(args=arguments, **recipe.trainer_kwargs()))

    one, two = trained(1), trained(2)
    assert two == pytest.approx(one, rel=1e-5)
    transformers.set_seed(42)
    parts = recipe.trainer_kwargs()
    rows = [parts["train_dataset"][index] for index in range(BATCH)]
    kept = ("input_ids", "attention_mask", "labels")
    batch = parts["data_collator"]([{name: row[name] for name in kept} for row in rows])
    labels = batch.pop("labels")
    weights = torch.tensor(recipe.weights, dtype=torch.float32)
    with torch.no_grad():
        of_row = cross_entropy(parts["model"].eval()(**batch).logits, labels, reduction="none")
    assert one[0] == pytest.approx((weights[labels] * of_row).sum().item() / BATCH, rel=1e-5)
    assert weights[torch.tensor(parts["train_dataset"]["labels"][:])].mean() == pytest.approx(1)


def test_the_loss_of_an_evaluation_is_not_weighted(source: dict[str, str], tmp_path: Path) -> None:
    found = [
        trainer_of(source, str(tmp_path), options).evaluate()["eval_loss"]
        for options in ({}, CASES["weights"], CASES["focal"])
    ]
    assert found[0] == found[1] == found[2]


def test_the_note_says_the_weights(source: dict[str, str]) -> None:
    recipe = Rare(**source, class_weights="balanced")
    _ = recipe.trainer_kwargs()
    (note,) = [each for each in recipe.notes if "class weights" in each]
    bad, good = np.bincount(recipe.splits["train"]["label"][:])
    rows = bad + good
    assert note == (
        f"class weights (balanced): bad {rows / 2 / bad:.4g}, good {rows / 2 / good:.4g}; the "
        "evaluation loss is not weighted"
    )


def test_the_note_says_which_loss_an_evaluation_has(source: dict[str, str]) -> None:
    recipe = Rare(**source, loss_function="focal")
    _ = recipe.trainer_kwargs()
    assert "--loss_function focal: the evaluation loss is the cross entropy" in recipe.notes


def test_weights_do_not_matter_where_nothing_is_trained(source: dict[str, str]) -> None:
    recipe = Rare(**source, class_weights="good=3")
    rows = recipe.splits["test"]
    without = rows.filter(lambda label: label == 0, input_columns="label")
    assert recipe.over(without).weights is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(class_weights="godo=2"), "--class_weights: there is no class 'godo'; did you mean"),
        (
            dict(class_weights="balanced", class_sampling="balanced"),
            "--class_weights with --class_sampling balanced: each of them makes rare classes",
        ),
        (dict(loss_function="emd"), "--loss_function emd: a task of single_label has cross_entr"),
    ],
)
def test_what_does_not_fit_is_refused(
    options: dict[str, Any], message: str, source: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        trainer_of(source, str(tmp_path), options)
    assert str(error.value).startswith(message)


def test_a_loss_of_the_recipes_own_has_no_other_name() -> None:
    class Own(Rare):
        """With a loss."""

        def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return cross_entropy(logits, labels, reduction="none")

    build: Callable[..., Rare] = Own
    with pytest.raises(UserError, match=r"^--loss_function focal: the recipe has its own loss"):
        build(loss_function="focal")
