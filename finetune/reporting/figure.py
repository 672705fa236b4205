"""A figure of a report: its style, and how it becomes SVG for the page and PNG beside it.

The page may be light or dark and as narrow as a phone. So nothing in a figure has a background, its
text takes the colour of the page's, and it is drawn narrow, so that it need not shrink.
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
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from finetune.runtime.files import replacing
from finetune.runtime.terminal import visible

#: Nearly those of Okabe and Ito (2008), which colour-blind readers can tell apart; each has a
#: contrast of 3 to 1 on white and on the page's dark background.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#7F7F7F"
COLOURS = (BLUE, ORANGE, GREEN, "#BC5E92", "#A87400", "#3C8FC4")
MARKERS = "os^Dv<"
INK = "#010203"  # stands for the colour of the page's text, whichever it is
#: Shares from nothing, which is the background, to a blue on which text of either mode is legible.
SHADES = LinearSegmentedColormap.from_list("shades", [f"{BLUE}00", f"{BLUE}CC"])
WIDTH = 4.6  # inches
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
    "font.size": 10,
    "font.family": "sans-serif",
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "svg.hashsalt": "finetune",
}
#: Draws what a function draws in the style of the report.
styled = matplotlib.rc_context(STYLE)


@dataclass(frozen=True)
class Plot:
    """A figure.

    Attributes:
        name: Of its file.
        alt: What it shows, for whoever does not see it.
        figure: What is drawn.
        wide: Whether it has too much in it to shrink with a narrow page, which scrolls it instead.
    """

    name: str
    alt: str
    figure: Figure
    wide: bool = False

    @styled
    def svg(self) -> str:
        """Return an element for a page: no background, the text in the colour of the page's."""
        written = io.StringIO()
        self.figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
        self.figure.set_layout_engine("none")  # it is laid out; doing it again takes as long again
        element = written.getvalue()
        element = element[element.index("<svg") :].replace(INK, "currentColor")
        return re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)

    @styled
    def save(self, path: Path) -> None:
        """Write it as PNG, dark on white."""
        with replacing(path) as new:
            self.figure.savefig(new, format="png", dpi=200, facecolor="white")


def figure_of(
    rows: int,
    *,
    height: float,
    width: float = WIDTH,
    ratios: Sequence[float] | None = None,
    share_x: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Return a figure of so many panels one below the other.

    Args:
        rows: How many panels.
        height: Of the figure, in inches.
        width: Of the figure, in inches.
        ratios: Of the heights of the panels.
        share_x: Whether the panels have one horizontal axis.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, sharex=share_x, height_ratios=ratios, squeeze=False)
    return figure, list(axes[:, 0])


def titled(
    axes: Axes, title: str, *, x: str = "", y: str = "", legend: bool = False, percent: str = ""
) -> None:
    """Give a panel its title, the names of its axes and a quiet grid.

    Args:
        axes: The panel.
        title: Of the panel.
        x: Name of the horizontal axis.
        y: Name of the vertical axis.
        legend: Whether to explain the lines.
        percent: The axes of shares, like ``"xy"``.
    """
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
    finite = [entry for entry in entries if entry.get(name) is not None]  # null: not finite
    return [entry["step"] for entry in finite], [entry[name] for entry in finite]


def short(name: str, longest: int = 22) -> str:
    """Return both ends of a long name: what tells it from others may be at either."""
    name = visible(name, "")
    if len(name) > longest:
        half = longest // 2
        name = f"{name[: half - 1].rstrip()}…{name[-half:].lstrip()}"
    return name.replace("$", r"\$")  # two of them would be a formula
