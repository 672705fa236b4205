"""The field's own terms: phrases that read as translated stay out of what users see."""

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

#: A phrase, and what to write in its place.
INSTEAD = {
    r"intervals? of 95": "95% confidence intervals",
    r"fine-tuned(,)? (has )?more\b": "difference to baseline",
    r"speed of the steps": "throughput",
    r"rows? a second": "samples/s",
    r"tokens? a second": "tokens/s",
    r"peak of (the devices in )?matrix products": "measured matmul peak",
    r"what is fast here": "fastest on this device",
    r"fp32`? is exact": "for full precision",
    r"to look at:": "report:",
    r"made again": "regenerated",
    r"the verb says it|the launcher says it": "not accepted: the subcommand implies it",
    r"could not be had|cannot be had|be had\b": "cannot be loaded",
    r"[Tt]hree ways on|the ways on": "Options",
    r"so far is the": "mean gap between confidence and accuracy",
    r"in vain": "timed out",
    r"has not the memory": "out of memory",
    r"look(ing|ed|s)? for garbage": "garbage collection paused",
    r"model eats": "tokenized features",
    r"[Ff]ast by itself|on by itself": "enabled by default",
    r"honest": "evaluation protocol",
    r"hangs? on\b": "depends on",
    r"\b[Cc]arv(e|ed|ing)\b": "split off",
    r"\b[Ss]urest\b": "most confident",
    r"\b[Pp]ictures?\b": "images",
    r"so maniet?h|so many?eth": "every n-th",
    r"\bof its kin\b|and its kin": "and similar models",
    r"goes? on there|to go on with": "continue",
    r"likely wrong": "label may be wrong",
}
FILES = [
    path
    for pattern in (
        "README.md",
        "CONTRIBUTING.md",
        "docs/**/*.md",
        "finetune/**/*.py",
        "finetune/**/*.jinja",
        "recipes/*.py",
        "metrics/**/*.py",
        "metrics/**/*.md",
        "examples/*.py",
        "notebooks/*.ipynb",
    )
    for path in sorted(ROOT.glob(pattern))
]


def test_there_is_something_to_read() -> None:
    assert len(FILES) >= 120


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_old_phrases_stay_out(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [
        f"line {number}: '{match[0]}': write '{instead}'"
        for number, line in enumerate(lines, start=1)
        for phrase, instead in INSTEAD.items()
        if (match := re.search(phrase, line))
    ]
    assert not found, "\n".join(found)
