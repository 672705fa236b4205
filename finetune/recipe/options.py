"""The options of a recipe: its fields, and what their values may be."""

from __future__ import annotations

import dataclasses
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from finetune.errors import suggestion, typed_as


def option(default: Any, help: str, several: str | None = None) -> Any:
    """Return a field of a recipe: an option with its default and its help.

    Args:
        default: Its value where nothing is given.
        help: One line without the default, which the command line adds.
        several: How several values are written, ``NAME,NAME`` or ``NAME=VALUE,NAME=VALUE``, where
            the option takes them; in Python and YAML they may be a list, or a mapping.
    """
    metadata = {"help": help} | ({} if several is None else {"metavar": several})
    return dataclasses.field(default=default, metadata=metadata)


def help_group(recipe: type, name: str) -> str:
    """Return the topic under which the help shows an option; empty for one that a recipe adds.

    It is the ``help_group`` of the class that declares the option first, or the topic that a
    class gives it by name in ``help_groups``.
    """
    for cls in reversed(recipe.__mro__):
        if name in vars(cls).get("__annotations__", {}):
            return str(vars(cls).get("help_groups", {}).get(name, vars(cls).get("help_group", "")))
    return ""


def comma_lists(recipe: Any) -> dict[str, str]:
    """Return how the options that take several values are written, by name."""
    forms = {field.name: field.metadata.get("metavar", "") for field in dataclasses.fields(recipe)}
    return {name: form for name, form in forms.items() if "," in form}


def mistakes(recipe: Any) -> list[str]:
    """Return a line for each option that has a value it may not have.

    Flags are typed by their parser; what comes from a notebook is not.
    """
    hints, lines = get_type_hints(type(recipe)), []
    for name in (field.name for field in dataclasses.fields(recipe)):
        value, allowed = getattr(recipe, name), get_args(hints[name]) or (hints[name],)
        is_plain = all(kind in (bool, int, float, str, NoneType) for kind in allowed)
        if get_origin(hints[name]) is Literal and value not in allowed:
            lines.append(
                f"--{name} {value}: expected {', '.join(allowed[:-1])} or {allowed[-1]}"
                f"{suggestion(str(value), allowed)}"
            )
        elif is_plain and type(value) not in ((*allowed, int) if float in allowed else allowed):
            expected = " or ".join(typed_as(kind) for kind in allowed if kind is not NoneType)
            is_short = "\n" not in repr(value)
            shown = repr(value) if is_short else f"an object of type {type(value).__name__}"
            lines.append(f"--{name}: expected {expected}, found {shown}")
        elif name in ("train_samples", "eval_samples") and value is not None and value < 1:
            lines.append(f"--{name} {value}: expected a number of rows, 1 or more")
        elif name == "metrics" and value and recipe.own_metrics:
            lines.append(f"--metrics {value}: the recipe computes its own")
        elif name == "split_seed" and not 0 <= value < 2**32 - 2:  # two more are made of it
            lines.append(f"--{name} {value}: expected a number from 0 to {2**32 - 3}")
    return lines
