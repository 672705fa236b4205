"""List the runs and the sets of runs in a directory; torch is not imported."""

import itertools
from pathlib import Path

from finetune.errors import UserError, counted
from finetune.recipe.run import Run
from finetune.reporting.tables import format_number
from finetune.runs.records import MANIFEST, Manifest
from finetune.sets import is_set


def list_runs(directory: str | Path) -> dict[str, str]:
    """Return status and test scores of each run in a directory, and the size of each set of runs.

    Raises:
        UserError: If there are none.
    """
    lines = {}
    for path in sorted(Path(directory).expanduser().glob("*/")):
        if is_set(path):
            lines[path.name] = f"set of {counted(len(list(path.glob(f'*/{MANIFEST}'))), 'run')}"
        elif Manifest.exists_in(path):
            run = Run(path)
            try:
                words = [f"{run.status:<11}"]
                if run.status == "finished":
                    for name, value in itertools.islice(run.metrics.test.items(), 3):
                        words.append(f"{name} {format_number(value)}")
                lines[path.name] = "  ".join(words)
            except UserError as error:
                lines[path.name] = str(error)
    if not lines:
        raise UserError(f"list {directory}: no runs in this directory")
    return lines
