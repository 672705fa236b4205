"""The trackers of ``--report_to``: their files are in the run, the last values the test scores.

A tracker must not decide how a training ends. One that cannot be reached is refused before the data
is read; one that fails later costs its curves, with a warning.
"""

import contextlib
import functools
import json
import logging
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback
from transformers.integrations import integration_utils as library

from finetune.errors import UserError, first_line, masked
from finetune.runs.records import Metrics
from finetune.runtime import files, hub
from finetune.training.options import without_none

_DATABASE = "mlflow.db"
_MLFLOW_RUN = "mlflow-run"  # the file with the id of the MLflow run, which a resume continues
_WANDB_RUN = "wandb-run"  # likewise
_KINDS = {
    "tensorboard": library.TensorBoardCallback,
    "trackio": library.TrackioCallback,
    "mlflow": library.MLflowCallback,
    "wandb": library.WandbCallback,
}
# what the user has set of the variables here and below stays
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING"}
_WANDB = {"WANDB_ERROR_REPORTING": "false", "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
#: The first would store what is printed, the second the typed words, a token among them.
_WANDB_SETTINGS = {"console": "off", "x_disable_meta": True}
#: How long a request to an MLflow server may take, which is 15 minutes by default: before the
#: training, and to end an MLflow run after a request has failed, at most 10 s; in the training 12 s
#: if the server refuses it, and 52 s if it does not answer.
_FIRST_REQUEST = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "4"}
_REQUESTS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


def require_mlflow(report_to: Any) -> None:
    """Require that the MLflow server of the user answers, and has the experiment and the run of
    ``MLFLOW_EXPERIMENT_ID`` and ``MLFLOW_RUN_ID``.

    Raises:
        UserError: With the answer of the server.
    """
    names = report_to or []
    if isinstance(names, str):
        names = [names]
    if {"mlflow", "all"}.isdisjoint(names):
        return
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    run_id = os.environ.get("MLFLOW_RUN_ID")
    if uri:
        _ask_mlflow(uri, run_id, os.environ.get("MLFLOW_EXPERIMENT_ID"))
    elif run_id:
        raise UserError(
            f"MLFLOW_RUN_ID {run_id}: expected MLFLOW_TRACKING_URI, too, as each run has an MLflow "
            "database of its own without it; set it, or unset MLFLOW_RUN_ID"
        )


@functools.cache  # the runs of a set ask once: a server that fails later does not fail them
def _ask_mlflow(uri: str, run_id: str | None, experiment_id: str | None) -> None:
    server = "start the server, or change MLFLOW_TRACKING_URI, or leave out --report_to mlflow"
    if uri.startswith(("http://", "https://")) and not hub.answers(uri):
        raise UserError(f"--report_to mlflow: {uri} does not answer; {server}")
    with _variables({**_QUIET, **_FIRST_REQUEST}):
        import mlflow

        client = mlflow.MlflowClient(uri)
        try:
            if run_id:
                advice = "change or unset MLFLOW_RUN_ID"
                client.get_run(run_id)
            if experiment_id:
                advice = "change or unset MLFLOW_EXPERIMENT_ID"
                client.get_experiment(experiment_id)
            advice = server
            if not uri.startswith("sqlite:"):  # which would be created
                client.search_experiments(max_results=1)
        except Exception as error:  # also of requests, SQLAlchemy and the SDK of Databricks
            reason = first_line(error) or type(error).__name__
            raise UserError(f"--report_to mlflow: {uri}: {reason:.300}; {advice}") from error


