"""One recipe, one trajectory, one evaluation: on one process, on two, and with accumulation.

All that two processes do is done by one pair of workers, see `train_in_a_rank`.
"""

import functools
import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.functional import cross_entropy
from transformers import EvalPrediction, PreTrainedModel, TrainingArguments

import finetune
from finetune import Recipe, Run, TextClassification, UserError, catalog

pytestmark = pytest.mark.usefixtures("one_thread")
Weights = dict[str, np.ndarray]
RECIPES = catalog.names()
TEST_ROWS = 37  # neither batch size nor number of processes divides it


class Reviews(TextClassification):
    """Reviews, good or bad, on a tiny model: three epochs of nine steps."""

    training = dict(global_batch_size=16, learning_rate=1e-3, num_train_epochs=3, disable_tqdm=True)


# ---- one trajectory ------------------------------------------------------------------------------

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": dict(optim="sgd", learning_rate=0.1, max_grad_norm=0),  # clipping would hide a factor
    "adamw": dict(optim="adamw_torch", learning_rate=1e-3),
    "sgd of like lengths": dict(optim="sgd", train_sampling_strategy="group_by_length"),
}
# steps over the end of an epoch, whose last rows are left out: 144 rows make nine steps
STEPS: dict[str, Any] = dict(max_steps=11, logging_steps=1, eval_strategy="no", save_strategy="no")


@dataclass
class Trajectory:
    """What a training did.

    Attributes:
        losses: Logged, of each step.
        gradient_norms: Logged, of each step.
        weights: At the end.
    """

    losses: list[float]
    gradient_norms: list[float]
    weights: Weights


def trajectory(recipe: Reviews, output_dir: str, **training: Any) -> Trajectory:
    trainer = recipe.trainer(output_dir=output_dir, load_best_model_at_end=False, **training)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == STEPS["max_steps"]
    return Trajectory(
        [entry["loss"] for entry in logged],
        [entry["grad_norm"] for entry in logged],
        {name: value.numpy(force=True) for name, value in recipe_model(trainer).items()},
    )


def recipe_model(trainer: transformers.Trainer) -> dict[str, torch.Tensor]:
    assert isinstance(trainer.model, PreTrainedModel)
    return dict(trainer.model.state_dict())


def without_dropout(dataset: str, model: str) -> Reviews:
    return Reviews(
        dataset=dataset,
        model=model,
        eval_samples=TEST_ROWS,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )


def evaluations(recipe: Reviews, output_dir: str) -> dict[int, EvalPrediction]:
    """Predictions of the test rows by a model that knows nothing, for several batch sizes."""
    found = {}
    for size in (1, 5, 16, 64):
        trainer = recipe.trainer(output_dir=output_dir, per_device_eval_batch_size=size)
        found[size] = trainer.predict(recipe.prepared["test"])
    return found


