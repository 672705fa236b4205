"""``python -m finetune compare RUN RUN...``: compare runs on the same test rows.

    python -m finetune compare runs/yelp runs/yelp.1
    python -m finetune compare runs/a runs/b runs/c --output comparison.html

Each run is compared with the first: a table here, and a page with the rows on which they differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from finetune.cli.parser import Parser, load_run
from finetune.errors import counted


def main(words: Sequence[str]) -> int:
    """``finetune compare RUN RUN... [--output PAGE]``."""
    parser = Parser("compare", __doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="directories of runs, two or more")
    parser.add_argument(
        "--output",
        metavar="PAGE",
        help="the page, which is replaced (default: comparison.html, or comparison.1.html and so "
        "on where that is there already)",
    )
    parser.add_trust_recipe()
    arguments = parser.parse_args(words)
    parser.refuse_launcher()

    from finetune.cli import console
    from finetune.pipeline.compare import compare
    from finetune.reporting import tables

    names = (f"comparison{f'.{n}' * (n > 0)}.html" for n in itertools.count())
    page = arguments.output or next(name for name in names if not Path(name).exists())
    runs = [load_run(path, arguments.trust_recipe) for path in arguments.runs]
    comparison = compare(runs, page)
    console.show(comparison.scores(comparison.headline))
    for sentence in comparison.verdicts:
        console.say(f"\n{sentence}")
    if comparison.settings:
        console.say()
        console.show(tables.settings(comparison.names, comparison.settings))
    differing = counted(len(comparison.disagreements), "row")
    console.say(f"\npredictions differ on {differing}: see {page}")
    return 0
