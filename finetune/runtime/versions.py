"""Whether the installed libraries are those that this project was tested with.

The ranges stand in ``pyproject.toml`` and are read from the metadata of the installed package. Of
these libraries private members are relied on (``tests/library_members.py`` lists them): outside the
range one of them may be gone, or do something else, without an error. No library is imported.
"""

from __future__ import annotations

import warnings
from importlib import metadata

from finetune.runtime.version import DISTRIBUTION

#: Whose private members are relied on.
LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "evaluate", "huggingface_hub")
told = False  # whether this process has been warned


def untested() -> list[str]:
    """Return a sentence for each library whose version is outside the tested range."""
    from packaging.specifiers import SpecifierSet

    found = []
    for name, tested in ranges().items():
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # importing it says so
        if not SpecifierSet(tested).contains(installed, prereleases=True):
            found.append(
                f"{name} {installed} is outside the tested range {tested}: figures may change "
                f"without an error; pip install '{name}{tested}'"
            )
    return found


def ranges() -> dict[str, str]:
    """Return the tested range of each library; none in a checkout that was never installed."""
    from packaging.requirements import Requirement

    try:
        wanted = map(Requirement, metadata.requires(DISTRIBUTION) or [])
    except metadata.PackageNotFoundError:
        return {}
    return {
        name: ",".join(sorted(map(str, each.specifier), reverse=True))  # >= before <
        for each in wanted
        if (name := each.name.replace("-", "_")) in LIBRARIES
    }


def once() -> list[str]:
    """Return :func:`untested` to the first who asks in this process, and nothing to the others."""
    global told
    first, told = not told, True
    return untested() if first else []


def warn_once(stacklevel: int) -> None:
    """Warn of what :func:`once` returns; a ``stacklevel`` of 1 is the line that calls this."""
    for sentence in once():
        warnings.warn(sentence, stacklevel=stacklevel + 1)
