"""The flags of the verbs whose options are few; those of a recipe are read by ``flags.py``."""

from __future__ import annotations

import argparse
from typing import NoReturn

from finetune.errors import UserError


class Parser(argparse.ArgumentParser):
    """``argparse`` of a verb whose mistakes are told as all others are."""

    def __init__(self, verb: str, description: str | None) -> None:
        super().__init__(
            prog=f"python -m finetune {verb}",
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.verb = verb

    def error(self, message: str) -> NoReturn:
        """Raises a ``UserError``."""
        raise UserError(f"{self.verb}: {message}")
