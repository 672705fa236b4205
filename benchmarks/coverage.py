"""How often the 95% confidence intervals of `finetune.statistics` hold the truth, in simulations.

    python benchmarks/coverage.py                 # 2,000 draws of each case, about five minutes
    python benchmarks/coverage.py 10000

Each case draws test rows of a model whose metric on all rows is known. Where an interval is
withheld, it is not counted; the last column says how often. The goal is 93% or more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import numpy as np

from finetune.statistics import counts, multi_label, numbers, pairs
from finetune.statistics.classification import FEWEST_OF_EACH, scores
from finetune.statistics.counts import Average, Tallies
from finetune.statistics.estimates import Estimate
from finetune.statistics.scored import ScoredLabels, ScoredRows

#: From a generator and a number of rows to a metric of drawn rows.
Draw = Callable[[np.random.Generator, int], Estimate]
MACRO, MATTHEWS = Average(counts.f1_of_classes, "macro"), counts.matthews_correlation


def matrix(shares: list[float], right: list[float]) -> np.ndarray:
    """Return the probabilities of true and predicted class; wrong predictions follow the shares."""
    true, accuracy = np.array(shares) / sum(shares), np.array(right)
    others = np.tile(true, (len(true), 1)) * (1 - np.eye(len(true)))
    wrong = others / others.sum(axis=1, keepdims=True) * (1 - accuracy)[:, None]
    return true[:, None] * (wrong + np.diag(accuracy))


def truth(function: counts.Function, cells: np.ndarray) -> float:
    """Return a metric of all rows, whose true and predicted classes have these probabilities."""
    place = np.arange(len(cells))
    off = np.abs(place[:, None] - place)
    tally = [np.diag(cells), cells.sum(axis=1), cells.sum(axis=0)]
    tally += [(cells * distance).sum(axis=1) for distance in (off, off**2)]
    return float(function(np.stack(tally)))


def classes(cells: np.ndarray, function: counts.Function) -> Draw:
    """Draw rows of a classifier; means over classes of few rows are withheld, as in a report."""

    def draw(generator: np.random.Generator, rows: int) -> Estimate:
        kinds = generator.choice(cells.size, size=rows, p=cells.ravel())
        labels, predicted = np.divmod(kinds, len(cells))
        tally = Tallies.of(labels, predicted, len(cells))
        estimate = tally.estimate(function)
        is_withheld = function is MACRO and (tally.whole[counts.TRUE] < FEWEST_OF_EACH).any()
        return Estimate(estimate.value) if is_withheld else estimate

    return draw


def gains(function: counts.Function) -> Draw:
    """Draw rows of two models of three classes, right on 80% and 85%, many of them shared."""

    def draw(generator: np.random.Generator, rows: int) -> Estimate:
        labels, hard = generator.integers(3, size=rows), generator.random(rows)
        noise = 0.1 * generator.standard_normal((2, rows))
        wrong = (labels + 1 + generator.integers(2, size=rows)) % 3
        first, second = (
            np.where(hard + noise[model] < share, labels, wrong)
            for model, share in enumerate((0.80, 0.85))
        )
        return pairs.difference(function, labels, first, second, 3)

    return draw


def scored_rows(generator: np.random.Generator, rows: int, share: float) -> ScoredRows:
    """Return rows of two classes with normal scores, two standard deviations apart."""
    labels = (generator.random(rows) < share).astype(np.int64)
    logits = np.stack([np.zeros(rows), 2 * labels - 1 + generator.standard_normal(rows)], axis=1)
    return ScoredRows.of_outputs(["no", "yes"], labels, logits)


def binary(share: float, name: str) -> Draw:
    """Draw rows of two classes, and take one of the metrics of every classifier."""
    known = {"average_precision": "average_precision"} if name == "average_precision" else {}

    def draw(generator: np.random.Generator, rows: int) -> Estimate:
        return Estimate(**scores(scored_rows(generator, rows, share), known)[name])

    return draw


def labels(name: str) -> Draw:
    """Draw rows that have any of five labels, which 5 to 40% of them have."""

    def draw(generator: np.random.Generator, rows: int) -> Estimate:
        has = generator.random((rows, 5)) < np.linspace(0.05, 0.4, 5)
        logits = 3 * has - 2 + generator.standard_normal(has.shape)
        names = [f"label {number}" for number in range(5)]
        return multi_label.scores(ScoredLabels(names, has, 1 / (1 + np.exp(-logits))))[name]

    return draw


def regression(name: str, degrees: float) -> Draw:
    """Draw numbers, and errors by Student's distribution with these degrees of freedom."""

    def draw(generator: np.random.Generator, rows: int) -> Estimate:
        true = generator.standard_normal((rows, 1))
        predicted = 0.8 * true + 0.5 * generator.standard_t(degrees, size=(rows, 1))
        return numbers.scores({name: numbers.METRICS[name]}, true, predicted)[name]

    return draw


