"""Arrays that take seconds to compute, kept in the cache for the next run."""

from __future__ import annotations

import contextlib

import numpy as np

from finetune.data import caches, seals
from finetune.runtime.files import replacing


def find(folder: str, name: str) -> dict[str, np.ndarray] | None:
    """Return arrays that were kept, by name; None if there are none, or they are damaged."""
    cached = caches.place(folder, f"{name}.npz")
    if not seals.intact(cached, lambda sentence: None):
        return None
    with np.load(cached) as content:
        return dict(content)


def keep(folder: str, name: str, **arrays: np.ndarray) -> None:
    """Write arrays for :func:`find`, unless the cache can only be read.

    Args:
        folder: One of :data:`finetune.data.caches.KINDS`.
        name: From all that decides on what they hold.
        **arrays: By their names.
    """
    cached = caches.place(folder, f"{name}.npz")
    with contextlib.suppress(OSError):
        cached.parent.mkdir(parents=True, exist_ok=True)
        with replacing(cached) as new, new.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # taken for its keyword
        seals.seal(cached)
