"""Whether training and prediction on GPUs give what one device gives; `make gpu-check` runs it.

    python benchmarks/gpu_check.py              # a few minutes on two GPUs

Every check starts the command line and compares run directories: the losses of the steps, the
weights, the probabilities of the test rows. What the GPUs of this machine do not suffice for is
listed as unverified; without a GPU that is everything. The exit status is 1 if a check failed.
"""

import argparse
import contextlib
import functools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

if not __package__:  # started as a script, whose directory is all that is on the path
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import differences
from benchmarks.differences import Incomparable

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
WHOLE = ((f"--max_steps={STEPS}",),)
INTERRUPTED = (("--max_steps=10",), (f"--max_steps={STEPS}", "--resume_from_checkpoint=last"))


@dataclass(frozen=True)
class Launch:
    """One way to train.

    Attributes:
        name: Of the run directory.
        mode: How ``parallel_mode`` in ``run.json`` begins.
        gpus: How many are visible; 0 is the CPU.
        processes: How many ``torchrun`` starts; 0 is without it.
        flags: More of them.
        precision: Of the matrix products.
        stages: Flags of each of the commands that follow each other in one directory.
    """

    name: str
    mode: str = "one device"
    gpus: int = 1
    processes: int = 0
    flags: tuple[str, ...] = ()
    precision: str = "fp32"
    stages: tuple[tuple[str, ...], ...] = WHOLE


