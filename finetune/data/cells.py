"""What a cell of text looks like that should hold labels: a list, several labels in another form,
a number.
"""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import json
import re
import tokenize
from collections import Counter
from collections.abc import Sequence
from typing import Any

#: Digits with a decimal comma, or with commas between thousands.
COMMA = re.compile(r"[+-]?\d+,\d+|[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
#: Of these digits nobody can tell which of the two it is: 1,137.
_EITHER = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
_UNIT = re.compile(r"[$€£¥] ?\d[\d.,]*|[+-]?\d[\d.,]* ?(?!(st|nd|rd|th)\b)([%°$€£¥]|[^\W\d_]{1,4})")
_CONSTRUCTED = re.compile(r"(array|set|frozenset|dict|Index|Series)\(.*\)", re.DOTALL)
_SYNTAX = (ValueError, SyntaxError, MemoryError, RecursionError)
_FORMS = {"tuple": "a tuple", "set": "a set", "dict": "a dictionary"}
#: Signs that stand between labels.
SEPARATORS = (";", "|", ",")
_MOST_WORDS = 3  # of a label beside such a sign


def list_in(cell: Any) -> list[Any] | None:
    """Return the list that a cell is, or holds in JSON or Python syntax; None if it holds none.

    Strings side by side, which Python would join, are no list: NumPy prints arrays so.
    """
    if not isinstance(cell, str):
        return cell if isinstance(cell, list) else None
    if not (text := cell.strip()).startswith("["):
        return None
    with contextlib.suppress(*_SYNTAX):
        return list(json.loads(text))
    with contextlib.suppress(*_SYNTAX):
        found = ast.literal_eval(text)
        return found if isinstance(found, list) and not _has_neighbours(text) else None
    return None


def _has_neighbours(text: str) -> bool:
    """Return whether two strings stand side by side in Python syntax."""
    kinds = (each.type for each in tokenize.generate_tokens(io.StringIO(text).readline))
    shown = (kind for kind in kinds if kind != tokenize.NL)
    return any(both == (tokenize.STRING,) * 2 for both in itertools.pairwise(shown))


def printed(cell: Any) -> str:
    """Return what a text is that is no list but holds several values, such as ``a tuple``; an empty
    text if it is a word.
    """
    text = cell.strip() if isinstance(cell, str) else ""
    if text[:1] == "[" and text[-1:] == "]" and list_in(text) is None:
        return "a list without commas or quotation marks" if re.search(r"[\s,]", text) else ""
    if _CONSTRUCTED.fullmatch(text):
        return "an object as Python prints it"
    if text[:1] in ("(", "{"):
        for parse in (ast.literal_eval, json.loads):
            with contextlib.suppress(*_SYNTAX):
                return _FORMS.get(type(parse(text)).__name__, "")
    return ""


def separated(labels: Sequence[str]) -> tuple[str, str] | None:
    """Return the sign that seems to stand between several labels, and the first label that has it.

    Of a comma, which names have too, that is so where what it separates occurs in other labels.

    Args:
        labels: The different ones.
    """
    for sign in SEPARATORS:
        cells = {each: {part.strip() for part in each.split(sign)} - {""} for each in labels}
        counts = Counter(itertools.chain.from_iterable(cells.values()))
        for label, parts in cells.items():
            if len(parts) < 2 or any(len(part.split()) > _MOST_WORDS for part in parts):
                continue
            alone = not parts.isdisjoint(cells)
            if sign != "," or alone or all(counts[part] > 1 for part in parts):
                return sign, label
    return None


def about_comma(text: str) -> str:
    """Return what was expected instead of a number with a comma; empty if it is none."""
    if not COMMA.fullmatch(text.strip()):
        return ""
    if _EITHER.fullmatch(text.strip()):
        whole, point = text.replace(",", "").strip(), text.replace(",", ".").strip()
        return f"'{text}' may be {whole} or {point}; expected a decimal point and no other sign"
    return "expected a decimal point and no other sign"


def has_unit(text: str) -> bool:
    """Return whether a text is a number with a short unit, or with the sign of a currency."""
    return _UNIT.fullmatch(text.strip()) is not None
