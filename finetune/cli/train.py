"""``python -m finetune RECIPE``: train, from the settings to a run directory.

It runs on every rank; only rank 0 prints.
"""

from __future__ import annotations

from collections.abc import Sequence

from finetune.cli import console
from finetune.cli.parser import import_at_once, recipe_and_flags
from finetune.config.settings import Settings, require_hub
from finetune.recipe import catalog
from finetune.runtime import distributed, signals


def main(words: Sequence[str]) -> int:
    """``finetune train RECIPE FLAGS``; the word ``train`` may be left out."""
    if words and words[0] in ("-h", "--help"):
        print(
            "usage: python -m finetune train RECIPE [flags]\n\n"
            "The flags: python -m finetune RECIPE --help"
        )
        return 0
    recipe, flags = recipe_and_flags(words)
    cls = catalog.find(recipe)
    if {"-h", "--help"} & set(flags):
        import_at_once("finetune.training.arguments")
        from finetune.config.parser import RecipeParser

        print(RecipeParser(cls).format_help(), end="")
        return 0
    require_hub(cls, flags)
    import_at_once("datasets", "finetune.training.trainer")

    from finetune.cli import screen
    from finetune.pipeline import train

    console.quiet()
    with signals.handled():
        if distributed.under_launcher():
            signals.leave_with_parent()
        train.run_training(Settings.from_command_line(recipe, flags), screen.Screen())
    return 0
