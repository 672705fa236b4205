"""Intervals of metrics of which nothing is known, and those of which it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from transformers import EvalPrediction

from finetune.statistics import counts, intervals

#: Of so many rows a whole evaluation takes too long to be repeated as often.
_MANY_ROWS, _FEWER_DRAWS = 5_000, 200
_SECONDS_OF_SILENCE = 10.0
Compute = Callable[[EvalPrediction], dict[str, float]]
#: The arguments of local metrics, by their names.
Scoring = Mapping[str, Mapping[str, Any]]
#: The key of the folder in ``metrics/`` among the arguments of a metric of another name.
MODULE = "module"
#: What a task knows its metrics by: functions of tallies, see
#: :func:`finetune.statistics.counts.tallies`, or those of :mod:`finetune.statistics.numbers`.
Metrics = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long metrics of which nothing is known are repeated on resamples.

    Attributes:
        seconds: After which no further resample is drawn, for the model and for each baseline.
        fewest: Resamples that are drawn in any case.
        clock: Seconds that pass.
        tell: Is given a sentence every ten seconds.
    """

    seconds: float = 30.0
    fewest: int = 50
    clock: Callable[[], float] = time.monotonic
    tell: Callable[[str], object] = lambda sentence: None


class Resampled:
    """Metrics of which nothing is known: each resample of the rows is a whole evaluation.

    Metrics that are no single number are left out; so are resamples for which one is not defined,
    because a class is missing in them. Resample ``n`` has the same rows for every model.
    """

    def __init__(
        self, compute: Compute, outputs: np.ndarray, labels: np.ndarray, budget: Budget
    ) -> None:
        self.compute, self.labels, self.budget = compute, labels, budget
        whole = compute(EvalPrediction(predictions=_single(outputs), label_ids=labels))
        self.names = [name for name, value in whole.items() if np.ndim(value) == 0]
        self.values = np.array([float(whole[name]) for name in self.names])
        most = intervals.DRAWS if len(labels) <= _MANY_ROWS else _FEWER_DRAWS
        self.drawn = self._drawn(outputs, most)
        self.cut_short = len(self.drawn) < most

    def metrics(self) -> dict[str, Any]:
        """Return the interval of each metric, and on how many ``draws`` it rests."""
        return self._intervals(self.values, self.drawn)

    def beyond(self, outputs: np.ndarray) -> dict[str, Any]:
        """Return the same of the differences to other outputs on the same rows."""
        values = self._evaluated(outputs, np.arange(len(self.labels)))
        drawn = self._drawn(outputs, len(self.drawn))
        return self._intervals(self.values - values, self.drawn[: len(drawn)] - drawn)

    def _intervals(self, values: np.ndarray, drawn: np.ndarray) -> dict[str, Any]:
        found = intervals.of_draws(values, drawn)
        return {
            name: asdict(each) | {"draws": len(drawn)}
            for name, each in zip(self.names, found, strict=True)
        }

    def _drawn(self, outputs: np.ndarray, most: int) -> np.ndarray:
        """Evaluate resamples while the budget lasts; shape ``(draws, metrics)``."""
        rows, budget, drawn = len(self.labels), self.budget, []
        started = told = budget.clock()
        for number in range(most if self.names else 0):
            now = budget.clock()
            if number >= budget.fewest and now - started > budget.seconds:
                break
            if now - told > _SECONDS_OF_SILENCE:
                told = now
                budget.tell(
                    f"confidence intervals of {', '.join(self.names)}: {number:,} of "
                    f"{most:,} resamples evaluated"
                )
            generator = np.random.default_rng([intervals.SEED, number])
            drawn.append(self._evaluated(outputs, generator.integers(rows, size=rows)))
        return np.array(drawn).reshape(len(drawn), len(self.names))

    def _evaluated(self, outputs: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the metrics of some rows, shape ``(metrics,)``."""
        some = EvalPrediction(predictions=_single(outputs[rows]), label_ids=self.labels[rows])
        try:
            found = self.compute(some)
        except Exception:  # all rows could be evaluated: these lack a class, or the like
            return np.full(len(self.names), np.nan)
        return np.array([float(found[name]) for name in self.names])


def _single(outputs: np.ndarray) -> np.ndarray:
    """Return outputs as a model gives them to its metrics: a file has float16."""
    return outputs.astype(np.float32) if outputs.dtype == np.float16 else outputs


def of_counts(scoring: Scoring) -> Metrics:
    """Return those of the local metrics that are functions of confusion matrices."""
    found = {name: counts.metric(*module_of(name, each)) for name, each in scoring.items()}
    return {name: metric for name, metric in found.items() if metric is not None}


def module_of(name: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the folder in ``metrics/`` of a metric, and the arguments of its ``compute``."""
    others = {key: each for key, each in arguments.items() if key != MODULE}
    return str(arguments.get(MODULE, name)), others


def has_others(scoring: Scoring, metrics: Metrics) -> bool:
    """Return whether a recipe has metrics that are none of counts: its own, of which nothing is
    known, or local ones with arguments under which they are none.
    """
    return not scoring or len(metrics) < len(scoring)
