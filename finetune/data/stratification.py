"""Rows drawn so that each of several labels a row keeps its share."""

from __future__ import annotations

import numpy as np


def iterative(has: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Return the indices of ``size`` rows in which every label keeps its share, sorted.

    Iterative stratification (Sechidis, Tsoumakas and Vlahavas, On the Stratification of
    Multi-Label Data, ECML PKDD 2011) into the rows drawn and the others: label by label, the one
    with the fewest rows left first, each of its rows goes where more rows of that label are still
    wanted; if both want as many, where more rows are wanted; else by lot.

    Args:
        has: Which labels each row has, shape ``(rows, labels)``, of booleans.
        size: How many rows to draw, at most ``rows``.
        seed: Decides the order of the rows and the lots.
    """
    rows, generator = len(has), np.random.default_rng(seed)
    if not size:
        return np.empty(0, dtype=int)
    share = size / rows
    totals = has.sum(axis=0)
    # of the rows drawn and of the others: how many rows, and how many of each label, are wanted
    wanted = np.array([size, rows - size])
    wanted_of = np.stack([totals * share, totals * (1 - share)])
    order = generator.permutation(rows)
    lots = generator.random(rows)
    left, drawn = np.ones(rows, dtype=bool), np.zeros(rows, dtype=bool)
    members = [order[has[order, label]] for label in range(has.shape[1])]
    remaining = totals.astype(np.int64)
    while remaining.any():
        label = int(np.argmin(np.where(remaining > 0, remaining, rows + 1)))
        for row in members[label][left[members[label]]]:
            place = _place(wanted_of[:, label], wanted, lots[row])
            drawn[row] = place == 0
            left[row] = False
            wanted[place] -= 1
            wanted_of[place, has[row]] -= 1
            remaining[has[row]] -= 1
    bare = order[left[order]]  # that have no label
    drawn[bare[: max(0, wanted[0])]] = True
    return np.flatnonzero(drawn)


def _place(of_label: np.ndarray, of_rows: np.ndarray, lot: float) -> int:
    """Return 0 for the rows drawn, 1 for the others; never a place that is full."""
    if of_rows.min() <= 0:
        return int(of_rows[0] <= 0)
    for wanted in (of_label, of_rows):
        if wanted[0] != wanted[1]:
            return int(wanted[1] > wanted[0])
    return int(lot < 0.5)
