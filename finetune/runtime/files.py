"""Write files atomically and never through a link, and write standard JSON."""

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def replacing(path: Path, directory: Path | None = None) -> Iterator[Path]:
    """Yield the path of a new, empty file; at the end of the block, once its content is on the
    disk, it replaces ``path``.

    The file is in ``directory``, by default that of ``path``. Its name is random and its mode
    follows the umask. A link at ``path`` is replaced; its target is not changed. The path is
    absolute, because pyarrow takes a relative one with a colon, ``exp:1/a.parquet``, for a URI.
    """
    new = (directory or path.parent).absolute() / f".{path.name}.{secrets.token_hex(8)}.tmp"
    new.touch(exist_ok=False)
    try:
        yield new
        flush(new)
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def flush(path: Path) -> None:
    """Write a file or directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def write_whole(path: Path, text: str) -> None:
    """Write a text file atomically, so that a reader never sees half of it."""
    with replacing(path) as new:
        new.write_text(text, encoding="utf-8")


def to_json_values(content: Any) -> Any:
    """Return the content as it is read again from JSON: null for NaN and infinity, numbers for
    those of NumPy, and texts for other objects.
    """
    text = json.dumps(content, default=lambda value: getattr(value, "item", value.__str__)())
    return json.loads(text, parse_constant=lambda name: None)


def hash_file(path: Path, algorithm: Any = "sha256") -> str:
    """Return the digest of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
