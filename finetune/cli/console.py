"""What a person sees: lines, blocks and tables, and no chatter of the libraries."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING

from tqdm import tqdm

from finetune.runtime import distributed
from finetune.runtime.formats import visible

if TYPE_CHECKING:
    from finetune.reporting.tables import Table


def say(text: str = "") -> None:
    """Print a line to standard output, from rank 0 only, above a progress bar if there is one."""
    if distributed.is_main_process():
        try:
            tqdm.write(visible(text), file=sys.stdout)
            sys.stdout.flush()
        except OSError:  # a closed pipe or terminal: nobody reads any more; the training goes on
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def tell(text: str) -> None:
    """Print a line to standard error, from rank 0 only."""
    if distributed.is_main_process():
        with contextlib.suppress(OSError):
            print(visible(text), file=sys.stderr, flush=True)


class _Terminal(io.StringIO):
    """Standard output on a terminal, where control characters are shown and not obeyed."""

    def write(self, text: str) -> int:
        return sys.stdout.write(visible(text))


def data_file() -> IO[str]:
    """Return a file for rows on standard output, in UTF-8."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="")
    return _Terminal() if sys.stdout.isatty() else sys.stdout


def block(title: str, facts: Mapping[str, str | Iterable[str]]) -> None:
    """Print a title and its facts, a line each."""
    say(title)
    width = max(map(len, facts))
    for name, value in facts.items():
        for number, line in enumerate([value] if isinstance(value, str) else value):
            say(f"  {'' if number else name:<{width}}  {visible(line, '')}")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print columns as wide as their widest cell; the first is aligned left, the others right."""
    lines = (header, *rows) if any(header) else rows
    cells = [[visible(cell, "") for cell in row] for row in lines]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for first, *rest in cells:
        aligned = [f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True)]
        say("  " + "  ".join([f"{first:<{widths[0]}}", *aligned]).rstrip())


def show(*results: Table) -> None:
    """Print tables of results: the caption, then the columns, each with one of its notes."""
    for result in results:
        say(f"\n{result.caption}")
        columns = []
        for name, *cells in zip(result.header, *result.rows, strict=True):
            columns.append([name, *(cell.text for cell in cells)])
            if any(cell.note for cell in cells):
                columns.append(["", *(cell.note for cell in cells)])
        header, *rows = zip(*columns, strict=True)
        table(header, rows)


def import_libraries(*names: str) -> None:
    """Import modules, with garbage collection paused in nearly a third less time, and silence what
    of the libraries means nothing to the user, unless ``--log_level info`` asks for it.

    What is imported is taken to stay as long as the process, so this is not for a notebook.
    """
    gc.disable()
    import datasets
    import transformers

    for name in names:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    datasets.logging.set_verbosity_error()
    if not (distributed.is_main_process() and sys.stderr.isatty()):
        datasets.disable_progress_bars()
    for name in ("torch.distributed", "accelerate"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(transformers|accelerate|datasets|torch)(\.|$)")
