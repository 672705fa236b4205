"""Our Trainer beside the library's, its evaluation, its checkpoints, and every recipe in it.

That all launches give the same is in `test_invariance.py`.
"""

import functools
import gc
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from transformers import EvalPrediction, TrainingArguments

import finetune
from finetune import Recipe, Run, TextRecipe, UserError
from finetune.recipe import catalog
from finetune.reporting import page
from tests.warm import in_warm_processes

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")
RECIPES = catalog.names()
TEST_ROWS = 37  # neither batch size nor number of processes divides it


class Reviews(TextRecipe):
    """Reviews, good or bad, on a tiny model: three epochs of nine steps."""

    training = dict(
        global_batch_size=16,
        learning_rate=1e-3,
        num_train_epochs=3,
        precision="fp32",
        disable_tqdm=True,
    )


# ---- beside the library's -----------------------------------------------------------------------


def without_dropout(dataset: str, model: str) -> Reviews:
    return Reviews(
        dataset=dataset,
        model=model,
        eval_samples=TEST_ROWS,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )


def plain(recipe: Reviews, output_dir: str, per_device: int, **parts: Any) -> dict[str, Any]:
    """What the library's own Trainer logs of the first two steps in row order."""
    transformers.set_seed(42)
    arguments = TrainingArguments(
        output_dir=output_dir,
        per_device_train_batch_size=per_device,
        train_sampling_strategy="sequential",
        optim="sgd",
        learning_rate=0.1,
        max_grad_norm=0,
        logging_steps=1,
        max_steps=2,
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = transformers.Trainer(args=arguments, **(recipe.trainer_kwargs() | parts))
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    return {name: [entry[name] for entry in logged] for name in ("loss", "grad_norm")}


def plain_in_a_rank(dataset: str, model: str, output_dir: str) -> list[dict[str, Any]]:
    """With our loss, and with the library's own."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    recipe = without_dropout(dataset, model)
    try:
        return [
            plain(recipe, output_dir, 8),
            plain(recipe, output_dir, 8, compute_loss_func=None),
        ]
    finally:
        torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def recipe(uneven_reviews: Path, tiny_model: str) -> Reviews:
    return without_dropout(str(uneven_reviews), tiny_model)


@pytest.fixture(scope="module")
def in_two(
    uneven_reviews: Path, recipe: Reviews, tiny_model: str, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """What rank 0 of two processes with DistributedDataParallel logs."""
    _ = recipe.prepared  # so that both ranks find it in the cache
    output_dir = str(tmp_path_factory.mktemp("two"))
    return in_warm_processes(2, plain_in_a_rank, str(uneven_reviews), tiny_model, output_dir)[0]


@pytest.mark.processes
def test_the_parts_of_a_recipe_are_right_in_the_librarys_trainer_too(
    recipe: Reviews, in_two: list[dict[str, Any]], tmp_path: Path
) -> None:
    one, two = plain(recipe, str(tmp_path), 16), in_two[0]
    for name in ("loss", "grad_norm"):
        assert two[name] == pytest.approx(one[name], rel=1e-5)


@pytest.mark.processes
def test_the_librarys_own_loss_and_gradient_are_doubled_by_two_processes(
    recipe: Reviews, in_two: list[dict[str, Any]], tmp_path: Path
) -> None:
    """The reason for our loss. If this fails, the library has been mended: say so in the design."""
    one, two = plain(recipe, str(tmp_path), 16, compute_loss_func=None), in_two[1]
    for name in ("loss", "grad_norm"):
        assert two[name][0] == pytest.approx(2 * one[name][0], rel=1e-4)


# ---- one evaluation ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "strategy"), [(1, "random"), (5, "group_by_length"), (16, "random"), (64, "random")]
)
def test_evaluation_is_that_by_hand_in_the_order_of_the_rows(
    recipe: Reviews, tmp_path: Path, size: int, strategy: str
) -> None:
    trainer = recipe.trainer(
        output_dir=str(tmp_path), per_device_eval_batch_size=size, train_sampling_strategy=strategy
    )
    output = trainer.predict(recipe.prepared["test"])
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
    np.testing.assert_array_equal(output.label_ids, labels)
    np.testing.assert_allclose(output.predictions, logits, rtol=1e-4, atol=1e-6)
    loss = cross_entropy(logits, labels).item()
    assert output.metrics["test_loss"] == pytest.approx(loss, rel=1e-6)
    right = (output.predictions.argmax(axis=1) == labels.numpy()).mean()
    assert output.metrics["test_accuracy"] == pytest.approx(right)


def test_metrics_see_the_rows_in_their_order_and_the_model_sees_them_by_length(
    recipe: Reviews, tmp_path: Path
) -> None:
    trainer = recipe.trainer(output_dir=str(tmp_path), per_device_eval_batch_size=5)
    rows, seen, shapes = recipe.prepared["test"], [], []
    trainer.compute_metrics = lambda found: seen.append(found) or {}
    trainer.model.register_forward_pre_hook(
        lambda model, given, named: shapes.append(named["input_ids"].shape[1]), with_kwargs=True
    )
    output = trainer.predict(rows)
    np.testing.assert_array_equal(seen[0].label_ids, rows["labels"][:])
    np.testing.assert_array_equal(seen[0].predictions, output.predictions)
    assert shapes == sorted(shapes, reverse=True)
    assert len(set(shapes)) > 2
    assert trainer.compute_metrics({}) == {}  # it is the one that was given


# ---- the best model, and the checkpoints ---------------------------------------------------------


class Staged(Reviews):
    """Reviews whose F1 on the validation rows is what the test says it is."""

    f1_by_epoch = (0.5, 0.9, 0.1, 0.2, 0.3, 0.4)
    rows_seen: ClassVar[list[int]] = []
    training = dict(num_train_epochs=6, global_batch_size=48)
    own_metrics = ("f1",)

    def compute_metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        self.rows_seen.append(len(prediction.label_ids))
        return {"f1": dict(enumerate(self.f1_by_epoch, 1)).get(len(self.rows_seen), 0.0)}


@pytest.fixture
def staged(uneven_reviews: Path, tiny_model: str, tmp_path: Path) -> Callable[..., Run]:
    Staged.rows_seen.clear()
    return functools.partial(
        finetune.train,
        Staged,
        dataset=str(uneven_reviews),
        model=tiny_model,
        output_dir=str(tmp_path / "run"),
    )


def epochs_kept(run: Run) -> list[int]:
    """Which epochs (three steps each) have a checkpoint."""
    kept = [int(path.name.partition("-")[2]) for path in run.path.glob("checkpoint-*")]
    assert all(step % 3 == 0 for step in kept)
    return sorted(step // 3 for step in kept)


def test_the_best_model_is_kept_and_loaded(
    staged: Callable[..., Run], uneven_reviews: Path, tiny_model: str
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
    recipe = Staged(dataset=str(uneven_reviews), model=tiny_model)
    model = recipe.load_model(run.path / "checkpoint-6", run.labels).eval()
    assert_close(probabilities(run), recomputed(recipe, model))


def test_the_test_rows_are_evaluated_once_at_the_end(staged: Callable[..., Run]) -> None:
    staged()
    assert Staged.rows_seen[:6] == [16] * 6  # the validation rows, once an epoch
    assert Staged.rows_seen.count(16) == 6
    assert Staged.rows_seen[6] == 40  # all the others are of drawn rows or baselines


@pytest.mark.parametrize("best", [True, False])
def test_outputs_on_the_validation_rows_are_those_of_the_final_model(
    best: bool, uneven_reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    """Those that an evaluation gave are taken, to the bit what the model gives now."""
    Staged.rows_seen.clear()
    recipe = Staged(dataset=str(uneven_reviews), model=tiny_model)
    trainer = recipe.trainer(output_dir=str(tmp_path / "run"), load_best_model_at_end=best)
    trainer.train()
    trainer.evaluate()  # of the best model, after the last step
    trainer.evaluate(recipe.prepared["test"])
    before = len(Staged.rows_seen)
    kept = trainer.predict_evaluated()
    assert len(Staged.rows_seen) == before
    computed = trainer.predict(recipe.prepared["validation"])
    assert np.array_equal(kept.predictions, computed.predictions)
    assert np.array_equal(kept.label_ids, computed.label_ids)
    resumed = recipe.trainer(output_dir=str(tmp_path / "run"), load_best_model_at_end=best)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-15"))
    before = len(Staged.rows_seen)
    found = resumed.predict_evaluated().predictions
    assert len(Staged.rows_seen) == before + best  # the best step was not this process's
    assert np.array_equal(found, computed.predictions)


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


class Own(Reviews):
    """Reviews with metrics of their own: of the outputs, of lists, and not always defined."""

    training = dict(num_train_epochs=1, metric_for_best_model="loss")
    own_metrics = ("nll", "each")

    def compute_metrics(self, prediction: EvalPrediction) -> dict[str, Any]:
        logits, labels = torch.tensor(prediction.predictions), torch.tensor(prediction.label_ids)
        if len(set(prediction.label_ids.tolist())) < 2:
            raise ValueError("only one class")
        return {"nll": cross_entropy(logits, labels).item(), "each": [1.0, 2.0]}


def test_metrics_of_a_recipe_of_its_own_have_intervals(
    uneven_reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    run = finetune.train(
        Own,
        dataset=str(uneven_reviews),
        model=tiny_model,
        eval_samples=4,  # so that some draws have one class only
        baseline=False,
        output_dir=str(tmp_path / "run"),
    )
    found = run.metrics["statistics"]["metrics"]
    assert found["nll"]["value"] == pytest.approx(run.metrics["test"]["loss"], rel=1e-5)
    assert found["nll"]["low"] < found["nll"]["value"] < found["nll"]["high"]
    assert "each" not in found


def test_a_run_is_finished_whatever_becomes_of_its_report(
    staged: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(run: Run) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(page, "write", fail)
    with pytest.raises(OSError, match="no space left"):
        staged(num_train_epochs=1)
    run = Run.load(tmp_path / "run")
    assert run.manifest["status"] == "finished"
    assert "statistics" in run.metrics


def test_outputs_that_are_not_finite_are_told_and_the_rest_is_kept(
    uneven_reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="not finite on 40 of 40 test rows: the training has div"):
        finetune.train(
            Reviews,
            dataset=str(uneven_reviews),
            model=tiny_model,
            optim="sgd",
            learning_rate=1e30,
            max_grad_norm=0,
            max_steps=1,  # a second one would be stopped
            output_dir=str(tmp_path / "run"),
        )
    run = Run.load(tmp_path / "run")
    assert run.manifest["status"] == "failed"
    assert run.manifest["steps"] == 1
    assert "accuracy" in run.metrics["test"]
    assert len(run.predictions) == 40


# ---- the whole path, in one process --------------------------------------------------------------


def test_fewer_rows_than_a_global_batch_are_refused(
    uneven_reviews: Path, recipe: Reviews, tiny_model: str, tmp_path: Path
) -> None:
    said = "144 training rows are fewer than one global batch of 145"
    output_dir = tmp_path / "run"
    with pytest.raises(UserError, match=said):
        finetune.train(
            Reviews,
            dataset=str(uneven_reviews),
            model=tiny_model,
            global_batch_size=145,
            output_dir=str(output_dir),
        )
    assert not output_dir.exists()
    trainer = recipe.trainer(output_dir=str(output_dir), global_batch_size=145)
    with pytest.raises(UserError, match=said):
        trainer.train()
    recipe.trainer(output_dir=str(output_dir), max_steps=1, global_batch_size=144)


def test_two_runs_of_one_command_give_the_same_numbers(
    uneven_reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    def run(**training: Any) -> Run:
        return finetune.train(
            Reviews,
            dataset=str(uneven_reviews),
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


def test_workers_that_make_the_batches_change_nothing(recipe: Reviews, tmp_path: Path) -> None:
    logged = []
    for workers in (0, 2):
        trainer = recipe.trainer(
            output_dir=str(tmp_path / str(workers)),
            dataloader_num_workers=workers,
            logging_steps=1,
            max_steps=12,  # into the second epoch
        )
        trainer.train()
        logged.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert len(logged[0]) == 12
    assert logged[0] == logged[1]


def test_a_training_gives_its_memory_back(
    uneven_reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
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
            dataset=str(uneven_reviews),
            model=tiny_model,
            max_steps=2,
            output_dir=str(tmp_path / "run"),
        )
        gc.collect()
        assert built[-1]() is None
    assert len(built) == 2


# ---- every recipe --------------------------------------------------------------------------------


def small(name: str, uneven_reviews: Path, tiny_model: str) -> dict[str, Any]:
    """Options that make any recipe fast, and two steps tell."""
    if issubclass(catalog.find(name), TextRecipe):
        columns = dict(text_column="text", label_column="label")
        source = dict(dataset=str(uneven_reviews), model=tiny_model, **columns)
    else:
        source = dict(embedded=True, train_samples=128, eval_samples=40)
    return dict(source, global_batch_size=16, precision="fp32", learning_rate=1e-2, max_steps=2)


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
    name: str, uneven_reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    run = finetune.train(
        name, **small(name, uneven_reviews, tiny_model), output_dir=str(tmp_path / "run")
    )
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
    "name", [each for each in RECIPES if issubclass(catalog.find(each), TextRecipe)]
)
def test_a_text_run_is_a_pipeline(
    name: str, uneven_reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    run = finetune.train(
        name, **small(name, uneven_reviews, tiny_model), output_dir=str(tmp_path / "run")
    )
    classify = transformers.pipeline("text-classification", model=str(run.path))
    table = run.predictions
    assert run.labels == ["bad", "good"]
    for said, (_, row) in zip(classify(table["text"].tolist()), table.iterrows(), strict=True):
        assert said["label"] == row["prediction"]
        assert said["score"] == pytest.approx(row[f"probability of {said['label']}"], rel=1e-4)