class Trackers(TrainerCallback):
    """Calls the trackers of a trainer; they stay open after the training, for the test scores.

    A tracker that raises an error is left out from there on.

    Attributes:
        metrics: Of the finished run; its test scores are logged when the trackers are closed.
    """

    metrics: Metrics | None = None
    _facts: tuple[Any, ...] = ()  # arguments, state and control of the training, on rank 0

    def __init__(self, variables: dict[str, str]) -> None:
        self._variables = variables  # of the training, not of the requests before it
        self._trackers: dict[str, Any] = {}

    def take_over(self, trainer: Trainer) -> None:
        """Take the trackers of a trainer, which then calls only this callback."""
        for name, kind in _KINDS.items():
            tracker = trainer.pop_callback(kind)
            if type(tracker) is library.MLflowCallback:  # not a subclass, such as DagsHub's
                tracker = _MLflow()  # type: ignore[no-untyped-call]
            elif type(tracker) is library.WandbCallback:
                tracker = _Wandb()  # type: ignore[no-untyped-call]
            if tracker is not None:
                self._trackers[name] = tracker
        trainer.add_callback(self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the trackers."""
        if state.is_world_process_zero:
            self._facts = args, state, control
        args.run_name = args.run_name or Path(args.output_dir).name
        args.trackio_static_space_id = False  # after a training for TRACKIO_SPACE_ID: another Space
        _set_defaults(self._variables)
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
            self._call("on_log", logs=without_none(scores))
        self._call("on_train_end")

    def _call(self, event: str, **kwargs: Any) -> None:
        if not self._facts:  # not rank 0, or the training has not begun
            return
        for name, tracker in list(self._trackers.items()):
            try:
                with contextlib.redirect_stdout(None):  # trackio prints
                    getattr(tracker, event)(*self._facts, **kwargs)
            except Exception as error:  # of any library: a tracker costs its curves only
                del self._trackers[name]
                logging.getLogger("finetune").warning(  # which is also shown of a run of a set
                    "warning: --report_to %s: %.300s; its curves end here, the training continues",
                    name,
                    masked(first_line(error) or type(error).__name__),
                )
                os.environ.update(_FIRST_REQUEST)
                with contextlib.suppress(Exception), contextlib.redirect_stdout(None):
                    tracker.on_train_end(*self._facts)


class _MLflow(library.MLflowCallback):
    """The library's callback, which waits for the answers of the server: the library's sends the
    curves from threads, and does not learn that they have failed.
    """

    def on_train_begin(self, args: Any, *facts: Any, **kwargs: Any) -> None:
        """Start an MLflow run, or continue the one of this directory."""
        record = Path(args.output_dir) / _MLFLOW_RUN
        _choose_mlflow_run(record)
        super().on_train_begin(args, *facts, **kwargs)  # type: ignore[no-untyped-call]
        files.write_whole(record, _active_run().info.run_id)

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: Any = None,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Log the numbers of an entry of the history."""
        import mlflow

        numbers = {}
        for name, value in logs.items():
            if isinstance(value, (int, float)):
                numbers[re.sub(r"[^0-9A-Za-z_\-. :/]", "_", name)] = value
        mlflow.log_metrics(numbers, step=state.global_step, synchronous=True)


class _Wandb(library.WandbCallback):
    """The library's callback, in a run that ends with the training and is continued by a resume."""

    def on_train_begin(self, args: Any, *facts: Any, **kwargs: Any) -> None:
        """Start a run, unless the user has one, or continue the one of this directory."""
        import wandb

        self.is_owner = wandb.run is None
        if self.is_owner:
            record = Path(args.output_dir) / _WANDB_RUN
            if not record.exists():
                files.write_whole(record, os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4))
            mode: Any = os.environ["WANDB_MODE"]
            wandb.init(  # which reads variables only once in a process
                dir=os.environ["WANDB_DIR"],
                id=record.read_text(encoding="utf-8"),
                mode=mode,
                name=args.run_name,
                project=os.environ.get("WANDB_PROJECT") or args.project,
                resume="allow",
                settings=_WANDB_SETTINGS,
            )
        super().on_train_begin(args, *facts, **kwargs)  # type: ignore[no-untyped-call]

    def on_train_end(self, *facts: Any, **kwargs: Any) -> None:
        """End the run."""
        import wandb

        if self.is_owner:
            wandb.finish()


def _active_run() -> Any:
    """Return the active MLflow run of this process; None without one, or without MLflow."""
    mlflow = sys.modules.get("mlflow")
    if mlflow is None:
        return None
    return mlflow.active_run()


