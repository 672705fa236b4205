"""Other packages named ``recipes`` or ``metrics``: reported, never imported by the toolkit.

Another package of that name may come first on the import path, may be imported already, or may
have been installed into the same directory, where the later one wins. The toolkit's own are those
beside it; in a checkout that is every file there, else those in the record of its installation.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import sys
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType

from finetune.errors import UserError
from finetune.runtime.version import DISTRIBUTION, __version__

HOUSE = Path(__file__).resolve().parents[2]
#: How the files of what each package holds are found.
PACKAGES = {"recipes": "[!_]*.py", "metrics": "*/*.py"}


def files(package: str, *, ours: bool = True) -> list[Path]:
    """Return the files of recipes or metrics beside the package, sorted: ours or all others."""
    record = _recorded()
    return sorted(
        path
        for path in (HOUSE / package).glob(PACKAGES[package])
        if package == "recipes" or path.stem == path.parent.name
        if ours == (record is None or path.relative_to(HOUSE).as_posix() in record)
    )


@functools.cache
def found() -> tuple[str, ...]:
    """Return a sentence for each namesake that is not going to be imported.

    The path is searched once: the command line calls this before it takes the current directory
    off the path.
    """
    sentences = []
    for package in PACKAGES:
        if (place := _first_on_path(package)) not in (None, HOUSE / package):
            by_path = f"; run a recipe in it by its path, {place}/NAME.py"
            sentences.append(
                f"{place} is another package named '{package}'; it comes before the toolkit's "
                f"{HOUSE / package} on the import path and is not imported here"
                f"{by_path if package == 'recipes' else ''}"
            )
        if strangers := files(package, ours=False):
            who = _installed_by(f"{package}/")
            sentences.append(
                f"{HOUSE / package} also holds files that {DISTRIBUTION} did not install "
                f"({', '.join(path.name for path in strangers)}{who and ' of '}{who}): they are "
                f"neither listed nor imported; install {DISTRIBUTION} into an environment of its "
                "own"
            )
    return tuple(sentences)


def overwritten() -> list[str]:
    """Return a sentence for each file of ours that something else wrote over or removed."""
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
            f"{what}. Install {DISTRIBUTION} into an environment of its own, or uninstall the "
            f"other and pip install --force-reinstall --no-deps {DISTRIBUTION}"
        )
    return sentences


def claim() -> tuple[str, ...]:
    """Make the toolkit's ``recipes`` the one that this process imports, if it has imported none.

    Returns:
        What is to be told: a sentence for each namesake that is not imported; nothing if the
        toolkit's package was there already.

    Raises:
        UserError: if another ``recipes`` is imported already, or if files of ours were overwritten.
    """
    if sentences := overwritten():
        raise UserError(*sentences)
    if (loaded := sys.modules.get("recipes")) is not None:
        places = {Path(place).resolve() for place in getattr(loaded, "__path__", [])}
        if HOUSE / "recipes" in places:
            return ()
        where = getattr(loaded, "__file__", None) or ", ".join(map(str, places)) or "nowhere"
        raise UserError(
            f"another package named 'recipes' is imported already, from {where}; the toolkit's is "
            f"{HOUSE / 'recipes'}, and a process has only one of a name. Take the other off the "
            "path (PYTHONPATH, the current directory) or rename it, and start Python again; the "
            "command line, python -m finetune, does not import it"
        )
    told = found()
    load_file("recipes", HOUSE / "recipes" / "__init__.py")
    return told


def load_file(name: str, path: Path) -> ModuleType:
    """Return the module in this file, imported under ``name`` wherever it lies."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look the module up by its name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _first_on_path(package: str) -> Path | None:
    """Return the directory or file that ``import PACKAGE`` would take; None if there is none."""
    if package in sys.modules:  # whatever it is, it is found there; `claim` judges it
        return None
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
    """As a record of an installation writes it."""
    digest = hashlib.sha256(path.read_bytes()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
