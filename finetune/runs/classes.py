"""The scores of every class of a run: in ``metrics.json``, or in a table where they are many."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from finetune.errors import UserError
from finetune.runs.run import Run
from finetune.runtime.files import replacing

#: Of more classes ``metrics.json`` has those with the lowest F1, the most frequent and the rarest,
#: so many of each.
MOST_WRITTEN, _OF_EACH = 200, 25
#: The table of all.
CLASSES = "classes.csv"
_NAME, _ENDS = "class", ("low", "high")


def written(directory: Path, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores of classes that ``metrics.json`` has; of more than 200, write the table.

    Args:
        directory: Of the run.
        found: Of each class or label, by name.
    """
    path = directory / CLASSES
    if len(found) <= MOST_WRITTEN:
        path.unlink(missing_ok=True)
        return dict(found)
    table = pd.DataFrame([{_NAME: name, **_flat(each)} for name, each in found.items()])
    with replacing(path) as new:
        table.to_csv(new, index=False, float_format="%.6g")
    lowest = sorted(found, key=lambda name: found[name]["f1"]["value"])
    frequent = sorted(found, key=lambda name: -found[name]["support"])
    rare = [name for name in reversed(frequent) if found[name]["support"]]
    chosen = {*lowest[: 2 * _OF_EACH], *frequent[:_OF_EACH], *rare[:_OF_EACH]}
    return {name: each for name, each in found.items() if name in chosen}


def scores(run: Run) -> dict[str, Any]:
    """Return the scores of each class; where the table of them was removed, those that are left.

    Raises:
        UserError: if the table is damaged.
    """
    found, path = run.statistics.classes or {}, run.path / CLASSES
    if len(found) == len(run.labels) or not path.is_file():
        return found
    try:
        table = pd.read_csv(path, dtype={_NAME: str}, keep_default_na=False, na_values=[""])
        return {str(row.pop(_NAME)): _nested(row) for row in table.to_dict("records")}
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{path} is damaged: {str(error).partition(chr(10))[0]}") from error


def _flat(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a row: ``f1``, ``f1_low``, ``f1_high``."""
    row: dict[str, Any] = {}
    for name, each in scores.items():
        if isinstance(each, Mapping):
            row |= {name: each["value"], **{f"{name}_{end}": each[end] for end in _ENDS}}
        else:
            row[name] = each
    return row


def _nested(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return what :func:`_flat` was given, without what is not defined."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if name.endswith(("_low", "_high")) or math.isnan(value):
            continue
        found[name] = value
        if f"{name}_low" in row:
            found[name] = {"value": value, **{end: row[f"{name}_{end}"] for end in _ENDS}}
    return found
