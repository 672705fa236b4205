"""The report of a search: trials, history, and the importance of options."""

import warnings
from typing import Any

import optuna
import pandas as pd
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.text import Text
from optuna.exceptions import ExperimentalWarning
from optuna.study import StudyDirection
from optuna.trial import TrialState
from optuna.visualization import matplotlib as optuna_plots

from finetune.errors import counted
from finetune.recipe.run import Run
from finetune.reporting import plots
from finetune.reporting.plots import INK, Plot
from finetune.reporting.tables import Cell, Table, format_number, format_score, score_row
from finetune.sets.run_set import RunSet
from finetune.sets.trials import list_trials, open_study, reason_of, short, trial_name, trials_in

#: With fewer complete trials, the importance of an option is noise.
_MIN_TRIALS = 5


def describe(run_set: RunSet) -> tuple[dict[str, list[Any]], list[str]]:
    """Return the sections of the page, the first with the table of trials, and the verdicts."""
    manifest = run_set.manifest
    study = open_study(run_set)
    complete = trials_in(study, TrialState.COMPLETE)
    table = _trials_table(study, manifest.metric)
    verdicts = ["The search is not finished."]
    figures = []
    if complete:
        figures.append(_history(study, manifest.metric))
        if manifest.winner == trial_name(study.best_trial.number):
            verdicts = _describe_winner(run_set, study)
    if len(complete) >= _MIN_TRIALS and len(complete[0].params) > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            importances = optuna_plots.plot_param_importances(study)
            coordinates = optuna_plots.plot_parallel_coordinate(study)
        figures.append(_restyled("importances", "The importance of each option.", importances))
        figures.append(_restyled("coordinates", "Values and score of each trial.", coordinates))
    return {"Trials": [table], "Plots": [figures]}, verdicts


def _describe_winner(run_set: RunSet, study: optuna.Study) -> list[str]:
    manifest = run_set.manifest
    run = Run(run_set.path / str(manifest.winner))
    count = len(list_trials(study))
    validation = f"validation {manifest.metric} {format_number(study.best_value)}"
    verdict = f"Best of {counted(count, 'trial')}: {run.path.name}, {validation}."
    if manifest.optimism is not None:
        verdict += (
            f" As the best of many, this score is too good by about "
            f"{format_number(manifest.optimism, 3)}; the choice of the best epoch adds to it."
        )
    metrics = run.statistics.metrics
    test = "; ".join(format_score(name, metrics[name]) for name in run.headline)
    earlier = [r.path.name for r in run_set.runs if r.status == "finished" and r != run]
    sentence = f"On the test rows: {test}."
    if earlier:
        sentence += f" (They were also scored for {', '.join(earlier)}, the best before.)"
    return [verdict, sentence]


def _trials_table(study: optuna.Study, metric: str) -> Table:
    trials = list_trials(study)
    names = list(dict.fromkeys(name for trial in trials for name in trial.params))
    lines = []
    for trial in trials:
        scores = {}
        reason = ""
        if trial.state == TrialState.COMPLETE:
            scores[metric] = trial.value
        elif trial.state == TrialState.FAIL:
            reason = reason_of(trial)
        line = score_row(trial_name(trial.number), scores, [metric])
        for name in names:
            line.append(Cell(short(trial.params.get(name, "")), kind="number"))
        line.append(Cell(trial.state.name.lower(), reason))
        lines.append(line)
    return Table("Trials, scores on the validation rows", ["", metric, *names, ""], lines)


def _history(study: optuna.Study, metric: str) -> Plot:
    """Plot the score of each complete trial, and the best so far, by minutes since the start."""
    trials = study.trials_dataframe(("value", "state", "datetime_start", "datetime_complete"))
    complete = trials[trials["state"] == "COMPLETE"].sort_values("datetime_complete")
    start = trials["datetime_start"].min()
    minutes = (complete["datetime_complete"] - start) / pd.Timedelta(minutes=1)
    values = complete["value"]
    best_so_far = values.cummin()
    if study.direction == StudyDirection.MAXIMIZE:
        best_so_far = values.cummax()
    figure, (axes,) = plots.panels(1, height=2.6)
    axes.plot(minutes, values, "o", color=plots.BLUE, label="trial")
    axes.step(minutes, best_so_far, where="post", color=plots.COLOURS[1], label="best so far")
    plots.label_axes(axes, f"Validation {metric}", x="minutes")
    return Plot(
        "history", f"Validation {metric} of each trial by time, and the best so far.", figure
    )


def _restyled(name: str, alt: str, panel: Axes) -> Plot:
    """Return a plot of Optuna in the style of the page."""
    figure = panel.get_figure(root=True)
    assert figure is not None
    pyplot.close(figure)  # or a notebook shows it
    figure.set_figwidth(plots.WIDTH)
    for axes in figure.axes:
        axes.set_facecolor("none")
        axes.grid(False)
    for text in figure.findobj(Text):
        text.set_color(INK)
    return Plot(name, alt, figure)
