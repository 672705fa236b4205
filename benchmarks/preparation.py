"""Compare preparing rows for training with ``datasets.map``: same tokenizer and processes.

    python benchmarks/preparation.py                  # 10,000, 100,000 and 650,000 rows; an hour
    python benchmarks/preparation.py --rows 10000

Rows are parts of the embedded reviews with 174 tokens on average. Each case runs in a new process
with an empty cache, except "second start", which has the cache of the first. Memory is what the
preparing process allocates after its imports.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import tempfile
import threading
import time
from pathlib import Path

from trees import processor, run

MAX_LENGTH = 256
#: Words of a row: the median, and the standard deviation of the logarithm.
WORDS, SPREAD = 105, 0.65
MAP, FIRST, SECOND, FEW = "datasets.map", "toolkit", "second start", "--train_samples 1000"


def compose(rows: int, path: Path) -> None:
    """Write a parquet file of texts with one of five labels."""
    import numpy as np
    import pandas as pd

    from finetune.data import embedded

    reviews = pd.read_csv(embedded.verified_path(embedded.REVIEWS))
    words = np.array(" ".join(reviews[reviews["source"] == "imdb"]["text"][:5000]).split(" "))
    generator = np.random.default_rng(0)
    sizes = np.clip(generator.lognormal(math.log(WORDS), SPREAD, rows).astype(int), 5, 900)
    starts = generator.integers(len(words) - 900, size=rows)
    texts = [" ".join(words[i : i + size]) for i, size in zip(starts, sizes, strict=True)]
    labels = [f"{number} stars" for number in generator.integers(1, 6, rows)]
    pd.DataFrame({"text": texts, "label": labels}).to_parquet(path, index=False)


class Memory(threading.Thread):
    """Measures the memory that this process has allocated, 20 times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.first = self.most = self._allocated()
        self.start()

    def run(self) -> None:
        """Measure until the process ends."""
        while True:
            self.most = max(self.most, self._allocated())
            time.sleep(0.05)

    def _allocated(self) -> float:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) / 2**10 for line in lines if line.startswith("RssAnon"))


def prepare(way: str, data: str) -> None:
    """Prepare the rows of a file in this process, and print seconds and MiB."""
    import datasets
    import joblib
    import transformers

    import finetune.checking.rows
    import finetune.data.tokenize
    import finetune.tasks.detection  # noqa: F401
    from finetune.data import embedded
    from finetune.recipe import catalog

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(embedded.model_directory()))
    few = {"train_samples": 1000, "eval_samples": 1000} if way == FEW else {}
    recipe = catalog.find("text")(
        dataset=data, model="embedded:minilm", max_length=MAX_LENGTH, **few
    )
    importlib.import_module("finetune.pipeline.train")  # imports are not measured
    rows = datasets.load_dataset("parquet", data_files=data, split="train") if way == MAP else None
    memory, started = Memory(), time.perf_counter()
    if rows is None:
        assert recipe.prepared
    else:
        rows.map(
            lambda batch: tokenizer(batch["text"], truncation=True, max_length=MAX_LENGTH),
            batched=True,
            num_proc=joblib.cpu_count(),
        )
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "memory": memory.most - memory.first}))


def main() -> None:
    """Print a table for each number of rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 650_000])
    parser.add_argument("--way", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        return prepare(*options.way)
    print(processor())
    with tempfile.TemporaryDirectory() as name:
        for rows in options.rows:
            data, base = Path(name) / f"{rows}.parquet", 0.0
            compose(rows, data)
            print(f"\n{rows:,} rows{'':20} s  times map    MiB")
            for way in (MAP, FIRST, SECOND, FEW):
                cache = Path(name) / f"{rows} {FIRST if way == SECOND else way}"
                line = run([Path(__file__).resolve(), "--way", way, data], cache).output
                result = json.loads(line.splitlines()[-1])
                seconds = result["seconds"]
                base = base or seconds
                ratio = seconds / base
                print(
                    f"{way:24} {seconds:8.1f}  {ratio:9.2f}  {result['memory']:5,.0f}", flush=True
                )


if __name__ == "__main__":
    main()
