"""Everything that can be known of a training before it begins: ``check``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from finetune.checking import deep as deeper
from finetune.checking import lengths, repeated
from finetune.checking.finding import STATUS, status
from finetune.config.settings import Settings
from finetune.errors import SEVERITIES, Finding, UserError
from finetune.pipeline import lengths as of_recipe
from finetune.pipeline import preparation
from finetune.pipeline.events import Progress, ignore, telling
from finetune.recipe import Recipe, TextClassification
from finetune.runtime import extras, versions

if TYPE_CHECKING:
    from datasets import Dataset


_NOT_DEEP = Finding(
    name="deep",
    severity="info",
    message="--deep looked no further: first fix what training would refuse",
)


@dataclass(frozen=True, kw_only=True)
class SplitFacts:
    """What a split is made of.

    Attributes:
        rows: How many.
        classes: How many of each class, by name; empty where labels are numbers.
    """

    rows: int
    classes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Check:
    """What was found.

    Attributes:
        findings: From the worst.
        splits: Of the rows that would be trained and evaluated on; empty if they cannot be read.
        task: What kind of labels these are; empty likewise.
        steps: Optimizer steps of the training; None where that is not known.
        command: What starts the training, as it was typed.
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
        return status(self.findings)


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
        deep: Whether to look for near duplicates, words and columns that tell the label, labels
            that are probably wrong and other languages too, and to train four steps, to know what
            all take. It takes longer, and seeds the random numbers of torch as a training does.
        progress: Is given :class:`~finetune.pipeline.events.Advanced` while files are read.
        **options: As of :func:`finetune.train`.

    Returns:
        The findings from the worst, and the splits where the rows can be read.

    Raises:
        UserError: if there is no such recipe or config file.
    """
    versions.warn_once(stacklevel=2)
    return examine(Settings.from_keywords(recipe, options), progress, deep=deep)


def examine(chosen: Settings, progress: Progress = ignore, *, deep: bool = False) -> Check:
    """Return what there is to say of settings: see :func:`check`.

    Args:
        chosen: The settings.
        progress: Likewise.
        deep: Likewise.

    Returns:
        Likewise.
    """
    recipe, report = chosen.recipe, chosen.report
    if deep:
        with report.collect():
            extras.require("--deep", extras.NEAR, extras.LANGUAGES)
    with telling(progress):
        values = preparation.look(chosen)
        if "source" in vars(recipe):
            report.add(*repeated.findings(recipe.source, recipe.input_column))
        if "splits" not in vars(recipe):
            report.add(*[_NOT_DEEP] * deep)
            return Check(findings=_located(recipe), splits={}, command=chosen.command)
        if deep and not report.has_errors:
            report.add(*_deep(chosen))
        elif deep:
            report.add(_NOT_DEEP)
        steps = None
        if values is not None and not report.has_errors:
            with report.collect():
                report.add(*_of_lengths(recipe))
                steps = preparation.steps_of(values, recipe)
        if steps is not None and values is not None:
            for remark in preparation.remarks(recipe, values, steps):
                report.warning(remark)
        for sentence in chosen.without_effect if values is not None else []:
            report.info(sentence)
    return Check(
        findings=_located(recipe),
        splits={split: _facts(rows) for split, rows in recipe.splits.items()},
        task=recipe.kind.name,
        steps=steps,
        command=chosen.command,
        split_how=recipe.split_how,
    )


def refused(mistakes: Sequence[str]) -> Check:
    """Return the check of something that training would refuse, for these reasons."""
    found = [Finding(name="refused", severity="error", message=each) for each in mistakes]
    return Check(findings=found, splits={})


def _deep(chosen: Settings) -> list[Finding]:
    """Return what takes longer: a rehearsal of the training, before memory is full of words."""
    from finetune.pipeline import rehearsal

    recipe = chosen.recipe
    try:
        found = rehearsal.findings(dataclasses.replace(chosen))
    except UserError as error:
        found = [*refused(error.mistakes).findings]
    return found + deeper.findings(
        recipe.source,
        recipe.splits,
        column=recipe.input_column,
        read=recipe.columns_read(),
        plan=recipe.plan(),
    )


def _located(recipe: Recipe) -> list[Finding]:
    """Return the findings from the worst, with file and line in their messages."""
    located = [
        dataclasses.replace(finding, message=recipe.report.text(finding, fix=False))
        for finding in recipe.report.findings
    ]
    return sorted(located, key=lambda finding: SEVERITIES.index(finding.severity))


def _facts(rows: Dataset) -> SplitFacts:
    from finetune.checking import classes
    from finetune.data import targets

    names = targets.class_names(rows)
    counts = dict(zip(names, classes.counts(rows).tolist(), strict=True)) if names else {}
    return SplitFacts(rows=len(rows), classes=counts)


def _of_lengths(recipe: Recipe) -> list[Finding]:
    """Return how long the texts are, from a sample of them."""
    if not isinstance(recipe, TextClassification) or recipe.long_texts == "windows":
        return []
    if type(recipe).prepare is not TextClassification.prepare:
        return []  # how it tokenizes is not known
    sampled, rows = of_recipe.sampled(recipe, lengths.SAMPLE), len(recipe.splits["train"])
    return lengths.findings(sampled, rows, recipe.max_length, recipe.positions)


def as_json(found: Check) -> dict[str, Any]:
    """Return a check as values for JSON; its schema is 2."""
    content = dataclasses.asdict(found)
    verdict = {STATUS[each]: each for each in SEVERITIES} | {0: "ok"}
    return {"schema": 2, "status": found.status, "verdict": verdict[found.status], **content}
