"""What the repository says of itself on the outside: distribution, version, licence, hosted CI."""

import os
import shutil
import subprocess
import sys
import tomllib
from email.message import Message
from email.parser import Parser
from typing import Any

import pytest
import yaml

import finetune
from finetune.runtime import DISTRIBUTION
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGED = ("pyproject.toml", "README.md", "LICENSE", "finetune", "recipes", "metrics")


def read_yaml(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Message:
    """The metadata that the build writes, from a copy of what is packaged."""
    source = tmp_path_factory.mktemp("source")
    for name in PACKAGED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        copy(ROOT / name, source / name)
    script = "from setuptools import build_meta as b; b.prepare_metadata_for_build_wheel('.')"
    built = subprocess.run(
        [sys.executable, "-c", script],
        cwd=source,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (info,) = source.glob("*.dist-info")
    assert (info / "licenses" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    return Parser().parsestr((info / "METADATA").read_text(encoding="utf-8"))


def test_the_distribution_has_the_name_version_and_licence_of_the_package(
    metadata: Message,
) -> None:
    assert metadata["Name"] == DISTRIBUTION == PROJECT["name"]
    assert metadata["Version"] == finetune.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]


def test_the_citation_agrees_with_the_package() -> None:
    citation = read_yaml("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()
    assert citation["title"].startswith(DISTRIBUTION)
    assert str(citation["version"]) == finetune.__version__
    assert citation["license"] == PROJECT["license"]


def test_the_hosted_workflow_runs_what_ci_runs() -> None:
    (job,) = read_yaml(".github/workflows/ci.yml")["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == ["bash .ci/run"]
    assert (ROOT / ".ci" / "run").exists()
    (setup,) = [step for step in job["steps"] if "setup-python" in step.get("uses", "")]
    assert PROJECT["requires-python"] == f">={setup['with']['python-version']}"
