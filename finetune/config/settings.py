"""Recipe defaults < embedded overrides < config file < flags: from what was typed to a recipe.

The values of a YAML file are read as strings and go through the parser of the flags, so that both
are checked alike.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.config.flags import CHOICES, Flags, add_unknown, reads_dataset, refuse_clashes
from finetune.data.comma_list import format_option
from finetune.errors import Mistakes, UserError, masked
from finetune.recipe import Recipe, TextClassification, catalog
from finetune.recipe.options import of_several
from finetune.runtime import distributed, hub

if TYPE_CHECKING:
    from finetune.training.arguments import ArgumentValues, FinetuneArguments


#: Options that say where data and model come from.
_SOURCES = ("dataset", "dataset_revision", "dataset_config", "model", "model_revision")


@dataclass(frozen=True)
class Settings:
    """What one run is made from.

    Attributes:
        recipe: The recipe, with its options.
        training: The training arguments that are not the library's defaults, by name.
        overrides: What ``--embedded`` changed, by name.
        given: What the config file and the flags set, by name.
        dry_run: Whether to stop after one collated batch.
        command: The command that says the same again, for people.
        resuming: The command that resumes this run where it was interrupted.
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
        from finetune.recipe import scoring
        from finetune.training.defaults import argument_values

        given = scoring.with_computed(self.training, self.recipe.known_scoring)
        return argument_values(self.recipe.training_defaults(given), given)

    @property
    def without_effect(self) -> list[str]:
        """A sentence for each option that was set and has no effect beside the others."""
        from finetune.training.effects import without_effect

        own = (
            self.recipe.without_effect(self.given)
            if isinstance(self.recipe, TextClassification)
            else []
        )
        return [*own, *without_effect(self.given, self.values)]

    @functools.cached_property
    def arguments(self) -> FinetuneArguments:
        """The training arguments; in a job of several processes this needs the process group."""
        return self.values.build()


def from_command_line(
    recipe: str, flags: Sequence[str], mistakes: Mistakes | None = None
) -> Settings:
    """Return the settings of ``python -m finetune RECIPE FLAGS``.

    Args:
        recipe: What :func:`~finetune.recipe.catalog.find` takes.
        flags: The words after it.
        mistakes: Takes what is wrong with flags and config file; the settings are those that the
            rest of them make.

    Raises:
        UserError: what is wrong, unless ``mistakes`` takes it.
    """
    cls, wrong = catalog.find(recipe), Mistakes()
    typed = Flags(cls).read(flags, mistakes=wrong)
    given = {**_read_config(cls, typed.get("config"), wrong), **typed}
    words = [*distributed.launcher(), "-m", "finetune", recipe, *flags]
    command = masked(shlex.join(_without_secrets(words)))
    settled = _settle(cls, given, command, masked(_resuming(words)), wrong)
    wrong.hand_to(mistakes)
    return settled


def from_keywords(
    recipe: str | type[Recipe] | Recipe,
    options: Mapping[str, Any],
    mistakes: Mistakes | None = None,
) -> Settings:
    """Return the settings of ``finetune.train(RECIPE, **options)``, whose options are values.

    Args:
        recipe: A name, a class, or an instance whose options count as given.
        options: Options of the recipe, training arguments, ``embedded`` and ``config``.
        mistakes: As for :func:`from_command_line`.

    Raises:
        UserError: what is wrong, unless ``mistakes`` takes it.
    """
    set_here: dict[str, Any] = {}
    if isinstance(recipe, Recipe):
        cls = type(recipe)
        set_here = {
            each.name: value
            for each in dataclasses.fields(recipe)
            if (value := getattr(recipe, each.name)) != each.default
        }
    else:
        cls = catalog.find(recipe) if isinstance(recipe, str) else recipe
    wrong = Mistakes()
    options = _known(options, cls, wrong)
    if not isinstance(options.get("dataset", ""), str):
        from finetune.data import memory

        options["dataset"] = memory.store(options["dataset"])
    given = {**_read_config(cls, options.get("config"), wrong), **set_here, **options}
    shown = {name: "***" if name == "hub_token" else value for name, value in given.items()}
    again = {name: value for name, value in shown.items() if name != "resume_from_checkpoint"}
    command, resuming = (
        f"finetune.train({', '.join([repr(catalog.origin(cls)), *words])})"
        for words in (_keywords(shown), _keywords({**again, "resume": True}))
    )
    settled = _settle(cls, given, command, resuming, wrong)
    wrong.hand_to(mistakes)
    return settled


