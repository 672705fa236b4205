"""The columns that the toolkit writes: into rows, ``predictions.parquet``, and what ``predict``
adds; and the user's own columns beside them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from finetune.data import ROW

if TYPE_CHECKING:  # a run is opened before the libraries are imported
    import pyarrow as pa
    from datasets import Dataset, DatasetDict

LABEL, PREDICTION, PROBABILITY = "label", "prediction", "probability"
#: That of the probability of the true class, where there is no column for every class.
LABEL_PROBABILITY = "label_probability"
#: Of more classes ``predictions.parquet`` has the most probable ones only, so many, and the logits
#: of all are in a file beside it.
MOST_COLUMNS, MOST_PROBABLE = 50, 5
#: The hash of a row without a text, and the small copy of an image.
DIGEST, THUMBNAIL = "digest", "thumbnail"
#: What the toolkit's columns are prefixed with where the data has a column of that name.
PREFIX = "model_"
#: In the attributes of ``predictions.parquet``: the columns that came with the data.
USER_COLUMNS = "user_columns"
#: The toolkit's columns of raw rows, of several texts a row also ``texts``; and what follows the
#: names of the user's columns there that are called so.
_OF_ROWS = (ROW, "text", "texts", LABEL)
OF_DATA = " (data)"


def probability_of(name: str) -> str:
    """Return the name of the column with the probability of a label."""
    return f"{PROBABILITY} of {name}"


def of_target(column: str, name: str) -> str:
    """Return the name of the column with the label or prediction of one of several targets."""
    return f"{column} of {name}"


def of_rank(column: str, place: int) -> str:
    """Return the name of the column with the class of a place by probability, from 1, or with its
    probability; the first has no number.
    """
    return column if place == 1 else f"{column}_{place}"


def free_name(name: str, taken: Collection[str]) -> str:
    """Return ``name``, prefixed until no column of the data has it, nor it with a prefix."""
    while name in taken or f"{PREFIX}{name}" in taken:
        name = f"{PREFIX}{name}"
    return name


def usual_name(name: str) -> str:
    """Return the name of a column of the toolkit without the prefixes of :func:`free_name`."""
    return re.sub(f"^({PREFIX})+", "", name)


def set_aside(
    dataset: DatasetDict, names: Collection[str] = _OF_ROWS[1:], read: Collection[str] = ()
) -> DatasetDict:
    """Return raw rows in which the user's columns called like ``names``, the toolkit's, are called
    ``NAME (data)``, unless they are ``read``; :func:`user_table` has them under their own names.
    """
    from datasets import DatasetDict

    renamed = DatasetDict()
    for split, rows in dataset.items():
        # `text (data)` gets a suffix too, so that it is not taken for `text`
        clashes = [name for name in rows.column_names if name.split(OF_DATA)[0] in names]
        new_names = {name: f"{name}{OF_DATA}" for name in clashes if name not in read}
        renamed[split] = rows.rename_columns(new_names)
    return renamed


def user_table(rows: Dataset, input_column: str) -> pa.Table:
    """Return the columns that came with the data, under their names and in their types there.

    Without the one that the model reads and the label, which the toolkit has. JSON of mixed types
    and objects without a key, which Parquet does not have, are JSON text; texts in it are plain.
    """
    import pyarrow as pa
    from datasets import Value

    stored = [
        name
        for name, feature in rows.features.items()
        if name not in _OF_ROWS and (name != input_column or isinstance(feature, Value))
    ]
    table = rows.select_columns(stored).with_format("arrow")[:] if stored else pa.table({})
    columns = {}
    for name, column in zip(stored, table.columns, strict=True):
        if column.type == pa.json_() or "struct<>" in str(column.type):
            texts = [json_text(value) for value in column.to_pylist()]
            texts = [json.loads(text) if text and text[0] == '"' else text for text in texts]
            column = pa.array(texts, pa.string())
        is_clash = name.split(OF_DATA)[0] in _OF_ROWS
        columns[name.removesuffix(OF_DATA) if is_clash else name] = column
    return pa.table(columns)


def without_bytes(table: pa.Table) -> pa.Table:
    """Return the columns that a file of text can hold."""
    kinds = {field.name: str(field.type) for field in table.schema}
    # a field of a structure may be called so
    return table.select([name for name in kinds if not re.search("binary(?!:)", kinds[name])])


def json_text(value: object) -> str | None:
    """Return a value as JSON; a text and a missing value as they are."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
