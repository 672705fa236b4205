"""One recipe, one trajectory, one evaluation: on one process, two and three, and accumulated.

The measuring is that of `benchmarks/invariance.py`, on a tiny model.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.invariance import (
    LAUNCHES,
    ROWS,
    SIZES,
    Case,
    Observed,
    cases,
    difference,
    evaluation_difference,
    initial_weights,
    observe,
)
from tests.warm import in_warm_processes

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.processes]
PRECISIONS = {"": False}
CASES = [case for case, _, _ in cases(PRECISIONS)]
Launch = tuple[int, int]
FOUND = [(processes, each) for processes, tried in LAUNCHES.items() for each in tried]
SHORT = (2, 2)  # several processes and micro-batches at once
OTHERS = [
    pytest.param(launch, marks=[] if launch == SHORT else pytest.mark.slow)
    for launch in FOUND
    if launch != (1, 1)
]
NAMES = [f"{processes}x{accumulation}" for processes, accumulation in FOUND[1:]]


@pytest.fixture(scope="module")
def options(uneven_reviews: Path, tiny_model: str) -> dict[str, Any]:
    return {"dataset": str(uneven_reviews), "model": tiny_model}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def initial(options: dict[str, Any], directory: str) -> np.ndarray:
    return initial_weights(options, directory)


@pytest.fixture(scope="module")
def by_rank(
    options: dict[str, Any], directory: str, initial: np.ndarray
) -> Callable[[Launch], list[Observed]]:
    """What a launch saw, each once; making `initial` has filled the caches."""

    @functools.cache
    def launched(launch: Launch) -> list[Observed]:
        processes, accumulation = launch
        words = (options, directory, [accumulation], PRECISIONS)
        ranks = (
            [observe(*words)] if processes == 1 else in_warm_processes(processes, observe, *words)
        )
        assert len(ranks) == processes
        return [rank[accumulation] for rank in ranks]

    return launched


@pytest.fixture(scope="module")
def one(by_rank: Callable[[Launch], list[Observed]]) -> Observed:
    return by_rank((1, 1))[0]


@pytest.mark.parametrize("case", CASES, ids=", ".join)
@pytest.mark.parametrize("launch", OTHERS, ids=NAMES)
def test_every_launch_gives_the_same_training(
    launch: Launch,
    case: Case,
    by_rank: Callable[[Launch], list[Observed]],
    one: Observed,
    initial: np.ndarray,
) -> None:
    gap = difference(by_rank(launch)[0], one, case, initial)
    assert gap.loss < 1e-5
    assert gap.weights < 1e-6
    assert gap.update < 1e-3
    if case[0] == "SGD":
        assert gap.allclose


def test_something_was_trained_and_the_cases_differ(one: Observed, initial: np.ndarray) -> None:
    assert all(max(losses) - min(losses) > 1e-4 for losses in one.losses.values())
    assert len({tuple(losses) for losses in one.losses.values()}) == len(CASES)
    assert {case[2] for case in CASES} == set(ROWS)


@pytest.mark.parametrize("launch", OTHERS, ids=NAMES)
def test_every_launch_gives_the_same_evaluation(
    launch: Launch, by_rank: Callable[[Launch], list[Observed]], one: Observed
) -> None:
    assert set(one.evaluations) == set(SIZES)
    for seen in by_rank(launch):  # every rank has all of it
        assert evaluation_difference(seen, one) < 1e-6
