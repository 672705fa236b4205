"""Simulate how often the 95% confidence intervals of the toolkit contain the true value.

    python benchmarks/coverage.py                  10,000 repeats; about half an hour
    python benchmarks/coverage.py --repeats 1000 --only f1

Each case samples test rows from a known distribution and estimates a metric as a run does. "given"
is the share of samples with an interval (too few rows have none), "holds" the share of these that
contains the value of 2,000,000 rows. The goal is 0.93 or more.
"""

from __future__ import annotations

import argparse
import time
import unittest.mock
from collections.abc import Callable
from typing import Any

import numpy as np

from finetune.statistics import estimates, metrics
from finetune.statistics.metrics import METRICS
from finetune.statistics.scored import Probabilities, ScoredLabels, ScoredNumbers, ScoredRows

#: Samples rows for a number of models, which share half of their noise: (generator, rows, models).
Draw = Callable[[np.random.Generator, int, int], list[Any]]
SAMPLES, SAMPLE = 20, 100_000


def classes(shares: list[float], right: list[float], *, are_stars: bool = False) -> Draw:
    """Return a sampler of classes with these accuracies; mistakes between stars are near."""

    def draw(generator: np.random.Generator, rows: int, models: int) -> list[Any]:
        count = len(shares)
        labels = generator.choice(count, p=np.array(shares) / sum(shares), size=rows)
        shared, samples = generator.random(rows), []
        for _ in range(models):
            noise = np.where(generator.random(rows) < 0.5, shared, generator.random(rows))
            mistakes = (labels + generator.integers(1, count, size=rows)) % count
            if are_stars:
                off = generator.choice([-2, -1, 1, 2], size=rows, p=[0.1, 0.4, 0.4, 0.1])
                mistakes = np.clip(labels + off, 0, count - 1)
            predicted = np.where(noise < np.array(right)[labels], labels, mistakes)
            one_hot = Probabilities(np.eye(count)[predicted])
            samples.append(ScoredRows(labels, ["c"] * count, one_hot))
        return samples

    return draw


def scores(shares: list[float], skill: float, *, are_labels: bool = False) -> Draw:
    """Return a sampler of classes, or of correlated labels, with logits ``skill`` apart."""

    def draw(generator: np.random.Generator, rows: int, models: int) -> list[Any]:
        count, shape = len(shares), (rows, len(shares))
        labels = generator.choice(count, p=np.array(shares) / sum(shares), size=rows)
        factor = np.where(generator.random((rows, 1)) < 0.5, 1.5, 0.5)
        has = generator.random(shape) < np.array(shares) * factor
        shared, samples = generator.normal(size=shape), []
        for _ in range(models):
            logits = (shared + generator.normal(size=shape)) / 2**0.5
            if are_labels:
                sigmoid = Probabilities(logits + skill * (has - 0.5), "sigmoid")
                samples.append(ScoredLabels(has, ["l"] * count, sigmoid))
            else:
                softmax = Probabilities(logits + skill * np.eye(count)[labels], "softmax")
                samples.append(ScoredRows(labels, ["c"] * count, softmax))
        return samples

    return draw


def numbers(freedom: float) -> Draw:
    """Return a sampler of numbers; errors have Student's t distribution (5: heavy tails)."""

    def draw(generator: np.random.Generator, rows: int, models: int) -> list[Any]:
        true = generator.normal(size=rows)
        errors = [generator.standard_t(freedom, size=rows) for _ in range(models)]
        return [ScoredNumbers(true, true + 0.5 * error) for error in errors]

    return draw


def even(count: int, right: float, *, are_stars: bool = False) -> Draw:
    """Return a sampler of equally frequent classes."""
    return classes([1.0] * count, [right] * count, are_stars=are_stars)


