"""What `check` takes for the 25,000 long reviews, and its first tier within a training.

python benchmarks/bench.py check
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
    from finetune.checking import first

    finetune.check(recipe, train_samples=100)  # imports what the turn does

    def turn() -> dict[str, Any]:
        whole = _recipe(path, cache)
        found = finetune.check(whole)
        begun = time.process_time()
        first.findings(whole.source, whole.splits, ["text"], whole.places)
        return {
            "first tier in a training": time.process_time() - begun,
            "findings": len(found.findings),
        }

    return turn


def _recipe(path: str, cache: str) -> Any:
    os.environ["HF_DATASETS_CACHE"] = cache
    import datasets

    datasets.config.HF_DATASETS_CACHE = Path(cache)
    from recipes.text import Text

    return Text(dataset=path, model="embedded:minilm", max_length=256)
