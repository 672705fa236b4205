"""What a user did wrong, said so that they know what to type next.

A :class:`UserError` is a mistake of the person at the keyboard; a broken invariant is an
``assert``. The command line prints it without a traceback, from rank 0 only, and exits with status
2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """One or several mistakes, each a line: what was expected, what was found, what to do next.

    Args:
        *mistakes: One message for each mistake, so that all of them are reported at once.
    """

    def __init__(self, *mistakes: str) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


def suggestion(name: str, known: Iterable[object]) -> str:
    """``"; did you mean 'yelp'?"`` for the nearest of ``known``, or an empty string."""
    nearest = difflib.get_close_matches(name, list(map(str, known)), n=1, cutoff=0.5)
    return f"; did you mean '{nearest[0]}'?" if nearest else ""


def counted(count: int, noun: str) -> str:
    """Return ``"1 row"``, ``"2,000 rows"``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
