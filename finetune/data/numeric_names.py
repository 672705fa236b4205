"""Names of classes, and other values, that are numbers, and the order that this gives them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any


def number(value: Any) -> float | None:
    """Return a value that is a number, or the text of one, without underscores; None of any other:
    a word, a truth value, a list.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        return None
    try:
        return float(value) if "_" not in str(value) else None
    except ValueError:
        return None
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def are_numbers(names: Sequence[str]) -> bool:
    """Return whether all names of classes are numbers."""
    return not any(is_word for is_word, *_ in map(natural, names))


def has_fractions(names: Sequence[str]) -> bool:
    """Return whether the names of some classes are numbers with a fraction."""
    numbers = (natural(each) for each in names)
    return any(not (is_word or number.is_integer()) for is_word, number, _ in numbers)


def in_order(names: Sequence[str], known: Sequence[str]) -> bool:
    """Return whether the order of classes is known: they are among those that have one, ``known``,
    or numbers that ascend.
    """
    numbers = are_numbers(names) and list(names) == sorted(names, key=natural)
    return set(names) <= set(known) or numbers


def natural(name: str) -> tuple[int, float, str]:
    """Return a key that sorts names: numbers first, as numbers."""
    value = number(name)
    if value is None or not math.isfinite(value):  # nan sorts anywhere
        return (1, 0.0, name)
    return (0, value, name)


def exact(name: str) -> Decimal | str:
    """Return the number that a name is, not rounded; the name if it is a word."""
    if natural(name)[0]:
        return name
    try:
        return Decimal(name)
    except InvalidOperation:  # an exponent of 19 digits
        return name
