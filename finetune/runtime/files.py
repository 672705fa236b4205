"""Files that are written whole or not at all, and JSON that any parser reads."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader never sees half of it."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def to_json(content: Any, **options: Any) -> str:
    """Return JSON in which numbers that are not finite, which JSON lacks, are null.

    Args:
        content: What ``json.dumps`` takes.
        **options: Of ``json.dumps``.
    """
    try:
        return json.dumps(content, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_finite(content), allow_nan=False, **options)


def _finite(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {_finite(name): _finite(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(each) for each in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
