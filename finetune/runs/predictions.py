"""The test rows with what the model said of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset, Image, Value

from finetune.data import ROW, digests, images
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
    """Write ``predictions.parquet``: id, text and tokens, or a digest; label, prediction, and
    what else the task has; then what other columns the data has, and small copies of the images
    that the report shows. Of many classes ``logits.npy`` beside it has the outputs.

    The columns of the data keep their names; one of the toolkit's that would have the same gets the
    prefix ``model_``, which :attr:`Run.predicted_rows` takes off again.

    Args:
        directory: Of the run.
        task: Of the labels.
        rows: The raw test rows, with ``id`` and ``label``.
        outputs: Of the model, in the order of ``rows``.
        tokens: Of each text, before truncation.
        column: What the model sees of a row; hashes of it tell rows apart that have no text.

    Returns:
        The outputs as the files have them, which statistics are to be computed from.
    """
    found: np.ndarray = np.asarray(outputs)
    kept = task.kept(found)
    if kept is None:
        (directory / LOGITS).unlink(missing_ok=True)
    else:
        found = kept
        with replacing(directory / LOGITS) as new, new.open("wb") as file:
            np.lib.format.write_array(file, kept, allow_pickle=False)
    user_columns = [
        name
        for name in rows.column_names
        if name not in (ROW, "text", "label") and isinstance(rows.features[name], Value)
    ]
    columns: dict[str, object] = {}
    if "text" in rows.column_names:
        columns["text"] = rows["text"][:]
    else:
        columns[DIGEST] = [each.tobytes().hex() for each in digests.hash_rows(rows, column)]
    if tokens is not None:
        columns["tokens"] = tokens
    targets = task.targets(rows["label"][:])
    columns |= task.columns(targets, found)
    if isinstance(rows.features.get("image"), Image):
        wrong: np.ndarray = np.array([], dtype=np.int64)
        if task.has_one_class:
            wrong = mistakes.most_confident(task.scored(targets, found))
        columns[THUMBNAIL] = _thumbnails(rows, wrong[:_MOST_THUMBNAILS])
    with replacing(directory / PREDICTIONS) as new:
        renamed = {name: free_name(name, user_columns) for name in columns}
        row_ids = rows["id" if "id" in user_columns else ROW][:]
        table = {"id": row_ids, **{renamed[name]: values for name, values in columns.items()}}
        frame = pd.DataFrame(table | {name: rows[name][:] for name in user_columns})
        frame.attrs[USER_COLUMNS] = user_columns
        frame.attrs[RENAMED] = {name: new for name, new in renamed.items() if name != new}
        frame.to_parquet(new, index=False)
    return found


def _thumbnails(rows: Dataset, chosen: Iterable[int]) -> list[bytes | None]:
    """Return a JPEG of each of some rows, None of all others."""
    found: list[bytes | None] = [None] * len(rows)
    undecoded = rows.cast_column("image", Image(decode=False))
    for index in map(int, chosen):
        found[index] = images.thumbnail(undecoded[index]["image"])
    return found
