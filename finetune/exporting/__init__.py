"""Exports of runs: ONNX models that answer without torch, and the engines that run them.

Reading an export imports neither torch nor transformers.
"""

from finetune.errors import UserError, suggestion
from finetune.runtime.importing import require_packages

FOLDER = "export"  # the default directory of an export, in that of its run
ENGINES = ("torch", "onnxruntime", "openvino")


def require_engine(engine: str) -> None:
    """Raise a ``UserError`` if an engine is unknown, or that says how to install it."""
    if engine not in ENGINES:
        expected = f"expected {', '.join(ENGINES)}{suggestion(engine, ENGINES)}"
        raise UserError(f"--engine {engine}: {expected}")
    if engine != "torch":
        extra = "onnx" if engine == "onnxruntime" else engine
        require_packages(f"--engine {engine}", engine, extra=extra)
