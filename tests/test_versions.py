"""Ranges of the libraries: one place, tested versions, and a warning outside of them."""

import os
import re
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import finetune
from finetune import cli
from finetune.errors import UserError
from finetune.runtime import versions
from recipes.yelp import Yelp
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
WANTED = {
    each.name.lower().replace("_", "-"): each
    for each in map(Requirement, [*PROJECT["dependencies"], *EXTRAS])
}
PINNED = {
    name.lower().replace("_", "-"): Version(number)
    for name, number in re.findall(
        r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M
    )
}
RANGES = {"transformers": ">=5.23,<5.24", "torch": ">=2.13,<2.14"}
WARNING = (
    r"transformers 5\.24\.0 is outside the tested range >=5\.23,<5\.24: figures may change "
    r"without an error; pip install 'transformers>=5\.23,<5\.24'"
)


def test_what_is_pinned_lies_in_the_ranges() -> None:
    pinned = WANTED.keys() & PINNED.keys()
    assert len(pinned) >= 25
    assert WANTED.keys() - pinned <= {"torch", "types-pyyaml"}  # torch is pinned in the Makefile
    for name in pinned:
        assert PINNED[name] in WANTED[name].specifier, name


@pytest.mark.parametrize("name", versions.LIBRARIES)
def test_a_library_with_private_members_ends_at_the_next_release(name: str) -> None:
    specifier = WANTED[name.replace("_", "-")].specifier
    lower, upper = (
        next(Version(each.version) for each in specifier if each.operator == operator)
        for operator in (">=", "<")
    )
    assert upper.release[:2] == (
        (lower.major + 1,) if name == "huggingface_hub" else (lower.major, lower.minor + 1)
    )
    pinned = PINNED.get(name.replace("_", "-"), lower)
    assert pinned.release[:2] == lower.release[:2], "raise the floor to what is tested"


def test_the_floors_are_those_that_other_libraries_ask_for() -> None:
    """A floor below theirs would never be installed."""
    for library in ("transformers", "accelerate", "datasets", "evaluate"):
        for line in metadata.requires(library) or []:
            theirs = Requirement(line)
            ours = WANTED.get(theirs.name.lower().replace("_", "-"))
            if theirs.marker is None and ours is not None:
                floor = next(each.version for each in ours.specifier if each.operator == ">=")
                assert floor in theirs.specifier, f"{library} asks for {line}, and we for {ours}"


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment with a transformers that is too new."""
    installed = {"transformers": "5.24.0", "torch": "2.13.0+cpu"}
    lines = [f"{name}{tested}" for name, tested in RANGES.items()]
    monkeypatch.setattr(metadata, "requires", lambda name: [*lines, "numpy>=1", "x; extra == 'y'"])
    true = metadata.version  # which libraries ask for when they are imported
    monkeypatch.setattr(metadata, "version", lambda name: installed.get(name) or true(name))
    monkeypatch.setattr(versions, "told", False)


@pytest.mark.usefixtures("newer")
def test_a_version_outside_the_range_is_named() -> None:
    assert versions.ranges() == RANGES
    (sentence,) = versions.untested()
    assert re.fullmatch(WARNING, sentence)


@pytest.mark.parametrize(
    ("installed", "outside"),
    [("5.22.9", True), ("5.23.0", False), ("5.23.7", False), ("5.24.0rc1", True), ("6.0", True)],
)
@pytest.mark.usefixtures("newer")
def test_the_range_ends_before_the_next_release(
    monkeypatch: pytest.MonkeyPatch, installed: str, outside: bool
) -> None:
    monkeypatch.setattr(versions, "ranges", lambda: {"transformers": RANGES["transformers"]})
    monkeypatch.setattr(metadata, "version", lambda name: installed)
    assert bool(versions.untested()) == outside


def test_a_checkout_that_was_never_installed_has_no_ranges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    assert versions.untested() == []


@pytest.mark.usefixtures("newer")
@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
def test_the_command_line_warns_in_one_line_on_rank_zero(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str, lines: int
) -> None:
    monkeypatch.setenv("RANK", rank)
    with pytest.raises(SystemExit):
        cli.main(["report", "--help"])
    said = capsys.readouterr()
    assert len(re.findall(f"^warning: {WARNING}$", said.err, re.M)) == lines
    assert "warning" not in said.out


@pytest.mark.usefixtures("newer")
def test_a_notebook_is_warned_once() -> None:
    with pytest.warns(UserWarning, match=WARNING) as caught, pytest.raises(UserError):
        finetune.train("no-such-recipe")
    assert caught[0].filename == __file__
    with warnings.catch_warnings(action="error"), pytest.raises(UserError):
        finetune.train("no-such-recipe")


@pytest.mark.usefixtures("newer")
@pytest.mark.parametrize(
    "start",
    [
        lambda: finetune.launch("no-such-recipe", num_processes=2),
        lambda: finetune.evaluate("no-such-run"),
        lambda: finetune.predict("no-such-run", ["a text"]),
        lambda: finetune.predict_file("no-such-run", "no.csv", "out.csv"),
        lambda: Yelp().trainer(no_such_argument=1),
    ],
    ids=["launch", "evaluate", "predict", "predict_file", "trainer"],
)
def test_every_start_warns_at_the_line_that_made_it(start: Callable[[], object]) -> None:
    with pytest.warns(UserWarning, match=WARNING) as caught, pytest.raises(UserError):
        start()
    assert caught[0].filename == __file__


def test_a_start_in_the_range_says_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "finetune", "report", "--help"],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
