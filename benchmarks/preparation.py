"""Preparation of up to 650,000 rows against `datasets.map` alone, and `check` of 25,000 reviews.

Rows of about 174 tokens are composed from the embedded reviews. Each way runs in a process of its
own, counted from the end of its imports: the toolkit reads, checks, splits and tokenizes; the other
only maps the tokenizer, with as many processes. A second start finds everything in the cache, and
one that wants a thousand rows of training tokenizes only those. Memory is the peak of the process
that prepares, beyond its imports, with the pages of files that it has mapped.
"""

import math
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turns import Turns, Work, forget_peak, peak_memory, take

SIZES, MAX_LENGTH = (10_000, 100_000, 650_000), 256
#: Words of a row: the median and the spread of their logarithm; 174 tokens on average.
WORDS, SPREAD = 105, 0.65
MAP, TOOLKIT, SECOND, FEW = "datasets.map alone", "toolkit", "second start", "--train_samples 1000"


def measure(rounds: int, other: Path | None) -> list[dict[str, Any]]:
    """Return a line for each way and number of rows; the largest number is measured once."""
    lines = []
    with tempfile.TemporaryDirectory() as directory:
        for rows in SIZES:
            file = compose(rows, Path(directory) / f"{rows}.parquet")
            found = [
                measure_once(str(file), f"{directory}/cache-{rows}-{number}", other)
                for number in range(1 if rows == SIZES[-1] else rounds)
            ]
            for way in found[0]:
                memory = [turns[way].answers[0] for turns in found]
                ratios = [turns[way].ratio(turns[MAP]) for turns in found]
                lines.append(
                    {
                        "case": f"preparation, {rows:,} rows",
                        "way": way,
                        "s": statistics.median(turns[way].seconds for turns in found),
                        "processor s": statistics.median(
                            turns[way].processor_seconds for turns in found
                        ),
                        "times map": statistics.median(ratios),
                        "MiB beyond imports": statistics.median(memory),
                    }
                )
        file = Path(directory) / "reviews.csv"
        reviews().to_csv(file, index=False)
        for deep in (False, True):
            work = Work(check, (str(file), deep), environment={"HF_HOME": f"{directory}/{deep}"})
            turns = take({"": [work]}, 1)[""]
            lines.append(
                {
                    "case": f"check{' --deep' * deep}, 25,000 reviews",
                    "way": "toolkit",
                    "s": turns.seconds,
                    "processor s": turns.processor_seconds,
                }
            )
    return lines


def measure_once(file: str, cache: str, other: Path | None) -> dict[str, Turns]:
    """Return a turn of each way, with nothing cached at first."""
    environment = {"HF_HOME": cache}
    ways = {
        MAP: [Work(tokenize_alone, (file,), environment=environment)],
        TOOLKIT: [Work(prepare, (file,), environment=environment)],
        SECOND: [Work(prepare, (file,), environment=environment)],
        FEW: [Work(prepare, (file, 1000), environment=environment)],
    }
    if other:
        environment = {"HF_HOME": f"{cache}-other"}
        ways["toolkit of the other tree"] = [Work(prepare, (file,), other, environment)]
    return take(ways, 1)


def compose(rows: int, file: Path) -> Path:
    """Write so many texts with one of five labels, made of parts of the embedded reviews."""
    import numpy as np
    import pandas as pd

    words = [text.split() for text in reviews()["text"]]
    generator = np.random.default_rng(0)
    sizes = np.clip(generator.lognormal(math.log(WORDS), SPREAD, rows).astype(int), 5, 900)
    texts = []
    for size in sizes:
        text: list[str] = []
        while len(text) < size:
            review = words[generator.integers(len(words))]
            start = generator.integers(max(1, len(review) - 5))
            text += review[start : start + size - len(text)]
        texts.append(" ".join(text))
    labels = [f"{number} stars" for number in generator.integers(1, 6, rows)]
    pd.DataFrame({"text": texts, "label": labels}).to_parquet(file)
    return file


def reviews() -> Any:
    """Return the 25,000 embedded reviews, which are long, as a frame."""
    from finetune.data import embedded

    return embedded.read("embedded:imdb")["train"].to_pandas()[["text", "label"]]


def tokenize_alone(file: str) -> Callable[[], float]:
    """Return what maps the tokenizer over rows that are read; its MiB beyond the imports."""
    import datasets
    import joblib
    import transformers

    from finetune.data import embedded

    datasets.disable_progress_bars()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(embedded.model_directory()))
    rows = datasets.load_dataset("parquet", data_files=file, split="train")

    def turn() -> float:
        forget_peak()
        before = peak_memory()
        rows.map(
            lambda batch: tokenizer(batch["text"], truncation=True, max_length=MAX_LENGTH),
            batched=True,
            num_proc=joblib.cpu_count(),
        )
        return peak_memory() - before

    return turn


def prepare(file: str, samples: int | None = None) -> Callable[[], float]:
    """Return what prepares the rows from the file on; its MiB beyond the imports."""
    recipe = _recipe(file, samples)

    def turn() -> float:
        forget_peak()
        before = peak_memory()
        assert recipe.prepared
        return peak_memory() - before

    return turn


def check(file: str, deep: bool) -> Callable[[], int]:
    """Return what checks a file; the number of findings."""
    import finetune

    finetune.check(_recipe(file, 100))  # imports what the turn needs
    return lambda: len(finetune.check(_recipe(file, None), deep=deep).findings)


def _recipe(file: str, samples: int | None) -> Any:
    import datasets
    import transformers

    import finetune.checking.tiers
    import finetune.data.tokenize
    import finetune.tasks.kinds

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()

    recipe = finetune.TextRecipe(
        dataset=file,
        model="embedded:minilm",
        max_length=MAX_LENGTH,
        train_samples=samples,
        eval_samples=samples,
    )
    recipe.processing_class()
    return recipe
