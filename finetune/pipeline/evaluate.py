"""Evaluate the model of a run on its own test set again, or on other data."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.data.comma_list import join_values
from finetune.data.files_of_splits import SPLITS, NoTrainSplit, guess_split
from finetune.errors import UserError, counted
from finetune.pipeline.events import Progress, ignore, telling
from finetune.recipe import TextRecipe
from finetune.runs.run import Run
from finetune.runtime import distributed, formats, hub
from finetune.training.manifest import Statistics

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

    from finetune.recipe import Recipe
    from finetune.tasks.base import Task


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    Attributes:
        source: What was evaluated: the directory of the run, or the data.
        rows: Number of rows.
        metrics: Of the recipe, by name.
        recorded: The metrics in ``metrics.json``, if these are the test rows of the run.
        statistics: With 95% confidence intervals, of other data.
        rows_trained_on: How many rows of other data the model was trained on, by their content;
            None if that is not known, or if these are the test rows of the run.
        notes: What the user should know of other data, a sentence each: rows that were left out
            or trained on, and how a file was read.
    """

    source: str
    rows: int
    metrics: dict[str, Any]
    recorded: Mapping[str, Any] | None = None
    statistics: Statistics | None = None
    rows_trained_on: int | None = None
    notes: list[str] = field(default_factory=list)


def evaluate(
    run: Run | str | Path,
    data: Any = None,
    *,
    per_device_eval_batch_size: int = 32,
    cpu_kernels: str | None = None,
    trust_recipe: bool = False,
    progress: Progress = ignore,
    **reading: Any,
) -> Evaluation:
    """Evaluate the model of a run; in a job of several processes every rank calls it.

    Args:
        run: A finished run, or its directory.
        data: A file, a directory, a data set on the Hub, or rows in memory, as
            :func:`finetune.train` takes them; the test rows of the run if None.
        per_device_eval_batch_size: Rows of a batch on one device.
        cpu_kernels: ``auto`` or ``off``; as in the training if None.
        trust_recipe: Whether to import a recipe file that the run names; see :meth:`Run.load`.
        progress: Is given :class:`~finetune.pipeline.events.Advanced`, on rank 0.
        **reading: Options of the recipe that say how to read ``data``, like ``text_column``.

    Raises:
        UserError: if the test rows are not those of the run any more, or if other data has labels
            that the model does not know.
    """
    from finetune.data import memory
    from finetune.data.digests import repeating
    from finetune.pipeline import provenance
    from finetune.pipeline.assess import assessment_of, refuse_other_labels
    from finetune.training.defaults import argument_values
    from finetune.training.trainer import build_trainer

    run = Run.load(run, trust_recipe=trust_recipe)
    run.require_model()
    if reading and data is None:
        raise UserError(f"--{next(iter(reading))}: needs --data FILE")
    notes = [run.unfinished] if run.unfinished else []
    if "dataset_splits" not in reading:
        data = _select_held_out(data, notes)
    data = None if data is None else memory.store(data)
    recipe = run.recipe()
    for first, second in recipe.exclusive:
        if first in reading and second in reading:
            raise UserError(
                f"--{first} {reading[first]} and --{second} {reading[second]}: give one of the two"
            )
    values = argument_values(
        recipe.defaults(),
        {
            "output_dir": str(run.path),
            "per_device_eval_batch_size": per_device_eval_batch_size,
            "per_device_train_batch_size": 1,
            "precision": _precision(run),
            "cpu_kernels": cpu_kernels or run.manifest.arguments.get("cpu_kernels", "auto"),
        },
    )

    def prepare() -> tuple[Recipe, int | None, list[str]]:
        if unreachable := hub.unreachable(hub.missing(sources(run, data)), data="--data FILE"):
            raise unreachable
        if data is None:
            _require_same_data(run, recipe)
            _ = recipe.prepared
            return recipe, None, notes
        if isinstance(recipe, TextRecipe):
            columns = [reading.get(name) for name in ("text_column", "text_columns")]
            recipe.refuse_other_columns(run.path, *columns)
        evaluated = _recipe_over(data, recipe, run.kind, reading, notes)
        rows = evaluated.splits["test"]
        if count := repeating(rows, evaluated.input_column):
            notes.append(
                f"{count:,} of {counted(len(rows), 'row')} evaluated repeat another one: they "
                "count twice, and the intervals are too narrow"
            )
        return evaluated, _count_trained_on(run, recipe, rows, notes), notes

    with telling(progress):
        distributed.join_process_group(values.ddp_backend, values.ddp_timeout, values.use_cpu)
        evaluated, trained_on, notes = distributed.main_process_first(prepare)
        trainer = build_trainer(
            lambda: evaluated.trainer_kwargs(evaluated.load_model(run.path, run.labels)),
            values.build(),
            evaluated.adapt,
        )
        output = trainer.predict(evaluated.prepared["test"])
        distributed.leave()
    refuse_other_labels(evaluated.targets("test"), output.label_ids)
    scores = provenance.scores_only(output.metrics or {}, "test_")
    rows = len(evaluated.splits["test"])
    if data is None:
        return Evaluation(str(run.path), rows, scores, recorded=run.metrics.test, notes=notes)
    return Evaluation(
        source=memory.describe(data) if memory.is_memory(data) else data,
        rows=rows,
        metrics=scores,
        statistics=Statistics(**assessment_of(evaluated, output).statistics(), beyond={}),
        rows_trained_on=trained_on,
        notes=notes,
    )


