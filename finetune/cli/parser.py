"""The flags of the subcommands; those of a recipe are read by ``config/parser.py``."""

from __future__ import annotations

import argparse
import inspect
from typing import Any, NoReturn

from finetune.cli import console
from finetune.errors import UserError
from finetune.runs.run import Run
from finetune.runtime import distributed
from finetune.training.options import describe_unknown


def load_run(path: str, trust_recipe: bool) -> Run:
    """Return the run in a directory; the files that it names are imported if the user trusts it."""
    run = Run.load(path)
    if trust_recipe:
        run.trust(console.tell)
    return run


class Parser(argparse.ArgumentParser):
    """``argparse`` for a subcommand, whose mistakes are a ``UserError``."""

    def __init__(self, verb: str, description: str | None) -> None:
        super().__init__(
            prog=f"python -m finetune {verb}",
            description=description and inspect.cleandoc(description.replace("``", "`")),
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.verb = verb

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        """Add an argument; a flag can be written with dashes, too, which the help leaves out."""
        action = super().add_argument(*names, **options)
        flags = [name for name in names if name.startswith("--")]
        if dashed := [name.replace("_", "-") for name in flags if "_" in name]:
            hidden = {**options, "dest": action.dest, "help": argparse.SUPPRESS}
            super().add_argument(*dashed, **hidden)
        return action

    def add_trust_recipe(self) -> None:
        """Add ``--trust_recipe``, of the subcommands that read a run."""
        self.add_argument(
            "--trust_recipe",
            action="store_true",
            help="import the recipe file and the metric files that the run names, which runs their "
            "code; path and sha256 are shown (default: only installed recipes are imported)",
        )

    def refuse_launcher(self) -> None:
        """Refuse several processes, which would all write the same files."""
        if distributed.under_launcher():
            raise UserError(f"{self.verb} runs in one process: python -m finetune {self.verb} ...")

    def error(self, message: str) -> NoReturn:
        """Raise a ``UserError``, for unknown flags with the nearest known ones."""
        _, _, left = message.partition("unrecognized arguments: ")
        flags_of_verb = [*self._option_string_actions]
        flags = [word.partition("=")[0] for word in left.split() if word.startswith("--")]
        unknown = [describe_unknown(flag, flags_of_verb) for flag in flags]
        mistakes = unknown or [f"unexpected words: {left}" if left else message]
        raise UserError(*(f"{self.verb}: {mistake}" for mistake in mistakes))
