"""What the curves of a training say: whether it overfits, still improves, has a best checkpoint.

All statements are about the changes from each evaluation to the last. Their 95% confidence
intervals hold together, over all evaluations and both curves, loss and metric: an evaluation may be
picked because it looks best, and among many some look good by chance. The critical value is the
quantile of the largest of all these changes, in standard errors, where nothing changes (Westfall
and Young, Resampling-Based Multiple Testing, 1993; the single step of Hothorn, Bretz and Westfall,
Biometrical Journal 50, 2008), with the correlations of evaluations of the same rows.

Two kinds of noise are in a standard error: that of the rows, and how far the checkpoints themselves
scatter around a smooth curve, from their third differences (those of a parabola are zero), which is
known from seven evaluations on.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import block_diag
from scipy.stats import chi2

from finetune.statistics.intervals import LEVEL, SEED, Interval

#: Fewer are no curve.
FEWEST_EVALUATIONS = 3
#: Rows below which a spread over them is not known well enough.
FEWEST_ROWS = 20
#: The end of the training over which it is judged whether it still improves, a share of the steps.
_END = 0.25
_DRAWS, _AT_ONCE = 2000, 2_000_000
#: Evaluations that are compared at most; of more, every n-th.
MOST_EVALUATIONS = 500
#: Third differences from which the scatter is known, how many of them are independent, a share, and
#: the probability with which it is larger than it is taken for.
_FEWEST_BENDS, _INDEPENDENT, _CAUTION = 4, 0.5, 0.25
_LOGGED_FEWEST = 2
#: Standard errors by which a training loss has to differ to have fallen or not.
_FALLEN = 2.0


@dataclass(frozen=True)
class Curve:
    """A score over the evaluations of a training.

    Attributes:
        steps: Of the evaluations, ascending, shape ``(evaluations,)``.
        values: Of the score, shape ``(evaluations,)``.
        errors: Noise that the rows have in common, shape ``(groups, evaluations)``: the covariance
            of the values is ``errors.T @ errors``. There are no groups where it is not known.
        own: Standard errors of what each evaluation has of its own, shape ``(evaluations,)``.
        freedom: Degrees of freedom of that covariance; infinite if it is known.
        direction: 1 if more is better, -1 if less is.
        negligible: A change that nobody would train longer for.
    """

    steps: np.ndarray
    values: np.ndarray
    errors: np.ndarray
    own: np.ndarray
    freedom: float
    direction: int
    negligible: float

    @classmethod
    def of_groups(
        cls,
        steps: Sequence[int],
        values: Sequence[float],
        groups: np.ndarray,
        *,
        direction: int,
        negligible: float,
        least: float = 0.0,
    ) -> Curve:
        """Return a curve whose evaluations are of the same rows.

        Args:
            steps: Of the evaluations.
            values: Of the score.
            groups: See :mod:`finetune.statistics.groups`; shape ``(evaluations, groups)``.
            direction: See :class:`Curve`.
            negligible: Likewise.
            least: A standard error of each value that is there in any case: what is unknown of a
                share of rows where no row changes.
        """
        count = groups.shape[1]
        errors = (groups - groups.mean(axis=1, keepdims=True)).T / np.sqrt(count * (count - 1))
        own = np.full(len(steps), least)
        return cls._scattered(steps, values, errors, own, count - 1, direction, negligible)

    @classmethod
    def of_shares(
        cls, steps: Sequence[int], values: Sequence[float], rows: int, negligible: float
    ) -> Curve:
        """Return a curve of shares of rows, of which it is not known which ones: as if each
        evaluation had rows of its own, which is more noise than there is.
        """
        smooth = (np.asarray(values) * rows + 2) / (rows + 4)  # Agresti and Coull, 1998
        own, none = np.sqrt(smooth * (1 - smooth) / (rows + 4)), np.empty((0, len(steps)))
        return cls._scattered(steps, values, none, own, np.inf, 1, negligible)

    @classmethod
    def _scattered(
        cls,
        steps: Sequence[int],
        values: Sequence[float],
        errors: np.ndarray,
        own: np.ndarray,
        freedom: float,
        direction: int,
        negligible: float,
    ) -> Curve:
        found = np.asarray(values, dtype=np.float64)
        bends = np.diff(np.eye(len(found)), n=3, axis=0)
        bends = bends[-max(_FEWEST_BENDS, len(bends) // 2) :]  # early ones are no noise
        if len(bends) >= _FEWEST_BENDS:
            of_rows = ((errors @ bends.T) ** 2).sum(axis=0) + ((own * bends) ** 2).sum(axis=1)
            independent = _INDEPENDENT * len(bends)
            most = independent / chi2.ppf(_CAUTION, independent)
            # a third difference of white noise has 20 times its variance
            scatter = float(((bends @ found) ** 2).mean() * most - of_rows.mean()) / 20
            own = np.sqrt(own**2 + max(0.0, scatter))
        return cls(np.asarray(steps), found, errors, own, freedom, direction, negligible)

    @property
    def best(self) -> int:
        """The index of the best evaluation."""
        return int(np.argmax(self.direction * self.values))

    @property
    def end(self) -> int:
        """The index of the evaluation from which on the end of the training is."""
        early = np.flatnonzero(self.steps <= (1 - _END) * self.steps[-1])
        return int(early[-1]) if len(early) else 0


@dataclass(frozen=True)
class Verdict:
    """A statement about the curves.

    Attributes:
        kind: ``overfits``: the validation loss rose while the training loss fell; ``worsens``: it
            rose, and the training loss did not fall; ``rises``: it rose, and nothing is known of
            the training loss; ``disagrees``: loss and metric went different ways; ``improves``:
            the end of the training still made it better; ``stopped``: from some evaluation on
            nothing that matters was gained; ``unclear``: which of the two cannot be told;
            ``best``: the best checkpoint is better than the last; ``alike``: it is not known to be.
        is_loss: Whether ``change`` is of the validation loss, and not of the metric.
        start: The step from which on.
        change: Of the score until the last evaluation, in its own units.
        is_sure: Whether it is known how far the checkpoints scatter; of few evaluations, a change
            of the last one may be no trend.
        other: Where they disagree, the change of the metric.
    """

    kind: str
    is_loss: bool
    start: int
    change: Interval
    is_sure: bool
    other: Interval | None = None


def judge(
    loss: Curve | None,
    metric: Curve | None,
    logged: Sequence[tuple[int, float]] = (),
    kept: int | None = None,
    *,
    by_loss: bool = False,
) -> list[Verdict]:
    """Return what can be said, the most important first; nothing of fewer than three evaluations.

    Args:
        loss: The validation loss.
        metric: A metric; the one that the best checkpoint is chosen by, unless that is the loss.
        logged: Step and training loss. It is compared with itself only: weighted, focal, under
            dropout or augmentation it is on another scale than the validation loss.
        kept: The step of the checkpoint that was chosen as the best; the best one if None.
        by_loss: Whether it was chosen by the loss.
    """
    curves = [each for each in (loss, metric) if each and len(each.steps) >= FEWEST_EVALUATIONS]
    judged = dict(zip(map(id, curves), changes(curves), strict=True))
    of_loss = _Judged(loss, judged[id(loss)]) if loss and id(loss) in judged else None
    of_metric = _Judged(metric, judged[id(metric)]) if metric and id(metric) in judged else None
    found = []
    if of_loss:
        found += _of_loss(of_loss, of_metric, logged)
    lead = of_loss if by_loss and of_loss else of_metric or of_loss
    if lead is None:
        return found
    worse = any(each.kind in ("overfits", "worsens", "rises") for each in found)
    verdict = _of_end(lead, is_loss=lead is of_loss)
    if verdict and verdict.kind == "unclear" and of_loss and lead is of_metric and not found:
        falling = _of_end(of_loss, is_loss=True)
        verdict = falling if falling and falling.kind == "improves" else verdict
    if verdict and not (worse and (verdict.kind != "stopped" or lead is of_loss)):
        found.append(verdict)
    if not (worse and lead is of_loss):
        found += _of_best(lead, kept, is_loss=lead is of_loss)
    return found


def changes(curves: Sequence[Curve]) -> list[list[Interval]]:
    """Return the change from each evaluation but the last to the last, of each curve, with
    intervals that hold together with a confidence of 95%.
    """
    gaps = [each.values[-1] - each.values[:-1] for each in curves]
    shared = [each.errors[:, -1:] - each.errors[:, :-1] for each in curves]
    own = [
        np.concatenate([-np.diag(each.own[:-1]), np.full((1, len(gap)), each.own[-1])])
        for each, gap in zip(curves, gaps, strict=True)
    ]
    errors = [
        np.sqrt((one**2).sum(axis=0) + (other**2).sum(axis=0))
        for one, other in zip(shared, own, strict=True)
    ]
    freedom = min((each.freedom for each in curves), default=np.inf)
    reach = _critical(shared, own, errors, freedom)
    return [
        [
            Interval(float(gap), float(gap - reach * error), float(gap + reach * error))
            for gap, error in zip(*each, strict=True)
        ]
        for each in zip(gaps, errors, strict=True)
    ]


def _critical(
    shared: list[np.ndarray], own: list[np.ndarray], errors: list[np.ndarray], freedom: float
) -> float:
    """Return the 95% quantile of the largest change of all, in standard errors.

    Args:
        shared: Of each curve, the noise of the rows in each change, ``(groups, changes)``.
        own: Likewise that of each evaluation, ``(evaluations, changes)``.
        errors: The standard errors, ``(changes,)``.
        freedom: Their degrees of freedom.
    """
    if not errors or not np.concatenate(errors).any():
        return 0.0
    groups = max(len(each) for each in shared)
    of_rows = [np.pad(each, ((0, groups - len(each)), (0, 0))) for each in shared]
    sources = np.concatenate([np.concatenate(of_rows, axis=1), block_diag(*own)])
    error = np.concatenate(errors)
    scaled = sources[:, error > 0] / error[error > 0]
    normal, spread = _drawn(len(scaled), freedom)
    at_once = max(1, _AT_ONCE // scaled.shape[1])
    largest = [
        np.abs(normal[start : start + at_once] @ scaled).max(axis=1)
        for start in range(0, _DRAWS, at_once)
    ]
    found = np.concatenate(largest) / spread
    return float(np.quantile(found, LEVEL))


@functools.lru_cache(maxsize=1)
def _drawn(sources: int, freedom: float) -> tuple[np.ndarray, np.ndarray]:
    """Return normal draws, shape ``(draws, sources)``, and what divides them to be Student's."""
    generator = np.random.default_rng(SEED)
    normal = generator.standard_normal((_DRAWS, sources))
    if not np.isfinite(freedom):
        return normal, np.ones(_DRAWS)
    return normal, np.sqrt(generator.chisquare(freedom, _DRAWS) / freedom)


