"""Fine-tune classifiers on ``transformers.Trainer``, the same way however it is launched.

    import finetune
    run = finetune.train("yelp", embedded=True)                     # trains in this process
    run = finetune.launch("yelp", num_processes=2, embedded=True)   # trains in two processes
    finetune.predict(run, ["a warm and funny film"])                # returns a DataFrame

Public names are imported on first use, so ``import finetune`` does not import torch.
"""

import os
import sys

if os.name == "nt":  # which has neither the locks nor the signals that are used
    raise ImportError(
        "finetune runs on Linux and macOS; on Windows use it in WSL (Windows Subsystem for Linux)"
    )

# `python -m finetune` puts the current directory first in `sys.path`, so a `csv.py` or a folder
# `wandb` there would shadow the installed module. A checkout of this package moves to the end.
if sys.argv[:1] == ["-m"]:
    directory = os.path.realpath(os.curdir)
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) != directory]
    if directory == os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir)):
        sys.path.append(directory)

# isort: split
import importlib
from typing import TYPE_CHECKING, Any

from finetune.runtime import __version__ as __version__

if TYPE_CHECKING:
    from finetune.errors import Diverged, RunError, UserError
    from finetune.exporting.create import export
    from finetune.exporting.predictor import Predictor
    from finetune.exporting.push import Push, push
    from finetune.pipeline.check import Check, check
    from finetune.pipeline.compare import Comparison, compare
    from finetune.pipeline.evaluate import Evaluation, evaluate
    from finetune.pipeline.predict import FilePrediction, predict, predict_file
    from finetune.pipeline.report import Report, report
    from finetune.pipeline.train import launch, train
    from finetune.predicting.files import Export
    from finetune.recipe import ImageRecipe, Recipe, TextRecipe, TokenRecipe, option
    from finetune.recipe.run import Run
    from finetune.recipe.scoring import Scoring
    from finetune.serving.app import create_app
    from finetune.sets.repeat import repeat
    from finetune.sets.run_set import RunSet
    from finetune.sets.search import search

#: The public names of each module. Type checkers find the types of the events in their module.
_MODULES = {
    "errors": "Diverged RunError UserError",
    "exporting.create": "export",
    "predicting.files": "Export",
    "exporting.predictor": "Predictor",
    "exporting.push": "Push push",
    "pipeline.check": "Check check",
    "pipeline.compare": "Comparison compare",
    "pipeline.evaluate": "Evaluation evaluate",
    "pipeline.events": "Advanced Event Finished Logged Noted Started",
    "pipeline.predict": "FilePrediction predict predict_file",
    "pipeline.report": "Report report",
    "pipeline.train": "launch train",
    "recipe": "ImageClassification ImageRecipe Recipe TextClassification TextRecipe TokenRecipe "
    "option",
    "recipe.scoring": "Scoring",
    "recipe.run": "Run",
    "serving.app": "create_app",
    "sets.repeat": "repeat",
    "sets.run_set": "RunSet",
    "sets.search": "search",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = [
    "Check",
    "Comparison",
    "Diverged",
    "Evaluation",
    "Export",
    "FilePrediction",
    "ImageRecipe",
    "Predictor",
    "Push",
    "Recipe",
    "Report",
    "Run",
    "RunError",
    "RunSet",
    "Scoring",
    "TextRecipe",
    "TokenRecipe",
    "UserError",
    "check",
    "compare",
    "create_app",
    "evaluate",
    "export",
    "launch",
    "option",
    "predict",
    "predict_file",
    "push",
    "repeat",
    "report",
    "search",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'finetune' has no attribute {name!r}")
    return getattr(importlib.import_module(f"finetune.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
