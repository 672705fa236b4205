"""The names of the columns that the toolkit writes: of rows, of ``predictions.parquet``, and what
``predict`` adds.
"""

from __future__ import annotations

from collections.abc import Collection

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
#: In the attributes of ``predictions.parquet``: the columns that came with the data, and the names
#: of the toolkit's columns that are prefixed.
USER_COLUMNS, RENAMED = "user_columns", "renamed"


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


def is_predicted(name: str) -> bool:
    """Return whether the toolkit writes a column of this name into ``predictions.parquet``."""
    ranked = {of_rank(c, n + 1) for c in (PREDICTION, PROBABILITY) for n in range(MOST_PROBABLE)}
    names = {"id", "text", "texts", "tokens", "length", DIGEST, THUMBNAIL}
    names |= {LABEL, "labels", LABEL_PROBABILITY} | ranked
    beginnings = (of_target(column, "") for column in (LABEL, PREDICTION, PROBABILITY))
    return name in names or name.startswith(tuple(beginnings))
