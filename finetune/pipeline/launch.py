"""Training in worker processes of this machine, from a notebook or a script."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from finetune.config.settings import Settings
from finetune.errors import UserError
from finetune.pipeline.events import Progress, ignore
from finetune.pipeline.preparation import prepare
from finetune.pipeline.train import resolve_settings, run_training
from finetune.recipe import catalog
from finetune.runs.run import Run

if TYPE_CHECKING:
    from finetune.recipe import Recipe

Result = TypeVar("Result")


def launch(
    recipe: str | type[Recipe] | Recipe,
    *,
    num_processes: int,
    progress: Progress = ignore,
    **options: Any,
) -> Run:
    """Fine-tune in ``num_processes`` worker processes of this machine, with
    DistributedDataParallel.

    The workers are forked by ``accelerate.notebook_launcher`` where nothing is initialised yet;
    after a trainer was built in this process, torch's elastic launch starts fresh ones.

    Args:
        recipe: A name, a path, a recipe class, or a recipe with its options.
        num_processes: How many; on GPUs, at most as many as there are.
        progress: Is given each event, in the worker of rank 0; fresh processes import it by its
            name.
        **options: As in :func:`finetune.train`.

    Returns:
        The finished run, read from its directory.

    Raises:
        UserError: What is wrong with the options or the data; it is checked here, before any
            worker starts.
    """
    from accelerate.state import AcceleratorState, PartialState

    if num_processes < 1:
        raise UserError(f"num_processes={num_processes}: expected 1 or more")
    chosen = resolve_settings(recipe, options)
    if num_processes == 1:
        return run_training(chosen, progress)
    prepare(chosen, progress, trains=False)
    chosen = dataclasses.replace(chosen)  # the workers divide the batch anew, among themselves
    screen = sys.stdout
    screen.flush()
    if AcceleratorState._shared_state or PartialState._shared_state:
        _start_fresh(chosen, num_processes, progress)
    else:
        from accelerate import notebook_launcher

        # It announces "2 CUDAs" also where there are none.
        with contextlib.redirect_stdout(io.StringIO()):
            notebook_launcher(
                _work_forked,
                (chosen, screen, progress),
                num_processes=num_processes,
                rdzv_backend="c10d",
                rdzv_endpoint="127.0.0.1:0",
            )
    return Run.load(chosen.output_dir)


def in_fresh_processes(
    num_processes: int, work: Callable[..., Result], *arguments: Any
) -> list[Result]:
    """Return what ``work`` returns in each of so many new processes of this machine, by rank.

    Torch's elastic launch starts them, and chooses the port at which they meet; ``work`` is
    imported by its name, its arguments are pickled.
    """
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    configuration = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_processes,
        run_id="finetune",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        max_restarts=0,
        start_method="spawn",
    )
    results = elastic_launch(configuration, work)(*arguments)
    return [results[rank] for rank in range(num_processes)]


def _work_forked(chosen: Settings, screen: TextIO, progress: Progress) -> None:
    sys.stdout = screen
    run_training(chosen, progress)


def _work_fresh(recipe: str, options: dict[str, Any], progress: Progress) -> None:
    run_training(Settings.from_keywords(recipe, options), progress)


def _start_fresh(chosen: Settings, num_processes: int, progress: Progress) -> None:
    if getattr(sys.modules.get(type(chosen.recipe).__module__), "__file__", None) is None:
        raise UserError(
            f"{type(chosen.recipe).__name__} is defined in the notebook, and a trainer was built "
            "here already: fresh processes cannot import it. Restart the kernel and launch first, "
            "or put the recipe into a file"
        )
    # the class of a recipe file has no importable name: the worker finds it again by the file
    origin = catalog.origin(type(chosen.recipe))
    options = {**chosen.user_options}
    if chosen.hub_token is not None:
        options["hub_token"] = chosen.hub_token
    in_fresh_processes(num_processes, _work_fresh, origin, options, progress)
