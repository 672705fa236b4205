"""The result of ``check`` as rows of a table and a sentence."""

from typing import Any

from finetune.errors import counted


def describe_splits(splits: dict[str, Any]) -> list[list[str]]:
    """Return name, rows, share and classes of each split, as texts."""
    total = sum(facts.rows for facts in splits.values())
    rows = []
    for split, facts in splits.items():
        counts = ", ".join(f"{name} {count:,}" for name, count in facts.classes.items())
        if len(facts.classes) > 6:
            values = facts.classes.values()
            counts = f"{len(values):,} classes of {min(values):,} to {max(values):,} rows"
        rows.append([split, f"{facts.rows:,}", f"{facts.rows / max(1, total):.0%}", counts])
    return rows


def verdict(result: Any) -> str:
    """Return a sentence: whether training would work."""
    steps = ""
    if result.steps is not None:
        steps = f", {counted(result.steps, 'step')}"
    severities = [finding.severity for finding in result.findings]
    errors, warnings = map(severities.count, ("error", "warning"))
    sentences = {
        0: f"nothing suspicious: training would work{steps}",
        2: f"training would refuse: {counted(errors, 'error')}",
        3: f"training would work{steps}, with {counted(warnings, 'warning')}",
    }
    return sentences[result.status]
