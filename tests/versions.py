"""Run the tests with the oldest and the newest supported libraries, and with two in between.

    python tests/versions.py                  # the acceptance suite in all; writes docs/versions.md
    python tests/versions.py oldest --quick   # the quick tests in one; writes nothing

Environments are made in ``.venv-versions/``, once for each content of ``pyproject.toml``. Torch has
a CPU build of 2.13.0 alone; another version is installed as it is on PyPI, with CUDA.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "docs" / "versions.md"
QUICK = "not slow and not processes and not trains"
SHOWN = ("transformers", "torch", "accelerate", "datasets", "huggingface_hub", "peft")


@dataclass(frozen=True)
class Row:
    """An environment: versions that are pinned, and how the others are chosen."""

    pins: tuple[str, ...]
    resolution: str = "highest"
    torch: str = "2.13.0"


ROWS = {
    "oldest": Row((), "lowest-direct"),
    "5.18": Row(("transformers==5.18.0", "huggingface_hub<2")),
    "5.21": Row(("transformers==5.21.1",)),
    "newest": Row(()),
    "torch-newest": Row((), torch="2.14.1"),
}


def environment(name: str) -> Path:
    """Return the interpreter of the environment of a row, and make it first if necessary."""
    row = ROWS[name]
    directory = ROOT / ".venv-versions" / name
    python = directory / "bin" / "python"
    made_of = directory / "pyproject.toml"
    pyproject = (ROOT / "pyproject.toml").read_text() + repr(row)
    if made_of.exists() and made_of.read_text() == pyproject:
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", directory], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"torch=={row.torch}", "uv"], check=True)
    # uv keeps the build of torch that is there if it is pinned
    pins = directory / "pins.txt"
    pins.write_text("\n".join([f"torch=={row.torch}", *row.pins]) + "\n")
    uv = [directory / "bin" / "uv", "pip", "install", "--quiet", "--python", python]
    uv += ["--resolution", row.resolution, "--constraint", pins, "-e", ".[embedded,dev]"]
    subprocess.run(uv, check=True, cwd=ROOT)
    made_of.write_text(pyproject)
    return python


def versions(python: Path) -> dict[str, str]:
    """Return the versions of the packages in :data:`SHOWN`."""
    (packages,) = python.parents[1].glob("lib/python3*/site-packages")
    installed = {
        found.name.lower().replace("-", "_"): found.version
        for found in distributions(path=[str(packages)])
    }
    return {name: installed.get(name, "") for name in SHOWN}


def run_tests(python: Path, *, quick: bool) -> tuple[str, bool]:
    """Run the tests, show their output, and return the line with their counts, and success."""
    tests = ["-m", QUICK] if quick else ["tests/acceptance"]
    command = [python, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *tests]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    counts = "no tests were run"
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        if re.search(r"\d+ (passed|failed|error)", line):
            counts = line.strip(" =\n")
    return counts, process.wait() == 0


def main() -> int:
    """Test the rows that are named, and return 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*ROWS, []], help="default: all")
    parser.add_argument("--quick", action="store_true", help="the quick tests; no table")
    options = parser.parse_args()
    lines = []
    all_passed = True
    for name in options.names or ROWS:
        python = environment(name)
        found = versions(python)
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in found.items())}", flush=True)
        counts, passed = run_tests(python, quick=options.quick)
        all_passed = all_passed and passed
        today = datetime.date.today().isoformat()
        lines.append(f"| {name} | {' | '.join(found.values())} | {counts} | {today} |")
        print(lines[-1], flush=True)
    if not options.quick:
        write(lines)
    return int(not all_passed)


def write(lines: list[str]) -> None:
    """Replace the rows of the table in docs/versions.md that were tested."""
    names = [line.split("|")[1] for line in lines]
    kept = []
    for line in TABLE.read_text().splitlines():
        if not line.startswith("|") or line.split("|")[1] not in names:
            kept.append(line)
    last = max(number for number, line in enumerate(kept) if line.startswith("|"))
    kept[last + 1 : last + 1] = lines
    TABLE.write_text("\n".join(kept) + "\n")


if __name__ == "__main__":
    sys.exit(main())
