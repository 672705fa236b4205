"""How fast a run was: rows, tokens, FLOPs, the phases of a step, and the profile of a few."""

import itertools
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch._C._autograd import DeviceType
from torch._dynamo.utils import counters
from transformers import BertConfig, BertForSequenceClassification, TrainerCallback

import finetune
from finetune import Run, TextRecipe, UserError, cli
from finetune.cli.screen import Screen
from finetune.models.cpu import attention
from finetune.reporting import wording
from finetune.training import flops, speed
from finetune.training.profile import where
from finetune.training.speed import Meter

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")
WIDTH, LAYERS, INNER = 32, 3, 48


class Reviews(TextRecipe):
    """Nine steps of sixteen rows, on a tiny model."""

    training = dict(
        global_batch_size=16,
        num_train_epochs=1,
        precision="fp32",
        eval_strategy="no",
        save_strategy="no",
        load_best_model_at_end=False,
        baseline=False,
        disable_tqdm=True,
    )


@pytest.fixture
def trained(uneven_reviews: Path, tiny_model: str, tmp_path: Path) -> Any:
    def run(**given: Any) -> Run:
        return finetune.train(
            Reviews,
            dataset=str(uneven_reviews),
            model=tiny_model,
            output_dir=str(tmp_path / "run"),
            progress=Screen(),
            **given,
        )

    return run


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock for the meter that goes on by a second each time that it is read."""
    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=itertools.count().__next__))


# ---- model FLOPs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sdpa", "eager", "ours"])
def test_the_flops_of_an_encoder_are_those_of_its_formula(kind: str) -> None:
    config = BertConfig(
        vocab_size=50,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        intermediate_size=INNER,
        num_labels=5,
        attn_implementation="sdpa" if kind == "ours" else kind,
    )
    model = BertForSequenceClassification(config).train()
    if kind == "ours":  # it multiplies with a column more, which the model does not ask for
        attention.use(model)
    batch = {name: torch.ones(3, 11, dtype=torch.long) for name in ("input_ids", "attention_mask")}
    found = flops.of_model(model, flops.first_row(batch))
    # forward, gradients of the inputs, gradients of the weights (Kaplan et al., 2020)
    assert found.token == 3 * 2 * LAYERS * (4 * WIDTH**2 + 2 * WIDTH * INNER)
    assert found.pair == 3 * 2 * LAYERS * 2 * WIDTH
    assert found.row == 3 * 2 * (WIDTH**2 + WIDTH * 5)  # the pooler and the head
    assert found.of(2, 30, 500) == 2 * found.row + 30 * found.token + 500 * found.pair
    assert model.training, "it is left as it was"
    assert model.config._attn_implementation == (attention.NAME if kind == "ours" else kind)
    assert all(each.grad is None for each in model.parameters())
    model.base_model.requires_grad_(False)  # no gradient goes below the head
    frozen = flops.of_model(model, flops.first_row(batch))
    assert (3 * frozen.token, 3 * frozen.pair) == (found.token, found.pair)
    assert frozen.row == 2 * WIDTH**2 + 2 * 2 * WIDTH * 5


def test_a_model_with_a_length_of_its_own_is_not_counted() -> None:
    class Windowed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": self.layer(torch.zeros(1, 512, 4))}

    with pytest.raises(ValueError, match="short rows are computed like long ones"):
        flops.of_model(Windowed(), {"input_ids": torch.ones(1, 9, dtype=torch.long)})


def test_rows_without_tokens_have_flops_too() -> None:
    class Digits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(784, 10)

        def forward(self, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": self.layer(pixels)}

    found = flops.of_model(Digits(), {"pixels": torch.zeros(1, 784)})
    assert found == flops.Flops(row=2 * 2 * 784 * 10)  # forward, and the gradient of the weights


def test_the_peak_is_that_of_the_fastest_of_several_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a clock that says when the time is up, and that products took 20, 10 and 40 ms."""
    readings = iter([0.0, 0.01, 1.0, 1.02, 0.05, 2.0, 2.01, 0.09, 3.0, 3.04, 9.0])
    monkeypatch.setattr(flops, "time", SimpleNamespace(perf_counter=readings.__next__))
    state = torch.get_rng_state()
    peak = flops.peak(torch.device("cpu"), torch.float32)
    assert peak == pytest.approx(2 * 1024**3 / 0.01)
    assert list(readings) == []
    assert torch.equal(state, torch.get_rng_state())  # in the middle of a training, of a profile


