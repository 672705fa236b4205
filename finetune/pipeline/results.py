"""Write the results of a training: predictions, metrics and how it ended."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Image
from transformers import EvalPrediction
from transformers.trainer_utils import PredictionOutput

from finetune.data import ROW, arrow, digests, encoding, images
from finetune.data.prediction_columns import (
    DIGEST,
    THUMBNAIL,
    USER_COLUMNS,
    free_name,
    user_table,
)
from finetune.data.targets import values
from finetune.errors import UserError
from finetune.pipeline.events import SPEED
from finetune.recipe import Recipe, TextRecipe
from finetune.recipe.probe import frozen_baseline
from finetune.recipe.run import Run
from finetune.runs.directory import LOGITS, PREDICTIONS, VALIDATION
from finetune.runs.records import Metrics
from finetune.runtime import activity, files
from finetune.statistics import baselines, metrics, mistakes
from finetune.statistics.baselines import BaselineData
from finetune.statistics.scored import to_float16
from finetune.training.arguments import FinetuneArguments

#: Thumbnails of wrong predictions in ``predictions.parquet``, for the report.
_MAX_THUMBNAILS = 40


def write(
    run: Run,
    recipe: Recipe,
    arguments: FinetuneArguments,
    validation: PredictionOutput,
    test: PredictionOutput,
    thresholds: dict[str, float] | None,
    outcome: dict[str, Any],
) -> None:
    """Write the predictions and the metrics of model and baselines, and finish the run.

    Args:
        run: The run to write into.
        recipe: The recipe on its rows.
        arguments: Those of the training.
        validation: Outputs of the saved model on the validation rows.
        test: Outputs of the saved model on the test rows.
        thresholds: The thresholds by label that were folded into the model, if any.
        outcome: The fields of ``run.json`` that are known after the training.

    Raises:
        UserError: If outputs of the model are not finite.
    """
    task = recipe.resolved_task
    run.update()  # fails if the directory was removed during the training
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
    statistics = task.statistics(rows, recipe_metrics)
    if statistics.calibration and temperature is not None:
        statistics.calibration["temperature"] = mistakes.describe_temperature(rows, temperature)
    notes = statistics.notes
    labels = np.asarray(test.label_ids)
    data = BaselineData(
        splits=recipe.splits,
        column=recipe.input_column,
        seed=recipe.split_seed,
        fit=arguments.baseline,
        note=notes.append,
    )
    baseline_scores: dict[str, Any] = {}
    differences: dict[str, Any] = {}
    predictions = task.baselines(data)
    if arguments.baseline:
        frozen = frozen_baseline(recipe, arguments, notes.append)
        predictions = itertools.chain(predictions, frozen)
    for name, predicted in predictions:
        try:
            computed = recipe.compute_metrics(EvalPrediction(predicted, labels))
            baseline = task.scored(labels, predicted)
            differences[name] = metrics.estimate_difference(baseline, rows, recipe_metrics)
            baseline_scores[name] = computed
        except Exception as error:  # in a recipe's own metrics; the scores of the model are kept
            notes.append(baselines.failed(name, error))
    for note in filter(None, (*notes, outcome["stopped_early"])):
        activity.say(note)
    Metrics(
        validation=validation_scores,
        test=test_scores,
        baseline=baseline_scores,
        statistics=dataclasses.replace(statistics, differences=differences, thresholds=thresholds),
    ).write(run.path)
    run.update(**outcome, temperature=temperature, status="finished")


def write_trial(run: Run, validation: PredictionOutput, outcome: dict[str, Any]) -> None:
    """Write outputs and labels of the validation rows of a trial of a search, and end its run."""
    with files.replacing(run.path / VALIDATION) as new, new.open("wb") as file:
        labels, outputs = map(np.asarray, (validation.label_ids, validation.predictions))
        np.savez(file, labels=labels, outputs=outputs)
    run.update(**outcome, status="validated")


def _write_predictions(directory: Path, recipe: Recipe, outputs: Any) -> np.ndarray:
    """Write the test rows with their predictions, and return the outputs as rounded in the files.

    With many classes the outputs are in ``logits.npy``. The user's columns keep their names, types
    and values. A column of this package with the same name gets the prefix ``model_``, which
    :attr:`Run.predicted_rows` removes again.
    """
    task = recipe.resolved_task
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
    else:  # a digest identifies a row without a text
        hashes = digests.hash_rows(rows, recipe.input_column)
        columns[DIGEST] = [value.hex() for value in hashes]
    if isinstance(recipe, TextRecipe) and "length" in recipe.prepared["test"].column_names:
        columns["tokens"] = encoding.tokens_read(recipe.prepared["test"])
    targets = recipe.targets("test")
    columns |= task.columns(values(rows), logits)
    columns |= task.seen_columns(recipe.splits["train"], rows)
    if isinstance(rows.features.get("image"), Image):
        thumbnails: list[bytes | None] = [None] * len(rows)
        if task.has_one_class:
            wrong = mistakes.most_confident(task.scored(targets, logits))[:_MAX_THUMBNAILS]
            undecoded = rows.cast_column("image", Image(decode=False))
            for number in wrong.tolist():
                thumbnails[number] = images.thumbnail(undecoded[number]["image"])
        columns[THUMBNAIL] = thumbnails
    user = user_table(rows, recipe.input_column)
    user_columns = dict(zip(user.column_names, user.columns, strict=True))
    added = {free_name(name, user_columns): pa.array(values) for name, values in columns.items()}
    ids = user_columns.get("id", arrow.column(rows, ROW))
    table = pa.table({"id": ids, **added, **user_columns})
    # the schema tells pandas to read integer columns with nulls as nullable integers
    frame = table.slice(0, 0).to_pandas()
    nullable = [name for name in frame.select_dtypes("integer") if table.column(name).null_count]
    frame = frame.astype(frame[nullable].convert_dtypes().dtypes)
    frame.attrs[USER_COLUMNS] = user.column_names
    metadata = pa.Schema.from_pandas(frame, preserve_index=False).metadata
    with files.replacing(directory / PREDICTIONS) as new:
        pq.write_table(table.replace_schema_metadata(metadata), new)
    return logits


def scores(recipe: Recipe, split: str, output: PredictionOutput, prefix: str) -> dict[str, float]:
    """Return the metrics of an evaluation of a split, by name, without the speeds."""
    labels = np.asarray(output.label_ids)
    # or every prediction would be written beside a wrong row
    assert np.array_equal(labels, recipe.targets(split).astype(labels.dtype)), "another row order"
    return {
        name.removeprefix(prefix): value
        for name, value in (output.metrics or {}).items()
        if name.startswith(prefix) and not name.endswith(SPEED)
    }


def assess(recipe: Recipe, output: PredictionOutput) -> tuple[Any, metrics.NamedMetrics]:
    """Return the rows with labels and outputs of a model, and the metrics of the recipe."""
    rows = recipe.resolved_task.scored(np.asarray(output.label_ids), np.asarray(output.predictions))
    return rows, metrics.recipe_metrics(rows, recipe.metric_arguments, recipe.compute_metrics)
