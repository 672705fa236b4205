"""Whether training and prediction on GPUs give what one device gives; `make gpu-check` runs it.

    python benchmarks/gpu_check.py              # a few minutes on two GPUs

Every check starts the command line and compares run directories: the losses of the steps, the
weights, the probabilities of the test rows. What the GPUs of this machine do not suffice for is
listed as unverified; without a GPU that is everything. The exit status is 1 if a check failed.
"""

import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parent.parent
STEPS, GLOBAL_BATCH = 20, 32
#: Real sentences and MiniLM; 352 rows are 11 steps, so that the steps go over the end of an epoch.
DATA = ("sentiment", "--embedded", "--train_samples=352", "--eval_samples=200", "--max_length=64")
#: Plain SGD, no clipping, no dropout: a factor in the gradient shows in the weights.
TRAINING = (
    *("--hidden_dropout=0", "--attention_dropout=0", "--optim=sgd", "--learning_rate=0.1"),
    *("--max_grad_norm=0", "--lr_scheduler_type=constant", f"--global_batch_size={GLOBAL_BATCH}"),
    *("--logging_steps=1", "--eval_strategy=no", "--load_best_model_at_end=false"),
    *("--save_strategy=steps", "--save_steps=10", "--no_baseline"),
)
INTERRUPTED = (("--max_steps=10",), (f"--max_steps={STEPS}", "--resume_from_checkpoint=last"))
EXPLODES = ("--learning_rate=1e30", "--warmup_steps=0", "--save_strategy=steps", "--save_steps=1")


class Incomparable(Exception):
    """A command failed, or two runs did not do the same thing."""


@dataclass(frozen=True)
class Launch:
    """One way to train."""

    name: str  # of the run directory
    mode: str = "one device"  # how `parallel_mode` in run.json begins
    gpus: int = 1  # that are visible; 0 is the CPU
    processes: int = 0  # that torchrun starts; 0 is without it
    flags: tuple[str, ...] = ()
    precision: str = "fp32"  # of the matrix products
    stages: tuple[tuple[str, ...], ...] = (
        (f"--max_steps={STEPS}",),
    )  # flags of commands that follow each other


