"""``python -m finetune check RECIPE``: what is wrong or suspicious, before training.

python -m finetune check text --dataset tickets.csv --model NAME
python -m finetune check text --dataset tickets.csv --model NAME --deep
python -m finetune check text --dataset tickets.csv --model NAME --json
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from finetune.cli import console, imports
from finetune.config.settings import Settings, peek
from finetune.errors import UserError, counted
from finetune.recipe import catalog
from finetune.runtime import distributed, hub

if TYPE_CHECKING:
    from finetune.pipeline.check import Check

_USAGE = """\
usage: python -m finetune check RECIPE [flags of the training] [--deep] [--json]
                                [--suspects FILE.csv]

Read and check the data and the options as a training with these flags would. Without --deep
nothing is trained and no weights are loaded; no run is written.

options
  --deep  also near duplicates, words and columns that reveal the label, labels that are
          probably wrong, languages, and time, memory and disk of the training, of which four
          steps are trained: two minutes for 25,000 long texts
  --json  one JSON document instead of the page
  --suspects FILE.csv
          write the rows that are suspected, to be corrected in a spreadsheet and given back
          to a training: --relabel FILE.csv, --exclude FILE.csv

exit status
  0  training would work
  2  training would refuse to start
  3  training would work; something is suspicious

The flags of a recipe: python -m finetune RECIPE --help
"""
#: Classes that the table of splits can name; of more it has the rarest and the most frequent.
_FEW_CLASSES = 6


def main(words: Sequence[str]) -> int:
    """``finetune check RECIPE FLAGS``."""
    if not words or {"-h", "--help"} & set(words[:1]):
        print(_USAGE, end="")
        return 0 if words else 2
    if distributed.under_launcher():
        raise UserError("check runs in one process: python -m finetune check RECIPE [flags]")
    if words[0].startswith("-"):
        raise UserError(
            "the name of a recipe comes first: python -m finetune check RECIPE [flags] "
            f"(available: {', '.join(catalog.names())})"
        )
    recipe, *flags = words
    if {"-h", "--help"} & set(flags):
        print(_USAGE, end="")
        return 0
    as_json = "--json" in flags
    try:
        result = _found(recipe, flags)
    except UserError as error:
        if not as_json:
            raise
        from finetune.pipeline import check

        result = check.refused(error.mistakes)
    if as_json:
        from finetune.pipeline import check

        print(json.dumps(check.as_json(result), indent=2, ensure_ascii=False))
    else:
        _show(result, recipe)
    return result.status


def _found(recipe: str, flags: list[str]) -> Check:
    """Run the check, and write the suspects if that is asked for."""
    suspects = _suspects(flags)
    deep = "--deep" in flags
    flags = [flag for flag in flags if flag not in ("--json", "--deep")]
    sources, _ = peek(catalog.find(recipe), flags) or (None, True)
    if sources is not None and not hub.missing(sources):
        hub.go_offline()
    imports.at_once("datasets", "finetune.training.arguments")

    from finetune.pipeline import check

    console.quiet()
    if suspects is not None:
        from finetune.pipeline.suspects import refuse_loss

        refuse_loss(suspects)
    chosen = Settings.from_command_line(recipe, flags, ("--deep", "--json", "--suspects"))
    result = check.examine(chosen, deep=deep)
    if suspects is not None:
        from finetune.pipeline.suspects import of_findings

        count = of_findings(suspects, result.findings, chosen.recipe)
        console.tell(f"{suspects}: {counted(count, 'row')} to look at")
    return result


def _suspects(flags: list[str]) -> Path | None:
    """Take ``--suspects FILE.csv`` out of the flags, and return the file.

    Raises:
        UserError: if it cannot be one.
    """
    for number, flag in enumerate(flags):
        word, has_value, value = flag.partition("=")
        if word == "--suspects":
            del flags[number]
            if not has_value and number < len(flags):
                value = flags.pop(number)
            path = Path(value).expanduser()
            is_file = path.suffix.lower() == ".csv" and not path.is_dir()
            if is_file and path.absolute().parent.is_dir():
                return path
            raise UserError(
                f"--suspects {path}: expected the name of a .csv in a directory that is there"
            )
    return None


def _show(result: Check, recipe: str) -> None:
    """Print the splits, the findings from the worst, and the verdict."""
    if result.splits:
        console.say(f"check {recipe}: {result.task.replace('_', ' ')}")
        console.table(*_table(result))
        if result.split_how:
            console.sentence(f"splits: {result.split_how}", indent=8)
        console.say()
    for finding in result.findings:
        console.sentence(f"{finding.severity:<8} {finding.message}", indent=9)
        if finding.fix:
            console.sentence(f"{'':<8} -> {finding.fix}", indent=12)
    if result.findings:
        console.say()
    steps = f", {counted(result.steps, 'step')}" if result.steps is not None else ""
    numbers = {
        severity: sum(finding.severity == severity for finding in result.findings)
        for severity in ("error", "warning")
    }
    verdict = {
        0: f"nothing suspicious: training would work{steps}",
        2: f"training would refuse: {counted(numbers['error'], 'error')}",
        3: f"training would work{steps}; {counted(numbers['warning'], 'warning')} to look at first",
    }[result.status]
    console.say(verdict)
    if result.status != 2:
        console.say(f"to train: {result.command}")


def _table(result: Check) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the table of splits."""
    names = list(result.splits["train"].classes)
    is_short = 0 < len(names) <= _FEW_CLASSES
    total = sum(facts.rows for facts in result.splits.values())
    header = [
        "",
        "rows",
        "share",
        *(names if is_short else ["classes", "rarest", "most"] if names else []),
    ]
    lines = []
    for split, facts in result.splits.items():
        line = [split, f"{facts.rows:,}", f"{facts.rows / max(1, total):.0%}"]
        if is_short:
            line += [f"{facts.classes[name]:,}" for name in names]
        elif names:
            occurring = {name: count for name, count in facts.classes.items() if count}
            rarest, most = (
                min(occurring, key=lambda name: occurring[name]),
                max(occurring, key=lambda name: occurring[name]),
            )
            line += [
                f"{len(occurring):,}",
                f"{rarest} {occurring[rarest]:,}",
                f"{most} {occurring[most]:,}",
            ]
        lines.append(line)
    return header, lines
