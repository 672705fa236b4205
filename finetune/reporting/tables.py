"""Results as tables and sentences, for the terminal, self-contained HTML pages and model cards."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from finetune.errors import counted
from finetune.exporting.push import Push
from finetune.predicting.files import Export
from finetune.recipe.run import Run
from finetune.runs.records import Manifest
from finetune.runtime.files import write_whole
from finetune.statistics.baselines import FROZEN
from finetune.statistics.metrics import DIRECTIONS
from finetune.statistics.results import Statistics

AREAS = {"roc_area": "ROC AUC", "pr_area": "average precision"}
#: With more classes, a table shows only those with the lowest F1.
_MAX_CLASSES = 200
_VERBS = {1: "is better than", -1: "is worse than", 0: "is not better than"}
_TO_TRY = (
    "Fine-tuning is not better than its own frozen encoder: label more rows, try another --model, "
    "or `python -m finetune search` over learning_rate and num_train_epochs."
)
_MAX_TEXT_LENGTH = 1200


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: The text; only ``Markup`` is taken for HTML.
        note: A smaller text after it, e.g. an interval.
        kind: The CSS class: ``number``, ``text`` (of any length), ``good`` or ``bad``.
        image: The URL of an image before the text.
    """

    text: str
    note: str = ""
    kind: str = ""
    image: str = ""