def sources(run: Run, data: str | None) -> dict[str, str | None]:
    """Return the data that an evaluation reads, by the names of the options of a recipe."""
    if data is not None:
        return {"dataset": data}
    names = ("dataset", "dataset_revision", "dataset_config")
    return {name: run.manifest.options.get(name) for name in names}


def _select_held_out(data: Any, notes: list[str]) -> Any:
    """Return the rows of held-out splits in memory that have no training split; else ``data``."""
    names = {guess_split(str(name)): name for name in data} if isinstance(data, Mapping) else {}
    held_out = [names[split] for split in ("test", "validation") if split in names]
    if "train" in names or not held_out:
        return data
    if skipped := sorted(str(name) for name in data if name != held_out[0]):
        notes.append(f"evaluated the {held_out[0]} split; not evaluated: {', '.join(skipped)}")
    return data[held_out[0]]


def _precision(run: Run) -> str:
    """Return the precision of the training, or fp32 where nothing computes in fp16."""
    import torch

    recorded = str(run.manifest.arguments.get("precision", "fp32"))
    return "fp32" if recorded == "fp16" and not torch.accelerator.is_available() else recorded


def _require_same_data(run: Run, recipe: Recipe) -> None:
    from finetune.data.digests import fingerprint

    recorded, current = run.manifest.data, fingerprint(recipe.splits, recipe.input_column)
    if current != recorded.fingerprint:
        raise UserError(
            f"the data has changed since the training: fingerprint {current}, the run has "
            f"{recorded.fingerprint} ({recorded.source})"
        )


