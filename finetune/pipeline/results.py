"""What a training writes down beside the model: ``run.json`` with the facts that made it, without
any secret; predictions, scores, and what these are worth.
"""

import dataclasses
import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Image
from transformers import EvalPrediction
from transformers.trainer_utils import PredictionOutput

from finetune.config.settings import Settings
from finetune.data import ROW, arrow, digests, images, sources
from finetune.data.comma_list import join_values
from finetune.data.prediction_columns import (
    DIGEST,
    THUMBNAIL,
    USER_COLUMNS,
    free_name,
    user_table,
)
from finetune.errors import UserError
from finetune.pipeline.events import SPEED, Noted, Progress
from finetune.recipe import Recipe, TextRecipe, scoring
from finetune.recipe.scoring import without_counted
from finetune.runs.manifest import Manifest, Metrics
from finetune.runs.run import LOGITS, PREDICTIONS, Run
from finetune.runtime import __version__, distributed, files
from finetune.runtime.importing import HOUSE
from finetune.statistics import baselines, metrics, mistakes
from finetune.statistics.baselines import Source
from finetune.statistics.scored import to_float16
from finetune.training.arguments import FinetuneArguments, shards
from finetune.training.record import Data, Launch, Process

#: As many small images as a report shows.
_MOST_THUMBNAILS = 40


def manifest(settings: Settings, configuration: dict[str, Any]) -> Manifest:
    """Return what is known when training starts, inside the process group and with loaded data."""
    recipe = settings.recipe
    arguments = settings.arguments
    options = {option.name: getattr(recipe, option.name) for option in dataclasses.fields(recipe)}
    dataset = Path(recipe.dataset).expanduser()
    if recipe.dataset and dataset.exists():  # found from any directory
        options["dataset"] = str(dataset.resolve())
    if recipe.metrics:
        paths = scoring.files_of(recipe.known_scoring)
        names = [str(paths.get(name, name)) for name in recipe.known_scoring]
        options["metrics"] = join_values(names)
    return Manifest(
        status="running",
        recipe=settings.name,
        command=settings.command,
        options=options,
        embedded_overrides=settings.overrides,
        arguments=arguments.to_sanitized_dict(),
        labels=recipe.labels,
        scoring=recipe.known_scoring,
        data=Data(
            source=sources.Source(recipe.dataset).describe(),
            rows=configuration["rows"],
            fingerprint=configuration["data"],
            notes=list(recipe.notes),
            findings=[finding.facts for finding in recipe.report.findings],
            tested_in="test" if "test" in recipe.source else "train",
            corrections=[*recipe.corrections],
            revision=sources.find_commit(recipe.splits["train"]),
            split_how=recipe.split_how,
        ),
        launch=Launch(
            parallel_mode=parallel_mode(arguments),
            world_size=arguments.world_size,
            machines=distributed.machines(),
            n_gpu=arguments.n_gpu,
            device=str(arguments.device),
            precision=precision(arguments),
        ),
        versions=versions(),
        git_revision=_git_revision(),
        process=Process(
            host=platform.node(),
            pid=os.getpid(),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            job=distributed.job(),
        ),
        task=recipe.kind.name,
        task_facts=recipe.kind.facts,
        model_revision=configuration["commit"],
        configuration=configuration,
    )


def versions() -> dict[str, str]:
    """Of the toolkit, of Python, and of the libraries that the figures depend on."""
    libraries = ("torch", "transformers", "accelerate", "datasets", "evaluate", "scikit-learn")
    python = {"finetune": __version__, "python": platform.python_version()}
    return python | {name: version(name) for name in libraries}


def parallel_mode(arguments: FinetuneArguments) -> str:
    """Return how the devices share a step, by the name of the class in torch."""
    if shards(arguments):
        return "FullyShardedDataParallel"
    if distributed.ranks().world_size > 1:
        return "DistributedDataParallel"
    devices = distributed.devices_in_training(arguments.use_cpu)
    return f"DataParallel on {devices} GPUs" if devices > 1 else "one device"


def precision(arguments: FinetuneArguments) -> str:
    """Return what the matrix products are computed in."""
    name = "bf16" if arguments.bf16 else "fp16" if arguments.fp16 else "fp32"
    return "tf32" if name == "fp32" and arguments.tf32 else name


def _git_revision() -> str | None:
    if not (HOUSE / ".git").exists() or not shutil.which("git"):
        return None
    command = ["git", "-C", str(HOUSE), "--no-optional-locks", "describe", "--always", "--dirty"]
    process = subprocess.run([*command, "--abbrev=12"], capture_output=True, text=True, check=False)
    return process.stdout.strip() or None


