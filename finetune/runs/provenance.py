"""Where the code and the model of a run come from, and which process writes it."""

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from finetune.runs.records import MANIFEST, METRICS, Process
from finetune.runtime import __version__, distributed
from finetune.runtime.files import hash_file
from finetune.runtime.importing import HOUSE

#: The libraries that affect the results.
_LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "evaluate", "scikit-learn")
#: Entries of the configuration that may change with a message.
REPORTED_CHANGES = {
    "launch",
    "gradient_accumulation_steps",
    "commit",
    "finetune",
    "python",
    *_LIBRARIES,
}


def find_versions() -> dict[str, str]:
    """Return the versions of this package, Python and the libraries that affect the results."""
    import torch

    versions = {"finetune": __version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        versions[name] = version(name)
    versions["torch"] = str(torch.__version__)  # with its build, such as +cu130
    return versions


def find_git_revision() -> str | None:
    """Return the revision of the checkout of the toolkit; None if it is installed."""
    if not (HOUSE / ".git").exists() or not shutil.which("git"):
        return None
    command = ["git", "-C", str(HOUSE), "--no-optional-locks", "describe", "--always", "--dirty"]
    process = subprocess.run([*command, "--abbrev=12"], capture_output=True, text=True, check=False)
    return process.stdout.strip() or None


def describe_process() -> Process:
    """Return host, id and job of this process."""
    return Process(
        host=platform.node(),
        pid=os.getpid(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        job=distributed.job(),
    )


def hash_model_files(directory: Path) -> dict[str, str]:
    """Return the hashes of files of a local model, but its weights: the checkpoint has them."""
    hashes = {}
    for path in sorted(directory.glob("*")):
        is_ours = path.name in (MANIFEST, METRICS)
        if path.suffix in (".json", ".txt", ".model") and not is_ours:
            hashes[path.name] = hash_file(path)[:16]
    return hashes