def _recipe_over(
    data: str, recipe: Recipe, task: Task[Any], reading: dict[str, Any], notes: list[str]
) -> Recipe:
    """Return the recipe over the rows of ``data``: its test split, else validation, else train."""
    from finetune.data import images, requirements
    from finetune.data.sources import Source, number_rows

    options = _read_options(data, recipe, task, reading, notes)
    only = ""
    try:
        try:
            source = replace(recipe, **options)
            dataset = source.load()
        except NoTrainSplit as error:
            only, source, dataset = _load_without_training(error, recipe, options)
        dataset = number_rows(dataset)
        requirements.require_labelled(dataset, recipe.input_column, source.report)
    except UserError as error:
        mistakes = (_in_own_flags(_without_split(line, data)) for line in error.mistakes)
        raise UserError(*mistakes) from error
    split = "train" if only else next(name for name in SPLITS[::-1] if name in dataset)
    rows, split_name = dataset[split], only or split
    notes += [note if "test" in dataset else _without_split(note, data) for note in source.notes]
    if not len(rows):
        raise UserError(f"--data {data}: no rows")
    is_class_folders = len(dataset) == 1 and images.are_class_folders(data)
    if not (Source(data).is_one_split or (split_name == "train" and is_class_folders)):
        skipped_splits = sorted(set(dataset) - {split})
        reason = "" if split_name == "test" else f", as {data} has no test split"
        skipped = f"; not evaluated: {', '.join(skipped_splits)}" if skipped_splits else ""
        notes.append(f"evaluated the {split_name} split{reason}{skipped}")
    try:
        matched = task.match_labels(rows, split, source.report)
    except UserError as error:
        flag = _label_flag(source)
        can_rename = "label_map" in _option_names(recipe) and task.has_probabilities
        hint = "; --label_map OLD=NEW renames labels" if can_rename else ""
        raise UserError(f"{flag}{error}{hint}") from error
    evaluated = recipe.over(matched)
    evaluated.kind = replace(task, loss_function=recipe.loss_function or "")
    return evaluated


def _option_names(recipe: Recipe) -> set[str]:
    """Return the names of the options of a recipe."""
    return {option.name for option in dataclasses.fields(recipe)}


def _read_options(
    data: str, recipe: Recipe, task: Task[Any], reading: dict[str, Any], notes: list[str]
) -> dict[str, Any]:
    """Return the options of a recipe with which its rows are read from ``data``."""
    from finetune.data import images

    names = _option_names(recipe)
    if unknown := [
        f"--{name}: not an option of this recipe"
        + ", which does not read text" * (recipe.input_column != "text")
        for name in reading
        if name not in names
    ]:
        raise UserError(*unknown)
    options: dict[str, Any] = {"dataset": data, "dataset_revision": None}
    # nothing is split or corrected
    options |= dict.fromkeys(("group_column", "time_column", "relabel", "exclude"))
    if "label_column" in reading and "label_columns" in names:
        options["label_columns"] = None
    if "label_columns" in reading and isinstance(recipe, TextRecipe):
        options["label_column"] = type(recipe).__dataclass_fields__["label_column"].default
        reading = _match_label_columns(recipe, task, reading, notes)
    if "csv_quoting" in names:  # another file may be written in another way
        options |= dict.fromkeys(("csv_separator", "encoding", "sheet"))
        options |= dict.fromkeys(("dataset_config", "dataset_splits"))
        if formats.suffix(data) not in formats.SEPARATORS:
            options["csv_quoting"] = "auto"
    if "image_column" in names and images.are_folders(data):
        options |= {"image_column": "", "label_column": ""}  # which are those of the run's table
    return {**options, **reading}


def _load_without_training(
    error: NoTrainSplit, recipe: Recipe, options: dict[str, Any]
) -> tuple[str, Recipe, DatasetDict]:
    """Return the split to evaluate of a source without a training split, and the recipe with its
    rows, read as those of training.

    Raises:
        UserError: ``error``, if it has neither a test nor a validation split, or splits are named.
    """
    names: dict[str | None, str] = {}
    for name in sorted(error.splits, key=lambda name: name not in SPLITS):
        names.setdefault(guess_split(name), name)
    only = next((split for split in ("test", "validation") if split in names), None)
    if only is None or options.get("dataset_splits"):
        raise error
    renamed = {"train": names[only], only: "none"}
    if only == "test" and "validation" in names:
        renamed["validation"] = names["validation"]
    option = join_values("=".join(pair) for pair in renamed.items())
    source = replace(recipe, **{**options, "dataset_splits": option})
    try:
        return only, source, source.load()
    except UserError as mistaken:
        train = re.compile(r"\btrain(ing)?\b(?= (data|rows?|split)\b)")
        raise UserError(*(train.sub(only, line) for line in mistaken.mistakes)) from mistaken


