"""Exports of runs: ONNX models that answer without torch, and the engines that run them.

The package is callable: ``finetune.export(...)`` is :func:`finetune.export.create.export`. Reading
an export imports neither torch nor transformers.
"""

import sys
from types import ModuleType
from typing import Any

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


class _Callable(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        from finetune.export.create import export

        return export(*args, **options)


sys.modules[__name__].__class__ = _Callable
