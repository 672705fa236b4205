"""The trackers of ``--report_to``: their files are in the run, the last values the test scores."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback
from transformers.integrations import integration_utils as library

from finetune.runs.manifest import Metrics

_DATABASE = "mlflow.db"
_VARIABLES = {  # by name in the environment; what the user has set stays
    "TENSORBOARD_LOGGING_DIR": "{}/tensorboard",
    "TRACKIO_DIR": "{}/trackio",
    "MLFLOW_TRACKING_URI": "sqlite:///{}/" + _DATABASE,  # mlflow 3.17 refuses a directory
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}


class Trackers(TrainerCallback):
    """Calls the trackers of a trainer; they stay open after the training, for the test scores.

    Attributes:
        metrics: Of the finished run; its test scores are logged when the trackers are closed.
    """

    metrics: Metrics | None = None
    _trackers: list[TrainerCallback] = []
    _facts: tuple[Any, ...] = ()  # arguments, state and control of the training

    def take(self, trainer: Trainer) -> None:
        """Take the trackers of a trainer, which then calls only this callback."""
        kinds = library.TensorBoardCallback, library.TrackioCallback, library.MLflowCallback
        self._trackers = [*filter(None, map(trainer.pop_callback, kinds))]
        trainer.add_callback(self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the trackers; a resumed training continues its MLflow run."""
        self._facts = args, state, control
        args.run_name = args.run_name or Path(args.output_dir).name
        database = Path(args.output_dir).resolve() / _DATABASE
        is_own = os.environ.get("MLFLOW_TRACKING_URI") == f"sqlite:///{database}"
        if is_own and database.exists() and state.is_world_process_zero:
            import mlflow

            for run in mlflow.search_runs(output_format="list", search_all_experiments=True)[:1]:
                os.environ["MLFLOW_RUN_ID"] = run.info.run_id
                os.environ["MLFLOW_MAX_LOG_PARAMS"] = "0"  # those of the first start are final
        self._call("on_train_begin", **kwargs)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log an entry of the history."""
        self._call("on_log", **kwargs)

    def close(self) -> None:
        """Log the test scores with the ends of their intervals, and close the trackers."""
        if self.metrics is not None:
            scores = {f"test_{name}": value for name, value in self.metrics.test.items()}
            for name, interval in self.metrics.statistics.metrics.items():
                scores |= {f"test_{name}_{end}": interval[end] for end in ("low", "high")}
            self._call("on_log", logs={n: v for n, v in scores.items() if v is not None})
        self._call("on_train_end")

    def _call(self, event: str, **kwargs: Any) -> None:
        with contextlib.redirect_stdout(None):  # trackio prints
            for tracker in self._trackers if self._facts else []:
                getattr(tracker, event)(*self._facts, **kwargs)


@contextlib.contextmanager
def tracking(directory: Path) -> Iterator[Trackers]:
    """Give the trackers of a training in a directory, and close them at the end of the block."""
    environment = dict(os.environ)
    mlflow: Any = sys.modules.get("mlflow")
    is_in_run = mlflow is not None and mlflow.active_run() is not None  # of the user
    for name, value in _VARIABLES.items():
        if not (os.environ.get(name) or (is_in_run and name == "MLFLOW_TRACKING_URI")):
            os.environ[name] = value.format(directory.resolve())
    for name, module in [*sys.modules.items()]:
        if name.startswith("trackio") and hasattr(module, "TRACKIO_DIR"):  # from its import (0.43)
            vars(module)["TRACKIO_DIR"] = Path(os.environ["TRACKIO_DIR"])
    trackers = Trackers()
    try:
        yield trackers
    except BaseException:
        if "mlflow" in sys.modules and not is_in_run:
            sys.modules["mlflow"].end_run("FAILED")
        raise
    finally:
        try:
            trackers.close()
        finally:
            for name in (*_VARIABLES, "MLFLOW_RUN_ID", "MLFLOW_MAX_LOG_PARAMS"):
                os.environ.pop(name, None)
            os.environ.update(environment)
