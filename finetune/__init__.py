"""Fine-tune classifiers on ``transformers.Trainer``, the same way however it is launched.

    import finetune
    run = finetune.train("yelp", embedded=True)                 # the whole path, in this process
    run = finetune.launch("yelp", num_processes=2, embedded=True)   # the same, in worker processes
    run.metrics["test"]

The names are imported when they are first used: ``import finetune`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from finetune.errors import UserError
    from finetune.launcher import launch, train
    from finetune.recipe import Recipe, TextClassification, option
    from finetune.run import Run

_HOME = {
    "Recipe": "finetune.recipe",
    "Run": "finetune.run",
    "TextClassification": "finetune.recipe",
    "UserError": "finetune.errors",
    "launch": "finetune.launcher",
    "option": "finetune.recipe",
    "train": "finetune.launcher",
}
__all__ = ["Recipe", "Run", "TextClassification", "UserError", "launch", "option", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'finetune' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
