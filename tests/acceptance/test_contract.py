"""Test the suite: each row of the contract has a fast test, and tests only use public names."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import finetune
from tests.conftest import ROOT

#: The rows of the contract. The table after them, clauses without a fast test, repeats some ids.
CONTRACT = (ROOT / "docs" / "contract.md").read_text("utf-8").partition("## Clauses without")[0]
IDS = re.findall(r"^\| ([A-Z]\d+) \|", CONTRACT, re.M)
SOURCES = {path.name: path.read_text("utf-8") for path in Path(__file__).parent.glob("*.py")}
#: Modules outside of this folder that the suite imports.
PATHS = [ROOT / "tests" / f"{name}.py" for name in ("warm", "jobs", "families", "preload")]
PATHS += sorted((ROOT / "tests" / "hub").glob("*.py"))
HELPERS = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in PATHS}
TESTS = sorted(name for name in SOURCES if re.match(r"test_(?!contract\.)", name))
#: Marks and calls of tests that do not count: `make test` skips them, or they may fail or skip.
IDLE = re.compile(r"pytest\.(mark\.(slow|faults|skip|skipif|xfail)\b|(skip|importorskip|xfail)\()")
BY_NAME = {"import_module", "__import__", "run_module", "importorskip", "patch", "setattr"}
PUBLIC = {"finetune", *(f"finetune.{name}" for name in finetune.__all__)}


def rows(marks: str) -> set[str]:
    """Return the ids in the contract marks of a source."""
    return set(re.findall(r"'(\w+)'", " ".join(re.findall(r"\.contract\((.*?)\)", marks))))


def cases_in(source: str) -> Iterator[tuple[str, set[str], set[str]]]:
    """Yield the name of each test, the rows in its marks, and those that its fast cases cover."""
    tree, values = ast.parse(source), dict[str, str]()

    def text(node: ast.AST) -> str:
        return values.get(ast.unparse(node), ast.unparse(node))

    scopes: list[tuple[Any, str]] = [(tree, "")]
    for scope, inherited in scopes:  # grows by the classes found
        for node in scope.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                values[ast.unparse(target)] = text(node.value)
        marks = f"{inherited}\n{values.pop('pytestmark', '')}\n"
        for node in scope.body:
            if isinstance(node, ast.ClassDef):
                scopes.append((node, marks + "\n".join(map(text, node.decorator_list))))
            elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                cases, labels, idle = [], marks, IDLE.search(" ".join(map(ast.unparse, node.body)))
                for decorator in node.decorator_list:
                    if not ast.unparse(decorator).startswith("pytest.mark.parametrize("):
                        labels += text(decorator) + "\n"
                    elif isinstance(decorator, ast.Call):
                        table: Any = ast.parse(text(decorator.args[1]), mode="eval").body
                        part = [ast.unparse(case) for case in getattr(table, "elts", [])]
                        cases, idle = cases + part, idle or (part and all(map(IDLE.search, part)))
                cases = [labels, *cases]
                fast = [case for case in cases if not idle and not IDLE.search(labels + case)]
                yield node.name, rows(" ".join(cases)), rows(" ".join(fast))


def private_names(source: str) -> list[str]:
    """Return the names of `finetune` that a source imports or patches and that are not public."""
    names = list[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "finetune":
            names += [f"finetune.{node.attr}"]
        elif isinstance(node, ast.Call) and BY_NAME & {*ast.unparse(node.func).split(".")}:
            names += [str(value.value) for value in node.args if isinstance(value, ast.Constant)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # a script
            names += re.findall(r"\b(?:from|import) (finetune\.\w+)", node.value)
    return [name for name in names if re.match(r"finetune\.(?!__)", name) and name not in PUBLIC]


M, TEST = "pytest.mark", "def test_a(x): pass\n"
TABLE = f"@{M}.contract('A1')\n@{M}.parametrize('x', TABLE)\n{TEST}"


@pytest.mark.parametrize(
    ("source", "ids", "fast_ids"),
    [
        (f"@{M}.contract('A1', 'B2')\n{TEST}", "A1 B2", "A1 B2"),
        (f"pytestmark = [{M}.contract('A1')]\nclass TestA:\n    {TEST}", "A1", "A1"),
        (f"pytestmark = {M}.slow\n@{M}.contract('A1')\n{TEST}", "A1", ""),
        (f"late = {M}.skipif(1)\n@{M}.contract('A1')\n@late\n{TEST}", "A1", ""),
        (f"@{M}.xfail\nclass TestA:\n    @{M}.contract('A1')\n    {TEST}", "A1", ""),
        (f"@{M}.contract('A1')\n{TEST}    pytest.importorskip('x')".replace("pass", ""), "A1", ""),
        (TABLE.replace("TABLE", f"[1, pytest.param(2, marks={M}.slow)]"), "A1", "A1"),
        (f"TABLE = [pytest.param(2, marks=[{M}.xfail])]\n{TABLE}", "A1", ""),
        (f"TABLE = [1, P(2, marks={M}.contract('B1'))]\n{TABLE}", "A1 B1", "A1 B1"),
        (f"TABLE = [1, P(2, marks=({M}.contract('B1'), {M}.slow))]\n{TABLE}", "A1 B1", "A1"),
    ],
)  # fmt: skip
def test_the_rows_of_a_test_are_read(source: str, ids: str, fast_ids: str) -> None:
    """All marks count, except those of tests that are slow or may be skipped."""
    assert list(cases_in(source)) == [("test_a", set(ids.split()), set(fast_ids.split()))]


def test_private_names_are_read() -> None:
    """Submodules are found in imports, attributes, module names and scripts in strings."""
    public = "import finetune\nfrom finetune import Run\nfinetune.check\nrun(['-m', 'finetune.x'])"
    assert private_names(f"{public}\n'from finetune import Run'") == []
    private = "import PACKAGE.x;from PACKAGE.x import y;from finetune import x;finetune.x.y"
    private += ";import_module('finetune.x');mock.patch('finetune.x.y');'from PACKAGE.x import y'"
    for source in private.replace("PACKAGE", "finetune").split(";"):
        assert len(private_names(source)) == 1, source


def test_the_rows_are_in_order() -> None:
    """The ids of the contract are A1, A2, ..., B1, ..., H, each once and in order."""
    last = {section: sum(row[0] == section for row in IDS) for section in "ABCDEFGH"}
    assert [f"{section}{n + 1}" for section in last for n in range(last[section])] == IDS != []


def test_each_row_has_a_fast_test() -> None:
    """`make test` runs a test of each row that cannot be skipped."""
    covered = set().union(*(ids for name in TESTS for *_, ids in cases_in(SOURCES[name])))
    assert [row for row in IDS if row not in covered] == []


@pytest.mark.parametrize("name", TESTS)
def test_each_test_names_rows_of_the_contract(name: str) -> None:
    """Each test is marked with rows that are in the contract."""
    cases = list(cases_in(SOURCES[name]))
    assert [test for test, ids, _ in cases if not ids or ids - {*IDS}] == []


@pytest.mark.parametrize("name", [*SOURCES, *HELPERS])
def test_a_source_uses_public_names(name: str) -> None:
    """No source imports or patches a submodule, so the suite survives a rewrite of the code."""
    assert private_names({**SOURCES, **HELPERS}[name]) == []


def test_the_helpers_are_those_that_the_suite_imports() -> None:
    """`HELPERS` has every module outside of this folder that the suite imports."""
    pattern = r"^\s*(?:from|import) tests\.(?!acceptance|conftest)(\w+)"
    used = {name for text in SOURCES.values() for name in re.findall(pattern, text, re.M)}
    assert used <= {re.sub(r"^tests/|/.*|\.py$", "", name) for name in HELPERS}
