"""The toolkit's folders in the cache of ``datasets``; users may delete them at any time."""

from pathlib import Path

from finetune.errors import UserError
from finetune.runtime import hub


def directory(*names: str) -> Path:
    """Create a folder in the cache, such as ``finetune-files``, if it does not exist, and return
    its path.

    Raises:
        UserError: If the cache is not writable.
    """
    path = hub.caches()["datasets"].joinpath(*names)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(error) from error
    return path


def unwritable(error: OSError) -> UserError:
    """Return the ``UserError`` for a cache that is not writable."""
    return UserError(
        f"the cache {hub.caches()['datasets']} cannot be written ({error.strerror}): set HF_HOME "
        "or HF_DATASETS_CACHE to a directory that you can write to"
    )
