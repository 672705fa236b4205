"""The directory of a run: written by training, read by every other verb.

runs/yelp/
  config.json model.safetensors tokenizer...   loads with ``from_pretrained`` and ``pipeline()``
  run.json              recipe, options, arguments, versions, data, launch, times, status
  metrics.json          {"validation": {...}, "test": {...}, "baseline": {...}, "statistics": {...}}
  predictions.parquet   the test rows: id, text, label, prediction, probability of each class;
                        above 50 classes only of the five most probable and the true one
  logits.npy            above 50 classes: all logits, float16, rows as in predictions.parquet
  report.html plots/    the report
  README.md             the model card
  checkpoint-N/         to resume from
  profile/              with --profile: a trace
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.data.prediction_columns import LABEL, USER_COLUMNS, usual_name
from finetune.errors import RunError, UserError, suggestion
from finetune.runs.manifest import METRICS, Manifest, Metrics
from finetune.runtime import files
from finetune.runtime.importing import read_source
from finetune.statistics.results import Statistics
from finetune.training.record import MANIFEST

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import torch
    from transformers import EvalPrediction

    from finetune.recipe import Recipe
    from finetune.tasks.base import Task

PREDICTIONS = "predictions.parquet"
LOGITS = "logits.npy"
_RESERVE = ".reserve"  # frees some bytes if the disk is full when the run ends


@dataclass(frozen=True)
class Run:
    """A run in a directory."""

    path: Path

    @classmethod
    def load(cls, path: str | Path | Run, *, trust_recipe: bool = False) -> Run:
        """Return the run in ``path``; a ``Run`` is returned unchanged.

        Args:
            path: The directory.
            trust_recipe: Whether to import the recipe file and the metric files that the manifest
                names; a warning has path and hash of each.

        Raises:
            UserError: If there is no run in the directory.
        """
        run = path if isinstance(path, Run) else cls(Path(path).expanduser())
        if not (run.path / MANIFEST).exists():
            reason = "no such directory"
            if run.path.exists():
                reason = f"no {MANIFEST} in it"
            folders = (run.path, run.path.parent, Path("runs"))  # it may be a set of runs
            runs = [file.parent for folder in folders for file in folder.glob(f"*/{MANIFEST}")]
            hint = suggestion(str(run.path), runs)
            raise UserError(f"{path} is not the directory of a run: {reason}{hint}")
        if not trust_recipe:
            return run
        from finetune.recipe import catalog, scoring

        manifest = run.manifest
        sources = [("metric", file) for file in scoring.files_of(manifest.scoring).values()]
        if manifest.recipe.endswith(".py"):
            sources.insert(0, ("recipe", Path(manifest.recipe)))
        for kind, file in sources:
            if file.is_file() and not catalog.imported(file.resolve()):
                sha256 = read_source(file, kind)[1]
                sentence = f"importing the {kind} {file.resolve()} (sha256 {sha256})"
                warnings.warn(sentence, stacklevel=2)
                catalog.import_file(file.resolve(), kind)
        return run

    @property
    def status(self) -> str:
        """The status in ``run.json``; ``stale`` if it is running but its process is gone."""
        status = self.manifest.status
        if status == "running" and not files.is_locked(self.path):
            return "stale"
        return status

    @property
    def _state(self) -> str:
        """The status, and the command that continues the run."""
        if self.status in ("validated", "pruned"):
            return f"the search in {self.path.parent} keeps and tests the best of its trials only"
        command = f"{self.manifest.command}, with --resume and --output_dir {self.path}"
        return f"its status is '{self.status}'; to continue it: {command}"

    @property
    def unfinished(self) -> str | None:
        """A sentence if a finished run was continued and has not ended again, else None."""
        if self.manifest.steps is not None or not (self.path / METRICS).exists():
            return None
        return (
            f"{self.path}: its training was resumed and has not finished; model and results are "
            f"from before; {self._state}"
        )

    def require_model(self) -> None:
        """Raise a ``UserError`` with the command that continues the run if it has no model."""
        if not any(self.path.glob("*.safetensors*")):
            raise UserError(f"{self.path} has no model: {self._state}")

    @property
    def manifest(self) -> Manifest:
        """``run.json``. Like the other files, it raises a ``UserError`` if it cannot be read."""
        return Manifest.read(self.path)

    @property
    def metrics(self) -> Metrics:
        """``metrics.json``: metrics of validation and test rows, and of the baselines."""
        if not (self.path / METRICS).exists():
            raise UserError(f"{self.path} has no {METRICS}: {self._state}")
        return Metrics.read(self.path)

    @property
    def statistics(self) -> Statistics:
        """The statistics of the test rows in ``metrics.json``."""
        return self.metrics.statistics

    @property
    def predictions(self) -> pd.DataFrame:
        """The test rows with the columns of the data and of the predictions."""
        table: pd.DataFrame = self._predictions.to_pandas()
        return table

    @property
    def _predictions(self) -> pa.Table:
        import pyarrow.parquet as pq

        path = self.path / PREDICTIONS
        try:
            # with a colon, a relative path is a URI; a directory with a "=" is no partition
            return pq.read_table(path.absolute(), partitioning=None)
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{path} cannot be read, {reason}: {self._state}") from error

    @property
    def predicted_rows(self) -> pd.DataFrame:
        """The columns of :attr:`predictions` that the toolkit adds, under their usual names; ``id``
        and ``file`` may be columns of the data.
        """
        table = self.predictions
        user_columns = set(table.attrs.get(USER_COLUMNS, [])) - {"id", "file"}
        return table.drop(columns=user_columns).rename(columns=usual_name)

    @property
    def user_rows(self) -> pa.Table:
        """The columns of the data in ``predictions.parquet``, with their types."""
        table = self._predictions
        return table.select(table.slice(0, 0).to_pandas().attrs.get(USER_COLUMNS, []))

    def reserve(self) -> None:
        """Reserve some bytes, so that the status can be written when the disk is full."""
        with contextlib.suppress(OSError), files.replacing(self.path / _RESERVE) as new:
            new.write_bytes(os.urandom(1 << 18))  # zeros may be stored without space

    def update(self, **changes: Any) -> None:
        """Change fields of ``run.json``; a ``RunError`` if it was removed."""
        if not (self.path / MANIFEST).exists():
            raise RunError(f"{self.path / MANIFEST} was removed while the run was in progress")
        if changes.get("status", "running") != "running":
            (self.path / _RESERVE).unlink(missing_ok=True)  # the disk may be full
        dataclasses.replace(self.manifest, **changes).write(self.path)

    @property
    def headline(self) -> list[str]:
        """The metrics of the recipe that have an interval, ``metric_for_best_model`` first."""
        metrics = self.statistics.metrics
        chosen = str(self.manifest.arguments.get("metric_for_best_model")).removeprefix("eval_")
        names = [name for name in self.metrics.test if name in metrics]
        return sorted(names, key=lambda name: name != chosen)

    @property
    def labels(self) -> list[str]:
        """The names of the classes, in the order of their ids."""
        return list(self.manifest.labels)

    @property
    def kind(self) -> Task[Any]:
        """The task of the run."""
        from finetune.tasks import kinds

        manifest = self.manifest
        facts = {"loss_function": manifest.options.get("loss_function") or ""}
        facts |= manifest.task_facts
        return kinds.KINDS[manifest.task](labels=list(manifest.labels), **facts)

    def scored(self, table: pd.DataFrame, task: Task[Any] | None = None) -> Any:
        """Return labels and outputs of the test rows for the statistics of a task.

        Args:
            table: Rows of :attr:`predicted_rows`.
            task: The task with its labels in another order; :attr:`kind` if None.

        Raises:
            UserError: If ``logits.npy`` is needed but missing or damaged.
        """
        import numpy as np
        import pandas as pd

        kind = self.kind
        task = task or kind
        if not kind.has_outputs_file:
            return task.scored_in(table)
        path = self.path / LOGITS
        shape = (len(table), kind.width)
        logits = np.array([])
        with contextlib.suppress(OSError, ValueError):
            logits = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        if logits.shape != shape or logits.dtype.kind != "f":
            expected = f"expected the logits of {shape[0]:,} rows and {shape[1]:,} classes"
            hint = "copy it from where the run was trained, or train it again"
            raise UserError(f"{path} is missing or damaged: {expected}; {hint}")
        if task.labels != kind.labels:
            logits = logits[:, [kind.labels.index(name) for name in task.labels]]
        return task.scored(pd.Index(task.labels).get_indexer(pd.Index(table[LABEL])), logits)

    def recipe(self, *, scores: bool = True) -> Recipe:
        """Return the recipe with its options, and with task, model and tokenizer of the run.

        Args:
            scores: Whether its metrics are needed; if not, metrics that the run names by path are
                replaced by those of the task.

        Raises:
            UserError: If the recipe, or a metric that the run names by path, is neither installed
                nor imported: ``run.json`` may come from somebody else.
        """
        from finetune.recipe import catalog, scoring
        from finetune.recipe.options import LORA, ModelOptions

        path = self.path / MANIFEST
        manifest = self.manifest
        options = dict(manifest.options)
        if scores:
            metrics = scoring.Scoring.of_names(options.get("metrics") or "").arguments
            catalog.refuse_untrusted(list(scoring.files_of(metrics).values()), "metric", path)
        elif options.get("metrics"):
            options["metrics"] = None
        if "model" in options:
            options |= {"model": str(self.path), "model_revision": None}
        recipe = catalog.of_run(manifest.recipe, path)
        if issubclass(recipe, ModelOptions):  # an adapter is merged into the model
            options = {name: options[name] for name in options if name not in LORA}
            options |= {"adapter": None, "freeze": None}
        if unknown := options.keys() - {field.name for field in dataclasses.fields(recipe)}:
            names = ", ".join(sorted(unknown))
            raise UserError(f"{path}: the recipe '{manifest.recipe}' has no options {names}")
        return recipe(**options).with_values(kind=self.kind)

    @property
    def compute_metrics(self) -> Callable[[EvalPrediction], dict[str, float]]:
        """The metrics of the recipe; it is not imported if they are metrics of the toolkit."""
        from finetune.recipe import catalog, scoring

        if not (arguments := self.manifest.scoring):
            return self.recipe().compute_metrics
        files = scoring.files_of(arguments).values()
        catalog.refuse_untrusted(list(files), "metric", self.path / MANIFEST)
        return functools.partial(scoring.Scoring(**arguments), task=self.kind)

    def model(self) -> torch.nn.Module:
        """Return the model of the run in evaluation mode."""
        return self.recipe(scores=False).load_model(self.path, self.labels).eval()
