"""What `check` takes for the 25,000 long reviews, its first tier within a training, and `--deep`.

python benchmarks/bench.py check
python benchmarks/bench.py deep
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def compose(directory: Path) -> Path:
    """Write the embedded reviews as a CSV; return its path."""
    from finetune.data import embedded

    path = directory / "reviews.csv"
    table = embedded.read("embedded:imdb")["train"].to_pandas()
    table[["text", "label"]].to_csv(path, index=False)
    return path


def checked(path: str, cache: str) -> Callable[[], dict[str, float]]:
    """Check it; the answer has the findings' names and how long the part in a training takes."""
    recipe = _recipe(path, cache)
    import finetune
    from finetune.checking import tiers

    finetune.check(recipe, train_samples=100)  # imports what the turn does

    def turn() -> dict[str, Any]:
        whole = _recipe(path, cache)
        found = finetune.check(whole)
        begun = time.process_time()
        tiers.check_rows(whole.source, whole.splits, ["text"])
        return {
            "first tier in a training": time.process_time() - begun,
            "findings": len(found.findings),
        }

    return turn


def deep(path: str, cache: str) -> Callable[[], dict[str, Any]]:
    """Check it with `--deep`; the answer has the seconds of the processor of each part."""
    recipe = _recipe(path, cache)
    import finetune
    from finetune.checking import texts, words
    from finetune.data.repeated import find_near_duplicates
    from finetune.data.row_index import Plan

    finetune.check(recipe, deep=True, train_samples=200)  # imports what the turn does

    def turn() -> dict[str, Any]:
        for kept in Path(cache).glob("finetune-near/*"):
            kept.unlink()
        begun = time.perf_counter(), time.process_time()
        found = finetune.check(_recipe(path, cache), deep=True)
        took = time.perf_counter() - begun[0], time.process_time() - begun[1]
        for kept in Path(cache).glob("finetune-near/*"):
            kept.unlink()
        whole = _recipe(path, cache)
        rows = whole.splits["train"]
        parts: dict[str, Callable[[], object]] = {
            "near duplicates": lambda: find_near_duplicates(whole.source, "text", Plan()),
            "words": lambda: words.find_revealing_words(rows, "text"),
            "languages": lambda: texts.find_other_languages(rows, "text"),
            "labels": lambda: words.find_suspected_labels(rows, "text"),
        }
        seconds = {name: _processor_seconds(part) for name, part in parts.items()}
        return {"findings": len(found.findings), "took": took, "parts": seconds}

    return turn


def _processor_seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def _recipe(path: str, cache: str) -> Any:
    os.environ["HF_DATASETS_CACHE"] = cache
    import datasets

    datasets.config.HF_DATASETS_CACHE = Path(cache)
    from recipes.text import Text

    return Text(dataset=path, model="embedded:minilm", max_length=256)
