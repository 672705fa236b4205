"""What the machines of one job must have in common, found out before a model is loaded.

Each machine has its own command line, its own libraries and perhaps its own disk. Where they
differ, the library goes on: with other rows on each machine, or with half a run on one of them.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finetune.errors import UserError
from finetune.runtime import distributed


def agree(facts: Mapping[str, Any]) -> None:
    """Refuse machines that would not do the same; every rank calls it, in the process group.

    Raises:
        UserError: on every rank, naming each of the ``facts`` that differs.
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
    """Refuse a directory of the run that each machine sees as its own, unless each shall write one.

    Every rank calls it, in the process group; the directory need not exist.

    Raises:
        UserError: on every rank.
    """
    shared = _seen_by_all(directory)
    if not shared and not save_on_each_node:
        raise UserError(
            f"--output_dir {directory}: the machines do not share it, so the others could neither "
            "load the best model nor resume; name a directory that they share, or add "
            "--save_on_each_node, which writes the whole run on each"
        )
    if shared and save_on_each_node:
        raise UserError(
            f"--save_on_each_node: the machines share {directory}, and would write into each "
            "other's files; leave it out"
        )


def _seen_by_all(directory: Path) -> bool:
    """Whether a file that rank 0 makes beside the directory is there for every rank."""
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