@dataclass
class Launcher:
    """Starts the command line on some of the GPUs, in one directory.

    Attributes:
        directory: Where the runs are written.
        visible: Names of the GPUs, as in ``CUDA_VISIBLE_DEVICES``.
        data: Recipe, data and model.
    """

    directory: Path
    visible: Sequence[str] = ()
    data: Sequence[str] = DATA
    _runs: dict[str, Path] = field(default_factory=dict)

    def train(self, launch: Launch) -> Path:
        """Return the run directory, trained at the first call.

        Raises:
            Incomparable: if the command failed, or trained in another way than was asked for.
        """
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
        """Run ``finetune WORDS`` as the launch says.

        Raises:
            Incomparable: with the last lines of its output, if it failed.
        """
        torchrun = ["torch.distributed.run", "--standalone", f"--nproc_per_node={launch.processes}"]
        start = [*torchrun, "-m", "finetune"] if launch.processes else ["finetune"]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        visible = ",".join(self.visible[: launch.gpus])
        done = subprocess.run(
            [sys.executable, "-m", *start, *words],
            cwd=self.directory,
            env=os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": visible},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            last = "\n    ".join(done.stdout.splitlines()[-15:])
            raise Incomparable(f"exit status {done.returncode}\n    {last}")


def refuse_other(launch: Launch, run: Path) -> None:
    """Refuse a run that was not made as the launch says; it would compare the wrong thing.

    Raises:
        Incomparable: with what differs.
    """
    facts = differences.manifest(run)
    made = facts["launch"]
    expected = {
        "status": (facts["status"], "finished"),
        "steps": (facts["steps"], STEPS),
        "mode": (made["parallel_mode"][: len(launch.mode)], launch.mode),
        "device": (made["device"].partition(":")[0], "cuda" if launch.gpus else "cpu"),
        "processes": (made["world_size"], launch.processes or 1),
        "precision": (made["precision"], launch.precision),
        "steps before it was resumed": (facts["steps_before"] > 0, len(launch.stages) > 1),
    }
    if other := [
        f"{name} {is_}, expected {be}" for name, (is_, be) in expected.items() if is_ != be
    ]:
        raise Incomparable("; ".join(other))


@dataclass(frozen=True)
class Line:
    """One comparison: what was compared, how far apart, and how far it may be."""

    what: str
    difference: float
    tolerance: float

    @property
    def verified(self) -> bool:
        """Whether it is close enough; a difference that is no number is not."""
        return self.difference <= self.tolerance


Tolerances = dict[str, float]
#: Sums in another order.
SAME: Tolerances = {"losses": 1e-4, "weights": 1e-5, "rows": 1e-3}
#: Other kernels for everything.
OTHER_DEVICE: Tolerances = {"losses": 1e-3, "weights": 1e-4, "rows": 1e-2}
#: 8 and 11 bits of precision, and the first steps that fp16 skips until its scale fits.
HALF: Tolerances = {"losses": 5e-2, "weights": 5e-3, "rows": 1e-1}
COMPARISONS = {
    "losses": differences.in_losses,
    "weights": differences.in_weights,
    "rows": differences.in_rows,
}


def trained(
    launcher: Launcher, launch: Launch, reference: Launch, within: Tolerances
) -> list[Line]:
    """Compare two trainings."""
    run, other = launcher.train(launch), launcher.train(reference)
    return [Line(what, COMPARISONS[what](run, other), most) for what, most in within.items()]


def predicted(launcher: Launcher, launch: Launch, reference: Launch, model: Launch) -> list[Line]:
    """Compare what two launches of ``predict`` say with the model of one run."""
    run = launcher.train(model)
    tables = [launcher.predict(each, run) for each in (launch, reference)]
    return [Line("rows", differences.in_tables(*tables), OTHER_DEVICE["rows"])]


def diverged(launcher: Launcher, launch: Launch) -> list[Line]:
    """Check that a training whose weights explode is stopped, and that no checkpoint is broken."""
    with contextlib.suppress(Incomparable):  # its exit status is 1
        launcher.train(launch)
    run = launcher.directory / launch.name
    status = differences.manifest(run)["status"]
    step = int(re.findall(r"step (\d+)", differences.manifest(run)["failure"])[0])
    saved = [int(path.name.partition("-")[2]) for path in run.glob("checkpoint-*")]
    return [
        Line("status", float(status != "diverged"), 0.0),
        Line("checkpoints of it or later", sum(number >= step for number in saved), 0.0),
    ]


CPU = Launch("cpu", gpus=0)
ONE = Launch("one")
RESUMED = Launch("resumed", stages=INTERRUPTED)
DDP, FSDP = "DistributedDataParallel", "FullyShardedDataParallel"


@dataclass(frozen=True)
class Check:
    """What is verified, on how many GPUs at least.

    Attributes:
        name: As README has it.
        gpus: The fewest that it needs.
        measure: Given where to launch and how many GPUs to take, makes the lines of the table.
    """

    name: str
    gpus: int
    measure: Callable[[Launcher, int], list[Line]]


def _of(launch: Launch, reference: Launch, within: Tolerances) -> Callable[..., list[Line]]:
    return lambda launcher, _: trained(launcher, launch, reference, within)


def _on_all(name: str, mode: str, torchrun: bool = True, **more: Any) -> Callable[..., list[Line]]:
    def measure(launcher: Launcher, count: int) -> list[Line]:
        processes = count if torchrun else 0
        launch = Launch(name, mode, gpus=count, processes=processes, **more)
        return trained(launcher, launch, ONE, SAME)

    return measure


def _predict_on_all(launcher: Launcher, count: int) -> list[Line]:
    launch = Launch("predicted-on-all", gpus=count, processes=count)
    return predicted(launcher, launch, Launch("predicted-on-one"), ONE)


EXPLODES = ("--learning_rate=1e30", "--warmup_steps=0", "--save_strategy=steps", "--save_steps=1")
#: Everything that is verified on GPUs; README names the same.
CHECKS = (
    Check("one GPU in fp32 against the CPU", 1, _of(ONE, CPU, OTHER_DEVICE)),
    Check("bf16", 1, _of(Launch("bf16", precision="bf16"), ONE, HALF)),
    Check("fp16", 1, _of(Launch("fp16", precision="fp16"), ONE, HALF)),
    Check(
        "a loss that is not finite",
        1,
        lambda launcher, _: diverged(launcher, Launch("diverges", flags=EXPLODES)),
    ),
    Check("resume", 1, _of(RESUMED, ONE, SAME)),
    Check(
        "predict",
        1,
        lambda launcher, _: predicted(
            launcher, Launch("predicted-on-gpu"), Launch("predicted-on-cpu", gpus=0), ONE
        ),
    ),
    Check("torchrun with one process", 1, _of(Launch("nccl-1", processes=1), ONE, SAME)),
    Check(
        "FSDP with one process",
        1,
        _of(Launch("fsdp-1", FSDP, processes=1, flags=("--fsdp=true",)), ONE, SAME),
    ),
    Check("DataParallel", 2, _on_all("dp", "DataParallel", torchrun=False)),
    Check("DDP over NCCL", 2, _on_all("ddp", DDP)),
    Check("FSDP", 2, _on_all("fsdp", FSDP, flags=("--fsdp=true",))),
    Check("resume under DDP", 2, _on_all("ddp-resumed", DDP, stages=INTERRUPTED)),
    Check("predict under torchrun", 2, _predict_on_all),
)


def visible_gpus() -> list[str]:
    """Return the names of the GPUs, as in ``CUDA_VISIBLE_DEVICES``."""
    import torch

    numbers = [str(number) for number in range(torch.cuda.device_count())]
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return named[: len(numbers)] or numbers


def report(checks: Sequence[Check], launcher: Launcher, say: Callable[..., object]) -> int:
    """Run every check that the GPUs suffice for, and list the others.

    Returns:
        The exit status: 1 if a check failed.
    """
    failed = 0
    count = max(
        (n for n in range(1, len(launcher.visible) + 1) if GLOBAL_BATCH % n == 0), default=0
    )
    able = [check for check in checks if check.gpus <= count]
    row = "{:<32} {:<28} {:>10} {:>10}  {}".format
    if able:
        say(row("check", "compared", "difference", "tolerance", "result"))
    for check in able:
        try:
            for line in check.measure(launcher, count):
                figures = (f"{line.difference:.1e}", f"{line.tolerance:.1e}")
                result = "verified" if line.verified else "failed"
                failed += not line.verified
                say(row(check.name, line.what, *figures, result))
        except Incomparable as error:
            failed += 1
            say(row(check.name, "", "", "", f"failed: {error}"))
    if unable := [check for check in checks if check.gpus > count]:
        there = f"{len(launcher.visible)} GPU{'s' * (len(launcher.visible) != 1)}"
        say(f"unverified, on a machine with {there}:")
        for check in unable:
            say(f"  {check.name} (needs {check.gpus} GPU{'s' * (check.gpus > 1)})")
    return int(failed > 0)


def main() -> int:
    """Print the table."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    with tempfile.TemporaryDirectory() as directory:
        launcher = Launcher(Path(directory), visible_gpus())
        return report(CHECKS, launcher, functools.partial(print, flush=True))


if __name__ == "__main__":
    raise SystemExit(main())
