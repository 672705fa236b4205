"""The names of the columns that the toolkit adds to rows, to ``predictions.parquet`` and to the
output of ``predict``, and of the user's columns beside them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from finetune.data import ROW

if TYPE_CHECKING:  # a run is opened before the libraries are imported
    import pyarrow as pa
    from datasets import Dataset, DatasetDict

LABEL, PREDICTION, PROBABILITY = "label", "prediction", "probability"
#: The column that ``predict`` adds to texts whose words are labelled.
ENTITIES = "entities"
#: The probability of the true class, if there is no column for every class.
LABEL_PROBABILITY = "label_probability"
#: With more than ``MAX_PROBABILITY_COLUMNS`` classes ``predictions.parquet`` has only the
#: ``MAX_PROBABLE_CLASSES`` most probable ones; a file beside it has the logits of all.
MAX_PROBABILITY_COLUMNS, MAX_PROBABLE_CLASSES = 50, 5
#: The hash of a row that is no text, and the small copy of an image.
DIGEST, THUMBNAIL = "digest", "thumbnail"
#: The prefix of the toolkit's columns whose name the data has too.
PREFIX = "model_"
#: The attribute of ``predictions.parquet`` with the names of the user's columns.
USER_COLUMNS = "user_columns"
#: The toolkit's columns of raw rows (``texts`` only with several text columns), and the suffix of
#: the user's columns of the same names.
_OF_ROWS = (ROW, "text", "texts", LABEL)
OF_DATA = " (data)"


def probability_of(name: str) -> str:
    """Return the name of the column with the probability of a label."""
    return f"{PROBABILITY} of {name}"


def of_target(column: str, name: str) -> str:
    """Return the name of the column with the label or prediction of one of several targets."""
    return f"{column} of {name}"


def ranked_name(column: str, place: int) -> str:
    """Return the column name of the class, or the probability, at a rank from 1; ``column`` itself
    for rank 1, ``prediction_2`` for rank 2.
    """
    return column if place == 1 else f"{column}_{place}"


def free_name(name: str, used_names: Collection[str]) -> str:
    """Return ``name`` with :data:`PREFIX` until neither it nor its next form is used."""
    while name in used_names or f"{PREFIX}{name}" in used_names:
        name = f"{PREFIX}{name}"
    return name


def usual_name(name: str) -> str:
    """Return a name without the prefixes that :func:`free_name` added."""
    return re.sub(f"^({PREFIX})+", "", name)


def set_aside(
    dataset: DatasetDict, names: Collection[str] = _OF_ROWS[1:], read: Collection[str] = ()
) -> DatasetDict:
    """Rename the user's columns that the toolkit uses to ``NAME (data)``; :func:`user_table`
    restores their names.

    Args:
        dataset: The splits of the source.
        names: The names that the toolkit uses.
        read: Columns that keep their names, because the model reads them.
    """
    from datasets import DatasetDict

    renamed = DatasetDict()
    for split, rows in dataset.items():
        new_names = {}
        for name in rows.column_names:
            # `text (data)` gets a suffix too, so that it is not taken for `text`
            if name.split(OF_DATA)[0] in names and name not in read:
                new_names[name] = f"{name}{OF_DATA}"
        renamed[split] = rows.rename_columns(new_names)
    return renamed


def user_table(rows: Dataset, input_column: str) -> pa.Table:
    """Return the user's columns with their names and types in the data.

    The column that the model reads and the label are left out. Values of mixed types, and objects
    without keys, which Parquet cannot store, become JSON text; texts among them stay plain.
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
            texts = []
            for text in map(json_text, column.to_pylist()):
                texts.append(json.loads(text) if text and text[0] == '"' else text)
            column = pa.array(texts, pa.string())
        if name.split(OF_DATA)[0] in _OF_ROWS:
            name = name.removesuffix(OF_DATA)
        columns[name] = column
    return pa.table(columns)


def without_bytes(table: pa.Table) -> pa.Table:
    """Return the table without binary columns, which a text file cannot hold."""
    kinds = {field.name: str(field.type) for field in table.schema}
    # a field of a struct may be called "binary"
    return table.select([name for name in kinds if not re.search("binary(?!:)", kinds[name])])


def cell_text(value: Any) -> Any:
    """Return a list or a dict as JSON, any other value unchanged."""
    if isinstance(value, (list, dict)):
        return json_text(value)
    return value


def json_text(value: object) -> str | None:
    """Return a value as JSON, with null for NaN; a text or None is returned unchanged."""
    if value is None or isinstance(value, str):
        return value
    text = json.dumps(value, ensure_ascii=False, default=str)
    if "NaN" in text:
        value = json.loads(text, parse_constant=lambda name: float(name) if "I" in name else None)
        text = json.dumps(value, ensure_ascii=False)
    return text
