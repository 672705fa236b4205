"""Test that `make gpu-check` and README list the same unverified checks."""

import os
import re
import subprocess
import sys

from tests.conftest import ROOT


def test_without_a_gpu_every_check_is_listed_and_none_fails() -> None:
    printed = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu_check.py")],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
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
