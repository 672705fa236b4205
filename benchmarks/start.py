"""Measure the seconds from the start of a process to its first step, on cached data.

    python benchmarks/start.py          # about two minutes

The stock script and the toolkit run in turns, each in one process and in two under torchrun.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from trees import ROOT, TORCHRUN, processor, run

ROWS, MAX_LENGTH, FIRST_STEP = 2000, 256, "first step after"
_RECIPE = f'''"""Reviews, until the first step."""

import sys
sys.path.insert(0, "{ROOT}/benchmarks")

from finetune import TextRecipe
from start import StopAtFirstStep


class Reviews(TextRecipe):
    """Reviews, good or bad."""

    dataset: str = "DATA"
    model: str = "embedded:minilm"
    max_length: int = {MAX_LENGTH}
    training = dict(global_batch_size=32, num_train_epochs=1)

    def trainer_kwargs(self, model=None, arguments=None):
        return {{**super().trainer_kwargs(model, arguments), "callbacks": [StopAtFirstStep()]}}
'''


def stop() -> None:
    """Print the age of this process on rank 0, and end it."""
    import psutil

    if int(os.environ.get("RANK", 0)) == 0:
        print(f"{FIRST_STEP} {time.time() - psutil.Process().create_time():.3f} s", flush=True)
    os._exit(0)


class StopAtFirstStep:
    """A callback that ends the process at its first step."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: stop() if name == "on_step_begin" else None


def main() -> None:
    """Print the median time of each case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stock", metavar="DATA", help=argparse.SUPPRESS)
    options = parser.parse_args()
    from finetune.data import embedded

    if options.stock:
        import stock

        stock.Clock = StopAtFirstStep  # type: ignore[assignment, misc]
        stock.train(options.stock, str(embedded.model_directory()), MAX_LENGTH, output_dir="stock")
    import datasets

    from finetune.data.sources import Source

    datasets.disable_progress_bars()
    print(processor())
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        rows = Source("embedded:imdb").load()["train"].shuffle(seed=1).select(range(ROWS))
        data = home / "reviews.parquet"
        labels = ["good" if label else "bad" for label in rows["label"]]
        rows.select_columns(["text"]).add_column("label", labels).to_parquet(data)
        recipe = home / "reviews.py"
        recipe.write_text(_RECIPE.replace("DATA", str(data)), encoding="utf-8")
        ways: dict[str, list[Any]] = {
            "stock": [Path(__file__).resolve(), "--stock", data],
            "toolkit": ["-m", "finetune", recipe],
        }
        ways |= {f"{way}, two": [*TORCHRUN, *words] for way, words in ways.items()}
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(options.rounds + 1):  # round 0 fills the caches
            for way, words in ways.items():
                output = run(words, home / "scratch").output
                if number:
                    seconds[way].append(float(output.rpartition(FIRST_STEP)[2].split()[0]))
    for way, turns in seconds.items():
        base = seconds["stock, two" if way.endswith("two") else "stock"]
        ratios = [mine / other for mine, other in zip(turns, base, strict=True)]
        seconds_of_way = statistics.median(turns)
        print(f"{way:16} {seconds_of_way:6.2f} s  {statistics.median(ratios):5.2f} of stock")


if __name__ == "__main__":
    sys.exit(main())