@dataclass(frozen=True)
class Table:
    """A table; its first column names the rows, header cells may be empty. A table without rows is
    false, and is not shown.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def __bool__(self) -> bool:
        return bool(self.rows)

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [self.header, ["---"] * len(self.header)]
        for row in self.rows:
            lines.append([f"{cell.text} ({cell.note})" if cell.note else cell.text for cell in row])
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write_page(
    path: Path,
    title: str,
    verdicts: Sequence[str],
    sections: Mapping[str, Sequence[Any]],
    warnings: Sequence[str] = (),
) -> None:
    """Write an HTML page, whole or not at all.

    Args:
        path: The file to write or replace.
        title: The title of the page.
        verdicts: Sentences below the title.
        sections: Blocks by section title: sentences, tables, and lists of
            :class:`~finetune.reporting.plots.Plot`. Empty blocks and sections are left out.
        warnings: Highlighted sentences below the verdicts.
    """
    environment = Environment(
        loader=PackageLoader("finetune.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filled = {}
    for name, section in sections.items():
        if blocks := list(filter(None, section)):
            filled[name] = blocks
    page = environment.get_template("page.html.jinja").render(
        title=title, verdicts=verdicts, warnings=warnings, sections=filled
    )
    write_whole(path, page)


def format_number(value: float, digits: int = 4, *, signed: bool = False) -> str:
    """Return a number with ``digits`` decimals; a large or tiny one with as many digits in all."""
    if math.isnan(value):
        return "undefined"
    spec = f".{digits}f" if 0.001 <= abs(value) < 1e6 or value == 0 else f".{digits}g"
    if signed:
        spec = f"+{spec}"
    return f"{value:{spec}}"


def _interval(estimate: Mapping[str, float], signed: bool) -> str:
    """Return a 95% confidence interval as ``0.1 to 0.2``, or ``""`` if there is none."""
    if not estimate["low"] < estimate["high"]:
        return ""
    return " to ".join(format_number(estimate[end], 3, signed=signed) for end in ("low", "high"))


def format_score(metric: str, estimate: Mapping[str, float], *, signed: bool = False) -> str:
    """Return a score with its 95% confidence interval: ``f1 0.8220, 95% CI 0.803 to 0.839``."""
    interval = _interval(estimate, signed)
    score = f"{metric} {format_number(estimate['value'], signed=signed)}"
    if interval:
        score += f", 95% CI {interval}"
    return score


def to_cells(scores: Mapping[str, Any], names: Iterable[str], signed: bool = False) -> list[Cell]:
    """Return a cell for each name, with its score and interval if there are any.

    Args:
        scores: Numbers, or estimates with intervals, by name.
        names: The names of the scores to show.
        signed: Whether positive numbers have a sign, as differences do.
    """
    cells = []
    for name in names:
        estimate = scores.get(name)
        if estimate is None:
            cells.append(Cell("", kind="number"))
        elif isinstance(estimate, (int, float)):
            cells.append(Cell(format_number(estimate), kind="number"))
        else:
            value = format_number(estimate["value"], signed=signed)
            cells.append(Cell(value, _interval(estimate, signed), kind="number"))
    return cells


def score_row(
    title: str, scores: Mapping[str, Any], names: Iterable[str], signed: bool = False
) -> list[Cell]:
    """Return the row of a table: its title, then :func:`to_cells`."""
    return [Cell(title), *to_cells(scores, names, signed)]


def excerpt(text: str) -> Cell:
    """Return a cell with the first 1,200 characters of a text, without blank lines."""
    text = re.sub(r"\s*\n\s*", "\n", text)
    if len(text) > _MAX_TEXT_LENGTH:
        text = f"{text[:_MAX_TEXT_LENGTH]} … ({len(text):,} characters)"
    return Cell(text, kind="text")


def scores(run: Run) -> Table:
    """Return a table of the scores of a run, of the baselines, and the differences to them."""
    statistics = run.statistics
    names = run.headline
    validated = "on validation rows"
    if run.manifest.arguments.get("final_epochs"):
        validated += ", before they were trained on"
    rows = [
        score_row("fine-tuned", statistics.metrics, names),
        score_row(validated, run.metrics.validation, names),
    ]
    for baseline, values in run.metrics.baseline.items():
        gaps = statistics.differences.get(baseline, {})
        rows.append(score_row(baseline, values, names))
        rows.append(score_row("difference to baseline", gaps, names, signed=True))
    caption = f"Test set, {statistics.rows:,} rows, 95% confidence intervals"
    return Table(caption + positive_class(statistics.positive_label), ["", *names], rows)


def positive_class(name: str | None) -> str:
    """Return the end of a caption: the name of the positive class, if there are two classes."""
    return "" if name is None else f"; positive class: {name}"


def metrics(caption: str, statistics: Statistics, headline: Sequence[str] = ()) -> Table:
    """Return a table of all scores that are not in ``headline``, one per row."""
    values = statistics.metrics
    rows = [score_row(name, values, [name]) for name in values if name not in headline]
    return Table(caption + positive_class(statistics.positive_label), ["", ""], rows)


def evaluation(result: Any) -> list[Table | str]:
    """Return the tables and notes of an :class:`~finetune.pipeline.evaluate.Evaluation`."""
    source = f"{result.source}, {counted(result.rows, 'row')}"
    if (statistics := result.statistics) is None:
        names = [name for name, value in result.metrics.items() if isinstance(value, float)]
        rows = [
            score_row("now", result.metrics, names),
            score_row("recorded", result.recorded or {}, names),
        ]
        return [Table(f"test set of {source}", ["", *names], rows), *result.notes]
    scores_of_all = metrics(f"{source}, 95% confidence intervals", statistics)
    details = targets(statistics), classes(statistics)
    return [scores_of_all, *details, *statistics.notes, *result.notes]


def push(push: Push, *, is_sent: bool) -> Table:
    """Return the table of the files of a push."""
    visibility = "private" if push.private else "public"
    verb = "in" if is_sent else "to send to"
    caption = f"{verb} the {visibility} repository {push.repo} at {push.endpoint}"
    rows = [[Cell(name), Cell(f"{file.stat().st_size:,}")] for name, file in push.files.items()]
    return Table(caption, ["file", "bytes"], rows)


def export(export: Export) -> list[Table | str]:
    """Return the table of what was checked at an export, and what it means."""
    checks = {"fp32": export.facts.check}
    if quantized := export.facts.quantized:
        checks[quantized["weights"]] = quantized
    header = ["", "MB", "ms for a row", "changed rows", "largest difference", "alone or padded"]
    rows = []
    for name, check in checks.items():
        neighbours = check["neighbours"]
        texts = (
            name,
            f"{check['bytes'] / 1e6:,.1f}",
            f"{check['latency_ms']:.1f}",
            f"{check['changed']:,} of {check['rows']:,}",
            f"{check['largest_difference']:.2g}",
            f"{neighbours['changed']:,} of {neighbours['rows']:,}",
        )
        rows.append(list(map(Cell, texts)))
    parts: list[Table | str] = [Table("checked on validation rows of the run", header, rows)]
    if quantized is None:
        return parts
    for name, gap in quantized["difference"].items():
        value = format_score(name, quantized["score"][name])
        difference = format_score(name, gap, signed=True)
        parts.append(f"with {quantized['weights']}: {value}; difference to fp32: {difference}")
    return parts


def classes(statistics: Statistics) -> Table:
    """Return a table of the scores of each class against the rest, 200 classes at most."""
    scores = statistics.classes or {}
    thresholds = statistics.thresholds or {}
    present = set(itertools.chain(*scores.values()))
    areas = [name for name in AREAS if name in present]
    names = list(scores)
    noun, unit = "class", "rows"
    if not areas:
        noun, unit = "type", "entities"
    caption = f"Each {noun} against the rest"
    if len(scores) > _MAX_CLASSES:
        names = sorted(scores, key=lambda name: scores[name]["f1"]["value"])[:_MAX_CLASSES]
        caption += f", the {_MAX_CLASSES} of {len(scores):,} with the lowest F1"
    header = [noun, unit, "precision", "recall", "F1", *map(AREAS.__getitem__, areas)]
    if thresholds:
        header.append("threshold")
    rows = []
    for name in names:
        row = [Cell(name), Cell(f"{scores[name]['support']:,}", kind="number")]
        row += to_cells(scores[name], ("precision", "recall", "f1", *areas))
        if thresholds:
            row += to_cells(thresholds, [name])
        rows.append(row)
    return Table(caption, header, rows)


def targets(statistics: Statistics) -> Table:
    """Return a table of the scores of each target; without rows if there is only one."""
    values = statistics.targets or {}
    names = list(next(iter(values.values()), {}))
    rows = [score_row(target, scores, names) for target, scores in values.items()]
    return Table(
        "Scores of each target; all other scores are means over the targets",
        ["target", *names],
        rows,
    )


def settings(names: Sequence[str], values: Mapping[str, Sequence[str]]) -> Table:
    """Return a table of the settings that differ between the runs ``names``."""
    rows = [[Cell(name), *map(Cell, row)] for name, row in values.items()]
    return Table("Settings that differ", ["", *names], rows)


def format_speed(rates: Mapping[str, Any]) -> str:
    """Return the training throughput, from ``speed`` in ``run.json``."""
    if not rates:
        return "no steps were trained"
    text = f"{rates['rows_per_second']:,.1f} samples/s"
    if rates.get("tokens_per_second") is not None:
        text += f", {rates['tokens_per_second']:,.0f} tokens/s"
    return text


def directions(manifest: Manifest) -> dict[str, int]:
    """Return 1 for each metric that is better if greater, and -1 if lower."""
    arguments = manifest.arguments
    best_metric = str(arguments.get("metric_for_best_model")).removeprefix("eval_")
    is_lower_better = str(arguments.get("greater_is_better")) == "False"
    return {best_metric: -1 if is_lower_better else 1, **DIRECTIONS}


def verdicts(run: Run) -> list[str]:
    """Return a sentence for each baseline that says whether the model beats it, and what to try if
    it does not beat the frozen encoder; of a run without scores the reason.
    """
    if run.manifest.not_scored:
        return [run.manifest.not_scored]
    better = directions(run.manifest)
    sentences = []
    advice = []
    metric = next(iter(run.headline), "")
    for baseline, gaps in run.statistics.differences.items():
        if metric not in gaps:
            continue
        sentences.append(
            judge("The model", f"the baseline '{baseline}'", gaps, run.headline, better)
        )
        has_direction = baseline.startswith(FROZEN) and metric in better
        if has_direction and sign(gaps[metric]) != better[metric]:
            advice = [_TO_TRY]
    return sentences + advice


def judge(
    subject: str,
    other: str,
    gaps: Mapping[str, Mapping[str, float]],
    headline: Sequence[str],
    better: Mapping[str, int],
    *,
    is_chance: bool = False,
) -> str:
    """Return a sentence that says whether ``subject`` is better than ``other``.

    The interval of the difference in the first metric decides.

    Args:
        subject: The name of a model.
        other: The name of a model or a baseline.
        gaps: The differences by metric: ``subject`` minus ``other``, with intervals.
        headline: The names of the metrics; the first one chose the best checkpoint.
        better: The directions of the metrics, from :func:`directions`.
        is_chance: Whether the difference may be chance even if its interval excludes 0.
    """
    metric = headline[0]
    gap = gaps.get(metric, dict.fromkeys(("value", "low", "high"), math.nan))
    difference = format_score(metric, gap, signed=True)
    if metric not in better or math.isnan(gap["low"]):
        return f"{subject} against {other}: difference in {difference}."
    verdict = 0 if is_chance else sign(gap) * better[metric]
    sentence = f"{subject} {_VERBS[verdict]} {other} (difference in {difference})"
    if verdict == 0:
        sentence += "; the difference may be chance"
    return f"{sentence}."


def sign(gap: Mapping[str, float]) -> int:
    """Return 1 if the interval is above 0, -1 if it is below 0, and 0 if it contains 0."""
    return int(gap["low"] > 0) - int(gap["high"] < 0)
