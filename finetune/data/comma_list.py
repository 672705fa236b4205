"""Options that take several values: ``NAME,NAME`` or ``NAME=VALUE,NAME=VALUE``.

The text is what the command line takes and ``run.json`` keeps. A value with a comma, or with blanks
before it that count, is written in quotation marks, as in a CSV: ``'"a, b",c'``, ``'" Yes=yes"'``.
"""

import csv
import io
import os
import re
from collections.abc import Collection, Iterable, Mapping
from numbers import Number
from typing import Any

from finetune.errors import UserError


def split_values(text: str) -> list[str]:
    """Return the values in ``text``, without blanks before those that are not quoted."""
    lines = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    return [value for line in lines for value in line if value.strip()]


def split_pairs(text: str) -> list[tuple[str, str]]:
    """Return what is before and after the first ``=`` of each value in ``text``."""
    pairs = (value.partition("=") for value in split_values(text))
    return [(name, value.strip()) for name, _, value in pairs]


def join_values(values: Iterable[str]) -> str:
    """Return the text that :func:`split_values` reads as these values."""
    return ",".join(
        '"' + value.replace('"', '""') + '"' if re.search(r'^\s|[,"\r\n]', value) else value
        for value in values
    )


def format_option(value: Any, form: str, flag: str) -> Any:
    """Return a list or a mapping from Python or YAML as the text of an option; other values as
    they are. ``form`` is how the text is written: ``NAME,NAME`` or ``NAME=WEIGHT,NAME=WEIGHT``.

    Raises:
        UserError: If it cannot be written so.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Collection):
        return value
    pairs = value if isinstance(value, Mapping) else {}
    words = [*value, *pairs.values()]
    are_plain = all(isinstance(word, str | Number | os.PathLike) for word in words)
    are_named = "=" in form and not any("=" in str(name) for name in pairs)
    is_valid = words and are_plain and all(str(word).strip() for word in words)
    if not is_valid or isinstance(value, set | frozenset) or (pairs and not are_named):
        expected = f"expected {form}, or a list or mapping of texts and numbers"
        raise UserError(f"{flag}: {expected}, found {value!r}")
    if pairs:
        return join_values(f"{name}={word}" for name, word in pairs.items())
    return join_values(map(str, words))
