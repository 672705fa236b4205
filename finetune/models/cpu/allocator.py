"""The C library's allocator, told to keep large blocks.

glibc maps a block of megabytes anew each time it is asked for, and the kernel fills its pages with
zeros at the first touch: a tensor of 3 MB costs more than the GELU that fills it. Kept blocks are
warm. Another C library has no such setting, and other allocators that are loaded before it
(jemalloc, tcmalloc) have their own.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of <malloc.h>
_LARGEST = 2**30  # bytes
_LARGEST_ONCE = 2**25  # what glibc took as a threshold before 2.35, on 64 bits
_kept = False  # of this process: it cannot be asked
_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def keep_large_blocks() -> bool:
    """Keep freed blocks of up to 1 GiB in this process (32 MiB with an old glibc), unless the user
    set such a threshold; return whether that is so.
    """
    global _kept
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # Windows; macOS
        return False
    if any(name in os.environ for name in _VARIABLES):
        return False
    mapped = any(mallopt(_MMAP_THRESHOLD, size) for size in (_LARGEST, _LARGEST_ONCE))
    _kept = bool(mallopt(_TRIM_THRESHOLD, _LARGEST) and mapped)
    return _kept


def keeps_large_blocks() -> bool:
    """Return whether this process has been told to, and does."""
    return _kept
