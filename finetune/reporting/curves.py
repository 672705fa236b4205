"""Curves over the steps of a training, of one run or of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from finetune.reporting import wording
from finetune.reporting.figure import (
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    ORANGE,
    Plot,
    columns,
    figure_of,
    titled,
)


def learning_curves(history: Sequence[Mapping[str, float]], best_step: int | None) -> Plot | None:
    """Plot the losses of training and validation, the metrics, and the learning rate."""
    trained = [entry for entry in history if "loss" in entry]
    validated = [entry for entry in history if "eval_loss" in entry]
    if not trained:
        return None
    figure, (losses, scores, rates) = figure_of(3, height=6.4, share_x=True)
    losses.plot(*columns(trained, "loss"), color=BLUE, label="training")
    alt = f"Training loss from {trained[0]['loss']:.3f} to {trained[-1]['loss']:.3f}"
    if validated:
        losses.plot(*columns(validated, "eval_loss"), color=ORANGE, marker="o", label="validation")
        alt += f"; validation loss at last {validated[-1]['eval_loss']:.3f}"
    titled(losses, "Loss", legend=True)
    names = [
        name
        for name in (validated[0] if validated else {})
        if name.startswith("eval_")
        and not name.endswith(("loss", "runtime", "_per_second", "_time"))
    ]
    for name, colour, marker in zip(names, (GREEN, ORANGE, BLUE, GREY), "os^D", strict=False):
        label = wording.name(name.removeprefix("eval_"))
        scores.plot(*columns(validated, name), color=colour, marker=marker, label=label)
        alt += f"; {label} at last {validated[-1][name]:.3f}"
    if best_step:
        for axes in (losses, scores):
            axes.axvline(best_step, color=GREY, linestyle=":", linewidth=1)
        alt += f"; the best step was {best_step}"
    kept = " (dotted: the step that was kept)" if best_step else ""
    titled(scores, f"Validation{kept}", legend=bool(names))
    rates.plot(*columns(trained, "learning_rate"), color=GREY)
    rates.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    titled(rates, "Learning rate", x="step")
    return Plot(alt + ".", figure)


def overlaid(histories: Mapping[str, Sequence[Mapping[str, float]]], metric: str) -> Plot | None:
    """Plot training loss, validation loss and a metric, like ``eval_f1``, of several runs, whose
    histories come by their names.
    """
    figure, panels = figure_of(3, height=6.4, share_x=True)
    names = {"loss": "Training loss", "eval_loss": "Validation loss"}
    names[metric] = f"Validation {wording.name(metric.removeprefix('eval_'))}"
    last = []
    for number, (run, history) in enumerate(histories.items()):
        style: dict[str, Any] = {
            "color": COLOURS[number % len(COLOURS)],
            "marker": "os^Dv"[number % 5],
            "label": _labelled(run),
        }
        for axes, name in zip(panels, names, strict=True):
            steps, values = columns(history, name)
            axes.plot(steps, values, markersize=3, **style)
        if values:
            last.append(f"{run} at last {values[-1]:.3f}")
    if not last:
        return None
    for axes, title in zip(panels, names.values(), strict=True):
        titled(axes, title, x="step" * (axes is panels[-1]), legend=axes is panels[0])
    return Plot(f"{names[metric]}: {', '.join(last)}.", figure)


def _labelled(run: str) -> str:
    """A path as a legend shows it: not as a formula, and not left out, as it leaves out ``_x``."""
    return f"{'./' * run.startswith('_')}{run}".replace("$", r"\$")


def speed(history: Sequence[Mapping[str, float]]) -> Plot | None:
    """Plot rows a second, and memory, over the steps."""
    metered = [entry for entry in history if "rows_per_second" in entry]
    if not metered:
        return None
    figure, (rows, memory) = figure_of(2, height=4.0, share_x=True)
    for axes, name, colour in ((rows, "rows_per_second", BLUE), (memory, "memory_mib", GREEN)):
        axes.plot(*columns(metered, name), color=colour)
        axes.set_ylim(bottom=0)
    titled(rows, "Rows a second, all processes")
    titled(memory, "Memory of rank 0 (MiB)", x="step")
    middle = float(np.median([entry["rows_per_second"] for entry in metered]))
    most = max(entry["memory_mib"] for entry in metered)
    alt = f"{middle:,.1f} rows a second in the median; at most {most:,.0f} MiB of memory."
    return Plot(alt, figure)