# ---- counted in every run ------------------------------------------------------------------------


def test_tokens_and_padding_are_counted_row_by_row() -> None:
    meter = Meter(torch.device("cpu"), torch.float32)
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]])
    other = torch.tensor([[1, 1]])
    batches = [{"input_ids": each, "attention_mask": each} for each in (mask, other)]
    batches[0] |= {"scale": torch.tensor(1.0), "names": ["a", "b"]}
    meter.step_begins()
    meter.fetched(batches, torch.tensor(3))
    meter.seconds["step"] = 2.0
    found = meter.summary(None, 1)
    assert found["rows_per_second"] == 3 / 2
    assert found["tokens_per_second"] == 6 / 2
    assert found["padding"] == pytest.approx(1 - 6 / 10)
    assert "share_of_peak" not in found  # a sharded model cannot be asked


@pytest.mark.usefixtures("ticks")
def test_the_manifest_says_how_fast_the_steps_were(trained: Any) -> None:
    run = trained(max_tokens_per_batch=512)
    speed, data = run.manifest["speed"], run.recipe().prepared["train"]
    seconds = speed["seconds"]
    lengths = np.asarray(data["length"][:])
    assert speed["rows_per_second"] * seconds["step"] == pytest.approx(len(data))
    assert speed["tokens_per_second"] * seconds["step"] == pytest.approx(lengths.sum())
    assert 0 < speed["padding"] < 0.5
    steps = run.manifest["steps"]
    parts = [seconds[name] for name in ("data", "forward", "backward", "optimizer")]
    assert min(parts) >= steps  # each in each step
    assert sum(parts) < seconds["step"]
    asked = speed["model_flops_per_second"]
    assert asked > 0
    assert speed["share_of_peak"] == pytest.approx(asked / speed["peak_flops_per_second"])
    logged = [entry for entry in run.manifest["history"] if "rows_per_second" in entry]
    assert logged


def test_a_model_that_cannot_be_asked_costs_no_run() -> None:
    class Particular(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor) -> None:
            raise ValueError(f"{input_ids.shape[1]} tokens: expected 64 or more")

    meter = Meter(torch.device("cpu"), torch.float32)
    meter.fetched([{"input_ids": torch.ones(2, 64), "labels": torch.ones(2)}], torch.tensor(2))
    meter.seconds["step"] = 1.0
    found = meter.summary(Particular(), 1)
    assert found["rows_per_second"] == 2
    assert found["model_flops_not_counted"] == "ValueError: 8 tokens: expected 64 or more"
    assert wording.speed(found) == "2.0 samples/s, 128 tokens/s"


@pytest.mark.parametrize(("flops", "shown"), [(2e11, "200.0 GFLOP/s"), (3.25e13, "32.5 TFLOP/s")])
def test_flops_have_a_unit_of_their_size(flops: float, shown: str) -> None:
    found = dict(rows_per_second=2, tokens_per_second=None, share_of_peak=0.125)
    text = wording.speed({**found, "model_flops_per_second": flops})
    assert text == f"2.0 samples/s; {shown}, 12% of measured matmul peak"
    busy = wording.speed({**found, "model_flops_per_second": flops, "share_of_peak": 5.6})
    assert busy.endswith("more than the matmul peak that was measured while the machine was busy")


def test_a_phase_does_not_count_what_is_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    meter = Meter(torch.device("cpu"), torch.float32)
    with meter.during("evaluation"):  # before any step
        now[0] += 100
    meter.step_begins()
    with meter.during("outer"):
        now[0] += 1
        with meter.during("inner"):
            now[0] += 5
        now[0] += 2
    assert meter.seconds == {"inner": 5, "outer": 3}


# ---- the profile ---------------------------------------------------------------------------------