def _choose_mlflow_run(record: Path) -> None:
    """Set the variables that choose the MLflow run of a training.

    It is the one of the resumed training, or the one of the user, or a child of it if that has the
    curves of another training.
    """
    import mlflow

    previous = None
    if record.exists():
        previous = record.read_text(encoding="utf-8")
    active = mlflow.active_run()
    chosen = os.environ.get("MLFLOW_RUN_ID")
    if active is not None:
        chosen = active.info.run_id
    if previous is not None and chosen in (None, previous):
        with contextlib.suppress(mlflow.MlflowException):  # deleted, or of another server
            mlflow.get_run(previous)
            os.environ["MLFLOW_MAX_LOG_PARAMS"] = "0"  # those of the first start are final
            if active is None:
                os.environ["MLFLOW_RUN_ID"] = previous
        return
    if chosen is None:
        return
    parent = mlflow.get_run(chosen)
    if "output_dir" not in parent.data.params:
        return
    if active is not None:
        os.environ["MLFLOW_NESTED_RUN"] = "true"
        return
    del os.environ["MLFLOW_RUN_ID"]
    os.environ["MLFLOW_EXPERIMENT_ID"] = parent.info.experiment_id
    tags = json.loads(os.environ.get("MLFLOW_TAGS") or "{}")
    os.environ["MLFLOW_TAGS"] = json.dumps({**tags, "mlflow.parentRunId": chosen})


def _set_defaults(defaults: dict[str, str]) -> None:
    for name, value in defaults.items():
        os.environ[name] = os.environ.get(name) or value


@contextlib.contextmanager
def _variables(defaults: dict[str, str]) -> Iterator[None]:
    """Set environment variables that are not set, and restore all at the end of the block."""
    environment = dict(os.environ)
    _set_defaults(defaults)
    try:
        yield
    finally:
        for name in set(os.environ) - set(environment):
            if name in defaults or name.startswith(("MLFLOW_", "WANDB_")):  # they set some, too
                del os.environ[name]
        os.environ.update(environment)


@contextlib.contextmanager
def tracking(directory: Path) -> Iterator[Trackers]:
    """Give the trackers of a training in a directory, and close them at the end of the block."""
    directory = directory.resolve()
    run_of_user = _active_run()
    variables = {
        "TENSORBOARD_LOGGING_DIR": str(directory / "tensorboard"),
        "TRACKIO_DIR": str(directory / "trackio"),
        "WANDB_CACHE_DIR": str(directory / "wandb"),
        "WANDB_DIR": str(directory),
        **_QUIET,
        **_WANDB,
    }
    with tempfile.TemporaryDirectory() as links, _variables(variables):
        os.environ["WANDB_LOG_MODEL"] = "false"  # models are sent by `push`
        requests = dict(_REQUESTS)
        if run_of_user is None:  # mlflow 3.17 refuses a directory
            # a path that a URL can have: SQLAlchemy 2.0 ends it at a `?`, 2.1 also decodes `%41`
            link = Path(links) / "run"
            link.symlink_to(directory)
            requests["MLFLOW_TRACKING_URI"] = f"sqlite:///{link}/{_DATABASE}"
        for name, module in list(sys.modules.items()):
            if name.startswith("trackio") and hasattr(module, "TRACKIO_DIR"):  # of import (0.43)
                vars(module)["TRACKIO_DIR"] = Path(os.environ["TRACKIO_DIR"])
        trackers = Trackers(requests)
        try:
            yield trackers
        except BaseException:
            trackers.metrics = None
            _end_mlflow_run(run_of_user)
            raise
        finally:
            trackers.close()
            _end_mlflow_run(run_of_user)  # of a tracker that failed when it began


def _end_mlflow_run(run_of_user: Any) -> None:
    """End the MLflow run of a training as failed, not one of the user around it."""
    if _active_run() is not run_of_user:
        with contextlib.suppress(Exception):  # the server may be the reason
            sys.modules["mlflow"].end_run("FAILED")
