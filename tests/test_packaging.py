"""Test the metadata of the repository: citation, license, hosted CI workflow and Dockerfiles.

`make dist` builds the archives of a release, and uses them.
"""

import fnmatch
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
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
    assert "version" not in citation  # which is in one place, finetune/runtime/__init__.py
    assert citation["license"] == PROJECT["license"]


def test_windows_is_refused_in_a_sentence() -> None:
    script = "import os; os.name = 'nt'; import finetune"
    words = [sys.executable, "-c", script]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "on Windows use it in WSL" in result.stderr.splitlines()[-1]


def test_the_hosted_workflow_runs_the_ci_script() -> None:
    (job,) = read_yaml(".github/workflows/ci.yml")["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == ["bash .ci/run"]
    assert (ROOT / ".ci" / "run").exists()
    (setup,) = [step for step in job["steps"] if "setup-python" in step.get("uses", "")]
    assert PROJECT["requires-python"] == f">={setup['with']['python-version']}"


def test_a_tag_publishes_what_the_ci_script_has_built() -> None:
    jobs = read_yaml(".github/workflows/release.yml")["jobs"]
    assert [step["run"] for step in jobs["build"]["steps"] if "run" in step][1:] == ["bash .ci/run"]
    assert (ROOT / ".ci" / "run").read_text("utf-8").splitlines()[-1] == "make dist"
    assert jobs["publish"]["needs"] == "build"
    assert [job.get("permissions") for job in jobs.values()] == [None, {"id-token": "write"}]
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text("utf-8")


@pytest.mark.parametrize(
    ("tag", "heading", "status"),
    [
        (finetune.__version__, "(2026-12-01)", 0),
        (finetune.__version__, "(unreleased)", 1),
        ("99.0", "(2026-12-01)", 1),
    ],
)
def test_a_tag_must_be_the_version(tag: str, heading: str, status: int, tmp_path: Path) -> None:
    step = read_yaml(".github/workflows/release.yml")["jobs"]["build"]["steps"][1]
    (tmp_path / "finetune").symlink_to(ROOT / "finetune")
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {tag} {heading}\n")
    command = ["bash", "-e", "-c", step["run"]]
    environ = os.environ | {"GITHUB_REF_NAME": f"v{tag}"}
    finished = subprocess.run(command, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL)
    assert finished.returncode == status


def names_in(lines: list[str]) -> dict[str, str]:
    """Return requirements by the names of their packages, as an index spells them."""
    matches = (re.match(r"([\w.-]+)(\[.*\])?(.*)", line) for line in lines)
    return {re.sub(r"[-_.]+", "-", match[1]).lower(): match[3] for match in matches if match}


def test_the_image_for_serving_has_the_server_and_no_torch() -> None:
    """Which packages a model needs is tested by `tests/acceptance/test_export.py`."""
    listed = names_in((ROOT / "docker/serve.requirements.txt").read_text("utf-8").splitlines())
    pinned = names_in((ROOT / "constraints.txt").read_text("utf-8").splitlines())
    extras = PROJECT["optional-dependencies"]
    declared = names_in([*PROJECT["dependencies"], *extras["onnx"], *extras["serve"]])
    assert names_in(extras["serve"]).keys() <= listed.keys()
    assert listed.keys() - declared.keys() == {"tokenizers"}  # of transformers
    assert {name: version for name, version in listed.items() if version} == {}
    assert [name for name in listed if not pinned[name].startswith("==")] == []
    assert listed.keys().isdisjoint({"torch", "transformers", "datasets", "accelerate"})


def test_the_dockerfiles_agree_with_the_repository() -> None:
    ignored = (ROOT / ".dockerignore").read_text("utf-8")
    let_in = re.findall(r"^!(.*)", ignored, re.M)
    bases = set()
    for path in (ROOT / "docker").glob("*.Dockerfile"):
        text = path.read_text("utf-8")
        bases |= {*re.findall(r"^FROM (\S+)", text, re.M)}
        for line in re.findall(r"^COPY (.*) \S+$", text, re.M):
            for source in line.split():
                assert (ROOT / source).exists(), source
                assert any(fnmatch.fnmatch(source, pattern) for pattern in let_in), source
        for pin in re.findall(r"\S+==\S+", text):
            assert pin in (ROOT / "constraints.txt").read_text("utf-8").split()
        assert re.search(r"^USER [1-9]\d*$", text, re.M)  # a number: Kubernetes compares it with 0
    (base,) = bases
    assert re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", base)
    assert base.startswith(f"python:{PROJECT['requires-python'].removeprefix('>=')}.")
