"""Evaluate the model of a run on its own test set again, or on other data."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from datasets import DatasetDict

from finetune.data import columns, memory
from finetune.data.digests import fingerprint, seen_in
from finetune.data.files_of_splits import NONE, SPLITS, NoTrainSplit, guess_split
from finetune.data.sources import Source, number_rows
from finetune.errors import UserError, counted, first_line
from finetune.pipeline.events import Progress, ignore, reporting
from finetune.pipeline.results import assess, scores
from finetune.predicting import Options
from finetune.predicting.session import SessionModule, engine_session
from finetune.recipe import ImageRecipe, Recipe, TextRecipe, teacher
from finetune.recipe.base import Loaded
from finetune.recipe.run import Run
from finetune.rules.check import check_prediction
from finetune.rules.options import OptionValues
from finetune.runtime import distributed, formats, hub
from finetune.statistics.results import Statistics
from finetune.training.arguments import argument_values
from finetune.training.trainer import build_trainer

#: The groups of options that an evaluation has from the run.
_GROUPS_OF_RUN = ("training", "model", "adapters", "teacher")


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation on the test set of the run, or on other data."""

    source: str  # the run directory for its test set, else the data
    rows: int  # number of evaluated rows
    metrics: dict[str, Any]  # the metrics of the recipe, by name
    recorded: Mapping[str, Any] | None = None  # test metrics in `metrics.json`; None for other data
    statistics: Statistics | None = None  # 95% confidence intervals; None for the test set
    #: Rows of other data whose content is also in the training set; None if unknown.
    rows_trained_on: int | None = None
    #: Sentences for the user, e.g. about rows that were left out, or how a file was read.
    notes: list[str] = field(default_factory=list)


def evaluate(
    run: Run | str | Path,
    data: Any = None,
    *,
    per_device_eval_batch_size: int = 32,
    cpu_kernels: Literal["auto", "off"] | None = None,
    engine: str | None = None,
    trust_recipe: bool = False,
    progress: Progress = ignore,
    **reading: Any,
) -> Evaluation:
    """Evaluate the model of a run; under a launcher every rank calls this.

    Args:
        run: A run that has a model, or its directory.
        data: A file, a directory, a data set on the Hub, or rows in memory, as for
            :func:`finetune.train`; None for the test set of the run.
        per_device_eval_batch_size: Rows per batch and device.
        cpu_kernels: ``auto`` or ``off``; None for the setting of the training.
        engine: ``onnxruntime`` or ``openvino`` for the export of the run; None for ``torch``.
        trust_recipe: Whether to import a recipe file that the run names; see :meth:`Run.load`.
        progress: Called with each :class:`~finetune.pipeline.events.Advanced`, on rank 0.
        **reading: Recipe options that say how to read ``data``, e.g. ``text_column``.

    Raises:
        UserError: If the test set has changed since the training, or if other data has labels that
            the model does not know.
    """
    run = Run.load(run, trust_recipe=trust_recipe)
    run.require_model()
    if data is None and run.manifest.not_scored:
        raise UserError(f"{run.path}: {run.manifest.not_scored}; for other rows type --data FILE")
    source = str(run.path)
    recorded = run.metrics.test if data is None else None
    if data is not None:
        data = memory.store(data)
        source = Source(data).describe() if data.startswith(memory.PREFIX) else data
    elif reading:
        raise UserError(f"--{next(iter(reading))} says how to read other data: add --data FILE")
    recipe = run.recipe()
    manifest = run.manifest
    options = Options(engine=engine, cpu_kernels=cpu_kernels)
    check_prediction(OptionValues(**vars(options)))
    session = engine_session(run.path, options)
    precision = "fp32" if session else manifest.launch.precision
    if precision == "tf32" or (precision == "fp16" and not torch.accelerator.is_available()):
        precision = "fp32"
    values = argument_values(
        recipe.defaults(),
        {
            "output_dir": str(run.path),
            "per_device_eval_batch_size": per_device_eval_batch_size,
            "per_device_train_batch_size": 1,
            "precision": precision,
            "cpu_kernels": cpu_kernels or manifest.arguments.get("cpu_kernels", "auto"),
        },
    )

    def prepare() -> tuple[Recipe, int | None, list[str]]:
        options = {**manifest.options, "model": None, "unlabelled": None}
        if data is not None:
            options = {"dataset": data}
        hub.require(options)
        if data is None:
            _require_same_data(run, recipe)
            return recipe.with_values(prepared=recipe.prepared), None, []
        try:
            evaluated = _read_rows(run, data, recipe, reading)
        except UserError as error:
            raise UserError(*(f"{source}: {mistake}" for mistake in error.mistakes)) from error
        return evaluated, _count_trained_on(run, recipe, evaluated), evaluated.notes

    with reporting(progress):
        distributed.join_process_group(values.ddp_backend, values.ddp_timeout, values.use_cpu)
        evaluated, rows_trained_on, notes = distributed.main_process_first(prepare)

        def load_model() -> torch.nn.Module:
            if session:
                return SessionModule(session)
            return evaluated.load_model(run.path, run.labels)

        trainer = build_trainer(evaluated, values.build(), load_model)
        output = trainer.predict(evaluated.prepared["test"])
        distributed.leave_process_group()
    if run.unfinished:
        notes.insert(0, run.unfinished)
    rows = len(evaluated.splits["test"])
    metrics = scores(evaluated, "test", output, "test_")
    if data is None:
        return Evaluation(source, rows, metrics, recorded=recorded, notes=notes)
    statistics = evaluated.resolved_task.statistics(*assess(evaluated, output))
    return Evaluation(source, rows, metrics, None, statistics, rows_trained_on, notes)


