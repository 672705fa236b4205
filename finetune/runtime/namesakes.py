"""Other packages named ``recipes`` or ``metrics``: reported, never imported by the toolkit.

Both names are common. Another package of that name may come first on the import path (a folder in
the current directory, an entry of ``PYTHONPATH``), may be imported already, or may have been
installed into the same directory, where the files of the two lie among each other and the later
one wins. The toolkit's own packages are those beside it; which files there are its own is told by
the record of its installation. In a checkout all are.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

from finetune.errors import UserError
from finetune.runtime.version import DISTRIBUTION, __version__

HOUSE = Path(__file__).resolve().parents[2]
PACKAGES = ("recipes", "metrics")


def is_ours(path: Path) -> bool:
    """Return whether a file of ``recipes/`` or ``metrics/`` beside the package is the toolkit's."""
    record = _recorded()
    return record is None or path.relative_to(HOUSE).as_posix() in record


@functools.cache
def found() -> tuple[str, ...]:
    """Return a sentence for each namesake that is not going to be imported.

    The path is searched once: the command line calls this before it takes the current directory
    off the path.
    """
    sentences = []
    for package in PACKAGES:
        if (place := _first_on_path(package)) not in (None, HOUSE / package):
            sentences.append(
                f"{place} is another package named '{package}'; it comes before the toolkit's "
                f"{HOUSE / package} on the import path and is not imported here"
                + f"; run a recipe in it by its path, {place}/NAME.py"
                * (package == "recipes")
            )
        if strangers := _strangers(package):
            who = _installed_by(f"{package}/")
            sentences.append(
                f"{HOUSE / package} also holds files that {DISTRIBUTION} did not install "
                f"({', '.join(strangers)}{who and ' of '}{who}): they are neither listed nor "
                f"imported; install {DISTRIBUTION} into an environment of its own"
            )
    return tuple(sentences)


def overwritten() -> list[str]:
    """Return a sentence for each file of ours that something else wrote over or removed."""
    sentences = []
    for name, digest in (_recorded() or {}).items():
        path = HOUSE / name
        if not path.exists():
            what = f"{path} is missing; {DISTRIBUTION} {__version__} installed it"
        elif _sha256(path) != digest:
            who = _installed_by(name) or "something"
            what = f"{path} is not the file that {DISTRIBUTION} {__version__} installed: {who} "
            what += "overwrote it"
        else:
            continue
        sentences.append(
            f"{what}. Install {DISTRIBUTION} into an environment of its own, or uninstall the "
            f"other and pip install --force-reinstall --no-deps {DISTRIBUTION}"
        )
    return sentences


def claim() -> tuple[str, ...]:
    """Make the toolkit's ``recipes`` the one that this process imports, if it has imported none.

    What is imported is found in ``sys.modules`` by whoever asks for it next, so one package of the
    name is all that a process can have.

    Returns:
        What is to be told: a sentence for each namesake that is not imported; nothing if the
        toolkit's package was there already.

    Raises:
        UserError: if another ``recipes`` is imported already, or if files of ours were overwritten.
    """
    if sentences := overwritten():
        raise UserError(*sentences)
    loaded = sys.modules.get("recipes")
    if loaded is not None:
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
    spec = importlib.util.spec_from_file_location("recipes", HOUSE / "recipes" / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["recipes"] = package
    spec.loader.exec_module(package)
    return told


def _first_on_path(package: str) -> Path | None:
    """The directory or file that ``import PACKAGE`` would take; None if there is none.

    A folder without ``__init__.py`` holds no code that an import would run.
    """
    if package in sys.modules:  # whatever it is, it is found there; `claim` judges it
        return None
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin).resolve()
    return origin.parent if origin.name.startswith("__init__.") else origin


def _strangers(package: str) -> list[str]:
    """Names of recipe files, or of metric folders, beside ours that are not ours."""
    directory = HOUSE / package
    if package == "recipes":
        candidates: Iterator[Path] = directory.glob("[!_]*.py")
    else:
        candidates = (path / f"{path.name}.py" for path in directory.iterdir() if path.is_dir())
    return sorted(path.name for path in candidates if path.exists() and not is_ours(path))


@functools.cache
def _recorded() -> dict[str, str] | None:
    """The sha256 of each file of ours in ``recipes/`` and ``metrics/``; None in a checkout."""
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
    """The other distributions that installed a file of this name; empty if none did."""
    others = [
        f"{other.metadata['Name']} {other.version}"
        for other in distributions(path=[str(HOUSE)])
        if other.metadata["Name"] != DISTRIBUTION and _holds(other, name)
    ]
    return ", ".join(others)


def _holds(distribution: Distribution, name: str) -> bool:
    return any(file.as_posix().startswith(name) for file in distribution.files or ())


def _sha256(path: Path) -> str:
    digest = hashlib.sha256(path.read_bytes()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
