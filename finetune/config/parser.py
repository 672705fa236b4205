"""The options of a recipe as flags: one parser for command line and config file, and its help."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NoReturn

from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

from finetune.errors import Report, UserError, suggestion, typed_as
from finetune.recipe import Recipe, catalog
from finetune.recipe.options import help_group
from finetune.training.arguments import REFUSED, FinetuneArguments
from finetune.training.defaults import training_names
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
_BY_LAUNCHER = "the launcher sets it; start with torchrun, not torch.distributed.launch"
_MISSING, _INVALID = object(), object()
_WIDEST_CHOICES = 40


class RecipeParser(HfArgumentParser):
    """Parses the flags of a recipe in one pass, in which every mistake is reported.

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
            is_file = name == "config"
            kind: dict[str, Any] = {"metavar": "FILE.yaml"} if is_file else {"type": string_to_bool}
            self.add_argument(*flags, help=help, **kind)
        self.defaults = {}
        for action in self._actions:
            if action.const is not False:  # not --no_NAME, whose default is that of leaving it out
                self.defaults[action.dest] = action.default
            action.default = argparse.SUPPRESS
            if action.nargs != 0:
                self._collect_mistakes(action)

    def read(self, words: Sequence[str], report: Report, file: str = "") -> dict[str, Any]:
        """Return the options that were typed, by name, without those that are refused.

        Args:
            words: As on the command line.
            report: Takes an error for each mistake.
            file: The config file that the words are from, for messages.
        """
        self.report, self.file = report, file
        namespace, rest = self.parse_known_args(list(words))
        flags = [flag for action in self._actions for flag in action.option_strings]
        unknown = [word.partition("=")[0] for word in rest if word.startswith("--")]
        for flag in unknown:
            names = [*flags, *self.more_flags, "--help"]
            report_unknown(self._written(flag), self.recipe, names, report, self._place)
        for word in rest if not unknown else ():
            report.error(f"{self._place}unexpected word '{word}'")
        options = {}
        for name, value in vars(namespace).items():
            flag = f"{self._place}{self._written(f'--{name}')}"
            if name in REFUSED:
                reason = _BY_LAUNCHER if name == "local_rank" else "the subcommand implies it"
                report.error(f"{flag}: not accepted: {reason}")
            elif value is _MISSING or value == []:
                report.error(f"{flag}: expected a value, found none")
            elif value is not _INVALID and not (isinstance(value, list) and _INVALID in value):
                options[name] = value
        return options

    def help(self) -> str:
        """Return the help page: the recipe, then its options by topic with their defaults."""
        has_dataset = reads_dataset(self.recipe)
        hidden = {*REFUSED, *({"dataset", "dataset_revision"} if not has_dataset else ())}
        hidden |= {"embedded"} if not self.recipe.embedded else set()
        recipe_names = {field.name for field in dataclasses.fields(self.recipe)}
        recipe_defaults = {name: self.defaults[name] for name in recipe_names}
        defaults = {**self.defaults, **self.recipe.defaults(), **recipe_defaults}
        groups: dict[str, list[argparse.Action]] = {
            group: []
            for group in (f"options of {catalog.shown(self.recipe)}", *GROUPS, "training", _REST)
        }
        for action in sorted(self._actions, key=lambda action: _rank(action.dest)):
            name = action.dest
            group = _REST
            if name in recipe_names:
                group = help_group(self.recipe, name) or next(iter(groups))
            elif name in RUN_OPTIONS or name in USED:
                group = RUN_OPTIONS.get(name, ("training",))[0]
            if name not in hidden and action.const is not False:
                groups[group].append(_for_help(action, defaults.get(name)))
        formatter = argparse.RawDescriptionHelpFormatter(self.prog, max_help_position=30)
        formatter.add_text(f"usage: {self.prog} [flags]")
        formatter.add_text(inspect.cleandoc(sys.modules[self.recipe.__module__].__doc__ or ""))
        for group, actions in groups.items():
            formatter.start_section(group)
            formatter.add_arguments(actions)
            formatter.end_section()
        return formatter.format_help()

    def error(self, message: str) -> NoReturn:
        """Raise what argparse refuses in the shape of the words: ``--no_baseline=1``."""
        self.report.error(f"{self._place}{message}")
        raise UserError(*self.report.sentences("error"))

    @property
    def _place(self) -> str:
        return f"{self.file}: " if self.file else ""

    def _written(self, flag: str) -> str:
        """Return a flag as it was written; in a file it is a key."""
        return f"'{flag.removeprefix('--')}'" if self.file else flag

    def _collect_mistakes(self, action: argparse.Action) -> None:
        """Make an action accept every word and report those that are wrong, with no error."""
        action.metavar = action.metavar or _metavar(action)
        convert, choices = action.type or str, action.choices
        action.type = functools.partial(self._convert, action.dest, convert, choices)  # type: ignore[arg-type]
        if choices is not None and action.metavar == "NAME":
            action.help = f"{_sentence(action)}: {', '.join(map(str, choices))}"
        action.choices = None
        if action.nargs is None:
            action.nargs, action.const = "?", True if convert is string_to_bool else _MISSING
        elif action.nargs == "+":
            action.nargs = "*"

    def _convert(
        self, name: str, convert: Callable[[str], Any], choices: Collection[Any] | None, word: str
    ) -> Any:
        try:
            value = convert(word)
            if choices is None or value in choices:
                return value
        except (argparse.ArgumentTypeError, TypeError, ValueError):
            pass
        kind = bool if convert is string_to_bool else convert
        expected = typed_as(kind) if isinstance(kind, type) else "another value"
        hint = ""
        if choices is not None:
            *names, last = map(str, choices)
            expected, hint = f"{', '.join(names)} or {last}", suggestion(word, choices)
        flag = f"{self._place}{self._written(f'--{name}')}"
        self.report.error(f"{flag}: expected {expected}, found '{word}'{hint}")
        return _INVALID


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
        if "dataset" in inspect.get_annotations(cls):
            return cls is not Recipe
        if {"load", "read"} & vars(cls).keys():
            return bool(recipe.dataset)
    raise AssertionError("Recipe has the option `dataset`")


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


def _rank(name: str) -> tuple[int, str]:
    """Return the place of an option in its group: as declared, of the rest by name."""
    if name in USED:
        return 1 + USED.index(name), ""
    return 0, ""


def _for_help(action: argparse.Action, default: Any) -> argparse.Action:
    """Return an action as the help shows it: one spelling, one sentence, the default if any."""
    shown = copy.copy(action)
    shown.option_strings, shown.nargs = action.option_strings[:1], None
    sentence = _sentence(action)
    if default not in (None, "", [], argparse.SUPPRESS):
        sentence += f" (default: {as_typed(default)})"
    shown.help = sentence.replace("%", "%%")
    return shown


def _sentence(action: argparse.Action) -> str:
    return " ".join((action.help or "").split()).partition(". ")[0]


def as_typed(value: Any) -> str:
    """Return a value as it is typed: ``true``, ``epoch``, ``2e-05``."""
    return str(value).lower() if isinstance(value, bool) else str(getattr(value, "value", value))


def _metavar(action: argparse.Action) -> str:
    if action.choices:
        choices = "|".join(str(choice) for choice in action.choices)
        return choices if len(choices) < _WIDEST_CHOICES else "NAME"
    if action.type is string_to_bool:
        return "true|false"
    name = getattr(action.type, "__name__", "str")
    return {"int": "N", "float": "X", "str": "TEXT"}.get(name, "VALUE")
