"""A run directory: what training leaves behind, and where everything after training starts from.

runs/yelp/
  config.json model.safetensors tokenizer...   loads with ``from_pretrained`` and ``pipeline()``
  run.json              recipe, options, arguments, versions, data, launch, times, status
  metrics.json          {"validation": {...}, "test": {...}, "baseline": {...}}
  predictions.parquet   the test rows: id, text, label, prediction, probability of every class
  checkpoint-N/         resumable
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from finetune.recipe import Recipe

MANIFEST, METRICS, PREDICTIONS = "run.json", "metrics.json", "predictions.parquet"


@dataclass(frozen=True)
class Run:
    """One run, by its directory.

    Attributes:
        path: The directory.
    """

    path: Path

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """The run in ``path``.

        Raises:
            UserError: if there is none.
        """
        directory = Path(path).expanduser()
        if not (directory / MANIFEST).exists():
            found = "no such directory" if not directory.exists() else f"no {MANIFEST} in it"
            raise UserError(f"{path} is not the directory of a run: {found}")
        return cls(directory)

    @property
    def manifest(self) -> dict[str, Any]:
        """``run.json``."""
        return dict(json.loads((self.path / MANIFEST).read_text(encoding="utf-8")))

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """``metrics.json``: of validation, of test, and of the baselines on the same test rows."""
        if not (self.path / METRICS).exists():
            raise UserError(
                f"{self.path} has no {METRICS}: its status is '{self.manifest['status']}'"
            )
        return dict(json.loads((self.path / METRICS).read_text(encoding="utf-8")))

    @property
    def labels(self) -> list[str]:
        """The names of the classes, in the order of their numbers."""
        return list(self.manifest["labels"])

    @property
    def predictions(self) -> pd.DataFrame:
        """The test rows with what the model said of them."""
        import pandas as pd

        return pd.read_parquet(self.path / PREDICTIONS)

    def recipe(self) -> Recipe:
        """The recipe of the run, with the options it had; its model and tokenizer are the run's."""
        from finetune import catalog

        manifest = self.manifest
        options = manifest["options"]
        if "model" in options:
            options["model"] = str(self.path)
        return catalog.find(manifest["recipe"])(**options)

    def model(self) -> torch.nn.Module:
        """The model of the run, in evaluation mode."""
        return self.recipe().load_model(self.path, self.labels).eval()

    def update(self, **facts: Any) -> None:
        """Add facts to ``run.json``."""
        self.path.mkdir(parents=True, exist_ok=True)
        path = self.path / MANIFEST
        known = self.manifest if path.exists() else {}
        _write_json(path, {**known, **facts})

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Write ``metrics.json``."""
        _write_json(self.path / METRICS, metrics)


def make_way(directory: Path, checkpoint: str | None) -> str | None:
    """Make room for a run, unless it goes on with the one that is there.

    Args:
        directory: Of the run.
        checkpoint: The one to go on with, if any.

    Returns:
        A sentence about what was moved, or None.
    """
    if checkpoint is not None and Path(checkpoint).resolve().parent == directory.resolve():
        return None
    return clear_way(directory)


def clear_way(directory: Path) -> str | None:
    """Make room for a new run: one that is there is moved aside, and nothing is ever deleted.

    Returns:
        A sentence about what was moved, or None.

    Raises:
        UserError: if the directory holds something that is no run.
    """
    if directory.name in ("", ".."):  # `.` has no name to put a number behind
        directory = directory.resolve()
    refuse_foreign(directory)
    if not directory.exists() or not any(directory.iterdir()):
        return None
    number = 1
    while (aside := directory.with_name(f"{directory.name}.{number}")).exists():
        number += 1
    manifest = Run(directory).manifest if (directory / MANIFEST).exists() else {}
    directory.rename(aside)
    sentence = f"the run that was in {directory} is now in {aside}"
    if manifest.get("status") != "finished" and any(aside.glob("checkpoint-*")):
        sentence += (
            "; it had not finished: to go on with it, add "
            f"`--output_dir {aside} --resume_from_checkpoint last`"
        )
    return sentence


def refuse_foreign(directory: Path) -> None:
    """Refuse a directory that holds something else than a run, or one that is still going on."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        reason = "cannot be written to" if existing.is_dir() else "is a file"
        raise UserError(f"--output_dir {directory}: {existing} {reason}")
    if not directory.exists() or not any(directory.iterdir()):
        return
    if (directory / MANIFEST).exists():
        _refuse_living(Run(directory))
    elif not any(directory.glob("checkpoint-*")):  # what a trainer leaves that no command started
        raise UserError(
            f"--output_dir {directory} holds files but no run; "
            "name another directory, or an empty one"
        )


def _refuse_living(run: Run) -> None:
    """Two processes that write into one directory would mix two runs."""
    manifest = run.manifest
    process = manifest.get("process", {})
    if manifest.get("status") != "running" or process.get("host") != platform.node():
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if process["pid"] != os.getpid():
            os.kill(process["pid"], 0)
            raise UserError(
                f"--output_dir {run.path}: a run is going on there (process {process['pid']}); "
                "name another directory"
            )


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Whole or not at all: a reader never sees half a file."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")
    os.replace(temporary, path)