def event(name: str, start: float, end: float, **more: Any) -> Any:
    """One of torch's profiler; the main thread is 1."""
    plain = dict(
        thread=1,
        is_async=False,
        device_type=DeviceType.CPU,
        cpu_children=[],
        is_user_annotation=False,
    )
    span = SimpleNamespace(start=start, end=end)
    return SimpleNamespace(name=name, time_range=span, **{**plain, **more})


STEP = [
    event("finetune::step", 1000, 3000, cpu_children=[1]),
    event("finetune::data", 1000, 1100),
    event("finetune::backward", 1200, 2200, cpu_children=[1]),
    event("finetune::forward", 1200, 1500, cpu_children=[1]),
    event("aten::mm", 1200, 1500),
    event("aten::mm", 1500, 2000),
    event("finetune::optimizer", 2200, 2900, cpu_children=[1]),
]


def test_phases_are_told_apart() -> None:
    steps, found = where(STEP)
    assert steps == 1
    assert found == {
        "data": 0.1,
        "forward": 0.3,
        "backward": 0.7,
        "communication": 0.0,
        "optimizer": 0.7,
        "other": 0.2,
        "step": 2.0,
    }


def test_communication_beside_the_backward_pass_costs_nothing() -> None:
    beside = event("gloo:all_reduce", 1600, 2150, thread=2, is_async=True)
    _, found = where([*STEP, beside])
    assert found["communication"] == pytest.approx(0.15)  # after the last product
    assert found["backward"] == pytest.approx(0.55)


def test_what_lies_between_steps_is_in_none() -> None:
    evaluation = event("aten::mm", 3000, 9000)
    again = [
        event(
            each.name,
            each.time_range.start + 8000,
            each.time_range.end + 8000,
            cpu_children=each.cpu_children,
        )
        for each in STEP
    ]
    _, once = where(STEP)
    steps, found = where([*STEP, evaluation, *again])
    assert steps == 2
    assert found == pytest.approx(once)


def test_kernels_say_when_a_device_was_idle() -> None:
    kernels = [
        event("gemm", 1300, 1900, device_type=DeviceType.CUDA),
        event("ncclDevKernel_AllReduce", 1800, 2100, device_type=DeviceType.CUDA),
        event("finetune::forward", 0, 9000, device_type=DeviceType.CUDA, is_user_annotation=True),
    ]
    _, found = where([*STEP, *kernels])
    assert found["communication"] == pytest.approx(0.2)
    assert found["idle"] == pytest.approx(2.0 - 0.8)


