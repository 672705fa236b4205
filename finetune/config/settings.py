"""Recipe defaults < embedded overrides < config file < flags: from what was typed to a recipe.

The values of a YAML file are read as strings and go through the parser of the flags, so that both
are checked alike. Mistakes are errors in the report of the recipe: who trains raises them together
with what is wrong with the data.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.data.comma_list import format_option
from finetune.errors import Report, UserError, masked
from finetune.recipe import Recipe, TextRecipe, catalog
from finetune.recipe.options import comma_lists
from finetune.runtime import distributed, hub

if TYPE_CHECKING:
    from finetune.training.arguments import ArgumentValues, FinetuneArguments

#: Options that say where data and model come from.
_SOURCES = ("dataset", "dataset_revision", "dataset_config", "model", "model_revision")


@dataclass(frozen=True)
class Settings:
    """What one run is made from.

    Attributes:
        recipe: The recipe, with its options; its report has the mistakes in what was typed.
        training: The training arguments that are not the library's defaults, by name.
        overrides: What ``--embedded`` changed, by name.
        given: What the config file and the flags set, by name.
        dry_run: Whether to stop after one collated batch.
        command: The command that says the same again, for people.
        resuming: The command that resumes this run where it was interrupted.
        hub_token: To push with; it is in no other attribute, and is not shown.
    """

    recipe: Recipe
    training: dict[str, Any]
    overrides: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    dry_run: bool = False
    command: str = ""
    resuming: str = ""
    hub_token: str | None = field(default=None, repr=False)

    @classmethod
    def from_command_line(
        cls, recipe: str, flags: Sequence[str], more_flags: Sequence[str] = ()
    ) -> Settings:
        """Return the settings of ``python -m finetune RECIPE FLAGS``.

        Args:
            recipe: What :func:`~finetune.recipe.catalog.find` takes.
            flags: The words after it.
            more_flags: Flags of the subcommand, which are suggested for a misspelled one.

        Raises:
            UserError: If there is no such recipe. Other mistakes are in the report.
        """
        from finetune.config.parser import RecipeParser

        recipe_class, report = catalog.find(recipe), Report()
        parser = RecipeParser(recipe_class, more_flags)
        typed = parser.read(flags, report)
        given = {**_read_config(parser, typed.get("config"), report), **typed}
        words = _without_secrets([*distributed.launcher(), "-m", "finetune", recipe, *flags])
        resume = r"\0--resume([_-]from[_-]checkpoint)?([=\0](?!--)[^\0]*)?(?=\0|$)"
        again = re.sub(resume, "", "\0".join(words)).split("\0")
        command, resuming = (masked(shlex.join(line)) for line in (words, [*again, "--resume"]))
        return cls._resolve(recipe_class, given, command, resuming, report)

    @classmethod
    def from_keywords(
        cls, recipe: str | type[Recipe] | Recipe, options: Mapping[str, Any]
    ) -> Settings:
        """Return the settings of ``finetune.train(RECIPE, **options)``, whose options are values.

        Args:
            recipe: A name, a class, or an instance whose options count as given.
            options: Options of the recipe, training arguments, ``embedded`` and ``config``.

        Raises:
            UserError: If there is no such recipe. Other mistakes are in the report.
        """
        from finetune.config.parser import RecipeParser

        changed: dict[str, Any] = {}
        if isinstance(recipe, Recipe):
            recipe_class = type(recipe)
            for option in dataclasses.fields(recipe):
                if (value := getattr(recipe, option.name)) != option.default:
                    changed[option.name] = value
        else:
            recipe_class = catalog.find(recipe) if isinstance(recipe, str) else recipe
        report = Report()
        options = _known(options, recipe_class, report)
        if not isinstance(options.get("dataset", ""), str):
            from finetune.data import memory

            options["dataset"] = memory.store(options["dataset"])
        config: dict[str, Any] = {}
        if options.get("config") is not None:
            config = _read_config(RecipeParser(recipe_class), options["config"], report)
        given = {**config, **changed, **options}
        shown = {name: "***" if name == "hub_token" else value for name, value in given.items()}
        again = {name: shown[name] for name in shown if name != "resume_from_checkpoint"}
        name = repr(catalog.origin(recipe_class))
        command, resuming = (
            f"finetune.train({', '.join([name, *(f'{key}={line[key]!r}' for key in line)])})"
            for line in (shown, {**again, "resume": True})
        )
        return cls._resolve(recipe_class, given, command, resuming, report)

    @classmethod
    def _resolve(
        cls,
        recipe: type[Recipe],
        given: Mapping[str, Any],
        command: str,
        resuming: str,
        report: Report,
    ) -> Settings:
        from finetune.config.parser import RUN_OPTIONS, reads_dataset

        if given.get("embedded") and not recipe.embedded:
            report.error(f"--embedded: the recipe '{catalog.shown(recipe)}' has no embedded data")
        for name in {"dataset", "dataset_revision"} & given.keys():
            if not reads_dataset(recipe):
                report.error(
                    f"--{name}: the recipe '{catalog.shown(recipe)}' loads its own data; if its "
                    "load() reads self.dataset, write `dataset: str = ...` in the class"
                )
        embedded = recipe.embedded if given.get("embedded") else {}
        overrides = {name: value for name, value in embedded.items() if name not in given}
        merged = {**overrides, **given}
        names = {option.name for option in dataclasses.fields(recipe)}
        training = {n: value for n, value in merged.items() if n not in {*names, *RUN_OPTIONS}}
        hub_token = training.pop("hub_token", None)
        directory = training.get("output_dir", recipe.defaults()["output_dir"])
        training["output_dir"] = str(Path(directory).expanduser())
        built = _build(recipe, {n: value for n, value in merged.items() if n in names}, report)
        built.report.add(*report.findings)
        return cls(
            recipe=built,
            training=training,
            overrides=overrides,
            given={name: value for name, value in given.items() if name != "hub_token"},
            dry_run=bool(given.get("dry_run")),
            command=command,
            resuming=resuming,
            hub_token=hub_token,
        )

    @property
    def report(self) -> Report:
        """What is wrong with the settings, and later with the data."""
        return self.recipe.report

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
            UserError: If they contradict each other.
        """
        from finetune.training.defaults import argument_values

        return argument_values(self.recipe.training_defaults(self.training), self.training)

    @property
    def without_effect(self) -> list[str]:
        """A sentence for each option of the recipe that has no effect beside the others."""
        recipe = self.recipe
        return recipe.without_effect(self.given) if isinstance(recipe, TextRecipe) else []

    @functools.cached_property
    def arguments(self) -> FinetuneArguments:
        """The training arguments; in a job of several processes this needs the process group."""
        arguments = self.values.build()
        arguments.hub_token = self.hub_token
        return arguments


