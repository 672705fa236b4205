"""Measure training, evaluation, report and prediction with many classes and many rows.

python benchmarks/scale.py          # about ten minutes on two cores
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from trees import processor, run

CLASSES = (5, 2_000)
TRAINED, TESTED, PREDICTED = 20_000, 200_000, 1_000_000


def write_rows(path: Path, rows: int, classes: int) -> Path:
    """Write rows with a label, and a text of the label's word and a dozen random words."""
    labels = [f"class{number % classes}" for number in range(rows)]
    words = np.random.default_rng(rows).integers(20_000, size=(rows, 12)).tolist()
    lines = zip(labels, words, strict=True)
    texts = [" ".join([label, *(f"word{word}" for word in line)]) for label, line in lines]
    pd.DataFrame({"text": texts, "label": labels}).to_parquet(path, index=False)
    return path


def measure(title: str, words: list[str | Path], home: Path) -> None:
    """Run a command and print its time and peak memory."""
    finished = run(["-m", "finetune", *words], home)
    print(f"{title}: {finished.seconds:.0f} s, {finished.memory:,.0f} MiB", flush=True)


def main() -> None:
    """Print a line for each measurement."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    print(processor())
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        for classes in CLASSES:
            data = write_rows(home / "train.parquet", TRAINED, classes)
            flags = "--model embedded:minilm --max_length 16 --max_steps 2 --task single_label"
            output = ["--output_dir", home / f"run-{classes}"]
            words = ["text", "--dataset", data, *flags.split(), *output]
            measure(f"two steps and baselines, {TRAINED:,} rows, {classes:,} classes", words, home)
            data = write_rows(home / "test.parquet", TESTED, classes)
            words = ["evaluate", home / f"run-{classes}", "--data", data]
            measure(f"evaluation, {TESTED:,} rows, {classes:,} classes", words, home)
        path = home / "run-5" / "predictions.parquet"
        page_rows = pd.read_parquet(path).sample(TESTED, replace=True, random_state=0)
        page_rows.to_parquet(path, index=False)
        measure(f"page, {TESTED:,} rows", ["report", home / "run-5"], home)
        data = write_rows(home / "million.parquet", PREDICTED, 5)
        words = ["predict", home / "run-5", data, "--output", home / "predicted.parquet"]
        measure(f"predictions, {PREDICTED:,} rows of 16 tokens", words, home)


if __name__ == "__main__":
    main()