def cases() -> Iterator[tuple[str, int, Draw, float | None]]:
    """Yield title, rows, what draws them, and the truth; None for that of a million rows."""
    uneven = matrix([0.95, 0.05], [0.97, 0.7])
    for title, rows, cells, function in (
        ("accuracy, 200 rows", 200, matrix([1, 1], [0.85, 0.85]), counts.accuracy),
        ("macro F1, 200 rows in 3 classes", 200, matrix([1] * 3, [0.85] * 3), MACRO),
        ("macro F1 near 1, 200 rows in 3 classes", 200, matrix([1] * 3, [0.99] * 3), MACRO),
        ("macro F1, 250 rows in 10 classes", 250, matrix([1] * 10, [0.8] * 10), MACRO),
        ("macro F1, 300 rows with a 5% class", 300, uneven, MACRO),
        ("macro F1, 2,000 rows in 20 classes", 2000, matrix([1] * 20, [0.8] * 20), MACRO),
        ("macro F1, 25 rows in 10 classes", 25, matrix([1] * 10, [0.8] * 10), MACRO),
        ("macro F1, 30 rows with a 5% class", 30, uneven, MACRO),
        ("F1 of a 5% class, 300 rows", 300, uneven, Average(counts.f1_of_classes, "binary")),
        ("Matthews, 200 rows in 3 classes", 200, matrix([1] * 3, [0.85] * 3), MATTHEWS),
        ("kappa, 200 rows in 5 classes", 200, matrix([1] * 5, [0.7] * 5), counts.quadratic_kappa),
    ):
        yield title, rows, classes(cells, function), truth(function, cells)
    for name in ("macro F1", "accuracy"):
        function = MACRO if name == "macro F1" else counts.accuracy
        yield f"difference in {name}, 300 rows", 300, gains(function), None
    for rows, share in ((200, 0.1), (200, 0.5), (2000, 0.1)):
        for name in ("average_precision", "roc_area", "log_loss", "brier_score"):
            title = f"{name}, {rows} rows, {share:.0%} positive"
            yield title, rows, binary(share, name), None
    for name in ("f1_micro", "f1_macro", "f1_samples", "hamming_loss", "average_precision"):
        yield f"{name}, 200 rows, 5 labels", 200, labels(name), None
    for rows, degrees, words in ((30, 30, "normal"), (200, 30, "normal"), (200, 4, "heavy-tailed")):
        for name in ("r2", "mae", "rmse", "pearson", "spearman"):
            yield f"{name}, {rows} rows, {words} errors", rows, regression(name, degrees), None


def main(draws: int = 2000) -> None:
    """Print a line for each case."""
    for number, (title, rows, draw, value) in enumerate(cases()):
        if value is None:
            value = draw(np.random.default_rng(number), 1_000_000).value
        generator = np.random.default_rng([number, draws])
        estimates = [draw(generator, rows) for _ in range(draws)]
        known = [estimate for estimate in estimates if np.isfinite(estimate.low)]
        held = sum(estimate.low <= value <= estimate.high for estimate in known)
        share = f"{held / len(known):.3f}" if known else "-"
        print(f"{title:<46} {share:>6}  withheld {1 - len(known) / draws:6.1%}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
