"""Resolve the options of a run: recipe defaults < ``--embedded`` < config file < flags.

The values of a YAML file are read as strings and parsed like flags, so that both are checked alike.
Mistakes are errors in the report of the recipe, which a training raises together with mistakes in
the data.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from finetune.data.comma_list import format_option
from finetune.errors import Findings, UserError, masked
from finetune.recipe import Recipe, catalog
from finetune.runtime import distributed, hub
from finetune.training.options import check_types, merge_options, without_none

if TYPE_CHECKING:
    from finetune.config.parser import RecipeParser
    from finetune.training.arguments import ArgumentValues, FinetuneArguments

#: Options that name data and model on the Hub.
_SOURCES = (
    "dataset",
    "dataset_revision",
    "dataset_config",
    "unlabelled",
    "model",
    "model_revision",
)
_TRUE = ("", "yes", "true", "t", "y", "1")  # the values that turn on a switch
_HUB_TOKEN = re.compile(r"(hub[-_]token[= ])[^\s,)]+")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The resolved options of a run."""

    recipe: Recipe  # with its options; its report has the mistakes in all options
    training: dict[str, Any]  # training arguments that the user or ``--embedded`` set
    overrides: dict[str, Any]  # options set by --embedded
    user_options: dict[str, Any]  # options set by the config file and the flags
    dry_run: bool  # whether to stop after one collated batch
    command: str  # the command that starts this run, for people
    hub_token: str | None = dataclasses.field(repr=False)  # in no other attribute but `typed`
    typed: Any = dataclasses.field(default=(), repr=False)  # the flags, or the options of Python
    is_loaded: bool = False  # whether values follow from the rows of the recipe

    @classmethod
    def from_command_line(cls, recipe: str, flags: Sequence[str]) -> Settings:
        """Return the settings of ``python -m finetune RECIPE FLAGS``; mistakes are in the report.

        Raises:
            UserError: If there is no such recipe.
        """
        from finetune.config.parser import RecipeParser

        parser = RecipeParser(catalog.find(recipe))
        command = shlex.join([*distributed.launcher(), "-m", "finetune", recipe, *flags])
        return dataclasses.replace(cls._resolve(parser, parser.read(flags), command), typed=flags)

    @classmethod
    def from_keywords(
        cls, recipe: str | type[Recipe] | Recipe, options: Mapping[str, Any]
    ) -> Settings:
        """Return the settings of ``finetune.train(RECIPE, **options)``; mistakes are in the report.

        Raises:
            UserError: If there is no such recipe.
        """
        from finetune.config.parser import RecipeParser, RunOptions
        from finetune.data import memory

        if isinstance(recipe, Recipe):
            changed = {}
            for option in dataclasses.fields(recipe):
                value = getattr(recipe, option.name)
                if value != option.default:
                    changed[option.name] = value
            options = {**changed, **options}
            recipe = type(recipe)
        for name in ("dataset", "unlabelled"):  # rows in memory are stored once
            if options.get(name) is not None:
                options = {**options, name: memory.store(options[name])}
        parser = RecipeParser(catalog.find(recipe))
        hints = dict.fromkeys(parser.names, Any) | get_type_hints(RunOptions)
        hints |= {"output_dir": str, "num_processes": Any}
        keywords = check_types(options, hints, parser.report)
        words = [f"{name}={value!r}" for name, value in keywords.items()]
        command = f"finetune.train({', '.join([repr(catalog.origin(parser.recipe)), *words])})"
        settings = cls._resolve(parser, keywords, command)
        if (number := settings.user_options.get("num_processes")) is not None:
            settings.report.error(
                f"num_processes={number} is for the command line: leave it out, and call "
                f"finetune.launch(recipe, num_processes={number}, ...)"
            )
        return dataclasses.replace(settings, typed=options)

    @classmethod
    def _resolve(cls, parser: RecipeParser, typed: dict[str, Any], command: str) -> Settings:
        """Merge the options of the recipe, ``--embedded``, the config file and ``typed``."""
        from finetune.config.parser import RUN_OPTIONS

        recipe = parser.recipe
        report = parser.report
        config = _read_config(parser, typed["config"]) if typed.get("config") is not None else {}
        user_options = merge_options(config, typed)
        hub_token = user_options.pop("hub_token", None)
        if user_options.get("embedded") and not recipe.embedded:
            report.error(f"--embedded: {catalog.display_name(recipe)} has no embedded data")
        embedded = recipe.embedded if user_options.get("embedded") else {}
        merged = merge_options(embedded, user_options)
        # in the order of the recipe, in which an option follows those that it needs
        options = [field.name for field in dataclasses.fields(recipe) if field.name in merged]
        training = {name: merged[name] for name in merged if name not in {*options, *RUN_OPTIONS}}
        directory = training.get("output_dir", recipe.defaults()["output_dir"])
        training["output_dir"] = str(Path(directory).expanduser())
        accepted: dict[str, Any] = {}
        for name in options:
            with report.collect():  # options that the recipe rejects are left out
                accepted[name] = getattr(recipe(**{**accepted, name: merged[name]}), name)
        built = recipe(**accepted)
        built.report.add(*report.findings)
        return cls(
            recipe=built,
            training=training,
            overrides={name: merged[name] for name in merged if name not in user_options},
            user_options=user_options,
            dry_run=bool(user_options.get("dry_run")),
            command=masked(_HUB_TOKEN.sub(r"\1***", command)),
            hub_token=hub_token,
        )

    def with_options(self, changes: Mapping[str, Any]) -> Settings:
        """Return the settings with other options, as if they had been typed last."""
        if isinstance(self.typed, Mapping):
            return Settings.from_keywords(type(self.recipe), {**self.typed, **changes})
        words = list(self.typed)
        for name, value in changes.items():
            words.append(f"--{name}" if value is True else f"--{name}={value}")
        return Settings.from_command_line(self.name, words)

    @property
    def report(self) -> Findings:
        """The findings about the options, and later about the data."""
        return self.recipe.report

    @property
    def name(self) -> str:
        """The name by which the recipe is found: ``yelp`` or the path of a file."""
        return catalog.origin(type(self.recipe))

    @property
    def output_dir(self) -> Path:
        """The directory of the run."""
        return Path(self.training["output_dir"])

    @property
    def resuming(self) -> str:
        """The command that resumes this run where it was interrupted."""
        if self.values.resume:
            return self.command
        if self.values.resume_from_checkpoint:
            return self.with_options({"resume_from_checkpoint": "last"}).command
        return self.with_options({"resume": True}).command

    @functools.cached_property
    def values(self) -> ArgumentValues:
        """The values of the training arguments, checked without initializing a device.

        Raises:
            UserError: If arguments contradict each other.
        """
        from finetune.training.arguments import argument_values

        defaults = self.recipe.training_defaults(self.training, is_loaded=self.is_loaded)
        return argument_values(defaults, self.training)

    @functools.cached_property
    def arguments(self) -> FinetuneArguments:
        """The ``TrainingArguments``; with several processes they need the process group."""
        arguments = self.values.build()
        arguments.hub_token = self.hub_token
        return arguments


