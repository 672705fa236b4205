"""The report of a search: trials, history, and the importance of options."""

import warnings
from typing import Any

import optuna
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.text import Text
from optuna.exceptions import ExperimentalWarning
from optuna.trial import TrialState
from optuna.visualization import matplotlib as optuna_plots

from finetune.errors import counted
from finetune.recipe.run import Run
from finetune.reporting import plots
from finetune.reporting.plots import INK, Plot
from finetune.reporting.tables import Cell, Table, format_number, format_score, score_row
from finetune.sets.run_set import RunSet
from finetune.sets.trials import open_study, reason_of, short, trial_name, trials_in

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
    with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
        if complete:
            history = optuna_plots.plot_optimization_history(study, target_name=manifest.metric)
            figures.append(_restyled("history", "Score of each trial, and the best.", history))
        if len(complete) >= _MIN_TRIALS and len(complete[0].params) > 1:
            importances = optuna_plots.plot_param_importances(study)
            figures.append(_restyled("importances", "The importance of each option.", importances))
            coordinates = optuna_plots.plot_parallel_coordinate(study)
            figures.append(_restyled("coordinates", "Values and score of each trial.", coordinates))
    if complete and manifest.winner == trial_name(study.best_trial.number):
        verdicts = _describe_winner(run_set, study)
    return {"Trials": [table], "Plots": [figures]}, verdicts


def _describe_winner(run_set: RunSet, study: optuna.Study) -> list[str]:
    manifest = run_set.manifest
    run = Run(run_set.path / str(manifest.winner))
    count = len(trials_in(study))
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
    trials = trials_in(study)
    names = list(dict.fromkeys(name for trial in trials for name in trial.params))
    lines = []
    for trial in trials:
        value, reason = None, ""
        if trial.state == TrialState.COMPLETE:
            value = trial.value
        elif trial.state == TrialState.FAIL:
            reason = reason_of(trial)
        line = score_row(trial_name(trial.number), {metric: value}, [metric])
        for name in names:
            line.append(Cell(short(trial.params.get(name, "")), kind="number"))
        line.append(Cell(trial.state.name.lower(), reason))
        lines.append(line)
    return Table("Trials, scores on the validation rows", ["", metric, *names, ""], lines)


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
