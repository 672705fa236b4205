"""Training in worker processes of this machine, from a notebook or a script."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
from typing import TYPE_CHECKING, Any, TextIO

from finetune.config.settings import Settings
from finetune.errors import UserError
from finetune.pipeline.events import Progress, ignore
from finetune.pipeline.preparation import prepare
from finetune.pipeline.train import resolve_settings, run_training
from finetune.runs.run import Run

if TYPE_CHECKING:
    from finetune.recipe import Recipe


def launch(
    recipe: str | type[Recipe] | Recipe,
    *,
    num_processes: int,
    progress: Progress = ignore,
    **options: Any,
) -> Run:
    """Fine-tune in ``num_processes`` worker processes of this machine, with
    DistributedDataParallel; ``accelerate.notebook_launcher`` forks them.

    Args:
        recipe: A name, a path, a recipe class, or a recipe with its options.
        num_processes: How many; on GPUs, at most as many as there are.
        progress: Called with each event, in the worker of rank 0.
        **options: As in :func:`finetune.train`.

    Returns:
        The finished run, read from its directory.

    Raises:
        UserError: What is wrong with the options or the data; it is checked here, before any
            worker starts. Or if a trainer was built in this process: then it cannot be forked.
    """
    from accelerate import notebook_launcher
    from accelerate.state import AcceleratorState, PartialState

    if num_processes < 1:
        raise UserError(f"num_processes={num_processes}: expected 1 or more")
    chosen = resolve_settings(recipe, options)
    if num_processes == 1:
        return run_training(chosen, progress)
    if AcceleratorState._shared_state or PartialState._shared_state:
        raise UserError(
            "launch: a trainer was built in this process, which cannot be forked any more; restart "
            "the kernel and launch first, or start torchrun"
        )
    prepare(chosen, progress, trains=False)
    chosen = dataclasses.replace(chosen)  # the workers divide the batch anew, among themselves
    screen = sys.stdout
    screen.flush()
    with contextlib.redirect_stdout(io.StringIO()):  # it announces "2 CUDAs" also without any
        notebook_launcher(
            _work,
            (chosen, screen, progress),
            num_processes=num_processes,
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",  # torch chooses the port
        )
    return Run.load(chosen.output_dir)


def _work(chosen: Settings, screen: TextIO, progress: Progress) -> None:
    sys.stdout = screen
    run_training(chosen, progress)
