"""The versions of the libraries that the tests were run with; docs/versions.md has the table."""

from collections.abc import Iterator
from importlib.metadata import version

from packaging.version import Version

#: The lowest and the highest minor version.
TESTED = {
    "torch": ("2.13", "2.14"),
    "transformers": ("5.16", "5.24"),
    "accelerate": ("1.15", "1.15"),
    "datasets": ("5.2", "5.2"),
}


def describe_untested() -> Iterator[str]:
    """Yield a sentence for each library whose installed version is outside of the tested ones."""
    for name, (lowest, highest) in TESTED.items():
        installed = version(name)
        minor = ".".join(map(str, Version(installed).release[:2]))
        if not Version(lowest) <= Version(minor) <= Version(highest):
            tested = f"{lowest} to {highest}" if lowest != highest else lowest
            yield f"{name} {installed} is not tested with this toolkit (tested: {tested})"
