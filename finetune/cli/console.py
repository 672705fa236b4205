"""What a person sees: the block at the start, the table at the end, and no chatter of the
libraries.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from shutil import get_terminal_size
from textwrap import TextWrapper, fill
from typing import Any

from finetune.runtime import distributed
from finetune.runtime.terminal import visible

_HUGE = 1e9


def say(text: str = "") -> None:
    """Print a line to standard output, from rank 0 only, above a progress bar if there is one."""
    if distributed.ranks().rank == 0:
        try:
            with _above_bars():
                print(visible(text), flush=True)
        except OSError:  # a closed pipe or terminal: nobody reads any more; the training goes on
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def sentence(text: str, indent: int = 0) -> None:
    """Print a paragraph, on a terminal folded at words to its width, all but the first line of it
    indented.
    """
    if sys.stdout.isatty():
        width = max(40, min(100, get_terminal_size().columns))
        lines = visible(text).splitlines()
        hanging = " " * indent
        text = "\n".join(
            fill(line, width, break_on_hyphens=False, subsequent_indent=hanging) for line in lines
        )
    say(text)


def tell(text: str) -> None:
    """Print a line to standard error, from rank 0 only."""
    if distributed.ranks().rank == 0:
        with contextlib.suppress(OSError):
            print(visible(text), file=sys.stderr, flush=True)


def data(text: str) -> str:
    """Return text for standard output: as it is for a file or a pipe, visible on a terminal."""
    return visible(text) if sys.stdout.isatty() else text


def _above_bars() -> contextlib.AbstractContextManager[object]:
    """Take progress bars away while a line is printed; where there are none, tqdm is not loaded."""
    if "tqdm" not in sys.modules:
        return contextlib.nullcontext()
    from tqdm import tqdm

    bars: contextlib.AbstractContextManager[object] = tqdm.external_write_mode(file=sys.stdout)
    return bars


def block(title: str, facts: Mapping[str, str | Iterable[str]]) -> None:
    """Print a title and its facts, a line each, folded to the width of the terminal."""
    width = max(40, min(100, get_terminal_size().columns))
    indent = max(map(len, facts)) + 4
    folder = TextWrapper(max(20, width - indent), break_on_hyphens=False, break_long_words=False)
    say(title)
    for name, value in facts.items():
        lines = [value] if isinstance(value, str) else list(value)
        folded = [part for line in lines for part in folder.wrap(visible(line, "")) or [""]]
        for number, line in enumerate(folded):
            say(f"  {name if number == 0 else '':<{indent - 4}}  {line}")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print columns as wide as their widest cell; the first is aligned left, the others right.

    A ``header`` of empty cells is left out.
    """
    lines = (header, *rows) if any(header) else rows
    cells = [[visible(cell, "") for cell in row] for row in lines]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for first, *rest in cells:
        aligned = [f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True)]
        say("  " + "  ".join([f"{first:<{widths[0]}}", *aligned]).rstrip())


def two_each(names: Iterable[str]) -> list[str]:
    """Return the header of :func:`with_intervals`: each name, then an empty cell."""
    return [cell for name in names for cell in (name, "")]


def with_intervals(metrics: Mapping[str, Any], columns: Sequence[str], sign: str = "") -> list[str]:
    """Return two cells for each metric, the value and its interval, empty where it is missing or,
    as that of a single row, has no width; ``sign`` is ``"+"`` for differences.
    """
    from finetune.reporting import wording

    cells = []
    for estimate in map(metrics.get, columns):
        cells += [score(estimate["value"], sign)] if estimate else [""]
        wide = estimate is not None and estimate["low"] < estimate["high"]
        if not estimate or not wide:
            cells += [""]
            continue
        digits = max(3, wording.digits(estimate) or 0)  # of numbers in small units
        ends = (score(estimate[end], sign, digits) for end in ("low", "high"))
        cells += [f"[{', '.join(ends)}]"]
    return cells


def score(value: float, sign: str = "", digits: int = 4) -> str:
    """Return a score with that many digits after the point, four in all of a huge one."""
    if math.isnan(value):
        return "undefined"
    return f"{value:{sign}.4g}" if abs(value) >= _HUGE else f"{value:{sign}.{digits}f}"


def targets(targets_metrics: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the metrics of each of several numbers."""
    metrics = list(next(iter(targets_metrics.values())))
    rows = [
        [name, *with_intervals(estimates, metrics)] for name, estimates in targets_metrics.items()
    ]
    table(["target", *two_each(metrics)], rows)


def quiet() -> None:
    """Silence what of the libraries means nothing to the user: load reports, config dumps, bars
    for a file. ``--log_level info`` brings the library's own words back.
    """
    import datasets
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    datasets.logging.set_verbosity_error()
    if distributed.ranks().rank != 0 or not sys.stderr.isatty():
        datasets.disable_progress_bars()
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(transformers|accelerate|datasets|torch)(\.|$)")
