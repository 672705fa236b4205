"""What a user did wrong, said so that they know what to type next.

A :class:`UserError` is a mistake of the person at the keyboard; a broken invariant is an
``assert``. The command line prints it without a traceback, from rank 0 only, and exits with status
2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from types import TracebackType


class UserError(Exception):
    """One or several mistakes, each a line: what was expected, what was found, what to do next.

    Args:
        *mistakes: One message for each mistake, so that all of them are reported at once.
    """

    def __init__(self, *mistakes: str) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


class RunError(Exception):
    """What ended a run through no mistake in what was typed: told without a traceback.

    The command line prints it once and exits with status 1.

    Attributes:
        status: Of the run, in its ``run.json``.
    """

    status = "failed"


class Diverged(RunError):
    """A loss, a gradient or a weight is not finite."""

    status = "diverged"


class Mistakes:
    """Collects mistakes, so that all are told at once::

        mistakes = Mistakes()
        with mistakes:
            refuse_this()
        with mistakes:
            refuse_that()
        mistakes.refuse()

    Args:
        found: Those that are known already.
    """

    def __init__(self, found: Sequence[str] = ()) -> None:
        self.found = list(found)

    def add(self, *mistakes: str) -> None:
        """Add mistakes, but for those that are there already."""
        self.found += [each for each in dict.fromkeys(mistakes) if each not in self.found]

    def __enter__(self) -> None:
        """Begin a block whose ``UserError`` is collected."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if isinstance(error, UserError):
            self.add(*error.mistakes)
        return isinstance(error, UserError)

    def hand_to(self, others: Mistakes | None) -> None:
        """Add them to ``others``, or raise them if that is None."""
        if others is None:
            self.refuse()
        else:
            others.add(*self.found)

    def refuse(self) -> None:
        """Raise a ``UserError`` if there is any."""
        if self.found:
            raise UserError(*self.found)


def suggestion(name: str, known: Iterable[object]) -> str:
    """``"; did you mean 'yelp'?"`` for the nearest of ``known``, or an empty string."""
    nearest = difflib.get_close_matches(name, list(map(str, known)), n=1, cutoff=0.5)
    return f"; did you mean '{nearest[0]}'?" if nearest else ""


def counted(number: int, noun: str) -> str:
    """Return ``1 step``, ``2 steps``, ``1,200 steps``."""
    plural = noun + ("es" if noun.endswith(("s", "x", "ch")) else "s")
    return f"{number:,} {noun if number == 1 else plural}"
