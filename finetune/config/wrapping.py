"""Text of a help page, wrapped at the width of the terminal; 80 where there is none."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from shutil import get_terminal_size
from textwrap import TextWrapper

_NARROWEST, _WIDEST = 40, 100
#: What begins a line that is no part of a paragraph: a command, an item, a line further in.
_OWN_LINE = re.compile(r"\s|[-*] |python |torchrun |accelerate ")
_QUOTED, _NO_BREAK = re.compile(r'"[^"]*"'), "\N{NO-BREAK SPACE}"


def prose(text: str) -> str:
    """Return a docstring with its paragraphs wrapped.

    Commands, items and indented lines stay lines of their own. A command that is wider than the
    terminal is continued with a backslash, as a shell reads it, below its comment.
    """
    lines: list[str] = []
    for is_own, group in groupby(inspect.cleandoc(text).splitlines(), _is_own):
        if is_own:
            lines += [part for line in group for part in _folded(line)]
        else:
            lines += _paragraphs(group)
    return "\n".join(lines)


def table(described: Mapping[str, str]) -> list[str]:
    """Return names and what they mean, in two columns."""
    indent = max(map(len, described), default=0) + 4
    found = []
    for name, text in described.items():
        start = f"  {name:<{indent - 2}}"
        found += _wrapper(start, " " * indent).wrap(text) or [start.rstrip()]
    return found


def _is_own(line: str) -> bool:
    return bool(_OWN_LINE.match(line))


def _folded(line: str) -> Iterator[str]:
    """Yield a line in parts that the terminal has room for."""
    bare = line.lstrip()
    indent = line[: len(line) - len(bare)]
    wrapper = _wrapper(indent, f"{indent}    ")
    if len(line) <= wrapper.width:
        yield line
        return
    if " -m finetune " not in bare:
        yield from _wrapper(indent, f"{indent}  ").wrap(bare)
        return
    command, _, comment = bare.partition(" # ")
    if comment:
        yield from _wrapper(f"{indent}# ", f"{indent}# ").wrap(comment)
    if len(indent + command.rstrip()) > wrapper.width:
        wrapper.width -= len(" \\")
    whole = _QUOTED.sub(lambda text: text[0].replace(" ", _NO_BREAK), command)
    *continued, last = (part.replace(_NO_BREAK, " ") for part in wrapper.wrap(whole))
    yield from (f"{part} \\" for part in continued)
    yield last


def _paragraphs(lines: Iterator[str]) -> Iterator[str]:
    for has_words, group in groupby(lines, bool):
        paragraph = list(group)
        yield from _wrapper().wrap(" ".join(paragraph)) if has_words else paragraph


def _wrapper(first: str = "", others: str = "") -> TextWrapper:
    # argparse leaves as much to the right
    width = max(_NARROWEST, min(_WIDEST, get_terminal_size().columns - 2))
    return TextWrapper(
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
