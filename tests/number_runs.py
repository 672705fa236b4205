"""Texts whose words have values, and a regression on them that was really trained."""

import atexit
import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import finetune
from finetune import Run

VALUES = {"dull": -1.0, "fair": 0.0, "good": 1.0, "fine": 2.0}
#: Of the two targets: far from zero in one unit, small in another.
CENTER, UNIT, SMALL = 1000.0, 50.0, 0.01


@functools.cache
def place() -> Path:
    """A directory that is there as long as the process."""
    directory = tempfile.TemporaryDirectory(prefix="finetune-numbers-")
    atexit.register(directory.cleanup)
    return Path(directory.name)


@functools.cache
def tiny_bert() -> Path:
    """A tiny BERT with random weights and its tokenizer."""
    from tests.hub import build_repositories
    from tests.hub.repositories import CASED

    build_repositories(place() / "hub")
    return next(path.parent for path in place().rglob("config.json") if CASED in str(path))


@functools.cache
def table(rows: int = 240) -> Path:
    """Texts of three words with the columns ``score`` and ``weight``."""
    generator = np.random.default_rng(0)
    words, values = [*VALUES], np.array([*VALUES.values()])
    drawn = generator.integers(len(words), size=(rows, 3))
    texts = [f"{n} " + " ".join(words[each] for each in row) for n, row in enumerate(drawn)]
    score = CENTER + UNIT * values[drawn].mean(axis=1)
    weight = SMALL * values[drawn[:, 0]]
    path = place() / "numbers.csv"
    pd.DataFrame({"text": texts, "score": score, "weight": weight}).to_csv(path, index=False)
    return path


def options(**others: Any) -> dict[str, Any]:
    """What :func:`trained` was trained with, and others."""
    return {
        "dataset": str(table()),
        "model": str(tiny_bert()),
        "text_column": "text",
        "max_length": 16,
        "num_train_epochs": 6,
        "global_batch_size": 16,
        "learning_rate": 2e-3,
        "logging_steps": 1,
        "precision": "fp32",
        "disable_tqdm": True,
        **others,
    }


@functools.cache
def trained(several: bool = False) -> Run:
    """A run on ``score``, or on ``score`` and ``weight``."""
    labels: dict[str, Any] = {"label_column": "score"}
    if several:
        labels = {"label_columns": "score,weight"}
    directory = place() / ("several" if several else "one")
    return finetune.train("text", **options(**labels, output_dir=str(directory)))
