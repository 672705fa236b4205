"""What the curves of a training say, in words: see :mod:`finetune.statistics.trend`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from finetune.reporting import wording
from finetune.statistics import groups, trend
from finetune.statistics.intervals import Interval
from finetune.statistics.trend import Curve, Verdict
from finetune.training.manifest import Manifest

#: Metrics between 0 and 1 at best, of which a hundredth is little; of all others 2% of the value.
_ERRORS = ("mse", "rmse", "mae", "log_loss", "brier_score", "mean_absolute_error", "hamming_loss")
_POINT, _SHARE = 0.01, 0.02
#: Means over rows, of which the noise is known without groups, if too large.
_SHARES = ("accuracy", "subset_accuracy")
_LENGTH = {"num_train_epochs", "max_steps"}
#: Verdicts after which something is to be done.
_ACT = ("overfits", "worsens", "rises", "improves", "best")


@dataclass(frozen=True)
class Course:
    """What is said of the course of a training.

    Attributes:
        sentences: The most important first.
        note: What the intervals in them are; empty without any.
        to_do: The first sentence after which something is to be done; empty if there is none.
    """

    sentences: list[str]
    note: str = ""
    to_do: str = ""


def of(manifest: Manifest) -> Course:
    """Return it, of the history in ``run.json``.

    Raises:
        UserError: if that is damaged.
    """
    return _Told(manifest).course()


class _Told:
    """The evaluations of a run that can be compared, and sentences about them."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest, arguments = manifest, manifest.arguments
        history = manifest.history
        # what was logged before other settings or data counts for nothing
        since = max(
            (each["step"] for each in manifest.resumed if {*each.get("allowed", {})} - _LENGTH),
            default=-1,
        )
        history = [each for each in history if each.get("step", 0) > since]
        self.logged = [
            (int(each["step"]), float(each["loss"]))
            for each in history
            if _is_finite(each.get("loss"))
        ]
        evaluations = [each for each in history if _is_finite(each.get("eval_loss"))]
        stride = -(-len(evaluations) // trend.MOST_EVALUATIONS) or 1
        self.evaluations = evaluations[::-1][::stride][::-1]
        self.chosen = str(arguments.get("metric_for_best_model")).removeprefix("eval_")
        self.epochs = {int(each["step"]): each.get("epoch") for each in evaluations}
        last = self.evaluations[-1].get("groups", {}) if self.evaluations else {}
        self.rows = int(last.get("rows", manifest.data.rows.get("validation", 0)))
        self.metric = next((name for name in last if name not in ("rows", "loss")), self.chosen)
        self.is_saved = str(arguments.get("load_best_model_at_end")) == "True"

    def course(self) -> Course:
        """Return what is said."""
        if len(self.evaluations) < trend.FEWEST_EVALUATIONS:
            return Course([self._too_few()] if self.manifest.steps else [])
        if self.rows < trend.FEWEST_ROWS:
            few = f"{self.rows} validation rows are too few to tell a trend from chance."
            return Course([few])
        loss = self._curve("loss")
        metric = self._curve(self.metric) if self.metric != "loss" else None
        verdicts = trend.judge(
            loss, metric, self.logged, self.manifest.best_step, by_loss=self.chosen == "loss"
        )
        sentences = [self._sentence(each) for each in verdicts]
        if not sentences:
            return Course([])
        note = (
            "95% confidence intervals that hold together for all "
            f"{len(self.evaluations):,} evaluations, on {self.rows:,} validation rows"
        )
        if loss is None:
            note += ", wider than need be: this run did not keep which rows changed"
        if not any(each.is_sure for each in verdicts):
            note += "; with so few evaluations, how far checkpoints scatter is not known"
        to_do = [
            sentence
            for sentence, each in zip(sentences, verdicts, strict=True)
            if each.kind in _ACT and not (each.kind == "best" and self.is_saved)
        ]
        return Course(sentences, f"{note}.", to_do[0] if to_do else "")

    def _curve(self, name: str) -> Curve | None:
        """Return the curve of a score, where its noise is known."""
        key, direction = f"eval_{name}", -1
        if name != "loss":
            direction = wording.directions(self.manifest).get(name, 0)
        found = [each for each in self.evaluations if _is_finite(each.get(key))]
        if not found or not direction:
            return None
        paired = [each for each in found if each.get("groups", {}).get("rows") == self.rows]
        steps = [int(each["step"]) for each in paired or found]
        values = [float(each[key]) for each in paired or found]
        is_share = name != "loss" and name not in _ERRORS
        negligible = _POINT if is_share else _SHARE * abs(values[-1])
        decoded = [groups.decode(each["groups"][name]) for each in paired if name in each["groups"]]
        same = {len(each) for each in decoded}
        if len(decoded) == len(paired) > 0 and len(same) == 1 and np.isfinite(decoded).all():
            return Curve.of_groups(
                steps,
                values,
                np.stack(decoded),
                direction=direction,
                negligible=negligible,
                least=math.sqrt(0.5) / self.rows if is_share else 0.0,
            )
        if name in _SHARES:
            return Curve.of_shares(steps, values, self.rows, negligible)
        return None

    def _too_few(self) -> str:
        steps = self.manifest.steps or 0
        count = len(self.evaluations)
        told = f"{count} evaluation{'s' * (count != 1)} cannot show a trend"
        if not count:
            told = "No evaluation has a finite loss"
        return (
            f"{told}: to see whether the model overfits or still improves, "
            f"--eval_strategy steps --eval_steps {max(1, steps // 6)}."
        )

    def _sentence(self, verdict: Verdict) -> str:
        """Return a verdict in words, with what to type where there is something."""
        name = "validation loss" if verdict.is_loss else f"validation {wording.name(self.metric)}"
        since, kept = f"from {self._at(verdict.start)} to {self._at(None)}", self._kept()
        moved = f"{name[0].upper()}{name[1:]} {_moved(verdict.change)}"
        match verdict.kind:
            case "overfits":
                so = "the model overfits" if verdict.is_sure else "the model seems to overfit"
                return f"{moved} {since} while the training loss fell: {so}. {kept}"
            case "worsens":
                return (
                    f"{moved} {since}, and the training loss did not fall: the training got worse. "
                    f"{kept} A lower --learning_rate may help."
                )
            case "rises":
                return f"{moved} {since}. {kept}"
            case "disagrees":
                assert verdict.other is not None
                metric = f"validation {wording.name(self.metric)} {_moved(verdict.other)}"
                if verdict.change.value < 0:
                    return f"{moved} {since}, but {metric}: they disagree. {kept}"
                return (
                    f"{moved} {since}, but {metric}: decisions get better, and the mistakes more "
                    f"confident. {kept}"
                )
            case "improves":
                return f"{moved} {since}: it still improves.{self._longer()}"
            case "stopped":
                return (
                    f"{name[0].upper()}{name[1:]} stopped improving at {self._at(verdict.start)}: "
                    f"from there to {self._at(None)} {_change(verdict.change)}."
                )
            case "unclear":
                return (
                    f"Whether {name} still improves cannot be told: {since} it changed by "
                    f"{_change(verdict.change)}."
                )
        best = f"the best checkpoint, {self._at(verdict.start)}"
        if verdict.kind == "best":
            lost = f"{moved} from {best}, to the last"
            kept = "The best is saved." if self.is_saved else kept
            return f"{lost}: more than noise. {kept}"
        return (
            f"From {best}, to the last {name} changed by {_change(verdict.change)}: no more than "
            "noise."
        )

    def _at(self, step: int | None) -> str:
        """Return what a reader calls an evaluation, the last one if None: its epoch, if whole."""
        step = int(self.evaluations[-1]["step"]) if step is None else step
        whole = all(_is_whole(each.get("epoch")) for each in self.evaluations)
        return f"epoch {round(float(self.epochs[step] or 0))}" if whole else f"step {step:,}"

    def _kept(self) -> str:
        best = self.manifest.best_step
        if self.is_saved and best in self.epochs:
            return f"The saved model is that of {self._at(best)}."
        return "The saved model is the last; --load_best_model_at_end true saves the best."

    def _longer(self) -> str:
        """Return what to type to train longer; nothing if the training was stopped."""
        if self.manifest.stopped_early:
            return ""
        steps, epochs = (
            float(self.manifest.arguments.get(name) or 0)
            for name in ("max_steps", "num_train_epochs")
        )
        if steps > 0:
            return f" More steps may help: --max_steps {math.ceil(1.5 * steps)}."
        return f" More epochs may help: --num_train_epochs {math.ceil(1.5 * epochs)}."


def _moved(change: Interval) -> str:
    """Return by how much a score rose or fell, with its interval."""
    up = change.value > 0
    low, high = sorted((abs(change.low), abs(change.high)))
    if change.low <= 0 <= change.high:
        return f"changed by {_change(change)}"
    found = {"value": abs(change.value), "low": low, "high": high}
    return f"{'rose' if up else 'fell'} by {_parted(wording.interval(found))}"


def _change(change: Interval) -> str:
    found = {"value": change.value, "low": change.low, "high": change.high}
    return _parted(wording.interval(found, signed=True))


def _parted(interval: str) -> str:
    """Return an interval in parentheses, inside a sentence."""
    value, _, rest = interval.partition(", ")
    return f"{value} ({rest})" if rest else value


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _is_whole(epoch: Any) -> bool:
    return _is_finite(epoch) and abs(epoch - round(epoch)) < 1e-6
