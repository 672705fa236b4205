"""The test rows with what the model said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset
from scipy.special import softmax

from finetune.data.labels import class_names
from finetune.run import PREDICTIONS


def write(directory: Path, rows: Dataset, logits: Any) -> None:
    """Write ``predictions.parquet``: id, text (where there is one), label, prediction, and the
    probability of every class; in a regression the prediction is the output itself.

    Args:
        directory: Of the run.
        rows: The raw test rows, with ``id`` and ``label``.
        logits: Array of shape ``(rows, classes)``, in the order of ``rows``.
    """
    columns: dict[str, object] = {"id": rows["id"][:]}
    if "text" in rows.column_names:
        columns["text"] = rows["text"][:]
    names = class_names(rows)
    if names:
        probabilities = softmax(np.asarray(logits, dtype=np.float64), axis=1)
        columns["label"] = [names[label] for label in rows["label"]]
        columns["prediction"] = [names[label] for label in probabilities.argmax(axis=1)]
        for index, name in enumerate(names):
            columns[f"probability of {name}"] = probabilities[:, index]
    else:
        columns |= {"label": rows["label"][:], "prediction": np.asarray(logits).reshape(len(rows))}
    pd.DataFrame(columns).to_parquet(directory / PREDICTIONS, index=False)
