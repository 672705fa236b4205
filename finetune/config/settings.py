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
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from finetune.data.comma_list import format_option
from finetune.errors import Report, UserError, masked
from finetune.recipe import Recipe, catalog
from finetune.recipe.options import comma_lists
from finetune.runtime import distributed, hub
from finetune.training.options import find_type_mistake, merge_options

if TYPE_CHECKING:
    from finetune.config.parser import RecipeParser
    from finetune.training.arguments import ArgumentValues, FinetuneArguments

#: Options that name data and model on the Hub.
_SOURCES = ("dataset", "dataset_revision", "dataset_config", "model", "model_revision")


@dataclass(frozen=True)
class Settings:
    """What one run is made from.

    Attributes:
        recipe: The recipe, with its options; its report has the mistakes in what was typed.
        training: The training arguments that are not the library's defaults, by name.
        overrides: What ``--embedded`` changed, by name.
        user_options: What the config file and the flags set, by name.
        dry_run: Whether to stop after one collated batch.
        command: The command that says the same again, for people.
        hub_token: To push with; it is in no other attribute, and is not shown.
    """

    recipe: Recipe
    training: dict[str, Any]
    overrides: dict[str, Any] = field(default_factory=dict)
    user_options: dict[str, Any] = field(default_factory=dict)
    dry_run: bool = False
    command: str = ""
    hub_token: str | None = field(default=None, repr=False)

    @classmethod
    def from_command_line(cls, recipe: str, flags: Sequence[str]) -> Settings:
        """Return the settings of ``python -m finetune RECIPE FLAGS``.

        Raises:
            UserError: If there is no such recipe. Other mistakes are in the report.
        """
        from finetune.config.parser import RecipeParser, group_flags

        parser, report = RecipeParser(catalog.find(recipe)), Report()
        from_flags = parser.read(flags, report)
        config = _read_config(parser, from_flags.get("config"), report)
        user_options = merge_options(config, from_flags)
        words = [*distributed.launcher(), "-m", "finetune", recipe]
        for group in group_flags(flags):
            is_token = group[0].replace("-", "_").startswith("__hub_token")
            words += ["--hub_token=***"] if is_token else group
        return cls._resolve(parser, user_options, masked(shlex.join(words)), report)

    @classmethod
    def from_keywords(
        cls, recipe: str | type[Recipe] | Recipe, options: Mapping[str, Any]
    ) -> Settings:
        """Return the settings of ``finetune.train(RECIPE, **options)``, whose options are values;
        those of an instance of a recipe count, too.

        Raises:
            UserError: If there is no such recipe. Other mistakes are in the report.
        """
        from finetune.config.parser import RecipeParser, RunOptions

        changed: dict[str, Any] = {}
        if isinstance(recipe, Recipe):
            for option in dataclasses.fields(recipe):
                if (value := getattr(recipe, option.name)) != option.default:
                    changed[option.name] = value
            recipe = type(recipe)
        recipe_class = catalog.find(recipe) if isinstance(recipe, str) else recipe
        parser, report = RecipeParser(recipe_class), Report()
        hints, keywords = get_type_hints(RunOptions), dict[str, Any]()
        for name, value in options.items():
            if name not in parser.names:
                parser.report_unknown(f"'{name}'", parser.names, report)
            elif mistake := find_type_mistake(name, value, hints.get(name, Any)):
                report.error(mistake)
            else:
                keywords[name] = value
        if not isinstance(keywords.get("dataset", ""), str):
            from finetune.data import memory

            keywords["dataset"] = memory.store(keywords["dataset"])
        config = _read_config(parser, keywords.get("config"), report)
        user_options = merge_options({**config, **changed}, keywords)
        words = [repr(catalog.origin(recipe_class))]
        for name, value in user_options.items():
            words.append(f"{name}={'***' if name == 'hub_token' else value!r}")
        return cls._resolve(parser, user_options, f"finetune.train({', '.join(words)})", report)

    @classmethod
    def _resolve(
        cls,
        parser: RecipeParser,
        user_options: Mapping[str, Any],
        command: str,
        report: Report,
    ) -> Settings:
        from finetune.config.parser import RUN_OPTIONS

        recipe, names = parser.recipe, parser.option_names
        recipe_name = catalog.display_name(recipe)
        if user_options.get("embedded") and not recipe.embedded:
            report.error(f"--embedded: the recipe '{recipe_name}' has no embedded data")
        for name in sorted(parser.unread & user_options.keys()):
            report.error(
                f"--{name}: the recipe '{recipe_name}' loads its own data; if its load() reads "
                "self.dataset, write `dataset: str = ...` in the class"
            )
        embedded = recipe.embedded if user_options.get("embedded") else {}
        merged = merge_options(embedded, user_options)
        overrides = {name: merged[name] for name in merged if name not in user_options}
        training = {name: merged[name] for name in merged if name not in {*names, *RUN_OPTIONS}}
        hub_token = training.pop("hub_token", None)
        directory = training.get("output_dir", recipe.defaults()["output_dir"])
        training["output_dir"] = str(Path(directory).expanduser())
        built = _build(recipe, {name: merged[name] for name in merged if name in names}, report)
        built.report.add(*report.findings)
        return cls(
            recipe=built,
            training=training,
            overrides=overrides,
            user_options={n: value for n, value in user_options.items() if n != "hub_token"},
            dry_run=bool(user_options.get("dry_run")),
            command=command,
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

    @property
    def resuming(self) -> str:
        """The command that resumes this run where it was interrupted."""
        command, checkpoint = self.command, self.values.resume_from_checkpoint
        is_python = command.startswith("finetune.")
        if checkpoint and is_python:
            option = f"resume_from_checkpoint={checkpoint!r}"
            return command.replace(option, "resume_from_checkpoint='last'")
        if checkpoint:  # the last flag counts
            return f"{command} --resume_from_checkpoint last"
        if self.values.resume:
            return command
        return f"{command[:-1]}, resume=True)" if is_python else f"{command} --resume"

    @functools.cached_property
    def values(self) -> ArgumentValues:
        """The training arguments as values, checked without touching the device.

        Raises:
            UserError: If they contradict each other.
        """
        from finetune.training.arguments import argument_values

        return argument_values(self.recipe.training_defaults(self.training), self.training)

    @functools.cached_property
    def arguments(self) -> FinetuneArguments:
        """The training arguments; in a job of several processes this needs the process group."""
        arguments = self.values.build()
        arguments.hub_token = self.hub_token
        return arguments


def require_hub(recipe: type[Recipe], flags: Sequence[str]) -> None:
    """Refuse data and model that need a Hub which does not answer, before libraries are imported;
    go offline if neither needs it. Mistakes in the flags are left to the parser.

    Raises:
        UserError: If there is nothing else that the user may have mistaken.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in (*_SOURCES, "config", "embedded", "push_to_hub"):
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", nargs="?", const="")
    namespace, other_words = parser.parse_known_args(flags)
    options = {name: value for name, value in vars(namespace).items() if value is not None}
    may_have_mistakes = other_words or not options.keys() <= {*_SOURCES}
    with contextlib.suppress(UserError):
        options = {**(_load_yaml(options["config"]) if "config" in options else {}), **options}
    embedded, pushes = (
        str(options.get(name, "false")).lower() in ("", "true", "1", "yes", "y", "t")
        for name in ("embedded", "push_to_hub")
    )
    if pushes or "" in (options.get(name) for name in _SOURCES):
        return
    defaults = {option.name: option.default for option in dataclasses.fields(recipe)}
    merged = {**defaults, **(recipe.embedded if embedded else {}), **options}
    sources = {name: merged[name] for name in _SOURCES if merged.get(name) is not None}
    is_local = bool(sources.get("dataset")) and not hub.names_repository(sources["dataset"])
    if not hub.missing(sources):
        hub.go_offline()
    elif distributed.is_main_process() and not (may_have_mistakes or is_local):
        hub.require(sources, embedded=bool(recipe.embedded), packaged=recipe.packaged_model)


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


def _read_config(parser: RecipeParser, config: str | None, report: Report) -> dict[str, Any]:
    """Return the options in a YAML file, read by the parser of the flags."""
    if config is None:
        return {}
    content, words, forms = dict[str, Any](), list[str](), comma_lists(parser.recipe)
    with report.collect():
        content = _load_yaml(config)
    for name, value in content.items():
        with report.collect():
            if name in forms:
                value = format_option(value, forms[name], f"{config}: '{name}'")
            if isinstance(value, list):
                words += [f"--{name}", *map(str, value)]
            elif value not in ("", "null", "~"):
                text = json.dumps(value) if isinstance(value, dict) else value
                words.append(f"--{name}={text}")
    options = parser.read(words, report, config)
    if options.pop("config", None) is not None:
        report.error(f"{config}: 'config' cannot name another file")
    return options


def _load_yaml(config: str) -> dict[str, Any]:
    """Return the values of a YAML file as strings, which the parser checks like flags."""
    import yaml

    try:
        text = Path(config).expanduser().read_text(encoding="utf-8")
        node, content = yaml.compose(text, yaml.BaseLoader), yaml.load(text, yaml.BaseLoader)
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"--config: {config} cannot be read: {error}") from error
    if not isinstance(node, yaml.MappingNode):
        raise UserError(f"--config: {config}: expected lines like `learning_rate: 2e-5`")
    first_lines: dict[str, int] = {}
    for key, _ in node.value:
        name, line = key.value.replace("-", "_"), key.start_mark.line + 1
        if first_lines.setdefault(name, line) != line:
            lines = f"lines {first_lines[name]} and {line}"
            raise UserError(f"--config: {config}: '{name}' is in {lines}; keep one")
    return {name.replace("-", "_"): value for name, value in content.items()}
