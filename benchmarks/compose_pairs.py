"""Compose pairs of sentences with a known truth: whether both have the same sentiment.

    python benchmarks/compose_pairs.py pairs.csv [--rows 4000] [--seed 42]

The sentences are those of the embedded Rotten Tomatoes data, each used once: half of the rows have
two of the same sentiment, half two of different ones. Neither column says anything about the label
by itself, so a bag of words over both columns is at chance: only a model that reads both and
compares them does better.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from finetune.data import embedded


def composed(rows: int, seed: int) -> pd.DataFrame:
    """Return ``first``, ``second`` and ``label``, ``same`` or ``other``, in random order.

    Raises:
        ValueError: if there are not enough sentences, two a row.
    """
    data = embedded.read("embedded:rotten-tomatoes")["train"]
    generator, labels = np.random.default_rng(seed), np.asarray(data["label"][:])
    texts = np.asarray(data["text"][:], dtype=object)
    unused = {
        label: list(generator.permutation(np.flatnonzero(labels == label))) for label in (0, 1)
    }
    kinds = np.resize([(0, 0), (1, 1), (0, 1), (1, 0)], (rows, 2))
    if 4 * max(1, -(-rows // 4)) > 2 * min(map(len, unused.values())):
        raise ValueError(f"--rows {rows}: expected at most {len(texts) // 2}, two sentences each")
    pairs = [[texts[unused[label].pop()] for label in kind] for kind in kinds]
    table = pd.DataFrame(pairs, columns=["first", "second"])
    table["label"] = np.where(kinds[:, 0] == kinds[:, 1], "same", "other")
    return table.iloc[generator.permutation(rows)]


def main() -> None:
    """Write the pairs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=42)
    given = parser.parse_args()
    table = composed(given.rows, given.seed)
    table.to_csv(given.output, index=False)
    print(f"{len(table):,} rows: {given.output}")


if __name__ == "__main__":
    main()