def plain_losses(recipe: Reviews, output_dir: str, per_device: int) -> list[float]:
    """What the library's own Trainer logs with the parts of a recipe, two steps in row order."""
    transformers.set_seed(42)
    arguments = TrainingArguments(
        output_dir=output_dir,
        per_device_train_batch_size=per_device,
        train_sampling_strategy="sequential",
        optim="sgd",
        learning_rate=0.1,
        logging_steps=1,
        max_steps=2,
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = transformers.Trainer(args=arguments, **recipe.parts())
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@dataclass
class InRanks:
    """What one of two ranks found; it must be the same on both."""

    trajectories: dict[str, Trajectory]
    evaluations: dict[int, EvalPrediction]
    plain_losses: list[float]


def train_in_a_rank(dataset: str, model: str, output_dir: str) -> InRanks:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    recipe = without_dropout(dataset, model)
    try:
        return InRanks(
            {
                name: trajectory(recipe, output_dir, **STEPS, **optimizer)
                for name, optimizer in OPTIMIZERS.items()
            },
            evaluations(recipe, output_dir),
            plain_losses(recipe, output_dir, per_device=8),
        )
    finally:
        torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 reviews of very unequal lengths."""
    words = {"bad": ["awful", "dull", "bland"], "good": ["great", "lovely", "fine"]}
    lines = ["text,label"]
    for number in range(200):
        label = ("bad", "good")[number % 2]
        comment = " ".join([words[label][number % 3]] * (1 + number % 11))
        lines.append(f"the food of place {number} was {comment},{label}")
    path = tmp_path_factory.mktemp("data") / "reviews.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def recipe(data: Path, tiny_model: str) -> Reviews:
    return without_dropout(str(data), tiny_model)


@pytest.fixture(scope="module")
def alone(recipe: Reviews, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trajectory]:
    """The trajectories of one process, by optimizer."""
    output_dir = str(tmp_path_factory.mktemp("alone"))
    return {
        name: trajectory(recipe, output_dir, **STEPS, **optimizer)
        for name, optimizer in OPTIMIZERS.items()
    }


@pytest.fixture(scope="module")
def in_two(
    data: Path, recipe: Reviews, tiny_model: str, tmp_path_factory: pytest.TempPathFactory
) -> list[InRanks]:
    """What two processes with DistributedDataParallel do, by rank."""
    _ = recipe.prepared  # so that both ranks find it in the cache
    configuration = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="tests",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="spawn",
    )
    output_dir = str(tmp_path_factory.mktemp("two"))
    found = elastic_launch(configuration, train_in_a_rank)(str(data), tiny_model, output_dir)
    assert sorted(found) == [0, 1]
    return [found[0], found[1]]


def assert_same(found: Trajectory, expected: Trajectory, optimizer: str) -> None:
    assert found.losses == pytest.approx(expected.losses, rel=1e-5)
    assert found.gradient_norms == pytest.approx(expected.gradient_norms, rel=1e-4)
    assert found.weights.keys() == expected.weights.keys()
    for name, value in found.weights.items():
        # the true gradient of a key bias is zero, and AdamW steps along the sign of its noise
        if not (optimizer == "adamw" and name.endswith("key.bias")):
            atol = 1e-6 if optimizer.startswith("sgd") else 1e-4
            np.testing.assert_allclose(value, expected.weights[name], 1e-5, atol, err_msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_accumulation_gives_the_same_trajectory(
    recipe: Reviews, tmp_path: Path, alone: dict[str, Trajectory], optimizer: str
) -> None:
    expected = alone[optimizer]
    assert abs(expected.losses[-1] - expected.losses[0]) > 1e-5  # something was trained
    found = trajectory(
        recipe,
        str(tmp_path),
        **STEPS,
        **OPTIMIZERS[optimizer],
        gradient_accumulation_steps=2,
    )
    assert_same(found, expected, optimizer)


@pytest.mark.processes
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_two_processes_give_the_same_trajectory(
    in_two: list[InRanks], alone: dict[str, Trajectory], optimizer: str
) -> None:
    first, second = (rank.trajectories[optimizer] for rank in in_two)
    assert_same(first, alone[optimizer], optimizer)
    for name, value in first.weights.items():  # DDP keeps them equal bit for bit
        np.testing.assert_array_equal(value, second.weights[name])


@pytest.mark.processes
def test_the_parts_of_a_recipe_are_right_in_the_librarys_trainer_too(
    recipe: Reviews, in_two: list[InRanks], tmp_path: Path
) -> None:
    expected = plain_losses(recipe, str(tmp_path), per_device=16)
    assert in_two[0].plain_losses == pytest.approx(expected, rel=1e-5)


# ---- one evaluation ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def evaluated(
    recipe: Reviews, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, EvalPrediction]:
    return evaluations(recipe, str(tmp_path_factory.mktemp("evaluated")))


def assert_exact(found: dict[int, EvalPrediction], recipe: Reviews) -> None:
    """Loss and metrics are those of all rows, each once and in order, by hand."""
    transformers.set_seed(42)
    model = recipe.build_model(recipe.labels).eval()
    rows = recipe.prepared["test"]
    assert len(rows) == TEST_ROWS
    with torch.no_grad():
        logits = torch.cat(
            [
                model(input_ids=torch.tensor([row["input_ids"]])).logits  # one row has no padding
                for row in rows
            ]
        )
    labels = torch.tensor(rows["labels"][:])
    for size, output in found.items():
        np.testing.assert_array_equal(output.label_ids, labels, err_msg=f"batches of {size}")
        np.testing.assert_allclose(output.predictions, logits, rtol=1e-4, atol=1e-6)
        by_hand = cross_entropy(torch.as_tensor(output.predictions), labels).item()
        assert output.metrics["test_loss"] == pytest.approx(by_hand, rel=1e-6)
        assert output.metrics["test_loss"] == pytest.approx(
            cross_entropy(logits, labels).item(), rel=1e-6
        )
        right = (output.predictions.argmax(axis=1) == labels.numpy()).mean()
        assert output.metrics["test_accuracy"] == pytest.approx(right)


def test_evaluation_does_not_depend_on_the_batch_size(
    recipe: Reviews, evaluated: dict[int, EvalPrediction]
) -> None:
    assert_exact(evaluated, recipe)


@pytest.mark.processes
def test_evaluation_does_not_depend_on_the_processes(
    recipe: Reviews, in_two: list[InRanks]
) -> None:
    for rank in in_two:
        assert_exact(rank.evaluations, recipe)


def test_predictions_keep_their_order_when_training_groups_by_length(
    recipe: Reviews, tmp_path: Path
) -> None:
    trainer = recipe.trainer(
        output_dir=str(tmp_path),
        train_sampling_strategy="group_by_length",
        per_device_eval_batch_size=5,
    )
    assert_exact({5: trainer.predict(recipe.prepared["test"])}, recipe)


# ---- the best model, and the checkpoints ---------------------------------------------------------


class Staged(Reviews):
    """Reviews whose F1 on the validation rows is what the test says it is."""

    f1_by_epoch = (0.5, 0.9, 0.1, 0.2, 0.3, 0.4)
    rows_seen: ClassVar[list[int]] = []
    training = dict(num_train_epochs=6, global_batch_size=48)

    def compute_metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        self.rows_seen.append(len(prediction.label_ids))
        return {"f1": dict(enumerate(self.f1_by_epoch, 1)).get(len(self.rows_seen), 0.0)}


@pytest.fixture
def staged(data: Path, tiny_model: str, tmp_path: Path) -> Callable[..., Run]:
    Staged.rows_seen.clear()
    return functools.partial(
        finetune.train,
        Staged,
        dataset=str(data),
        model=tiny_model,
        output_dir=str(tmp_path / "run"),
    )


def epochs_kept(run: Run) -> list[int]:
    """Which epochs (three steps each) have a checkpoint."""
    kept = [int(path.name.partition("-")[2]) for path in run.path.glob("checkpoint-*")]
    assert all(step % 3 == 0 for step in kept)
    return sorted(step // 3 for step in kept)


def test_the_best_model_is_kept_and_loaded(
    staged: Callable[..., Run], data: Path, tiny_model: str
) -> None:
    run = staged()
    assert epochs_kept(run) == [2, 5, 6]  # save_total_limit 3, the best among them
    saved = load_file(run.path / "model.safetensors")
    best, last = (load_file(run.path / f"checkpoint-{step}/model.safetensors") for step in (6, 18))
    assert all(torch.equal(saved[name], best[name]) for name in best)
    assert not all(torch.equal(saved[name], last[name]) for name in last)
    assert run.manifest["best_step"] == 6
    assert run.metrics["validation"]["f1"] == 0.9
    # the predictions of the test rows are those of the best model, too
    recipe = Staged(dataset=str(data), model=tiny_model)
    model = recipe.load_model(run.path / "checkpoint-6", run.labels).eval()
    assert_close(probabilities(run), recomputed(recipe, model))


def test_the_test_rows_are_evaluated_once_at_the_end(staged: Callable[..., Run]) -> None:
    staged()
    assert Staged.rows_seen == [16] * 6 + [40] + [40, 40]  # the last two are the baselines


@pytest.mark.parametrize(
    ("training", "kept"),
    [
        (dict(save_every=3, save_total_limit=None), [1, 2, 3, 6]),  # 1 was the best then
        (dict(save_every=4, save_total_limit=None), [1, 2, 4, 6]),
        (dict(save_every=3), [2, 3, 6]),
        (dict(save_every=3, load_best_model_at_end=False, save_total_limit=None), [3, 6]),
        (dict(save_every=10, load_best_model_at_end=False), [6]),
        (dict(save_every=1, num_train_epochs=2), [1, 2]),
        (dict(save_every=4, num_train_epochs=5, save_total_limit=2), [2, 5]),
    ],
)
def test_save_every_keeps_its_epochs_and_the_last_and_the_best(
    staged: Callable[..., Run], training: dict[str, Any], kept: list[int]
) -> None:
    assert epochs_kept(staged(**training)) == kept


def test_without_an_evaluation_nothing_is_best(staged: Callable[..., Run]) -> None:
    run = staged(eval_strategy="no", save_strategy="epoch", save_every=4)
    assert epochs_kept(run) == [4, 6]
    assert run.metrics["validation"] == {}
    assert run.manifest["best_step"] is None


# ---- the whole path, in one process --------------------------------------------------------------


def test_fewer_rows_than_a_global_batch_are_refused(
    data: Path, recipe: Reviews, tiny_model: str, tmp_path: Path
) -> None:
    said = "144 training rows are fewer than one global batch of 145"
    output_dir = tmp_path / "run"
    with pytest.raises(UserError, match=said):
        finetune.train(
            Reviews,
            dataset=str(data),
            model=tiny_model,
            global_batch_size=145,
            output_dir=str(output_dir),
        )
    assert not output_dir.exists()
    trainer = recipe.trainer(output_dir=str(output_dir), global_batch_size=145)
    with pytest.raises(UserError, match=said):
        trainer.train()
    recipe.trainer(output_dir=str(output_dir), **{**STEPS, "max_steps": 1}, global_batch_size=144)


def test_two_runs_of_one_command_give_the_same_numbers(
    data: Path, tiny_model: str, tmp_path: Path
) -> None:
    def run(**training: Any) -> Run:
        return finetune.train(
            Reviews,
            dataset=str(data),
            model=tiny_model,
            output_dir=str(tmp_path / "run"),
            **training,
        )

    first = run(num_train_epochs=2)
    torch.rand(100)  # whatever happened in the process before
    second = run(num_train_epochs=2)
    moved = Run.load(tmp_path / "run.1")
    assert second.metrics == moved.metrics
    weights, again = (load_file(each.path / "model.safetensors") for each in (moved, second))
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    assert first.path == second.path
    other_seed = run(num_train_epochs=2, seed=7)
    assert other_seed.metrics["test"] != moved.metrics["test"]
    assert other_seed.predictions["id"].equals(moved.predictions["id"])  # the split has its own


def test_a_training_gives_its_memory_back(data: Path, tiny_model: str, tmp_path: Path) -> None:
    built: list[weakref.ref[torch.nn.Module]] = []

    class Watched(Reviews):
        """Reviews whose models are watched."""

        def build_model(self, labels: Sequence[str]) -> torch.nn.Module:
            model = super().build_model(labels)
            built.append(weakref.ref(model))
            return model

    for _ in range(2):
        finetune.train(
            Watched,
            dataset=str(data),
            model=tiny_model,
            max_steps=2,
            output_dir=str(tmp_path / "run"),
        )
        gc.collect()
        assert built[-1]() is None
    assert len(built) == 2


# ---- every recipe --------------------------------------------------------------------------------


def small(name: str, data: Path, tiny_model: str) -> dict[str, Any]:
    """Options that make any recipe fast, and two steps tell."""
    if issubclass(catalog.find(name), TextClassification):
        columns = dict(text_column="text", label_column="label")
        source = dict(dataset=str(data), model=tiny_model, **columns)
    else:
        source = dict(embedded=True, train_samples=128, eval_samples=40)
    return dict(source, global_batch_size=16, learning_rate=1e-2, max_steps=2)


def probabilities(run: Run) -> np.ndarray:
    """Of `predictions.parquet`, shape `(rows, classes)`."""
    columns = [f"probability of {name}" for name in run.labels]
    return run.predictions[columns].to_numpy()


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def recomputed(recipe: Recipe, model: torch.nn.Module) -> np.ndarray:
    """Probabilities of the test rows in one batch."""
    rows = recipe.prepared["test"]
    if "length" in rows.column_names:
        rows = rows.remove_columns("length")
    batch = recipe.data_collator()(list(rows))
    batch.pop("labels")
    with torch.no_grad():
        return torch.softmax(model(**batch)["logits"], dim=1).numpy()


def test_recipes_are_discovered() -> None:
    assert {"mnist", "sentiment", "yelp"} <= set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_saves_and_reloads(
    name: str, data: Path, tiny_model: str, tmp_path: Path
) -> None:
    run = finetune.train(name, **small(name, data, tiny_model), output_dir=str(tmp_path / "run"))
    loaded = Run.load(run.path)
    assert loaded.manifest["steps"] == 2
    assert loaded.manifest["status"] == "finished"
    recipe, model = loaded.recipe(), loaded.model()
    assert isinstance(recipe, catalog.find(name))
    assert not model.training
    assert len(loaded.predictions) == 40
    assert_close(probabilities(loaded), recomputed(recipe, model))
    untrained = catalog.find(name)(**loaded.manifest["options"])
    fresh = untrained.build_model(loaded.labels).eval()
    with pytest.raises(AssertionError):
        assert_close(probabilities(loaded), recomputed(recipe, fresh))


@pytest.mark.parametrize(
    "name", [each for each in RECIPES if issubclass(catalog.find(each), TextClassification)]
)
def test_a_text_run_is_a_pipeline(name: str, data: Path, tiny_model: str, tmp_path: Path) -> None:
    run = finetune.train(name, **small(name, data, tiny_model), output_dir=str(tmp_path / "run"))
    classify = transformers.pipeline("text-classification", model=str(run.path))
    table = run.predictions
    assert run.labels == ["bad", "good"]
    for said, (_, row) in zip(classify(table["text"].tolist()), table.iterrows(), strict=True):
        assert said["label"] == row["prediction"]
        assert said["score"] == pytest.approx(row[f"probability of {said['label']}"], rel=1e-4)
