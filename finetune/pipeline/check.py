"""``check``: find errors and suspicious rows before a training starts."""

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
from finetune.pipeline.events import Progress, ignore, reporting_work
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
    splits: dict[str, SplitFacts]  # as a training would use them; empty if the data is unreadable
    task: str = ""  # e.g. `single_label`; empty if the data is unreadable
    steps: int | None = None  # optimizer steps; None if they depend on the lengths of all texts
    command: str = ""  # the command that starts the training
    split_how: str = ""  # how missing splits are made; empty if the source has all splits

    @property
    def status(self) -> int:
        """The exit status: 2 if training would refuse, 3 if there are warnings, else 0."""
        return STATUS[self.findings[0].severity] if self.findings else 0


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
    """Check settings that are resolved already; see :func:`check`."""
    recipe = settings.recipe
    report = settings.report
    steps = None
    if deep:
        with report.collect():
            require_packages("--deep", "datasketch", "py3langid")
    with reporting_work(progress):
        values = preparation.load_and_check(settings)
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
            report.info("--deep was skipped: first fix the errors", name="deep")
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


def refuse_suspects_path(path: Path) -> None:
    """Refuse a path that is not a .csv file in a directory, or a file that the user has edited."""
    if path.suffix.lower() != ".csv" or path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"--suspects {path}: expected a .csv file in an existing directory")
    if path.exists() and corrections.has_new_labels(path):
        raise UserError(f"--suspects {path}: 'new_label' was edited: type another file name")


def write_suspects(path: Path, findings: Sequence[Finding], recipe: Recipe) -> int:
    """Write each suspicious row once, with all reasons, and return the number of rows.

    An existing file is replaced, or removed if no row is suspicious.
    """
    suspects: dict[str, dict[int, list[tuple[str, Suspect]]]] = defaultdict(dict)
    for finding in findings:  # grouped by split and row
        for suspect in finding.suspects:
            reason = f"{finding.name}: {suspect.reason}"
            suspects[finding.split].setdefault(suspect.row, []).append((reason, suspect))
    written = []
    user_columns: dict[str, None] = {}
    for split, split_suspects in suspects.items():
        rows = recipe.source[split]
        positions = {row: index for index, row in enumerate(targets.source_rows(rows).tolist())}
        numbers = [row for row in split_suspects if row in positions]  # without rows not loaded
        rows = rows.select([positions[row] for row in numbers])
        table = without_bytes(user_table(rows, recipe.input_column))
        user_columns |= dict.fromkeys(table.column_names)
        user_rows = table.to_pylist() or [{}] * len(rows)
        texts = rows["text"] if "text" in rows.column_names else [r.get("file") for r in user_rows]
        keys = corrections.row_digests(rows, recipe.input_column)
        places: list[tuple[str, int | str]] = [("row", number + 1) for number in numbers]
        if recipe.row_source is not None:
            places = recipe.row_source.find_places(split, numbers)
        values = zip(numbers, texts, rows["label"], user_rows, keys, places, strict=True)
        for row, text, label, user_row, digest, place in values:
            row_suspects = split_suspects[row]
            best = next((suspect for _, suspect in row_suspects if suspect.suggested), None)
            written.append(
                {
                    "split": split,
                    "place": f"{place[0]} {place[1]}",
                    "text": text,
                    "label": corrections.label_text(rows, label),
                    "suggested": best and best.suggested,
                    "probability": best and best.score,
                    "why": "; ".join(dict.fromkeys(reason for reason, _ in row_suspects)),
                    "digest": digest,
                    "user": user_row,
                }
            )
    path.unlink(missing_ok=True)
    if written:
        corrections.write_suspects(path, written, [*user_columns])
    return len(written)


def refused_check(mistakes: Sequence[str]) -> Check:
    """Return a check whose findings are these errors, without any data."""
    findings = [Finding(name="refused", severity="error", message=text) for text in mistakes]
    return Check(findings=findings, splits={})


def as_json(result: Check) -> dict[str, Any]:
    """Return a check as a dict for JSON, in version 2 of the schema."""
    verdict = {0: "ok", 2: "error", 3: "warning"}[result.status]
    return {"schema": 2, "status": result.status, "verdict": verdict, **asdict(result)}