def _match_label_columns(
    recipe: TextRecipe, task: Task[Any], reading: dict[str, Any], notes: list[str]
) -> dict[str, Any]:
    """Return ``reading`` with the columns of labels in the order in which the model has them.

    Raises:
        UserError: If only some of them have the names that the model knows, or some are missing.
    """
    from finetune.data.columns import parse_names
    from finetune.data.label_columns import list_names, parse_label_map

    columns, option = parse_names("--label_columns", reading["label_columns"]), recipe.label_columns
    flag, are_numbers = f"--label_columns {join_values(columns)}", not task.are_named
    if not task.in_columns:
        raise UserError(f"{flag}: the model predicts one class a row; name it by --label_column")
    labels = parse_names("--label_columns", option) if option and are_numbers else task.labels
    renames = parse_label_map(reading.get("label_map", recipe.label_map))
    names = [renames.get(column, column) for column in columns]
    if len(columns) == len(labels) and option and not set(names) & set(labels):
        notes.append(
            f"{flag}: taken for {', '.join(labels)}, in this order, as no column has such a name"
        )
        if are_numbers:
            return reading
        pairs = zip(columns, labels, strict=True)
        return {**reading, "label_map": join_values(map("=".join, pairs))}
    missing = [label for label in labels if label not in names]
    unknown = [name for name in names if name not in labels]
    if labels and (missing or unknown):
        wrong = {"missing": missing, "unknown": unknown}
        lines = [
            f"{title}: {list_names(wrong_names)}"
            for title, wrong_names in wrong.items()
            if wrong_names
        ]
        raise UserError(f"{flag}: the model predicts {list_names(labels)}; {'; '.join(lines)}")
    return {**reading, "label_columns": join_values(labels)} if labels and are_numbers else reading


def _label_flag(source: Recipe) -> str:
    """Return the option that names the column of labels, and its value, for messages."""
    if isinstance(source, TextRecipe):
        ((flag, columns),) = source.label_sources().items()
        return f"{flag} {join_values(columns)}: "
    column = getattr(source, "label_column", "")
    return f"--label_column {column}: " if column else ""


def _without_split(sentence: str, data: str) -> str:
    """Return a sentence about the training split as one about ``data``, which was read as that."""
    from finetune.data.memory import is_memory
    from finetune.data.sources import Source

    in_memory = is_memory(data)
    if Path(data).is_dir() or (in_memory and not Source(data).is_one_split):  # with splits
        return sentence
    data = "the data" if in_memory else data
    sentence = sentence.replace("(train data, ", "(")
    sentence = re.sub(r"\b(the )?train(ing)? data\b", data.replace("\\", r"\\"), sentence)
    return re.sub(r" train(ing)? (rows?)\b", r" \2", sentence)


def _in_own_flags(sentence: str) -> str:
    """Return a sentence about the data of a training with the flags that an evaluation has."""
    sentence = sentence.replace("--dataset ", "--data ")
    # the task is that of the run
    return re.sub(r"\bare (labels )?(of )?--task ", "are for runs trained with --task ", sentence)


def _count_trained_on(run: Run, recipe: Recipe, rows: Dataset, notes: list[str]) -> int | None:
    """Return how many of the rows are training rows of the run too, whatever their label."""
    from finetune.data.digests import fingerprint, seen_in

    try:
        if missing := hub.missing(sources(run, None)):
            raise UserError(f"{' and '.join(missing)} is not in the cache")
        if fingerprint(recipe.splits, recipe.input_column) != run.manifest.data.fingerprint:
            raise UserError(f"the data of the run has changed ({run.manifest.data.source})")
    except (UserError, OSError) as error:
        notes.append(
            "whether the model was trained on some of these rows could not be checked: "
            + str(error).partition("\n")[0]
        )
        return None
    count = int(seen_in(rows, recipe.splits["train"], recipe.input_column).sum())
    if count:
        notes.append(
            f"the model was trained on {count:,} of {counted(len(rows), 'row')} evaluated: the "
            "scores are too good; remove these rows from the file, or use other data"
        )
    return count
