"""The values of options, as rules read them."""

from collections.abc import Collection, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

Mistakes = Iterator[str]  # a message for each mistake: what a rule yields


class OptionValues(SimpleNamespace):
    """The values of options by name, of a recipe and, once they are known, of a training.

    An option that the recipe does not have, or that is not known yet, is None.

    Attributes:
        typed: The options that the user set.
        overridden: The names of steps and options that the recipe's own classes define.
    """

    typed: Mapping[str, Any]
    overridden: Collection[str]

    def __getattr__(self, name: str) -> Any:
        return None

    def beside(self, arguments: SimpleNamespace, typed: Mapping[str, Any]) -> "OptionValues":
        """Return these options of a recipe beside training arguments, and all that the user set."""
        return OptionValues(**{**vars(self), **vars(arguments), "typed": typed})
