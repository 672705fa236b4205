"""Check that training and prediction on GPUs equal those on one device (`make gpu-check`).

    python benchmarks/gpu_check.py              # at most 8 minutes on one GPU
    python benchmarks/gpu_check.py --rehearse   # without a GPU: what a CPU can run (2 minutes)

It needs no network: a small BERT with random weights is trained on random texts. Each check
compares step losses, weights, or the probabilities of the test rows, and prints lines with the
difference and its limit when it ends, the cheapest first. The last ones time BERT base against the
stock script. Checks that need more GPUs than the machine has are listed as unverified, without a
GPU all of them. The exit status is 1 if a check failed.

It runs from a checkout that is not installed. Without a network, carry the wheels that
`gpu_wheels.py` collects.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpu_speed
import numpy as np
import pandas as pd
import random_bert
from packaging.requirements import Requirement
from safetensors.numpy import load_file
from trees import ROOT
from trees import run as run_python

STEPS, GLOBAL_BATCH = 20, 32
LIMIT = 120  # seconds for a command, most of them for imports
#: 352 rows are 11 steps, so that training passes the end of an epoch. With SGD, without clipping
#: and dropout, a factor in the gradient changes the weights; a learning rate that is 10% higher
#: changes losses by 2e-2 and weights by 3e-4.
TRAINING: dict[str, Any] = {
    "train_samples": 352,
    "eval_samples": 100,
    "max_length": 32,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "head": "random",
    "optim": "sgd",
    "learning_rate": 0.02,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.0,
    "global_batch_size": GLOBAL_BATCH,
    "logging_steps": 1,
    "eval_strategy": "no",
    "load_best_model_at_end": False,
    "save_strategy": "steps",
    "save_steps": 10,
    "baseline": False,
    "disable_tqdm": True,
}
DDP, FSDP = "DistributedDataParallel", "FullyShardedDataParallel"


@dataclass(frozen=True)
class Launch:
    """One way to train or predict.

    Attributes:
        name: The name of the check and of the run directory.
        gpus: The GPUs needed: 0 for the CPU; with more than 1, all GPUs are used.
        torchrun: Whether torchrun starts a process for each GPU.
        mode: The start of ``parallel_mode`` in ``run.json``.
        precision: The precision of matrix products.
        options: Further options of the training.
        is_interrupted: Whether to stop after half of the steps, and resume.
        limits: The tolerances of losses, weights and probabilities: sums and kernels round
            differently.
    """

    name: str
    gpus: int = 1
    torchrun: bool = False
    mode: str = "one device"
    precision: str = "fp32"
    options: tuple[tuple[str, Any], ...] = ()
    is_interrupted: bool = False
    limits: tuple[float, float, float] = (1e-4, 1e-6, 1e-4)

    @property
    def is_command(self) -> bool:
        """Whether a process of its own trains; this one uses the first GPU only."""
        return self.torchrun or self.gpus > 1


CPU = Launch("CPU", gpus=0)
#: It is compared with the CPU, and all others with it.
ONE = Launch("one GPU in fp32 against the CPU", limits=(1e-3, 1e-5, 1e-3))
_BF16 = (1e-2, 2e-4, 2e-2)
_FP16 = (3e-2, 5e-4, 5e-2)  # it may skip a step, until its loss scale fits
_SHARDED = (("fsdp", True),)
IN_PROCESS = (
    ONE,
    Launch("bf16", precision="bf16", limits=_BF16),
    Launch("fp16", precision="fp16", limits=_FP16),
    Launch("resume", is_interrupted=True),
)
PREDICTION = Launch("predict")
EXPLOSION = Launch(
    "a loss that is not finite",
    options=(("learning_rate", 1e30), ("warmup_steps", 0), ("save_steps", 1)),
)
COMMANDS = (
    Launch("torchrun with one process", torchrun=True),
    Launch("FSDP with one process", torchrun=True, mode=FSDP, options=_SHARDED),
    Launch("DataParallel", gpus=2, mode="DataParallel"),
    Launch("DDP over NCCL", gpus=2, torchrun=True, mode=DDP),
    Launch("FSDP", gpus=2, torchrun=True, mode=FSDP, options=_SHARDED),
    Launch("resume under DDP", gpus=2, torchrun=True, mode=DDP, is_interrupted=True),
)
PREDICTION_UNDER_TORCHRUN = Launch("predict under torchrun", gpus=2, torchrun=True)
#: What a CPU has no support for.
NOT_REHEARSED = ("fp16", "FSDP with one process")
LAUNCHES = (*IN_PROCESS, PREDICTION, EXPLOSION, *COMMANDS, PREDICTION_UNDER_TORCHRUN)


class Check:
    """Runs checks in a directory and prints lines for each.

    Args:
        directory: The parent directory of the runs.
        gpus: The names of the GPUs, as in ``CUDA_VISIBLE_DEVICES``; none for a rehearsal.
    """

    def __init__(self, directory: Path, gpus: Sequence[str]) -> None:
        self.directory, self.gpus, self.failed = directory, gpus, 0
        self.started = time.perf_counter()
        model = random_bert.write_model(directory / "model", random_bert.SMALL)
        texts = random_bert.write_texts(directory / "texts.parquet", 700, 6, 30)
        self.data = {"dataset": str(texts), "model": str(model)}

    def run(self, launch: Launch) -> None:
        """Run a check, and print why if it cannot end."""
        with self.failure(launch.name):
            if launch in (PREDICTION, PREDICTION_UNDER_TORCHRUN):
                self.predict(launch)
            elif launch == EXPLOSION:
                self.explode()
            else:
                self.compare(launch, CPU if launch == ONE else ONE)

    @contextlib.contextmanager
    def failure(self, name: str) -> Iterator[None]:
        """Print an error as a failure of a check: the next ones may still pass."""
        try:
            yield
        except Exception as error:
            self.failed += 1
            print(f"{name:<32} FAILED: {type(error).__name__}: {error}", flush=True)

    def train(self, launch: Launch) -> Path:
        """Return the run directory; the first call trains it."""
        from finetune import Run

        run = self.directory / launch.name.replace(" ", "-")
        if run.exists():
            return run
        options = {**self.data, **TRAINING, **dict(launch.options)}
        options |= {"precision": launch.precision, "output_dir": str(run), "max_steps": STEPS}
        if launch.is_interrupted:
            self.start(launch, options | {"max_steps": STEPS // 2})
            options["resume_from_checkpoint"] = "last"
        self.start(launch, options)
        trained = Run.load(run).manifest.launch
        device = "cuda" if launch.gpus and self.gpus else "cpu"
        facts = [trained.parallel_mode, trained.device, trained.precision]
        expected = [launch.mode, device, launch.precision]
        if not all(map(str.startswith, facts, expected)):
            raise RuntimeError(f"trained as {facts}, expected {expected}")
        return run

    def start(self, launch: Launch, options: dict[str, Any]) -> None:
        """Train in this process, or by a command."""
        import finetune

        if launch.is_command:
            self.command(launch, "text", *flags(options))
        else:
            finetune.train("text", **options, use_cpu=launch.gpus == 0 or not self.gpus)

    def command(self, launch: Launch, *words: str) -> None:
        """Run ``finetune WORDS`` with the launcher and GPUs of ``launch``."""
        count = len(self.gpus) if launch.gpus > 1 else launch.gpus
        launcher = ["torch.distributed.run", "--standalone", f"--nproc_per_node={count}", "-m"]
        words = (*(launcher if launch.torchrun else ()), "finetune", *words)
        devices = ",".join(self.gpus[:count])
        run_python(["-m", *words], self.directory, devices=devices, limit=LIMIT)

    def compare(self, launch: Launch, reference: Launch) -> None:
        """Compare losses, weights and probabilities of two trainings."""
        run, other = self.train(launch), self.train(reference)
        tables = [pd.read_parquet(path / "predictions.parquet") for path in (run, other)]
        differences = (in_losses(run, other), in_weights(run, other), in_tables(*tables))
        for what, difference, limit in zip(
            ("losses", "weights", "probabilities"), differences, launch.limits, strict=True
        ):
            self.show(launch.name, what, difference, limit)

    def predict(self, launch: Launch) -> None:
        """Compare predictions of the first run with those of its model on the CPU."""
        import finetune

        run = self.train(ONE)
        texts, output = self.directory / "inputs.parquet", self.directory / f"{launch.name}.parquet"
        pd.read_parquet(run / "predictions.parquet", columns=["text"]).to_parquet(texts)
        options = {"all_probabilities": True, "precision": "fp32"}
        if launch.is_command:
            words = ["predict", str(run), str(texts), f"--output={output}"]
            self.command(launch, *words, "--all_probabilities", "--precision=fp32")
        else:
            finetune.predict_file(run, texts, output, **options)
        table = pd.read_parquet(output)
        difference = in_tables(table, by_hand(run, table["text"].tolist()))
        self.show(launch.name, "probabilities", difference, ONE.limits[2])

    def explode(self) -> None:
        """Check that a training with exploding weights stops and all checkpoints are finite."""
        from finetune import Diverged, Run

        with contextlib.suppress(Diverged):
            self.train(EXPLOSION)
        run = self.directory / EXPLOSION.name.replace(" ", "-")
        is_wrong = Run.load(run).manifest.status != "diverged"
        self.show(EXPLOSION.name, "status", float(is_wrong), 0.0)
        for path in run.glob("checkpoint-*/model.safetensors"):
            is_broken = not all(np.isfinite(w).all() for w in load_file(path).values())
            self.show(EXPLOSION.name, path.parent.name, float(is_broken), 0.0)

    def measure(self, case: gpu_speed.Case) -> None:
        """Print the speed of training; the figures of a rehearsal mean nothing."""
        with self.failure(case.name):
            speed = gpu_speed.measure(case if self.gpus else case.shrunk(), self.directory)
            speed = speed if self.gpus else "rehearsed"
            print(f"{case.name:<32} {speed}  {self.seconds():.0f} s", flush=True)

    def show(self, name: str, what: str, difference: float, limit: float) -> None:
        """Print a line with the result; a difference of NaN is a failure."""
        result = "verified" if self.gpus else "rehearsed"
        if not difference <= limit:
            self.failed += 1
            result = "FAILED"
        print(
            f"{name:<32} {what:<14} {difference:>8.1e} {limit:>8.1e}  {result:<9}"
            f" {self.seconds():>4.0f} s",
            flush=True,
        )

    def seconds(self) -> float:
        """Return the time since the start."""
        return time.perf_counter() - self.started


def flags(options: dict[str, Any]) -> list[str]:
    """Return options as flags of the command line, like ``--baseline=false``."""
    words = {name: str(value) for name, value in options.items()}
    for name, value in options.items():
        if isinstance(value, bool):
            words[name] = words[name].lower()
    return [f"--{name}={word}" for name, word in words.items()]


def by_hand(run: Path, texts: list[str]) -> pd.DataFrame:
    """Return the texts and the probabilities of a run's model, computed by transformers on the CPU.

    The columns are those of ``predict --all_probabilities``.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(run).eval()
    tokenizer = AutoTokenizer.from_pretrained(run)
    batch = tokenizer(texts, truncation=True, max_length=TRAINING["max_length"], padding=True)
    with torch.no_grad():
        logits = model(**batch.convert_to_tensors("pt")).logits
    names = [f"probability of {model.config.id2label[number]}" for number in range(2)]
    table = pd.DataFrame(logits.softmax(-1).numpy(), columns=names)
    table.insert(0, "text", texts)
    return table


