"""FSDP shards on CPUs, too, once accelerate is told that they are accelerators.

DataParallel, and FSDP on accelerators: `make gpu-check`.
"""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

import finetune
from finetune import Run, TextRecipe, UserError
from finetune.runtime import distributed
from finetune.training.arguments import resolve_values
from finetune.training.checks import shards
from tests.jobs import TORCHRUN, jobs

pytestmark = [pytest.mark.usefixtures("one_thread", "without_report"), pytest.mark.trains]
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


@pytest.fixture
def recipe(reviews: Path, tiny_model: str) -> Reviews:
    return Reviews(dataset=str(reviews), model=tiny_model)


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
        resolve_values({"fsdp": True})
    with pytest.raises(UserError, match=f"^--fsdp: {REASON}"):
        resolve_values({"fsdp": "full_shard"})
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(UserError, match=f"^FSDP in the accelerate config: {REASON}"):
        resolve_values({})
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "false")
    assert not shards(resolve_values({}))


def test_fsdp_with_save_on_each_node_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(distributed, "devices_in_training", lambda use_cpu: 2)
    with pytest.raises(UserError, match=r"^--save_on_each_node: FSDP gathers"):
        resolve_values({"fsdp": True, "save_on_each_node": True})
    assert shards(resolve_values({"fsdp": True}))
    with pytest.raises(UserError, match=f"^--fsdp: {REASON}"):  # asked for the CPU
        resolve_values({"fsdp": True, "use_cpu": True})


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
