"""Test that imports between packages follow the order in CONTRIBUTING.md."""

import ast
import re
from pathlib import Path

from tests.conftest import ROOT

PACKAGE = ROOT / "finetune"
MAX_PACKAGES, MAX_MODULES = 22, 4
FILES = sorted(PACKAGE.rglob("*.py"))


def levels() -> list[list[str]]:
    """Return the packages of each level of the drawing in CONTRIBUTING.md, top level first."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    match = re.search(r"<!-- packages -->\n\n((?:    .*\n)+)", text)
    assert match is not None
    return [line.partition("#")[0].split() for line in match[1].splitlines()]


def package_of(module: str) -> str:
    """Return the package of a module in `finetune`; a top-level module is its own package."""
    names = module.split(".")[1:]
    while names and not (PACKAGE.joinpath(*names)).is_dir():
        *names, last = names
        if not names and (PACKAGE / f"{last}.py").exists():
            return last
    return "/".join(names) or "__init__"


def imports() -> dict[tuple[str, str], list[str]]:
    """Return the imports between packages: (importing, imported) -> file names and modules."""
    imported: dict[tuple[str, str], list[str]] = {}
    for path in FILES:
        folder = path.parent.relative_to(PACKAGE)
        package = path.stem if folder == Path(".") else str(folder)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: a relative import"
                modules = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for module in modules:
                if module.split(".")[0] == "finetune" and (target := package_of(module)) != package:
                    imported.setdefault((package, target), []).append(f"{path.name}: {module}")
    return imported


def test_the_drawing_has_every_package() -> None:
    drawn = [name for level in levels() for name in level]
    folders = {str(path.parent.relative_to(PACKAGE)) for path in FILES} - {"."}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert len(drawn) >= 12
    assert sorted(drawn) == sorted(folders | modules)


def test_imports_run_downwards_only() -> None:
    height = {name: -number for number, level in enumerate(levels()) for name in level}
    height |= {"__main__": 2, "__init__": 1}  # exports names of every package
    pairs = imports()
    assert len(pairs) > 20
    assert {pair: pairs[pair] for pair in pairs if height[pair[0]] <= height[pair[1]]} == {}


def test_packages_and_loose_modules_stay_few() -> None:
    folders = {path.parent for path in FILES} - {PACKAGE}
    modules = list(PACKAGE.glob("*.py"))
    assert len(folders) + len(modules) <= MAX_PACKAGES
    assert len(modules) <= MAX_MODULES
