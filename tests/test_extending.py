"""Test that every file and command in docs/extending.md runs unchanged."""

import re
import runpy
import shlex
import sqlite3
from pathlib import Path

import pytest

import finetune
from tests.conftest import ROOT, Command

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# file: (\S+)\n(.*?)```", PAGE, re.DOTALL))
RECIPES = [name for name, text in FILES.items() if re.search(r"^class \w+\(\w+\):", text, re.M)]
COMMANDS = [
    shlex.split(line, comments=True)
    for line in re.findall(r"^    (python -m finetune .*)$", PAGE, re.MULTILINE)
]
TINY = {"max_steps": 2, "baseline": False, "precision": "fp32", "eval_samples": 20}

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with every file of the page and the data that they read."""
    place = tmp_path_factory.mktemp("extending")
    for name, text in FILES.items():
        (place / name).write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        runpy.run_path("make_tickets.py")
    with sqlite3.connect(place / "tickets.sqlite") as database:
        database.execute("CREATE TABLE tickets (body, queue)")
        rows = (place / "tickets.csv").read_text(encoding="utf-8").splitlines()[1:]
        split = [row.rpartition(",")[::2] for row in rows]
        database.executemany("INSERT INTO tickets VALUES (?, ?)", [*split, ("buy now", "spam")])
    return place


def test_the_page_has_its_files() -> None:
    assert len(RECIPES) >= 6
    assert len(FILES) == PAGE.count("```python") == len(RECIPES) + 2  # data and a metric
    assert len(COMMANDS) >= 4


@pytest.mark.trains
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_of_the_page_trains(
    name: str, place: Path, tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    run = finetune.train(name, output_dir=f"runs/{Path(name).stem}", model=tiny_model, **TINY)
    assert run.manifest.status == "finished"
    assert len(run.labels) == 3
    expected = {
        "by_recall.py": {"recall", "f1", "accuracy"},
        "by_cost.py": {"minutes_lost", "accuracy"},
        "dishes.py": {"f1", "precision", "recall", "f1_macro", "token_accuracy"},
    }
    assert set(run.headline) == expected.get(name, {"accuracy", "f1"})
    notes = " ".join(run.manifest.data.notes)
    assert ("180 tickets of tickets.sqlite, without spam" in notes) == (name == "from_sql.py")
    assert ("frozen, but for the head and encoder layers: 1" in notes) == (name == "frozen.py")
    if name == "by_cost.py":  # lower is better
        card = (run.path / "README.md").read_text(encoding="utf-8")
        assert re.search(r"The model .* the baseline 'majority class'", card)
    evaluation = finetune.evaluate(run)
    assert evaluation.metrics == pytest.approx(dict(run.metrics.test), abs=1e-5)


@pytest.mark.processes
def test_the_commands_of_the_page(place: Path, tiny_model: str, command: Command) -> None:
    for words in COMMANDS:
        assert words[:3] == ["python", "-m", "finetune"]
        is_training = words[3] == "tickets.py" and "--help" not in words
        flags = ["--model", tiny_model, "--max_steps", "1", "--no_baseline"]
        process = command(*words[3:], *(flags if is_training else []), cwd=place)
        assert process.returncode == 0, process.stderr
    assert len((place / "predicted.csv").read_text().splitlines()) == 181
