"""Options that take several values: ``NAME,NAME`` or ``NAME=VALUE,NAME=VALUE``.

The text is what the command line takes and ``run.json`` keeps. A value with a comma, or with blanks
around it that count, is written in quotation marks, as in a CSV: ``'"a, b",c'``, ``'" Yes"=yes'``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from numbers import Number
from typing import Any

from finetune.errors import UserError

#: A value: in quotation marks, perhaps with something behind them, or without.
_ITEM = re.compile(r'\s*(?:"(?P<quoted>(?:[^"]|"")*)"(?P<rest>[^,]*)|(?P<plain>[^,]*))(?:,|$)')


def split_values(text: str, *, keep_empty: bool = False) -> list[str]:
    """Return the values in ``text``, without blanks around those that are not quoted.

    Args:
        text: Of the option.
        keep_empty: Whether empty values are returned too.
    """
    values = [quoted + rest for quoted, rest in _items(text)]
    return [value for value in values if keep_empty or value.strip()]


def split_pairs(text: str) -> list[tuple[str, str, str]]:
    """Return each value in ``text``, and what is before and after its first ``=``."""
    pairs = []
    for quoted, rest in _items(text):
        if quoted and rest.startswith("="):
            pairs.append((quoted + rest, quoted, rest[1:].strip()))
        elif (quoted + rest).strip():
            name, _, value = (quoted + rest).partition("=")
            pairs.append((quoted + rest, name.rstrip(), value.strip()))
    return pairs


def _items(text: str) -> Iterator[tuple[str, str]]:
    """Yield what is in quotation marks in each value, and the rest of it."""
    position, is_last = 0, not text
    while not is_last:
        match = _ITEM.match(text, position)
        assert match is not None  # the third form matches anything up to a comma
        position, is_last = match.end(), not match[0].endswith(",")
        if match["quoted"] is None:
            yield "", match["plain"].strip()
        else:
            yield match["quoted"].replace('""', '"'), match["rest"].strip()


def join_values(values: Iterable[str]) -> str:
    """Return the text that :func:`split_values` reads as these values."""
    return ",".join(
        _quote(value) if re.search('[,"]', value) or value != value.strip() else value
        for value in values
    )


def join_pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """Return the text that :func:`split_pairs` reads as these pairs."""
    return ",".join(
        join_values([f"{name}={value}"]) if name == name.strip() else f"{_quote(name)}={value}"
        for name, value in pairs
    )


def _quote(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'


def format_option(value: Any, form: str, flag: str) -> Any:
    """Return a list or a mapping as the text of an option; any other value as it is.

    Args:
        value: As passed in Python or written in YAML.
        form: How the text is written: ``NAME,NAME`` or ``NAME=WEIGHT,NAME=WEIGHT``.
        flag: The option, for messages.

    Raises:
        UserError: If it cannot be written so.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Collection):
        return value
    pairs = [*value.items()] if isinstance(value, Mapping) else []
    words = [*value, *(word for _, word in pairs)]
    is_list = not isinstance(value, set | frozenset) and (not pairs or "=" in form)
    plain = (str, Number, os.PathLike)
    are_words = all(isinstance(word, plain) and str(word).strip() for word in words)
    if not (words and is_list and are_words) or any("=" in str(name) for name, _ in pairs):
        kinds = "a list or a mapping" if "=" in form else "a list"
        raise UserError(
            f"{flag}: expected {form}, or {kinds} of texts and numbers, found {value!r}"
        )
    if pairs:
        return join_pairs((str(name), str(word)) for name, word in pairs)
    return join_values(map(str, words))
