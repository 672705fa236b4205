"""Detect other packages named ``recipes`` or ``metrics``; they are reported, never imported.

Another package of that name may come first on the import path, may already be imported, or may
have been installed into the same directory, where the later one wins. The toolkit's own packages
lie beside ``finetune``: in a checkout every file there, else those in its installation record.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import sys
from importlib.machinery import PathFinder
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType

from finetune.errors import UserError
from finetune.runtime import import_path
from finetune.runtime.version import DISTRIBUTION, __version__

HOUSE = Path(__file__).resolve().parents[2]
#: The pattern that finds the recipes and the metrics.
PACKAGES = {"recipes": "[!_]*.py", "metrics": "*/*.py"}


def files(package: str, *, ours: bool = True) -> list[Path]:
    """Return the files of ``recipes`` or ``metrics``, sorted: either ours or all others."""
    record = _recorded()
    return sorted(
        path
        for path in (HOUSE / package).glob(PACKAGES[package])
        if package == "recipes" or path.stem == path.parent.name
        if ours == (record is None or path.relative_to(HOUSE).as_posix() in record)
    )


@functools.cache
def found() -> tuple[str, ...]:
    """Return a warning for each package of the same name that will not be imported."""
    sentences = []
    for package in PACKAGES:
        if (place := _first_on_path(package)) not in (None, HOUSE / package):
            by_path = f"; to run a recipe from it, give its path: {place}/NAME.py"
            sentences.append(
                f"{place} is another package named '{package}'; it shadows the toolkit's "
                f"{HOUSE / package} on the import path and is not imported"
                f"{by_path if package == 'recipes' else ''}"
            )
        if strangers := files(package, ours=False):
            who = _installed_by(f"{package}/")
            sentences.append(
                f"{HOUSE / package} also holds files that {DISTRIBUTION} did not install "
                f"({', '.join(path.name for path in strangers)}{who and ' of '}{who}): they are "
                f"neither listed nor imported; install {DISTRIBUTION} into its own environment"
            )
    return tuple(sentences)


def overwritten() -> list[str]:
    """Return a message for each of our files that was overwritten or removed."""
    sentences = []
    for name, digest in (_recorded() or {}).items():
        path, installed = HOUSE / name, f"{DISTRIBUTION} {__version__} installed"
        if not path.exists():
            what = f"{path} is missing; {installed} it"
        elif _digest(path) != digest:
            who = _installed_by(name) or "something"
            what = f"{path} is not the file that {installed}: {who} overwrote it"
        else:
            continue
        sentences.append(
            f"{what}. Install {DISTRIBUTION} into its own environment, or uninstall the other "
            f"package and run: pip install --force-reinstall --no-deps {DISTRIBUTION}"
        )
    return sentences


def claim() -> tuple[str, ...]:
    """Import the toolkit's ``recipes``, unless this process has already imported it.

    Returns:
        A warning for each package of the same name that is not imported; none if the toolkit's
        package was already imported.

    Raises:
        UserError: if another ``recipes`` is already imported, or if our files were overwritten.
    """
    if sentences := overwritten():
        raise UserError(*sentences)
    if (loaded := sys.modules.get("recipes")) is not None:
        places = {Path(place).resolve() for place in getattr(loaded, "__path__", [])}
        if HOUSE / "recipes" in places:
            return ()
        where = getattr(loaded, "__file__", None) or ", ".join(map(str, places)) or "nowhere"
        raise UserError(
            f"another package named 'recipes' is already imported, from {where}; the toolkit's is "
            f"{HOUSE / 'recipes'}, and a process can import only one. Remove the other from the "
            "path (PYTHONPATH, the current directory) or rename it, and restart Python; the "
            "command line, python -m finetune, does not import it"
        )
    told = found()
    load_file("recipes", HOUSE / "recipes" / "__init__.py")
    return told


def load_file(name: str, path: Path, source: bytes | None = None) -> ModuleType:
    """Import a file, or the ``source`` that was read from it, as the module ``name``."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look the module up by its name
    try:
        if source is None:
            spec.loader.exec_module(module)
        else:
            exec(compile(source, path, "exec"), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _first_on_path(package: str) -> Path | None:
    """Return the directory or file that ``import PACKAGE`` would load; None if there is none."""
    if package in sys.modules:  # whatever it is, it is found there; `claim` judges it
        return None
    spec = PathFinder.find_spec(package, import_path.forgotten)
    if spec is None or spec.origin is None:
        spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:  # a folder without `__init__.py` runs no code
        return None
    origin = Path(spec.origin).resolve()
    return origin.parent if origin.name.startswith("__init__.") else origin


@functools.cache
def _recorded() -> dict[str, str] | None:
    """Return the sha256 of our files in ``recipes/`` and ``metrics/``; None in a checkout."""
    for distribution in distributions(name=DISTRIBUTION, path=[str(HOUSE)]):
        recorded = {
            file.as_posix(): file.hash.value
            for file in distribution.files or ()
            if file.parts[0] in PACKAGES and file.hash is not None
        }
        if recorded:  # there is none where the installation only points to a checkout
            return recorded
    return None


def _installed_by(name: str) -> str:
    """Return the other distributions that installed a file of this name; empty if none did."""
    return ", ".join(
        f"{other.metadata['Name']} {other.version}"
        for other in distributions(path=[str(HOUSE)])
        if other.metadata["Name"] != DISTRIBUTION
        and any(file.as_posix().startswith(name) for file in other.files or ())
    )


def _digest(path: Path) -> str:
    """Return the hash of a file in the format of an installation record."""
    digest = hashlib.sha256(path.read_bytes()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
