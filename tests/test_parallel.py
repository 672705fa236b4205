"""DataParallel and FSDP: on this CPU what can be tested of them, the rest where GPUs are.

Where there is a GPU, DataParallel runs over the same one twice, for real. Without one it runs over
two devices that are pretended: what it does with rows and copies is ours and is tested all the
same, what torch does to bring them to a GPU and back is not. FSDP shards on CPUs, too, once
accelerate is told that they are accelerators; with two GPUs the test runs on them as well.
"""

import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification

import finetune
from finetune import Run, TextRecipe, UserError
from finetune.runtime import distributed
from finetune.training import trainer as trainer_module
from finetune.training.arguments import resolved
from finetune.training.checks import shards
from finetune.training.parallel import DataParallel
from finetune.training.trainer import Trainer
from tests.jobs import TORCHRUN, jobs

pytestmark = [pytest.mark.usefixtures("one_thread", "without_report"), pytest.mark.trains]
HAS_GPU = torch.cuda.is_available()
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not HAS_GPU, reason="no GPU for DataParallel")),
]
STEPS, BATCH, TEST_ROWS = 5, 15, 37  # a step is 8 rows and 7; of 37 rows the last batch has one


class Reviews(TextRecipe):
    """Reviews, good or bad, on a tiny model without dropout."""

    training = dict(
        optim="sgd",
        learning_rate=0.1,
        max_grad_norm=0,
        max_steps=STEPS,
        global_batch_size=BATCH,
        precision="fp32",
        per_device_eval_batch_size=6,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=STEPS,
        save_strategy="steps",
        save_steps=STEPS,
        disable_tqdm=True,
    )

    hidden_dropout: float | None = 0.0
    attention_dropout: float | None = 0.0
    eval_samples: int | None = TEST_ROWS


class Pretended(DataParallel):
    """Over two devices that are none: torch's own would bring the rows to a GPU, and back."""

    def __init__(self, module: torch.nn.Module) -> None:
        torch.nn.Module.__init__(self)
        self.module, self.device_ids, self.dim = module, [0, 0], 0
        self.src_device_obj, self.output_device = torch.device("cpu"), 0

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        """The first get more, and the last nothing where there are fewer rows than devices."""
        shares = [
            dict(zip(kwargs, share, strict=True))
            for share in zip(
                *(each.chunk(len(device_ids)) for each in kwargs.values()), strict=True
            )
        ]
        return [()] * len(shares), shares

    def parallel_apply(self, replicas: Any, inputs: Any, kwargs: Any) -> list[Any]:
        return [replica(**share) for replica, share in zip(replicas, kwargs, strict=True)]

    def gather(self, outputs: Any, output_device: Any) -> Any:
        for output in outputs:  # of scalars torch makes a vector, and warns
            assert all(tensor.dim() > 0 for tensor in output.values())
        return type(outputs[0])(
            {name: torch.cat([output[name] for output in outputs]) for name in outputs[0]}
        )


def pretended_broadcast(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], detach: bool = False
) -> list[list[torch.Tensor]]:
    """What `replicate` needs a GPU for. Without gradients the first device has the originals."""
    return [
        [each if detach and number == 0 else each.clone() for each in tensors]
        for number in range(len(devices))
    ]


class Twice:
    """Two devices to split a batch over.

    Attributes:
        device: Where they are.
        copies: For each time that the model was copied, to how many devices.
    """

    def __init__(self, device: str) -> None:
        self.device, self.copies = device, list[int]()

    def wrap(self, module: torch.nn.Module, device_ids: Sequence[int] = ()) -> DataParallel:
        return Pretended(module) if self.device == "cpu" else DataParallel(module, [0, 0])


