"""Whether the installed libraries are those that this project was tested with.

The ranges stand in ``pyproject.toml`` and are read from the metadata of the installed package. Of
these libraries private members are relied on, see :mod:`finetune.runtime.libraries`: outside the
range one of them may be gone, or do something else, without an error. No library is imported.
"""

from __future__ import annotations

import functools
import warnings
from importlib import metadata

from finetune.runtime.version import DISTRIBUTION

#: Whose private members are relied on.
LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "evaluate", "huggingface_hub")


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


@functools.cache
def warn_once() -> None:
    """Warn of libraries outside the tested ranges, once in this process."""
    for sentence in untested():
        warnings.warn(sentence, stacklevel=4)  # the line that called `finetune.train`
