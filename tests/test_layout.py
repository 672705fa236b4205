"""The packages and their order, as CONTRIBUTING.md draws them, held against the imports."""

import ast
import re
from pathlib import Path

from tests.conftest import ROOT

PACKAGE = ROOT / "finetune"
MOST_PACKAGES, MOST_LOOSE, MOST_LINES, MOST_IN_ALL = 19, 4, 400, 18_000
FILES = sorted(PACKAGE.rglob("*.py"))


def levels() -> list[list[str]]:
    """The drawing in CONTRIBUTING.md, from the top: the packages of each level."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    match = re.search(r"<!-- packages -->\n\n((?:    .*\n)+)", text)
    assert match is not None
    return [line.partition("#")[0].split() for line in match[1].splitlines()]


def package_of(module: str) -> str:
    """The folder of a module below `finetune`; a loose file counts as a package."""
    names = module.split(".")[1:]
    while names and not (PACKAGE.joinpath(*names)).is_dir():
        *names, last = names
        if not names and (PACKAGE / f"{last}.py").exists():
            return last
    return "/".join(names) or "__init__"


def imports() -> dict[tuple[str, str], list[str]]:
    """Every import of one package from another, wherever it stands in a file: who, and what."""
    imported: dict[tuple[str, str], list[str]] = {}
    for path in FILES:
        folder = path.parent.relative_to(PACKAGE)
        here = path.stem if folder == Path(".") else str(folder)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: a relative import"
                modules = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for module in modules:
                if module.split(".")[0] == "finetune" and (there := package_of(module)) != here:
                    imported.setdefault((here, there), []).append(f"{path.name}: {module}")
    return imported


def test_the_drawing_has_every_package() -> None:
    drawn = [name for level in levels() for name in level]
    folders = {str(path.parent.relative_to(PACKAGE)) for path in FILES} - {"."}
    loose = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert len(drawn) >= 12
    assert sorted(drawn) == sorted(folders | loose)


def test_imports_run_downwards_only() -> None:
    height = {name: -number for number, level in enumerate(levels()) for name in level}
    height |= {"__main__": 2, "__init__": 1}  # hands out names of every package
    pairs = imports()
    assert len(pairs) > 20
    assert {pair: pairs[pair] for pair in pairs if height[pair[0]] <= height[pair[1]]} == {}


def test_the_code_stays_small() -> None:
    folders = {path.parent for path in FILES} - {PACKAGE}
    loose = list(PACKAGE.glob("*.py"))
    assert len(folders) + len(loose) <= MOST_PACKAGES
    assert len(loose) <= MOST_LOOSE
    files = [*FILES, *PACKAGE.rglob("*.jinja")]
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {str(path): count for path, count in lines.items() if count > MOST_LINES} == {}
    assert 5_000 < sum(lines.values()) <= MOST_IN_ALL