def peek(recipe: type[Recipe], flags: Sequence[str]) -> tuple[dict[str, Any], bool] | None:
    """Return where data and model come from, without importing the libraries.

    It is for knowing early whether the Hub is needed; mistakes are left to the parser.

    Returns:
        These options, and whether there are other words that may be mistaken, or local data; None
        if they cannot be told, or if the Hub is needed anyway, to push to it.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("embedded", "push_to_hub"):
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", nargs="?", const="true")
    for name in (*_SOURCES, "config"):
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}")
    try:
        namespace, others = parser.parse_known_args(list(flags))
        typed = {name: value for name, value in vars(namespace).items() if value is not None}
        config, _ = _load_yaml(Path(typed["config"]).expanduser()) if "config" in typed else ({}, 0)
    except (argparse.ArgumentError, UserError):
        return None
    given = {**config, **typed}
    is_true = {
        name: str(given.get(name)).lower() in ("true", "1", "yes", "y", "t")
        for name in ("push_to_hub", "embedded")
    }
    if is_true["push_to_hub"]:
        return None
    defaults = {option.name: option.default for option in dataclasses.fields(recipe)}
    merged = {**defaults, **(recipe.embedded if is_true["embedded"] else {}), **given}
    sources = {name: merged[name] for name in _SOURCES if merged.get(name) is not None}
    is_local = bool(sources.get("dataset")) and not hub.names_repository(sources["dataset"])
    return sources, bool(others or typed.keys() - {*_SOURCES} or is_local)


def _build(recipe: type[Recipe], options: Mapping[str, Any], report: Report) -> Recipe:
    """Return the recipe; options that it refuses are reported and left out."""
    try:
        return recipe(**options)
    except UserError as error:
        for mistake in error.mistakes:
            report.error(mistake)
    accepted: dict[str, Any] = {}
    for name, value in options.items():
        with contextlib.suppress(UserError):
            accepted[name] = getattr(recipe(**{**accepted, name: value}), name)
    return recipe(**accepted)


def _known(options: Mapping[str, Any], recipe: type[Recipe], report: Report) -> dict[str, Any]:
    """Return the keywords that are options; the others are reported."""
    from finetune.config.parser import RUN_OPTIONS, refuse_clashes, report_unknown
    from finetune.training.defaults import training_names

    refuse_clashes(recipe)
    names = {option.name for option in dataclasses.fields(recipe)}
    names |= training_names() | {*RUN_OPTIONS}
    known, forms = {}, comma_lists(recipe)
    for name, value in options.items():
        if name in forms:
            with report.collect():
                known[name] = format_option(value, forms[name], f"--{name}")
        elif name in ("embedded", "dry_run") and not isinstance(value, bool):
            report.error(f"{name}: expected True or False, found {value!r}")
        elif name in names:
            known[name] = value
        else:
            report_unknown(f"'{name}'", recipe, names, report)
    return known


def _read_config(parser: Any, config: str | None, report: Report) -> dict[str, Any]:
    """Return the options in a YAML file, read by the parser of the flags."""
    if config is None:
        return {}
    words: list[str] = []
    with report.collect():
        content, lines = _load_yaml(Path(config).expanduser())
        for name, (first, second) in lines.items():
            report.error(
                f"--config: {config}: '{name}' is there twice, in lines {first} and {second}; keep "
                "one"
            )
        forms = comma_lists(parser.recipe)
        for name, value in content.items():
            if name in forms and not isinstance(value, str):
                with report.collect():
                    text = format_option(value, forms[name], f"{config}: '{name}'")
                    words.append(f"--{name}={text}")
            elif isinstance(value, list):
                words += [f"--{name}", *map(str, value)]
            elif isinstance(value, dict):
                words.append(f"--{name}={json.dumps(value)}")
            elif value not in ("", "null", "~"):
                words.append(f"--{name}={value}")
    options: dict[str, Any] = parser.read(words, report, config)
    if options.pop("config", None) is not None:
        report.error(f"{config}: 'config' cannot name another file")
    return options


def _load_yaml(path: Path) -> tuple[dict[str, Any], dict[str, tuple[int, int]]]:
    """Return the values of a YAML file as strings, and the lines of keys that it has twice."""
    import yaml

    if not path.exists():
        raise UserError(f"--config: no such file: {path}")
    try:
        # BaseLoader reads every value as a string: `no` stays "no", and the parser judges it like
        # a flag
        text = path.read_text(encoding="utf-8")
        node, content = yaml.compose(text, yaml.BaseLoader), yaml.load(text, yaml.BaseLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"--config: {path} is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"--config: {path}: expected lines like `learning_rate: 2e-5`")
    lines: dict[str, int] = {}
    repeated = {}
    assert isinstance(node, yaml.MappingNode)
    for key, _ in node.value:
        name, line = key.value.replace("-", "_"), key.start_mark.line + 1
        if name in lines:
            repeated[name] = lines[name], line
        lines[name] = line
    return {name.replace("-", "_"): value for name, value in content.items()}, repeated


def _without_secrets(words: Sequence[str]) -> list[str]:
    return re.sub(r"(?<=--hub[_-]token[=\0])[^\0]*", "***", "\0".join(words)).split("\0")
