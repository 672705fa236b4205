"""Whether a value is of the type of an option, for options of recipes and training arguments.

Importing this imports no torch: recipes check their options, and importing one must cost nothing.
"""

from __future__ import annotations

import os
from numbers import Integral, Real
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from finetune.errors import suggestion

#: What is an instance of a type that an option has, and what a message calls it.
_TYPES: dict[Any, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: ((str, os.PathLike), "text"),
    NoneType: (NoneType, ""),
}


def typed_as(kind: type) -> str:
    """Return what a value of a type is called where one is expected: ``a whole number``."""
    return _TYPES[kind][1] if kind in _TYPES else kind.__name__


def find_type_mistake(flag: str, value: Any, hint: Any) -> str:
    """Return what is wrong with a value that is not of a type; empty if nothing is.

    NumPy's numbers and paths are right, too; other types than those of options are not checked.
    """
    kinds = get_args(hint) or (hint,)
    if get_origin(hint) is Literal:
        choices = f"{', '.join(kinds[:-1])} or {kinds[-1]}{suggestion(str(value), kinds)}"
        is_choice = isinstance(value, str) and value in kinds
        return "" if is_choice else f"{flag} {value}: expected {choices}"
    types = tuple(_TYPES[kind][0] for kind in kinds if kind in _TYPES and kind is not bool)
    is_right = bool in kinds if isinstance(value, bool) else isinstance(value, types)
    if is_right or not set(kinds) <= _TYPES.keys():
        return ""
    expected = " or ".join(typed_as(kind) for kind in kinds if kind is not NoneType)
    shown = repr(value) if "\n" not in repr(value) else f"an object of type {type(value).__name__}"
    return f"{flag}: expected {expected}, found {shown}"