def peek(cls: type[Recipe], flags: Sequence[str]) -> dict[str, Any] | None:
    """Return the options that say where data and model come from, without importing the libraries.

    Only to know early whether the Hub is needed; mistakes are left to :func:`from_command_line`.

    Returns:
        None if they cannot be told, or if the Hub is needed anyway, to push to it.
    """
    try:
        typed, _ = _sources_in(flags)
        config = _load_yaml(Path(typed["config"]).expanduser()) if "config" in typed else {}
    except (argparse.ArgumentError, UserError):
        return None
    given = {**config, **typed}
    if _is_true(given.get("push_to_hub")):
        return None
    embedded = _is_true(given.get("embedded"))
    defaults = {each.name: each.default for each in dataclasses.fields(cls)}
    merged = {**defaults, **(cls.embedded if embedded else {}), **given}
    return {name: merged[name] for name in _SOURCES if merged.get(name) is not None}


def may_have_mistakes(flags: Sequence[str], wanted: Mapping[str, Any]) -> bool:
    """Return whether more than the Hub can be in the way of a run.

    Args:
        flags: As for :func:`peek`, which they satisfy.
        wanted: What it returned.
    """
    typed, others = _sources_in(flags)
    local = not hub.names_repository(wanted.get("dataset"))
    return bool(others or typed.keys() - set(_SOURCES) or (wanted.get("dataset") and local))


