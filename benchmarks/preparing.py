"""What it takes to get from the data as it is read to the raw splits, by the number of rows.

python benchmarks/bench.py splits

The rows are composed from the embedded reviews and written as Parquet in batches, so that a set of
any size needs no memory: spans of words of about 174 tokens, one of five labels, and of a hundred
rows one that was there before, one of a thousand with another label, and one of two hundred of the
test set that is in training too.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SEED = 0
REVIEWS = 5000  # that the spans are of
WORDS = 128  # of an average text: 174 tokens of the embedded tokenizer
CLASSES = 5
TEST_SHARE = 1 / 13  # 50,000 rows beside 650,000
BATCH = 10_000
REPEATED, CONTRADICTED, LEAKED = 0.01, 0.001, 0.005


def compose(directory: Path, rows: int) -> Path:
    """Write ``train.parquet`` and ``test.parquet``; return their directory."""
    from finetune.data import embedded

    reviews = embedded.read("embedded:imdb")["train"][:REVIEWS]["text"]
    words = np.array(" ".join(reviews).split(" "), dtype=object)
    directory.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(SEED)
    first = _write(directory / "train.parquet", words, rows, [], REPEATED, generator)
    leaking = [first] if len(first) else []
    _write(directory / "test.parquet", words, round(rows * TEST_SHARE), leaking, LEAKED, generator)
    return directory


def _write(
    path: Path,
    words: np.ndarray,
    rows: int,
    known: list[pa.Table],
    repeated: float,
    generator: np.random.Generator,
) -> pa.Table:
    """Write rows, some of them the first of ``known``; return those of the first batch."""
    first: pa.Table | None = None
    schema = pa.schema({"text": pa.string(), "label": pa.int64()})
    with pq.ParquetWriter(path, schema) as file:
        for start in range(0, rows, BATCH):
            count = min(BATCH, rows - start)
            begins = generator.integers(0, len(words) - 4 * WORDS, count)
            lengths = generator.integers(WORDS // 4, 2 * WORDS - WORDS // 4, count)
            texts = [" ".join(words[at : at + n]) for at, n in zip(begins, lengths, strict=True)]
            labels = generator.integers(0, CLASSES, count)
            source = known[0] if known else first
            if source is not None:
                again = np.flatnonzero(generator.random(count) < repeated)
                those = generator.integers(0, len(source), len(again))
                for row, other in zip(again, those.tolist(), strict=True):
                    text = source["text"][other].as_py()
                    texts[row] = f" {text}\n" if row % 2 else text
                    labels[row] = source["label"][other].as_py()
                wrong = again[: round(len(again) * CONTRADICTED / repeated)]
                labels[wrong] = (labels[wrong] + 1) % CLASSES
            table = pa.table({"text": texts, "label": labels}, schema=schema)
            first = table if first is None else first
            file.write_table(table, row_group_size=1000)
    assert first is not None
    return first


def converted(directory: str, cache: str) -> Callable[[], None]:
    """Return what reads the files for the first time."""
    recipe = _recipe(directory, cache)

    def turn() -> None:
        recipe.read()

    return turn


def raw_splits(directory: str, cache: str, options: dict[str, Any]) -> Callable[[], Any]:
    """Return what goes from the files, read before, to the raw splits and their fingerprint.

    The turn returns the processor seconds of its phases and the MiB of the process before it.
    """
    import turns
    from datasets import DatasetDict

    few = _recipe(directory, cache, **options)  # imports what the turn does
    source = DatasetDict({name: rows.select(range(200)) for name, rows in few.read().items()})
    few.load = lambda: few.labelled(source)
    _fingerprint(few)
    recipe = _recipe(directory, cache, **options)
    begun = turns.peak_memory()

    def turn() -> dict[str, float]:
        seconds, last = {}, time.process_time()

        def done(phase: str) -> None:
            nonlocal last
            now = time.process_time()
            seconds[phase] = now - last
            last = now

        dataset = recipe.read()
        done("read")
        dataset = recipe.labelled(dataset)
        done("labelled")
        recipe.load = lambda: dataset
        _ = recipe.splits
        done("split")
        _fingerprint(recipe)
        done("fingerprint")
        rows = {name: len(rows) for name, rows in recipe.splits.items()}
        return {**seconds, "MiB before": begun, "rows": rows}

    return turn


def _fingerprint(recipe: Any) -> None:
    from finetune.data.digests import fingerprint

    fingerprint(recipe.splits, recipe.input_column)


def _recipe(directory: str, cache: str, **options: Any) -> Any:
    os.environ["HF_DATASETS_CACHE"] = cache
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import datasets
    import sklearn.feature_extraction.text  # noqa: F401
    import torch  # noqa: F401

    datasets.config.HF_DATASETS_CACHE = Path(cache)
    from finetune.recipe import TextRecipe

    class Reviews(TextRecipe):
        """A recipe of the composed rows."""

    return Reviews(dataset=directory, model="none", **options)
