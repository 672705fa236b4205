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
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from transformers import Trainer, TrainerCallback
from transformers.integrations import integration_utils as library

from finetune.errors import UserError, masked
from finetune.runs.manifest import Metrics
from finetune.runtime import activity, files, hub

_DATABASE = "mlflow.db"
_MLFLOW_RUN = "mlflow-run"  # the file with the id of the MLflow run, which a resume continues
_IN_RUN = {"TENSORBOARD_LOGGING_DIR": "tensorboard", "TRACKIO_DIR": "trackio"}
# what the user has set of the variables here and below stays
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING"}
#: How long a request to an MLflow server may take, which is 15 minutes by default: before the
#: training at most 10 s, in it 12 s if the server refuses it, and 52 s if it does not answer; after
#: one that failed 2 s, to end the MLflow run.
_FIRST_REQUEST = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "4"}
_REQUESTS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
_LAST_REQUESTS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "2"}


def require_mlflow(report_to: Any) -> None:
    """Require that the MLflow server of the user answers, and has the experiment and the run of
    ``MLFLOW_EXPERIMENT_ID`` and ``MLFLOW_RUN_ID``; nothing is asked about the database of a run.

    Raises:
        UserError: With the answer of the server.
    """
    names = [report_to] if isinstance(report_to, str) else report_to or []
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    run_id = os.environ.get("MLFLOW_RUN_ID", "")
    if not {"mlflow", "all"}.isdisjoint(names) and (uri or run_id):
        _ask_mlflow(uri, run_id, os.environ.get("MLFLOW_EXPERIMENT_ID", ""))


@functools.cache  # the runs of a set ask once: a server that fails later does not fail them
def _ask_mlflow(uri: str, run_id: str, experiment_id: str) -> None:
    server = "start the server, or change MLFLOW_TRACKING_URI, or leave out --report_to mlflow"
    if not uri:
        raise UserError(
            f"MLFLOW_RUN_ID {run_id}: expected MLFLOW_TRACKING_URI, too: without it each run has "
            "an MLflow database of its own; set it, or unset MLFLOW_RUN_ID"
        )
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
            raise UserError(f"--report_to mlflow: {uri}: {_first_line(error)}; {advice}") from error


