"""Simulate how often the 95% confidence intervals of the toolkit contain the true value.

    python benchmarks/coverage.py                  10,000 repeats; about half an hour
    python benchmarks/coverage.py --repeats 1000 --only f1

Each case samples test rows from a known distribution and estimates a metric as a run does. "given"
is the share of samples with an interval (too few rows have none), "holds" the share of these that
contains the value of ``--true_rows`` rows. The goal is 0.93 or more.
"""

from __future__ import annotations

import argparse
import functools
import unittest.mock
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.special import ndtr

from finetune.data.words import UNLABELLED
from finetune.statistics import estimates, metrics
from finetune.statistics.entities import ScoredEntities
from finetune.statistics.metrics import METRICS
from finetune.statistics.scored import Probabilities, ScoredLabels, ScoredNumbers, ScoredRows

#: Samples rows for a number of models, which share half of their noise: (generator, rows, models).
Draw = Callable[[np.random.Generator, int, int], list[Any]]
SAMPLES = 20  # of the rows that give the true value


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


def entities(shares: list[float], ease: float) -> Draw:
    """Return a sampler of sentences with one to six places for an entity of one to three words;
    half of them have one, of types with these shares. A place is read right with the probability
    Phi(``ease`` + that of the sentence); otherwise an entity is missed, has another type or other
    words, or is predicted where there is none. So mistakes are in the same sentences.
    """

    def draw(generator: np.random.Generator, rows: int, models: int) -> list[Any]:
        places = generator.integers(1, 7, size=rows)
        count = int(places.sum())
        is_right = ndtr(ease + np.repeat(generator.normal(size=rows), places))
        has = generator.random(count) < 0.5
        kinds = generator.choice(len(shares), p=shares, size=count)
        lengths = generator.integers(1, 4, size=count)
        ends = np.cumsum(places)
        labels = tags_of(has, kinds, lengths, ends)
        shared, samples = generator.random(count), []
        for _ in range(models):
            noise = np.where(generator.random(count) < 0.5, shared, generator.random(count))
            mistake = np.where(noise < is_right, 3, generator.integers(3, size=count))
            predicted = tags_of(
                has ^ (mistake == 0),
                np.where(mistake == 1, (kinds + 1) % len(shares), kinds),
                np.where(mistake == 2, lengths % 3 + 1, lengths),
                ends,
            )
            confidence = np.ones(len(labels))
            names = [str(number) for number in range(len(shares))]
            samples.append(ScoredEntities.of_tags(labels, predicted, names, confidence))
        return samples

    return draw


def tags_of(has: np.ndarray, kinds: np.ndarray, lengths: np.ndarray, ends: np.ndarray) -> Any:
    """Return the tags of sentences: three words for each place and one between places, then a
    separator, int64.

    Args:
        has: Whether there is an entity at each place, bool, ``(places,)``.
        kinds: Its type, ``(places,)``.
        lengths: The words that it has, ``(places,)``.
        ends: The number of places up to the end of each sentence, ``(rows,)``.
    """
    words = np.arange(4)
    tags = 2 * kinds[:, None] + np.where(words == 0, 1, 2)
    tags = np.where(has[:, None] & (words < lengths[:, None]), tags, 0)
    return np.insert(tags.ravel(), 4 * ends, UNLABELLED)


def even(count: int, right: float, *, are_stars: bool = False) -> Draw:
    """Return a sampler of equally frequent classes."""
    return classes([1.0] * count, [right] * count, are_stars=are_stars)


RARE, RARE_SCORES = classes([0.95, 0.05], [0.95, 0.5]), scores([0.95, 0.05], 1.5)
STARS, SURE_STARS = even(5, 0.5, are_stars=True), even(5, 0.98, are_stars=True)
LABELS, SURE_LABELS = (scores([0.3] * 5, skill, are_labels=True) for skill in (2, 5))
RARE_LABELS = scores([0.4, 0.2, 0.05], 2, are_labels=True)
TYPES, SURE_TYPES = (entities([0.5, 0.3, 0.15, 0.05], ease) for ease in (1, 3))
OF_ENTITIES = "f1_micro precision_micro recall_micro f1_macro accuracy"
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
    ("entities", TYPES, OF_ENTITIES, [50, 200]),
    ("types", TYPES, "f1:0 precision:0 recall:0 f1:2 f1:3", [50, 200]),
    ("entities, .98", SURE_TYPES, OF_ENTITIES, [200]),
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
    ("difference, entities", TYPES, OF_ENTITIES, [50, 200]),
    ("difference, entities, .98", SURE_TYPES, OF_ENTITIES, [200]),
]


def estimate(draw: Draw, names: str, seed: list[int], rows: int, models: int) -> Any:
    """Return the estimates of metrics on rows, or those of the difference of two models. The name
    of a score of one type is ``SCORE:TYPE``.
    """
    samples = draw(np.random.default_rng(seed), rows, models)
    function = metrics.estimate if models == 1 else metrics.estimate_difference
    of_types = [name for name in names.split() if ":" in name]
    of_all = [name for name in names.split() if ":" not in name]
    scores = function(*samples, {name: METRICS[samples[0].kind, name] for name in of_all})
    if of_types:
        table = metrics.describe_classes(samples[0])
        for name in of_types:
            score, _, kind = name.partition(":")
            scores[name] = table[kind][score]
    return scores


@functools.cache
def true_values(draw: Draw, names: str, rows: int, models: int) -> dict[str, float]:
    """Return the values of metrics on many rows."""
    rows //= SAMPLES
    with unittest.mock.patch.multiple(estimates, GROUPS=2, MAX_GROUPS=2):  # only the value
        samples = []
        for number in range(SAMPLES):
            samples.append(estimate(draw, names, [10**6 + number, rows], rows, models))
    return {name: float(np.mean([s[name]["value"] for s in samples])) for name in names.split()}


def simulate(
    draw: Draw, names: str, rows: int, models: int, repeats: int, true_rows: int
) -> Iterator[tuple[str, float, float, float]]:
    """Yield each metric, the shares of intervals, and of those with the truth, and their width."""
    samples = [estimate(draw, names, [seed, rows], rows, models) for seed in range(repeats)]
    for name, truth in true_values(draw, names, true_rows, models).items():
        ends = np.array([[sample[name]["low"], sample[name]["high"]] for sample in samples])
        ends = ends[~np.isnan(ends[:, 0])]
        holds = (ends[:, 0] <= truth) & (truth <= ends[:, 1])
        share = width = np.nan
        if len(ends):
            width = (ends[:, 1] - ends[:, 0]).mean()
            share = holds.mean()
        yield name, len(ends) / repeats, share, width


def main() -> None:
    """Print a table with a line for each case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=10_000)
    parser.add_argument("--true_rows", type=int, default=2_000_000)
    parser.add_argument("--only", default="", help="cases with this text in their name")
    options = parser.parse_args()
    print(f"{'case':48} {'given':>6} {'holds':>6} {'width':>6}")
    for kind, draw, names, sizes in CASES:
        models = 1 + kind.startswith("difference")
        for rows in sizes:
            titles = {name: f"{kind}, {rows:,} rows: {name}" for name in names.split()}
            chosen = " ".join(name for name, title in titles.items() if options.only in title)
            if not chosen:
                continue
            typed = (options.repeats, options.true_rows)
            for name, *figures in simulate(draw, chosen, rows, models, *typed):
                line = " ".join(f"{figure:6.3f}" for figure in figures)
                print(f"{titles[name]:48} {line}", flush=True)


if __name__ == "__main__":
    main()
