"""Fixtures of trainings of `tests/acceptance/faulty.py` that are stopped, killed or damaged."""

import os
from pathlib import Path

import pytest

from tests.acceptance.conftest import cli, flags, pretrained_bert, servers, shared_directory
from tests.acceptance.test_training import FAULTY, faulty, train, whole

__all__ = ["cli", "faulty", "pretrained_bert", "servers", "shared_directory", "train", "whole"]


@pytest.fixture(scope="session")
def words(faulty: dict[str, str]) -> list[str]:
    """The words that every test types: recipe, data and model."""
    return [str(FAULTY), *flags(**faulty)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of `make faults`: how often each fault was survived, and the time."""
    if "FAULT_TIMES" not in os.environ:
        return
    rows: dict[tuple[str, str], list[pytest.TestReport]] = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            if report.when == "call" or outcome != "passed":
                file, _, name = report.nodeid.partition("::")
                name = name.partition("[")[0].removeprefix("test_").replace("_", " ")
                rows.setdefault((Path(file).stem.removeprefix("test_"), name), []).append(report)
    terminalreporter.section("faults")
    for (area, name), reports in sorted(rows.items()):
        passed = sum(report.passed for report in reports)
        seconds = sum(report.duration for report in reports)
        terminalreporter.line(
            f"{area:12} {name:75} {passed:3} of {len(reports):3} {seconds:6.1f} s"
        )
