"""How a recipe is declared: a class whose annotated fields are its options."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform

from finetune.data.comma_list import format_option
from finetune.errors import Report, UserError
from finetune.recipe.options import comma_lists, mistakes, option
from finetune.training.resolution import BATCH_SIZES

_RENAMED = "Recipe.parts() is called trainer_kwargs() now; the old name goes in release 0.2"


@dataclass_transform(kw_only_default=True, field_specifiers=(option,))
@dataclasses.dataclass(kw_only=True)
class Declared:
    """Makes a dataclass of each class that derives from it, and refuses what would have no effect.

    Attributes:
        training: Defaults of training arguments, merged down the classes.
        embedded: What ``--embedded`` changes, likewise.
        packaged_model: The value of ``--model`` that needs no Hub; empty if there is none.
    """

    training: ClassVar[Mapping[str, Any]] = {}
    embedded: ClassVar[Mapping[str, Any]] = {}
    packaged_model: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        inherited = {field.name: field for field in dataclasses.fields(cls.__mro__[1])}
        annotated = inspect.get_annotations(cls)
        for name in inherited.keys() & cls.__dict__.keys():
            if name not in annotated:
                kind: Any = inherited[name].type
                kind = kind if isinstance(kind, str) else inspect.formatannotation(kind)
                raise UserError(
                    f"{cls.__name__}.{name} overrides an option without annotation, so it would "
                    f"have no effect: write `{name}: {kind} = ...`"
                )
            if not isinstance(value := cls.__dict__[name], dataclasses.Field):
                same = inherited[name].metadata
                setattr(cls, name, option(value, same["help"], same.get("metavar")))
        if "compute_metrics" in cls.__dict__ and "own_metrics" not in cls.__dict__:
            raise UserError(
                f"{cls.__name__} has a compute_metrics of its own and does not say what it "
                'returns: add `own_metrics = ("NAME", ...)`'
            )
        dataclasses.dataclass(kw_only=True)(cls)
        _alias_parts(cls)
        for merged in ("training", "embedded"):
            base_values, values = getattr(cls.__mro__[1], merged), cls.__dict__.get(merged, {})
            replaced = () if values.keys().isdisjoint(BATCH_SIZES) else BATCH_SIZES
            merged_values = {
                name: value for name, value in base_values.items() if name not in replaced
            }
            setattr(cls, merged, {**merged_values, **values})

    if not TYPE_CHECKING:  # type checkers go by the fields

        def __new__(cls, *_: Any, **options: Any) -> Self:
            """Refuse ``embedded``, which belongs to a run, and say what the recipe takes."""
            if "embedded" in options:
                names = {field.name for field in dataclasses.fields(cls)}
                instead = {name: cls.embedded[name] for name in cls.embedded if name in names}
                shown = ", ".join(f"{name}={value!r}" for name, value in instead.items())
                raise UserError(
                    f"{cls.__name__}(embedded=...): 'embedded' is an option of finetune.train and "
                    f"of the command line; a recipe takes {cls.__name__}({shown})"
                )
            return super().__new__(cls)

    def __post_init__(self) -> None:
        self.report = Report()
        self.report.locate = self.places
        wrong = Report()
        for name, form in comma_lists(self).items():
            with wrong.collect():
                setattr(self, name, format_option(getattr(self, name), form, f"--{name}"))
        wrong.raise_errors()
        if lines := mistakes(self):
            raise UserError(*lines)

    def note(self, sentence: str) -> None:
        """Remember what the user must be told, in the start block and the manifest."""
        self.report.info(sentence)

    @property
    def notes(self) -> list[str]:
        """What the user must be told: the warnings and facts of the report, as text."""
        return self.report.sentences("warning", "info")

    def places(self, split: str, rows: Sequence[int]) -> str:
        """Return where rows of a split are in the source, by their numbers, for messages; empty if
        the recipe does not know.
        """
        return ""

    def list_places(self, split: str, rows: Sequence[int]) -> list[str]:
        """Return where each row is: see :meth:`places`."""
        return [self.places(split, [row]) for row in rows]

    @classmethod
    def short_name(cls) -> str:
        """Return the name of its file, or of the class where there is none, as in a notebook."""
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        return Path(file).stem if file else cls.__name__.lower()

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the training arguments of the recipe, and where runs go: no clock in a path."""
        return {"output_dir": f"runs/{cls.short_name()}", **cls.training}


def _alias_parts(cls: Any) -> None:
    """Let ``parts()`` stand for ``trainer_kwargs()``, called or overridden, until release 0.2."""
    methods = cls.__dict__
    if "parts" in methods:
        cls.trainer_kwargs = cls.parts
        warnings.warn(_RENAMED, FutureWarning, stacklevel=4)
    elif "trainer_kwargs" in methods:
        current = cls.trainer_kwargs

        @functools.wraps(current)
        def parts(self: Any, *arguments: Any, **options: Any) -> Any:
            warnings.warn(_RENAMED, FutureWarning, stacklevel=2)
            return current(self, *arguments, **options)

        cls.parts = parts
