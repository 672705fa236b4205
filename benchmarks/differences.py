"""How far two run directories are apart: losses of the steps, weights, rows of the test set."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors.numpy import load_file


class Incomparable(Exception):
    """Two runs did not do the same thing: other steps, other weights or other rows."""


def manifest(run: Path) -> dict[str, Any]:
    """Return ``run.json``."""
    content: dict[str, Any] = json.loads((run / "run.json").read_text(encoding="utf-8"))
    return content


def in_losses(run: Path, reference: Path) -> float:
    """Return the largest difference between the logged losses of a step.

    Raises:
        Incomparable: if not the same steps were logged, or none.
    """
    ours, theirs = (
        {entry["step"]: entry["loss"] for entry in manifest(each)["history"] if "loss" in entry}
        for each in (run, reference)
    )
    if not ours or ours.keys() != theirs.keys():
        raise Incomparable(f"losses of the steps {sorted(ours)} and {sorted(theirs)}")
    return float(np.abs([ours[step] - theirs[step] for step in ours]).max())


def in_weights(run: Path, reference: Path) -> float:
    """Return the norm of the difference of all weights, as a share of the reference's norm.

    Raises:
        Incomparable: if names or shapes differ.
    """
    ours, theirs = (load_file(each / "model.safetensors") for each in (run, reference))
    shapes = [{name: value.shape for name, value in each.items()} for each in (ours, theirs)]
    if not ours or shapes[0] != shapes[1]:
        other = sorted({name for name, _ in set(shapes[0].items()) ^ set(shapes[1].items())})
        raise Incomparable(f"weights of other names or shapes: {', '.join(other) or 'none'}")

    def norm(values: list[np.ndarray]) -> float:
        return float(np.sqrt(sum(np.square(each.astype(np.float64)).sum() for each in values)))

    apart = norm([ours[name].astype(np.float64) - theirs[name] for name in theirs])
    return apart / norm(list(theirs.values()))


def in_rows(run: Path, reference: Path) -> float:
    """Return the largest difference between probabilities of ``predictions.parquet``.

    Raises:
        Incomparable: if the rows, their order or their labels differ.
    """
    return in_tables(run / "predictions.parquet", reference / "predictions.parquet")


def in_tables(file: Path, reference: Path) -> float:
    """Return the largest difference between numbers that are no integers, row by row.

    The columns of predicted labels are left out: they follow from the probabilities, and a row
    near the boundary may have either.

    Args:
        file: A parquet file of predictions.
        reference: Another of the same input.

    Raises:
        Incomparable: if columns, rows or their order differ.
    """
    ours, theirs = (pd.read_parquet(each) for each in (file, reference))
    if list(ours.columns) != list(theirs.columns) or len(ours) != len(theirs) or ours.empty:
        raise Incomparable(f"{ours.shape} and {theirs.shape} rows and columns")
    numbers = [name for name in ours if pd.api.types.is_float_dtype(ours[name])]
    given = [name for name in ours if name in ("id", "text") or (name == "label" and "id" in ours)]
    for name in given:
        if not (ours[name] == theirs[name]).all():
            raise Incomparable(f"column '{name}' has other values or another order")
    if not numbers:
        raise Incomparable("no column of probabilities")
    return float(np.abs(ours[numbers].to_numpy() - theirs[numbers].to_numpy()).max())
