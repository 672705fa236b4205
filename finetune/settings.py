"""Recipe defaults < embedded overrides < config file < flags: from what was typed to a recipe and
arguments.

One parser reads them all. It is made from the fields of the recipe and of ``FinetuneArguments`` by
``HfArgumentParser``; the values of a YAML file are read as strings and go through it like flags,
so that both are checked alike.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from finetune import catalog
from finetune.errors import UserError, suggestion
from finetune.recipe import Recipe

if TYPE_CHECKING:
    from finetune.training.arguments import FinetuneArguments

#: Options of a run that are neither the recipe's nor the training's.
CHOICES = {
    "embedded": "data and a base model from package registries, no Hub",
    "config": "a YAML file of options; flags win over it",
    "dry_run": "do everything up to one collated batch, then stop",
}
#: What people use of the two hundred; the help shows these before the rest.
USED = (
    *("output_dir", "num_train_epochs", "max_steps", "learning_rate", "global_batch_size"),
    *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"),
    *("weight_decay", "warmup_steps", "lr_scheduler_type", "optim", "max_grad_norm"),
    *("label_smoothing_factor", "train_sampling_strategy", "seed", "bf16", "fp16", "use_cpu"),
    *("logging_steps", "eval_strategy", "save_strategy", "save_every", "save_total_limit"),
    *("metric_for_best_model", "load_best_model_at_end", "resume_from_checkpoint", "report_to"),
    *("run_name", "push_to_hub", "hub_model_id", "dataloader_num_workers", "torch_compile"),
    *("ddp_backend", "ddp_timeout", "disable_tqdm", "log_level"),
)


@dataclass(frozen=True)
class Settings:
    """What one run is made from.

    Attributes:
        recipe: The recipe, with its options.
        training: The training arguments that are not the library's defaults, by name.
        overrides: What ``--embedded`` changed, by name.
        given: What the config file and the flags said, by name.
        dry_run: Whether to stop after one collated batch.
        command: The command that says the same again, for people.
    """

    recipe: Recipe
    training: dict[str, Any]
    overrides: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    dry_run: bool = False
    command: str = ""

    @property
    def name(self) -> str:
        """The words that find the recipe again."""
        return catalog.origin(type(self.recipe))

    @property
    def output_dir(self) -> Path:
        """The directory of the run."""
        return Path(self.training["output_dir"]).expanduser()

    def draft(self) -> FinetuneArguments:
        """The training arguments as far as they are known without touching the device."""
        from finetune.training.arguments import FinetuneArguments

        return FinetuneArguments.check(_with_defaults(type(self.recipe), self.training))

    def arguments(self) -> FinetuneArguments:
        """The training arguments; in a job of several processes this needs the process group."""
        return training_arguments(type(self.recipe), self.training)


def from_command_line(recipe: str, flags: Sequence[str]) -> Settings:
    """Settings of ``python -m finetune RECIPE FLAGS``.

    Raises:
        UserError: if a flag or a key is unknown, or a value of the wrong type.
    """
    cls = catalog.find(recipe)
    typed = parser(cls).read(flags)
    given = {**_read_config(cls, typed.get("config")), **typed}
    words = [sys.executable.rpartition("/")[2] or "python", "-m", "finetune", recipe, *flags]
    return _settle(cls, given, command=shlex.join(_without_secrets(words)))


def from_keywords(recipe: str | type[Recipe] | Recipe, options: Mapping[str, Any]) -> Settings:
    """Settings of ``finetune.train(RECIPE, **options)``: the options are Python values already.

    Args:
        recipe: A name, a class, or an instance whose options count as given.
        options: Options of the recipe, training arguments, ``embedded`` and ``config``.
    """
    given: dict[str, Any] = {}
    if isinstance(recipe, Recipe):
        cls = type(recipe)
        given = {
            each.name: getattr(recipe, each.name)
            for each in dataclasses.fields(recipe)
            if getattr(recipe, each.name) != each.default
        }
    else:
        cls = catalog.find(recipe) if isinstance(recipe, str) else recipe
    _refuse_unknown(options, cls)
    given = {**_read_config(cls, options.get("config")), **given, **options}
    said = ", ".join(
        [repr(catalog.origin(cls)), *(f"{name}={value!r}" for name, value in given.items())]
    )
    return _settle(cls, given, command=f"finetune.train({said})")


def training_arguments(cls: type[Recipe], given: Mapping[str, Any]) -> FinetuneArguments:
    """The training arguments of a recipe with some given. This touches the device: call it in the
    worker.

    Raises:
        UserError: if one is unknown, or if they contradict each other.
    """
    from finetune.training.arguments import FinetuneArguments

    known = _training_names()
    unknown = [
        f"unknown training argument '{name}'{suggestion(name, known)}"
        for name in given
        if name not in known
    ]
    if unknown:
        raise UserError(*unknown)
    try:
        return FinetuneArguments(**_with_defaults(cls, given))
    except (
        ValueError,
        ImportError,
    ) as error:  # the library's own words about what contradicts what
        raise UserError(str(error)) from error


def peek(cls: type[Recipe], flags: Sequence[str]) -> dict[str, Any]:
    """The options that say where data and model come from, without importing the libraries.

    Only to know early whether the Hub is needed; mistakes are left to :func:`from_command_line`.
    """
    light = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    light.add_argument("--embedded", nargs="?", const="true")
    for name in ("dataset", "model", "config"):
        light.add_argument(f"--{name}")
    try:
        typed = {
            name: value
            for name, value in vars(light.parse_known_args(list(flags))[0]).items()
            if value is not None
        }
        config = _load_yaml(Path(typed["config"])) if "config" in typed else {}
    except (argparse.ArgumentError, UserError):
        return {}
    given = {**config, **typed}
    embedded = str(given.get("embedded", "false")).lower() in ("true", "1", "yes", "y", "t")
    defaults = {each.name: each.default for each in dataclasses.fields(cls)}
    merged = {**defaults, **(cls.embedded if embedded else {}), **given}
    return {name: merged.get(name) for name in ("dataset", "model")}


class Parser:
    """The options of a recipe as flags; only what was typed comes out.

    Args:
        cls: The recipe.
    """

    def __init__(self, cls: type[Recipe]) -> None:
        from transformers import HfArgumentParser

        from finetune.training.arguments import REFUSED, FinetuneArguments

        _refuse_clashes(cls)
        self.cls = cls
        self._parser = HfArgumentParser(
            [cls, FinetuneArguments],  # type: ignore[arg-type]
            allow_abbrev=False,
            add_help=False,
            prog=f"python -m finetune {catalog.origin(cls)}",
        )
        for name, help in CHOICES.items():
            flags = [f"--{name}", *([f"--{name.replace('_', '-')}"] if "_" in name else [])]
            if name == "config":
                self._parser.add_argument(*flags, metavar="FILE.yaml", help=help)
            else:
                self._parser.add_argument(*flags, nargs="?", const=True, type=_boolean, help=help)
        self.defaults = {}
        for action in self._parser._actions:
            self.defaults[action.dest] = action.default
            action.default = argparse.SUPPRESS
        self._refused = REFUSED
        self._parser.error = self._refuse  # type: ignore[method-assign]

    def read(self, words: Sequence[str], where: str = "") -> dict[str, Any]:
        """The options that ``words`` give, by name.

        Args:
            words: Flags and their values.
            where: What to put before a complaint: the name of a file.
        """
        self._where = where
        namespace, left = self._parser.parse_known_args(list(words))
        known = [flag for action in self._parser._actions for flag in action.option_strings]
        mistakes = [
            f"{where}unknown option {_flag(word, where)}{suggestion(word.partition('=')[0], known)}"
            for word in left
            if word.startswith("--")
        ]
        mistakes += [f"{where}unexpected word '{word}'" for word in left if not mistakes]
        given = vars(namespace)
        mistakes += [
            f"{where}{_flag(f'--{name}', where)}: the verb says it, leave it out"
            if name != "local_rank"
            else f"{where}{_flag('--local_rank', where)}: the launcher says it; start with torchrun, "
            "not torch.distributed.launch"
            for name in self._refused
            if name in given
        ]
        if mistakes:
            raise UserError(*mistakes)
        return given

    def help(self) -> str:
        """The recipe's own options first, then those of the training that people use, then the
        rest.
        """
        own = [each.name for each in dataclasses.fields(self.cls)]
        groups: dict[str, list[str]] = {
            f"options of {catalog.origin(self.cls)}": ["embedded", *own],
            "options of the run": ["config", "dry_run", *USED],
        }
        placed = {name for names in groups.values() for name in names}
        groups["every other option of transformers.TrainingArguments"] = sorted(
            {action.dest for action in self._parser._actions} - placed - set(self._refused)
        )
        defaults = {
            **self.defaults,
            **_with_defaults(self.cls, {}),
            **{each.name: each.default for each in dataclasses.fields(self.cls)},
        }
        formatter = argparse.HelpFormatter(prog=self._parser.prog, max_help_position=30)
        formatter.add_usage(None, [], [], prefix="")
        formatter.add_text(f"python -m finetune {catalog.origin(self.cls)} [flags]\n")
        formatter.add_text((sys.modules[self.cls.__module__].__doc__ or "").strip())
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
        if complaint.startswith("invalid") and "value: " in complaint:
            kind, _, value = complaint.removeprefix("invalid ").partition(" value: ")
            kind = {"string_to_bool": "true or false", "_boolean": "true or false"}.get(kind, kind)
            complaint = f"expected {'one of the choices below' if kind == 'choice' else kind}, found {value}"
        raise UserError(f"{self._where}{_flag(flags.partition('/')[0], self._where)}: {complaint}")


parser = Parser


def _settle(cls: type[Recipe], given: Mapping[str, Any], command: str) -> Settings:
    own = {each.name for each in dataclasses.fields(cls)}
    overrides = dict(cls.embedded) if given.get("embedded") else {}
    if given.get("embedded") and not overrides:
        raise UserError(f"--embedded: the recipe '{catalog.origin(cls)}' has no embedded data")
    overrides = {name: value for name, value in overrides.items() if name not in given}
    merged = {**overrides, **{name: value for name, value in given.items() if name not in CHOICES}}
    training = {name: value for name, value in merged.items() if name not in own}
    if token := training.pop("hub_token", None):
        _keep_secret(token)
    training.setdefault("output_dir", f"runs/{Path(catalog.origin(cls)).stem}")
    return Settings(
        recipe=cls(**{name: value for name, value in merged.items() if name in own}),
        training=training,
        overrides=overrides,
        given={name: value for name, value in given.items() if name != "hub_token"},
        dry_run=bool(given.get("dry_run")),
        command=command,
    )


def _with_defaults(cls: type[Recipe], given: Mapping[str, Any]) -> dict[str, Any]:
    """Training arguments: the recipe's under the given; a per-device batch given puts the global
    one aside.
    """
    defaults = dict(cls.training)
    if given.get("per_device_train_batch_size") is not None:
        if given.get("global_batch_size") is not None:
            raise UserError(
                "--global_batch_size and --per_device_train_batch_size contradict each other: give one"
            )
        defaults.pop("global_batch_size", None)
    output_dir = f"runs/{Path(catalog.origin(cls)).stem}"
    return {"output_dir": output_dir, **defaults, **given}


def _read_config(cls: type[Recipe], config: str | None) -> dict[str, Any]:
    if config is None:
        return {}
    words = []
    for name, value in _load_yaml(Path(config).expanduser()).items():
        if isinstance(value, list):
            words += [f"--{name}", *map(str, value)]
        elif isinstance(value, dict):
            words.append(f"--{name}={json.dumps(value)}")
        elif value not in ("", "null", "~"):
            words.append(f"--{name}={value}")
    given = parser(cls).read(words, where=f"{config}: ")
    if "config" in given:
        raise UserError(f"{config}: 'config' cannot name another file")
    return given


def _load_yaml(path: Path) -> dict[str, Any]:
    import yaml

    if not path.exists():
        raise UserError(f"--config: no such file: {path}")
    try:
        # BaseLoader reads every value as a string: `no` stays "no", and the parser judges it like
        # a flag
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"--config: {path} is no YAML: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"--config: {path}: expected lines like `learning_rate: 2e-5`")
    return {str(name).replace("-", "_"): value for name, value in content.items()}


def _refuse_unknown(options: Mapping[str, Any], cls: type[Recipe]) -> None:
    _refuse_clashes(cls)
    known = {each.name for each in dataclasses.fields(cls)} | _training_names() | set(CHOICES)
    unknown = [
        f"unknown option '{name}'{suggestion(name, known)}" for name in options if name not in known
    ]
    if unknown:
        raise UserError(*unknown)


def _refuse_clashes(cls: type[Recipe]) -> None:
    taken = sorted(
        {each.name for each in dataclasses.fields(cls)} & (_training_names() | set(CHOICES))
    )
    if taken:
        raise UserError(
            f"{cls.__name__}: the options {', '.join(taken)} are training arguments already; "
            "set their defaults in `training`, or choose other names"
        )


def _training_names() -> set[str]:
    from finetune.training.arguments import REFUSED, FinetuneArguments

    return {each.name for each in dataclasses.fields(FinetuneArguments) if each.init} - set(REFUSED)


def _keep_secret(token: str) -> None:
    """The library would write ``hub_token`` into every checkpoint in plain text; it reads this as
    well.
    """
    import os

    os.environ["HF_TOKEN"] = token


def _without_secrets(words: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for word in words:
        if kept and kept[-1] in ("--hub_token", "--hub-token"):
            word = "***"
        elif word.startswith(("--hub_token=", "--hub-token=")):
            word = f"{word.partition('=')[0]}=***"
        kept.append(word)
    return kept


def _flag(flag: str, where: str) -> str:
    """The flag as typed; in a file it is a key."""
    return f"'{flag.removeprefix('--').partition('=')[0]}'" if where else flag.partition("=")[0]


def _boolean(word: str) -> bool:
    from transformers.hf_argparser import string_to_bool

    return bool(string_to_bool(word))


def _for_help(action: argparse.Action, default: Any) -> argparse.Action:
    """The action as the help shows it: one spelling, a default that means something, the first
    sentence.
    """
    shown = argparse.Action(
        option_strings=action.option_strings[:1],
        dest=action.dest,
        nargs=action.nargs,
        metavar=action.metavar or _metavar(action),
    )
    sentence = " ".join((action.help or "").split())
    cut = sentence.find(". ")
    sentence = sentence if cut < 0 else sentence[:cut]
    if default not in (None, "", [], argparse.SUPPRESS):
        sentence += f" (default: {getattr(default, 'value', default)})"
    shown.help = sentence.replace("%", "%%")
    return shown


def _metavar(action: argparse.Action) -> str | None:
    if action.choices:
        return "|".join(str(choice) for choice in action.choices)
    kind = getattr(action.type, "__name__", "")
    if kind in ("string_to_bool", "_boolean"):
        return "true|false"
    return {"int": "N", "float": "X", "str": "TEXT"}.get(kind, "VALUE")
