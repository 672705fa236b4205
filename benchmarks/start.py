"""From the start of a process to its first training step, on cached data.

Processes take turns that only import what every script does, that run the stock script, and that
run the toolkit: alone, and as two workers of torchrun. The start of a process is what the operating
system says.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from turns import ROOT

IN_TWO, MAX_LENGTH, ROWS = ", two workers of torchrun", 256, 2000
READY = "FINETUNE_BENCHMARK_READY"
RECIPE = f'''
"""Reviews, until the first step."""

import sys

sys.path.append("{Path(__file__).parent}")
from start import StopAtFirstStep

from finetune import TextRecipe


class Reviews(TextRecipe):
    """Reviews, good or bad."""

    training = dict(global_batch_size=32, num_train_epochs=1)

    def trainer_kwargs(self, model=None):
        return {{**super().trainer_kwargs(model), "callbacks": [StopAtFirstStep()]}}
'''


class StopAtFirstStep:
    """A callback of either trainer that ends the process."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return end if name == "on_step_begin" else (lambda *arguments, **others: None)


def end(*arguments: Any, **others: Any) -> None:
    """Write how old this process is, on rank 0, and end it."""
    import psutil

    seconds = time.time() - psutil.Process().create_time()
    if int(os.environ.get("RANK", 0)) == 0:
        Path(os.environ[READY]).write_text(json.dumps(seconds))
    os._exit(0)


def measure(rounds: int, other: Path | None) -> list[dict[str, Any]]:
    """Return a line for each way, medians of the rounds after one that fills the caches."""
    from training import write_rows

    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        write_rows("imdb", ROWS, file := home / "reviews.parquet")
        (home / "reviews.py").write_text(RECIPE)
        script = str(Path(__file__))
        toolkit = ["-m", "finetune", str(home / "reviews.py"), f"--dataset={file}"]
        toolkit += ["--model=embedded:minilm", f"--max_length={MAX_LENGTH}"]
        trees = {"toolkit": ROOT} | ({"toolkit of the other tree": other} if other else {})
        ways: dict[str, tuple[list[str], Path]] = {
            "imports alone": ([script], ROOT),
            "stock": ([script, str(file)], ROOT),
            **{name: (toolkit, tree) for name, tree in trees.items()},
        }
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
        ways |= {f"{name}{IN_TWO}": ([*torchrun, *way], tree) for name, (way, tree) in ways.items()}
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(1 + rounds):
            for name, (words, tree) in ways.items():
                took = start(words, tree, home)
                seconds[name] += [took] * (number > 0)
    medians = {name: statistics.median(took) for name, took in seconds.items()}
    return [
        {
            "case": f"start to first step, {ROWS:,} cached reviews",
            "way": name,
            "s": median,
            "s beyond the imports": median - medians["imports alone" + IN_TWO * (IN_TWO in name)],
            "times stock": median / medians["stock" + IN_TWO * (IN_TWO in name)],
        }
        for name, median in medians.items()
    ]


def start(words: list[str], tree: Path, home: Path) -> float:
    """Return the seconds until a process with these words calls :func:`end`."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "HF_HOME": str(home / "cache"),
        "HF_HUB_OFFLINE": "1",
        READY: str(home / "ready"),
    }
    subprocess.run(
        [sys.executable, *words], cwd=home, env=environment, check=True, capture_output=True
    )
    return float((home / "ready").read_text())


if __name__ == "__main__":
    import datasets  # noqa: F401
    from transformers import Trainer  # noqa: F401

    if not sys.argv[1:]:
        end()
    from training import stock_trainer

    options = {"output_dir": tempfile.mkdtemp(), "per_device_train_batch_size": 32}
    stock_trainer(sys.argv[1], MAX_LENGTH, [StopAtFirstStep()], **options).train()
