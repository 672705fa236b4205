"""``python -m finetune compare RUN RUN...``: is one run better than another, and where?

    python -m finetune compare runs/yelp runs/yelp.1
    python -m finetune compare runs/a runs/b runs/c --output comparison.html

Each run is compared with the first, on the same test rows: a table, and a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.commands.parser import Parser
from finetune.errors import UserError
from finetune.run import Run

if TYPE_CHECKING:
    from finetune.results.comparison import Comparison

_ROWS = 30


def main(words: Sequence[str]) -> int:
    """``finetune compare RUN RUN... [--output PAGE]``."""
    parser = Parser("compare", __doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="directories of runs, two or more")
    parser.add_argument(
        "--output", default="comparison.html", metavar="PAGE", help="default: comparison.html"
    )
    given = parser.parse_args(words)
    if len(given.runs) < 2:
        raise UserError("compare: expected two runs or more")
    page = Path(given.output).expanduser()
    if not page.absolute().parent.is_dir():
        raise UserError(f"--output {page}: no such directory: {page.parent}")
    if page.is_dir():
        raise UserError(f"--output {page} is a directory: name a file, like {page}/comparison.html")
    compare([Run.load(each) for each in given.runs], page)
    return 0


def compare(runs: Sequence[Run], page: Path) -> Comparison:
    """Print the table and write the page.

    Args:
        runs: Two or more; the first is what the others are compared with.
        page: Where it is written; one that is there is replaced.

    Raises:
        UserError: if their test rows or their classes are not the same.
    """
    from finetune.commands import console
    from finetune.results import comparison, curves, html

    found = comparison.of(runs)
    headline = runs[0].headline
    if not headline:
        raise UserError(f"{runs[0].path} has no metric that is a number, nothing to compare")
    _table(found, headline)
    overlaid = curves.overlaid(
        {str(run.path): run.manifest["history"] for run in runs}, f"eval_{headline[-1]}"
    )
    verdicts = _verdicts(found, headline)
    html.write(
        page,
        "compare",
        {
            "title": f"{len(runs)} runs on the same rows",
            "verdicts": verdicts,
            "found": found,
            "metrics": [name for name in found.metrics[0] if all(name in m for m in found.metrics)],
            "plots": [{"svg": overlaid.svg(), "alt": overlaid.alt}] if overlaid else [],
            "rows": [_row(found, index) for index in found.disagreements[:_ROWS]],
            "sections": ["Scores", *(["Curves"] if overlaid else []), "Settings", "Disagreements"],
        },
    )
    for sentence in verdicts:
        console.say(f"\n{sentence}")
    if found.settings:
        console.say()
        console.block("settings that differ", {n: " | ".join(v) for n, v in found.settings.items()})
    console.say(f"\nthe predictions differ on {len(found.disagreements):,} rows: see {page}")
    return found


def _table(found: Comparison, headline: Sequence[str]) -> None:
    from finetune.commands import console

    lines = []
    for number, name in enumerate(found.names):
        lines.append([name, *console.with_intervals(found.metrics[number], headline)])
        if number:
            gaps = found.differences[number - 1]
            lines.append(
                [f"  more than {found.names[0]}", *console.with_intervals(gaps, headline, "+")]
            )
    console.say(f"the same {found.rows:,} test rows, with intervals of 95%")
    console.table(["", *(cell for name in headline for cell in (name, ""))], lines)


def _verdicts(found: Comparison, headline: Sequence[str]) -> list[str]:
    from finetune.results import wording

    said = []
    for number, name in enumerate(found.names[1:]):
        gaps = found.differences[number]
        said.append(wording.between(name, found.names[0], gaps[headline[0]], headline[0]))
        if found.tests:
            test = found.tests[number]
            said[-1] += (
                f" McNemar's test of the accuracy: {test.only_second:,} rows only {name} gets "
                f"right, {test.only_first:,} only {found.names[0]}, p = {test.p_value:.3g}."
            )
    return said


def _row(found: Comparison, index: int) -> dict[str, Any]:
    from finetune.results import html

    first = found.tables[0].iloc[index]
    said = []
    for table in found.tables:
        row = table.iloc[index]
        probability = row.get(f"probability of {row['prediction']}")
        is_class = probability is not None
        said.append(
            {
                "prediction": row["prediction"] if is_class else f"{row['prediction']:.4g}",
                "probability": probability,
                "right": is_class and row["prediction"] == row["label"],
            }
        )
    text = html.excerpt(first["text"]) if "text" in first else None
    return {"id": first["id"], "text": text, "label": first["label"], "said": said}