def _require_same_data(run: Run, recipe: Recipe) -> None:
    recorded = run.manifest.data
    if (current := fingerprint(recipe.splits, recipe.input_column)) != recorded.fingerprint:
        raise UserError(
            f"the data has changed since the training: expected fingerprint {recorded.fingerprint} "
            f"({recorded.source}), found {current}"
        )


def _read_rows(run: Run, data: str, recipe: Recipe, reading: dict[str, Any]) -> Recipe:
    """Return a recipe with the rows of ``data``: its test, else validation, else train split."""
    options = _reading_options(run, data, recipe, reading)
    source = replace(recipe, **options)
    other_split = ""
    try:
        dataset = source.load()
    except NoTrainSplit as error:  # read the test or validation split as the train split
        names = {guess_split(name): name for name in error.splits}
        other_split = names.get("test") or names.get("validation") or ""
        if not other_split or options.get("dataset_splits"):
            raise
        options["dataset_splits"] = f"train={other_split},validation={NONE},test={NONE}"
        source = replace(recipe, **options)
        dataset = source.load()
    dataset = number_rows(dataset)
    columns.require_labelled(dataset, recipe.input_column, source.report)
    split = next(name for name in SPLITS[::-1] if name in dataset)
    if other_split or len(dataset) > 1:
        source.note(f"evaluated the {other_split or split} split")
    if not len(rows := dataset[split]):
        raise UserError("expected one labelled row or more, found no rows")
    rows = recipe.resolved_task.match_labels(rows, split, source.report)
    splits = DatasetDict(dict.fromkeys(SPLITS, rows))
    loaded = Loaded(splits, recipe.resolved_task, source.report.facts)
    # weights are for training, and the data may lack a class that has one
    evaluated = source.with_values(loaded=loaded, weights=None)
    prepared = evaluated.prepare(DatasetDict(test=rows))["test"]
    return evaluated.with_values(prepared=DatasetDict(dict.fromkeys(SPLITS, prepared)))


def _reading_options(
    run: Run, data: str, recipe: Recipe, reading: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of the recipe that other data is read with."""
    names = set()
    options: dict[str, Any] = {}
    for option in dataclasses.fields(recipe):
        group = option.metadata.get("group")
        if group not in _GROUPS_OF_RUN:
            names.add(option.name)
        if group in ("data", "splits"):  # it is not split or corrected, and its format may differ
            options[option.name] = option.default
    reason = "not an option of this recipe for reading rows"
    if unknown := [f"--{name}: {reason}" for name in reading.keys() - names]:
        raise UserError(*unknown)
    if isinstance(recipe, TextRecipe):
        text_columns = list(map(reading.get, ("text_column", "text_columns")))
        recipe.refuse_other_columns(run.path, *text_columns)
    if formats.suffix(data) in formats.SEPARATORS:
        del options["csv_quoting"]
    if "label_column" in reading:
        options["label_columns"] = None
    if isinstance(recipe, ImageRecipe) and Path(data).expanduser().is_dir():
        options |= {"image_column": "image", "label_column": "label"}  # columns of an image folder
    options |= {"dataset": data, **reading}
    return options


def _count_trained_on(run: Run, recipe: Recipe, evaluated: Recipe) -> int | None:
    """Return how many evaluated rows are also in the training set of the run, with any label."""
    rows = evaluated.splits["test"]
    try:
        if missing := hub.missing({**run.manifest.options, "model": None}):
            raise UserError(f"{' and '.join(missing.values())} is not in the cache")
        _require_same_data(run, recipe)
        unlabelled = teacher.unlabelled_rows(recipe, run.manifest.options.get("unlabelled"))
        if unlabelled is not None:
            content = fingerprint(DatasetDict(train=unlabelled), recipe.input_column)
            if content != run.manifest.configuration["unlabelled"]:
                raise UserError("the rows of --unlabelled have changed since the training")
    except (UserError, OSError) as error:
        reason = first_line(error)
        evaluated.note(
            f"cannot check whether the model was trained on some of these rows: {reason}"
        )
        return None
    is_seen = seen_in(rows, recipe.splits["train"], recipe.input_column)
    if run.manifest.saw_validation:
        is_seen |= seen_in(rows, recipe.splits["validation"], recipe.input_column)
    if unlabelled is not None:
        is_seen |= seen_in(rows, unlabelled, recipe.input_column)
    count = int(is_seen.sum())
    if count:
        evaluated.note(
            f"the model was trained on {count:,} of the {counted(len(rows), 'row')} evaluated, so "
            "the scores are too good: remove these rows from the file, or use other data"
        )
    return count
