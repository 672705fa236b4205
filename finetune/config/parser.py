"""The parser of a recipe's flags, also used for config files, and its help."""

import argparse
import dataclasses
import functools
import inspect
import itertools
import json
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, get_origin, get_type_hints

from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

from finetune.errors import Findings, UserError
from finetune.recipe import Recipe, catalog
from finetune.recipe.options import option
from finetune.training.arguments import REFUSED, FinetuneArguments, training_names
from finetune.training.options import alternatives, describe_unknown

_run = functools.partial(option, group="run")


@dataclasses.dataclass(kw_only=True)
class RunOptions:
    """Options of a run that are neither recipe options nor training arguments."""

    embedded: bool = _run(False, "use data and model of installed packages, without the Hub")
    config: str | None = _run(None, "YAML file of options; flags override it", "FILE.yaml")
    dry_run: bool = _run(False, "stop after one collated batch, and write nothing")
    num_processes: str | None = _run(
        None, "train in this number of processes of this machine; gpu or auto: one per GPU", "COUNT"
    )


RUN_OPTIONS = tuple(field.name for field in dataclasses.fields(RunOptions))
#: What the help lists in the group ``training``, with what the recipe sets and with our own.
_USED = (
    *("max_steps", "gradient_accumulation_steps", "warmup_steps", "lr_scheduler_type", "optim"),
    *("max_grad_norm", "label_smoothing_factor", "train_sampling_strategy", "use_cpu"),
    *("report_to", "torch_compile"),
)
#: The groups of the help, between the options that a recipe adds and all other arguments.
_GROUPS = (
    *("run", "data", "splits", "labels", "text", "image", "model", "teacher", "adapters"),
    "training",
)
_REST = "every other option of transformers.TrainingArguments"
_METAVARS = {"int": "N", "float": "X", "str": "TEXT", "string_to_bool": "true|false"}
_METAVARS |= {"_read_text_or_switch": "TEXT", "loads": "JSON"}


def _read_text_or_switch(word: str) -> str | bool:
    try:
        return bool(string_to_bool(word))  # type: ignore[no-untyped-call]
    except argparse.ArgumentTypeError:
        return word


class RecipeParser(HfArgumentParser):
    """Parses the flags of a recipe, and adds every mistake to ``report``.

    Raises:
        UserError: If the class of the recipe has a mistake.
    """

    def __init__(self, recipe: type[Recipe]) -> None:
        self.recipe = recipe
        self.report = Findings()
        self.title = catalog.display_name(recipe)
        self.option_names = {field.name for field in dataclasses.fields(recipe)}
        arguments = training_names()
        hints = get_type_hints(FinetuneArguments)
        #: The types of each training argument, without those of the items of a list.
        self.types = {name: set(alternatives(hints[name])) for name in arguments}
        self.names = {*self.option_names, *arguments, *RUN_OPTIONS}
        self.flags: list[str] = []
        if clashes := sorted(self.option_names & {*arguments, *RUN_OPTIONS, *REFUSED, "json"}):
            raise UserError(
                f"{recipe.__name__}: the options {', '.join(clashes)} are named like training "
                "arguments or run options: set their defaults in `training`, or rename them"
            )
        if unknown := [name for name in recipe.training if name not in arguments]:
            where = f"{self.title}: `training`:"
            raise UserError(*(f"{where} {describe_unknown(repr(n), arguments)}" for n in unknown))
        super().__init__(
            [recipe, FinetuneArguments, RunOptions],  # type: ignore[list-item]
            allow_abbrev=False,
            add_help=False,
            prog=f"python -m finetune {self.title}",
            usage="%(prog)s [flags]",
            description=inspect.cleandoc(sys.modules[recipe.__module__].__doc__ or ""),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    @functools.cached_property
    def groups(self) -> dict[str, Any]:
        """The groups of the help by title, the options that the recipe adds first."""
        titles = (f"options of {self.title}", *_GROUPS, _REST)
        return {title: self.add_argument_group(title) for title in titles}

    def add_argument(
        self, *flags: str, group: str = "", default: Any = None, **options: Any
    ) -> argparse.Action:
        """Add an option, spelled with underscores, which is returned only if it is typed."""
        name = flags[0].removeprefix("--")
        if name in REFUSED:  # set by the launcher or the subcommand
            return argparse.Action(flags, name)
        self.flags.append(flags[0])
        if "action" in options:  # --no_NAME
            options["help"] = argparse.SUPPRESS
            return super().add_argument(flags[0], default=argparse.SUPPRESS, **options)
        defaults = self.recipe.defaults()
        sentence = " ".join(options.get("help", "").split())
        if name in self.option_names:
            group = group or f"options of {self.title}"
        elif name not in RUN_OPTIONS:
            used = (*_USED, *defaults, *inspect.get_annotations(FinetuneArguments))
            group = "training" if name in used else _REST
            default = defaults.get(name, default)
            sentence = re.split(r"(?<!e\.g)(?<!i\.e)\. ", sentence)[0].removesuffix(".")
        choices = "|".join(map(str, options.get("choices", ())))
        types = self.types.get(name, set())
        if list in types:
            options["nargs"] = "+"
        if get_origin(options.get("type")) is dict:
            options["type"] = json.loads
        if {str, bool} <= types:
            options["type"] = _read_text_or_switch
        type_name = getattr(options.get("type"), "__name__", "str")
        metavar = options.pop("metavar", "") or choices or _METAVARS.get(type_name, "VALUE")
        if metavar == choices and len(choices) >= 40:  # too wide for a column
            metavar, sentence = "NAME", f"{sentence}: {choices.replace('|', ', ')}"
        if default not in (None, "", []) and name not in RUN_OPTIONS:
            text = str(getattr(default, "value", default))
            if isinstance(default, bool):
                text = text.lower()
            sentence += f" (default: {text})"
        options |= {"metavar": metavar, "help": sentence.replace("%", "%%")}
        action: argparse.Action = self.groups[group].add_argument(
            flags[0], default=argparse.SUPPRESS, **options
        )
        return action

    def read(self, words: Sequence[str], place: str = "") -> dict[str, Any]:
        """Parse words of a command line into options by name; ``place`` prefixes each mistake."""
        options: dict[str, Any] = {}
        starts = [i for i, word in enumerate(words) if i == 0 or word.startswith("--")]
        for start, end in itertools.pairwise([*starts, len(words)]):
            flag, *values = words[start:end]
            typed, *value = flag.split("=", 1)
            if typed.startswith("--"):
                name = typed.replace("-", "_").replace("__", "--", 1)
                flag = "=".join([name, *value])
                if name not in self.flags:
                    dashed = (flag.replace("_", "-") for flag in self.flags)
                    unknown = describe_unknown(typed, [*self.flags, *dashed, "--help"])
                    message = f"{place}{unknown} (all options: {self.prog} --help)"
                    self.report.error(message, name="unknown_option")
                    continue
            try:
                namespace, rest = self.parse_known_args([flag, *values])
                for name, parsed in vars(namespace).items():
                    is_alone = isinstance(parsed, list) and len(parsed) == 1
                    is_text = is_alone and str in self.types.get(name, ())
                    options[name] = parsed[0] if is_text else parsed
                if rest:
                    raise UserError(f"unexpected argument '{' '.join(rest)}'")
            except UserError as error:
                self.report.error(f"{place}{error}")
        return options

    def error(self, message: str) -> NoReturn:
        """Raise a ``UserError`` instead of exiting, as argparse does."""
        raise UserError(message.removeprefix("argument "))