def write(
    run: Run,
    settings: Settings,
    progress: Progress,
    validation: PredictionOutput,
    test: PredictionOutput,
    thresholds: dict[str, float] | None,
    outcome: dict[str, Any],
) -> None:
    """Write the predictions, the scores and those of the baselines; then the run is finished.

    Args:
        run: Whose directory is written into.
        settings: Of the training; the recipe has its splits.
        progress: Called with what the user should know.
        validation: The outputs of the model that was saved.
        test: Likewise.
        thresholds: Those of labels that were folded into the model, if any were.
        outcome: The fields of ``run.json`` that are known when training has ended.

    Raises:
        UserError: If outputs of the model are not finite.
    """
    recipe = settings.recipe
    task = recipe.kind
    run.update()  # refused where it was removed meanwhile
    validation_scores = scores(recipe, "validation", validation, "eval_")
    test_scores = scores(recipe, "test", test, "test_")
    stored = _write_predictions(run.path, recipe, test.predictions)
    if not_finite := int((~np.isfinite(stored).all(axis=1)).sum()):
        raise UserError(
            f"the outputs of the model are not finite on {not_finite:,} of {len(stored):,} test "
            "rows: the training has diverged; try a smaller --learning_rate"
        )
    temperature = None
    if task.has_one_class:
        outputs = np.asarray(validation.predictions)
        temperature = mistakes.fit_temperature(outputs, np.asarray(validation.label_ids))
    rows, recipe_metrics = assess(recipe, test._replace(predictions=stored))
    statistics = task.statistics(rows, recipe_metrics, temperature)
    notes = statistics.notes
    labels = np.asarray(test.label_ids)
    source = Source(
        splits=recipe.splits,
        column=recipe.input_column,
        seed=recipe.split_seed,
        fit=settings.arguments.baseline,
        note=notes.append,
    )
    baseline_scores: dict[str, Any] = {}
    differences: dict[str, Any] = {}
    for name, predicted in task.baselines(source):
        try:
            computed = recipe.compute_metrics(EvalPrediction(predicted, labels))
            baseline = task.scored(labels, predicted)
            differences[name] = metrics.estimate_difference(baseline, rows, recipe_metrics)
            baseline_scores[name] = computed
        except Exception as error:  # of a recipe's own metrics; the run has its own scores
            notes.append(baselines.failed(name, error))
    for note in filter(None, (*notes, outcome["stopped_early"])):
        progress(Noted(note))
    Metrics(
        validation=validation_scores,
        test=test_scores,
        baseline=baseline_scores,
        statistics=dataclasses.replace(statistics, beyond=differences, thresholds=thresholds),
    ).write(run.path)
    run.update(**outcome, temperature=temperature, status="finished")


def _write_predictions(directory: Path, recipe: Recipe, outputs: Any) -> np.ndarray:
    """Write the test rows with what the model predicted; return its outputs as the files have them.

    Of many classes ``logits.npy`` has the outputs. The columns of the data keep names, types and
    values; one of the toolkit's that would have the same name gets the prefix ``model_``, which
    :attr:`Run.predicted_rows` takes off again.
    """
    task = recipe.kind
    rows = recipe.splits["test"]
    logits: np.ndarray = np.asarray(outputs)
    (directory / LOGITS).unlink(missing_ok=True)
    if task.has_outputs_file:
        logits = to_float16(logits)
        with files.replacing(directory / LOGITS) as new, new.open("wb") as file:
            np.lib.format.write_array(file, logits, allow_pickle=False)
    columns: dict[str, Any] = {}
    if "text" in rows.column_names:
        columns["text"] = rows["text"][:]
    else:  # digests tell rows without a text apart
        hashes = digests.hash_rows(rows, recipe.input_column)
        columns[DIGEST] = [value.hex() for value in hashes]
    tokens = recipe.whole_lengths("test") if isinstance(recipe, TextRecipe) else None
    if tokens is not None:
        columns["tokens"] = tokens
    targets = recipe.targets("test")
    columns |= task.columns(targets, logits)
    if isinstance(rows.features.get("image"), Image):
        thumbnails: list[bytes | None] = [None] * len(rows)
        if task.has_one_class:
            wrong = mistakes.most_confident(task.scored(targets, logits))[:_MOST_THUMBNAILS]
            undecoded = rows.cast_column("image", Image(decode=False))
            for number in wrong.tolist():
                thumbnails[number] = images.thumbnail(undecoded[number]["image"])
        columns[THUMBNAIL] = thumbnails
    user = user_table(rows, recipe.input_column)
    data = dict(zip(user.column_names, user.columns, strict=True))
    ours = {free_name(name, data): pa.array(values) for name, values in columns.items()}
    table = pa.table({"id": data.get("id", arrow.column(rows, ROW)), **ours, **data})
    # what pandas is told of the types: integers beside missing ones stay integers there
    frame = table.slice(0, 0).to_pandas()
    partial = [name for name in frame.select_dtypes("integer") if table.column(name).null_count]
    frame = frame.astype(frame[partial].convert_dtypes().dtypes)
    frame.attrs[USER_COLUMNS] = user.column_names
    metadata = pa.Schema.from_pandas(frame, preserve_index=False).metadata
    with files.replacing(directory / PREDICTIONS) as new:
        pq.write_table(table.replace_schema_metadata(metadata), new)
    return logits


def scores(recipe: Recipe, split: str, output: PredictionOutput, prefix: str) -> dict[str, float]:
    """Return the scores of an evaluation of a split, by name, without those about speed.

    Raises:
        RuntimeError: If its labels are not those of the raw rows in their order; every score and
            every prediction would be written beside the wrong row.
    """
    labels = np.asarray(output.label_ids)
    if not np.array_equal(labels, recipe.targets(split).astype(labels.dtype)):
        raise RuntimeError(
            "the labels of the evaluation are not those of the rows: install the tested versions "
            "of transformers and accelerate (constraints.txt)"
        )
    return {
        name.removeprefix(prefix): value
        for name, value in (output.metrics or {}).items()
        if name.startswith(prefix) and not name.endswith(SPEED)
    }


def assess(recipe: Recipe, output: PredictionOutput) -> tuple[Any, metrics.Metrics]:
    """Return labelled rows with the outputs of a model, and the metrics of the recipe."""
    rows = recipe.kind.scored(np.asarray(output.label_ids), np.asarray(output.predictions))
    compute = without_counted(recipe.compute_metrics, recipe.known_scoring, recipe.kind)
    return rows, metrics.recipe_metrics(rows, recipe.known_scoring, compute)
