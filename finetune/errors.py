"""Mistakes of the user, and findings about their data and options.

A :class:`UserError` is a mistake of the person at the keyboard; a broken invariant is an
``assert``. The command line prints it without a traceback, from rank 0 only, with exit status 2.
"""

import contextlib
import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

#: Rows whose place a message names.
SHOWN_PLACES = 5
_USER = re.compile(r"(?<=://)[^\s/]*@")  # what stands before the host in a URL
#: What torch puts before the message of an error in a worker of a data loader.
_IN_WORKER = re.compile(r"Caught UserError in DataLoader worker .*^\S+\.UserError: ", re.S | re.M)


def masked(text: str) -> str:
    """Return ``text`` without users and passwords in URLs, and with ``***`` for the Hub's token."""
    for token in filter(None, map(os.environ.get, ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"))):
        text = text.replace(token, "***")
    return _USER.sub("", text) if "://" in text else text


class UserError(Exception):
    """One or several mistakes, each a line: what was expected, what was found, what to do next."""

    def __init__(self, *mistakes: str) -> None:
        self.mistakes = tuple(masked(_IN_WORKER.sub("", mistake).strip()) for mistake in mistakes)
        super().__init__("\n".join(self.mistakes))

    def __reduce__(self) -> tuple[Any, ...]:  # for the other processes of a job
        return type(self), self.mistakes


class RunError(Exception):
    """What ended a run through no mistake of the user; shown once, without a traceback, with exit
    status 1. ``status`` is that of the run in its ``run.json``.
    """

    status = "failed"


class Diverged(RunError):
    """A loss, a gradient or a weight is not finite."""

    status = "diverged"


Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Suspect:
    """One row that a finding concerns, for ``suspects.csv``.

    Attributes:
        row: Its number in its split of the source, from 0.
        reason: In a few words: ``near-duplicate of row 17 of test``.
        suggested: The label that it probably has; None if there is no suggestion.
        score: How suspicious it is, 0 to 1; None if there is no such number.
    """

    row: int
    reason: str
    suggested: str | None = None
    score: float | None = None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong, suspicious or worth knowing about data or options.

    Attributes:
        name: Its kind, for machines: ``near_duplicates``.
        severity: ``error``: a training refuses it. ``warning``: suspicious. ``info``: a fact.
        message: One sentence with numbers, split and column, without file and line.
        fix: The flag to type or the edit to make; may be empty.
        split: The split of the source that ``rows`` are in.
        rows: Row numbers in that split, from 0, sorted: the first of those concerned.
        count: How many rows it concerns, of ``examined``; may be more than ``rows`` has.
        examined: How many rows were looked at.
        suspects: Details of the rows for ``suspects.csv``, the most suspicious first.
    """

    name: str
    severity: Severity
    message: str
    fix: str = ""
    split: str = ""
    rows: Sequence[int] = ()
    count: int = 0
    examined: int = 0
    suspects: Sequence[Suspect] = ()

    @property
    def facts(self) -> dict[str, Any]:
        """All but the rows, for ``run.json``."""
        return {key: value for key, value in vars(self).items() if key not in ("rows", "suspects")}


class Report:
    """The findings about data and options: the one channel from a recipe to its user.

    A training raises the errors, all at once, and prints the rest; ``check`` prints all of them.

    Attributes:
        findings: In the order in which they were added, each once.
        locate: From a split of the source and row numbers to file and lines: ``a.csv, lines 3, 7``.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self._block_start = 0  # of the findings in the current ``collect`` block
        self.locate: Callable[[str, Sequence[int]], str] = row_numbers

    def add(self, *findings: Finding) -> None:
        """Add findings, except those with a name, split and message that are there already."""
        for finding in findings:
            key = finding.name, finding.split, finding.message
            if key not in {(other.name, other.split, other.message) for other in self.findings}:
                self.findings.append(finding)

    def info(self, message: str, name: str = "note", **details: Any) -> None:
        """Add a fact; ``details`` are attributes of :class:`Finding`."""
        self.add(Finding(name=name, severity="info", message=message, **details))

    def warning(self, message: str, name: str = "remark", **details: Any) -> None:
        """Add something suspicious; likewise."""
        self.add(Finding(name=name, severity="warning", message=message, **details))

    def error(self, message: str, name: str = "refused", **details: Any) -> None:
        """Add a reason for a training to refuse; likewise. :meth:`raise_errors` raises it."""
        self.add(Finding(name=name, severity="error", message=message, **details))

    def fail(self, message: str, name: str = "refused", **details: Any) -> NoReturn:
        """Add a reason after which nothing more can be looked at, and raise all errors."""
        self.error(message, name, **details)
        raise UserError(*self.sentences("error"))

    @contextlib.contextmanager
    def collect(self) -> Iterator[None]:
        """Add the mistakes of a :class:`UserError` as errors, and carry on after the block.

        Errors from before the block do not end it: what comes after them is looked at, too.
        """
        outer_start, self._block_start = self._block_start, len(self.findings)
        try:
            yield
        except UserError as error:
            for mistake in error.mistakes:
                if mistake not in self.sentences("error"):
                    self.error(mistake)
        finally:
            self._block_start = outer_start

    def raise_errors(self) -> None:
        """Raise a :class:`UserError` with all errors if the current block has added any."""
        if any(finding.severity == "error" for finding in self.findings[self._block_start :]):
            raise UserError(*self.sentences("error"))

    def sentences(self, *severities: Severity) -> list[str]:
        """Return the findings of these severities as text, with file and line."""
        return [self.text(finding) for finding in self.findings if finding.severity in severities]

    def text(self, finding: Finding, *, fix: bool = True) -> str:
        """Return message, place and fix of a finding: ``MESSAGE: a.csv, line 3; FIX``."""
        place = self.locate(finding.split, finding.rows) if len(finding.rows) else ""
        message = f"{finding.message}: {place}" if place else finding.message
        return f"{message}; {finding.fix}" if fix and finding.fix else message


def row_numbers(split: str, rows: Sequence[int]) -> str:
    """Return where rows are if no file is known: ``rows 1, 5`` of the split, counted from 1."""
    numbers = ", ".join(str(row + 1) for row in rows[:SHOWN_PLACES])
    return f"row{'s' * (len(rows) > 1)} {numbers}{', ...' * (len(rows) > SHOWN_PLACES)}"


def suggestion(name: str, names: Iterable[object], cutoff: float = 0.5) -> str:
    """Return ``"; did you mean 'yelp'?"`` for the nearest of ``names``, or an empty string."""
    nearest = difflib.get_close_matches(name, list(map(str, names)), n=1, cutoff=cutoff)
    return f"; did you mean '{nearest[0]}'?" if nearest else ""


def counted(number: int, noun: str) -> str:
    """Return ``1 step``, ``2 steps``, ``1,200 steps``."""
    plural = noun + ("es" if noun.endswith(("s", "x", "ch")) else "s")
    return f"{number:,} {noun if number == 1 else plural}"