@dataclass(frozen=True)
class _Judged:
    """A curve with its changes to the last evaluation."""

    curve: Curve
    to_last: list[Interval]

    def gain(self, index: int) -> Interval:
        """Return a change such that more is better."""
        each = self.to_last[index]
        if self.curve.direction > 0:
            return each
        return Interval(-each.value, -each.high, -each.low)

    def said(self, kind: str, index: int, *, is_loss: bool) -> Verdict:
        """Return a verdict about the change from an evaluation on."""
        steps, change = self.curve.steps, self.to_last[index]
        return Verdict(kind, is_loss, int(steps[index]), change, len(steps) >= _FEWEST_BENDS + 3)


def _of_loss(
    loss: _Judged, metric: _Judged | None, logged: Sequence[tuple[int, float]]
) -> list[Verdict]:
    """Return whether the loss rose from its lowest value, and whether the metric says otherwise."""
    lowest, last = loss.curve.best, len(loss.curve.steps) - 1
    if lowest < last and _lost(loss, lowest):
        rose = loss.said("rises", lowest, is_loss=True)
        if metric is not None:
            same = np.flatnonzero(metric.curve.steps == rose.start)
            if len(same) and metric.gain(int(same[0])).low > 0:
                other = metric.to_last[int(same[0])]
                return [replace(rose, kind="disagrees", other=other)]
        before = int(loss.curve.steps[lowest - 1]) if lowest else 0
        ends = (before, rose.start, int(loss.curve.steps[-2]), int(loss.curve.steps[-1]))
        falls = _fell(logged, *ends)
        kind = "rises" if falls is None else "overfits" if falls else "worsens"
        return [replace(rose, kind=kind)]
    if metric is not None and (best := metric.curve.best) < len(metric.curve.steps) - 1:
        same = np.flatnonzero(loss.curve.steps == metric.curve.steps[best])
        if len(same) and _lost(metric, best) and loss.gain(int(same[0])).low > 0:
            fell = loss.said("disagrees", int(same[0]), is_loss=True)
            return [replace(fell, other=metric.to_last[best])]
    return []


