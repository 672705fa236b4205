"""Parse and write options with several values: ``NAME,NAME`` or ``NAME=VALUE,NAME=VALUE``.

The command line and ``run.json`` use this form. Values with commas or leading blanks are quoted as
in a CSV file: ``'"a, b",c'``, ``'" Yes=yes"'``.
"""

import csv
import io
import itertools
import os
import re
from collections.abc import Collection, Iterable, Mapping
from numbers import Number
from typing import Any

from finetune.errors import UserError


def split_values(text: str) -> list[str]:
    """Return the values in ``text``, without leading blanks unless they are quoted."""
    lines = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    return list(filter(str.strip, itertools.chain(*lines)))


def split_pairs(text: str) -> list[tuple[str, str]]:
    """Return each value in ``text`` as a pair, split at its first ``=``."""
    pairs = (value.partition("=") for value in split_values(text))
    return [(name, value.strip()) for name, _, value in pairs]


def join_values(values: Iterable[str]) -> str:
    """Return the text that :func:`split_values` splits into ``values``."""
    fields = []
    for value in values:
        if re.search(r'^\s|[,"\r\n]', value):
            value = '"' + value.replace('"', '""') + '"'
        fields.append(value)
    return ",".join(fields)


def format_option(value: Any, form: str, flag: str) -> Any:
    """Return a list or a mapping from Python or YAML as the text of an option; other values are
    returned unchanged.

    Args:
        value: The value of the option.
        form: ``NAME,NAME``, ``NAME=WEIGHT,NAME=WEIGHT`` or the like.
        flag: The option, for the message.

    Raises:
        UserError: If ``value`` cannot be written in this form.
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
