"""Build the sdist and the wheel, and use both outside of the checkout.

    python tests/dist.py    # writes dist/

The wheel is made from the sdist, and that from a copy of the files that git tracks. It is installed
into an environment that has its declared requirements and nothing else; they are links to the
packages of this environment, so that torch is not downloaded again.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NAME = PROJECT["project"]["name"]
PACKAGES = ("finetune", "metrics", "recipes")
ADDED = ("PKG-INFO", "setup.cfg", f"{NAME.replace('-', '_')}.egg-info")  # by setuptools
QUICK_TESTS = [f"tests/test_{name}.py" for name in ("layout", "losses", "packaging", "recipe")]
RECIPE = """
from finetune import TextRecipe


class Tickets(TextRecipe):
    \"\"\"Which queue a ticket belongs to.\"\"\"

    dataset: str = "tickets.csv"
    model: str = "embedded:minilm"
"""
ENTRY_POINT = """
[project]
name = "tickets-recipes"
version = "1.0"

[project.entry-points."finetune.recipes"]
queues = "tickets_recipes:Tickets"
"""
#: Typed in an empty directory with `tickets.csv` and the recipe `mine.py`: words, expected output.
COMMANDS = {
    "--version": "finetune {version}",
    "yelp --embedded --dry_run --train_samples 64": "dry run",
    "text --dataset tickets.csv --model embedded:minilm --max_steps 2 --global_batch_size 8 "
    "--max_length 16 --metrics f1,matthews_correlation": "matthews_correlation",
    "report runs/text": "report.html",
    "predict runs/text --text 'I was charged twice'": "billing",
    "mine.py --dry_run": "dry run",
    "queues --dry_run": "dry run",
}


def run(*words: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    """Run a command without the variables of this environment, and return its output."""
    environ = {name: os.environ[name] for name in os.environ if not name.startswith("PYTHON")}
    print("$", shlex.join(map(str, words)), flush=True)
    result = subprocess.run(
        words,
        cwd=cwd,
        env=environ | variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if result.returncode:
        sys.exit(f"{result.stdout}\nexit status {result.returncode}")
    return result.stdout


def make_environment(directory: Path) -> Path:
    """Make an environment with pip, and return its folder of commands."""
    venv.create(directory, with_pip=True)
    return directory / "bin"


def tracked_files() -> list[str]:
    """Return the paths of the files that git tracks, and of new ones that it does not ignore."""
    listing = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return sorted(name for name in listing.split("\0") if (ROOT / name).is_file())


def build(source: Path, output: Path, builder: Path, *options: str) -> None:
    """Build a project with the backend in the environment of ``builder``."""
    python = builder / "python"
    run(python, "-m", "build", "--no-isolation", *options, "--outdir", output, source, cwd=output)


def require_equal(what: str, names: set[str], expected: set[str]) -> None:
    """Require that an archive has the expected files."""
    if names != expected:
        missing, unexpected = sorted(expected - names), sorted(names - expected)
        sys.exit(f"{what} lacks {missing}, has {unexpected}: see MANIFEST.in")


def compare_files(sdist: Path, wheel: Path, tracked: list[str]) -> None:
    """Require that the sdist has every tracked file, and the wheel every one of the packages."""
    with tarfile.open(sdist) as archive:
        members = [member.name.partition("/")[2] for member in archive if member.isfile()]
    names = {name for name in members if not name.startswith(ADDED)}
    require_equal("the sdist", names, set(tracked))
    with zipfile.ZipFile(wheel) as archive:
        members = archive.namelist()
    names = {name for name in members if ".dist-info/" not in name}
    require_equal("the wheel", names, {name for name in tracked if name.startswith(PACKAGES)})
    licenses = {name.partition(".dist-info/")[2] for name in members if "/licenses/" in name}
    require_equal("the metadata of the wheel", licenses, {"licenses/LICENSE"})


def link_requirements(site: Path, *extras: str) -> None:
    """Link what an installed distribution requires, and what that requires, into its folder."""
    pending = [(NAME, extras)]
    visited = set()
    while pending:
        name, wanted = pending.pop()
        if (name, wanted) in visited:
            continue
        visited.add((name, wanted))
        own = metadata.distributions(name=name, path=[str(site)])
        distribution = next(iter(own), None) or metadata.distribution(name)
        for line in distribution.requires or []:
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": e}) for e in ("", *wanted)):
                pending.append((requirement.name, tuple(requirement.extras)))
        for path in distribution.files or []:
            link = site / path.parts[0]
            if path.parts[0] not in ("..", "__pycache__") and not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(path.parts[0]))).resolve())


def use_wheel(wheel: Path, builder: Path, place: Path) -> None:
    """Run the commands with an installed wheel, and with recipes of a file and a package."""
    package, work = place / "package", place / "work"
    package.mkdir()
    (package / "pyproject.toml").write_text(ENTRY_POINT)
    (package / "tickets_recipes.py").write_text(RECIPE)
    build(package, place, builder, "--wheel")
    binaries = make_environment(place / "environment")
    wheels = [wheel, *place.glob("tickets_recipes-*.whl")]
    pip = [binaries / "python", "-m", "pip"]
    run(*pip, "uninstall", "--yes", "setuptools")  # of venv until Python 3.11, and too old
    run(*pip, "install", "--no-index", "--no-deps", *wheels)
    (site,) = binaries.parent.glob("lib/python3*/site-packages")
    link_requirements(site, "embedded")
    run(*pip, "check")
    work.mkdir()
    lines = ["text,label"]
    for number in range(60):
        lines += [f"I cannot log in since {number},account", f"charged twice on {number},billing"]
    (work / "tickets.csv").write_text("\n".join(lines))
    (work / "mine.py").write_text(RECIPE)
    version = metadata.version(NAME)
    for words, expected in COMMANDS.items():
        home = {"HF_HOME": str(place / "home"), "HF_HUB_OFFLINE": "1"}
        output = run(binaries / "finetune", *shlex.split(words), cwd=work, **home)
        if expected.format(version=version) not in output:
            sys.exit(f"{output}\nexpected {expected!r} in the output")


def main() -> None:
    """Write ``dist/`` if the archives pass all checks."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        source, output = place / "source", place / "dist"
        output.mkdir()
        tracked = tracked_files()
        for name in tracked:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
        builder = make_environment(place / "builder")
        requirements = ["build", *PROJECT["build-system"]["requires"]]
        run(builder / "python", "-m", "pip", "install", "--quiet", *requirements)
        build(source, output, builder)
        (sdist,) = output.glob("*.tar.gz")
        (wheel,) = output.glob("*.whl")
        compare_files(sdist, wheel, tracked)
        use_wheel(wheel, builder, place)
        with tarfile.open(sdist) as archive:
            archive.extractall(place, filter="data")
        unpacked = place / sdist.name.removesuffix(".tar.gz")
        quick = "not slow and not processes and not trains"
        print(run(sys.executable, "-m", "pytest", "-q", "-m", quick, *QUICK_TESTS, cwd=unpacked))
        shutil.rmtree(ROOT / "dist", ignore_errors=True)
        shutil.copytree(output, ROOT / "dist")
    for path in sorted((ROOT / "dist").iterdir()):
        print(f"dist/{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
