"""What every process needs, whatever it does: ranks, threads, precision, the Hub, files."""

from importlib.util import find_spec

from finetune.errors import UserError

__version__ = "0.1.0"
#: The name to install by; on the package index `finetune` is another project.
DISTRIBUTION = "trainer-recipes"


def require_packages(flag: str, *packages: str) -> None:
    """Refuse a flag that needs packages which are not installed.

    Raises:
        UserError: With the command that installs them.
    """
    if missing := [name for name in packages if find_spec(name) is None]:
        raise UserError(
            f"{flag} needs {' and '.join(missing)}: pip install '{DISTRIBUTION}[check]'"
        )
