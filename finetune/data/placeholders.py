"""What people write where there is nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: As a class: in lower case ``none`` and ``na`` can be the name of one.
_CLASSES = (
    *("nan", "NaN", "NAN", "NaT", "None", "null", "Null", "NULL"),
    *("n/a", "N/A", "#N/A", "NA", "<NA>", r"\N", "?"),
)
#: What a spreadsheet writes where a formula failed.
_FAILED = ("#REF!", "#NAME?", "#VALUE!", "#DIV/0!", "#NUM!", "#NULL!", "#SPILL!", "#CALC!")
#: Numbers that stand for a missing one in statistics, where no other is half as large.
_CODE = re.compile(r"-9+|99+")
#: As a group, in lower case.
_GROUPS = {"n/a", "#n/a", "na", "<na>", "nan", "none", "null", "nil", "unknown", "-", "--", "?"}


def is_no_class(name: str) -> bool:
    """Return whether the name of a class stands for a missing label, as far as can be seen."""
    return name.strip() in _CLASSES + _FAILED


def codes(names: Sequence[str]) -> list[str]:
    """Return those names of classes that are numbers like -99 beside smaller ones, or the only
    number and that below 0, which stand for a missing label in statistics.
    """
    numbers = {name: int(name) for name in names if re.fullmatch(r"-?\d{1,9}", name)}
    found = [name for name in numbers if _CODE.fullmatch(name)]
    others = [abs(value) for name, value in numbers.items() if name not in found]
    if not others:
        return [name for name in found if name.startswith("-") and len(numbers) < 2 < len(names)]
    return [name for name in found if 2 * max(others) < abs(numbers[name])]


def is_no_group(name: str) -> bool:
    """Return whether the name of a group stands for a missing one, as far as can be seen."""
    return name.strip().casefold() in _GROUPS
