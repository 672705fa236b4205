"""The flags of the subcommands; those of a recipe are read by ``config/flags.py``."""

from __future__ import annotations

import argparse
from typing import NoReturn

from finetune.errors import UserError


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
        """Raise a ``UserError``."""
        raise UserError(f"{self.verb}: {message}")
