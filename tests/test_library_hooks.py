"""The library calls each hook that we override, in a training of four steps."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import torch
import transformers
from transformers import TrainerCallback

from finetune.training import checkpoint
from finetune.training.arguments import FinetuneArguments
from finetune.training.early_stopping import EarlyStopping
from finetune.training.loss import GlobalLoss
from finetune.training.parallel import DataParallel
from finetune.training.trainer import Trainer
from recipes.yelp import Yelp
from tests.library_members import MEMBERS, resolve

pytestmark = pytest.mark.usefixtures("one_thread")

# ---- hooks of the trainer ------------------------------------------------------------------------

ROWS, BATCH, EPOCHS = 8, 4, 2


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.linear(x)}


def recording(cls: type, hooks: set[str], calls: dict[str, list[Any]]) -> Any:
    """A subclass that keeps what each of its hooks returned: only the library calls those."""

    def recorded(name: str) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = getattr(super(made, self), name)(*args, **kwargs)
            calls.setdefault(name, []).append(result)
            return result

        return call

    made = type(cls.__name__, (cls,), {name: recorded(name) for name in hooks})
    return made


def hooks_of(owner: str) -> list[str]:
    return [each.name for each in MEMBERS if each.kind == "hook" and each.owner == owner]


TRAINER = "transformers.trainer:Trainer"
EVENTS = "transformers.trainer_callback:TrainerCallback"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A training with evaluations and checkpoints, an evaluation, a prediction and a save."""
    calls: dict[str, list[Any]] = {}
    arguments = FinetuneArguments(
        output_dir=str(tmp_path_factory.mktemp("run")),
        use_cpu=True,
        precision="fp32",
        global_batch_size=BATCH,
        num_train_epochs=EPOCHS,
        logging_steps=3,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        label_names=["labels"],
        disable_tqdm=True,
    )
    data = datasets.Dataset.from_dict(
        {"x": [[0.1 * row, 1.0] for row in range(ROWS)], "labels": [0, 1] * (ROWS // 2)}
    ).with_format("torch")

    def trainer_that_records(calls: dict[str, list[Any]]) -> Any:
        return recording(Trainer, set(hooks_of(TRAINER)), calls)(
            model=Net(),
            args=arguments,
            train_dataset=data,
            eval_dataset=data,
            compute_loss_func=GlobalLoss(Yelp().loss),
            callbacks=[recording(TrainerCallback, set(hooks_of(EVENTS)), calls)],
        )

    trainer = trainer_that_records(calls)
    output = trainer.train()
    trainer.evaluate()
    trainer.predict(data)
    trainer.save_model()
    resumed: dict[str, list[Any]] = {}
    trainer_that_records(resumed).train(str(Path(arguments.output_dir or "", "checkpoint-2")))
    calls |= {name: resumed[name] for name in resumed.keys() - calls.keys()}
    return SimpleNamespace(calls=calls, trainer=trainer, output=output)


def test_the_hooks_are_those_that_are_overridden() -> None:
    hooks = hooks_of(TRAINER)
    assert len(hooks) >= 16
    ours = [each for each in Trainer.__mro__ if each.__module__.startswith("finetune.")]
    assert all(any(name in vars(each) for each in ours) for name in hooks)
    assert len(hooks_of(EVENTS)) >= 6


@pytest.mark.parametrize("name", [*hooks_of(TRAINER), *hooks_of(EVENTS)])
def test_the_library_calls_the_hook(trained: SimpleNamespace, name: str) -> None:
    assert name in trained.calls


def test_the_rest_of_the_loss_is_kept(trained: SimpleNamespace) -> None:
    losses = [loss.item() for loss in trained.calls["training_step"]]
    assert len(losses) == ROWS // BATCH * EPOCHS  # the last is not logged
    assert trained.output.training_loss == pytest.approx(sum(losses) / len(losses))


def test_rows_are_counted(trained: SimpleNamespace) -> None:
    steps = [(len(batches), int(rows)) for batches, rows in trained.calls["get_batch_samples"]]
    assert set(steps) == {(1, BATCH)}


def test_each_logged_loss_has_its_throughput(trained: SimpleNamespace) -> None:
    logged = [entry for entry in trained.trainer.state.log_history if "loss" in entry]
    assert logged
    assert all(entry["rows_per_second"] > 0 for entry in logged)


def test_early_stopping_is_kept_in_a_checkpoint(tmp_path: Path) -> None:
    """By the name of the class, beside the state of the trainer."""
    stopping = EarlyStopping(early_stopping_patience=2)
    stopping.early_stopping_patience_counter = 1
    state = transformers.TrainerState(stateful_callbacks=[stopping])
    state.save_to_json(str(tmp_path / "state.json"))
    found = transformers.TrainerState.load_from_json(str(tmp_path / "state.json"))
    assert isinstance(found.stateful_callbacks, dict)
    stored = found.stateful_callbacks["EarlyStopping"]
    assert stored["attributes"] == {"early_stopping_patience_counter": 1}


def test_construction_resolves_the_arguments(tmp_path: Path) -> None:
    arguments = FinetuneArguments(output_dir=str(tmp_path), use_cpu=True, global_batch_size=6)
    assert arguments.per_device_train_batch_size == 6


def test_no_process_writes_while_a_trainer_is_built(tmp_path: Path) -> None:
    arguments = FinetuneArguments(output_dir=str(tmp_path / "run"), use_cpu=True)
    assert arguments.should_save
    with arguments.nothing_written():
        assert not arguments.should_save
        transformers.Trainer(model=Net(), args=arguments)
    assert not (tmp_path / "run").exists()
    assert arguments.should_save


def test_eval_drops_the_copies() -> None:
    """`replicate` itself needs GPUs; that `forward` calls it is checked in its source."""
    model = DataParallel(Net(), device_ids=[])
    model._kept = [model.module]
    model.eval()
    assert model._kept is None


def test_checkpoints_have_their_names(trained: SimpleNamespace) -> None:
    directory = Path(trained.trainer.args.output_dir)
    prefix, state = (
        resolve("transformers.trainer_utils:PREFIX_CHECKPOINT_DIR"),
        resolve("transformers.trainer:TRAINER_STATE_NAME"),
    )
    assert prefix == "checkpoint"
    assert sorted(path.name for path in directory.glob(f"{prefix}-*/{state}")) == [state] * 2
    assert state == "trainer_state.json"
    assert [path.name for path in checkpoint.committed(directory)] == [
        "checkpoint-4",
        "checkpoint-2",
    ]
    assert [checkpoint.problem(path) for path in checkpoint.committed(directory)] == [None, None]


def test_the_loss_since_the_last_log_is_in_a_checkpoint(trained: SimpleNamespace) -> None:
    """Logged at step 3, saved at 2 and 4."""
    directory = Path(trained.trainer.args.output_dir)
    losses = [loss.item() for loss in trained.calls["training_step"]]
    for step, since, logged in ((2, losses[:2], 0), (4, losses[3:], 3)):
        file = directory / f"checkpoint-{step}" / "loss_since_log.json"
        found = json.loads(file.read_text(encoding="utf-8"))
        loss = [pytest.approx(sum(since))]
        assert (found["step"], found["loss_by_rank"], found["epoch_ended"]) == (logged, loss, True)