@pytest.fixture(params=DEVICES)
def twice(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Twice:
    found = Twice(request.param)
    # functions of these names hide the modules
    torchs_own, copying = (
        sys.modules[f"torch.nn.parallel.{name}"] for name in ("data_parallel", "replicate")
    )
    replicate = copying.replicate

    def counted(network: torch.nn.Module, devices: Sequence[int], detach: bool = False) -> Any:
        found.copies.append(len(devices))
        return replicate(network, devices, detach)

    if found.device == "cpu":
        monkeypatch.setattr(copying, "_broadcast_coalesced_reshape", pretended_broadcast)
    monkeypatch.setattr(torchs_own, "replicate", counted)
    monkeypatch.setattr(trainer_module, "DataParallel", found.wrap)
    monkeypatch.setattr(
        distributed, "devices_in_training", lambda use_cpu: 1
    )  # however many there are
    return found


@pytest.fixture
def recipe(reviews: Path, tiny_model: str) -> Reviews:
    return Reviews(dataset=str(reviews), model=tiny_model)


@pytest.fixture
def build(recipe: Reviews, tmp_path: Path, twice: Twice) -> Callable[[int], Trainer]:
    """A trainer for so many devices."""

    def trainer(devices: int) -> Trainer:
        built = recipe.trainer(
            output_dir=str(tmp_path / str(devices)), use_cpu=twice.device == "cpu"
        )
        built.args._n_gpu = devices
        return built

    return trainer


# ---- DataParallel --------------------------------------------------------------------------------


def test_the_loss_is_the_mean_over_the_rows_of_unequal_shares(
    build: Callable[[int], Trainer], recipe: Reviews, twice: Twice
) -> None:
    trainer = build(2)
    rows = [recipe.prepared["train"][number] for number in range(BATCH)]
    batch = recipe.data_collator()([{**row} for row in rows])
    batch = {name: value.to(twice.device) for name, value in batch.items() if name != "length"}
    labels = batch["labels"]
    bare = trainer.model.to(twice.device).eval()
    with torch.no_grad():
        logits = bare(**{name: value for name, value in batch.items() if name != "labels"}).logits
    of_row = cross_entropy(logits, labels, reduction="none")
    assert of_row[:8].mean() != pytest.approx(of_row[8:].mean().item(), rel=1e-4)
    _, counted = trainer.get_batch_samples(iter([batch]), 1, labels.device)
    assert counted.numel() == 2  # one entry for each device
    for items, rows_of_step in ((counted, BATCH), (counted * 2, 2 * BATCH), (None, BATCH)):
        loss, outputs = trainer.compute_loss(
            twice.wrap(bare), dict(batch), True, num_items_in_batch=items
        )
        assert loss.dim() == 0
        assert loss.item() == pytest.approx(of_row.sum().item() / rows_of_step, rel=1e-5)
        torch.testing.assert_close(outputs["logits"], logits, rtol=1e-5, atol=1e-6)


def test_two_devices_train_save_and_predict_as_one(
    build: Callable[[int], Trainer], recipe: Reviews, tmp_path: Path, twice: Twice
) -> None:
    initial, history, predicted = {}, {}, {}
    for devices in (1, 2):
        trainer = build(devices)
        initial = {name: value.cpu().clone() for name, value in trainer.model.state_dict().items()}
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*scalars; will instead unsqueeze")
            trainer.train()
            assert isinstance(trainer.model_wrapped, DataParallel) == (devices == 2)
            assert twice.copies == ([2] * STEPS + [2] if devices == 2 else [])
            twice.copies.clear()
            predicted[devices] = trainer.predict(recipe.prepared["test"])
        batches = -(-TEST_ROWS // (6 * devices))
        assert batches == {1: 7, 2: 4}[devices]
        assert twice.copies == ([2] if devices == 2 else [])
        history[devices] = trainer.state.log_history
    one, two = (
        load_file(tmp_path / str(devices) / f"checkpoint-{STEPS}" / "model.safetensors")
        for devices in (1, 2)
    )
    assert two.keys() == one.keys() == initial.keys()  # nothing of the wrapper
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-5, atol=1e-5)
    assert any((two[name] - initial[name]).abs().max() > 1e-3 for name in two)
    for name in ("loss", "grad_norm", "eval_loss"):
        values = {
            key: [each[name] for each in entries if name in each]
            for key, entries in history.items()
        }
        assert len(values[2]) == (1 if name == "eval_loss" else STEPS)
        assert values[2] == pytest.approx(values[1], rel=1e-4)
    np.testing.assert_allclose(
        predicted[2].predictions, predicted[1].predictions, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(predicted[2].label_ids, predicted[1].label_ids)
    assert len(predicted[2].predictions) == TEST_ROWS
    assert predicted[2].metrics["test_loss"] == pytest.approx(
        predicted[1].metrics["test_loss"], rel=1e-5
    )


class Line(torch.nn.Linear):
    """As a model of the library: a mapping with logits."""

    def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return {"logits": super().forward(inputs)}


def test_copies_are_kept_while_no_gradient_is_asked_for(twice: Twice) -> None:
    torch.manual_seed(0)
    model = Line(3, 2).to(twice.device)

    def right(wrapper: DataParallel, rows: int) -> bool:
        inputs = torch.randn(rows, 3, device=twice.device)
        return torch.allclose(wrapper(inputs=inputs)["logits"], model(inputs)["logits"], atol=1e-6)

    def change() -> None:
        with torch.no_grad():
            model.weight.add_(1.0)

    wrapper = twice.wrap(model).eval()
    with torch.no_grad():
        assert all(right(wrapper, rows) for rows in (1, 5, 2, 1, 4))  # one row needs one copy
    assert twice.copies == [2]
    twice.copies.clear()

    wrapper.train()
    for _ in range(2):
        change()
        assert right(wrapper, 4)
    with torch.no_grad():
        assert right(wrapper, 4)
    assert twice.copies == [2, 2, 2]  # each step anew
    twice.copies.clear()

    change()
    wrapper.eval()
    with torch.no_grad():
        assert right(wrapper, 4)
        assert right(wrapper, 3)
    assert twice.copies == [2]
    wrapper.train()
    change()
    wrapper.eval()
    with torch.no_grad():
        assert right(wrapper, 4)
    assert twice.copies == [2, 2]
    twice.copies.clear()
    assert right(wrapper, 4)  # a gradient is asked for
    assert twice.copies == [2]
    twice.copies.clear()

    change()
    with torch.no_grad():
        assert right(twice.wrap(model).eval(), 4)  # as the trainer does for each evaluation
    assert twice.copies == [2]


# ---- FSDP ----------------------------------------------------------------------------------------

REASON = "the library shards on accelerators only, and would run DDP on this CPU"
SHARDED = """
import os
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback
from finetune import TextRecipe

class Show(TrainerCallback):
    def on_step_end(self, args, state, control, model, **kwargs):
        parameters = list(model.parameters())
        assert all(isinstance(each, DTensor) for each in parameters)
        here = sum(each.to_local().numel() for each in parameters)
        whole = sum(each.numel() for each in parameters)
        said = f"step {state.global_step}: {here} of {whole} weights on a rank"
        os.write(1, said.encode() + bytes([10]))  # in one piece

class Sharded(TextRecipe):
    '''A text recipe that says what each rank holds.'''

    def trainer_kwargs(self, model=None):
        return super().trainer_kwargs(model) | {"callbacks": [Show()]}
"""
# accelerate shards on accelerators only; torch itself does on CPUs, too
PRETEND = """
from accelerate.state import DistributedType, PartialState
from finetune.training import checks

checks.refuse = lambda values: None
init = PartialState.__init__

def pretend(self, *args, **kwargs):
    init(self, *args, **kwargs)
    if self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = DistributedType.MULTI_GPU

PartialState.__init__ = pretend
"""


def test_fsdp_is_refused_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(UserError, match=f"^--fsdp: {REASON}"):
        resolved({"fsdp": True})
    with pytest.raises(UserError, match=f"^--fsdp: {REASON}"):
        resolved({"fsdp": "full_shard"})
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(UserError, match=f"^FSDP in the accelerate config: {REASON}"):
        resolved({})
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "false")
    assert not shards(resolved({}))


def test_fsdp_with_save_on_each_node_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(distributed, "devices_in_training", lambda use_cpu: 2)
    with pytest.raises(UserError, match=r"^--save_on_each_node: FSDP gathers"):
        resolved({"fsdp": True, "save_on_each_node": True})
    assert shards(resolved({"fsdp": True}))
    with pytest.raises(UserError, match=f"^--fsdp: {REASON}"):  # asked for the CPU
        resolved({"fsdp": True, "use_cpu": True})


@pytest.mark.processes
@pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.slow),
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no two GPUs for FSDP"),
        ),
    ],
)
def test_fsdp_shards_saves_the_whole_model_and_resumes(
    device: str, recipe: Reviews, tmp_path: Path
) -> None:
    """It ends as one device does that was not interrupted."""
    (tmp_path / "sharded.py").write_text(PRETEND * (device == "cpu") + SHARDED)
    options = dict(dataset=recipe.dataset, model=recipe.model, eval_samples=TEST_ROWS)
    options |= dict(hidden_dropout=0.0, attention_dropout=0.0, num_threads=1)
    options |= dict(optim="adamw_torch", learning_rate=1e-3, lr_scheduler_type="constant")
    options |= dict(
        global_batch_size=16, precision="fp32", logging_steps=1, use_cpu=device == "cpu"
    )
    for name in ("eval", "save"):
        options |= {f"{name}_strategy": "steps", f"{name}_steps": 3}
    words = [f"--{name}={value}" for name, value in options.items()]
    launch = [*TORCHRUN, "--standalone", "--nproc_per_node=2", "-m", "finetune", "sharded.py"]
    seen = []
    for more in (["--max_steps=3"], ["--max_steps=6", "--resume_from_checkpoint=last"]):
        with jobs() as started:
            every = [*launch, "--fsdp", "--output_dir=run", *words, *more]
            done = started.start(every, tmp_path).ended()
        assert done.returncode == 0, done.stderr
        seen += re.findall(r"step (\d): (\d+) of (\d+) weights", done.stdout)
    run = Run.load(tmp_path / "run")
    assert run.manifest["launch"]["parallel_mode"] == "FullyShardedDataParallel"
    assert run.manifest["steps_before"] == 3
    saved = AutoModelForSequenceClassification.from_pretrained(run.path)
    size = sum(each.numel() for each in saved.parameters())
    assert sorted(int(step) for step, _, _ in seen) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    assert all(int(whole) == size for _, _, whole in seen)
    assert all(int(here) < 0.55 * size for _, here, _ in seen)

    options |= dict(max_steps=6, num_threads=None, output_dir=str(tmp_path / "one"))
    one = finetune.train(Reviews, **options)
    for name in ("loss", "grad_norm", "eval_loss"):
        found, expected = (
            [each[name] for each in each_run.manifest["history"] if name in each]
            for each_run in (run, one)
        )
        assert found == pytest.approx(expected, rel=1e-4)
    assert run.metrics["test"] == pytest.approx(one.metrics["test"], abs=1e-5)
    whole = load_file(one.path / "model.safetensors")
    assert whole.keys() == saved.state_dict().keys()
    apart = sum((value - whole[name]).square().sum() for name, value in saved.state_dict().items())
    assert apart.sqrt() < 1e-5 * sum(each.square().sum() for each in whole.values()).sqrt()
