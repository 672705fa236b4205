"""The flags of the subcommands; those of a recipe are read by ``config/parser.py``."""

import argparse
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from finetune.errors import UserError, suggestion
from finetune.recipe import ImageRecipe, TextRecipe, catalog
from finetune.runtime.formats import QUOTING

#: Flags of the subcommands that read a run, and of those that compute with its model.
TRUST = {
    "--trust_recipe": "import the recipe file and the metric files that the run names, which runs "
    "their code; path and sha256 are shown (default: only installed recipes are imported)"
}
RUN = {
    "run": "directory of a run, like runs/yelp",
    **TRUST,
    "--cpu_kernels auto|off": "on a CPU: auto for the kernels of this toolkit, off for those of "
    "the libraries (default: as in training)",
}


def recipe_and_flags(words: Sequence[str], verb: str = "") -> tuple[str, list[str]]:
    """Return the name of the recipe, which comes first, and the flags."""
    if not words or words[0].startswith("-"):
        raise UserError(
            f"the name of a recipe comes first: python -m finetune {verb}RECIPE [flags] "
            f"(available: {', '.join(catalog.summaries())})"
        )
    return words[0], list(words[1:])


class Parser(argparse.ArgumentParser):
    """``argparse`` for a subcommand, whose mistakes are a ``UserError``.

    Args:
        verb: The function of the subcommand; its docstring is the description.
        flags: What each flag does: ``--json`` is a switch, ``--output FILE`` takes a text,
            ``--count N`` a whole number, ``--precision fp32|bf16`` one of these.
        reading: Options of a recipe that say how other data is read.
    """

    def __init__(
        self,
        verb: Callable[[Sequence[str]], int],
        flags: Mapping[str, str],
        reading: Sequence[str] = (),
    ) -> None:
        super().__init__(
            prog=f"python -m finetune {verb.__name__}",
            description=inspect.getdoc(verb),
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.verb = verb.__name__
        forms = dict(flags)
        fields = {**ImageRecipe.__dataclass_fields__, **TextRecipe.__dataclass_fields__}
        for name in reading:
            metadata = fields[name].metadata
            values = {"csv_quoting": "|".join(QUOTING), "drop_invalid": ""}
            form = f"--{name} {values.get(name, metadata.get('metavar', 'VALUE'))}".rstrip()
            description = metadata["help"].partition(" (unset")[0]
            forms[form] = f"{description} (default: the run's, or detected)"
        for form, help_text in forms.items():
            flag, _, metavar = form.partition(" ")
            kind: dict[str, Any] = {"metavar": metavar, "type": int if metavar == "N" else str}
            if "|" in metavar:
                kind = {"choices": metavar.split("|")}
            elif not metavar:
                kind = {"action": "store_true"} if flag.startswith("-") else {"metavar": "RUN"}
            self.add_argument(flag, help=help_text, **kind)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words, in which a flag may be written with dashes, too."""
        flag = re.compile(r"^--[\w-]+(?==|$)")
        words = [flag.sub(lambda m: f"--{m[0][2:].replace('-', '_')}", word) for word in args]
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise a ``UserError``, for unknown flags with the nearest ones."""
        _, _, unknown = message.partition("unrecognized arguments: ")
        flags = [word.partition("=")[0] for word in unknown.split() if word[:2] == "--"]
        hint = "".join(suggestion(flag, self._option_string_actions) for flag in flags)
        raise UserError(f"{self.verb}: {message}{hint}; see python -m finetune {self.verb} --help")
