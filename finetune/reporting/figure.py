"""A figure of a report: its style, and how it becomes SVG for the page and PNG beside it.

The colours are those of Okabe and Ito (2008), which colour-blind readers can tell apart.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#7F7F7F"
COLOURS = (BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9")
INK = "#010203"  # stands for the colour of the page's text, whichever it is
WIDTH = 7.2  # inches
STYLE: Any = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "font.size": 9,
    "font.family": "sans-serif",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "finetune",
}


@dataclass(frozen=True)
class Plot:
    """A figure, and in ``alt`` what it shows for whoever does not see it."""

    alt: str
    figure: Figure

    def svg(self) -> str:
        """Return an element for a page: no background, the text in the colour of the page's."""
        written = io.StringIO()
        with matplotlib.rc_context(STYLE):
            self.figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
        self.figure.set_layout_engine("none")  # it is laid out; doing it again takes as long again
        element = written.getvalue()
        element = element[element.index("<svg") :].replace(INK, "currentColor")
        return re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)

    def save(self, path: Path) -> None:
        """Write it as PNG, dark on white."""
        with matplotlib.rc_context(STYLE):
            self.figure.savefig(path, dpi=150, facecolor="white")


def figure_of(
    rows: int,
    *,
    height: float,
    width: float = WIDTH,
    ratios: Sequence[float] | None = None,
    share_x: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Return a figure of so many panels one below the other, sizes in inches, ``ratios`` those of
    the heights of the panels.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, sharex=share_x, height_ratios=ratios, squeeze=False)
    return figure, list(axes[:, 0])


def titled(
    axes: Axes, title: str, *, x: str = "", y: str = "", legend: bool = False, percent: str = ""
) -> None:
    """Give a panel its title, the names of its axes and a quiet grid; ``percent`` are the axes of
    shares, like ``"xy"``.
    """
    with matplotlib.rc_context(STYLE):
        axes.set_title(title)
        axes.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        for name in percent:
            getattr(axes, f"{name}axis").set_major_formatter(PercentFormatter(1))
        if legend:
            axes.legend()


def columns(entries: Sequence[Mapping[str, float]], name: str) -> tuple[list[float], list[float]]:
    """Return steps and values of what was logged under a name."""
    there = [entry for entry in entries if name in entry]
    return [entry["step"] for entry in there], [entry[name] for entry in there]
