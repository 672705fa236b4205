"""``check``: find errors and suspicious rows before a training starts."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from datasets import Dataset, concatenate_datasets

from finetune.checking.rows import check_deep
from finetune.config.settings import Settings
from finetune.data import targets
from finetune.errors import Finding, Findings, Severity
from finetune.pipeline import preparation
from finetune.pipeline.events import Progress, ignore, reporting
from finetune.recipe import Recipe, TextRecipe
from finetune.runtime.importing import require_packages

#: The exit status of ``check`` by the severity of the worst finding, the worst severity first.
STATUS: dict[Severity, int] = {"error": 2, "warning": 3, "info": 0}


@dataclass(frozen=True, kw_only=True)
class SplitFacts:
    """The size of a split."""

    rows: int  # number of rows
    classes: dict[str, int] = field(default_factory=dict)  # rows per class; empty for a regression


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of a check."""

    findings: Sequence[Finding]  # the worst first; their messages name file and line
    #: As a training would use them; empty if the data is unreadable.
    splits: dict[str, SplitFacts] = field(default_factory=dict)
    task: str = ""  # e.g. `single_label`; empty if the data is unreadable
    steps: int | None = None  # optimizer steps; None if not known without training or all texts
    command: str = ""  # the command that starts the training
    split_how: str = ""  # how missing splits are made; empty if the source has all splits

    @property
    def status(self) -> int:
        """The exit status: 2 if training would refuse, 3 if there are warnings, else 0."""
        if self.findings:
            return STATUS[self.findings[0].severity]
        return 0


def check(
    recipe: str | type[Recipe] | Recipe,
    *,
    deep: bool = False,
    progress: Progress = ignore,
    **options: Any,
) -> Check:
    """Find errors and suspicious rows in data and options, without training or writing anything.

    Args:
        recipe: The name of a recipe, the path of a recipe file, a recipe class, or an instance.
        deep: Whether to also find near duplicates, words and columns that reveal the label,
            suspected labels and other languages. It takes longer.
        progress: Called with :class:`~finetune.pipeline.events.Advanced` while files are read.
        **options: As for :func:`finetune.train`.

    Returns:
        The findings, the worst first, and the splits if the rows can be read.

    Raises:
        UserError: If there is no such recipe or config file.
    """
    return check_settings(Settings.from_keywords(recipe, options), progress, deep=deep)


def check_settings(settings: Settings, progress: Progress = ignore, *, deep: bool = False) -> Check:
    """Check settings that are resolved already; see :func:`check`.

    Args:
        settings: The settings of a training.
        progress: Called with each event.
        deep: See :func:`check`.
    """
    # to choose the head, a training of few rows loads the model, which may be a download
    recipe = settings.recipe.with_values(initial_head="probe")
    settings = replace(settings, recipe=recipe)
    report = settings.report
    steps = None
    if deep:
        with report.collect():
            require_packages("--deep", "datasketch", "py3langid")
    with reporting(progress):
        settings = preparation.load_and_check(settings)
        if settings.is_loaded and not report.sentences("error"):
            with report.collect():
                in_windows = getattr(recipe, "long_texts", "cut") == "windows"
                if isinstance(recipe, TextRecipe) and recipe.token_sample and not in_windows:
                    recipe.token_sample.report_lengths(recipe.token_limit, report)
                values = settings.values
                by_length = values.train_sampling_strategy == "group_by_length"
                if not (in_windows or by_length or values.max_minutes):
                    rows = recipe.splits["train"]
                    if recipe.unlabelled_rows is not None:
                        rows = concatenate_datasets([rows, recipe.unlabelled_rows])
                    steps = preparation.count_steps(settings, rows)
        if deep and settings.is_loaded and not report.sentences("error"):
            columns = recipe.columns_read()
            plan = recipe.split_plan()
            check_deep(recipe.source, recipe.splits, recipe.input_column, columns, plan, report)
        elif deep:
            report.info("--deep was skipped: first fix the errors", name="deep")
    facts: dict[str, Any] = {}
    if settings.is_loaded:
        loaded = recipe.loaded
        facts = {"task": loaded.task.name, "split_how": loaded.facts.split_how}
        facts["splits"] = {name: _count_rows(rows) for name, rows in loaded.splits.items()}
    return Check(
        findings=_sort_findings(report),
        steps=steps,
        command=settings.command,
        **facts,
    )


def _count_rows(rows: Dataset) -> SplitFacts:
    counts = targets.counts(rows)
    classes = {name: counts.get(n, 0) for n, name in enumerate(targets.class_names(rows))}
    return SplitFacts(rows=len(rows), classes=classes)


def _sort_findings(report: Findings) -> list[Finding]:
    """Return the findings, the worst first, with file and line in the message."""
    findings = sorted(report.findings, key=lambda f: list(STATUS).index(f.severity))
    return [replace(finding, message=report.text(finding, fix=False)) for finding in findings]
