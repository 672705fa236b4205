"""The options of a recipe as flags: one parser for command line and config file, and its help."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

from finetune.config.settings import group_flags
from finetune.errors import Report, UserError, suggestion
from finetune.recipe import Recipe, catalog
from finetune.recipe.options import DataOptions, help_group
from finetune.training.arguments import REFUSED, FinetuneArguments
from finetune.training.defaults import training_names
from finetune.training.option_types import typed_as
from finetune.training.retired import option_suggestion, successor

#: Options of a run that are neither the recipe's nor the training's: help group and help.
RUN_OPTIONS = {
    "embedded": ("data", "data and a base model from package registries, no Hub"),
    "config": ("training", "a YAML file of options; flags win over it"),
    "dry_run": ("training", "do everything up to one collated batch, then stop"),
}
#: What people use of the two hundred training arguments; the help shows these before the rest.
USED = (
    *("output_dir", "num_train_epochs", "max_steps", "learning_rate", "global_batch_size"),
    *("max_tokens_per_batch", "profile", "per_device_train_batch_size"),
    *("per_device_eval_batch_size", "gradient_accumulation_steps", "weight_decay", "warmup_steps"),
    *("lr_scheduler_type", "optim", "max_grad_norm", "label_smoothing_factor"),
    *("early_stopping_patience", "train_sampling_strategy", "class_sampling", "seed", "precision"),
    *("use_cpu", "logging_steps", "eval_strategy", "save_strategy", "save_every"),
    *("save_total_limit", "metric_for_best_model", "load_best_model_at_end"),
    *("resume", "resume_from_checkpoint", "report_to", "run_name", "push_to_hub"),
    *("hub_model_id", "dataloader_num_workers", "torch_compile", "num_threads", "cpu_kernels"),
    *("ddp_backend", "ddp_timeout", "save_on_each_node", "disable_tqdm", "log_level"),
)
#: The groups of the help, after the options that a recipe adds and before all other arguments.
GROUPS = ("data", "splits", "labels", "text", "image", "model", "training")
_REST = "every other option of transformers.TrainingArguments"
_WIDEST_CHOICES = 40


class RecipeParser(HfArgumentParser):
    """Parses the flags of a recipe, of which every mistake is reported.

    Args:
        recipe: The recipe.
        more_flags: Flags of the subcommand, which are suggested as well.
    """

    def __init__(self, recipe: type[Recipe], more_flags: Sequence[str] = ()) -> None:
        refuse_clashes(recipe)
        self.recipe, self.more_flags = recipe, more_flags
        super().__init__(
            [recipe, FinetuneArguments],  # type: ignore[list-item]
            allow_abbrev=False,
            add_help=False,
            prog=f"python -m finetune {catalog.shown(recipe)}",
        )
        for name, (_, help) in RUN_OPTIONS.items():
            flags = dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"])
            if name == "config":
                self.add_argument(*flags, help=help, metavar="FILE.yaml")
            else:
                self.add_argument(*flags, help=help, type=string_to_bool, nargs="?", const=True)
        self.flags: dict[str, argparse.Action] = {}
        self.defaults: dict[str, Any] = {}
        for action in self._actions:
            self.flags |= dict.fromkeys(action.option_strings, action)
            if action.const is not False:  # not --no_NAME, whose default is that of leaving it out
                self.defaults[action.dest] = action.default
            action.default = argparse.SUPPRESS

    def read(self, words: Sequence[str], report: Report, file: str = "") -> dict[str, Any]:
        """Return the options that were typed, by name, without those that are refused.

        Args:
            words: As on the command line.
            report: Takes an error for each mistake.
            file: The config file that the words are from, for messages.
        """
        options: dict[str, Any] = {}
        place = f"{file}: " if file else ""
        for flag, *values in group_flags(words):
            name, has_value, value = flag.partition("=")
            written = f"'{name.removeprefix('--')}'" if file else name
            action = self.flags.get(name)
            if action is None and name.startswith("--"):
                names = [*self.flags, *self.more_flags, "--help"]
                report_unknown(written, self.recipe, names, report, place)
            elif action is None:
                report.error(f"{place}unexpected word '{flag}'")
            elif action.dest in REFUSED:
                report.error(f"{place}{written}: not accepted: launcher or subcommand set it")
            else:
                try:
                    namespace, rest = self.parse_known_args([flag, *values])
                except UserError:
                    words = [value] if has_value else values
                    report.error(f"{place}{written}: {_expected(action, words)}")
                else:
                    options |= vars(namespace)
                    for word in rest:
                        report.error(f"{place}unexpected word '{word}'")
        return options

    def error(self, message: str) -> NoReturn:
        """Raise what argparse refuses, instead of leaving the process."""
        raise UserError(message)

    def help(self) -> str:
        """Return the help page: the recipe, then its options by topic with their defaults."""
        names = {field.name for field in dataclasses.fields(self.recipe)}
        hidden = {*REFUSED} if self.recipe.embedded else {*REFUSED, "embedded"}
        if not reads_dataset(self.recipe):
            hidden |= {field.name for field in dataclasses.fields(DataOptions)}
        defaults = {**self.defaults, **self.recipe.defaults()}
        defaults |= {name: self.defaults[name] for name in names}
        own = f"options of {catalog.shown(self.recipe)}"
        groups: dict[str, list[argparse.Action]] = {name: [] for name in (own, *GROUPS, _REST)}
        order = {name: position for position, name in enumerate(USED, start=1)}
        for action in sorted(self._actions, key=lambda action: order.get(action.dest, 0)):
            name, group = action.dest, _REST
            if name in names:
                group = help_group(self.recipe, name) or own
            elif name in RUN_OPTIONS or name in USED:
                group = RUN_OPTIONS.get(name, ("training",))[0]
            if name not in hidden and action.const is not False:
                groups[group].append(_help_entry(action, defaults.get(name)))
        formatter = argparse.RawDescriptionHelpFormatter(self.prog, max_help_position=30)
        formatter.add_text(f"usage: {self.prog} [flags]")
        formatter.add_text(inspect.cleandoc(sys.modules[self.recipe.__module__].__doc__ or ""))
        for group, actions in groups.items():
            formatter.start_section(group)
            formatter.add_arguments(actions)
            formatter.end_section()
        return formatter.format_help()


def _expected(action: argparse.Action, values: Sequence[str]) -> str:
    """Return what an action expects, what was found, and the nearest choice."""
    if not values and action.nargs != 0:
        return "expected a value, found none"
    word, choices = " ".join(values), [*map(str, action.choices or ())]
    expected, kind = "another value", bool if action.type is string_to_bool else action.type
    if action.nargs == 0:
        expected = "no value"
    elif choices:
        expected = f"{', '.join(choices[:-1])} or {choices[-1]}"
    elif isinstance(kind, type):
        expected = typed_as(kind)
    return f"expected {expected}, found '{word}'{suggestion(word, choices)}"


def report_unknown(
    written: str, recipe: type[Recipe], names: Iterable[str], report: Report, place: str = ""
) -> None:
    """Report an option that a recipe does not have, with what was probably meant.

    Args:
        written: The option as written: ``--lr``, or ``'lr'`` in a file or as a keyword.
        recipe: The recipe.
        names: The options that exist.
        report: Takes the error.
        place: The file that it is in, before the message.
    """
    name = written.strip("'")
    message = f"unknown option {written}{option_suggestion(name, names)}"
    message += f" (all options: python -m finetune {catalog.shown(recipe)} --help)"
    if renamed := successor(name.lstrip("-")):
        message = f"{written}{renamed}"
    report.error(f"{place}{message}", name="unknown_option")


def reads_dataset(recipe: type[Recipe]) -> bool:
    """Return whether a recipe reads ``dataset``: one with its own ``load()`` has to declare it."""
    for cls in recipe.__mro__:
        if cls.__module__.startswith("finetune.recipe."):
            return cls is not Recipe
        if "dataset" in inspect.get_annotations(cls):
            return True
        if {"load", "read"} & vars(cls).keys():
            return bool(recipe.dataset)
    raise AssertionError("every recipe derives from Recipe")


def refuse_clashes(recipe: type[Recipe]) -> None:
    """Refuse a recipe whose options are training arguments, or whose ``training`` and ``embedded``
    name arguments that do not exist.
    """
    options = {field.name for field in dataclasses.fields(recipe)}
    if taken := sorted(options & (training_names() | {*RUN_OPTIONS, *REFUSED})):
        raise UserError(
            f"{recipe.__name__}: the options {', '.join(taken)} are training arguments already; "
            "set their defaults in `training`, or choose other names"
        )
    allowed = {"training": training_names(), "embedded": training_names() | options}
    mistakes = [
        f"{catalog.shown(recipe)}: `{attribute}` names the unknown argument '{name}'"
        f"{option_suggestion(name, names)}"
        for attribute, names in allowed.items()
        for name in getattr(recipe, attribute)
        if name not in names
    ]
    if mistakes:
        raise UserError(*mistakes)


def _help_entry(action: argparse.Action, default: Any) -> argparse.Action:
    """Return an action as the help shows it: one spelling, one sentence, the default if any."""
    sentence = " ".join((action.help or "").split()).partition(". ")[0]
    choices = "|".join(map(str, action.choices or ()))
    type_name = getattr(action.type, "__name__", "str")
    types = {"int": "N", "float": "X", "str": "TEXT", "string_to_bool": "true|false"}
    metavar = action.metavar or choices or types.get(type_name, "VALUE")
    if metavar == choices and len(choices) >= _WIDEST_CHOICES:
        metavar, sentence = "NAME", f"{sentence}: {choices.replace('|', ', ')}"
    if default not in (None, "", [], argparse.SUPPRESS):
        sentence += f" (default: {as_typed(default)})"
    return argparse.Action(
        action.option_strings[:1], action.dest, metavar=metavar, help=sentence.replace("%", "%%")
    )


def as_typed(value: Any) -> str:
    """Return a value as it is typed: ``true``, ``epoch``, ``2e-05``."""
    return str(value).lower() if isinstance(value, bool) else str(getattr(value, "value", value))
