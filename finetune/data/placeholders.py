"""What people write where there is nothing."""

from __future__ import annotations

#: As a class: in lower case ``none`` and ``na`` can be the name of one.
_CLASSES = ("nan", "NaN", "NAN", "None", "null", "Null", "NULL", "n/a", "N/A", "#N/A", "NA", "<NA>")
#: As a group, in lower case.
_GROUPS = {"n/a", "#n/a", "na", "<na>", "nan", "none", "null", "nil", "unknown", "-", "--", "?"}


def is_no_class(name: str) -> bool:
    """Return whether the name of a class stands for a missing label, as far as can be seen."""
    return name.strip() in _CLASSES


def is_no_group(name: str) -> bool:
    """Return whether the name of a group stands for a missing one, as far as can be seen."""
    return name.strip().casefold() in _GROUPS
