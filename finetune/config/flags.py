"""The options of a recipe as flags: one parser for command line and config files, and its help."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import inspect
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from finetune.config import wrapping
from finetune.errors import Mistakes, UserError, option_suggestion, typed_as
from finetune.recipe import Recipe, TextClassification, catalog
from finetune.training.retired import successor

#: Options of a run that are neither the recipe's nor the training's.
CHOICES = {
    "embedded": "data and a base model from package registries, no Hub",
    "config": "a YAML file of options; flags win over it",
    "dry_run": "do everything up to one collated batch, then stop",
}
#: What people use of the two hundred; the help shows these before the rest.
USED = (
    *("output_dir", "num_train_epochs", "max_steps", "learning_rate", "global_batch_size"),
    *("max_tokens_per_batch", "profile", "per_device_train_batch_size"),
    *("per_device_eval_batch_size", "gradient_accumulation_steps", "weight_decay", "warmup_steps"),
    *("lr_scheduler_type", "optim", "max_grad_norm", "label_smoothing_factor"),
    *("early_stopping_patience", "train_sampling_strategy", "class_sampling", "seed", "precision"),
    *("use_cpu", "logging_steps", "eval_strategy", "save_strategy", "save_every"),
    *("save_total_limit", "metric_for_best_model", "load_best_model_at_end"),
    *("resume_from_checkpoint", "report_to", "run_name", "push_to_hub"),
    *("hub_model_id", "dataloader_num_workers", "torch_compile", "num_threads", "cpu_kernels"),
    *("ddp_backend", "ddp_timeout", "save_on_each_node", "disable_tqdm", "log_level"),
)
_IMPLIED = {
    "local_rank": "not accepted: the launcher sets it; start with torchrun, not "
    "torch.distributed.launch"
}
_SUBCOMMAND = "not accepted: the subcommand implies it"
_WIDEST_CHOICES = 40


class Flags:
    """The options of a recipe as flags; only what was typed comes out."""

    def __init__(self, cls: type[Recipe]) -> None:
        from transformers import HfArgumentParser

        from finetune.training.arguments import REFUSED, FinetuneArguments

        refuse_clashes(cls)
        self.cls = cls
        self._parser = HfArgumentParser(
            [cls, FinetuneArguments],  # type: ignore[list-item]
            allow_abbrev=False,
            add_help=False,
            prog=f"python -m finetune {catalog.shown(cls)}",
        )
        for name, help in CHOICES.items():
            flags = dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"])
            if name == "config":
                self._parser.add_argument(*flags, metavar="FILE.yaml", help=help)
            else:
                self._parser.add_argument(*flags, nargs="?", const=True, type=_boolean, help=help)
        self.defaults = {}
        for action in self._parser._actions:
            if action.const is not False:  # not --no_X, whose default is that of leaving it out
                self.defaults[action.dest] = action.default
            action.default = argparse.SUPPRESS
        self._refused = REFUSED
        self._parser.error = self._refuse  # type: ignore[method-assign]

    def read(
        self, words: Sequence[str], where: str = "", mistakes: Mistakes | None = None
    ) -> dict[str, Any]:
        """Return the options that ``words``, flags and their values, give, by name.

        Args:
            words: As on the command line.
            where: The name of a file, told before each mistake.
            mistakes: Takes what is wrong; the other options are returned.

        Raises:
            UserError: what is wrong, unless ``mistakes`` takes it.
        """
        self._where = where
        wrong, words = Mistakes(), list(words)
        while True:
            try:
                namespace, left = self._parser.parse_known_args(words)
                break
            except _Refused as error:  # without it, to find the next
                wrong.add(str(error))
                words = _without(words, error.flags)
        known = [flag for action in self._parser._actions for flag in action.option_strings]
        unknown = [word.partition("=")[0] for word in left if word.startswith("--")]
        for flag in unknown:
            add_unknown(_flag(flag, where), self.cls, [*known, "--help"], wrong, where)
        if not unknown:
            wrong.add(*(f"{where}unexpected word '{word}'" for word in left))
        given = vars(namespace)
        for name in self._refused:
            if given.pop(name, None) is not None:
                because = _IMPLIED.get(name, _SUBCOMMAND)
                wrong.add(f"{where}{_flag(f'--{name}', where)}: {because}")
        wrong.hand_to(mistakes)
        return given

    def help(self) -> str:
        """Return the help: the recipe's options, then those that people use, then the rest."""
        own = {each.name: self.defaults[each.name] for each in dataclasses.fields(self.cls)}
        hidden = {"dataset", "dataset_revision"} - ({*own} if reads_dataset(self.cls) else set())
        if not self.cls.embedded:
            hidden.add("embedded")
        groups: dict[str, list[str]] = {
            f"options of {catalog.shown(self.cls)}": [
                name for name in ("embedded", *own) if name not in hidden
            ],
            "options of the run": ["config", "dry_run", *USED],
        }
        placed = hidden | {name for names in groups.values() for name in names}
        groups["every other option of transformers.TrainingArguments"] = sorted(
            {action.dest for action in self._parser._actions} - placed - set(self._refused)
        )
        defaults = {**self.defaults, **self.cls.defaults(), **own}
        formatter = argparse.RawDescriptionHelpFormatter(self._parser.prog, max_help_position=30)
        formatter.add_text(f"usage: {self._parser.prog} [flags]")
        formatter.add_text(wrapping.prose(sys.modules[self.cls.__module__].__doc__ or ""))
        for title, names in groups.items():
            formatter.start_section(title)
            for name in names:
                for action in self._parser._actions:
                    if action.dest == name and action.const is not False:
                        formatter.add_argument(_for_help(action, defaults.get(name)))
            formatter.end_section()
        return formatter.format_help()

    def _refuse(self, message: str) -> NoReturn:
        # argparse: "argument --learning_rate/--learning-rate: invalid float value: 'abc'"
        text = message.removeprefix("argument ")
        flags, _, complaint = text.partition(": ")
        if complaint.startswith("Truthy value expected: got "):
            value = complaint.removeprefix("Truthy value expected: got ").partition(" but ")[0]
            complaint = f"expected true or false, found '{value}'"
        elif complaint.startswith("invalid") and "value: " in complaint:
            kind, _, value = complaint.removeprefix("invalid ").partition(" value: ")
            named = {"int": int, "float": float}.get(kind)
            complaint = f"expected {typed_as(named) if named else kind}, found {value}"
        flag = _flag(flags.partition("/")[0], self._where)
        raise _Refused(f"{self._where}{flag}: {complaint}", flags.split("/"))


