"""Errors and findings: :class:`UserError`, :class:`Finding` and :class:`Findings`.

A user's mistake is a :class:`UserError`; a broken invariant is an ``assert``. The command line
prints a :class:`UserError` on rank 0, without a traceback, and exits with status 2.
"""

import contextlib
import difflib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

#: How many rows a message locates by file and line.
SHOWN_PLACES = 5
_CREDENTIALS = re.compile(r"(?<=://)[^\s/]*@")  # `user:password@` in a URL
#: The text that torch adds before the message of an error in a ``DataLoader`` worker.
_FROM_WORKER = re.compile(r"Caught UserError in DataLoader worker .*^\S+\.UserError: ", re.S | re.M)


def masked(text: str) -> str:
    """Return ``text`` without user names and passwords in URLs, and with ``***`` for Hub tokens."""
    for token in filter(None, map(os.environ.get, ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"))):
        text = text.replace(token, "***")
    return _CREDENTIALS.sub("", text) if "://" in text else text


class UserError(Exception):
    """One or more mistakes, one per line: what was expected, what was found, what to type."""

    def __init__(self, *mistakes: str) -> None:
        self.mistakes = tuple(masked(_FROM_WORKER.sub("", mistake).strip()) for mistake in mistakes)
        super().__init__("\n".join(self.mistakes))

    def __reduce__(self) -> tuple[Any, ...]:  # pickled for the other processes
        return type(self), self.mistakes


class RunError(Exception):
    """A run failed, but not by a mistake of the user. The command line prints it once, without a
    traceback, and exits with status 1. ``status`` is written to ``run.json``.
    """

    status = "failed"


class Diverged(RunError):
    """A loss, a gradient or a weight is not finite."""

    status = "diverged"


class Pruned(RunError):
    """A trial of a search was stopped, because its evaluations are worse than those of others."""

    status = "pruned"


RowPlace = tuple[str, int | str]  # a noun and a number, e.g. ("line", 3), or a file
#: Returns the place of each row of a split.
FindPlaces = Callable[[str, Sequence[int]], list[RowPlace]]
Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Suspect:
    """One row that a finding is about, for ``suspects.csv``.

    Attributes:
        row: The number of the row in its split of the source, from 0.
        reason: Why the row is suspicious, e.g. ``near-duplicate of row 17 of test``.
        suggested: The suggested label, if there is one.
        score: How suspicious the row is, from 0 to 1, if that is known.
    """

    row: int
    reason: str
    suggested: str | None = None
    score: float | None = None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """An error, a warning or a fact about the data or the options.

    Attributes:
        name: The kind of finding, for programs, e.g. ``near_duplicates``.
        severity: ``error`` stops a training, ``warning`` is suspicious, ``info`` is a fact.
        message: One sentence with numbers, split and column, without file and line.
        fix: The flag to type or the edit to make; may be empty.
        split: The split of the source that ``rows`` belong to.
        rows: The numbers of the first affected rows of the split, from 0, sorted.
        count: The number of affected rows; may be more than ``len(rows)``.
        examined: The number of rows that were checked.
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
        """The attributes without ``rows`` and ``suspects``, for ``run.json``."""
        return {key: value for key, value in vars(self).items() if key not in ("rows", "suspects")}


@dataclass
class Facts:
    """What the steps of a recipe found out beside the rows that they return."""

    label_columns: Sequence[str] = ("label",)  # the user's names
    unmapped_labels: Sequence[str] = ()  # in --label_map, but not in the data
    task_reason: str = ""  # the reason for the task, if the labels decide it
    split_how: str = ""  # how rows were split, for people
    corrections: Sequence[dict[str, Any]] = ()  # of each file of corrections


class Findings:
    """All findings about the data and the options of a recipe.

    A training raises all errors at once and prints the rest; ``check`` prints all findings.

    Attributes:
        findings: The findings in the order they were added, without repeats.
        facts: What the steps found out beside the rows that they return.
        find_places: Returns the place of each row, e.g. ``("line", 3)``, for a split and numbers.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self._block_start = 0  # index of the first finding of the current `collect` block
        self.facts = Facts()
        self.find_places: FindPlaces = row_places

    def add(self, *findings: Finding) -> None:
        """Add findings, without those whose name, split and message are already in the report."""
        for finding in findings:
            key = finding.name, finding.split, finding.message
            if key not in {(other.name, other.split, other.message) for other in self.findings}:
                self.findings.append(finding)

    def info(self, message: str, name: str = "note", **details: Any) -> None:
        """Add a fact; ``details`` are attributes of :class:`Finding`."""
        self.add(Finding(name=name, severity="info", message=message, **details))

    def warning(self, message: str, name: str = "remark", **details: Any) -> None:
        """Add a warning; ``details`` are attributes of :class:`Finding`."""
        self.add(Finding(name=name, severity="warning", message=message, **details))

    def error(self, message: str, name: str = "refused", **details: Any) -> None:
        """Add an error, which :meth:`raise_errors` raises; ``details`` as in :meth:`info`."""
        self.add(Finding(name=name, severity="error", message=message, **details))

    def fail(self, message: str, **details: Any) -> NoReturn:
        """Add an error that makes further checks impossible, and raise all errors."""
        self.error(message, **details)
        raise UserError(*self.sentences("error"))

    @contextlib.contextmanager
    def collect(self) -> Iterator[None]:
        """Turn a :class:`UserError` in the block into errors of the report, and continue after it.

        Inside the block, :meth:`raise_errors` ignores the errors that were added before it.
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
        """Raise a :class:`UserError` with all errors if the current block has added an error."""
        if any(finding.severity == "error" for finding in self.findings[self._block_start :]):
            raise UserError(*self.sentences("error"))

    def sentences(self, *severities: Severity) -> list[str]:
        """Return the findings of these severities as text, with file and line."""
        return [self.text(finding) for finding in self.findings if finding.severity in severities]

    def text(self, finding: Finding, *, fix: bool = True) -> str:
        """Return a finding as text: ``MESSAGE: a.csv, line 3; FIX``."""
        message = finding.message
        if len(finding.rows):
            message += f": {locate(self.find_places, finding.split, finding.rows)}"
        if fix and finding.fix:
            message += f"; {finding.fix}"
        return message


def row_places(split: str, rows: Sequence[int]) -> list[RowPlace]:
    """Return the place of each row as its number, from 1; used where no file is known."""
    return [("row", row + 1) for row in rows]


def locate(find_places: FindPlaces, split: str, rows: Sequence[int]) -> str:
    """Return the places of the first few rows as text, e.g. ``lines 5, 9`` or ``a.csv line 3``.

    Args:
        find_places: Returns the place of each row.
        split: The split of the rows.
        rows: The row numbers, from 0.
    """
    groups = []
    places = find_places(split, rows[:SHOWN_PLACES])
    for noun, group in itertools.groupby(places, key=lambda place: place[0]):
        numbers = [str(number) for _, number in group]
        if len(numbers) > 1:
            noun += "s"
        groups.append(f"{noun} {', '.join(numbers)}")
    listed = "; ".join(groups)
    if len(rows) > SHOWN_PLACES:
        listed += ", ..."
    return listed


def list_first(items: Sequence[object], count: int) -> str:
    """Return the first ``count`` items with commas, and ``...`` if there are more."""
    listed = ", ".join(map(str, items[:count]))
    if len(items) > count:
        listed += ", ..."
    return listed


def first_line(error: object) -> str:
    """Return the first line of the message of an error."""
    return str(error).strip().partition("\n")[0]


def suggestion(name: str, names: Iterable[object], cutoff: float = 0.5) -> str:
    """Return ``"; did you mean 'yelp'?"`` for the closest of ``names``, or an empty string."""
    nearest = difflib.get_close_matches(name, list(map(str, names)), n=1, cutoff=cutoff)
    return f"; did you mean '{nearest[0]}'?" if nearest else ""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in the singular or plural: ``1 step``, ``1,200 steps``."""
    if number != 1:
        noun += "es" if noun.endswith(("s", "x", "ch")) else "s"
    return f"{number:,} {noun}"
