"""Pages that need nothing but themselves: no network, no script, every text escaped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from finetune.reporting import wording
from finetune.runtime.files import write_whole

_LONGEST_TEXT = 1200


def write(path: Path, template: str, content: Mapping[str, Any]) -> None:
    """Fill a template and write it, whole or not at all.

    Args:
        path: Of the page.
        template: The name of one in ``templates/``.
        content: What it is filled with.
    """
    environment = Environment(
        loader=PackageLoader("finetune.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {
        "score": wording.score,
        "percent": wording.percent,
        "words": wording.name,
    }
    text = environment.get_template(f"{template}.html.jinja").render(content)
    write_whole(path, text)


def excerpt(text: str) -> str:
    """The first 1,200 characters."""
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"{text[:_LONGEST_TEXT]} … ({len(text):,} characters)"
