"""``python -m finetune compare RUN RUN...``: compare runs on the same test rows.

    python -m finetune compare runs/yelp runs/yelp.1
    python -m finetune compare runs/a runs/b runs/c --output comparison.html

Each run is compared with the first: a table here, and a page with the rows on which they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from finetune.cli.parser import Parser, load_run
from finetune.errors import counted

if TYPE_CHECKING:
    from finetune.pipeline.compare import Comparison


def main(words: Sequence[str]) -> int:
    """``finetune compare RUN RUN... [--output PAGE]``."""
    parser = Parser("compare", __doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="directories of runs, two or more")
    parser.add_argument(
        "--output",
        default="comparison.html",
        metavar="PAGE",
        help="the page (default: comparison.html)",
    )
    parser.add_trust_recipe()
    arguments = parser.parse_args(words)
    parser.refuse_launcher()

    from finetune.pipeline.compare import compare

    runs = [load_run(path, arguments.trust_recipe) for path in arguments.runs]
    _show(compare(runs, arguments.output), arguments.output)
    return 0


def _show(comparison: Comparison, page: str) -> None:
    from finetune.cli import console

    lines = []
    for number, name in enumerate(comparison.names):
        lines.append(
            [name, *console.with_intervals(comparison.metrics[number], comparison.headline)]
        )
        if number:
            gaps = console.with_intervals(
                comparison.differences[number - 1], comparison.headline, "+"
            )
            lines.append([f"  difference to {comparison.names[0]}", *gaps])
    console.say(
        f"{counted(comparison.rows, 'test row')}, the same for all; 95% confidence intervals"
    )
    console.table(["", *console.two_each(comparison.headline)], lines)
    for sentence in comparison.verdicts:
        console.sentence(f"\n{sentence}")
    if comparison.settings:
        console.say()
        console.block(
            "settings that differ", {n: " | ".join(v) for n, v in comparison.settings.items()}
        )
    differing = counted(len(comparison.disagreements), "row")
    console.say(f"\npredictions differ on {differing}: see {page}")
