"""The directory of a run: its lock, and its files, which training writes and other verbs read.

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

The system releases a lock when its process ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from finetune.data.prediction_columns import USER_COLUMNS, usual_name
from finetune.errors import RunError, UserError, first_line
from finetune.runs.records import MANIFEST, METRICS, Manifest, Metrics
from finetune.runtime.files import replacing
from finetune.statistics.results import Statistics

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow as pa

PREDICTIONS = "predictions.parquet"
LOGITS = "logits.npy"
VALIDATION = "validation.npz"  # of a trial of a search: outputs and labels of validation rows
_LOCK = ".lock"
_LOCKS: dict[Path, FileLock] = {}  # the locks of this process by the path of their file
_RESERVE = ".reserve"  # frees some bytes if the disk is full when the run ends


@dataclass(frozen=True)
class RunDirectory:
    """The directory of a run. Its properties read files, and raise a ``UserError`` if they cannot.

    :class:`finetune.Run` adds what needs the recipe.
    """

    path: Path

    @property
    def status(self) -> str:
        """The status in ``run.json``; ``stale`` if it is running but its process is gone."""
        status = self.manifest.status
        if status == "running" and not is_locked(self.path):
            return "stale"
        return status

    @property
    def _state(self) -> str:
        """The status, and the command that continues the run."""
        manifest = self.manifest
        if manifest.not_scored and self.status == "finished":
            return manifest.not_scored
        if self.status in ("validated", "pruned"):
            return f"the search in {self.path.parent} keeps and tests the best of its trials only"
        directory = self.path.parent if manifest.not_scored else self.path
        command = f"{manifest.command}, with --resume and --output_dir {directory}"
        return f"its status is '{self.status}'; to continue it: {command}"

    @property
    def unfinished(self) -> str | None:
        """A sentence if a finished run was continued and has not ended again, else None."""
        manifest = self.manifest
        has_results = Metrics.exists_in(self.path) or manifest.not_scored
        if manifest.steps is not None or not has_results:
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
        """``run.json``."""
        return Manifest.read(self.path)

    @property
    def metrics(self) -> Metrics:
        """``metrics.json``: metrics of validation and test rows, and of the baselines."""
        if not Metrics.exists_in(self.path):
            raise UserError(f"{self.path} has no {METRICS}: {self._state}")
        return Metrics.read(self.path)

    @property
    def statistics(self) -> Statistics:
        """The statistics of the test rows in ``metrics.json``."""
        return self.metrics.statistics

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
    def predictions(self) -> pd.DataFrame:
        """The test rows with the columns of the data and of the predictions."""
        table: pd.DataFrame = self._predictions.to_pandas()
        return table

    @property
    def _predictions(self) -> pa.Table:
        import pyarrow.parquet as pq

        path = self.path / PREDICTIONS
        if not path.exists():
            raise UserError(f"{self.path} has no {PREDICTIONS}: {self._state}")
        try:
            # with a colon, a relative path is a URI; a directory with a "=" is no partition
            return pq.read_table(path.absolute(), partitioning=None)
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read, {first_line(error)}: {self._state}") from error

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

    def read_logits(self, rows: int, classes: int) -> np.ndarray:
        """Return ``logits.npy``, float16, shape ``(rows, classes)``.

        Raises:
            UserError: If it is missing, damaged or of another shape.
        """
        import numpy as np

        path = self.path / LOGITS
        logits = np.array([])
        with contextlib.suppress(OSError, ValueError):
            logits = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        if logits.shape != (rows, classes) or logits.dtype.kind != "f":
            raise UserError(
                f"{path} is missing or damaged: expected the logits of {rows:,} rows and "
                f"{classes:,} classes; copy it from where the run was trained, or train it again"
            )
        return logits

    def reserve_space(self) -> None:
        """Reserve some bytes, so that the status can be written when the disk is full."""
        with contextlib.suppress(OSError), replacing(self.path / _RESERVE) as new:
            new.write_bytes(os.urandom(1 << 18))  # zeros may be stored without space

    def update(self, **changes: Any) -> None:
        """Change fields of ``run.json``; a ``RunError`` if it was removed."""
        if not Manifest.exists_in(self.path):
            raise RunError(f"{self.path / MANIFEST} was removed while the run was in progress")
        if changes.get("status", "running") != "running":
            (self.path / _RESERVE).unlink(missing_ok=True)  # the disk may be full
        dataclasses.replace(self.manifest, **changes).write(self.path)


def lock_directory(directory: Path) -> None:
    """Create a directory if necessary, and lock it until :func:`unlock_directory` is called or the
    process ends.

    Raises:
        UserError: If a run is in progress there, on this machine or another, or if the lock file
            cannot be written or is a link.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory.resolve() / _LOCK
        if path not in _LOCKS:
            file_lock = FileLock(path, thread_local=False)
            file_lock.acquire(timeout=0.5)  # `is_locked` in another process holds it for a moment
            path.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
            _LOCKS[path] = file_lock
    except OSError as error:
        reason = f"cannot be locked: {error}"
        if isinstance(error, TimeoutError):
            process = (directory / _LOCK).read_text(errors="replace")
            reason = f"a run is in progress there ({process}): stop it, or use another directory"
        raise UserError(f"--output_dir {directory}: {reason}") from error


def unlock_directory(directory: Path) -> None:
    """Release the lock of a directory, if this process has it."""
    if file_lock := _LOCKS.pop(directory.resolve() / _LOCK, None):
        file_lock.release()


def is_locked(directory: Path) -> bool:
    """Return whether a process of any user, including this one, has the lock of a directory."""
    try:
        with (directory / _LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def move_run_aside(directory: Path) -> str | None:
    """Rename a locked directory unless it is empty, and lock a new one in its place.

    Returns:
        A sentence that says so; None if the directory is empty.
    """
    if not _list_files(directory):
        return None
    if directory.name in ("", ".."):  # `.` has no name to append a number to
        directory = directory.resolve()
    unlock_directory(directory)
    renamed = directory.rename(free_path(directory))
    lock_directory(directory)
    return f"moved the run in {directory} to {renamed}"


def refuse_foreign_directory(directory: Path) -> None:
    """Refuse a directory that holds other files than a run, or a run that is in progress."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise UserError(f"--output_dir {directory}: {existing} is a file or cannot be written to")
    if is_locked(directory):
        lock_directory(directory)  # which refuses it unless it is ours
    # `recipe.trainer()` leaves checkpoints without a run.json
    is_run = (directory / MANIFEST).exists() or any(directory.glob("checkpoint-*"))
    if _list_files(directory) and not is_run:
        raise UserError(f"--output_dir {directory} holds files but no run: use another directory")


def free_path(path: Path) -> Path:
    """Return the path, or the first of ``path.1``, ``path.2`` ... that does not exist."""
    free = path
    count = 0
    while os.path.lexists(free):  # a broken link is in the way, too
        count += 1
        free = path.with_name(f"{path.name}.{count}")
    return free


def _list_files(directory: Path) -> list[Path]:
    return [path for path in directory.glob("*") if path.name != _LOCK]