def test_a_profile_is_written_and_shown(trained: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(profile=4)
    found = run.profile
    assert found["steps"] == 4
    phases = found["milliseconds"]
    step = phases.pop("step")
    assert sum(phases.values()) == pytest.approx(step, rel=1e-3)
    assert phases["forward"] > 0
    assert phases["backward"] > 0
    milliseconds = [each["milliseconds"] for each in found["operators"]]
    assert len(milliseconds) > 5
    assert milliseconds == sorted(milliseconds, reverse=True)
    assert found["speed"]["tokens_per_second"] > 0
    trace = json.loads((run.path / "profile" / "trace.json").read_text())
    named = [each["name"] for each in trace["traceEvents"] if "name" in each]
    assert named.count("finetune::forward") == 4
    assert {"aten::addmm", "aten::mm"} <= set(named)
    shown = capsys.readouterr().out
    assert "time of 4 steps, with the profiler on" in shown
    assert "communication" in shown


def test_a_profile_needs_its_steps(trained: Any) -> None:
    with pytest.raises(UserError, match="--profile 8: the run has 9 steps, and the first 2 are"):
        trained(profile=8)


def test_a_resumed_run_with_too_few_steps_left_is_not_profiled(
    trained: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    given = dict(profile=2, max_steps=6, save_strategy="steps", save_steps=4)
    first = trained(**given)
    shutil.rmtree(first.path / "checkpoint-6")
    first.update(status="running")
    capsys.readouterr()
    run = trained(**given, resume_from_checkpoint="last")
    shown = capsys.readouterr().out
    assert run.manifest["status"] == "finished"
    assert "too few steps were left, none was profiled" in shown
    assert "where the time" not in shown


@pytest.mark.usefixtures("ticks")
def test_evaluations_are_not_a_part_of_the_steps(trained: Any) -> None:
    without = trained(profile=3)
    evaluated = trained(profile=3, eval_strategy="steps", eval_steps=1)
    assert len([each for each in evaluated.manifest["history"] if "eval_loss" in each]) == 9
    seconds = [run.manifest["speed"]["seconds"] for run in (without, evaluated)]
    assert seconds[0] == seconds[1]
    trace = json.loads((evaluated.path / "profile" / "trace.json").read_text())
    named = [each["name"] for each in trace["traceEvents"] if "name" in each]
    assert named.count("finetune::step") == named.count("finetune::forward") == 3


@pytest.mark.usefixtures("ticks")
def test_a_second_training_is_counted_by_itself(
    uneven_reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    recipe = Reviews(dataset=str(uneven_reviews), model=tiny_model)
    trainer = recipe.trainer(output_dir=str(tmp_path), max_steps=2)
    found = []
    for _ in range(2):
        trainer.train()
        found.append(trainer.speed())
    assert found[0]["rows_per_second"] * found[0]["seconds"]["step"] == pytest.approx(32)
    assert found[0]["seconds"] == found[1]["seconds"]


def test_steps_to_profile_are_a_number_of_them(
    uneven_reviews: Path, tiny_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sentiment", "--dataset", str(uneven_reviews), "--model", tiny_model, "--profile", "0"]
    assert cli.main(words) == 2
    assert "--profile 0: expected 1 or more steps" in capsys.readouterr().err


# ---- compiled ------------------------------------------------------------------------------------


class Graphs(TrainerCallback):
    """How many graphs were compiled when each step ended."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_step_end(self, *arguments: Any, **others: Any) -> None:
        self.seen.append(counters["stats"]["unique_graphs"])


def test_few_lengths_are_compiled_and_nothing_again_later(
    uneven_reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    torch.compiler.reset()
    counters.clear()
    recipe, graphs = Reviews(dataset=str(uneven_reviews), model=tiny_model), Graphs()
    trainer = recipe.trainer(
        output_dir=str(tmp_path),
        torch_compile_backend="aot_eager",  # traces as any other does, and needs no compiler
        num_train_epochs=4,
        eval_strategy="epoch",
    )
    trainer.add_callback(graphs)
    trainer.train()
    trainer.predict(recipe.prepared["test"])
    lengths = {-(-length // 8) * 8 for length in recipe.prepared["train"]["length"][:]}
    assert len(lengths) > 4
    assert 1 < graphs.seen[8] <= 4  # after an epoch
    assert graphs.seen[-1] == counters["stats"]["unique_graphs"] == graphs.seen[8]


# ---- steps of a number of tokens -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (dict(max_tokens_per_batch=0), "--max_tokens_per_batch 0: expected 1 or more tokens"),
        (
            dict(max_tokens_per_batch=512, global_batch_size=8),
            "--global_batch_size and --max_tokens_per_batch are mutually exclusive: give one",
        ),
        (
            dict(max_tokens_per_batch=512, train_sampling_strategy="random"),
            "it needs --train_sampling_strategy group_by_length",
        ),
        (dict(max_tokens_per_batch=512, torch_compile=True), "every step would have another shape"),
        (
            dict(max_tokens_per_batch=100, gradient_accumulation_steps=2),
            "makes a step of 1 rows, for 1 devices x 2 accumulation steps; the longest row has 80",
        ),
    ],
)
def test_tokens_that_make_no_steps_are_refused_before_anything_is_written(
    given: dict[str, Any], said: str, trained: Any, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        trained(**given)
    assert not (tmp_path / "run").exists()


def test_the_start_block_speaks_of_tokens(trained: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(max_tokens_per_batch=512, gradient_accumulation_steps=2)
    shown = capsys.readouterr().out
    assert "at most 512 tokens per step, padding included: about 256 per device and micro" in shown
    steps = run.manifest["steps"]
    assert f" steps {steps:,} (1 epoch)" in " ".join(shown.split())
    assert run.manifest["arguments"]["global_batch_size"] == "None"
