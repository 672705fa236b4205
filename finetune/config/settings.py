"""Recipe defaults < embedded overrides < config file < flags: from what was typed to a recipe and
arguments.

One parser reads them all. It is made from the fields of the recipe and of ``FinetuneArguments`` by
``HfArgumentParser``; the values of a YAML file are read as strings and go through it like flags,
so that both are checked alike.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.config.flags import CHOICES, Flags, refuse_clashes
from finetune.errors import UserError, suggestion
from finetune.recipe import Recipe, catalog
from finetune.runtime import distributed, hub

if TYPE_CHECKING:
    from finetune.training.arguments import ArgumentValues, FinetuneArguments


#: Options that say where data and model come from.
_SOURCES = ("dataset", "dataset_revision", "model", "model_revision")


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
        resuming: The command that goes on with this run where it was interrupted.
    """

    recipe: Recipe
    training: dict[str, Any]
    overrides: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    dry_run: bool = False
    command: str = ""
    resuming: str = ""

    @property
    def name(self) -> str:
        """The words that find the recipe again."""
        return catalog.origin(type(self.recipe))

    @property
    def output_dir(self) -> Path:
        """The directory of the run."""
        return Path(self.training["output_dir"])

    @functools.cached_property
    def values(self) -> ArgumentValues:
        """The training arguments as values, checked without touching the device.

        Raises:
            UserError: if they contradict each other.
        """
        from finetune.training.defaults import argument_values

        return argument_values(self.recipe.defaults(), self.training)

    @functools.cached_property
    def arguments(self) -> FinetuneArguments:
        """The training arguments; in a job of several processes this needs the process group."""
        return self.values.build()


def from_command_line(recipe: str, flags: Sequence[str]) -> Settings:
    """Settings of ``python -m finetune RECIPE FLAGS``.

    Raises:
        UserError: if a flag or a key is unknown, or a value of the wrong type.
    """
    cls = catalog.find(recipe)
    typed = Flags(cls).read(flags)
    given = {**_read_config(cls, typed.get("config")), **typed}
    words = [*distributed.launcher(), "-m", "finetune", recipe, *flags]
    command = shlex.join(_without_secrets(words))
    return _settle(cls, given, command, f"{command} --resume_from_checkpoint last")


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
    said = [repr(catalog.origin(cls)), *(f"{name}={value!r}" for name, value in _spoken(given))]
    command = f"finetune.train({', '.join(said)})"
    said.append("resume_from_checkpoint='last'")
    resuming = f"finetune.train({', '.join(said)})"
    return _settle(cls, given, command, resuming)


def peek(cls: type[Recipe], flags: Sequence[str]) -> dict[str, Any] | None:
    """The options that say where data and model come from, without importing the libraries.

    None if they cannot be told, or if the Hub is needed anyway, to push to it.

    Only to know early whether the Hub is needed; mistakes are left to :func:`from_command_line`.
    """
    light = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("embedded", "push_to_hub"):
        light.add_argument(f"--{name}", f"--{name.replace('_', '-')}", nargs="?", const="true")
    for name in (*_SOURCES, "config"):
        light.add_argument(f"--{name}", f"--{name.replace('_', '-')}")
    try:
        typed = {
            name: value
            for name, value in vars(light.parse_known_args(list(flags))[0]).items()
            if value is not None
        }
        config = _load_yaml(Path(typed["config"]).expanduser()) if "config" in typed else {}
    except (argparse.ArgumentError, UserError):
        return None
    given = {**config, **typed}
    if _is_true(given.get("push_to_hub")):
        return None
    embedded = _is_true(given.get("embedded"))
    defaults = {each.name: each.default for each in dataclasses.fields(cls)}
    merged = {**defaults, **(cls.embedded if embedded else {}), **given}
    return hub.wanted(merged)


def _settle(cls: type[Recipe], given: Mapping[str, Any], command: str, resuming: str) -> Settings:
    from finetune.training.defaults import keep_secret

    own = {each.name for each in dataclasses.fields(cls)}
    overrides = dict(cls.embedded) if given.get("embedded") else {}
    if given.get("embedded") and not overrides:
        raise UserError(f"--embedded: the recipe '{catalog.origin(cls)}' has no embedded data")
    overrides = {name: value for name, value in overrides.items() if name not in given}
    merged = {**overrides, **{name: value for name, value in given.items() if name not in CHOICES}}
    training = {name: value for name, value in merged.items() if name not in own}
    keep_secret(training)
    directory = training.get("output_dir", cls.defaults()["output_dir"])
    training["output_dir"] = str(Path(directory).expanduser())
    return Settings(
        recipe=cls(**{name: value for name, value in merged.items() if name in own}),
        training=training,
        overrides=overrides,
        given={name: value for name, value in given.items() if name != "hub_token"},
        dry_run=bool(given.get("dry_run")),
        command=command,
        resuming=resuming,
    )


def _is_true(word: Any) -> bool:
    return str(word).lower() in ("true", "1", "yes", "y", "t")


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
    given = Flags(cls).read(words, where=f"{config}: ")
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
    from finetune.training.defaults import training_names

    refuse_clashes(cls)
    mistakes = [
        f"{name}: expected True or False, found {options[name]!r}"
        for name in ("embedded", "dry_run")
        if not isinstance(options.get(name, False), bool)
    ]
    if mistakes:
        raise UserError(*mistakes)
    known = {each.name for each in dataclasses.fields(cls)} | training_names() | set(CHOICES)
    unknown = [
        f"unknown option '{name}'{suggestion(name, known)}" for name in options if name not in known
    ]
    if unknown:
        raise UserError(*unknown)


def _spoken(given: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, "***" if name == "hub_token" else value) for name, value in given.items()]


def _without_secrets(words: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for word in words:
        if kept and kept[-1] in ("--hub_token", "--hub-token"):
            word = "***"
        elif word.startswith(("--hub_token=", "--hub-token=")):
            word = f"{word.partition('=')[0]}=***"
        kept.append(word)
    return kept
