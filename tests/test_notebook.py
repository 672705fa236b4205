"""The notebooks run from top to bottom."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import HANGS, ROOT


def shown_by(notebook: nbformat.NotebookNode, directory: Path | None = None) -> list[str]:
    """What its cells show: as committed, or executed in a directory."""
    if directory is not None:
        resources = {"metadata": {"path": str(directory)}}
        NotebookClient(notebook, timeout=HANGS, resources=resources).execute()
    return [
        output.get("data", {}).get("text/plain", "") + output.get("text", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    ]


@pytest.mark.processes
def test_quickstart(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "notebooks" / "quickstart.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)  # none is committed
    shown = shown_by(notebook, tmp_path)
    assert any("'accuracy'" in text and "'f1'" in text for text in shown)
    assert any("'label': 'positive'" in text and "'label': 'negative'" in text for text in shown)


@pytest.mark.slow  # it trains until it beats its baselines; quickstart takes the same paths
def test_own_data(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "notebooks" / "own_data.ipynb", as_version=4)
    committed, shown = shown_by(notebook), shown_by(notebook, tmp_path)
    for texts in (committed, shown):
        said = "\n".join(texts)
        assert "multi_label: the labels are lists, such as ['positive', 'long']" in said
        fine_tuned, _, bag_of_words = map(
            float, re.search(r"f1_micro +(\S+) +(\S+) +(\S+)", said).groups()
        )
        assert fine_tuned > bag_of_words
        assert "probability of film" in said
        assert "of the new rows get exactly their labels" in said
