"""Rows drawn so that every class keeps its share: by class, by several labels a row, by group."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array


def stratified(labels: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Return the indices of ``size`` rows in which every class keeps its share, sorted.

    scikit-learn's splitter refuses a class with a single row, and a sample with fewer rows than
    classes; the largest-remainder method (Hamilton's) handles both.

    Args:
        labels: The class of each row, shape ``(rows,)``, or which classes it has, shape
            ``(rows, classes)``.
        size: At most ``rows``.
        seed: Decides which rows of a class are sampled.
    """
    if not size:
        return np.empty(0, dtype=int)
    if labels.ndim == 2:
        return iterative(labels, size, seed)
    generator = np.random.default_rng(seed)
    _, counts = np.unique(labels, return_counts=True)
    shares = counts * (size / len(labels))
    quota = np.floor(shares).astype(int)
    remainders = np.argsort(quota - shares, kind="stable")
    quota[remainders[: size - quota.sum()]] += 1
    members = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
    drawn = [generator.permutation(rows)[:take] for rows, take in zip(members, quota, strict=True)]
    return np.sort(np.concatenate(drawn))


def apart(labels: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Return which rows are split off: as :func:`stratified` draws them, but for the first row of
    each class, which stays: training must know every class that is evaluated.

    Returns:
        Of booleans, shape ``(rows,)``; fewer than ``size`` are true where no more can be.
    """
    first = np.unique(labels, return_index=True)[1] if labels.ndim == 1 else labels.argmax(axis=0)
    taken, is_spare = np.zeros(len(labels), dtype=bool), np.ones(len(labels), dtype=bool)
    is_spare[first] = False
    spare = np.flatnonzero(is_spare)
    taken[spare[stratified(labels[spare], min(size, len(spare)), seed)]] = True
    return taken


def apart_by_group(labels: np.ndarray, groups: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Return which rows are split off so that all rows of a group are, or none.

    Groups with equally many rows of each class are alike. From the largest kind to the smallest,
    as many of a kind are split off as bring the rows of their classes closest to their share of
    those seen so far; the smaller ones even out what the larger ones left. Which of a kind is
    decided by lot. A class never loses its last group in training.

    Args:
        labels: As in :func:`stratified`.
        groups: The number of the group of each row, shape ``(rows,)``, from 0 without a gap.
        size: How many rows are wanted.
        seed: Decides the lots.

    Returns:
        Of booleans, shape ``(rows,)``; about ``size`` are true. None are where every group has
        the only rows of a class.
    """
    counts = _by_group(labels, groups)
    sizes = np.bincount(groups)
    order = np.random.default_rng(seed).permutation(len(sizes))
    kinds: dict[bytes, list[int]] = {}
    ends = counts.indptr
    for group in order.tolist():
        own = slice(ends[group], ends[group + 1])
        kind = counts.indices[own].tobytes() + counts.data[own].tobytes() + sizes[group].tobytes()
        kinds.setdefault(kind, []).append(group)
    share = size / len(labels)
    # the size of a group counts like a class that every row has
    seen, taken = (np.zeros(counts.shape[1] + 1) for _ in range(2))
    left = np.append(np.asarray(counts.sum(axis=0)).ravel(), len(labels)).astype(np.int64)
    chosen: list[int] = []
    for members in sorted(kinds.values(), key=lambda alike: -sizes[alike[0]]):
        one = members[0]
        own = slice(ends[one], ends[one + 1])
        classes = np.append(counts.indices[own], counts.shape[1])
        rows = np.append(counts.data[own], sizes[one]).astype(np.float64)
        seen[classes] += rows * len(members)
        wanted = rows @ (share * seen[classes] - taken[classes]) / (rows @ rows)
        most = min(len(members), int(((left[classes] - 1) // rows).min()))
        number = max(0, min(most, round(wanted)))
        taken[classes] += rows * number
        left[classes] -= (rows * number).astype(np.int64)
        chosen += members[:number]
    if not chosen:
        chosen = _nearest(counts, sizes, size)
    return np.isin(groups, chosen)


def _by_group(labels: np.ndarray, groups: np.ndarray) -> csr_array:
    """Return how many rows of each class a group has, shape ``(groups, classes)``."""
    if labels.ndim == 1:
        _, labels = np.unique(labels, return_inverse=True)
        rows, columns = np.arange(len(labels)), labels
        shape = int(groups.max()) + 1, int(labels.max()) + 1
    else:
        rows, columns = np.nonzero(labels)
        shape = int(groups.max()) + 1, labels.shape[1]
    ones = np.ones(len(rows), dtype=np.int64)
    counts = csr_array((ones, (groups[rows], columns)), shape)
    counts.sum_duplicates()
    counts.sort_indices()
    return counts


def _nearest(counts: csr_array, sizes: np.ndarray, size: int) -> list[int]:
    """Return the group of nearest ``size`` that has not all rows of a class, if there is one."""
    totals = np.asarray(counts.sum(axis=0)).ravel()
    is_spare = np.ones(len(sizes), dtype=bool)
    for group in range(len(sizes)):
        own = slice(counts.indptr[group], counts.indptr[group + 1])
        is_spare[group] = (counts.data[own] < totals[counts.indices[own]]).all()
    is_spare &= sizes < sizes.sum()
    spare = np.flatnonzero(is_spare)
    return [int(spare[np.argmin(np.abs(sizes[spare] - size))])] if len(spare) else []


def apart_by_time(times: np.ndarray, size: int) -> np.ndarray:
    """Return which rows are the newest; those of one time are not parted, so that the number may
    differ from ``size``.

    Args:
        times: Of each row, shape ``(rows,)``.
        size: How many rows are wanted.

    Returns:
        Of booleans, shape ``(rows,)``; none are true where all times are the same.
    """
    distinct, counts = np.unique(times, return_counts=True)
    newest = np.cumsum(counts[::-1])[:-1]  # rows from each time on, but for the oldest
    if not len(newest) or not size:
        return np.zeros(len(times), dtype=bool)
    begin = distinct[::-1][np.argmin(np.abs(newest - size))]
    return np.asarray(times >= begin)


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
