"""What can be known of a training before it starts: ``check``."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from finetune.checking.rows import check_deep
from finetune.config.settings import Settings
from finetune.data import corrections, targets
from finetune.data.prediction_columns import user_table, without_bytes
from finetune.errors import Finding, Severity, Suspect, UserError
from finetune.pipeline import preparation
from finetune.pipeline.events import Progress, ignore, telling
from finetune.recipe import Recipe, TextRecipe
from finetune.runtime.importing import require_packages

#: The exit status of ``check`` for the worst finding, from the worst.
STATUS: dict[Severity, int] = {"error": 2, "warning": 3, "info": 0}


@dataclass(frozen=True, kw_only=True)
class SplitFacts:
    """What a split contains."""

    rows: int  # how many
    classes: dict[str, int] = field(default_factory=dict)  # rows of each class; none for numbers


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of a check."""

    findings: Sequence[Finding]  # the worst first, with file and line in their messages
    splits: dict[str, SplitFacts]  # that would be trained and evaluated on; empty if unreadable
    task: str = ""  # empty likewise
    steps: int | None = None  # of the optimizer; None if that depends on the lengths of all texts
    command: str = ""  # that starts the training
    split_how: str = ""  # how rows are split off; empty if the source has all splits

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


def examine(settings: Settings, progress: Progress = ignore, *, deep: bool = False) -> Check:
    """Return what there is to say of settings: see :func:`check`."""
    recipe = settings.recipe
    report = settings.report
    steps = None
    if deep:
        with report.collect():
            require_packages("--deep", "datasketch", "py3langid")
    with telling(progress):
        values = preparation.look(settings)
        is_read = "splits" in vars(recipe)
        if is_read and values is not None and not report.sentences("error"):
            with report.collect():
                in_windows = isinstance(recipe, TextRecipe) and recipe.long_texts == "windows"
                if isinstance(recipe, TextRecipe) and recipe.token_sample and not in_windows:
                    recipe.token_sample.report_lengths(recipe.max_length, report)
                if not in_windows and values.train_sampling_strategy != "group_by_length":
                    steps = preparation.count_steps(values, recipe.splits["train"])
                    preparation.report_schedule(recipe, values, steps)
        if deep and is_read and not report.sentences("error"):
            columns = recipe.columns_read()
            plan = recipe.split_plan()
            check_deep(recipe.source, recipe.splits, recipe.input_column, columns, plan, report)
        elif deep:
            report.info("--deep looked no further: first fix what training refuses", name="deep")
    severities = [*STATUS]
    findings = [
        replace(finding, message=report.text(finding, fix=False))
        for finding in sorted(report.findings, key=lambda f: severities.index(f.severity))
    ]
    splits = {}
    for name, rows in recipe.splits.items() if is_read else ():
        counts = targets.counts(rows)
        classes = {label: counts.get(n, 0) for n, label in enumerate(targets.class_names(rows))}
        splits[name] = SplitFacts(rows=len(rows), classes=classes)
    return Check(
        findings=findings,
        splits=splits,
        task=recipe.kind.name if is_read else "",
        steps=steps,
        command=settings.command,
        split_how=recipe.split_how,
    )


def refuse_suspects(path: Path) -> None:
    """Refuse a path that is no .csv in a directory, and to replace a person's work."""
    if path.suffix.lower() != ".csv" or path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"--suspects {path}: expected the name of a .csv in an existing directory")
    if path.exists() and corrections.has_new_labels(path):
        raise UserError(f"--suspects {path}: 'new_label' was edited: name another file")


def write_suspects(path: Path, findings: Sequence[Finding], recipe: Recipe) -> int:
    """Write the rows that findings suspect, each once, with all reasons; return how many.

    A file that is there is replaced, or removed if no row is suspected.
    """
    suspects: dict[str, dict[int, list[tuple[str, Suspect]]]] = defaultdict(dict)
    for finding in findings:  # by split and row
        for suspect in finding.suspects:
            reason = f"{finding.name}: {suspect.reason}"
            suspects[finding.split].setdefault(suspect.row, []).append((reason, suspect))
    written = []
    user_columns: dict[str, None] = {}
    for split, of_split in suspects.items():
        rows = recipe.source[split]
        positions = {row: place for place, row in enumerate(targets.source_rows(rows).tolist())}
        numbers = [row for row in of_split if row in positions]  # the others were not loaded
        rows = rows.select([positions[row] for row in numbers])
        user = without_bytes(user_table(rows, recipe.input_column))
        user_columns |= dict.fromkeys(user.column_names)
        own_values = user.to_pylist() or [{}] * len(rows)
        texts = rows["text"] if "text" in rows.column_names else [v.get("file") for v in own_values]
        keys = corrections.row_digests(rows, recipe.input_column)
        places = [f"row {number + 1}" for number in numbers]
        if recipe.row_source is not None:
            places = recipe.row_source.list_places(split, numbers)
        values = zip(numbers, texts, rows["label"], own_values, keys, places, strict=True)
        for row, text, label, own, digest, place in values:
            best = next((suspect for _, suspect in of_split[row] if suspect.suggested), None)
            written.append(
                {
                    "split": split,
                    "place": place,
                    "text": text,
                    "label": corrections.label_text(rows, label),
                    "suggested": best and best.suggested,
                    "probability": best and best.score,
                    "why": "; ".join(dict.fromkeys(reason for reason, _ in of_split[row])),
                    "digest": digest,
                    "user": own,
                }
            )
    path.unlink(missing_ok=True)
    if written:
        corrections.write_suspects(path, written, [*user_columns])
    return len(written)


def refused(mistakes: Sequence[str]) -> Check:
    """Return the check of something that training refuses, for these reasons."""
    findings = [Finding(name="refused", severity="error", message=text) for text in mistakes]
    return Check(findings=findings, splits={})


def as_json(result: Check) -> dict[str, Any]:
    """Return a check as values for JSON; its schema is 2."""
    verdict = {0: "ok", 2: "error", 3: "warning"}[result.status]
    return {"schema": 2, "status": result.status, "verdict": verdict, **asdict(result)}
