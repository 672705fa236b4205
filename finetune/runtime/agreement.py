"""Check, before a model is loaded, that the machines of a job agree.

Each machine has its own command line, its own libraries and perhaps its own disk. If they differ,
the library carries on regardless: with different rows on each machine, or half a run on one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finetune.errors import UserError
from finetune.runtime import distributed


def agree(facts: Mapping[str, Any]) -> None:
    """Refuse machines that differ; every rank calls it, inside the process group.

    Raises:
        UserError: On every rank, with a line for each of the ``facts`` that differs.
    """
    first, *facts_of_others = distributed.gather(dict(facts))
    mistakes: dict[str, str] = {}
    for rank, other in enumerate(facts_of_others, start=1):
        for name in dict.fromkeys([*first, *other]):
            value, other_value = first.get(name, "nothing"), other.get(name, "nothing")
            if value != other_value:
                mistakes.setdefault(
                    name,
                    f"the machines differ in {name}: rank 0 has {value!r}, rank {rank} has "
                    f"{other_value!r}; start every machine with the same flags, data and libraries",
                )
    if mistakes:
        raise UserError(*mistakes.values())


def refuse_half_directories(directory: Path, save_on_each_node: bool) -> None:
    """Refuse ``--save_on_each_node`` with a shared output directory, and its absence without one.

    Every rank calls it, inside the process group; the directory need not exist.

    Raises:
        UserError: On every rank.
    """
    path, probe = directory.absolute(), None
    existing = next(parent for parent in (path, *path.parents) if parent.is_dir())
    if distributed.is_main_process():
        descriptor, probe = tempfile.mkstemp(prefix=".finetune-", dir=existing)
        os.close(descriptor)
    try:
        name = os.path.basename(distributed.gather(probe)[0])
        is_shared = all(distributed.gather((existing / name).exists()))
    finally:
        if probe is not None:
            os.unlink(probe)
    if not is_shared and not save_on_each_node:
        raise UserError(
            f"--output_dir {directory}: the machines do not share it, so the others could neither "
            "load the best model nor resume; use a shared directory, or add --save_on_each_node "
            "to write the whole run on each machine"
        )
    if is_shared and save_on_each_node:
        raise UserError(
            f"--save_on_each_node: the machines share {directory} and would overwrite each "
            "other's files; leave it out"
        )
