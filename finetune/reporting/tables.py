"""The results as tables and sentences, which the terminal, the page and the model card show alike,
and pages of them that need nothing but themselves: no network, no script, every text escaped.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from finetune.runs.manifest import Manifest
from finetune.runs.run import Run
from finetune.runtime.files import write_whole
from finetune.statistics.metrics import DIRECTIONS, Statistics

AREAS = {"roc_area": "ROC AUC", "pr_area": "average precision"}
#: Of more classes those with the lowest F1 are shown.
_MOST_CLASSES = 200
_VERBS = {1: "is better than", -1: "is worse than", 0: "is not better than"}
_LONGEST_TEXT = 1200


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: The text.
        note: A smaller text after it, such as an interval.
        kind: Its class in the style sheet: ``number``, ``text`` (of any length), ``good``, ``bad``.
        image: The address of an image before the text.
    """

    text: str
    note: str = ""
    kind: str = ""
    image: str = ""


@dataclass(frozen=True)
class Table:
    """A table, whose first column names the rows, of which there is at least one. Cells of the
    header are empty where the columns have no names.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]

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
    """Write a page, whole or not at all: title, verdicts, warnings that stand out, and sections.

    These are blocks by title: sentences, tables, mappings of facts, and lists of
    :class:`~finetune.reporting.plots.Plot`. What is empty is left out.
    """
    environment = Environment(
        loader=PackageLoader("finetune.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sections = {name: [block for block in blocks if block] for name, blocks in sections.items()}
    sections = {name: blocks for name, blocks in sections.items() if blocks}
    page = environment.get_template("page.html.jinja").render(
        title=title, verdicts=verdicts, warnings=warnings, sections=sections
    )
    write_whole(path, page)


def number(value: float, digits: int = 4, *, signed: bool = False) -> str:
    """Return a score: digits after the point, or four in all of a large one or a tiny one."""
    if math.isnan(value):
        return "undefined"
    form = f".{digits}f" if 0.001 <= abs(value) < 1e6 or value == 0 else f".{digits}g"
    return f"{value:{'+' * signed}{form}}"


def _interval(estimate: Mapping[str, float], signed: bool) -> str:
    """Return the ends of a 95% confidence interval; nothing where there is none."""
    if not estimate["low"] < estimate["high"]:
        return ""
    return " to ".join(number(estimate[end], 3, signed=signed) for end in ("low", "high"))


def score(metric: str, estimate: Mapping[str, float], *, signed: bool = False) -> str:
    """Return a score with its 95% confidence interval."""
    ends = _interval(estimate, signed)
    return f"{metric} {number(estimate['value'], signed=signed)}" + f", 95% CI {ends}" * bool(ends)


def estimates(scores: Mapping[str, Any], names: Iterable[str], signed: bool = False) -> list[Cell]:
    """Return the cells of scores, with their intervals where they have one."""
    cells = []
    for name in names:
        estimate = scores.get(name)
        if estimate is None:
            cells.append(Cell("", kind="number"))
        elif isinstance(estimate, (int, float)):
            cells.append(Cell(number(estimate), kind="number"))
        else:
            value = number(estimate["value"], signed=signed)
            cells.append(Cell(value, _interval(estimate, signed), kind="number"))
    return cells


def excerpt(text: str) -> Cell:
    """Return the first 1,200 characters, without blank lines; a page shows line breaks."""
    text = re.sub(r"\s*\n\s*", "\n", text)
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]} … ({len(text):,} characters)"
    return Cell(text, kind="text")


def scores(run: Run) -> Table:
    """Return scores of a run with statistics beside those of the baselines, and differences."""
    statistics = run.statistics
    names = run.headline
    rows = [[Cell("fine-tuned"), *estimates(statistics.metrics, names)]]
    rows.append([Cell("on validation rows"), *estimates(run.metrics.validation, names)])
    for baseline, values in run.metrics.baseline.items():
        gaps = statistics.beyond.get(baseline, {})
        rows.append([Cell(baseline), *estimates(values, names)])
        rows.append([Cell("difference to baseline"), *estimates(gaps, names, signed=True)])
    caption = f"Test set, {statistics.rows:,} rows, 95% confidence intervals"
    return Table(caption, ["", *names], rows)


def metrics(caption: str, statistics: Statistics, headline: Sequence[str] = ()) -> list[Table]:
    """Return a table of the scores beside those of a headline, a row each, if there are any."""
    values = {**statistics.metrics, **(statistics.ordered or {})}
    values |= {f"top-{k} accuracy": value for k, value in (statistics.top_k or {}).items()}
    rows = [[Cell(name), *estimates(values, [name])] for name in values if name not in headline]
    return [Table(caption, ["", ""], rows)] if rows else []


def classes(statistics: Statistics) -> list[Table]:
    """Return a table of the scores of each class against the rest, of 200 at most, if any."""
    scores = statistics.classes or {}
    thresholds = statistics.thresholds or {}
    areas = [name for name in AREAS if any(name in row for row in scores.values())]
    names = [*scores]
    caption = "Each class against the rest"
    if len(scores) > _MOST_CLASSES:
        names = sorted(scores, key=lambda name: scores[name]["f1"]["value"])[:_MOST_CLASSES]
        caption += f", the {_MOST_CLASSES} of {len(scores):,} with the lowest F1"
    rows = []
    for name in names:
        values = estimates(scores[name], ("precision", "recall", "f1", *areas))
        fitted = estimates(thresholds, [name]) if thresholds else []
        support = Cell(f"{scores[name]['support']:,}", kind="number")
        rows.append([Cell(name), support, *values, *fitted])
    header = ["class", "rows", "precision", "recall", "F1", *map(AREAS.__getitem__, areas)]
    header += ["threshold"] * bool(thresholds)
    return [Table(caption, header, rows)] if rows else []


def targets(statistics: Statistics) -> list[Table]:
    """Return a table of the scores of each of several numbers, if there are several."""
    values: Mapping[str, Mapping[str, Any]] = statistics.targets or {}
    names = list(next(iter(values.values()), {}))
    rows = [[Cell(target), *estimates(row, names)] for target, row in values.items()]
    caption = "Each target by itself; the other scores are means"
    return [Table(caption, ["target", *names], rows)] if rows else []


def settings(names: Sequence[str], values: Mapping[str, Sequence[str]]) -> list[Table]:
    """Return a table of the settings that differ between runs of these names, if any do."""
    rows = [[Cell(name), *map(Cell, row)] for name, row in values.items()]
    return [Table("Settings that differ", ["", *names], rows)] if rows else []


def speed(rates: Mapping[str, Any]) -> str:
    """Return the throughput of the steps of a run, from ``speed`` of its ``run.json``."""
    if not rates:
        return "no step was done"
    text = f"{rates['rows_per_second']:,.1f} samples/s"
    if rates.get("tokens_per_second") is not None:
        text += f", {rates['tokens_per_second']:,.0f} tokens/s"
    return text


def directions(manifest: Manifest) -> dict[str, int]:
    """Return 1 where more is better and -1 where less is, by metric, also that of checkpoints."""
    arguments = manifest.arguments
    chosen = str(arguments.get("metric_for_best_model")).removeprefix("eval_")
    is_lower_better = str(arguments.get("greater_is_better")) == "False"
    return {chosen: -1 if is_lower_better else 1, **DIRECTIONS}


def verdicts(run: Run) -> list[str]:
    """Return a sentence for each baseline: whether the model beats it, see :func:`judge`."""
    better = directions(run.manifest)
    return [
        judge("The model", f"the baseline '{baseline}'", gaps, run.headline, better)
        for baseline, gaps in run.statistics.beyond.items()
        if gaps.keys() & {*run.headline[:1]}
    ]


def judge(
    subject: str,
    other: str,
    gaps: Mapping[str, Mapping[str, float]],
    headline: Sequence[str],
    better: Mapping[str, int],
    *,
    is_chance: bool = False,
) -> str:
    """Return whether ``subject`` is better than ``other``, by the intervals of the differences.

    The first metric of the headline decides, the one that the best checkpoint was chosen by; any
    other that is significantly worse is named.

    Args:
        subject: A model.
        other: A model or a baseline.
        gaps: How much more of each metric the subject has.
        headline: The names of the metrics.
        better: See :func:`directions`.
        is_chance: Whether a difference may be chance although its interval is without 0.
    """
    metric = headline[0]
    gap = gaps.get(metric, dict.fromkeys(("value", "low", "high"), math.nan))
    amount = score(metric, gap, signed=True)
    if metric not in better or math.isnan(gap["low"]):
        return f"{subject} against {other}: difference in {amount}."
    verdict = 0 if is_chance else sign(gap) * better[metric]
    worse = [
        score(name, gaps[name], signed=True)
        for name in headline[1:]
        if name in gaps and name in better and sign(gaps[name]) == -better[name]
    ]
    chance = "; the difference may be chance" * (verdict == 0)
    sentence = f"{subject} {_VERBS[verdict]} {other} (difference in {amount}){chance}."
    return sentence + f" It is significantly worse in {' and '.join(worse)}." * bool(worse)


def sign(gap: Mapping[str, float]) -> int:
    """Return 1 or -1 if the whole interval is above or below 0, else 0."""
    return int(gap["low"] > 0) - int(gap["high"] < 0)
