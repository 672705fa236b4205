"""The quickstart notebook runs from top to bottom."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import HANGS, ROOT


@pytest.mark.processes
def test_quickstart(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "notebooks" / "quickstart.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)  # none is committed
    NotebookClient(
        notebook, timeout=HANGS, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = [
        output.get("data", {}).get("text/plain", "") + output.get("text", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    ]
    assert any("'accuracy'" in text and "'f1'" in text for text in shown)
    assert any("'label': 'positive'" in text and "'label': 'negative'" in text for text in shown)
