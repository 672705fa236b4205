"""Sets of runs that share their splits: the seeds of a training, and searches.

The package is callable: ``finetune.search(...)`` is :func:`finetune.search.search.search`.
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from finetune.runtime.importing import require_packages

SET = "set.json"  # a directory that has it is a set of runs


def is_set(path: str | Path) -> bool:
    """Return whether a directory has a set of runs."""
    return (Path(path).expanduser() / SET).exists()


def require_optuna() -> None:
    """Raise a ``UserError`` that says how to install Optuna, unless it is installed."""
    require_packages("search", "optuna", extra="search")


class _Callable(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        require_optuna()
        from finetune.search.search import search

        return search(*args, **options)


sys.modules[__name__].__class__ = _Callable
