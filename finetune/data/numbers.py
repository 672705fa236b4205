"""Labels that are numbers."""

from __future__ import annotations

from datasets import DatasetDict, List, Value

from finetune.errors import UserError


def encode(dataset: DatasetDict, columns: list[str]) -> DatasetDict:
    """Return ``dataset`` with the numbers of one or several columns as ``label``, float32.

    Raises:
        UserError: if a column holds something else.
    """
    try:
        if columns == ["label"]:
            return dataset.cast_column("label", Value("float32"))
        feature, encoded = List(Value("float32"), length=len(columns)), {}
        for split, rows in dataset.items():
            numbers = zip(*(rows[name][:] for name in columns), strict=True)
            others = rows.remove_columns(columns)
            encoded[split] = others.add_column("label", list(map(list, numbers)), feature=feature)
    except (ValueError, TypeError) as error:
        first = str(error).partition("\n")[0]
        raise UserError(
            f"the labels in {', '.join(columns)} are not all numbers: {first}"
        ) from error
    return DatasetDict(encoded)
