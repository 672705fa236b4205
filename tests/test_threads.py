"""The threads of each process: what the user set, or a fair share of the machine.

That a run says how many there are is in `test_machines.py`.
"""

import os
from collections.abc import Iterator
from unittest import mock

import joblib
import pytest
import torch

from finetune import UserError
from finetune.runtime import threads
from finetune.training.arguments import FinetuneArguments, resolve_values

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
ACCELERATE = {"ACCELERATE_MIXED_PRECISION": "no"}
LAUNCHERS = {**TORCHRUN, **ACCELERATE}
CORES = 6


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of six cores, without a launcher; its threads are set back."""
    monkeypatch.setattr(joblib, "cpu_count", lambda only_physical_cores: CORES)
    before = torch.get_num_threads()
    with mock.patch.dict(os.environ):
        for name in (*LAUNCHERS, "OMP_NUM_THREADS"):
            os.environ.pop(name, None)
        yield
    torch.set_num_threads(before)


def start(launcher: dict[str, str], omp: str | None) -> None:
    """As such a launcher starts a process."""
    os.environ |= launcher
    if omp is not None:
        os.environ["OMP_NUM_THREADS"] = omp


@pytest.mark.parametrize(
    ("launcher", "omp", "threads_set"),
    [
        ({}, None, None),
        ({}, "", None),
        ({}, "4,2", None),  # of nested regions: nothing that one number could say
        ({}, "4", 4),
        ({}, "1", 1),
        (TORCHRUN, None, None),
        (TORCHRUN, "1", None),
        (TORCHRUN, "4", 4),
        (ACCELERATE, "1", None),
        (ACCELERATE, "4", 4),
    ],
)
def test_a_1_counts_as_set_by_the_user_only_without_a_launcher(
    launcher: dict[str, str], omp: str | None, threads_set: int | None
) -> None:
    start(launcher, omp)
    assert threads.set_by_user() == threads_set


@pytest.mark.parametrize(("processes", "share"), [(1, 6), (2, 3), (4, 1), (6, 1), (7, 1)])
def test_the_processes_of_a_machine_share_its_cores(processes: int, share: int) -> None:
    assert threads.fair_share(processes) == share


@pytest.mark.parametrize(
    ("launcher", "omp", "flag", "used"),
    [
        (TORCHRUN, "1", None, 3),  # two of the four processes are here
        (TORCHRUN, None, None, 3),
        (TORCHRUN, "4", None, 4),
        (TORCHRUN, "1", 1, 1),
        (TORCHRUN, "4", 2, 2),
        (ACCELERATE, "1", None, 6),
        ({}, "4", 2, 2),
        ({}, None, 5, 5),
    ],
)
def test_the_flag_decides_then_the_user_then_the_share(
    launcher: dict[str, str], omp: str | None, flag: int | None, used: int
) -> None:
    start(launcher, omp)
    assert threads.use(flag) == used
    assert torch.get_num_threads() == used
    # without a launcher it would count as the user's in the next job that is started from here
    assert os.environ.get("OMP_NUM_THREADS") == (str(used) if launcher else omp)


@pytest.mark.parametrize("omp", [None, "4"])
def test_without_launcher_and_flag_it_is_the_librarys_choice(omp: str | None) -> None:
    start({}, omp)
    torch.set_num_threads(2)  # as from the environment, when it was imported
    assert threads.use(None) == 2
    assert torch.get_num_threads() == 2
    assert os.environ.get("OMP_NUM_THREADS") == omp


def test_num_threads_of_the_arguments_is_in_force() -> None:
    FinetuneArguments(output_dir="unused", num_threads=2)
    assert torch.get_num_threads() == 2


def test_num_threads_0_is_refused() -> None:
    with pytest.raises(UserError, match="--num_threads 0: expected 1 or more"):
        resolve_values({"num_threads": 0})