def read_losses(run: Path) -> dict[int, float]:
    """Return the logged loss of each step."""
    from finetune import Run

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


def in_tables(ours: pd.DataFrame, theirs: pd.DataFrame) -> float:
    """Return the largest difference of a probability.

    Predicted labels are not compared, as a row near the decision boundary may have either.
    """
    if ours["text"].tolist() != theirs["text"].tolist() or ours.empty:
        raise RuntimeError(f"different rows: {ours.shape} and {theirs.shape}")
    names = [name for name in theirs if name.startswith("probability of ")]
    if not names:
        raise RuntimeError(f"no probabilities: {list(theirs)}")
    return float(np.abs(ours[names].to_numpy() - theirs[names].to_numpy()).max())


def unmet_requirements() -> tuple[list[str], list[str]]:
    """Return what `pyproject.toml` requires and is missing, and what has another version."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    missing, other = [], []
    for text in content["project"]["dependencies"]:
        requirement = Requirement(text)
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(text)
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            other.append(f"{text} (found {version})")
    return missing, other


def visible_gpus() -> list[str]:
    """Return the names of the largest number of GPUs that divides the global batch."""
    import torch

    count = torch.cuda.device_count()
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = named[:count] or [str(number) for number in range(count)]
    return names[: max((n for n in range(1, count + 1) if GLOBAL_BATCH % n == 0), default=0)]


def silence_libraries() -> None:
    """Turn off progress bars and warnings, which would be between the results."""
    import datasets
    from transformers.utils import logging

    datasets.disable_progress_bars()
    logging.disable_progress_bar()
    logging.set_verbosity_error()


def main() -> int:
    """Run all checks, print a table and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, run on the CPU")
    options = parser.parse_args()
    gpus = visible_gpus()
    unverified = [launch for launch in LAUNCHES if launch.gpus > len(gpus)]
    missing, other = unmet_requirements()
    if missing:
        print(f"missing, see benchmarks/gpu_wheels.py: {', '.join(missing)}")
        return 1
    if other:
        print(f"not the required versions: {', '.join(other)}", flush=True)
    failed = 0
    if gpus or options.rehearse:
        with tempfile.TemporaryDirectory() as directory:
            failed = run_checks(Path(directory), gpus)
    if unverified or not gpus:
        print(f"unverified, with {len(gpus)} GPUs:")
    for launch in unverified:
        print(f"  {launch.name} (needs {launch.gpus})")
    if not gpus:
        for case in gpu_speed.CASES:
            print(f"  {case.name} (needs 1)")
    return int(failed > 0)


def run_checks(directory: Path, gpus: Sequence[str]) -> int:
    """Run what these GPUs can run, or a CPU if there are none; return the number of failures."""
    # this process trains on one GPU; the libraries read these variables when they are imported
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[:1])
    os.environ["HF_HOME"] = str(directory / "cache")
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    sys.path.insert(0, str(ROOT))
    silence_libraries()
    check = Check(directory, gpus)
    for launch in LAUNCHES:
        is_possible = launch.gpus <= len(gpus)
        if not gpus:
            is_possible = launch.gpus == 1 and launch.name not in NOT_REHEARSED
        if is_possible:
            check.run(launch)
    for case in gpu_speed.CASES:
        check.measure(case)
    return check.failed


if __name__ == "__main__":
    sys.exit(main())
