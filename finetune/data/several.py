"""Options that take several values: a text with commas between them, or a list, or a mapping.

The text is what the command line takes and a manifest keeps. A value with a comma of its own stands
in quotation marks, as in a CSV: ``'"a, b",c'``. So does one with blanks
around it: ``'" Yes"=yes'``.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Collection, Iterable, Mapping
from numbers import Number
from typing import Any

from finetune.errors import UserError

#: A value, or its beginning, in quotation marks, and what marks them; no text has that.
_QUOTED, _MARK = re.compile(r'(^ *|, *)"((?:[^"]|"")*)"', re.M), "\x01"


def values_in(text: str, *, empty: bool = False) -> list[str]:
    """Return the values in ``text``, and the empty ones if wanted; blanks around them are left out,
    but for those inside quotation marks.
    """
    found = map(_unmarked, _marked(text))
    return [each for each in found if empty or each.strip()]


def pairs_in(text: str) -> list[tuple[str, str, str]]:
    """Return each value in ``text``, and what stands before and after its first ``=``: without
    blanks around them, but for those inside quotation marks, as in ``" Yes"=yes``.
    """
    found = []
    for each in _marked(text):
        before, _, after = each.partition("=")
        found.append((_unmarked(each), _unmarked(before.strip()), _unmarked(after.strip())))
    return found


def _marked(text: str) -> Iterable[str]:
    """Yield values with a mark where a quotation mark was, so that blanks inside are kept."""
    marked = _QUOTED.sub(rf'\1"{_MARK}\2{_MARK}"', text)
    for line in csv.reader(io.StringIO(marked, newline=""), skipinitialspace=True):
        yield from (each.strip() for each in line)


def _unmarked(value: str) -> str:
    return value.replace(_MARK, "")


def joined(values: Iterable[str]) -> str:
    """Return the text that has these values."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="").writerow(values)
    return text.getvalue()


def joined_pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """Return the text that has these pairs; what has blanks around it stands in quotation marks."""
    words = []
    for first, second in pairs:
        quoted = first.replace('"', '""')
        is_plain = first == first.strip()
        words.append(joined([f"{first}={second}"]) if is_plain else f'"{quoted}"={second}')
    return ",".join(words)


def as_text(value: Any, form: str, flag: str) -> Any:
    """Return a list or a mapping as the text of an option; any other value as it is.

    Args:
        value: As given in Python or in YAML.
        form: How the text is written: ``NAME,NAME`` or ``NAME=WEIGHT,NAME=WEIGHT``.
        flag: The option, for messages.

    Raises:
        UserError: if it cannot be written so.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Collection):
        return value
    takes_pairs = "=" in form
    expected = f"{flag}: expected {form}{', a mapping' * takes_pairs} or a list"
    if isinstance(value, (set, frozenset)):
        raise UserError(f"{expected}, found a set, which has no order")
    if isinstance(value, Mapping) and not takes_pairs:
        raise UserError(f"{expected}, found a mapping, {value!r}")
    if not len(value):
        raise UserError(f"{expected}, found nothing in {value!r}")
    if not isinstance(value, Mapping):
        return joined(_word(each, flag) for each in value)
    names = [_word(each, flag, blanks=True) for each in value]
    if unclear := [each for each in names if "=" in each]:
        raise UserError(f"{flag}: '{unclear[0]}' has '=', which stands between name and value")
    words = [_word(each, flag) for each in value.values()]
    return joined_pairs(zip(names, words, strict=True))


def _word(value: Any, flag: str, *, blanks: bool = False) -> str:
    if not isinstance(value, (str, Number, os.PathLike)):
        raise UserError(f"{flag}: expected text or a number in the list, found {value!r}")
    if not (word := str(value)).strip() or (word != word.strip() and not blanks):
        raise UserError(f"{flag}: expected values without blanks around them, found {word!r}")
    return word
