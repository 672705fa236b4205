"""Compares what two runs left behind: losses, weights, predictions and interval ends.

Every ``read_*`` function returns named arrays, and :func:`compare` compares two such mappings, bit
by bit and by size. Nothing here imports the toolkit, so that runs of any release can be compared.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors.numpy import load_file

Arrays = dict[str, np.ndarray]
#: Ends of the names in the history that are about speed, and differ from run to run.
SPEED = ("runtime", "per_second", "flos", "memory_mib")
PROBABILITY = "probability of "
_SMALLEST = 1e-12  # of a probability, before its logarithm is taken


@dataclass(frozen=True)
class Comparison:
    """How two mappings of arrays differ.

    Attributes:
        count: Values that both have.
        identical: Whether names, shapes, dtypes and every bit are the same.
        largest: The largest absolute difference; infinite where something is missing or has another
            shape, where only one of two numbers is finite, and where texts differ.
        place: Name of the array with the largest difference.
        old: The value there.
        new: The value there.
    """

    count: int
    identical: bool
    largest: float
    place: str
    old: Any = None
    new: Any = None


def compare(old: Mapping[str, np.ndarray], new: Mapping[str, np.ndarray]) -> Comparison:
    """Compare arrays of the same names; names that only ``new`` has are ignored.

    Args:
        old: Arrays by name; at least one value, since nothing equals nothing.
        new: Arrays by name.

    Raises:
        ValueError: if ``old`` holds no value.
    """
    count = sum(values.size for values in old.values())
    if not count:
        raise ValueError("there is nothing to compare")
    identical, largest = True, Comparison(count, True, -1.0, "")
    for name, values in old.items():
        others = new.get(name)
        if others is None or others.shape != values.shape:
            return Comparison(count, False, np.inf, name, values.shape, getattr(others, "shape", 0))
        if not values.size:
            continue
        identical &= _same_bits(values, others)
        apart = _differences(values, others)
        worst = int(apart.argmax())
        if apart[worst] > largest.largest:
            pair = values.flat[worst], others.flat[worst]
            largest = Comparison(count, True, float(apart[worst]), name, *pair)
    return Comparison(count, identical, largest.largest, largest.place, largest.old, largest.new)


def read_losses(run: Path) -> Arrays:
    """Return what the history of a run says of losses, gradient norms and scores, step by step."""
    history = json.loads((run / "run.json").read_text(encoding="utf-8"))["history"]
    return {
        f"{name} at step {entry['step']}": np.asarray([value], dtype=np.float64)
        for entry in history
        for name, value in entry.items()
        if name != "step" and not name.endswith(SPEED) and isinstance(value, int | float)
    }


def read_weights(run: Path) -> Arrays:
    """Return the tensors of ``model.safetensors``."""
    return dict(load_file(run / "model.safetensors"))


def read_table(file: Path) -> Arrays:
    """Return the columns of a ``.parquet`` or ``.csv`` file, and of the latter its bytes."""
    if file.suffix == ".parquet":
        table, arrays = pd.read_parquet(file), {}
    else:
        table = pd.read_csv(file, keep_default_na=False)
        arrays = {"bytes": np.frombuffer(file.read_bytes(), dtype=np.uint8)}
    return {str(name): np.asarray(table[name].to_numpy()) for name in table} | arrays


def read_probabilities(file: Path) -> Arrays:
    """Return the probabilities of every class in a table of predictions."""
    columns = read_table(file)
    return {name: values for name, values in columns.items() if name.startswith(PROBABILITY)}


def read_logits(file: Path) -> Arrays:
    """Return the logits that gave the probabilities of a table, shape ``(rows, classes)``.

    Probabilities leave a constant of each row unknown; the mean over the classes is set to zero.
    """
    probabilities = np.stack(list(read_probabilities(file).values()), axis=1)
    logarithms = np.log(np.maximum(probabilities.astype(np.float64), _SMALLEST))
    return {"logits": logarithms - logarithms.mean(axis=1, keepdims=True)}


def read_interval_ends(run: Path) -> Arrays:
    """Return both ends of every confidence interval in ``metrics.json``, by where it stands."""
    ends: Arrays = {}

    def walk(node: Any, place: str) -> None:
        if isinstance(node, dict):
            for name, value in node.items():
                if name in ("low", "high") and isinstance(value, int | float):
                    ends[f"{place}.{name}"] = np.asarray([value], dtype=np.float64)
                else:
                    walk(value, f"{place}.{name}" if place else name)
        elif isinstance(node, list):
            for number, value in enumerate(node):
                walk(value, f"{place}[{number}]")

    walk(json.loads((run / "metrics.json").read_text(encoding="utf-8")), "")
    return ends


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype != other.dtype:
        return False
    if one.dtype.kind in "biufc":
        return one.tobytes() == other.tobytes()
    return list(one) == list(other)


def _differences(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return absolute differences, flat; numbers that are equal, or both NaN, differ by 0."""
    if one.dtype.kind not in "biuf" or other.dtype.kind not in "biuf":
        return np.where(np.asarray(one != other, dtype=bool), np.inf, 0.0).ravel()
    left, right = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(left - right))
    return np.where(np.isnan(apart), np.inf, apart)
