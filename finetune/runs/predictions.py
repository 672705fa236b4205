"""The test rows with what the model said of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from datasets import Dataset, Image, Value

from finetune.data import ROW, arrow, digests, images
from finetune.data.prediction_columns import DIGEST, RENAMED, THUMBNAIL, USER_COLUMNS, free_name
from finetune.runs.run import LOGITS, PREDICTIONS
from finetune.runtime.files import replacing
from finetune.statistics import mistakes
from finetune.tasks.base import Task

#: As many small images as a report shows.
_MOST_THUMBNAILS = 40


def write(
    directory: Path,
    task: Task[Any],
    rows: Dataset,
    outputs: Any,
    tokens: Sequence[int] | None = None,
    column: str = "text",
) -> np.ndarray:
    """Write ``predictions.parquet``: the test rows with what the model predicted.

    Its columns are id, text and tokens, or a digest; label, prediction, and what else the task has;
    the other columns of the data; and small copies of the images that the report shows. Of many
    classes ``logits.npy`` beside it has the outputs. The columns of the data keep their names; one
    of the toolkit's that would have the same gets the prefix ``model_``, which
    :attr:`Run.predicted_rows` takes off again.

    Args:
        directory: Of the run.
        task: Of the labels.
        rows: The raw test rows, with ``id`` and ``label``.
        outputs: Of the model, in the order of ``rows``.
        tokens: Of each text, before truncation.
        column: What the model reads of a row; digests of it tell rows without a text apart.

    Returns:
        The outputs as the files have them, from which statistics are to be computed.
    """
    logits: np.ndarray = np.asarray(outputs)
    stored = task.compress_outputs(logits)
    if stored is None:
        (directory / LOGITS).unlink(missing_ok=True)
    else:
        logits = stored
        with replacing(directory / LOGITS) as new, new.open("wb") as file:
            np.lib.format.write_array(file, stored, allow_pickle=False)
    user_columns = [
        name
        for name in rows.column_names
        if name not in (ROW, "text", "label") and isinstance(rows.features[name], Value)
    ]
    columns: dict[str, object] = {}
    if "text" in rows.column_names:
        columns["text"] = rows["text"][:]
    else:
        columns[DIGEST] = [value.hex() for value in digests.hash_rows(rows, column).to_pylist()]
    if tokens is not None:
        columns["tokens"] = tokens
    targets = task.targets(rows["label"][:])
    columns |= task.columns(targets, logits)
    if isinstance(rows.features.get("image"), Image):
        scored = task.scored(targets, logits) if task.has_one_class else None
        wrong: Iterable[int] = (
            [] if scored is None else mistakes.most_confident(scored)[:_MOST_THUMBNAILS]
        )
        columns[THUMBNAIL] = _thumbnails(rows, wrong)
    new_names = {name: free_name(name, user_columns) for name in columns}
    ids = _values(rows, "id" if "id" in user_columns else ROW)
    table = {"id": ids, **{new_names[name]: values for name, values in columns.items()}}
    frame = pd.DataFrame(table | {name: _values(rows, name) for name in user_columns})
    frame.attrs[USER_COLUMNS] = user_columns
    frame.attrs[RENAMED] = {name: new for name, new in new_names.items() if name != new}
    with replacing(directory / PREDICTIONS) as new:
        frame.to_parquet(new, index=False)
    return logits


def _values(rows: Dataset, name: str) -> Any:
    """Return the values of a column; integers beside missing ones stay integers."""
    column = arrow.column(rows, name)
    if pa.types.is_integer(column.type) and column.null_count:
        return column.to_pandas(integer_object_nulls=True).convert_dtypes()
    return rows[name][:]


def _thumbnails(rows: Dataset, numbers: Iterable[int]) -> list[bytes | None]:
    """Return a JPEG of each of some rows, None of all others."""
    thumbnails: list[bytes | None] = [None] * len(rows)
    undecoded = rows.cast_column("image", Image(decode=False))
    for number in map(int, numbers):
        thumbnails[number] = images.thumbnail(undecoded[number]["image"])
    return thumbnails
