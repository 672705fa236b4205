"""Check that training and prediction on GPUs equal those on one device (`make gpu-check`).

    python benchmarks/gpu_check.py              # a few minutes on two GPUs

Each check runs the command line and compares run directories: step losses, weights, and the
probabilities of the test rows. Checks that need more GPUs than the machine has are listed as
unverified, without a GPU all of them. The exit status is 1 if a check failed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from safetensors.numpy import load_file
from trees import run as run_python

from finetune import Run

STEPS, GLOBAL_BATCH = 20, 32
#: Real sentences and MiniLM; 352 rows are 11 steps, so that training passes the end of an epoch.
#: With SGD, without clipping and dropout, a factor in the gradient changes the weights.
TRAINING = f"""sentiment --embedded --train_samples=352 --eval_samples=200 --max_length=64
--hidden_dropout=0 --attention_dropout=0 --optim=sgd --learning_rate=0.1 --max_grad_norm=0
--lr_scheduler_type=constant --global_batch_size={GLOBAL_BATCH} --logging_steps=1 --no_baseline
--eval_strategy=no --load_best_model_at_end=false --save_strategy=steps --save_steps=10""".split()
DDP, FSDP = "DistributedDataParallel", "FullyShardedDataParallel"


@dataclass(frozen=True)
class Launch:
    """One way to train or predict."""

    name: str  # the name of the check and of the run directory
    gpus: int = 1  # the GPUs needed: 0 for the CPU; with more than 1, all GPUs are used
    torchrun: bool = False  # whether torchrun starts a process for each GPU
    mode: str = "one device"  # the start of ``parallel_mode`` in ``run.json``
    precision: str = "fp32"  # the precision of matrix products
    flags: tuple[str, ...] = ()
    interrupted: bool = False  # whether to stop after half of the steps, and resume
    #: The tolerances of losses, weights and probabilities: sums and kernels round differently.
    within: tuple[float, float, float] = (1e-4, 1e-5, 1e-3)


CPU = Launch("CPU", gpus=0)
#: It is compared with the CPU, and all others with it.
ONE = Launch("one GPU in fp32 against the CPU", within=(1e-3, 1e-4, 1e-2))
_HALF = (5e-2, 5e-3, 1e-1)  # 8 or 11 bits of precision; fp16 skips steps until its loss scale fits
LAUNCHES = (
    Launch("bf16", precision="bf16", within=_HALF),
    Launch("fp16", precision="fp16", within=_HALF),
    Launch("resume", interrupted=True),
    Launch("torchrun with one process", torchrun=True),
    Launch("FSDP with one process", torchrun=True, mode=FSDP, flags=("--fsdp=true",)),
    Launch("DataParallel", gpus=2, mode="DataParallel"),
    Launch("DDP over NCCL", gpus=2, torchrun=True, mode=DDP),
    Launch("FSDP", gpus=2, torchrun=True, mode=FSDP, flags=("--fsdp=true",)),
    Launch("resume under DDP", gpus=2, torchrun=True, mode=DDP, interrupted=True),
)
EXPLODES = Launch(
    "a loss that is not finite",
    flags=("--learning_rate=1e30", "--warmup_steps=0", "--save_steps=1"),
)
PREDICTIONS = (Launch("predict"), Launch("predict under torchrun", gpus=2, torchrun=True))


class Check:
    """Runs checks in a directory and prints a line for each.

    Args:
        directory: The parent directory of the runs.
        gpus: The names of the GPUs, as in ``CUDA_VISIBLE_DEVICES``.
    """

    def __init__(self, directory: Path, gpus: Sequence[str]) -> None:
        self.directory, self.gpus, self.failed = directory, gpus, 0

    def start(self, launch: Launch, *words: str) -> None:
        """Run ``finetune WORDS`` with the launcher and GPUs of ``launch``."""
        count = len(self.gpus) if launch.gpus > 1 else launch.gpus
        launcher = ["torch.distributed.run", "--standalone", f"--nproc_per_node={count}", "-m"]
        words = [*(launcher if launch.torchrun else ()), "finetune", *words]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus[:count])
        run_python(["-m", *words], self.directory)

    def train(self, launch: Launch) -> Path:
        """Return the run directory; the first call trains it."""
        run = self.directory / launch.name.replace(" ", "-")
        if run.exists():
            return run
        words = [*TRAINING, *launch.flags, f"--precision={launch.precision}", f"--output_dir={run}"]
        if launch.interrupted:
            self.start(launch, *words, f"--max_steps={STEPS // 2}")
            words.append("--resume_from_checkpoint=last")
        self.start(launch, *words, f"--max_steps={STEPS}")
        trained = Run.load(run).manifest.launch
        facts = [trained["parallel_mode"], trained["device"], trained["precision"]]
        expected = [launch.mode, "cuda" if launch.gpus else "cpu", launch.precision]
        if not all(map(str.startswith, facts, expected)):
            raise RuntimeError(f"trained as {facts}, expected {expected}")
        return run

    def compare(self, launch: Launch, reference: Launch) -> None:
        """Compare losses, weights and probabilities of two trainings."""
        run, other = self.train(launch), self.train(reference)
        tables = [path / "predictions.parquet" for path in (run, other)]
        differences = (in_losses(run, other), in_weights(run, other), in_tables(*tables))
        for what, difference, limit in zip(
            ("losses", "weights", "rows"), differences, launch.within, strict=True
        ):
            self.show(launch.name, what, difference, limit)

    def predict(self, launch: Launch) -> Path:
        """Return a file with the predictions of the reference model for the test texts."""
        texts, output = self.directory / "texts.parquet", self.directory / f"{launch.name}.parquet"
        run = self.train(ONE)
        pd.read_parquet(run / "predictions.parquet", columns=["text"]).to_parquet(texts)
        flags = ["--all_probabilities", "--precision=fp32", f"--output={output}"]
        self.start(launch, "predict", str(run), str(texts), *flags)
        return output

    def explode(self) -> None:
        """Check that a training with exploding weights stops and all checkpoints are finite."""
        with contextlib.suppress(RuntimeError):  # the exit status is not 0
            self.train(EXPLODES)
        run = self.directory / EXPLODES.name.replace(" ", "-")
        is_wrong = Run.load(run).manifest.status != "diverged"
        self.show(EXPLODES.name, "status", float(is_wrong), 0.0)
        for path in run.glob("checkpoint-*/model.safetensors"):
            is_broken = not all(np.isfinite(w).all() for w in load_file(path).values())
            self.show(EXPLODES.name, path.parent.name, float(is_broken), 0.0)

    def show(self, name: str, what: str, difference: float, limit: float) -> None:
        """Print a line with the result; a difference of NaN is a failure."""
        is_verified = difference <= limit
        self.failed += not is_verified
        result = "verified" if is_verified else "FAILED"
        print(f"{name:<32} {what:<14} {difference:>8.1e} {limit:>8.1e}  {result}", flush=True)


def read_losses(run: Path) -> dict[int, float]:
    """Return the logged loss of each step."""
    history = Run.load(run).manifest.history
    return {entry["step"]: entry["loss"] for entry in history if "loss" in entry}


def in_losses(run: Path, reference: Path) -> float:
    """Return the largest difference of the logged loss of a step."""
    ours, theirs = read_losses(run), read_losses(reference)
    if len(ours) != STEPS or ours.keys() != theirs.keys():
        raise RuntimeError(f"losses of the steps {sorted(ours)} and {sorted(theirs)}")
    return max(abs(ours[step] - theirs[step]) for step in ours)


def in_weights(run: Path, reference: Path) -> float:
    """Return the norm of the difference of all weights, divided by the reference's norm."""
    ours, theirs = (load_file(path / "model.safetensors") for path in (run, reference))
    if ours.keys() != theirs.keys():
        raise RuntimeError(f"different names of weights: {sorted(ours.keys() ^ theirs.keys())}")
    names = sorted(ours)
    ours, theirs = (
        np.concatenate([weights[name].ravel() for name in names]).astype(np.float64)
        for weights in (ours, theirs)
    )
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def in_tables(file: Path, reference: Path) -> float:
    """Return the largest difference of a probability.

    Predicted labels are not compared, as a row near the decision boundary may have either.
    """
    ours, theirs = (pd.read_parquet(path) for path in (file, reference))
    if list(ours) != list(theirs) or [*ours["text"]] != [*theirs["text"]] or ours.empty:
        raise RuntimeError(f"different columns or rows: {ours.shape} and {theirs.shape}")
    numbers = [name for name in ours if pd.api.types.is_float_dtype(ours[name])]
    return float(np.abs(ours[numbers].to_numpy() - theirs[numbers].to_numpy()).max())


