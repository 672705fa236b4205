"""How a recipe is declared: a class whose annotated fields are its options."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import warnings
from typing import Any

from finetune.errors import UserError
from finetune.recipe.options import option
from finetune.training.resolution import BATCH_SIZES

_RENAMED = "Recipe.parts() is called trainer_kwargs() now; the old name goes in release 0.2"


def declare(cls: Any) -> None:
    """Make a dataclass of a recipe, with the defaults of the classes above merged into its own.

    Raises:
        UserError: If it overrides an option without annotation, which would have no effect, or
            does not name the metrics of its ``compute_metrics``.
    """
    inherited: dict[str, dataclasses.Field[Any]] = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__[1:])):
        inherited |= {field.name: field for field in dataclasses.fields(base)}
    annotated = inspect.get_annotations(cls)
    for name in inherited.keys() & vars(cls).keys():
        if name not in annotated:
            hint: Any = inherited[name].type
            hint = hint if isinstance(hint, str) else inspect.formatannotation(hint)
            raise UserError(
                f"{cls.__name__}.{name} overrides an option without annotation, so it would have "
                f"no effect: write `{name}: {hint} = ...`"
            )
        if not isinstance(value := vars(cls)[name], dataclasses.Field):
            metadata = inherited[name].metadata
            setattr(cls, name, option(value, metadata["help"], metadata.get("metavar")))
    if "compute_metrics" in vars(cls) and "own_metrics" not in vars(cls):
        raise UserError(
            f"{cls.__name__} has a compute_metrics of its own and does not say what it returns: "
            'add `own_metrics = ("NAME", ...)`'
        )
    dataclasses.dataclass(kw_only=True)(cls)
    alias_parts(cls)
    for attribute in ("training", "embedded"):
        values = vars(cls).get(attribute, {})
        replaced = () if values.keys().isdisjoint(BATCH_SIZES) else BATCH_SIZES
        defaults = getattr(super(cls, cls), attribute)
        remaining = {name: defaults[name] for name in defaults if name not in replaced}
        setattr(cls, attribute, {**remaining, **values})


def alias_parts(cls: Any) -> None:
    """Let ``parts()`` stand for ``trainer_kwargs()``, called or overridden, until release 0.2."""
    if "parts" in vars(cls):
        cls.trainer_kwargs = cls.parts
        warnings.warn(_RENAMED, FutureWarning, stacklevel=4)
    elif "trainer_kwargs" in vars(cls):
        trainer_kwargs = cls.trainer_kwargs

        @functools.wraps(trainer_kwargs)
        def parts(self: Any, *arguments: Any, **options: Any) -> Any:
            warnings.warn(_RENAMED, FutureWarning, stacklevel=2)
            return trainer_kwargs(self, *arguments, **options)

        cls.parts = parts
