"""Pages that need nothing but themselves: no network, no script, every text escaped.

A page is a list of sections, and a section a list of blocks: sentences, tables, plots and lists of
facts. The tables are also what the terminal and the model card show.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from finetune.runtime.files import write_whole

if TYPE_CHECKING:
    from finetune.reporting.plots import Plot

_LONGEST_TEXT = 1200
_LARGEST_IMAGE = 16_384  # bytes


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: The text.
        note: A smaller text after it, such as an interval.
        kind: Its class in the style sheet: ``number``, ``text`` (of any length), ``good``, ``bad``.
        image: The address of an image before the text.
    """

    text: str
    note: str = ""
    kind: str = ""
    image: str = ""


@dataclass(frozen=True)
class Table:
    """A table, whose first column names the rows.

    Attributes:
        caption: What it shows.
        header: The names of the columns, empty for a table without them.
        rows: The cells of each row, as many as the header has.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @property
    def kinds(self) -> list[str]:
        """The class of each column: that of its cells, where all are numbers or texts."""
        columns = [{cell.kind for cell in cells} for cells in zip(*self.rows, strict=True)]
        return [
            next((kind for kind in ("number", "text") if kinds == {kind}), "") for kinds in columns
        ]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [self.header, ["---"] * len(self.header)]
        for row in self.rows:
            lines.append([f"{cell.text} ({cell.note})" if cell.note else cell.text for cell in row])
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


@dataclass(frozen=True)
class Section:
    """A section of a page, which is left out if it has no blocks.

    A block is a sentence, a :class:`Table`, a list of :class:`~finetune.reporting.plots.Plot`, or a
    mapping of facts: texts, or texts with an address.
    """

    title: str
    blocks: Sequence[Any]

    @property
    def plots(self) -> list[Plot]:
        """The plots of all blocks."""
        return [plot for block in self.blocks if isinstance(block, list) for plot in block]


def number(value: float, digits: int = 4, *, signed: bool = False) -> str:
    """Return a score: digits after the point, or four in all of a large one or a tiny one."""
    if math.isnan(value):
        return "undefined"
    form = f".{digits}f" if 0.001 <= abs(value) < 1e6 or value == 0 else f".{digits}g"
    return f"{value:{'+' * signed}{form}}"


def interval(estimate: Mapping[str, float], *, signed: bool = False) -> str:
    """Return the ends of a 95% confidence interval; nothing where there is none."""
    if not estimate["low"] < estimate["high"]:
        return ""
    return " to ".join(number(estimate[end], 3, signed=signed) for end in ("low", "high"))


def count(value: int) -> Cell:
    """Return a cell with a number of rows."""
    return Cell(f"{value:,}", kind="number")


def estimated(estimate: Mapping[str, float] | None, *, signed: bool = False) -> Cell:
    """Return a cell with a score and its interval, empty if there is none."""
    if estimate is None:
        return Cell("", kind="number")
    value = number(estimate["value"], signed=signed)
    return Cell(value, interval(estimate, signed=signed), kind="number")


def estimates(
    scores: Mapping[str, Any], names: Iterable[str], *, signed: bool = False
) -> list[Cell]:
    """Return the cells of several scores."""
    return [estimated(scores.get(name), signed=signed) for name in names]


def write(
    path: Path,
    title: str,
    verdicts: Sequence[str],
    sections: Sequence[Section],
    warnings: Sequence[str] = (),
) -> None:
    """Write a page, whole or not at all.

    Args:
        path: Of the page.
        title: The heading.
        verdicts: The sentences below it.
        sections: What follows.
        warnings: Sentences below the verdicts that stand out.
    """
    environment = Environment(
        loader=PackageLoader("finetune.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("page.html.jinja").render(
        title=title,
        verdicts=verdicts,
        warnings=warnings,
        sections=[section for section in sections if section.blocks],
    )
    write_whole(path, page)


def excerpt(text: str) -> Cell:
    """Return the first 1,200 characters, without blank lines; a page shows line breaks."""
    text = re.sub(r"\s*\n\s*", "\n", text)
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]} … ({len(text):,} characters)"
    return Cell(text, kind="text")


def inlined(jpeg: bytes | None) -> str:
    """Return the address of a small image that holds all of it; empty of none or a large one."""
    if not isinstance(jpeg, bytes) or len(jpeg) > _LARGEST_IMAGE:
        return ""
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"
