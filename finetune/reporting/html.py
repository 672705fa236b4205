"""Pages that need nothing but themselves: no network, no script, every text escaped."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from finetune.reporting import wording
from finetune.runtime.files import write_whole

_LONGEST_TEXT = 1200
_LARGEST_IMAGE = 16_384  # bytes


def write(path: Path, template: str, content: Mapping[str, Any]) -> None:
    """Fill the template of that name in ``templates/`` and write it, whole or not at all.

    Args:
        path: Of the page.
        template: Its name, without suffixes.
        content: What the template names.
    """
    environment = Environment(
        loader=PackageLoader("finetune.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    for function in (wording.score, wording.digits, wording.rounded, wording.percent):
        environment.filters[function.__name__] = function
    environment.filters["words"] = wording.name
    write_whole(path, environment.get_template(f"{template}.html.jinja").render(content))


def excerpt(text: str) -> str:
    """Return the first 1,200 characters, without blank lines; a page shows line breaks."""
    text = re.sub(r"\s*\n\s*", "\n", text)
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"{text[:_LONGEST_TEXT]} … ({len(text):,} characters)"


def inlined(jpeg: bytes | None) -> str | None:
    """Return the address of a small image that holds all of it; None of none, or of a large one."""
    if not isinstance(jpeg, bytes) or len(jpeg) > _LARGEST_IMAGE:
        return None
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"
