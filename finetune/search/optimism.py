"""The optimism of the validation score of the best of many trials.

The best of many scores on the same rows is too good: it is chosen because chance favored it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from transformers import EvalPrediction

from finetune.errors import UserError
from finetune.pipeline.results import VALIDATION
from finetune.runs.run import Run

_REPEATS = 100


def estimate(runs: Sequence[Run], metric: str, greater_is_better: bool) -> float | None:
    """Return by how much the validation score of the best run is expected to be better than its
    score on other rows because it was chosen among the runs, in units of the metric, 0 or more;
    None if the recipe's metrics do not have it. The choice of an epoch in each run, on the same
    rows, is not included.

    On each of 100 bootstrap samples of the validation rows the best run is chosen again, and scored
    on the rows that are not in the sample (Tsamardinos, Greasidou and Borboudakis, Machine Learning
    107, 2018: bootstrap bias-corrected cross-validation).
    """
    arrays = [_read(run.path) for run in runs]
    labels = arrays[0][0]
    compute = runs[0].compute_metrics
    generator = np.random.default_rng(0)
    sign = 1 if greater_is_better else -1

    if metric not in compute(EvalPrediction(arrays[0][1], labels)):
        return None  # the loss

    def score(outputs: np.ndarray, rows: np.ndarray) -> float:
        return sign * float(compute(EvalPrediction(outputs[rows], labels[rows]))[metric])

    every_row = np.arange(len(labels))
    best = max(score(outputs, every_row) for _, outputs in arrays)
    held_out = []
    for _ in range(_REPEATS):
        sample = generator.integers(len(labels), size=len(labels))
        others = np.setdiff1d(every_row, sample)
        scores = [score(outputs, sample) for _, outputs in arrays]
        held_out.append(score(arrays[int(np.argmax(scores))][1], others))
    gap = float(best - np.mean(held_out))
    return max(0.0, gap) if np.isfinite(gap) else None


def _read(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and outputs of the validation rows of a trial.

    Raises:
        UserError: If the file is missing or damaged.
    """
    try:
        with np.load(directory / VALIDATION, allow_pickle=False) as arrays:
            return arrays["labels"], arrays["outputs"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{directory / VALIDATION} cannot be read: {error}") from error
