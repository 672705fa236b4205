"""Curves over the steps of a training, of one run or of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    """Loss of training and validation, the metrics of validation, and the learning rate."""
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
    titled(
        scores,
        "Validation" + (" (dotted: the step that was kept)" if best_step else ""),
        legend=bool(names),
    )
    rates.plot(*columns(trained, "learning_rate"), color=GREY)
    rates.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    titled(rates, "Learning rate")
    rates.set_xlabel("step")
    return Plot(alt + ".", figure)


def overlaid(histories: Mapping[str, Sequence[Mapping[str, float]]], metric: str) -> Plot | None:
    """Training loss, validation loss and a metric of several runs.

    Args:
        histories: By the name of the run.
        metric: As the history has it, like ``eval_f1``.
    """
    figure, panels = figure_of(3, height=6.4, share_x=True)
    names = {"loss": "Training loss", "eval_loss": "Validation loss"}
    names[metric] = f"Validation {wording.name(metric.removeprefix('eval_'))}"
    last = []
    for number, (run, history) in enumerate(histories.items()):
        colour, marker = COLOURS[number % len(COLOURS)], "os^Dv"[number % 5]
        for axes, name in zip(panels, names, strict=True):
            steps, values = columns(history, name)
            axes.plot(
                steps,
                values,
                color=colour,
                marker=marker,
                markersize=3,
                label=_labelled(run),
            )
        if values:
            last.append(f"{run} at last {values[-1]:.3f}")
    if not last:
        return None
    for number, (axes, title) in enumerate(zip(panels, names.values(), strict=True)):
        titled(axes, title, legend=number == 0)
    panels[-1].set_xlabel("step")
    alt = f"{names[metric]}: {', '.join(last)}."
    return Plot(alt, figure)


def _labelled(run: str) -> str:
    """A path as a legend shows it: not as a formula, and not left out, as it leaves out ``_x``."""
    return f"{'./' * run.startswith('_')}{run}".replace("$", r"\$")


def speed(history: Sequence[Mapping[str, float]]) -> Plot | None:
    """Rows a second, and memory, over the steps."""
    metered = [entry for entry in history if "rows_per_second" in entry]
    if not metered:
        return None
    figure, (rows, memory) = figure_of(2, height=4.0, share_x=True)
    rows.plot(*columns(metered, "rows_per_second"), color=BLUE)
    rows.set_ylim(bottom=0)
    titled(rows, "Rows a second, all processes")
    memory.plot(*columns(metered, "memory_mib"), color=GREEN)
    memory.set_ylim(bottom=0)
    titled(memory, "Memory of rank 0 (MiB)")
    memory.set_xlabel("step")
    middle = float(np.median([entry["rows_per_second"] for entry in metered]))
    most = max(entry["memory_mib"] for entry in metered)
    return Plot(
        f"{middle:,.1f} rows a second in the median; at most {most:,.0f} MiB of memory.",
        figure,
    )
