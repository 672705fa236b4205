"""Check, before a model is loaded, that the machines of a job agree.

Each machine has its own command line, its own libraries and perhaps its own disk. If they differ,
the library carries on regardless: with different rows on each machine, or half a run on one.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finetune.errors import UserError
from finetune.runtime import distributed


def agree(facts: Mapping[str, Any]) -> None:
    """Refuse machines that differ; every rank calls it, inside the process group.

    Raises:
        UserError: on every rank; it names every one of the ``facts`` that differs.
    """
    first, *others = distributed.gather(dict(facts))
    mistakes: dict[str, str] = {}
    for rank, theirs in enumerate(others, start=1):
        for name in dict.fromkeys([*first, *theirs]):
            ours, other = first.get(name, "nothing"), theirs.get(name, "nothing")
            if ours != other and name not in mistakes:
                mistakes[name] = (
                    f"the machines differ in {name}: rank 0 has {ours!r}, rank {rank} has "
                    f"{other!r}; start every machine with the same flags, data and libraries"
                )
    if mistakes:
        raise UserError(*mistakes.values())


def refuse_half_directories(directory: Path, save_on_each_node: bool) -> None:
    """Refuse ``--save_on_each_node`` with a shared output directory, and its absence without one.

    Every rank calls it, inside the process group; the directory need not exist.

    Raises:
        UserError: on every rank.
    """
    shared = _seen_by_all(directory)
    if not shared and not save_on_each_node:
        raise UserError(
            f"--output_dir {directory}: the machines do not share it, so the others could neither "
            "load the best model nor resume; use a shared directory, or add --save_on_each_node "
            "to write the whole run on each machine"
        )
    if shared and save_on_each_node:
        raise UserError(
            f"--save_on_each_node: the machines share {directory} and would overwrite each "
            "other's files; leave it out"
        )


def _seen_by_all(directory: Path) -> bool:
    """Return whether every rank sees a file that rank 0 creates beside the directory."""
    place = directory.absolute()
    beside = next(path for path in (place, *place.parents) if path.is_dir())
    leads, reason = distributed.ranks().rank == 0, None
    probe = beside / distributed.gather(f".finetune-{uuid.uuid4().hex}")[0]
    try:
        if leads:
            probe.touch()
    except OSError as error:
        reason = str(error)
    try:
        if reason := distributed.gather(reason)[0]:
            raise UserError(f"--output_dir {directory}: {reason}")
        return all(distributed.gather(probe.exists()))
    finally:
        if leads:
            probe.unlink(missing_ok=True)
