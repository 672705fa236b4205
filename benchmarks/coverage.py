"""How often the 95% confidence intervals of this toolkit hold the truth, by simulation.

    python benchmarks/coverage.py                  every case, 10,000 repeats; about ten minutes
    python benchmarks/coverage.py --repeats 1000 --only f1

Each case draws test rows from a known distribution, estimates a metric as a run does, and counts how
often the interval is given and how often it holds the value of 2,000,000 rows. Of the goal, 93% or
more, cases are exempt in which the table says "too few rows".
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
from finetune.statistics.probabilities import Probabilities
from finetune.statistics.scored import Kind, ScoredLabels, ScoredNumbers, ScoredRows

Draw = Callable[[np.random.Generator, int], Any]
#: Rows of the samples that the truth is the mean of.
SAMPLES, SAMPLE = 20, 100_000


def classes(shares: list[float], right: list[float], models: int = 1) -> Draw:
    """Draw rows of classes; a wrong prediction is any other class.

    Args:
        shares: Of the classes.
        right: How often a row of each class is right.
        models: With two, the second is as good, and half of its mistakes are those of the first.
    """
    count, chances = len(shares), np.array(right)

    def draw(generator: np.random.Generator, rows: int) -> Any:
        labels = generator.choice(count, p=np.array(shares) / sum(shares), size=rows)
        hard, drawn = generator.random(rows), []
        for _ in range(models):
            is_hard = generator.random(rows) < 0.5
            is_right = np.where(is_hard, hard, generator.random(rows)) < chances[labels]
            others = (labels + generator.integers(1, count, size=rows)) % count
            predicted = np.where(is_right, labels, others)
            one_hot = Probabilities(np.eye(count)[predicted])
            drawn.append(ScoredRows(labels, [*map(str, range(count))], one_hot))
        return drawn[0] if models == 1 else tuple(drawn)

    return draw


def stars(wrong: float, models: int = 1) -> Draw:
    """Draw rows of five ordered classes, of which some are a class off, and fewer two."""

    def draw(generator: np.random.Generator, rows: int) -> Any:
        labels, drawn = generator.integers(5, size=rows), []
        for _ in range(models):
            steps = generator.choice([-2, -1, 0, 1, 2], size=rows,
                                     p=np.array([0.1, 0.4, 0, 0.4, 0.1]) * wrong
                                     + np.array([0, 0, 1 - wrong, 0, 0]))  # fmt: skip
            one_hot = Probabilities(np.eye(5)[np.clip(labels + steps, 0, 4)])
            drawn.append(ScoredRows(labels, [*map(str, range(5))], one_hot))
        return drawn[0] if models == 1 else tuple(drawn)

    return draw


def scores(shares: list[float], skill: float, models: int = 1) -> Draw:
    """Draw rows of classes with probabilities of that skill."""

    def draw(generator: np.random.Generator, rows: int) -> Any:
        count = len(shares)
        labels = generator.choice(count, p=np.array(shares) / sum(shares), size=rows)
        hard = generator.normal(size=(rows, count))
        drawn = []
        for _ in range(models):
            logits = (
                skill * np.eye(count)[labels] + (hard + generator.normal(size=hard.shape)) / 2**0.5
            )
            drawn.append(ScoredRows.from_outputs([*map(str, range(count))], labels, logits))
        return drawn[0] if models == 1 else tuple(drawn)

    return draw


def labels(shares: list[float], skill: float, models: int = 1) -> Draw:
    """Draw rows of labels that come together, with logits of that skill."""

    def draw(generator: np.random.Generator, rows: int) -> Any:
        shared = generator.random((rows, 1)) < 0.5
        has = generator.random((rows, len(shares))) < np.array(shares) * np.where(shared, 1.5, 0.5)
        hard, drawn = generator.normal(size=has.shape), []
        for _ in range(models):
            noise = (hard + generator.normal(size=has.shape)) / 2**0.5
            logits = skill * (has - 0.5) + noise
            names = [*map(str, range(len(shares)))]
            drawn.append(ScoredLabels(has, names, Probabilities(logits, "sigmoid")))
        return drawn[0] if models == 1 else tuple(drawn)

    return draw


def numbers(error: str, models: int = 1) -> Draw:
    """Draw numbers and predictions with normal errors, or errors with heavy tails."""

    def draw(generator: np.random.Generator, rows: int) -> Any:
        true, drawn = generator.normal(size=rows), []
        for _ in range(models):
            tails = (
                generator.standard_t(5, size=rows) if error == "t" else generator.normal(size=rows)
            )
            drawn.append(ScoredNumbers(true, true + 0.5 * tails))
        return drawn[0] if models == 1 else tuple(drawn)

    return draw


def even(count: int, right: float) -> tuple[list[float], list[float]]:
    """Return equal classes."""
    return [1.0] * count, [right] * count


RARE = [0.95, 0.05], [0.95, 0.5]
#: Name, kind, metric, how rows are drawn, and how many.
CASES: list[tuple[str, Kind, str, Draw, int]] = [
    ("accuracy, 200 rows", "classes", "accuracy", classes(*even(3, 0.8)), 200),
    ("accuracy .99, 200 rows", "classes", "accuracy", classes(*even(3, 0.99)), 200),
    ("macro F1, 200 x 3", "classes", "f1_macro", classes(*even(3, 0.8)), 200),
    ("macro F1, 250 x 10", "classes", "f1_macro", classes(*even(10, 0.8)), 250),
    ("macro F1, 300, 5% class", "classes", "f1_macro", classes(*RARE), 300),
    ("macro F1, 2,000 x 20", "classes", "f1_macro", classes(*even(20, 0.8)), 2000),
    ("macro F1, 25 x 10", "classes", "f1_macro", classes(*even(10, 0.8)), 25),
    ("macro F1, 30, 5% class", "classes", "f1_macro", classes(*RARE), 30),
    ("macro F1 .99, 200 x 3", "classes", "f1_macro", classes(*even(3, 0.99)), 200),
    ("macro F1, 1,000 x 100", "classes", "f1_macro", classes(*even(100, 0.8)), 1000),
    ("F1 of a 5% class, 300", "classes", "f1_binary", classes(*RARE), 300),
    ("recall of a 5% class, 300", "classes", "recall_binary", classes(*RARE), 300),
    ("weighted F1, 200 x 3", "classes", "f1_weighted", classes(*even(3, 0.8)), 200),
    ("Matthews, 200 x 3", "classes", "matthews_correlation", classes(*even(3, 0.8)), 200),
    ("Matthews .99, 200 x 3", "classes", "matthews_correlation", classes(*even(3, 0.99)), 200),
    ("kappa, 200 x 5", "classes", "quadratic_kappa", stars(0.5), 200),
    ("kappa .97, 200 x 5", "classes", "quadratic_kappa", stars(0.02), 200),
    ("MAE of classes, 200 x 5", "classes", "mean_absolute_error", stars(0.5), 200),
    ("ROC AUC, 200, 2 classes", "classes", "roc_auc", scores([1, 1], 1.5), 200),
    ("ROC AUC .99, 200, 2", "classes", "roc_auc", scores([1, 1], 3.5), 200),
    ("ROC AUC, 300, 5% class", "classes", "roc_auc", scores([0.95, 0.05], 1.5), 300),
    ("ROC AUC, 250 x 10", "classes", "roc_auc", scores([1] * 10, 1.5), 250),
    ("AP, 200, 2 classes", "classes", "average_precision", scores([1, 1], 1.5), 200),
    ("AP .99, 200, 2", "classes", "average_precision", scores([1, 1], 3.5), 200),
    ("AP, 300, 5% class", "classes", "average_precision", scores([0.95, 0.05], 1.5), 300),
    ("AP, 250 x 10", "classes", "average_precision", scores([1] * 10, 1.5), 250),
    ("log loss, 200 x 3", "classes", "log_loss", scores([1] * 3, 1.5), 200),
    ("log loss .99, 200 x 3", "classes", "log_loss", scores([1] * 3, 4), 200),
    ("Brier score, 200 x 3", "classes", "brier_score", scores([1] * 3, 1.5), 200),
    ("labels: micro F1, 200 x 5", "labels", "f1_micro", labels([0.3] * 5, 2), 200),
    ("labels: micro F1 .99, 200 x 5", "labels", "f1_micro", labels([0.3] * 5, 5), 200),
    ("labels: macro F1, 200 x 5", "labels", "f1_macro", labels([0.3] * 5, 2), 200),
    ("labels: macro F1, 400, rare", "labels", "f1_macro", labels([0.4, 0.2, 0.05, 0.03], 2), 400),
    ("labels: macro F1 .99, 200 x 5", "labels", "f1_macro", labels([0.3] * 5, 5), 200),
    ("labels: F1 of rows, 200 x 5", "labels", "f1_samples", labels([0.3] * 5, 2), 200),
    ("labels: AP, 200 x 5", "labels", "average_precision", labels([0.3] * 5, 2), 200),
    ("labels: AP, 400, rare", "labels", "average_precision", labels([0.4, 0.2, 0.05], 2), 400),
    ("labels: AP .99, 200 x 5", "labels", "average_precision", labels([0.3] * 5, 4), 200),
    ("labels: Hamming loss, 200 x 5", "labels", "hamming_loss", labels([0.3] * 5, 2), 200),
    ("labels: Hamming loss .01", "labels", "hamming_loss", labels([0.3] * 5, 5), 200),
    ("labels: log loss, 200 x 5", "labels", "log_loss", labels([0.3] * 5, 2), 200),
    ("difference in accuracy, 200", "classes", "accuracy", classes(*even(3, 0.8), 2), 200),
    ("difference in macro F1, 200", "classes", "f1_macro", classes(*even(3, 0.8), 2), 200),
    ("difference in F1 .99, 200", "classes", "f1_macro", classes(*even(3, 0.99), 2), 200),
    ("difference in F1, 5% class", "classes", "f1_macro", classes(*RARE, 2), 300),
    ("difference in kappa, 200", "classes", "quadratic_kappa", stars(0.5, 2), 200),
    ("difference in kappa, 50", "classes", "quadratic_kappa", stars(0.5, 2), 50),
    ("difference in kappa .97, 200", "classes", "quadratic_kappa", stars(0.02, 2), 200),
    ("difference in AP, 200", "classes", "average_precision", scores([1, 1], 1.5, 2), 200),
    (
        "difference in AP, 5% class",
        "classes",
        "average_precision",
        scores([0.95, 0.05], 1.5, 2),
        300,
    ),
    ("difference in ROC AUC, 200", "classes", "roc_auc", scores([1, 1], 1.5, 2), 200),
    ("difference in labels' F1, 200", "labels", "f1_macro", labels([0.3] * 5, 2, 2), 200),
    ("difference in labels' AP, 200", "labels", "average_precision", labels([0.3] * 5, 2, 2), 200),
    ("R2, 200", "numbers", "r2", numbers("normal"), 200),
    ("R2, heavy tails, 200", "numbers", "r2", numbers("t"), 200),
    ("MAE, 200", "numbers", "mae", numbers("normal"), 200),
    ("MAE, heavy tails, 200", "numbers", "mae", numbers("t"), 200),
    ("MAE, 30", "numbers", "mae", numbers("normal"), 30),
    ("RMSE, 200", "numbers", "rmse", numbers("normal"), 200),
    ("Pearson, 200", "numbers", "pearson", numbers("normal"), 200),
    ("Spearman, 200", "numbers", "spearman", numbers("normal"), 200),
    ("difference in MAE, 200", "numbers", "mae", numbers("normal", 2), 200),
]


def simulate(kind: Kind, name: str, draw: Draw, rows: int, repeats: int) -> tuple[float, ...]:
    """Return how often there is an interval, how often it holds the truth, and its mean width."""
    metric = {name: METRICS[kind, name]}

    def run(seed: int, count: int) -> dict[str, float]:
        drawn = draw(np.random.default_rng([seed, rows]), count)
        if isinstance(drawn, tuple):
            return metrics.estimate_difference(*drawn, metric)[name]
        return metrics.estimate(drawn, metric)[name]

    with unittest.mock.patch.multiple(
        estimates, GROUPS=2, MOST_GROUPS=2
    ):  # the truth needs no interval
        truth = np.mean([run(10**6 + number, SAMPLE)["value"] for number in range(SAMPLES)])
    ends = np.array([[*run(seed, rows).values()][1:] for seed in range(repeats)])
    ends = ends[~np.isnan(ends[:, 0])]
    if not len(ends):
        return 0.0, np.nan, np.nan
    holds = (ends[:, 0] <= truth) & (truth <= ends[:, 1])
    return len(ends) / repeats, float(holds.mean()), float((ends[:, 1] - ends[:, 0]).mean())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=10_000)
    parser.add_argument("--only", default="", help="cases with this text in their name")
    options = parser.parse_args()
    print(f"{'case':32} {'given':>6} {'holds':>6} {'width':>6} {'s':>5}")
    for title, *case in CASES:
        if options.only in title:
            started = time.perf_counter()
            given, holds, width = simulate(*case, options.repeats)
            seconds = time.perf_counter() - started
            print(f"{title:32} {given:6.3f} {holds:6.3f} {width:6.3f} {seconds:5.0f}", flush=True)


if __name__ == "__main__":
    main()
