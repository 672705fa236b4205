"""Preparation at scale against `datasets.map` alone: seconds, memory, and how both grow.

    python benchmarks/preparation.py                # 10,000 to 650,000 rows, half an hour
    python benchmarks/preparation.py 10000 100000   # some minutes

Rows of about 174 tokens are composed from the embedded reviews. Each way runs in a process of its
own, counted from the end of its imports: ours reads, checks, splits and tokenizes; the other only
maps the tokenizer over rows that are there, with as many processes. A second start finds
everything in the cache, and so does one that wants a thousand rows of training, but for those.
Processor seconds are of all processes of a way. Memory is that of the process that prepares: what
it holds beyond its imports, and at its peak with the pages of files that it has mapped, which the
system takes back where others need the memory.

Then two ranks of `torchrun` train one step, with a process group that waits less than preparation
takes. What preparation took is the difference to the same again, which finds all in the cache.
"""

import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROWS = (10_000, 100_000, 650_000)
MAX_LENGTH = 256
#: Words of a row: the median and the spread of their logarithm; 174 tokens on average.
_WORDS, _SPREAD = 105, 0.65
OURS, SECOND, MAP = "ours", "ours, second start", "datasets.map alone"
FEW = "ours, --train_samples 1000"
WAYS = (MAP, OURS, SECOND, FEW)
CASE = "preparation, rows of 174 tokens, cost by rows"
#: How long the process group of two ranks waits, and the rows that they prepare meanwhile.
TIMEOUT, _ROWS_OF_TWO = 10, ROWS[-1]
RANKS = f"two ranks, --ddp_timeout {TIMEOUT}, {_ROWS_OF_TWO:,} rows"
#: Of a size from which on one round is enough, as it takes minutes.
_LARGE = 300_000
_MEMORY = "MiB beyond imports"
Line = dict[str, Any]


def measure(rounds: int, sizes: tuple[int, ...] = ROWS) -> list[Line]:
    """Return a line for each way and number of rows, medians of the rounds."""
    lines: list[Line] = []
    alone = math.nan
    with tempfile.TemporaryDirectory() as name:
        for rows in sizes:
            data = compose(rows, Path(name) / f"{rows}.parquet")
            turns = 1 if rows >= _LARGE else rounds
            found = [_round(data, Path(name) / f"{rows}-{turn}") for turn in range(turns)]
            for way in WAYS:
                each = [turn[way] for turn in found]
                median = {key: statistics.median(one[key] for one in each) for key in each[0]}
                ratios = [turn[way]["s"] / turn[MAP]["s"] for turn in found]
                lines.append(
                    {
                        "case": CASE,
                        "way": f"{way}, {rows:,} rows",
                        **median,
                        "times map, round by round": statistics.median(ratios),
                        "exponent": _exponent(lines, way, rows, median, "s"),
                        "exponent of memory": _exponent(lines, way, rows, median, _MEMORY),
                    }
                )
                alone = median["processor s"] if way == OURS else alone
            if rows == _ROWS_OF_TWO:
                lines.append(_of_two_ranks(data, Path(name), alone))
    return lines


def compose(rows: int, path: Path) -> Path:
    """Write so many texts with one of five labels, made of parts of the embedded reviews."""
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    from finetune.data import embedded

    reviews = pd.read_csv(embedded.verified_path(embedded.REVIEWS))
    words = [text.split() for text in reviews[reviews["source"] == "imdb"]["text"]]
    generator = np.random.default_rng(0)
    sizes = np.clip(generator.lognormal(math.log(_WORDS), _SPREAD, rows).astype(int), 5, 900)
    texts = []
    for size in sizes:
        text: list[str] = []
        while len(text) < size:
            review = words[generator.integers(len(words))]
            start = generator.integers(max(1, len(review) - 5))
            text += review[start : start + size - len(text)]
        texts.append(" ".join(text))
    labels = [f"{number} stars" for number in generator.integers(1, 6, rows)]
    pq.write_table(pa.table({"text": texts, "label": labels}), path)
    return path


def _exponent(
    lines: list[Line], way: str, rows: int, now: dict[str, float], what: str
) -> float | str:
    """Return the power of the rows with which a figure grew since the smallest size."""
    earlier = [line for line in lines if line["way"].rpartition(", ")[0] == way]
    if not earlier:
        return ""
    first = int(earlier[0]["way"].rpartition(", ")[2].removesuffix(" rows").replace(",", ""))
    return math.log(now[what] / earlier[0][what]) / math.log(rows / first)