RARE, RARE_SCORES = classes([0.95, 0.05], [0.95, 0.5]), scores([0.95, 0.05], 1.5)
STARS, SURE_STARS = even(5, 0.5, are_stars=True), even(5, 0.98, are_stars=True)
LABELS, SURE_LABELS = (scores([0.3] * 5, skill, are_labels=True) for skill in (2, 5))
RARE_LABELS = scores([0.4, 0.2, 0.05], 2, are_labels=True)
#: The name of the data, the sampler, the metrics, and the numbers of rows.
CASES: list[tuple[str, Draw, str, list[int]]] = [
    ("3 classes", even(3, 0.8), "accuracy f1_macro f1_weighted matthews_correlation", [200]),
    ("3 classes, .99", even(3, 0.99), "accuracy f1_macro matthews_correlation", [200]),
    ("10 classes", even(10, 0.8), "f1_macro recall_macro", [25, 250]),
    ("20 classes", even(20, 0.8), "f1_macro", [2000]),
    ("100 classes", even(100, 0.8), "f1_macro", [1000]),
    ("5% class", RARE, "f1_macro f1_binary", [30, 300]),
    ("5 stars", STARS, "quadratic_kappa mean_absolute_error", [200]),
    ("5 stars, .98", SURE_STARS, "quadratic_kappa", [200]),
    ("2 classes", scores([1, 1], 1.5), "roc_auc average_precision log_loss brier_score", [200]),
    ("2 classes, .99", scores([1, 1], 3.5), "roc_auc average_precision log_loss", [200]),
    ("2 classes, .99", scores([1, 1], 3.5), "brier_score", [200]),
    ("20 classes", scores([1] * 20, 1.5), "top_5_accuracy brier_score", [250]),
    ("5% class", RARE_SCORES, "roc_auc average_precision", [300]),
    ("10 classes", scores([1] * 10, 1.5), "roc_auc average_precision", [250]),
    ("5 labels", LABELS, "f1_micro f1_macro f1_samples average_precision log_loss", [200]),
    ("5 labels", LABELS, "brier_score", [200]),
    ("5 labels, .99", SURE_LABELS, "f1_micro f1_macro average_precision hamming_loss", [200]),
    ("rare labels", RARE_LABELS, "f1_macro average_precision", [400]),
    ("numbers", numbers(1e9), "r2 mae rmse pearson spearman", [30, 200]),
    ("heavy tails", numbers(5), "r2 mae rmse", [200]),
    ("difference, 3 classes", even(3, 0.8), "accuracy f1_macro matthews_correlation", [200]),
    ("difference, .99", even(3, 0.99), "accuracy f1_macro", [200]),
    ("difference, 5% class", RARE, "f1_macro f1_binary", [300]),
    ("difference, 5 stars", STARS, "quadratic_kappa", [50, 200]),
    ("difference, stars .98", SURE_STARS, "quadratic_kappa", [200]),
    ("difference, 2 classes", scores([1, 1], 1.5), "roc_auc average_precision log_loss", [200]),
    ("difference, 2 classes", scores([1, 1], 1.5), "brier_score", [200]),
    ("difference, 20 classes", scores([1] * 20, 1.5), "top_5_accuracy brier_score", [250]),
    ("difference, 5% class", RARE_SCORES, "roc_auc average_precision", [300]),
    ("difference, 5 labels", LABELS, "f1_micro f1_macro average_precision", [200]),
    ("difference, numbers", numbers(1e9), "r2 mae pearson", [200]),
]


def simulate(draw: Draw, name: str, rows: int, models: int, repeats: int) -> tuple[float, ...]:
    """Return the shares of intervals, and of those with the truth, and their mean width."""

    def run(seed: int, count: int) -> dict[str, float]:
        samples = draw(np.random.default_rng([seed, rows]), count, models)
        function = metrics.estimate if models == 1 else metrics.estimate_difference
        return function(*samples, {name: METRICS[samples[0].kind, name]})[name]

    with unittest.mock.patch.multiple(estimates, GROUPS=2, MAX_GROUPS=2):  # only the value
        truth = np.mean([run(10**6 + number, SAMPLE)["value"] for number in range(SAMPLES)])
    ends = np.array([[*run(seed, rows).values()][1:] for seed in range(repeats)])
    ends = ends[~np.isnan(ends[:, 0])]
    if not len(ends):
        return 0.0, np.nan, np.nan
    holds = (ends[:, 0] <= truth) & (truth <= ends[:, 1])
    return len(ends) / repeats, float(holds.mean()), float((ends[:, 1] - ends[:, 0]).mean())


def main() -> None:
    """Print a table with a line for each case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=10_000)
    parser.add_argument("--only", default="", help="cases with this text in their name")
    options = parser.parse_args()
    print(f"{'case':48} {'given':>6} {'holds':>6} {'width':>6} {'s':>5}")
    for kind, draw, names, sizes in CASES:
        for name, rows in ((name, rows) for name in names.split() for rows in sizes):
            title, started = f"{kind}, {rows:,} rows: {name}", time.perf_counter()
            if options.only in title:
                models = 1 + kind.startswith("difference")
                figures = simulate(draw, name, rows, models, options.repeats)
                line = " ".join(f"{figure:6.3f}" for figure in figures)
                print(f"{title:48} {line} {time.perf_counter() - started:5.0f}", flush=True)


if __name__ == "__main__":
    main()
