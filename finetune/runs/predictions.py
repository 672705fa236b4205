"""The test rows with what the model said of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset, Value
from scipy.special import softmax

from finetune.data.labels import class_names
from finetune.runs.run import PREDICTIONS


def write(directory: Path, rows: Dataset, logits: Any, tokens: Sequence[int] | None = None) -> None:
    """Write ``predictions.parquet``: id, text and tokens (where there are), label, prediction, and
    the probability of every class; in a regression the prediction is the output itself. Then
    what other columns the data has.

    Args:
        directory: Of the run.
        rows: The raw test rows, with ``id`` and ``label``.
        logits: Array of shape ``(rows, classes)``, in the order of ``rows``.
        tokens: Of each text, before truncation.
    """
    columns: dict[str, object] = {"id": rows["id"][:]}
    if "text" in rows.column_names:
        columns["text"] = rows["text"][:]
    if tokens is not None:
        columns["tokens"] = tokens
    names = class_names(rows)
    if names:
        probabilities = softmax(np.asarray(logits, dtype=np.float64), axis=1)
        columns["label"] = [names[label] for label in rows["label"]]
        columns["prediction"] = [names[label] for label in probabilities.argmax(axis=1)]
        for index, name in enumerate(names):
            columns[f"probability of {name}"] = probabilities[:, index]
    else:
        columns |= {"label": rows["label"][:], "prediction": np.asarray(logits).reshape(len(rows))}
    for name in rows.column_names:
        if name not in columns and isinstance(rows.features[name], Value):
            columns[name] = rows[name][:]
    part = directory / f"{PREDICTIONS}.tmp"
    try:
        pd.DataFrame(columns).to_parquet(part, index=False)
        part.replace(directory / PREDICTIONS)
    finally:
        part.unlink(missing_ok=True)
