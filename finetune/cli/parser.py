"""The flags of the subcommands; those of a recipe are read by ``config/flags.py``."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from finetune.errors import UserError, option_suggestion


class Parser(argparse.ArgumentParser):
    """``argparse`` for a subcommand, whose mistakes are a ``UserError``."""

    def __init__(self, verb: str, description: str | None) -> None:
        super().__init__(
            prog=f"python -m finetune {verb}",
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.verb = verb

    def error(self, message: str) -> NoReturn:
        """Raise a ``UserError``, for unknown flags with the nearest known ones."""
        _, _, left = message.partition("unrecognized arguments: ")
        known = ["--help", *re.findall(r"--\w+", self.format_usage())]
        flags = [word.partition("=")[0] for word in left.split() if word.startswith("--")]
        unknown = [f"unknown option {flag}{option_suggestion(flag, known)}" for flag in flags]
        found = unknown or [f"unexpected words: {left}" if left else message]
        raise UserError(*(f"{self.verb}: {each}" for each in found))