def typed_options(names: Iterable[str], flags: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return options as they are typed, without importing libraries; mistakes are left to the
    parser of the recipe.

    Args:
        names: The names of options to find among the flags.
        flags: The flags of a recipe.

    Returns:
        The texts of these options and of all options in the config file, and the other words. The
        text of a flag without a value is empty.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in (*names, "config"):
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", nargs="?", const="")
    namespace, other_words = parser.parse_known_args(flags)
    options = without_none(vars(namespace))
    with contextlib.suppress(UserError):
        if "config" in options:
            options = {**_load_yaml(options["config"]), **options}
    return options, other_words


def require_hub(recipe: type[Recipe], flags: Sequence[str]) -> None:
    """Require the Hub if data or model must be downloaded, before libraries are imported; set
    ``HF_HUB_OFFLINE`` if nothing must be. The parser reports mistakes in the flags.

    Raises:
        UserError: If the Hub does not answer and the flags cannot have other mistakes.
    """
    options, other_words = typed_options((*_SOURCES, "embedded", "num_processes"), flags)
    options.pop("num_processes", None)
    is_on = {name for name, value in options.items() if str(value).lower() in _TRUE}
    if is_on & set(_SOURCES):  # a source is "on" if its value is missing
        return
    sources = dict(vars(recipe()))
    if "embedded" in is_on:
        sources |= recipe.embedded
    sources |= options
    is_local = sources["dataset"] and not hub.names_repository(sources["dataset"])
    may_have_mistakes = is_local or other_words or not options.keys() <= set(_SOURCES)
    hub.go_offline(sources)
    if distributed.is_main_process() and not may_have_mistakes:
        hub.require(sources, recipe)


def _read_config(parser: RecipeParser, config: str) -> dict[str, Any]:
    """Return the options in a YAML file, parsed like flags."""
    forms = {o.name: o.metadata.get("metavar", "") for o in dataclasses.fields(parser.recipe)}
    words: list[str] = []
    with parser.report.collect():
        for name, value in _load_yaml(config).items():
            with parser.report.collect():
                if "," in forms.get(name, ""):
                    value = format_option(value, forms[name], f"{config}: '{name}'")
                if isinstance(value, list):
                    words += [f"--{name}", *map(str, value)]
                elif value not in ("", "null", "~"):
                    text = json.dumps(value) if isinstance(value, dict) else value
                    words.append(f"--{name}={text}")
    return parser.read(words, f"{config}: ")


def _load_yaml(config: str) -> dict[str, Any]:
    """Return the values in a YAML file as strings, by option."""
    import yaml

    try:
        text = Path(config).expanduser().read_text(encoding="utf-8")
        node, content = yaml.compose(text, yaml.BaseLoader), yaml.load(text, yaml.BaseLoader)
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"--config: {config} cannot be read: {error}") from error
    if not isinstance(node, yaml.MappingNode):
        raise UserError(f"--config: {config}: expected lines such as `learning_rate: 2e-5`")
    names = [str(key.value).replace("-", "_") for key, _ in node.value]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"--config: {config}: set more than once: {', '.join(repeated)}")
    return {name.replace("-", "_"): value for name, value in content.items()}
