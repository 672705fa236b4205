"""The parser of the subcommands; ``config/parser.py`` parses the flags of a recipe."""

import argparse
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from finetune.errors import UserError, suggestion
from finetune.recipe import ImageRecipe, TextRecipe, TokenRecipe
from finetune.runtime.formats import QUOTING

#: What a subcommand returns: what ``--json`` prints, with a ``status`` if that is not 0.
Answer = Mapping[str, Any] | None
RECIPE = {"recipe": "name of a recipe, or path of a recipe file; its flags follow"}
#: The flag of all subcommands that read a run; RUN has the arguments if they also run its model.
TRUST = {
    "--trust_recipe": "import the recipe and metric files that the run names, which executes their "
    "code, and print their paths and sha256 (default: only installed recipes are imported)"
}
JSON = {"--json": "print one JSON object to standard output, all else to standard error"}
PROCESSES = {
    "--num_processes COUNT": "run in this number of processes of this machine; gpu or auto: one "
    "per GPU"
}
RUN = {
    "run": "directory of a run, e.g. runs/yelp",
    **TRUST,
    "--cpu_kernels auto|off": "kernels on a CPU: auto for the fast ones of this toolkit, off for "
    "the stock PyTorch ones (default: as in training)",
    "--engine torch|onnxruntime|openvino": "what computes: torch (default), or another engine with "
    "the export of the run, see python -m finetune export --help",
}


class Parser(argparse.ArgumentParser):
    """The argument parser of a subcommand. It raises a ``UserError`` instead of exiting.

    Args:
        verb: The function of the subcommand; its docstring is the description.
        flags: The help text of each flag. The flag ``--json`` is a switch, ``--output FILE`` takes
            a string, ``--count N`` an integer, ``--precision fp32|bf16`` one of these choices.
        reading: Names of the recipe options that say how to read other data.
    """

    def __init__(
        self,
        verb: Callable[[Sequence[str]], Answer],
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
        help_texts = dict(flags)
        fields: dict[str, Any] = {}
        for recipe in (ImageRecipe, TokenRecipe, TextRecipe):  # the last has the help of all tasks
            fields |= recipe.__dataclass_fields__
        for name in reading:
            metadata = fields[name].metadata
            values = {"csv_quoting": "|".join(QUOTING), "drop_invalid": ""}
            values["tag_scheme"] = "auto|iob2|iob1|iobes|plain"
            form = f"--{name} {values.get(name, metadata.get('metavar', 'VALUE'))}".rstrip()
            help_texts[form] = metadata["help"].partition(" (unset")[0]
            if not name.startswith("dataset_"):
                help_texts[form] += " (default: as in the run, or detected)"
        for form, help_text in help_texts.items():
            flag, _, metavar = form.partition(" ")
            kind = int if metavar == "N" else str
            options: dict[str, Any] = {"metavar": metavar or flag.upper(), "type": kind}
            if "|" in metavar:
                options = {"choices": metavar.split("|")}
            elif flag.startswith("-") and not metavar:
                options = {"action": "store_true"}
            self.add_argument(flag, help=help_text, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words; a flag may be spelled with dashes or underscores."""
        flag = re.compile(r"^--[\w-]+(?==|$)")
        words = [flag.sub(lambda m: f"--{m[0][2:].replace('-', '_')}", word) for word in args]
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise a ``UserError`` that suggests known flags for unknown ones."""
        _, _, unknown = message.partition("unrecognized arguments: ")
        flags = [word.partition("=")[0] for word in unknown.split() if word[:2] == "--"]
        known_flags = re.findall(r"--\w+", self.format_usage())
        hint = "".join(suggestion(flag, known_flags) for flag in flags)
        raise UserError(f"{self.verb}: {message}{hint}; see python -m finetune {self.verb} --help")
