"""Packages of an extra, which the base does not install."""

from __future__ import annotations

from importlib.util import find_spec

from finetune.errors import UserError
from finetune.runtime.version import DISTRIBUTION

#: What the extra ``check`` installs.
NEAR, LANGUAGES = "datasketch", "py3langid"


def require(what: str, *packages: str) -> None:
    """Refuse what needs packages of the extra ``check`` that are not installed.

    Args:
        what: The flag that needs them.
        *packages: Their names, which those of their modules are too.

    Raises:
        UserError: with the command that installs them.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise UserError(
            f"{what}: {' and '.join(missing)} {verb} not installed; "
            f"pip install '{DISTRIBUTION}[check]'"
        )
