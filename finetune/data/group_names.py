"""Groups whose names look like mistakes: alike, or no group at all."""

from __future__ import annotations

import re

import pyarrow.compute as pc
from datasets import DatasetDict

from finetune.data import keys
from finetune.data.labels import visible_name
from finetune.errors import counted

#: The share of the rows from which on a group called ``unknown`` is told.
_MUCH = 0.05
_SHOWN = 3
#: What is written where the group is not known, in lower case.
_NO_GROUP = {"n/a", "#n/a", "na", "<na>", "nan", "none", "null", "nil", "unknown", "-", "--", "?"}


def remarks(dataset: DatasetDict, column: str | None) -> list[str]:
    """Return sentences about groups that look like mistakes; none are merged.

    Args:
        dataset: The splits as they were read.
        column: That holds the group of each row; None if there are none.
    """
    counts: dict[str, int] = {}
    for rows in dataset.values():
        if column is None or column not in rows.column_names:
            continue
        for each in pc.value_counts(keys.group_names(rows, column).drop_null()):
            name = each["values"].as_py()
            counts[name] = counts.get(name, 0) + each["counts"].as_py()
    alike: dict[str, list[str]] = {}
    for name in sorted(counts):
        alike.setdefault(_bare(name), []).append(name)
    found = []
    if several := [each for each in alike.values() if len(each) > 1]:
        shown = "; ".join(" and ".join(map(repr, each[:_SHOWN])) for each in several[:_SHOWN])
        found.append(
            f"--group_column {column}: {counted(len(several), 'group')} written in several ways, "
            f"which are different groups and can be in different splits: {shown}"
            f"{', ...' * (len(several) > _SHOWN)}; write each in one way"
        )
    rows = sum(counts.values())
    found += [
        f"--group_column {column}: {counts[name]:,} of {counted(rows, 'row')} are in the group "
        f"{name!r}, and are kept in one split: if their group is not known, give each row its own, "
        "or leave the field empty and add --drop_invalid"
        for name in sorted(counts)
        if name.strip().casefold() in _NO_GROUP and counts[name] > _MUCH * rows
    ]
    return found


def _bare(name: str) -> str:
    """Return what can be seen of a name; of a whole number without its fraction and the zeros
    before it.
    """
    return re.sub(r"^(-?)0*([0-9]+)(\.0+)?$", r"\1\2", visible_name(name))
