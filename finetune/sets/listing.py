"""List the runs and the sets of runs in a directory; torch is not imported."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finetune.errors import UserError, counted
from finetune.recipe.run import Run
from finetune.reporting.tables import format_number
from finetune.runs.records import MANIFEST, Manifest
from finetune.sets import is_set


def list_runs(directory: str | Path) -> dict[str, dict[str, Any]]:
    """Return facts about each run and each set of runs in a directory, by name.

    Returns:
        ``status`` and, of a finished run, ``test`` with its test scores; of a refit ``not_scored``,
        the reason. The status of a set is ``set``, and ``runs`` their number; that of a damaged run
        ``unreadable``, with ``error``.

    Raises:
        UserError: If there are none.
    """
    runs: dict[str, dict[str, Any]] = {}
    for path in sorted(Path(directory).expanduser().glob("*/")):
        if is_set(path):
            runs[path.name] = {"status": "set", "runs": len(list(path.glob(f"*/{MANIFEST}")))}
        elif Manifest.exists_in(path):
            run = Run(path)
            try:
                facts: dict[str, Any] = {"status": run.status}
                if run.manifest.not_scored:
                    facts["not_scored"] = run.manifest.not_scored
                elif run.status == "finished":
                    facts["test"] = run.metrics.test
            except UserError as error:
                facts = {"status": "unreadable", "error": str(error)}
            runs[path.name] = facts
    if not runs:
        raise UserError(f"list {directory}: no runs in this directory")
    return runs


def describe(facts: Mapping[str, Any]) -> str:
    """Return the facts about a run or a set of runs in one line."""
    if "runs" in facts:
        return f"set of {counted(facts['runs'], 'run')}"
    if "error" in facts:
        return str(facts["error"])
    words = [f"{facts['status']:<11}"]
    if "not_scored" in facts:
        words.append(facts["not_scored"])
    for name, value in itertools.islice(facts.get("test", {}).items(), 3):
        words.append(f"{name} {format_number(value)}")
    return "  ".join(words)
