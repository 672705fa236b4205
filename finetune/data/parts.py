"""Rows of several columns of text: a pair of sentences, or a title, a body and a comment.

Raw rows then have ``texts``, the parts that the model reads, beside ``text``, in which people and
the bag of words read them joined by line breaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datasets import Dataset, DatasetDict, Features, List, Value
from datasets.fingerprint import Hasher

from finetune.data.digests import TEXTS
from finetune.data.encoding import Read
from finetune.errors import UserError


def combined(dataset: DatasetDict, columns: Sequence[str]) -> DatasetDict:
    """Return ``dataset`` with ``text`` and ``texts`` instead of ``columns``.

    Args:
        dataset: Splits whose ``columns`` are texts, none missing.
        columns: In the order in which the model reads them.
    """

    def combine(*texts: Sequence[str]) -> dict[str, list[Any]]:
        rows = [list(row) for row in zip(*texts, strict=True)]
        return {"text": ["\n".join(row) for row in rows], TEXTS: rows}

    splits = DatasetDict()
    for split, rows in dataset.items():
        features = {name: kind for name, kind in rows.features.items() if name not in columns}
        splits[split] = rows.map(
            combine,
            batched=True,
            input_columns=[*columns],
            remove_columns=[*columns],
            features=Features({**features, "text": Value("string"), TEXTS: List(Value("string"))}),
            new_fingerprint=Hasher.hash([rows._fingerprint, [*columns], "parts"]),
            desc="combining columns",
        )
    return splits


def refuse_others(dataset: DatasetDict, *, several: bool) -> None:
    """Refuse rows of several texts where ``text_columns`` is not set, and of one where it is."""
    if any((TEXTS in rows.column_names) != several for rows in dataset.values()):
        raise UserError(
            f"the recipe loads rows with{'out' if several else ''} the column '{TEXTS}' of several "
            "texts: it needs --text_columns, and a load() that calls labelled()"
        )


def read_by_model(rows: dict[str, list[Any]] | Dataset, *, several: bool) -> list[Read]:
    """Return what the model reads of raw rows: their ``text``, or their ``several`` texts.

    Raises:
        UserError: If ``text`` and ``texts`` differ: a recipe has changed one of them.
    """
    texts = list(rows[TEXTS if several else "text"][:])
    if several and list(rows["text"][:]) != ["\n".join(row) for row in texts]:
        raise UserError(f"the recipe changes 'text' and not '{TEXTS}', which is tokenized")
    return texts