def _of_two_ranks(data: Path, home: Path, alone: float) -> Line:
    """Return what preparation takes two ranks whose process group waits less.

    Args:
        data: Rows that nothing is cached of below ``home``.
        home: A directory.
        alone: Processor seconds of one process.
    """
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    words += ["-m", "finetune", "text", "--dataset", str(data), "--model", "embedded:minilm"]
    words += ["--max_length", str(MAX_LENGTH), "--max_steps", "1", "--eval_samples", "100"]
    words += ["--no_baseline", "--ddp_timeout", str(TIMEOUT)]
    took = []
    for _ in range(2):
        started, processor = time.perf_counter(), _processor()
        subprocess.run(
            [*words, "--output_dir", str(home / "two")],
            env=_environment(home / "two-ranks"),
            check=True,
            stdout=subprocess.DEVNULL,
        )
        took.append((time.perf_counter() - started, _processor() - processor))
    seconds, processor = (first - second for first, second in zip(*took, strict=True))
    return {
        "case": f"{CASE}, two ranks",
        "way": RANKS,
        "s": seconds,
        "processor s": processor,
        "times one process": processor / alone,
    }


def _environment(home: Path) -> dict[str, str]:
    """Return that of a process with caches of its own."""
    house = Path(__file__).resolve().parent.parent
    return {
        **os.environ,
        "PYTHONPATH": f"{house}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
    }


def _round(data: Path, home: Path) -> dict[str, dict[str, float]]:
    """Return what each way took, once."""
    found = {}
    for way in WAYS:
        done = subprocess.run(
            [sys.executable, __file__, "--way", way, str(data)],
            env=_environment(home),
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        found[way] = json.loads(done.stdout.splitlines()[-1])
    return found


def _serve(way: str, data: str) -> None:
    """Do it once in this process, and print what it took."""
    import datasets
    import joblib
    import transformers

    import finetune.checking.tiers
    import finetune.data.tokenize
    import finetune.tasks.kinds  # noqa: F401
    from finetune.data import embedded
    from finetune.recipe import catalog

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    if way == MAP:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(embedded.model_directory()))
        rows = datasets.load_dataset("parquet", data_files=data, split="train")
    else:
        few = {"train_samples": 1000, "eval_samples": 1000} if way == FEW else {}
        given = dict(dataset=data, model="embedded:minilm", max_length=MAX_LENGTH, **few)
        chosen = catalog.find("text")(**given)
        chosen.processing_class()
    before, most, started, processor = _resident(), _Peak(), time.perf_counter(), _processor()
    if way == MAP:
        rows.map(
            lambda batch: tokenizer(batch["text"], truncation=True, max_length=MAX_LENGTH),
            batched=True,
            num_proc=joblib.cpu_count(),
        )
    else:
        assert chosen.prepared
    seconds, processor = time.perf_counter() - started, _processor() - processor
    worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**10
    print(
        json.dumps(
            {
                "s": seconds,
                "processor s": processor,
                _MEMORY: most.anonymous,
                "MiB with mapped files": _resident("VmHWM") - before,
                "MiB of a worker": worker,
            }
        )
    )


class _Peak(threading.Thread):
    """Looks every twentieth of a second at how much memory this process has allocated."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._before, self._most = _resident("RssAnon"), 0.0
        self.start()

    def run(self) -> None:
        while True:
            self._most = max(self._most, _resident("RssAnon"))
            time.sleep(0.05)

    @property
    def anonymous(self) -> float:
        """The most so far, in MiB, beyond what there was at first."""
        return max(self._most, _resident("RssAnon")) - self._before


def _processor() -> float:
    """Return the seconds of this process and of its workers that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in both)


def _resident(field: str = "VmRSS") -> float:
    """Return the memory of this process in MiB, now or at its peak (Linux only)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 2**10 for line in lines if line.startswith(field))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--way"]:
        _serve(*sys.argv[2:])
    else:
        sizes = tuple(map(int, sys.argv[1:])) or ROWS
        for line in measure(1, sizes):
            print(json.dumps(line))
