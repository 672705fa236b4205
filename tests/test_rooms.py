"""The rooms of the house, as CONTRIBUTING.md draws them, held against the imports."""

import ast
import re
from pathlib import Path

from tests.conftest import ROOT

PACKAGE = ROOT / "finetune"
MOST_ROOMS, MOST_LOOSE, MOST_LINES, MOST_IN_ALL = 22, 4, 400, 17_850
FILES = sorted(PACKAGE.rglob("*.py"))


def floors() -> list[list[str]]:
    """The drawing in CONTRIBUTING.md, from the top: the rooms of each floor."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    match = re.search(r"<!-- rooms -->\n\n((?:    .*\n)+)", text)
    assert match is not None
    return [line.partition("#")[0].split() for line in match[1].splitlines()]


def room(module: str) -> str:
    """The folder of a module below `finetune`; a loose file is a room of its own."""
    names = module.split(".")[1:]
    while names and not (PACKAGE.joinpath(*names)).is_dir():
        *names, last = names
        if not names and (PACKAGE / f"{last}.py").exists():
            return last
    return "/".join(names) or "__init__"


def arrows() -> dict[tuple[str, str], list[str]]:
    """Every import of one room from another, wherever it stands in a file: who, and what."""
    found: dict[tuple[str, str], list[str]] = {}
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
                if module.split(".")[0] == "finetune" and (there := room(module)) != here:
                    found.setdefault((here, there), []).append(f"{path.name}: {module}")
    return found


def test_the_drawing_has_every_room() -> None:
    drawn = [name for floor in floors() for name in floor]
    folders = {str(path.parent.relative_to(PACKAGE)) for path in FILES} - {"."}
    loose = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert len(drawn) >= 12
    assert sorted(drawn) == sorted(folders | loose)


def test_imports_run_downhill_only() -> None:
    height = {name: -number for number, floor in enumerate(floors()) for name in floor}
    height |= {"__main__": 2, "__init__": 1}  # the door: it hands out names of every room
    found = arrows()
    assert len(found) > 20
    uphill = {
        f"{here} -> {there}": where
        for (here, there), where in found.items()
        if height[here] <= height[there]
    }
    assert uphill == {}


def test_the_house_stays_small() -> None:
    around = ("recipes", "metrics", "benchmarks")
    folders = {path.parent for path in FILES} - {PACKAGE}
    loose = list(PACKAGE.glob("*.py"))
    assert len(folders) + len(loose) + len(around) <= MOST_ROOMS
    assert len(loose) <= MOST_LOOSE
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {str(path): count for path, count in lines.items() if count > MOST_LINES} == {}
    assert 5_000 < sum(lines.values()) < MOST_IN_ALL
