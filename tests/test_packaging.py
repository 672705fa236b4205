"""Test the metadata of the repository: citation, license and the hosted CI workflow.

`tests/acceptance/test_run.py` builds the wheel.
"""

import tomllib
from typing import Any

import yaml

import finetune
from finetune.runtime import DISTRIBUTION
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read_yaml(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    return loaded


def test_the_citation_agrees_with_the_package() -> None:
    citation = read_yaml("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()
    assert citation["title"].startswith(DISTRIBUTION)
    assert PROJECT["name"] == DISTRIBUTION
    assert str(citation["version"]) == finetune.__version__
    assert citation["license"] == PROJECT["license"]


def test_the_hosted_workflow_runs_the_ci_script() -> None:
    (job,) = read_yaml(".github/workflows/ci.yml")["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == ["bash .ci/run"]
    assert (ROOT / ".ci" / "run").exists()
    (setup,) = [step for step in job["steps"] if "setup-python" in step.get("uses", "")]
    assert PROJECT["requires-python"] == f">={setup['with']['python-version']}"