class Trackers(TrainerCallback):
    """Calls the trackers of a trainer; they stay open after the training, for the test scores.

    A tracker that raises an error is left out from there on.

    Attributes:
        metrics: Of the finished run; its test scores are logged when the trackers are closed.
    """

    metrics: Metrics | None = None
    _trackers: list[TrainerCallback] = []
    _facts: tuple[Any, ...] = ()  # arguments, state and control of the training

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack  # closed after the trackers
        self._last = {n: v for n, v in _LAST_REQUESTS.items() if not os.environ.get(n)}

    def take(self, trainer: Trainer) -> None:
        """Take the trackers of a trainer, which then calls only this callback."""
        self._trackers = []
        for kind in library.INTEGRATION_TO_CALLBACK.values():
            tracker = trainer.pop_callback(kind)
            if type(tracker) is library.MLflowCallback:
                tracker = _SynchronousMLflow()  # type: ignore[no-untyped-call]
            if tracker is not None:
                self._trackers.append(tracker)
        trainer.add_callback(self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the trackers; a resumed training continues its MLflow run."""
        self._facts = args, state, control
        args.run_name = args.run_name or Path(args.output_dir).name
        for tracker in self._trackers:
            if isinstance(tracker, library.MLflowCallback):
                self._stack.enter_context(_mlflow_variables(Path(args.output_dir)))
        self._call("on_train_begin", *self._facts, **kwargs)
        for tracker in self._trackers:
            if isinstance(tracker, _SynchronousMLflow) and tracker.note:
                activity.say(tracker.note)

    def on_log(self, *facts: Any, **kwargs: Any) -> None:
        """Log an entry of the history."""
        self._call("on_log", *facts, **kwargs)

    def close(self) -> None:
        """Log the test scores with the ends of their intervals, and close the trackers."""
        if not self._facts:
            return
        if self.metrics is not None:
            scores = {f"test_{name}": value for name, value in self.metrics.test.items()}
            for name, interval in self.metrics.statistics.metrics.items():
                scores |= {f"test_{name}_{end}": interval[end] for end in ("low", "high")}
            logs = {n: v for n, v in scores.items() if v is not None}
            self._call("on_log", *self._facts, only=_takes_scores, logs=logs)
        self._call("on_train_end", *self._facts, only=_takes_scores)

    def _call(
        self,
        event: str,
        *facts: Any,
        only: Callable[[TrainerCallback], bool] = lambda tracker: True,
        **kwargs: Any,
    ) -> None:
        for tracker in filter(only, list(self._trackers)):
            try:
                with contextlib.redirect_stdout(None):  # trackio prints
                    getattr(tracker, event)(*facts, **kwargs)
            except Exception as error:  # of any library: a tracker costs its curves only
                self._trackers.remove(tracker)
                logging.getLogger("finetune").warning(  # which is also shown of a run of a set
                    "warning: --report_to %s: %s; its curves end here, the training continues",
                    _name(tracker),
                    masked(_first_line(error)),
                )
                os.environ.update(self._last)
                with contextlib.suppress(Exception), contextlib.redirect_stdout(None):
                    tracker.on_train_end(*facts)


# The other events, for trackers that are closed with the training: the metrics of `predict`, which
# some log, have no step, and checkpoints stay in the run.
def _forwarded(event: str) -> Callable[..., None]:
    def forward(self: Trackers, *facts: Any, **kwargs: Any) -> None:
        self._call(event, *facts, only=_takes_no_scores, **kwargs)

    return forward


for _event in set(dir(TrainerCallback)) - set(vars(Trackers)):
    if _event.startswith("on_"):
        setattr(Trackers, _event, _forwarded(_event))


def _takes_scores(tracker: TrainerCallback) -> bool:
    """Return whether a tracker can stay open after the training."""
    kinds = library.TensorBoardCallback, library.TrackioCallback, library.MLflowCallback
    return isinstance(tracker, kinds)


def _takes_no_scores(tracker: TrainerCallback) -> bool:
    return not _takes_scores(tracker)


def _name(tracker: TrainerCallback) -> str:
    kinds = library.INTEGRATION_TO_CALLBACK.items()
    return next(name for name, kind in kinds if isinstance(tracker, kind))


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:300]


class _SynchronousMLflow(library.MLflowCallback):
    """The library's callback, which waits for the answers of the server: the library's sends the
    curves from threads, and does not learn that they have failed.
    """

    note = ""

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Start an MLflow run, or continue the one of this directory."""
        if not state.is_world_process_zero:
            return
        import mlflow

        record = Path(args.output_dir) / _MLFLOW_RUN
        with _variables({}):
            self.note = _choose_mlflow_run(mlflow, record)
            super().on_train_begin(args, state, control, model)  # type: ignore[no-untyped-call]
        active = mlflow.active_run()
        assert active is not None
        files.write_whole(record, active.info.run_id)

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
        if not state.is_world_process_zero:
            return
        import mlflow

        numbers = {}
        for name, value in logs.items():
            if isinstance(value, (int, float)):
                numbers[re.sub(r"[^0-9A-Za-z_\-. :/]", "_", name)] = value
        mlflow.log_metrics(numbers, step=state.global_step, synchronous=True)


def _choose_mlflow_run(mlflow: Any, record: Path) -> str:
    """Choose the MLflow run of a training, in the environment: the one of the resumed training, the
    one of the user, or a child of it if that has the curves of another training. Return a note.
    """
    previous = record.read_text(encoding="utf-8") if record.exists() else None
    active = mlflow.active_run()
    chosen = os.environ.get("MLFLOW_RUN_ID") if active is None else active.info.run_id
    if previous is not None and chosen in (None, previous):
        with contextlib.suppress(mlflow.MlflowException):  # deleted, or of another server
            mlflow.get_run(previous)
            os.environ["MLFLOW_MAX_LOG_PARAMS"] = "0"  # those of the first start are final
            if active is None:
                os.environ["MLFLOW_RUN_ID"] = previous
        return ""
    if chosen is None:
        return ""
    parent = mlflow.get_run(chosen)
    if "output_dir" not in parent.data.params and "epoch" not in parent.data.metrics:
        return ""
    if active is not None:
        os.environ["MLFLOW_NESTED_RUN"] = "true"
    else:
        del os.environ["MLFLOW_RUN_ID"]
        os.environ["MLFLOW_EXPERIMENT_ID"] = parent.info.experiment_id
        tags = json.loads(os.environ.get("MLFLOW_TAGS") or "{}")
        os.environ["MLFLOW_TAGS"] = json.dumps({**tags, "mlflow.parentRunId": chosen})
    return (
        f"the MLflow run {chosen} has the curves of another training: those of this one are in a "
        "child run"
    )


@contextlib.contextmanager
def _variables(defaults: dict[str, str]) -> Iterator[None]:
    """Set variables of the environment that are not set, and restore all in the end."""
    environment = dict(os.environ)
    for name, value in defaults.items():
        os.environ[name] = os.environ.get(name) or value
    try:
        yield
    finally:
        for name in set(os.environ) - set(environment):
            if name in defaults or name.startswith("MLFLOW_"):  # MLflow sets some, too
                del os.environ[name]
        os.environ.update(environment)


@contextlib.contextmanager
def _plain_path(directory: Path) -> Iterator[Path]:
    """Give the path of a directory that has no character with a meaning in a URL: SQLAlchemy 2.0
    ends the path of a database at a ``?``, 2.1 also decodes ``%41``.
    """
    if quote(str(directory)) == str(directory):
        yield directory
        return
    with tempfile.TemporaryDirectory() as links:
        link = Path(links) / "run"
        link.symlink_to(directory)
        yield link


@contextlib.contextmanager
def _mlflow_variables(directory: Path) -> Iterator[None]:
    """Set where and how MLflow logs, unless the user has an active run."""
    import mlflow

    with _plain_path(directory.resolve()) as path:
        variables = dict(_REQUESTS)
        if mlflow.active_run() is None:  # mlflow 3.17 refuses a directory
            variables["MLFLOW_TRACKING_URI"] = f"sqlite:///{path}/{_DATABASE}"
        with _variables(variables):
            yield


@contextlib.contextmanager
def tracking(directory: Path) -> Iterator[Trackers]:
    """Give the trackers of a training in a directory, and close them at the end of the block."""
    variables = {name: str(directory.resolve() / folder) for name, folder in _IN_RUN.items()}
    mlflow: Any = sys.modules.get("mlflow")
    run_of_user = None if mlflow is None else mlflow.active_run()
    with _variables({**variables, **_QUIET}), contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("trackio") and hasattr(module, "TRACKIO_DIR"):  # of import (0.43)
                vars(module)["TRACKIO_DIR"] = Path(os.environ["TRACKIO_DIR"])
        trackers = Trackers(stack)
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
    mlflow: Any = sys.modules.get("mlflow")
    active = None if mlflow is None else mlflow.active_run()
    if active is None or (run_of_user and active.info.run_id == run_of_user.info.run_id):
        return
    with contextlib.suppress(Exception):  # the server may be the reason
        mlflow.end_run("FAILED")