def _lost(judged: _Judged, index: int) -> bool:
    gain = judged.gain(index)
    return gain.high < 0 and -gain.value >= judged.curve.negligible


def _fell(
    logged: Sequence[tuple[int, float]], before: int, first: int, next_to_last: int, last: int
) -> bool | None:
    """Return whether the training loss fell from before one evaluation to before the last; None if
    too little was logged. The second half of each stretch counts: of the first epoch, the start is
    no measure of its end.
    """
    pair = []
    for start, end in ((before, first), (next_to_last, last)):
        inside = [value for step, value in logged if (start + end) / 2 < step <= end]
        if len(inside) < _LOGGED_FEWEST or not np.isfinite(inside).all():
            return None
        pair.append(np.array(inside))
    error = np.sqrt(sum(each.var(ddof=1) / len(each) for each in pair))
    return bool(pair[0].mean() - pair[1].mean() > _FALLEN * error)


def _of_end(judged: _Judged, *, is_loss: bool) -> Verdict | None:
    """Return whether the end of the training still made a curve better."""
    curve, end = judged.curve, judged.curve.end
    gain, later = judged.gain(end), range(end + 1, len(curve.steps) - 1)
    is_falling = any(judged.gain(each).high < 0 for each in later)
    if gain.low > 0 and gain.value >= curve.negligible / 2 and not is_falling:
        return judged.said("improves", end, is_loss=is_loss)
    flat = [judged.gain(each).high < curve.negligible for each in range(len(curve.steps) - 1)]
    start = max((n for n, each in enumerate(flat) if not each), default=-1) + 1
    if start <= min(end, len(curve.steps) - FEWEST_EVALUATIONS):
        return judged.said("stopped", start, is_loss=is_loss)
    return judged.said("unclear", end, is_loss=is_loss) if gain.high >= curve.negligible else None


def _of_best(judged: _Judged, kept: int | None, *, is_loss: bool) -> list[Verdict]:
    curve = judged.curve
    found = np.flatnonzero(curve.steps == kept) if kept is not None else np.array([curve.best])
    if not len(found) or found[0] == len(curve.steps) - 1:
        return []
    best = int(found[0])
    kind = "best" if judged.gain(best).high < 0 else "alike"
    return [judged.said(kind, best, is_loss=is_loss)]