def _sources_in(flags: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the flags that say where data and model come from, as typed; and the other words."""
    light = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("embedded", "push_to_hub"):
        light.add_argument(f"--{name}", f"--{name.replace('_', '-')}", nargs="?", const="true")
    for name in (*_SOURCES, "config"):
        light.add_argument(f"--{name}", f"--{name.replace('_', '-')}")
    typed, others = light.parse_known_args(list(flags))
    return {name: value for name, value in vars(typed).items() if value is not None}, others


def _settle(
    cls: type[Recipe], given: Mapping[str, Any], command: str, resuming: str, mistakes: Mistakes
) -> Settings:
    from finetune.training.defaults import keep_secret

    if given.get("embedded") and not cls.embedded:
        mistakes.add(f"--embedded: the recipe '{catalog.shown(cls)}' has no embedded data")
    for name in ("dataset", "dataset_revision"):
        if name in given and not reads_dataset(cls):
            mistakes.add(
                f"--{name}: the recipe '{catalog.shown(cls)}' loads its own data; if its load() "
                "reads self.dataset, write `dataset: str = ...` in the class"
            )
    for one, other in cls.exclusive:
        if given.get(one) is not None and given.get(other) is not None:
            mistakes.add(f"--{one} {given[one]} and --{other} {given[other]}: give one of the two")
    own = {each.name for each in dataclasses.fields(cls)}
    embedded = cls.embedded if given.get("embedded") else {}
    overrides = {name: value for name, value in embedded.items() if name not in given}
    merged = {**overrides, **{name: value for name, value in given.items() if name not in CHOICES}}
    training = {name: value for name, value in merged.items() if name not in own}
    keep_secret(training)
    directory = training.get("output_dir", cls.defaults()["output_dir"])
    training["output_dir"] = str(Path(directory).expanduser())
    return Settings(
        recipe=_built(cls, {name: each for name, each in merged.items() if name in own}, mistakes),
        training=training,
        overrides=overrides,
        given={name: value for name, value in given.items() if name != "hub_token"},
        dry_run=bool(given.get("dry_run")),
        command=command,
        resuming=resuming,
    )


def _built(cls: type[Recipe], options: Mapping[str, Any], mistakes: Mistakes) -> Recipe:
    """Return the recipe; if it refuses some options, without those that it refuses by themselves
    or beside the ones before them.
    """
    try:
        return cls(**options)
    except UserError as error:
        mistakes.add(*error.mistakes)
    accepted: dict[str, Any] = {}
    for name, value in options.items():
        with Mistakes():
            accepted[name] = getattr(cls(**accepted, **{name: value}), name)
    return cls(**accepted)


def _is_true(word: Any) -> bool:
    return str(word).lower() in ("true", "1", "yes", "y", "t")


def _read_config(cls: type[Recipe], config: str | None, mistakes: Mistakes) -> dict[str, Any]:
    if config is None:
        return {}
    words: list[str] = []
    with mistakes:
        forms = of_several(cls)
        for name, value in _load_yaml(Path(config).expanduser()).items():
            if name in forms and not isinstance(value, str):
                with mistakes:
                    text = format_option(value, forms[name], f"{config}: '{name}'")
                    words.append(f"--{name}={text}")
            elif isinstance(value, list):
                words += [f"--{name}", *map(str, value)]
            elif isinstance(value, dict):
                words.append(f"--{name}={json.dumps(value)}")
            elif value not in ("", "null", "~"):
                words.append(f"--{name}={value}")
    given = Flags(cls).read(words, where=f"{config}: ", mistakes=mistakes)
    if given.pop("config", None) is not None:
        mistakes.add(f"{config}: 'config' cannot name another file")
    return given


def _load_yaml(path: Path) -> dict[str, Any]:
    import yaml

    if not path.exists():
        raise UserError(f"--config: no such file: {path}")
    try:
        # BaseLoader reads every value as a string: `no` stays "no", and the parser judges it like
        # a flag
        node = yaml.compose(text := path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
        content = yaml.load(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"--config: {path} is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"--config: {path}: expected lines like `learning_rate: 2e-5`")
    if repeated := _repeated(node):
        raise UserError(*(f"--config: {path}: {each}; keep one" for each in repeated))
    return {str(name).replace("-", "_"): value for name, value in content.items()}


def _repeated(node: Any) -> list[str]:
    """Return the keys that a YAML mapping, or one within it, has twice, with their lines."""
    lines: dict[str, int] = {}
    found = []
    for key, value in node.value:
        name, line = str(key.value).replace("-", "_"), key.start_mark.line + 1
        if name in lines:
            found.append(f"'{name}' is there twice, in lines {lines[name]} and {line}")
        lines[name] = line
        if value.id == "mapping":
            found += _repeated(value)
    return found


def _known(options: Mapping[str, Any], cls: type[Recipe], mistakes: Mistakes) -> dict[str, Any]:
    """Return the options that there are, of the right type where no parser has looked at it."""
    from finetune.training.defaults import training_names

    refuse_clashes(cls)
    known = {each.name for each in dataclasses.fields(cls)} | training_names() | set(CHOICES)
    kept, forms = {}, of_several(cls)
    for name, value in options.items():
        if name in forms:
            with mistakes:
                kept[name] = format_option(value, forms[name], f"--{name}")
        elif name in ("embedded", "dry_run") and not isinstance(value, bool):
            mistakes.add(f"{name}: expected True or False, found {value!r}")
        elif name in known:
            kept[name] = value
        else:
            add_unknown(f"'{name}'", cls, known, mistakes)
    return kept


def _keywords(options: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value!r}" for name, value in options.items()]


def _resuming(words: Sequence[str]) -> str:
    """Return the command that goes on with what a command began."""
    flag = r"\0--resume([_-]from[_-]checkpoint)?([=\0](?!--)[^\0]*)?(?=\0|$)"
    again = re.sub(flag, "", "\0".join(_without_secrets(words))).split("\0")
    return shlex.join([*again, "--resume"])


def _without_secrets(words: Sequence[str]) -> list[str]:
    return re.sub(r"(?<=--hub[_-]token[=\0])[^\0]*", "***", "\0".join(words)).split("\0")
