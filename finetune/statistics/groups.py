"""What an evaluation leaves behind so that its noise is known later: a score of each of 64 random
groups of the rows, whatever their number.

Every evaluation of the same rows has the same groups. The spread of a score over the groups is its
standard error, and the spread of the difference of two evaluations that of the difference, so what
is hard for both does not count as noise. This is the method of random groups (Wolter, Introduction
to Variance Estimation, 2007, chapter 2), of a score that is no mean the jackknife that leaves out
a group (chapter 4): standard errors are off by 9% themselves, which Student's t allows for.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_array

from finetune.errors import UserError

GROUPS, SEED = 64, 0


def of_rows(rows: int) -> np.ndarray:
    """Return the group of each row, shape ``(rows,)``; up to 64 rows each is a group."""
    return np.random.default_rng(SEED).permutation(rows) % min(rows, GROUPS)


def of_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean of each group, shape ``(groups,)``, of what each row has, shape ``(rows,)``;
    their mean is that of the rows.
    """
    groups, mean = of_rows(len(values)), values.mean(dtype=np.float64)
    off = np.bincount(groups, weights=values - mean)
    return np.asarray(mean + off * (len(off) / len(values)))


def of_sums(score: Callable[[np.ndarray], np.ndarray], rows: csr_array | np.ndarray) -> np.ndarray:
    """Return what each group adds to a score of sums over the rows, shape ``(groups,)``: its
    pseudo-values in the jackknife.

    Args:
        score: From sums, shape ``(draws, numbers)``, to shape ``(draws,)``.
        rows: What is summed up, shape ``(rows, numbers)``.
    """
    groups = of_rows(rows.shape[0])
    count = int(groups.max()) + 1
    member = (np.ones(len(groups)), (groups, np.arange(len(groups))))
    sums = csr_array(member, (count, len(groups))) @ rows
    sums = sums.toarray() if isinstance(sums, csr_array) else np.asarray(sums)
    whole = sums.sum(axis=0, keepdims=True)
    return np.asarray(count * score(whole) - (count - 1) * score(whole - sums))


def encode(values: np.ndarray) -> str:
    """Return the scores of groups as text, 344 characters."""
    return base64.b64encode(values.astype("<f4").tobytes()).decode("ascii")


def decode(text: str) -> np.ndarray:
    """Return what :func:`encode` was given.

    Raises:
        UserError: if it is something else.
    """
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float64)
    except (ValueError, TypeError, binascii.Error) as error:
        raise UserError(f"the history of the run is damaged: {str(text)[:40]!r}") from error
