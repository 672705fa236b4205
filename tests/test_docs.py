"""Test that links, paths and quotes in the docs exist."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import finetune
from tests.conftest import ROOT

LOOP = "".join((ROOT / "examples" / "native_ddp.py").read_text(encoding="utf-8").split())
PAGES = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PARAGRAPHS = (ROOT / "docs" / "parallel.md").read_text(encoding="utf-8").split("\n\n")
QUOTES = [
    quote
    for paragraph in PARAGRAPHS
    for loop in re.split(r"[Ii]n\s+the\s+loop|The\s+loop\s+is", paragraph, maxsplit=1)[1:]
    for quote in re.findall(r"`([^`]+)`", re.split(r"[;.]\s+[Hh]ere", loop)[0])
    if not quote.startswith("finetune/")
]


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))


def test_there_are_pages_with_links_and_quotes() -> None:
    assert len(PAGES) >= 8
    assert sum(len(links(page)) for page in PAGES) >= 20
    assert len(QUOTES) >= 12


@pytest.mark.parametrize("quote", QUOTES)
def test_a_quote_is_a_line_of_the_native_loop(quote: str) -> None:
    for piece in "".join(quote.split()).split("..."):
        assert piece.strip(",)") in LOOP


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_in_a_page_exist(page: Path) -> None:
    for link in links(page):
        assert link.startswith("https://") or (page.parent / link).exists(), link
    named = r"`((?:benchmarks|examples|finetune|recipes|tests)/[a-z0-9_/]+\.py)"
    for path in re.findall(named, page.read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_in_the_python_of_a_page_exist(page: Path) -> None:
    """Those of the toolkit; blocks that are whole programs are run by the tests of their pages."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    for node in (node for block in blocks for node in ast.walk(ast.parse(block))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "finetune":
            assert hasattr(finetune, node.attr), node.attr
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(
            ("finetune", "recipes")
        ):
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, name.name) for name in node.names), node.module
