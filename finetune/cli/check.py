"""``python -m finetune check RECIPE``: what is wrong or suspicious, before training.

    python -m finetune check text --dataset tickets.csv --model NAME
    python -m finetune check text --dataset tickets.csv --model NAME --deep
    python -m finetune check text --dataset tickets.csv --model NAME --json

The data and the options are read and checked as a training with these flags would. Without --deep
nothing is trained and no weights are loaded; no run is written. Exit status: 0, training would
work; 2, training would refuse to start; 3, training would work, and something is suspicious.

The flags of a recipe: python -m finetune RECIPE --help
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from finetune.cli import console
from finetune.cli.parser import Parser, import_at_once, recipe_and_flags
from finetune.config.settings import Settings, require_hub
from finetune.errors import UserError, counted
from finetune.recipe import catalog

if TYPE_CHECKING:
    from finetune.pipeline.check import Check

#: Classes of which the table of splits has all; of more it has the rarest and the most frequent.
_FEW_CLASSES = 6


def main(words: Sequence[str]) -> int:
    """``finetune check RECIPE FLAGS``."""
    parser = Parser("check", __doc__)
    parser.add_argument(
        "--deep",
        action="store_true",
        help="also near duplicates, words and columns that reveal the label, labels that are "
        "probably wrong, and languages; about two minutes for 25,000 long texts",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of the page")
    parser.add_argument(
        "--suspects",
        metavar="FILE.csv",
        help="write the rows that are suspected, to be corrected in a spreadsheet and given back "
        "to a training: --relabel FILE.csv, --exclude FILE.csv",
    )
    if not words or {"-h", "--help"} & set(words):
        parser.print_help()
        return 0 if words else 2
    parser.refuse_launcher()
    recipe, flags = recipe_and_flags(words, "check ")
    typed, flags = parser.parse_known_args(flags)
    from finetune.pipeline import check

    try:
        require_hub(catalog.find(recipe), flags)
        import_at_once("datasets", "finetune.training.arguments")
        from finetune.pipeline.suspects import of_findings, refuse_path

        console.quiet()
        suspects = None if typed.suspects is None else Path(typed.suspects).expanduser()
        if suspects is not None:
            refuse_path(suspects)
        chosen = Settings.from_command_line(recipe, flags)
        result = check.examine(chosen, deep=typed.deep)
        if suspects is not None:
            count = of_findings(suspects, result.findings, chosen.recipe)
            console.tell(f"{suspects}: {counted(count, 'row')} to look at")
    except UserError as error:
        if not typed.json:
            raise
        result = check.refused(error.mistakes)
    if typed.json:
        print(json.dumps(check.as_json(result), indent=2, ensure_ascii=False))
    else:
        _show(result, recipe)
    return result.status


def _show(result: Check, recipe: str) -> None:
    """Print the splits, the findings from the worst, and the verdict."""
    if result.splits:
        console.say(f"check {recipe}: {result.task.replace('_', ' ')}")
        console.table(["", "rows", "share", "classes"], _splits(result))
        if result.split_how:
            console.say(f"splits: {result.split_how}")
        console.say()
    for finding in result.findings:
        console.say(f"{finding.severity:<8} {finding.message}")
        if finding.fix:
            console.say(f"{'':<8} -> {finding.fix}")
    if result.findings:
        console.say()
    steps = f", {counted(result.steps, 'step')}" if result.steps is not None else ""
    severities = [finding.severity for finding in result.findings]
    errors, warnings = (severities.count(severity) for severity in ("error", "warning"))
    verdict = {
        0: f"nothing suspicious: training would work{steps}",
        2: f"training would refuse: {counted(errors, 'error')}",
        3: f"training would work{steps}; {counted(warnings, 'warning')} to look at first",
    }[result.status]
    console.say(verdict)
    if result.status != 2:
        console.say(f"to train: {result.command}")


def _splits(result: Check) -> list[list[str]]:
    """Return the rows of the table of splits."""
    total = sum(facts.rows for facts in result.splits.values())
    lines = []
    for split, facts in result.splits.items():
        ordered = sorted((count, name) for name, count in facts.classes.items())
        counts = ", ".join(f"{name} {count:,}" for name, count in facts.classes.items())
        if len(ordered) > _FEW_CLASSES:
            (least, rarest), (most, commonest) = ordered[0], ordered[-1]
            counts = f"{len(ordered):,} classes: {rarest} {least:,} to {commonest} {most:,}"
        lines.append([split, f"{facts.rows:,}", f"{facts.rows / max(1, total):.0%}", counts])
    return lines