class _Refused(Exception):
    """What ``argparse`` finds wrong with a flag, and the ways to write that flag."""

    def __init__(self, message: str, flags: Sequence[str]) -> None:
        super().__init__(message)
        self.flags = flags


def _without(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Return the words but for these flags and their values."""
    kept, inside = [], False
    for word in words:
        if word.startswith("--"):
            inside = word.partition("=")[0] in flags
        if not inside:
            kept.append(word)
    assert len(kept) < len(words), f"argparse refuses {flags}, which was not typed"
    return kept


def add_unknown(
    shown: str, cls: type[Recipe], known: Iterable[str], mistakes: Mistakes, where: str = ""
) -> None:
    """Add what to say of an option that a recipe does not have, with what was probably meant.

    Args:
        shown: The option as written: ``--lr``, or ``'lr'`` of a file or of keywords.
        cls: The recipe.
        known: The options that there are.
        mistakes: Takes the sentence.
        where: The name of a file, told before it.
    """
    name = shown.strip("'")
    bare = name.lstrip("-").replace("-", "_")
    mistakes.has_unknown_option = True
    if gone := successor(bare):
        mistakes.add(f"{where}{shown}{gone}")
    elif bare in {each.name for each in dataclasses.fields(TextClassification)}:
        lacks = f"the recipe '{catalog.shown(cls)}' has no such option, only recipes of text do"
        mistakes.add(f"{where}unknown option {shown}: {lacks}")
    else:
        hint = option_suggestion(name, known)
        all_of_them = f"; all options: python -m finetune {catalog.shown(cls)} --help"
        mistakes.add(f"{where}unknown option {shown}{hint or all_of_them}")


def reads_dataset(cls: type[Recipe]) -> bool:
    """Return whether ``load()`` of a recipe reads ``dataset``.

    One of its own without a default data set is taken not to, unless the recipe names ``dataset``
    among its options.
    """
    for each in cls.__mro__:
        if "dataset" in inspect.get_annotations(each):
            return each is not Recipe
        if {"load", "read"} & vars(each).keys():
            return bool(cls.dataset)
    raise AssertionError("Recipe has the option `dataset`")


def refuse_clashes(cls: type[Recipe]) -> None:
    """Refuse a recipe whose options are training arguments: one flag would mean two things.

    Its `training` and `embedded` must name arguments that there are.
    """
    from finetune.training.arguments import REFUSED
    from finetune.training.defaults import training_names

    reserved = training_names() | set(CHOICES) | set(REFUSED)
    taken = sorted({each.name for each in dataclasses.fields(cls)} & reserved)
    if taken:
        raise UserError(
            f"{cls.__name__}: the options {', '.join(taken)} are training arguments already; "
            "set their defaults in `training`, or choose other names"
        )
    own = {each.name for each in dataclasses.fields(cls)}
    known = {"training": training_names(), "embedded": training_names() | own}
    if unknown := [
        f"{catalog.shown(cls)}: `{where}` names the unknown argument '{name}'"
        f"{option_suggestion(name, names)}"
        for where, names in known.items()
        for name in getattr(cls, where)
        if name not in names
    ]:
        raise UserError(*unknown)


def _flag(flag: str, where: str) -> str:
    """Return the flag as typed; in a file it is a key."""
    return f"'{flag.removeprefix('--').partition('=')[0]}'" if where else flag.partition("=")[0]


def _boolean(word: str) -> bool:
    from transformers.hf_argparser import string_to_bool

    return bool(string_to_bool(word))  # type: ignore[no-untyped-call]


def _for_help(action: argparse.Action, default: Any) -> argparse.Action:
    """Return the action for the help: one spelling, the first sentence, the default if any."""
    shown = copy.copy(action)
    shown.option_strings = action.option_strings[:1]
    shown.metavar = action.metavar or _metavar(action)
    sentence = " ".join((action.help or "").split()).partition(". ")[0]
    if shown.metavar == "NAME" and action.choices:
        sentence += f": {', '.join(str(choice) for choice in action.choices)}"
    if default not in (None, "", [], argparse.SUPPRESS):
        sentence += f" (default: {as_typed(default)})"
    shown.help = sentence.replace("%", "%%")
    return shown


def as_typed(value: Any) -> str:
    """Return a value as it is typed: ``true``, ``epoch``, ``2e-05``."""
    return str(value).lower() if isinstance(value, bool) else str(getattr(value, "value", value))


def _metavar(action: argparse.Action) -> str | None:
    if action.choices:
        choices = "|".join(str(choice) for choice in action.choices)
        return choices if len(choices) < _WIDEST_CHOICES else "NAME"
    kind = getattr(action.type, "__name__", "")
    if kind in ("string_to_bool", "_boolean"):
        return "true|false"
    return {"int": "N", "float": "X", "str": "TEXT"}.get(kind, "VALUE")
