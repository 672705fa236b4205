"""The toolkit's folders in the cache of ``datasets``; their content can be removed at any time."""

from pathlib import Path

from finetune.errors import UserError
from finetune.runtime import hub

FILES = "finetune-files"
TOKENIZED = "finetune-tokenized"
MEMORY = "finetune-memory"


def directory(*names: str) -> Path:
    """Return one of our folders, or one in it, which is made unless it is there.

    Raises:
        UserError: If the cache cannot be written.
    """
    path = hub.caches()["datasets"].joinpath(*names)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(error) from error
    return path


def unwritable(error: OSError) -> UserError:
    """Return the refusal of a cache that cannot be written."""
    return UserError(
        f"the cache {hub.caches()['datasets']} cannot be written ({error.strerror}): set HF_HOME "
        "or HF_DATASETS_CACHE to a directory of yours"
    )
