"""Sets of runs that share their splits: the seeds of a training, and searches."""

from pathlib import Path

from finetune.runtime.importing import require_packages

SET = "set.json"  # a directory that has it is a set of runs


def is_set(path: str | Path) -> bool:
    """Return whether a directory has a set of runs."""
    return (Path(path).expanduser() / SET).exists()


def require_optuna() -> None:
    """Raise a ``UserError`` that says how to install Optuna, unless it is installed."""
    require_packages("search", "optuna", extra="search")
