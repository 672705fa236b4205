"""Test that the notebooks run from top to bottom."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import HANGS, ROOT


def cell_outputs(notebook: nbformat.NotebookNode, directory: Path | None = None) -> list[str]:
    """Return the text outputs of the cells, as committed or after running them in a directory."""
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
    assert all(not cell.get("outputs") for cell in notebook.cells)  # no output is committed
    outputs = cell_outputs(notebook, tmp_path)
    assert any("'accuracy'" in text and "'f1'" in text for text in outputs)
    labels = ("'label': 'positive'", "'label': 'negative'")
    assert any(all(label in text for label in labels) for text in outputs)


@pytest.mark.slow  # trains until it beats the baselines; quickstart runs the same code
def test_own_data(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "notebooks" / "own_data.ipynb", as_version=4)
    committed, executed = cell_outputs(notebook), cell_outputs(notebook, tmp_path)
    for outputs in (committed, executed):
        text = "\n".join(outputs)
        assert "multi_label: the labels are lists, such as ['positive', 'long']" in text
        fine_tuned, _, bag_of_words = map(
            float, re.search(r"f1_micro +(\S+) +(\S+) +(\S+)", text).groups()
        )
        assert fine_tuned > bag_of_words
        assert "frozen encoder + logistic regression" in text
        assert "probability of film" in text
        assert "of the new rows get exactly their labels" in text
