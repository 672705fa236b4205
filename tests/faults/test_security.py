"""Nothing in a data set, a model directory, a run or a cache runs code, and no secret leaves.

Each test plants something hostile, a canary, and looks whether it ran or was seen.
"""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import finetune
from finetune import Run, UserError
from finetune.cli import dispatch
from tests.conftest import LAUNCHERS, ROOT
from tests.runs import trained, write_run

pytestmark = pytest.mark.usefixtures("one_thread")

RECIPE = """
from pathlib import Path
from finetune import TextClassification

Path({canary!r}).touch()

class Planted(TextClassification):
    "Planted."

    def compute_metrics(self, prediction):
        return {{"own": 1.0}}
"""


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """The file that hostile code makes."""
    return tmp_path / "the canary sang"


@pytest.fixture
def planted(tmp_path: Path, canary: Path) -> Path:
    """A recipe file that makes the canary when it is imported."""
    path = tmp_path / "elsewhere" / "planted.py"
    path.parent.mkdir()
    path.write_text(RECIPE.format(canary=str(canary)), encoding="utf-8")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A copy of a trained run."""
    return Run.load(shutil.copytree(trained().path, tmp_path / "run"))


def changed(path: Path, **fields: Any) -> None:
    """Change fields of a JSON file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, **fields}), encoding="utf-8")


def refused(*words: object, capsys: pytest.CaptureFixture[str]) -> str:
    """The one message with which the command line refuses; no traceback, no second line."""
    assert dispatch.main([str(word) for word in words]) == 2
    told = capsys.readouterr().err.strip()
    assert "Traceback" not in told
    assert len(told.splitlines()) == 1, told
    return told


# ---- modules of the current directory ------------------------------------------------------------

#: Modules of the standard library that the toolkit imports, its first ones among them.
SHADOWED = "__future__ ast csv dataclasses difflib json logging random tempfile typing wandb mlx"


@pytest.mark.processes
@pytest.mark.parametrize("launcher", ["python", "torchrun"])
def test_a_module_of_the_current_directory_shadows_none(
    launcher: str, tmp_path: Path, canary: Path
) -> None:
    for name in SHADOWED.split():
        code = f"open({str(canary)!r}, 'a').write('{name} ')\n"
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [*LAUNCHERS[launcher], "doctor" if launcher == "python" else "list"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not canary.exists(), canary.read_text(encoding="utf-8")
    assert done.returncode == 0, done.stderr


def test_a_program_that_imports_the_toolkit_keeps_its_own_modules(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import finetune, neighbour\n", encoding="utf-8")
    (tmp_path / "neighbour.py").touch()
    for words in (["mine.py"], ["-m", "mine"]):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, check=True)


# ---- recipes that a run names --------------------------------------------------------------------

VERBS: dict[str, Callable[[Path], Any]] = {
    "predict": lambda path: finetune.predict(path, ["fine"]),
    "predict_file": lambda path: finetune.predict_file(path, path / "run.json", path / "o.csv"),
    "evaluate": lambda path: finetune.evaluate(path),
    "report": finetune.report,
    "compare": lambda path: finetune.compare([path, path]),
    "recipe": lambda path: Run.load(path).recipe(),
    "model": lambda path: Run.load(path).model(),
}


@pytest.mark.parametrize("verb", ["predict", "evaluate", "recipe", "model"])
def test_a_run_imports_no_file(verb: str, run: Run, planted: Path, canary: Path) -> None:
    changed(run.path / "run.json", recipe=str(planted))
    with pytest.raises(UserError) as told:
        VERBS[verb](run.path)
    assert not canary.exists()
    assert str(told.value) == (
        f"{run.path}/run.json names a recipe file, {planted}, which would be run as code: if you "
        "trust that file, add --trust_recipe (in Python trust_recipe=True, or import it first)"
    )


@pytest.mark.parametrize("name", ["os", "antigravity", "../elsewhere/planted", "planted.py", ""])
@pytest.mark.parametrize("verb", ["predict", "evaluate", "recipe"])
def test_a_run_imports_nothing_by_a_name(
    verb: str, name: str, run: Run, planted: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(planted.parent)
    monkeypatch.chdir(planted.parent)
    changed(run.path / "run.json", recipe=name)
    with pytest.raises(UserError, match=r"names the recipe '.*', which is not installed") as told:
        VERBS[verb](run.path)
    assert not canary.exists()
    assert "available: mnist, sentiment, yelp" in str(told.value)


@pytest.mark.parametrize("verb", ["report", "compare"])
def test_report_and_compare_need_no_recipe(
    verb: str, tmp_path: Path, planted: Path, canary: Path
) -> None:
    run = write_run(tmp_path / "run", recipe=str(planted))
    if verb == "report":  # the statistics are computed again
        dataclasses.replace(run.metrics, statistics=None).write(run.path)
    VERBS[verb](run.path)
    assert not canary.exists()


@pytest.mark.parametrize("verb", ["report", "compare"])
def test_report_and_compare_import_no_file_for_metrics_of_its_own(
    verb: str, tmp_path: Path, planted: Path, canary: Path
) -> None:
    run = write_run(tmp_path / "run", recipe=str(planted), scoring={})
    if verb == "report":
        dataclasses.replace(run.metrics, statistics=None).write(run.path)
    with pytest.raises(UserError, match="trust_recipe"):
        VERBS[verb](run.path)
    assert not canary.exists()


def test_a_trusted_recipe_is_imported_and_named(
    run: Run, planted: Path, canary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import hashlib

    changed(run.path / "run.json", recipe=str(planted))
    assert "--trust_recipe" in refused("predict", run.path, "--text", "fine", capsys=capsys)
    words = ["predict", str(run.path), "--text", "fine", "--trust_recipe"]
    assert dispatch.main(words) == 0
    told = capsys.readouterr()
    digest = hashlib.sha256(planted.read_bytes()).hexdigest()
    assert told.err == f"importing the recipe {planted} (sha256 {digest})\n"
    assert told.out.startswith(("good", "bad"))
    assert canary.exists()
    assert type(Run.load(run.path).recipe()).__name__ == "Planted"  # imported: asked no more


def test_what_is_trusted_is_what_was_hashed(run: Run, planted: Path, canary: Path) -> None:
    """And not a compiled copy of something else beside it, which Python would take instead."""
    import py_compile

    source = planted.read_text(encoding="utf-8").replace(f"Path({str(canary)!r}).touch()", "")
    hostile = planted.read_bytes()
    py_compile.compile(
        str(planted), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    planted.write_text(source, encoding="utf-8")
    changed(run.path / "run.json", recipe=str(planted))
    with pytest.warns(UserWarning, match=r"importing the recipe .*planted.py \(sha256 "):
        finetune.predict(run.path, ["fine"], trust_recipe=True)
    assert not canary.exists()
    assert hostile != planted.read_bytes()


def test_a_trusted_recipe_that_is_gone_is_named(run: Run) -> None:
    changed(run.path / "run.json", recipe="/nowhere/mine.py")
    with pytest.raises(UserError, match=r"recipe file /nowhere/mine.py cannot be read: No such"):
        finetune.evaluate(run, trust_recipe=True)


def test_a_recipe_of_ones_own_is_used_where_it_was_imported(run: Run, tmp_path: Path) -> None:
    from finetune.recipe import catalog

    mine = tmp_path / "mine.py"
    mine.write_text(RECIPE.format(canary=str(tmp_path / "other")), encoding="utf-8")
    changed(run.path / "run.json", recipe=catalog.origin(catalog.find(str(mine))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(finetune.predict(run.path, ["fine"])) == 1
