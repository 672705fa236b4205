"""Engines that compute the logits of an ONNX model: ONNX Runtime and OpenVINO, both on the CPU."""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
from joblib import cpu_count

from finetune.errors import RunError, UserError, first_line, suggestion
from finetune.predicting.files import MODEL, ExportFacts
from finetune.predicting.inference import Batch, Session
from finetune.runtime.importing import require_packages

ENGINES = ("torch", "onnxruntime", "openvino")


def require_engine(engine: str) -> None:
    """Raise a ``UserError`` if an engine is unknown, or that says how to install it."""
    if engine not in ENGINES:
        raise UserError(
            f"--engine {engine}: expected {', '.join(ENGINES)}{suggestion(engine, ENGINES)}"
        )
    if engine != "torch":
        extra = "onnx" if engine == "onnxruntime" else engine
        require_packages(f"--engine {engine}", engine, extra=extra)


class OnnxSession(Session):
    """The model of an export, loaded by an engine. Several threads may call it at once.

    Args:
        directory: That of the export.
        facts: Those of the export.
        engine: ``onnxruntime`` or ``openvino``.
        workers: How many calls are computed at once, each on one core; 0 for one call at a time on
            ``OMP_NUM_THREADS``, or else all cores of this process.
        bf16: Whether OpenVINO may compute in bf16 where the processor has it.

    Attributes:
        inputs: The names of the inputs of the model.

    Raises:
        UserError: If the engine cannot load the model.
    """

    def __init__(
        self,
        directory: Path,
        facts: ExportFacts,
        engine: str = "onnxruntime",
        workers: int = 0,
        *,
        bf16: bool = False,
    ) -> None:
        path = directory / MODEL
        threads = 1
        if not workers:
            variable = os.environ.get("OMP_NUM_THREADS", "")
            threads = (int(variable) if variable.isdecimal() else 0) or int(cpu_count())
        try:
            if engine == "onnxruntime":
                self._run = _onnxruntime(path, threads)
            else:
                self._run = _openvino(path, threads, max(1, workers), bf16)
        except Exception as error:  # the errors of ONNX Runtime have no base class
            raise UserError(f"{path}: {engine} cannot load it: {first_line(error)}") from error
        self.inputs = facts.inputs
        self._engine = engine

    def __call__(self, batch: Batch) -> np.ndarray:
        """Return the logits of a batch, see :class:`Session`."""
        inputs = {name: np.asarray(batch[name]) for name in self.inputs}
        try:
            return np.asarray(self._run(inputs), np.float32)
        except Exception as error:
            reason = first_line(error)
            raise RunError(f"{self._engine} cannot compute this model: {reason}") from error


def _onnxruntime(path: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors
    if os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE":
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    return lambda inputs: session.run(["logits"], inputs)[0]


def _openvino(path: Path, threads: int, streams: int, bf16: bool) -> Any:
    import openvino

    core = openvino.Core()
    has_bf16 = bf16 and "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    settings = {
        "INFERENCE_PRECISION_HINT": "bf16" if has_bf16 else "f32",
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": threads * streams,
    }
    model = core.compile_model(str(path), "CPU", settings)
    requests = threading.local()  # a request computes one batch at a time

    def run(inputs: dict[str, np.ndarray]) -> Any:
        if not hasattr(requests, "of_thread"):
            requests.of_thread = model.create_infer_request()
        return requests.of_thread.infer(inputs)["logits"].copy()

    return run
