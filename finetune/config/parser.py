"""The options of a recipe as flags: one parser for command line and config file, and its help."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from transformers import HfArgumentParser

from finetune.errors import Report, UserError
from finetune.recipe import Recipe, catalog
from finetune.recipe.options import option
from finetune.training.arguments import REFUSED, FinetuneArguments, training_names
from finetune.training.options import describe_unknown

_run = functools.partial(option, group="run")


@dataclasses.dataclass(kw_only=True)
class RunOptions:
    """Options of a run that are neither the recipe's nor the training's."""

    embedded: bool = _run(False, "data and a base model from package registries, no Hub")
    config: str | None = _run(None, "a YAML file of options; flags win over it", "FILE.yaml")
    dry_run: bool = _run(False, "do everything up to one collated batch, then stop")


RUN_OPTIONS = tuple(field.name for field in dataclasses.fields(RunOptions))
#: What people use of the library's training arguments; the help shows it before the rest, with the
#: defaults of the recipe and the toolkit's own arguments.
_USED = (
    *("output_dir", "num_train_epochs", "max_steps", "learning_rate", "global_batch_size"),
    *("gradient_accumulation_steps", "weight_decay", "warmup_steps", "lr_scheduler_type", "optim"),
    *("max_grad_norm", "label_smoothing_factor", "train_sampling_strategy", "seed", "use_cpu"),
    *("report_to", "run_name", "push_to_hub", "hub_model_id", "torch_compile", "ddp_backend"),
    *("ddp_timeout", "save_on_each_node", "disable_tqdm", "log_level"),
)
#: The groups of the help, after the options that a recipe adds and before all other arguments.
_GROUPS = ("run", "data", "splits", "labels", "text", "image", "model", "training")
_REST = "every other option of transformers.TrainingArguments"
_METAVARS = {"int": "N", "float": "X", "str": "TEXT", "string_to_bool": "true|false"}
_WIDEST_CHOICES = 40


class RecipeParser(HfArgumentParser):
    """Parses the flags of a recipe; its ``report`` gets every mistake in them.

    Raises:
        UserError: If the class of the recipe is mistaken.
    """

    def __init__(self, recipe: type[Recipe]) -> None:
        self.recipe, self.report = recipe, Report()
        self.option_names = {field.name for field in dataclasses.fields(recipe)}
        arguments = training_names()
        self.names = {*self.option_names, *arguments, *RUN_OPTIONS}
        title = catalog.display_name(recipe)
        if clashes := sorted(self.option_names & {*arguments, *RUN_OPTIONS, *REFUSED}):
            raise UserError(
                f"{recipe.__name__}: the options {', '.join(clashes)} are training arguments "
                "already; set their defaults in `training`, or choose other names"
            )
        if mistakes := [
            f"{title}: `{attribute}`: {describe_unknown(repr(name), names)}"
            for attribute, names in (("training", arguments), ("embedded", self.names))
            for name in getattr(recipe, attribute)
            if name not in names
        ]:
            raise UserError(*mistakes)
        self.flags: dict[str, argparse.Action] = {}
        self.defaults: dict[str, Any] = {}
        self.groups: dict[str, str] = {}  # of the help
        super().__init__(
            [recipe, FinetuneArguments, RunOptions],  # type: ignore[list-item]
            allow_abbrev=False,
            add_help=False,
            prog=f"python -m finetune {title}",
        )

    def add_argument(
        self, *flags: str, group: str = "", default: Any = None, **options: Any
    ) -> argparse.Action:
        """Add an option that is left out where it is not typed."""
        action = super().add_argument(*flags, default=argparse.SUPPRESS, **options)
        if action.dest not in REFUSED:
            self.flags |= dict.fromkeys(flags, action)
            if action.const is not False:  # not --no_NAME, whose default is that of leaving it out
                self.defaults[action.dest], self.groups[action.dest] = default, group
        return action

    def read(self, words: Sequence[str], file: str = "") -> dict[str, Any]:
        """Return the options in words, which may be those of a config ``file``, by name."""
        options: dict[str, Any] = {}
        place = f"{file}: " if file else ""
        for flag, *values in group_flags(words):
            name = flag.partition("=")[0]
            if name.startswith("--") and name not in self.flags:
                option_text = f"'{name.removeprefix('--')}'" if file else name
                names = [word.lstrip("-") if file else word for word in (*self.flags, "--help")]
                self.report_unknown(option_text, names, place)
                continue
            try:
                namespace, rest = self.parse_known_args([flag, *values])
                options |= vars(namespace)
                if rest:
                    raise UserError(f"unexpected word '{' '.join(rest)}'")
            except UserError as error:
                self.report.error(f"{place}{error}")
        return options

    def report_unknown(self, option_text: str, names: Iterable[str], place: str = "") -> None:
        """Report an option that does not exist, with what was probably meant."""
        message = f"{place}{describe_unknown(option_text, names)} (all options: {self.prog} --help)"
        self.report.error(message, name="unknown_option")

    def error(self, message: str) -> NoReturn:
        """Raise what argparse refuses, instead of leaving the process."""
        raise UserError(message.removeprefix("argument "))

    def help(self) -> str:
        """Return the help page: the recipe, then its options by topic with their defaults."""
        used = [*_USED, *self.recipe.training, *inspect.get_annotations(FinetuneArguments)]
        own_group = f"options of {catalog.display_name(self.recipe)}"
        defaults = {**self.defaults, **self.recipe.defaults(), **dict.fromkeys(RUN_OPTIONS)}
        names = (own_group, *_GROUPS, _REST)
        groups: dict[str, list[argparse.Action]] = {name: [] for name in names}
        order = {name: position for position, name in enumerate(dict.fromkeys(used), start=1)}
        for action in sorted(self._actions, key=lambda action: order.get(action.dest, 0)):
            name = action.dest
            if name in REFUSED or action.const is False:
                continue
            group = own_group if name in self.option_names else _REST
            group = self.groups[name] or ("training" if name in order else group)
            groups[group].append(_help_entry(action, defaults[name]))
        formatter = argparse.RawDescriptionHelpFormatter(self.prog, max_help_position=30)
        formatter.add_text(f"usage: {self.prog} [flags]")
        formatter.add_text(inspect.cleandoc(sys.modules[self.recipe.__module__].__doc__ or ""))
        for group, actions in groups.items():
            formatter.start_section(group)
            formatter.add_arguments(actions)
            formatter.end_section()
        return formatter.format_help()


def group_flags(words: Sequence[str]) -> list[list[str]]:
    """Return each flag with the words after it."""
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not groups:
            groups.append([word])
        else:
            groups[-1].append(word)
    return groups


def _help_entry(action: argparse.Action, default: Any) -> argparse.Action:
    """Return an action as the help shows it: one spelling, one sentence, the default if any."""
    sentence = " ".join((action.help or "").split()).partition(". ")[0]
    choices = "|".join(map(str, action.choices or ()))
    type_name = getattr(action.type, "__name__", "str")
    metavar = action.metavar or choices or _METAVARS.get(type_name, "VALUE")
    if metavar == choices and len(choices) >= _WIDEST_CHOICES:
        metavar, sentence = "NAME", f"{sentence}: {choices.replace('|', ', ')}"
    if default not in (None, "", [], argparse.SUPPRESS):
        text = str(getattr(default, "value", default))
        sentence += f" (default: {text.lower() if isinstance(default, bool) else text})"
    return argparse.Action(
        action.option_strings[:1], action.dest, metavar=metavar, help=sentence.replace("%", "%%")
    )
