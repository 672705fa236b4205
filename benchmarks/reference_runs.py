"""Reference runs of a tree of this repository, driven by its command line from the outside.

A tree is a checkout. Each training and each prediction is a process of its own, started from an
empty directory with `PYTHONPATH=TREE` and this interpreter.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image
from run_differences import read_table

#: Starts the command line of a tree without a switch for its kernels.
WITHOUT_KERNELS = '''
import sys
from finetune import cli
from finetune.cpu import allocator, attention, casts, dropout, exchange, gelu, unpadded
from finetune.predicting import engine

def nothing(*given, **named):
    """Change no model, and say so."""
    return False

allocator.keep_large_blocks = nothing
casts.share = engine.pack = nothing
for kernel in (attention, dropout, exchange, gelu, unpadded):
    kernel.use = nothing
raise SystemExit(cli.main())
'''


class Failed(Exception):
    """A process of one of the trees did not end well."""


@dataclass(frozen=True)
class Finished:
    """A process that ended well.

    Attributes:
        output: What it wrote to standard output and standard error.
        memory: Peak resident memory of its largest process, in MiB.
    """

    output: str
    memory: float


class Tree:
    """A checkout, run from the outside.

    Args:
        name: What the tables call it.
        path: Its root.
        scratch: An empty directory for everything that its processes write.
    """

    def __init__(self, name: str, path: Path, scratch: Path) -> None:
        self.name, self.path, self.scratch = name, path.resolve(), scratch
        scratch.mkdir(parents=True)
        (scratch / "without_kernels.py").write_text(WITHOUT_KERNELS, encoding="utf-8")
        self._number = 0
        found = self._run([sys.executable, "-c", "import finetune; print(finetune.__file__)"])
        if not Path(found.output.strip()).is_relative_to(self.path):
            raise Failed(f"{path} is no tree of this repository: {found.output.strip()}")
        help_text = self._run([sys.executable, "-m", "finetune", "sentiment", "--help"]).output
        self.has_switch = "--cpu_kernels" in help_text

    def run(
        self,
        *words: str | Path,
        kernels: bool = True,
        processes: int = 1,
        kill_at: Path | None = None,
    ) -> Finished:
        """Run one command of the command line.

        Args:
            *words: What is typed behind `python -m finetune`.
            kernels: Whether kernels for CPUs may be used.
            processes: How many torchrun starts; without it where it is one.
            kill_at: Kill the process as soon as this file exists.

        Raises:
            Failed: if its exit status is not 0, or it ended before it could be killed.
        """
        start: list[str | Path] = ["-m", "finetune"]
        if not kernels and self.has_switch:
            words = (*words, "--cpu_kernels", "off")
        elif not kernels:
            start = [self.scratch / "without_kernels.py"]
        launcher: list[str | Path] = [sys.executable]
        if processes > 1:
            launcher += ["-m", "torch.distributed.run", "--standalone"]
            launcher += [f"--nproc_per_node={processes}"]
        return self._run([*launcher, *start, *words], kill_at)

    def _run(self, command: Sequence[str | Path], kill_at: Path | None = None) -> Finished:
        self._number += 1
        log = self.scratch / f"{self._number}.log"
        (home := self.scratch / f"cwd-{self._number}").mkdir()
        environment = os.environ | {
            "PYTHONPATH": str(self.path),
            "HF_HOME": str(self.scratch / "cache"),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        with log.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(
                list(map(str, command)), cwd=home, env=environment, stdout=file, stderr=file
            )
            while kill_at is not None and not kill_at.exists() and process.poll() is None:
                time.sleep(0.01)
            if kill_at is not None:
                process.kill()
                if process.wait() == -signal.SIGKILL:
                    return Finished(log.read_text(encoding="utf-8"), 0)
                raise Failed(f"{self.name}: ended before {kill_at}\n{log.read_text()[-3000:]}")
            _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output = log.read_text(encoding="utf-8")
        if process.returncode:
            typed = " ".join(map(str, command))
            raise Failed(
                f"{self.name}: {typed}\nexit status {process.returncode}\n{output[-3000:]}"
            )
        return Finished(output, used.ru_maxrss / 2**10)


@dataclass(frozen=True)
class Reference:
    """A training and the prediction after it.

    Attributes:
        name: What the tables call it.
        recipe: Its name.
        precision: `fp32` or `bf16`, of training and prediction; empty for the default of each.
        flags: Of the training.
        processes: Of the training and of the prediction.
        resumed: Whether it is killed at its checkpoint in the middle, and resumed.
    """

    name: str
    recipe: str
    precision: str
    flags: tuple[str, ...]
    processes: int = 1
    resumed: bool = False


def references(steps: int) -> list[Reference]:
    """Return the reference runs.

    Args:
        steps: Of each; a third of them for the recipe with long rows.
    """
    short = ("--train_samples", "512", "--eval_samples", "200", "--max_steps", str(steps))
    long = ("--train_samples", "192", "--eval_samples", "100", "--max_steps", str(-(-steps // 3)))
    half = str(steps // 2)
    saving = ("--save_strategy", "steps", "--save_steps", half)
    saving += ("--eval_strategy", "steps", "--eval_steps", half)
    accumulated = (*long, "--gradient_accumulation_steps", "2")
    every = []
    for precision in ("fp32", "bf16"):
        every += [
            Reference(f"sentiment {precision}", "sentiment", precision, short),
            Reference(f"sentiment in two processes {precision}", "sentiment", precision, short, 2),
            Reference(f"sentiment resumed {precision}", "sentiment", precision, (*short, *saving),
                      resumed=True),
            Reference(f"yelp with accumulation {precision}", "yelp", precision, accumulated),
            Reference(f"mnist {precision}", "mnist", precision, short),
        ]  # fmt: skip
    return every


def train(
    tree: Tree, reference: Reference, directory: Path, kernels: bool
) -> tuple[Path, Finished]:
    """Train a reference run; return its directory, and what became of its process."""
    words = [reference.recipe, "--embedded", *reference.flags, *_precision(reference)]
    words += ["--logging_steps", "1", "--disable_tqdm", "true"]
    how: dict[str, Any] = {"kernels": kernels, "processes": reference.processes}
    run = directory / tree.name
    if reference.resumed:
        steps = reference.flags[reference.flags.index("--save_steps") + 1]
        tree.run(
            *words, "--output_dir", run, kill_at=run / f"checkpoint-{steps}/checkpoint.json", **how
        )
        words.append("--resume")
    return run, tree.run(*words, "--output_dir", run, **how)


def predict(
    tree: Tree, reference: Reference, run: Path, rows: Path, kernels: bool
) -> tuple[Path, Finished]:
    """Predict rows with the model of a run; return the file of the predictions."""
    output = rows.with_name(f"predicted-{tree.name}.csv")
    words = ["predict", run, rows, "--output", output, "--all_probabilities"]
    words += _precision(reference)
    return output, tree.run(*words, kernels=kernels, processes=reference.processes)


def _precision(reference: Reference) -> list[str]:
    return ["--precision", reference.precision] if reference.precision else []


def write_rows(run: Path, directory: Path, count: int | None = None) -> Path:
    """Write rows to predict: texts of the test set of ``run``, or images of noise without any.

    Args:
        run: A finished run.
        directory: Where a file or folder `rows` is written.
        count: How many; more texts than there are in the test set are pairs of them. None for all.
    """
    columns = read_table(run / "predictions.parquet")
    if "text" in columns:
        texts = columns["text"].tolist()
        pairs = (f"{one} {other}" for one in texts for other in texts)
        chosen = texts if count is None else [text for text, _ in zip(pairs, range(count))]  # noqa: B905
        file = directory / "rows.csv"
        pd.DataFrame({"text": chosen}).to_csv(file, index=False)
        return file
    generator = np.random.default_rng(0)
    (folder := directory / "rows").mkdir()
    for number in range(count or 50):
        pixels = generator.integers(256, size=(28, 28), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def speed_references(steps: int) -> list[Reference]:
    """Return the trainings to measure: long and short rows, in one process and in two."""
    quiet = ("--eval_samples", "100", "--eval_strategy", "no", "--load_best_model_at_end", "false")
    quiet += ("--save_strategy", "no", "--baseline", "false", "--max_steps", str(steps))
    short, long = ("--train_samples", "2048", *quiet), ("--train_samples", "1024", *quiet)
    return [
        Reference("yelp", "yelp", "bf16", long),
        Reference("sentiment", "sentiment", "bf16", short),
        Reference("yelp in two processes", "yelp", "bf16", long, 2),
        Reference("sentiment in two processes", "sentiment", "bf16", short, 2),
    ]
