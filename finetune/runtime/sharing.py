"""What the first process of a machine has prepared, for the others there to map, not to repeat.

It is pickled: of rows in files that is where the files lie and which rows are meant, so that it is
small however many rows there are. The file goes once everyone is ready.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

from finetune.runtime import distributed

_SHARED = "finetune/shared"
_WRITTEN: list[Path] = []


def give(name: str, content: object) -> None:
    """Hand ``content`` to the other processes of this machine, if this is the first of several.

    What cannot be pickled, in a recipe of the user's own, is not handed on: they prepare it too.
    """
    me = distributed.ranks()
    if me.local_rank or me.local_world_size == 1:
        return
    try:
        pickled = pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        return
    descriptor, path = tempfile.mkstemp(prefix="finetune-", suffix=".pickle")  # for this user only
    _WRITTEN.append(Path(path))
    with os.fdopen(descriptor, "wb") as file:
        file.write(pickled)
    distributed.store_of_job().set(_key(name), path)


def taken(name: str) -> Any:
    """Return what the first process of this machine gave; None on that process, or if it gave
    nothing.
    """
    me = distributed.ranks()
    if not me.local_rank:
        return None
    store = distributed.store_of_job()
    if not store.check([_key(name)]):
        return None
    with open(store.get(_key(name)).decode(), "rb") as file:
        return pickle.load(file)


def forget() -> None:
    """Remove what this process gave: the others have it."""
    while _WRITTEN:
        _WRITTEN.pop().unlink(missing_ok=True)


def _key(name: str) -> str:
    me = distributed.ranks()
    return f"{_SHARED}/{me.rank - me.local_rank}/{name}"
