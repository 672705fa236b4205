"""Test that `make gpu-check` and README list the same unverified checks, and what a CPU can run."""

import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

COMMAND = [sys.executable, str(ROOT / "benchmarks" / "gpu_check.py")]
WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def test_without_a_gpu_every_check_is_listed_and_none_fails() -> None:
    printed = subprocess.run(
        COMMAND,
        env=os.environ | WITHOUT_GPU,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    title, *lines = printed.splitlines()
    assert title == "unverified, with 0 GPUs:"
    checks = {line.strip().rpartition(" (needs ")[0] for line in lines}
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    listed = re.search(r"Unverified on GPUs: ([^.]+)\. `make gpu-check`", readme)
    assert listed is not None
    assert {*listed[1].split("; ")} == checks
    assert len(checks) == len(lines) >= 9


@pytest.mark.slow
def test_a_rehearsal_on_the_cpu_passes() -> None:
    process = subprocess.run(
        [*COMMAND, "--rehearse"], env=os.environ | WITHOUT_GPU, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout + process.stderr
    checks, _, unverified = process.stdout.partition("unverified, with 0 GPUs:")
    names = {name for name in re.findall(r"^  (.+) \(needs 1\)$", unverified, re.MULTILINE)}
    rehearsed = {line[:32].strip() for line in checks.splitlines() if " rehearsed " in line}
    assert names - rehearsed == {"fp16", "FSDP with one process"}
