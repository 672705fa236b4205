"""Print lines, blocks and tables, and silence the messages of the libraries."""

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


def print_line(text: str = "") -> None:
    """Print a line to standard output, from rank 0 only, above a progress bar if there is one."""
    if distributed.is_main_process():
        try:
            tqdm.write(visible(text), file=sys.stdout)
            sys.stdout.flush()
        except OSError:  # the pipe or the terminal is closed: the training continues without it
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def print_stderr(text: str) -> None:
    """Print a line to standard error, from rank 0 only."""
    if distributed.is_main_process():
        with contextlib.suppress(OSError):
            print(visible(text), file=sys.stderr, flush=True)


class _Terminal(io.StringIO):
    """Standard output on a terminal; control characters are printed as escapes, e.g. ``\\x1b``."""

    def write(self, text: str) -> int:
        return sys.stdout.write(visible(text))


def open_stdout() -> IO[str]:
    """Return standard output as a UTF-8 text file for rows."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="")
    return _Terminal() if sys.stdout.isatty() else sys.stdout


def print_block(title: str, facts: Mapping[str, str | Iterable[str]]) -> None:
    """Print a title, then each fact as its name and its lines."""
    print_line(title)
    width = max(map(len, facts))
    for name, value in facts.items():
        for number, line in enumerate([value] if isinstance(value, str) else value):
            print_line(f"  {'' if number else name:<{width}}  {visible(line, '')}")


def print_columns(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print columns as wide as their widest cell; the first is aligned left, the others right."""
    lines = (header, *rows) if any(header) else rows
    cells = []
    for row in lines:
        cells.append([visible(cell, "") for cell in row])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for first, *rest in cells:
        aligned = [f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True)]
        print_line("  " + "  ".join([f"{first:<{widths[0]}}", *aligned]).rstrip())


def print_parts(*parts: Table | str) -> None:
    """Print sentences, and tables under their captions, with blank lines between them; the notes of
    a column of a table, if any, are a column after it. Tables without rows are left out.
    """
    for table in parts:
        if isinstance(table, str):
            print_line(f"\n{table}")
            continue
        if not table:
            continue
        print_line(f"\n{table.caption}")
        columns = []
        for name, *cells in zip(table.header, *table.rows, strict=True):
            columns.append([name, *(cell.text for cell in cells)])
            if any(cell.note for cell in cells):
                columns.append(["", *(cell.note for cell in cells)])
        header, *rows = zip(*columns, strict=True)
        print_columns(header, rows)


def import_libraries(*names: str) -> None:
    """Import modules, and silence the messages of the libraries.

    Garbage collection is paused, which saves nearly a third of the time, and later skips all that
    was imported: do not call this in a notebook. ``--log_level info`` shows the messages again.
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
