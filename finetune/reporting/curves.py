"""Curves over the steps of a training, of one run or of several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from finetune.reporting import wording
from finetune.reporting.figure import (
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    MARKERS,
    ORANGE,
    Plot,
    columns,
    figure_of,
    styled,
    titled,
)

#: Fewer points are no curve: those that are logged every few steps, and those of evaluations.
_FEWEST_LOGGED, _FEWEST_EVALUATIONS = 3, 2


@styled
def learning_curves(history: Sequence[Mapping[str, float]], best_step: int | None) -> Plot | None:
    """Plot the losses of training and validation, the metrics, and the learning rate; panels that
    would have too few points are left out.
    """
    trained = [entry for entry in history if entry.get("loss") is not None]
    validated = [entry for entry in history if entry.get("eval_loss") is not None]
    is_trained = len(trained) >= _FEWEST_LOGGED
    is_validated = len(validated) >= _FEWEST_EVALUATIONS
    if not is_trained and not is_validated:
        return None
    panels = ["losses"] + ["scores"] * is_validated + ["rates"] * is_trained
    figure, panel_axes = figure_of(len(panels), height=0.6 + 1.9 * len(panels), share_x=True)
    axes = dict(zip(panels, panel_axes, strict=True))
    alt, best_note = [], ""
    if is_trained:
        axes["losses"].plot(*columns(trained, "loss"), color=BLUE, label="training")
        alt.append(f"Training loss from {trained[0]['loss']:.3f} to {trained[-1]['loss']:.3f}")
    if validated:
        steps, values = columns(validated, "eval_loss")
        axes["losses"].plot(steps, values, color=ORANGE, marker="o", label="validation")
        alt.append(f"final validation loss {validated[-1]['eval_loss']:.3f}")
    titled(axes["losses"], "Loss", legend=True)
    if is_validated and best_step:
        for name in ("losses", "scores"):
            axes[name].axvline(best_step, color=GREY, linestyle=":", linewidth=1.5)
        best_note = " (dotted: best checkpoint)"
        alt.append(f"best checkpoint at step {best_step}")
    if is_validated:
        names = [
            name
            for name in validated[0]
            if name.startswith("eval_")
            and not name.endswith(("loss", "runtime", "_per_second", "_time"))
            and validated[-1].get(name) is not None
        ]
        for name, colour, marker in zip(names, (GREEN, *COLOURS[3:]), MARKERS, strict=False):
            label = wording.name(name.removeprefix("eval_"))
            axes["scores"].plot(*columns(validated, name), color=colour, marker=marker, label=label)
            alt.append(f"final validation {label} {validated[-1][name]:.3f}")
        is_last = panels[-1] == "scores"
        titled(axes["scores"], f"Validation metrics{best_note}", legend=is_last and bool(names))
        if names and not is_last:  # between the panels, where no line is
            axes["scores"].legend(loc="upper left", bbox_to_anchor=(0, 0), ncols=2)
            figure.set_figheight(figure.get_figheight() + 0.25 * math.ceil(len(names) / 2))
    if is_trained:
        axes["rates"].plot(*columns(trained, "learning_rate"), color=GREY)
        axes["rates"].ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
        titled(axes["rates"], "Learning rate")
    _steps(panel_axes[-1])
    sentence = "; ".join(alt)
    return Plot(f"{sentence[0].upper()}{sentence[1:]}.", figure)


@styled
def overlaid(histories: Mapping[str, Sequence[Mapping[str, float]]], metric: str) -> list[Plot]:
    """Plot training loss, validation loss and a metric of several runs.

    Args:
        histories: Of each run, by its name.
        metric: As it is logged, like ``eval_f1``.

    Returns:
        A plot of each of which some run has more than a point or two.
    """
    names = {"loss": "Training loss", "eval_loss": "Validation loss"}
    names[metric] = f"Validation {wording.name(metric.removeprefix('eval_'))}"
    plots = []
    for name, title in names.items():
        curves = {run: columns(history, name) for run, history in histories.items()}
        fewest = _FEWEST_LOGGED if name == "loss" else _FEWEST_EVALUATIONS
        if max(len(steps) for steps, _ in curves.values()) < fewest:
            continue
        figure, (axes,) = figure_of(1, height=2.6 + 0.2 * len(curves))
        for number, (run, (steps, values)) in enumerate(curves.items()):
            axes.plot(
                *(steps, values),
                color=COLOURS[number % len(COLOURS)],
                marker="" if name == "loss" else MARKERS[number % len(MARKERS)],
                linestyle=("-", "--", "-.", ":")[number % 4],
                label=_labelled(run),
            )
        titled(axes, title)
        figure.legend(loc="outside lower left")
        _steps(axes)
        last = [f"{run} {values[-1]:.3f}" for run, (_, values) in curves.items() if values]
        plots.append(Plot(f"{title}, final value: {', '.join(last)}.", figure))
    return plots


def _labelled(run: str) -> str:
    """Return a path as a legend shows it: not as a formula, not left out as ``_x`` would be, and
    of a long one the end.
    """
    run = f"{'./' * run.startswith('_')}{run}".replace("$", r"\$")
    return run if len(run) <= 56 else f"…{run[-55:]}"


@styled
def speed(history: Sequence[Mapping[str, float]]) -> Plot | None:
    """Plot samples a second, and memory, over the steps."""
    metered = [entry for entry in history if "rows_per_second" in entry]
    if len(metered) < _FEWEST_LOGGED:
        return None
    figure, (rows, memory) = figure_of(2, height=4.4, share_x=True)
    for axes, name, colour in ((rows, "rows_per_second", BLUE), (memory, "memory_mib", GREEN)):
        axes.plot(*columns(metered, name), color=colour)
        axes.set_ylim(0, 1.1 * max(entry[name] for entry in metered))
    titled(rows, "Throughput (samples/s, all processes)")
    titled(memory, "Memory of rank 0 (MiB)")
    _steps(memory)
    middle = float(np.median([entry["rows_per_second"] for entry in metered]))
    most = max(entry["memory_mib"] for entry in metered)
    return Plot(f"Median throughput {middle:,.1f} samples/s; peak memory {most:,.0f} MiB.", figure)


def _steps(axes: Axes) -> None:
    """Label the axis of the optimizer steps, which are whole."""
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
