"""The results as tables, which the terminal, the page and the model card show alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finetune.reporting.html import Cell, Table, count, estimated, estimates, number
from finetune.training.manifest import Metrics, Statistics

_AREAS = {"roc_area": "ROC AUC", "pr_area": "average precision"}


def scores(results: Metrics, names: Sequence[str]) -> Table:
    """Return the scores of a run beside those of the baselines, and the differences.

    Args:
        results: Of the run, with statistics.
        names: The metrics to show.
    """
    statistics = results.statistics
    assert statistics is not None
    rows = [[Cell("fine-tuned"), *estimates(statistics.metrics, names)]]
    rows.append([Cell("on validation rows"), *_values(results.validation, names)])
    for baseline, values in results.baseline.items():
        gaps = statistics.beyond.get(baseline, {})
        rows.append([Cell(baseline), *_values(values, names)])
        rows.append([Cell("difference to baseline"), *estimates(gaps, names, signed=True)])
    caption = f"Test set, {statistics.rows:,} rows, 95% confidence intervals"
    return Table(caption, ["", *names], rows)


def metrics(caption: str, statistics: Statistics, headline: Sequence[str] = ()) -> Table:
    """Return the scores beside those of a headline, a row each."""
    values = {**statistics.metrics, **(statistics.ordered or {})}
    values |= {f"top-{k} accuracy": value for k, value in (statistics.top_k or {}).items()}
    rows = [[Cell(name), estimated(values[name])] for name in values if name not in headline]
    return Table(caption, ["", ""], rows)


def classes(statistics: Statistics, some: Sequence[str] | None = None) -> Table:
    """Return the scores of each class against the rest, or of ``some`` of them."""
    all_scores = statistics.classes or {}
    names, header = list(some or all_scores), ["class", "rows", "precision", "recall", "F1"]
    if areas := [name for name in _AREAS if any(name in row for row in all_scores.values())]:
        header += [_AREAS[name] for name in areas]
    rows = [
        [
            Cell(name),
            count(all_scores[name]["support"]),
            *estimates(all_scores[name], ("precision", "recall", "f1", *areas)),
        ]
        for name in names
    ]
    if thresholds := statistics.thresholds or {}:
        header.append("threshold")
        for row, name in zip(rows, names, strict=True):
            row.append(Cell(number(thresholds[name]), kind="number"))
    caption = "Each class against the rest" + f", {len(names)} with the lowest F1" * bool(some)
    return Table(caption, header, rows)


def targets(statistics: Statistics) -> Table:
    """Return the scores of each of several numbers."""
    values: Mapping[str, Mapping[str, Any]] = statistics.targets or {}
    names = list(next(iter(values.values()), {}))
    rows = [[Cell(target), *estimates(row, names)] for target, row in values.items()]
    return Table("Each target by itself; the other scores are means", ["target", *names], rows)


def settings(names: Sequence[str], values: Mapping[str, Sequence[str]]) -> Table:
    """Return the settings that differ between runs of these names."""
    rows = [[Cell(name), *map(Cell, row)] for name, row in values.items()]
    return Table("Settings that differ", ["", *names], rows)


def _values(values: Mapping[str, float], names: Sequence[str]) -> list[Cell]:
    """Return the cells of scores without an interval."""
    return [Cell(number(values[name]) if name in values else "", kind="number") for name in names]
