"""Collect the wheels that `gpu_check.py` needs on a GPU machine without a network.

    python benchmarks/gpu_wheels.py wheels

The wheels are for Python 3.12 on x86-64 Linux, in the versions of `constraints.txt`: the
dependencies in `pyproject.toml` that are not in `PRESENT`, and what they need. The script prints
their total size and the command that installs them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from trees import ROOT

PYTHON = "3.12"
#: pip takes wheels of exactly these platforms; the numbers are those of glibc 2.5 to 2.39.
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(5, 40)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
MAX_MIB = 60
#: Packages of the GPU machine: those that it has for torch, transformers, peft, scikit-learn,
#: pandas, pyarrow and matplotlib.
PRESENT = {
    "accelerate",
    "certifi",
    "filelock",
    "fsspec",
    "huggingface-hub",
    "idna",
    "jinja2",
    "joblib",
    "matplotlib",
    "numpy",
    "packaging",
    "pandas",
    "pillow",
    "psutil",
    "pyarrow",
    "pyyaml",
    "safetensors",
    "scikit-learn",
    "scipy",
    "threadpoolctl",
    "torch",
    "tqdm",
    "transformers",
}


def missing(requirements: list[str]) -> list[str]:
    """Return the names of required packages that are not present, for Linux and Python 3.12."""
    machine = {"python_version": PYTHON, "sys_platform": "linux", "extra": ""}
    names = []
    for text in requirements:
        requirement = Requirement(text)
        is_needed = requirement.marker is None or requirement.marker.evaluate(machine)
        if is_needed and (name := canonicalize_name(requirement.name)) not in PRESENT:
            names.append(name)
    return names


def download(name: str, directory: Path) -> Path:
    """Download a wheel in the version of ``constraints.txt``, and return its path."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--implementation=cp"]
    command += [f"--python-version={PYTHON}", *(f"--platform={name}" for name in PLATFORMS)]
    command += ["--constraint", str(ROOT / "constraints.txt"), "--dest", str(directory), name]
    subprocess.run(command, check=True)
    stem = re.escape(name).replace(r"\-", "[-_.]")
    (wheel,) = (
        path for path in directory.glob("*.whl") if re.match(f"{stem}-", path.name, re.IGNORECASE)
    )
    return wheel


def requirements_of(wheel: Path) -> list[str]:
    """Return the requirements in the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(path)).get_all("Requires-Dist", [])


def main() -> str | None:
    """Download the wheels and return an error if they are too large."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, help="a folder, which may not have wheels yet")
    parser.add_argument("package", nargs="*", help="a present one that is too old there")
    options = parser.parse_args()
    directory = options.directory
    if any(directory.glob("*.whl")):
        return f"{directory} has wheels: name a folder without any"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [*missing(project["dependencies"]), *options.package]
    wheels: dict[str, Path] = {}
    while names:
        name = names.pop()
        if name not in wheels:
            wheels[name] = download(name, directory)
            names += missing(requirements_of(wheels[name]))
    mib = sum(wheel.stat().st_size for wheel in wheels.values()) / 2**20
    for name in sorted(wheels):
        print(f"{wheels[name].stat().st_size / 2**20:6.2f} MiB  {wheels[name].name}")
    print(f"{mib:6.2f} MiB in {len(wheels)} wheels. On the GPU machine:")
    print(f"pip install --no-index --no-deps {directory}/*.whl")
    return None if mib <= MAX_MIB else f"expected at most {MAX_MIB} MiB"


if __name__ == "__main__":
    sys.exit(main())
