"""Train a recipe with several seeds: is a change more than the luck of a seed?"""

from typing import Any

from finetune.config.settings import Settings
from finetune.errors import UserError
from finetune.pipeline.events import Noted, Progress, ignore
from finetune.recipe import Recipe
from finetune.reporting.tables import format_number
from finetune.runtime import distributed
from finetune.sets.report import write_report
from finetune.sets.run_set import RunSet, open_set, prepare_set, run_one


def repeat(
    recipe: str | type[Recipe] | Recipe,
    *,
    seeds: int = 5,
    progress: Progress = ignore,
    **options: Any,
) -> RunSet:
    """Train a recipe with several seeds on the same splits; the same call continues the set.

    Args:
        recipe: The name of a recipe, the path of a recipe file, a recipe class, or an instance.
        seeds: The number of runs. Their seeds are ``seed``, ``seed`` + 1 and so on.
        progress: Called with each event, e.g. ``print``.
        **options: As in :func:`finetune.train`. ``output_dir`` is the directory of the set; the
            default is ``runs/RECIPE-seeds``.

    Raises:
        UserError: If the options or the data have errors, or if the directory has another set.
    """
    run_set = run_repeat(Settings.from_keywords(recipe, options), progress, seeds)
    if distributed.is_main_process():
        write_report(run_set)
    return run_set


def run_repeat(base: Settings, progress: Progress, seeds: int = 5) -> RunSet:
    """Train with several seeds; every process calls this.

    Args:
        base: The settings that the runs share.
        progress: Called with each event.
        seeds: The number of runs.
    """
    if seeds < 2:
        raise UserError(f"--seeds {seeds}: expected 2 or more")
    first: int = base.training.get("seed", base.recipe.defaults()["seed"])
    prepared = prepare_set("repeat", base, {"seed": first}, {"seeds": seeds}, progress)
    run_set = open_set("repeat", prepared)
    for number, seed in enumerate(range(first, first + seeds), start=1):
        directory = run_set.path / f"seed-{seed}"
        changes = {"seed": seed, "output_dir": str(directory), "resume": True}
        run = run_one(base.with_options(changes), progress)
        if distributed.is_main_process():
            metric = run.headline[0]
            score = format_number(run.metrics.test[metric])
            progress(Noted(f"seed {seed} ({number} of {seeds}): {metric} {score} on the test rows"))
    return run_set
