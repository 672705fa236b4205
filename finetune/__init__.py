"""Fine-tune classifiers on ``transformers.Trainer``, the same way however it is launched.

    import finetune
    run = finetune.train("yelp", embedded=True)                 # the whole path, in this process
    run = finetune.launch("yelp", num_processes=2, embedded=True)   # the same, in worker processes
    run.metrics["test"]
    finetune.predict(run, ["a warm and funny film"])            # a frame out

The names are imported when they are first used: ``import finetune`` costs nothing.
"""

from finetune.runtime import import_path as import_path

# isort: split
import importlib
from typing import TYPE_CHECKING, Any

from finetune.runtime.version import __version__ as __version__

if TYPE_CHECKING:
    from finetune.errors import UserError
    from finetune.pipeline.check import Check, check
    from finetune.pipeline.compare import Comparison, compare
    from finetune.pipeline.evaluate import Evaluation, evaluate
    from finetune.pipeline.launch import launch
    from finetune.pipeline.predict import FilePrediction, predict, predict_file
    from finetune.pipeline.report import Report, report
    from finetune.pipeline.train import train
    from finetune.recipe import ImageClassification, Recipe, TextClassification, option
    from finetune.runs.run import Run

_HOME = {
    "Check": "finetune.pipeline.check",
    "Comparison": "finetune.pipeline.compare",
    "Evaluation": "finetune.pipeline.evaluate",
    "FilePrediction": "finetune.pipeline.predict",
    "ImageClassification": "finetune.recipe",
    "Recipe": "finetune.recipe",
    "Report": "finetune.pipeline.report",
    "Run": "finetune.runs.run",
    "TextClassification": "finetune.recipe",
    "UserError": "finetune.errors",
    "check": "finetune.pipeline.check",
    "compare": "finetune.pipeline.compare",
    "evaluate": "finetune.pipeline.evaluate",
    "launch": "finetune.pipeline.launch",
    "option": "finetune.recipe",
    "predict": "finetune.pipeline.predict",
    "predict_file": "finetune.pipeline.predict",
    "report": "finetune.pipeline.report",
    "train": "finetune.pipeline.train",
}
__all__ = [
    "Check",
    "Comparison",
    "Evaluation",
    "FilePrediction",
    "ImageClassification",
    "Recipe",
    "Report",
    "Run",
    "TextClassification",
    "UserError",
    "check",
    "compare",
    "evaluate",
    "launch",
    "option",
    "predict",
    "predict_file",
    "report",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'finetune' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
