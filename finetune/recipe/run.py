"""A run with what its recipe makes of it: its task, metrics and model."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.data.prediction_columns import LABEL
from finetune.errors import UserError, suggestion
from finetune.recipe import Recipe, catalog
from finetune.recipe.options import ModelOptions
from finetune.runs.directory import RunDirectory
from finetune.runs.records import MANIFEST, Manifest
from finetune.runtime.importing import read_source

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from transformers import EvalPrediction

    from finetune.tasks.base import Task


class Run(RunDirectory):
    """A run in a directory."""

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
        if not Manifest.exists_in(run.path):
            reason = "no such directory"
            if run.path.exists():
                reason = f"no {MANIFEST} in it"
            folders = (run.path, run.path.parent, Path("runs"))  # it may be a set of runs
            runs = [file.parent for folder in folders for file in folder.glob(f"*/{MANIFEST}")]
            hint = suggestion(str(run.path), runs)
            raise UserError(f"{path} is not the directory of a run: {reason}{hint}")
        if not trust_recipe:
            return run
        from finetune.recipe import scoring

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
    def task(self) -> Task[Any]:
        """The task of the run."""
        from finetune.tasks import detection

        manifest = self.manifest
        options = manifest.options
        return detection.TASKS[manifest.task](
            labels=self.labels,
            loss_function=options.get("loss_function") or "",
            positive_label=options.get("positive_label"),
            **manifest.task_facts,
        )

    def scored(self, table: pd.DataFrame, task: Task[Any] | None = None) -> Any:
        """Return labels and outputs of the test rows for the statistics of a task.

        Args:
            table: Rows of :attr:`predicted_rows`.
            task: The task with its labels in another order; :attr:`kind` if None.

        Raises:
            UserError: If ``logits.npy`` is needed but missing or damaged.
        """
        import pandas as pd

        own_task = self.task
        task = task or own_task
        if not own_task.has_outputs_file:
            return task.scored_in(table)
        logits = self.read_logits(len(table), own_task.width)
        if task.labels != own_task.labels:
            logits = logits[:, [own_task.labels.index(name) for name in task.labels]]
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
        from finetune.recipe import scoring

        path = self.path / MANIFEST
        manifest = self.manifest
        options = dict(manifest.options)
        if scores:
            metrics = scoring.Scoring.from_names(options.get("metrics") or "").arguments
            catalog.refuse_untrusted(scoring.files_of(metrics).values(), "metric", path)
        else:
            options["metrics"] = None
        if "model" in options:
            options |= {"model": str(self.path), "model_revision": None}
        recipe = catalog.of_run(manifest.recipe, path)
        fields = {field.name: field for field in dataclasses.fields(recipe)}
        if issubclass(recipe, ModelOptions):  # an adapter is merged into the model
            for name, field in fields.items():
                if field.metadata.get("group") in ("teacher", "adapters"):  # of the training only
                    options.pop(name, None)
            options |= {"adapter": None, "freeze": None}
        if unknown := options.keys() - fields.keys():
            names = ", ".join(sorted(unknown))
            raise UserError(f"{path}: the recipe '{manifest.recipe}' has no options {names}")
        return recipe(**options).with_values(resolved_task=self.task)

    @property
    def compute_metrics(self) -> Callable[[EvalPrediction], dict[str, float]]:
        """The metrics of the recipe; it is not imported if they are metrics of the toolkit."""
        from finetune.recipe import scoring

        if not (arguments := self.manifest.scoring):
            return self.recipe().compute_metrics
        files = scoring.files_of(arguments).values()
        catalog.refuse_untrusted(files, "metric", self.path / MANIFEST)
        return functools.partial(scoring.Scoring(**arguments), task=self.task)

    def model(self) -> torch.nn.Module:
        """Return the model of the run in evaluation mode."""
        return self.recipe(scores=False).load_model(self.path, self.labels).eval()
