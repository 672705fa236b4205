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
    from transformers.trainer_utils import PredictionOutput

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
    from finetune.pipeline.assess import refuse_other_labels
    from finetune.training.defaults import argument_values
    from finetune.training.trainer import build_trainer

    run = Run.load(run, trust_recipe=trust_recipe)
    run.require_model()
    if reading and data is None:
        raise UserError(f"--{next(iter(reading))}: needs --data FILE")
    notes = [run.unfinished] if run.unfinished else []
    if "dataset_splits" not in reading:
        data = _held_out(data, notes)
    data = None if data is None else memory.store(data)
    recipe = run.recipe()
    for one, other in recipe.exclusive:
        if one in reading and other in reading:
            raise UserError(
                f"--{one} {reading[one]} and --{other} {reading[other]}: give one of the two"
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
            return _on_its_own(run, recipe), None, notes
        if isinstance(recipe, TextRecipe):
            named = [reading.get(name) for name in ("text_column", "text_columns")]
            recipe.refuse_other_columns(run.path, *named)
        over = _on(data, recipe, run.kind, reading, notes)
        if count := repeating(over.splits["test"], over.input_column):
            notes.append(
                f"{count:,} of {counted(len(over.splits['test']), 'row')} evaluated repeat another "
                "one: they count twice, and the intervals are too narrow"
            )
        trained_on = _rows_trained_on(run, recipe, over.splits["test"], notes)
        return over, trained_on, notes

    with telling(progress):
        distributed.join_process_group(values.ddp_backend, values.ddp_timeout, values.use_cpu)
        over, trained_on, notes = distributed.main_process_first(prepare)
        trainer = build_trainer(
            lambda: over.trainer_kwargs(over.load_model(run.path, run.labels)),
            values.build(),
            over.adapt,
        )
        output = trainer.predict(over.prepared["test"])
        distributed.leave()
    refuse_other_labels(over.targets("test"), output.label_ids)
    found = _found(data, run, over, output)
    return replace(found, rows_trained_on=trained_on, notes=notes)


def _held_out(data: Any, notes: list[str]) -> Any:
    """Return the rows of held-out splits in memory that have no training split; else ``data``."""
    splits = {guess_split(str(name)): name for name in data} if isinstance(data, Mapping) else {}
    names = [splits[each] for each in ("test", "validation") if each in splits]
    if "train" in splits or not names:
        return data
    if others := sorted(str(name) for name in data if name != names[0]):
        notes.append(f"evaluated the {names[0]} split; not evaluated: {', '.join(others)}")
    return data[names[0]]


def sources(run: Run, data: str | None) -> dict[str, str | None]:
    """Return the data that an evaluation reads, by the names of the options of a recipe."""
    options = run.manifest.options
    names = ("dataset", "dataset_revision", "dataset_config")
    own = {name: options.get(name) for name in names}
    return own if data is None else {"dataset": data}


def _precision(run: Run) -> str:
    """Return the precision of the training, or fp32 where nothing computes in fp16."""
    import torch

    recorded = str(run.manifest.arguments.get("precision", "fp32"))
    return "fp32" if recorded == "fp16" and not torch.accelerator.is_available() else recorded


def _on_its_own(run: Run, recipe: Recipe) -> Recipe:
    from finetune.data.digests import fingerprint

    recorded = run.manifest.data
    found = fingerprint(recipe.splits, recipe.input_column)
    if found != recorded.fingerprint:
        raise UserError(
            f"the data has changed since the training: fingerprint {found}, the run has "
            f"{recorded.fingerprint} ({recorded.source})"
        )
    _ = recipe.prepared
    return recipe


def _on(
    data: str, recipe: Recipe, task: Task[Any], reading: dict[str, Any], notes: list[str]
) -> Recipe:
    """Return the recipe over the rows of ``data``: its test split, else validation, else train."""
    from finetune.data import image_files, requirements
    from finetune.data.sources import Source, number_rows

    known = {each.name for each in dataclasses.fields(recipe)}
    if unknown := [
        f"--{name}: not an option of this recipe"
        + ", which does not read text" * (recipe.input_column != "text")
        for name in reading
        if name not in known
    ]:
        raise UserError(*unknown)
    usual: dict[str, Any] = {"dataset": data, "dataset_revision": None}
    usual |= dict.fromkeys(("group_column", "time_column"))  # nothing is split
    usual |= dict.fromkeys(("relabel", "exclude"))  # nor corrected
    if "label_column" in reading and "label_columns" in known:
        usual["label_columns"] = None
    if "label_columns" in reading and isinstance(recipe, TextRecipe):
        usual["label_column"] = type(recipe).__dataclass_fields__["label_column"].default
        reading = _by_name(recipe, task, reading, notes)
    if "csv_quoting" in known:  # another file may be written in another way
        usual |= dict.fromkeys(("csv_separator", "encoding", "sheet"))
        usual |= dict.fromkeys(("dataset_config", "dataset_splits"))
        if formats.suffix(data) not in formats.SEPARATORS:
            usual["csv_quoting"] = "auto"
    if "image_column" in known and image_files.are_folders(data):
        usual |= {"image_column": "", "label_column": ""}  # which are those of the run's table
    only, wanted = "", {**usual, **reading}
    try:
        try:
            source = replace(recipe, **wanted)
            raw = source.load()
        except NoTrainSplit as error:
            only, source, raw = _without_training(error, recipe, wanted)
        raw = number_rows(raw)
        requirements.require_labelled(raw, recipe.input_column, source.report)
    except UserError as error:
        told = (_in_own_flags(_without_split(each, data)) for each in error.mistakes)
        raise UserError(*told) from error
    there = (name for name in ("test", "validation", "train") if name in raw)
    split = "train" if only else next(there)
    rows, called = raw[split], only or split
    notes += source.notes if "test" in raw else [_without_split(n, data) for n in source.notes]
    if not len(rows):
        raise UserError(f"--data {data}: no rows")
    are_alone = called == "train" and len(raw) == 1 and image_files.are_classes(data)
    if not (are_alone or Source(data).is_one_split):
        others = sorted(set(raw) - {split})
        without = "" if called == "test" else f", as {data} has no test split"
        notes.append(
            f"evaluated the {called} split{without}"
            + (f"; not evaluated: {', '.join(others)}" if others else "")
        )
    try:
        matched = task.matched(rows, split, source.report)
    except UserError as error:
        hint = "; --label_map OLD=NEW renames labels"
        hint *= "label_map" in known and task.has_probabilities
        raise UserError(f"{_label_flag(source)}{error}{hint}") from error
    over = recipe.over(matched)
    over.kind = replace(task, loss_function=recipe.loss_function or "")
    return over


def _without_training(
    error: NoTrainSplit, recipe: Recipe, wanted: dict[str, Any]
) -> tuple[str, Recipe, DatasetDict]:
    """Return which split a source has that has none to train on, and the recipe with its rows read
    as those of training.

    Raises:
        UserError: ``error``, if it has neither a test nor a validation split, or splits are named.
    """
    called: dict[str | None, str] = {}
    for name in sorted(error.splits, key=lambda name: name not in SPLITS):
        called.setdefault(guess_split(name), name)
    only = next((split for split in ("test", "validation") if split in called), None)
    if only is None or wanted.get("dataset_splits"):
        raise error
    names = {"train": called[only], only: "none"}
    if only == "test" and "validation" in called:
        names["validation"] = called["validation"]
    named = join_values("=".join(each) for each in names.items())
    source = replace(recipe, **{**wanted, "dataset_splits": named})
    try:
        return only, source, source.load()
    except UserError as mistaken:
        read_as = re.compile(r"\btrain(ing)?\b(?= (data|rows?|split)\b)")
        raise UserError(*(read_as.sub(only, each) for each in mistaken.mistakes)) from mistaken


def _by_name(
    recipe: TextRecipe, task: Task[Any], reading: dict[str, Any], notes: list[str]
) -> dict[str, Any]:
    """Return ``reading`` with the columns of labels in the order in which the model has them.

    Raises:
        UserError: if only some of them have the names that the model knows, or some are missing.
    """
    from finetune.data.columns import parse_names
    from finetune.data.label_columns import list_names, parse_label_map

    flag = "--label_columns"
    columns, theirs = parse_names(flag, reading["label_columns"]), recipe.label_columns
    shown, are_numbers = f"{flag} {join_values(columns)}", not task.are_named
    if not task.in_columns:
        raise UserError(f"{shown}: the model predicts one class a row; name it by --label_column")
    known = parse_names(flag, theirs) if theirs and are_numbers else task.labels
    renamed = parse_label_map(reading.get("label_map", recipe.label_map))
    called = [renamed.get(each, each) for each in columns]
    if len(columns) == len(known) and theirs and not set(called) & set(known):
        notes.append(
            f"{shown}: taken for {', '.join(known)}, in this order, as no column has such a name"
        )
        pairs = zip(columns, known, strict=True)
        by_place = {} if are_numbers else {"label_map": join_values(map("=".join, pairs))}
        return {**reading, **by_place}
    missing, unknown = (
        [each for each in some if each not in others]
        for some, others in ((known, called), (called, known))
    )
    if known and (missing or unknown):
        wrong = {"missing": missing, "unknown": unknown}
        told = [f"{what}: {list_names(names)}" for what, names in wrong.items() if names]
        raise UserError(f"{shown}: the model predicts {list_names(known)}; {'; '.join(told)}")
    return {**reading, "label_columns": join_values(known)} if known and are_numbers else reading


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
    named = re.sub(r"\b(the )?train(ing)? data\b", data.replace("\\", r"\\"), sentence)
    return re.sub(r" train(ing)? (rows?)\b", r" \2", named)


def _in_own_flags(sentence: str) -> str:
    """Return a sentence about the data of a training with the flags that an evaluation has."""
    sentence = sentence.replace("--dataset ", "--data ")
    # the task is that of the run
    return re.sub(r"\bare (labels )?(of )?--task ", "are for runs trained with --task ", sentence)


def _rows_trained_on(run: Run, recipe: Recipe, rows: Dataset, notes: list[str]) -> int | None:
    """How many of the rows stand in the training split of the run too, whatever their label."""
    from finetune.data.digests import fingerprint, seen_in

    unknown = "whether the model was trained on some of these rows could not be checked: "
    try:
        if missing := hub.missing(sources(run, None)):
            raise UserError(f"{' and '.join(missing)} is not in the cache")
        if fingerprint(recipe.splits, recipe.input_column) != run.manifest.data.fingerprint:
            raise UserError(f"the data of the run has changed ({run.manifest.data.source})")
    except (UserError, OSError) as error:
        notes.append(unknown + str(error).partition("\n")[0])
        return None
    count = int(seen_in(rows, recipe.splits["train"], recipe.input_column).sum())
    if count:
        notes.append(
            f"the model was trained on {count:,} of {counted(len(rows), 'row')} evaluated: the "
            "scores are too good; remove these rows from the file, or use other data"
        )
    return count


def _found(data: str | None, run: Run, recipe: Recipe, output: PredictionOutput) -> Evaluation:
    from finetune.data.memory import describe, is_memory
    from finetune.pipeline import provenance
    from finetune.pipeline.assess import assessment_of

    scores = provenance.scores_only(output.metrics or {}, "test_")
    rows = len(recipe.splits["test"])
    if data is None:
        return Evaluation(str(run.path), rows, scores, recorded=run.metrics.test)
    statistics = Statistics(**assessment_of(recipe, output).statistics(), beyond={})
    source = describe(data) if is_memory(data) else data
    return Evaluation(source, rows, scores, statistics=statistics)
