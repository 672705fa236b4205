"""How long it takes from the start of a process to its first step, on data that is cached.

    python benchmarks/start.py          # about two minutes

Processes take turns that only import what everybody must, that run the stock script, and that run
the toolkit: each alone, and as two workers of torchrun, counted from the start of the worker. Each
says when it was ready; the start of a process is what the operating system says.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROWS, MAX_LENGTH = 2000, 256
IMPORTS, IN_TWO = "imports alone", ", two workers of torchrun"
_READY = "FINETUNE_BENCHMARK_READY"
_RECIPE = '''
"""Reviews, until the first step."""

from benchmarks.start import StopAtFirstStep
from finetune import TextRecipe


class Reviews(TextRecipe):
    """Reviews, good or bad."""

    dataset: str = {data!r}
    model: str = "embedded:minilm"
    max_length: int = {max_length}
    training = dict(global_batch_size=32, num_train_epochs=1)

    def trainer_kwargs(self, model=None):
        return {{**super().trainer_kwargs(model), "callbacks": [StopAtFirstStep()]}}
'''


class StopAtFirstStep:
    """A callback of either trainer: notes the time and ends the process."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return self._end if name == "on_step_begin" else self._go_on

    def _go_on(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        pass

    def _end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        ready()


def ready() -> None:
    """Write how long this process has been there, and end it; rank 0 only writes."""
    import psutil

    took = time.time() - psutil.Process().create_time()
    if int(os.environ.get("RANK", 0)) == 0:
        Path(os.environ[_READY]).write_text(json.dumps(took))
    os._exit(0)


def imports() -> None:
    """Import what every script of this kind imports."""
    import datasets  # noqa: F401
    from transformers import Trainer  # noqa: F401

    ready()


def stock(data: str) -> None:
    """Run the tutorial's script."""
    from datasets import load_dataset

    from benchmarks import stock
    from finetune.data import embedded

    trainer = stock.trainer(
        str(embedded.model_directory()),
        load_dataset("parquet", data_files=data, split="train"),
        MAX_LENGTH,
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=32,
        callbacks=[StopAtFirstStep()],
    )
    trainer.train()


def measure(rounds: int) -> dict[str, float]:
    """Median seconds of each kind."""
    import datasets

    from finetune.data.sources import Source

    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        rows = Source("embedded:imdb").load()["train"].shuffle(seed=1).select(range(ROWS))
        data = home / "reviews.parquet"
        datasets.Dataset.from_dict({k: rows[k][:] for k in ("text", "label")}).to_parquet(data)
        recipe = home / "reviews.py"
        recipe.write_text(_RECIPE.format(data=str(data), max_length=MAX_LENGTH))
        this, ours = [str(Path(__file__))], ["-m", "finetune", str(recipe)]
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
        kinds = {
            IMPORTS: [*this, "--imports"],
            "stock": [*this, "--stock", str(data)],
            "ours": ours,
            f"{IMPORTS}{IN_TWO}": [*torchrun, *this, "--imports"],
            f"stock{IN_TWO}": [*torchrun, *this, "--stock", str(data)],
            f"ours{IN_TWO}": [*torchrun, *ours],
        }
        return timed(kinds, home, rounds)


def timed(kinds: Mapping[str, Sequence[str]], home: Path, rounds: int) -> dict[str, float]:
    """Median seconds until each kind of process calls :func:`ready`.

    Args:
        kinds: By name, what Python is called with.
        home: Where they run and cache.
        rounds: Turns that count; one before them fills the caches.
    """
    house = Path(__file__).resolve().parent.parent
    environment = {
        **os.environ,
        "PYTHONPATH": f"{house}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "HF_HOME": str(home / "cache"),
        "HF_HUB_OFFLINE": "1",
        _READY: str(home / "ready"),
    }
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(1 + rounds):
        for kind, words in kinds.items():
            subprocess.run(
                [sys.executable, *words],
                cwd=home,
                env=environment,
                check=True,
                capture_output=True,
            )
            if turn:
                found[kind].append(json.loads((home / "ready").read_text()))
    return {kind: statistics.median(seconds) for kind, seconds in found.items()}


def main() -> None:
    """Print them, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--imports", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--stock", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.imports:
        imports()
    if given.stock:
        stock(given.stock)
    for kind, seconds in measure(given.rounds).items():
        print(f"{kind:40}{seconds:6.2f} s")


if __name__ == "__main__":
    main()
