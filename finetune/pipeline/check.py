"""What can be known of a training before it starts: ``check``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from finetune.checking.rows import check_deep
from finetune.config.settings import Settings
from finetune.data import targets
from finetune.errors import Finding, Severity
from finetune.pipeline import preparation
from finetune.pipeline.events import Progress, ignore, telling
from finetune.recipe import Recipe, TextRecipe
from finetune.runtime import version

#: The exit status of ``check`` for the worst finding, from the worst.
STATUS: dict[Severity, int] = {"error": 2, "warning": 3, "info": 0}


@dataclass(frozen=True, kw_only=True)
class SplitFacts:
    """What a split contains.

    Attributes:
        rows: The number of rows.
        classes: The number of rows of each class, by name; empty for numbers.
    """

    rows: int
    classes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of a check.

    Attributes:
        findings: The worst first, with file and line in their messages.
        splits: The rows that would be trained and evaluated on; empty if they cannot be read.
        task: The task; empty likewise.
        steps: Optimizer steps of the training; None if that depends on the lengths of all texts.
        command: The command that starts the training.
        split_how: How rows are split off; empty if the source has all splits.
    """

    findings: Sequence[Finding]
    splits: dict[str, SplitFacts]
    task: str = ""
    steps: int | None = None
    command: str = ""
    split_how: str = ""

    @property
    def status(self) -> int:
        """The exit status: 0 if training would work, 3 if something is suspicious, 2 if not."""
        return STATUS[self.findings[0].severity] if self.findings else 0


def check(
    recipe: str | type[Recipe] | Recipe,
    *,
    deep: bool = False,
    progress: Progress = ignore,
    **options: Any,
) -> Check:
    """Look for what is wrong or suspicious in data and options; nothing is trained or written.

    Args:
        recipe: A name, a path, a recipe class, or a recipe with its options.
        deep: Whether to also look for near duplicates, words and columns that reveal the label,
            suspected labels and other languages. It takes longer.
        progress: Called with :class:`~finetune.pipeline.events.Advanced` while files are read.
        **options: As for :func:`finetune.train`.

    Returns:
        The findings, the worst first, and the splits if the rows can be read.

    Raises:
        UserError: If there is no such recipe or config file.
    """
    return examine(Settings.from_keywords(recipe, options), progress, deep=deep)


def examine(chosen: Settings, progress: Progress = ignore, *, deep: bool = False) -> Check:
    """Return what there is to say of settings: see :func:`check`."""
    recipe, report, steps = chosen.recipe, chosen.report, None
    if deep:
        with report.collect():
            version.require_packages("--deep", "datasketch", "py3langid")
    with telling(progress):
        values = preparation.look(chosen)
        is_read = "splits" in vars(recipe)
        if is_read and values is not None and not report.sentences("error"):
            with report.collect():
                in_windows = isinstance(recipe, TextRecipe) and recipe.long_texts == "windows"
                if isinstance(recipe, TextRecipe) and recipe.token_sample and not in_windows:
                    recipe.token_sample.report_lengths(recipe.max_length, report)
                by_length = values.train_sampling_strategy == "group_by_length"
                if not (in_windows or by_length or values.max_tokens_per_batch):
                    steps = preparation.count_steps(values, recipe.splits["train"])
                    preparation.report_few_steps(recipe, values, steps)
        if deep and is_read and not report.sentences("error"):
            read, plan = recipe.columns_read(), recipe.split_plan()
            check_deep(recipe.source, recipe.splits, recipe.input_column, read, plan, report)
        elif deep:
            report.info("--deep looked no further: first fix what training refuses", name="deep")
    findings = [
        dataclasses.replace(finding, message=report.text(finding, fix=False))
        for finding in sorted(
            report.findings, key=lambda finding: [*STATUS].index(finding.severity)
        )
    ]
    if not is_read:
        return Check(findings=findings, splits={}, command=chosen.command)
    splits = {}
    for name, rows in recipe.splits.items():
        counts, labels = targets.counts(rows), targets.class_names(rows)
        classes = {label: counts.get(number, 0) for number, label in enumerate(labels)}
        splits[name] = SplitFacts(rows=len(rows), classes=classes)
    return Check(
        findings=findings,
        splits=splits,
        task=recipe.kind.name,
        steps=steps,
        command=chosen.command,
        split_how=recipe.split_how,
    )


def refused(mistakes: Sequence[str]) -> Check:
    """Return the check of something that training refuses, for these reasons."""
    findings = [Finding(name="refused", severity="error", message=text) for text in mistakes]
    return Check(findings=findings, splits={})


def as_json(result: Check) -> dict[str, Any]:
    """Return a check as values for JSON; its schema is 2."""
    content = dataclasses.asdict(result)
    verdicts = {status: severity for severity, status in STATUS.items()} | {0: "ok"}
    return {"schema": 2, "status": result.status, "verdict": verdicts[result.status], **content}