@dataclass
class Launcher:
    """Starts the command line on some of the GPUs, in one directory."""

    directory: Path
    visible: Sequence[str] = ()  # names of the GPUs, as in CUDA_VISIBLE_DEVICES
    data: Sequence[str] = DATA
    _runs: dict[str, Path] = field(default_factory=dict)

    def train(self, launch: Launch) -> Path:
        """Return the run directory, trained at the first call."""
        if launch.name not in self._runs:
            run = self.directory / launch.name
            for stage in launch.stages:
                words = [*self.data, *TRAINING, *launch.flags, *stage]
                self.start(launch, *words, f"--precision={launch.precision}", f"--output_dir={run}")
            refuse_other(launch, run)
            self._runs[launch.name] = run
        return self._runs[launch.name]

    def predict(self, launch: Launch, run: Path) -> Path:
        """Return the file of predictions of the test texts, by the model of a run."""
        texts, output = self.directory / "texts.parquet", self.directory / f"{launch.name}.parquet"
        pd.read_parquet(run / "predictions.parquet", columns=["text"]).to_parquet(texts)
        flags = ["--all_probabilities", "--precision=fp32", f"--output={output}"]
        self.start(launch, "predict", str(run), str(texts), "--trust_recipe", *flags)
        return output

    def start(self, launch: Launch, *words: str) -> None:
        """Run ``finetune WORDS`` as the launch says."""
        torchrun = ["torch.distributed.run", "--standalone", f"--nproc_per_node={launch.processes}"]
        start = [*torchrun, "-m", "finetune"] if launch.processes else ["finetune"]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        visible = ",".join(self.visible[: launch.gpus])
        process = subprocess.run(
            [sys.executable, "-m", *start, *words],
            cwd=self.directory,
            env=os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": visible},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if process.returncode:
            last = "\n    ".join(process.stdout.splitlines()[-15:])
            raise Incomparable(f"exit status {process.returncode}\n    {last}")


def read_manifest(run: Path) -> dict[str, Any]:
    """Return ``run.json``."""
    return dict(json.loads((run / "run.json").read_text(encoding="utf-8")))


def refuse_other(launch: Launch, run: Path) -> None:
    """Refuse a run that was not made as the launch says; it would compare the wrong thing."""
    manifest = read_manifest(run)
    actual = manifest["launch"]
    expected = {
        "status": (manifest["status"], "finished"),
        "steps": (manifest["steps"], STEPS),
        "mode": (actual["parallel_mode"][: len(launch.mode)], launch.mode),
        "device": (actual["device"].partition(":")[0], "cuda" if launch.gpus else "cpu"),
        "processes": (actual["world_size"], launch.processes or 1),
        "precision": (actual["precision"], launch.precision),
        "resumed": (manifest["steps_before"] > 0, len(launch.stages) > 1),
    }
    if other := [f"{name} {a}, expected {b}" for name, (a, b) in expected.items() if a != b]:
        raise Incomparable("; ".join(other))


def loss_difference(run: Path, reference: Path) -> float:
    """Return the largest difference between the logged losses of a step."""
    losses = [
        [
            (entry["step"], entry["loss"])
            for entry in read_manifest(path)["history"]
            if "loss" in entry
        ]
        for path in (run, reference)
    ]
    ours, theirs = (np.array(pairs).reshape(-1, 2) for pairs in losses)
    if not len(ours) or not np.array_equal(ours[:, 0], theirs[:, 0]):
        raise Incomparable(f"losses of the steps {ours[:, 0]} and {theirs[:, 0]}")
    return float(np.abs(ours[:, 1] - theirs[:, 1]).max())


def weight_difference(run: Path, reference: Path) -> float:
    """Return the norm of the difference of all weights, as a share of the reference's norm."""
    ours, theirs = (load_file(path / "model.safetensors") for path in (run, reference))
    shapes = [{(name, array.shape) for name, array in file.items()} for file in (ours, theirs)]
    if shapes[0] != shapes[1]:
        names = ", ".join(sorted({name for name, _ in shapes[0] ^ shapes[1]}))
        raise Incomparable(f"weights of other names or shapes: {names}")
    one, other = (
        np.concatenate([file[name].ravel() for name in sorted(file)]).astype(np.float64)
        for file in (ours, theirs)
    )
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def table_difference(file: Path, reference: Path) -> float:
    """Return the largest difference between probabilities of two runs or files, row by row.

    The predicted labels are left out: a row near the boundary may have either.
    """
    paths = [p / "predictions.parquet" if p.is_dir() else p for p in (file, reference)]
    ours, theirs = map(pd.read_parquet, paths)
    if list(ours.columns) != list(theirs.columns) or len(ours) != len(theirs) or ours.empty:
        raise Incomparable(f"{ours.shape} and {theirs.shape} rows and columns")
    for name in ("id", "text"):
        if name in ours and not (ours[name] == theirs[name]).all():
            raise Incomparable(f"column '{name}' has other values or another order")
    numbers = list(ours.select_dtypes("floating"))
    return float(np.abs(ours[numbers].to_numpy() - theirs[numbers].to_numpy()).max())


#: What was compared, how far apart it is, and how far it may be.
Line = tuple[str, float, float]
Measure = Callable[[Launcher, int], list[Line]]
#: Sums in another order.
SAME = {"losses": 1e-4, "weights": 1e-5, "rows": 1e-3}
#: Other kernels for everything.
OTHER_DEVICE = {"losses": 1e-3, "weights": 1e-4, "rows": 1e-2}
#: 8 and 11 bits of precision, and the first steps that fp16 skips until its scale fits.
HALF = {"losses": 5e-2, "weights": 5e-3, "rows": 1e-1}
COMPARISONS = {"losses": loss_difference, "weights": weight_difference, "rows": table_difference}
CPU, ONE = Launch("cpu", gpus=0), Launch("one")
DDP, FSDP = "DistributedDataParallel", "FullyShardedDataParallel"


def trained(
    launch: Launch, reference: Launch, tolerances: dict[str, float], **on_all: bool
) -> Measure:
    """Compare two trainings; with ``on_all`` the first one takes all GPUs."""

    def measure(launcher: Launcher, count: int) -> list[Line]:
        processes = count if on_all.get("torchrun") else launch.processes
        new = replace(launch, gpus=count, processes=processes) if on_all else launch
        runs = launcher.train(new), launcher.train(reference)
        return [(name, COMPARISONS[name](*runs), most) for name, most in tolerances.items()]

    return measure


def predicted(launch: Launch, reference: Launch, *, on_all: bool = False) -> Measure:
    """Compare what two launches of ``predict`` answer with the model of one run."""

    def measure(launcher: Launcher, count: int) -> list[Line]:
        new = replace(launch, gpus=count, processes=count) if on_all else launch
        run = launcher.train(ONE)
        tables = [launcher.predict(each, run) for each in (new, reference)]
        return [("rows", table_difference(*tables), OTHER_DEVICE["rows"])]

    return measure


def diverged(launcher: Launcher, _: int) -> list[Line]:
    """Check that a training whose weights explode is stopped, and that no checkpoint is broken."""
    with contextlib.suppress(Incomparable):  # its exit status is 1
        launcher.train(Launch("diverges", flags=EXPLODES))
    run = launcher.directory / "diverges"
    manifest = read_manifest(run)
    step = int(re.findall(r"step (\d+)", manifest["failure"])[0])
    saved = [int(path.name.partition("-")[2]) for path in run.glob("checkpoint-*")]
    return [
        ("status", float(manifest["status"] != "diverged"), 0.0),
        ("checkpoints of it or later", sum(number >= step for number in saved), 0.0),
    ]


_ONE_PROCESS, _SHARDED = Launch("nccl-1", processes=1), ("--fsdp=true",)
_FSDP_ONE = Launch("fsdp-1", FSDP, processes=1, flags=_SHARDED)
_ON_GPU, _ON_CPU = Launch("predicted-on-gpu"), Launch("predicted-on-cpu", gpus=0)
#: Everything that is verified on GPUs, as README has it: the fewest GPUs, and how.
CHECKS: dict[str, tuple[int, Measure]] = {
    "one GPU in fp32 against the CPU": (1, trained(ONE, CPU, OTHER_DEVICE)),
    "bf16": (1, trained(Launch("bf16", precision="bf16"), ONE, HALF)),
    "fp16": (1, trained(Launch("fp16", precision="fp16"), ONE, HALF)),
    "a loss that is not finite": (1, diverged),
    "resume": (1, trained(Launch("resumed", stages=INTERRUPTED), ONE, SAME)),
    "predict": (1, predicted(_ON_GPU, _ON_CPU)),
    "torchrun with one process": (1, trained(_ONE_PROCESS, ONE, SAME)),
    "FSDP with one process": (1, trained(_FSDP_ONE, ONE, SAME)),
    "DataParallel": (2, trained(Launch("dp", "DataParallel"), ONE, SAME, torchrun=False)),
    "DDP over NCCL": (2, trained(Launch("ddp", DDP), ONE, SAME, torchrun=True)),
    "FSDP": (2, trained(Launch("fsdp", FSDP, flags=_SHARDED), ONE, SAME, torchrun=True)),
    "resume under DDP": (
        2,
        trained(Launch("ddp-resumed", DDP, stages=INTERRUPTED), ONE, SAME, torchrun=True),
    ),
    "predict under torchrun": (2, predicted(Launch("predicted-on-all"), _ON_GPU, on_all=True)),
}


def report(
    checks: dict[str, tuple[int, Measure]], launcher: Launcher, say: Callable[..., object]
) -> int:
    """Run every check that the GPUs suffice for, list the others, and return the exit status."""
    failed, present = False, len(launcher.visible)
    count = max((n for n in range(1, present + 1) if GLOBAL_BATCH % n == 0), default=0)
    row = "{:<32} {:<28} {:>10} {:>10}  {}".format
    if count:
        say(row("check", "compared", "difference", "tolerance", "result"))
    for name, (fewest, measure) in checks.items():
        if fewest > count:
            continue
        try:
            for compared, difference, tolerance in measure(launcher, count):
                is_close = difference <= tolerance  # no number is not
                failed |= not is_close
                figures = f"{difference:.1e}", f"{tolerance:.1e}"
                say(row(name, compared, *figures, "verified" if is_close else "failed"))
        except Incomparable as error:
            failed = True
            say(row(name, "", "", "", f"failed: {error}"))
    if unable := {name: fewest for name, (fewest, _) in checks.items() if fewest > count}:
        say(f"unverified, on a machine with {present} GPU{'s' * (present != 1)}:")
        for name, fewest in unable.items():
            say(f"  {name} (needs {fewest} GPU{'s' * (fewest > 1)})")
    return int(failed)


if __name__ == "__main__":
    import torch

    numbers = [str(number) for number in range(torch.cuda.device_count())]
    names = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    with tempfile.TemporaryDirectory() as scratch:
        launcher = Launcher(Path(scratch), names[: len(numbers)] or numbers)
        sys.exit(report(CHECKS, launcher, functools.partial(print, flush=True)))