def visible_gpus() -> list[str]:
    """Return the names of the largest number of GPUs that divides the global batch."""
    import torch

    count = torch.cuda.device_count()
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = named[:count] or [str(number) for number in range(count)]
    return names[: max((n for n in range(1, count + 1) if GLOBAL_BATCH % n == 0), default=0)]


def main() -> int:
    """Run all checks, print a table and return the exit status."""
    with tempfile.TemporaryDirectory() as directory:
        check = Check(Path(directory), visible_gpus())
        unverified = []
        for launch in (ONE, *LAUNCHES, EXPLODES, *PREDICTIONS):
            if launch.gpus > len(check.gpus):
                unverified.append(f"  {launch.name} (needs {launch.gpus})")
                continue
            try:
                if launch is EXPLODES:
                    check.explode()
                elif launch in PREDICTIONS:
                    tables = check.predict(launch), check.predict(CPU)
                    check.show(launch.name, "rows", in_tables(*tables), ONE.within[2])
                else:
                    check.compare(launch, CPU if launch is ONE else ONE)
            except RuntimeError as error:
                check.failed += 1
                print(f"{launch.name:<32} FAILED: {error}", flush=True)
    if unverified:
        print(f"unverified, with {len(check.gpus)} GPUs:", *unverified, sep="\n")
    return int(check.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
