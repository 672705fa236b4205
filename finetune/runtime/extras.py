"""Packages of the extra ``check``, which the base does not install."""

from __future__ import annotations

from importlib.util import find_spec

from finetune.errors import UserError
from finetune.runtime.version import DISTRIBUTION

NEAR, LANGUAGES = "datasketch", "py3langid"


def require(flag: str, *packages: str) -> None:
    """Refuse a flag that needs packages which are not installed.

    Raises:
        UserError: With the command that installs them.
    """
    if missing := [name for name in packages if find_spec(name) is None]:
        raise UserError(
            f"{flag} needs {' and '.join(missing)}: pip install '{DISTRIBUTION}[check]'"
        )
