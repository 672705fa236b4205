"""The test rows with what the model said of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset, Value

from finetune.runs.run import PREDICTIONS
from finetune.runtime.files import replacing
from finetune.tasks.base import Task


def write(
    directory: Path,
    task: Task[Any],
    rows: Dataset,
    outputs: Any,
    tokens: Sequence[int] | None = None,
) -> None:
    """Write ``predictions.parquet``: id, text and tokens (where there are); label, prediction, and
    what else the task has; then what other columns the data has.

    Args:
        directory: Of the run.
        task: Of the labels.
        rows: The raw test rows, with ``id`` and ``label``.
        outputs: Of the model, in the order of ``rows``.
        tokens: Of each text, before truncation.
    """
    columns: dict[str, object] = {"id": rows["id"][:]}
    if "text" in rows.column_names:
        columns["text"] = rows["text"][:]
    if tokens is not None:
        columns["tokens"] = tokens
    columns |= task.columns(task.targets(rows["label"][:]), np.asarray(outputs))
    for name in rows.column_names:
        if name not in columns and isinstance(rows.features[name], Value):
            columns[name] = rows[name][:]
    with replacing(directory / PREDICTIONS) as new:
        pd.DataFrame(columns).to_parquet(new, index=False)
