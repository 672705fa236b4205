"""Every file of docs/extending.md runs as it stands there."""

import ast
import importlib.util
import re
import runpy
import shlex
import sqlite3
import sys
from pathlib import Path
from types import ModuleType

import evaluate
import pytest

import finetune
from finetune import Run, cli
from finetune.cli import dispatch
from tests.conftest import ROOT, Command

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# file: (\S+)\n(.*?)```", PAGE, re.DOTALL))
RECIPES = [name for name, text in FILES.items() if re.search(r"^class \w+\(\w+\):", text, re.M)]
COMMANDS = [
    shlex.split(line, comments=True)
    for line in re.findall(r"^    (python -m finetune .*)$", PAGE, re.MULTILINE)
]
TINY = {"max_steps": 2, "baseline": False, "precision": "fp32", "eval_samples": 20}
OF_CHECKOUT = ("metrics/", "finetune/")

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with every file of the page, and the data that they read."""
    place = tmp_path_factory.mktemp("extending")
    for name, text in FILES.items():
        path = place / ("checkout" if name.startswith(OF_CHECKOUT) else "") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        runpy.run_path("make_tickets.py")
    with sqlite3.connect(place / "tickets.sqlite") as database:
        database.execute("CREATE TABLE tickets (body, queue)")
        rows = (place / "tickets.csv").read_text(encoding="utf-8").splitlines()[1:]
        split = [row.rpartition(",")[::2] for row in rows]
        database.executemany("INSERT INTO tickets VALUES (?, ?)", [*split, ("buy now", "spam")])
    return place


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_page_has_its_files() -> None:
    kinds = [name for name in RECIPES if not name.startswith(OF_CHECKOUT)]
    assert len(kinds) >= 7
    assert (
        len(FILES) == PAGE.count("```python") == len(kinds) + 5
    )  # data, two metrics, verb of two files
    assert len(COMMANDS) >= 4


@pytest.mark.trains
@pytest.mark.parametrize("name", [each for each in RECIPES if not each.startswith(OF_CHECKOUT)])
def test_a_recipe_of_the_page_trains(
    name: str, place: Path, tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    model = {} if name == "points.py" else {"model": tiny_model}
    run = finetune.train(name, output_dir=f"runs/{Path(name).stem}", **TINY, **model)
    assert run.manifest.status == "finished"
    assert len(run.labels) == (2 if name == "points.py" else 3)
    expected = {
        "by_recall.py": {"recall", "f1", "accuracy"},
        "by_cost.py": {"minutes_lost", "accuracy"},
    }
    assert set(run.headline) == expected.get(name, {"accuracy", "f1"})
    notes = " ".join(run.manifest.data.notes)
    assert ("180 tickets of tickets.sqlite, without spam" in notes) == (name == "from_sql.py")
    assert ("frozen, but for the head and encoder layers: 1" in notes) == (name == "frozen.py")
    if name == "by_cost.py":  # less is better
        card = (run.path / "README.md").read_text(encoding="utf-8")
        assert re.search(r"Fine-tuning .* the baseline 'majority class'", card)
    again = finetune.evaluate(run)
    assert again.metrics == pytest.approx(dict(run.metrics.test), abs=1e-5)


@pytest.mark.processes
def test_the_commands_of_the_page(place: Path, tiny_model: str, command: Command) -> None:
    for words in COMMANDS:
        assert words[:3] == ["python", "-m", "finetune"]
        trains = words[3] == "tickets.py" and "--help" not in words
        more = ["--model", tiny_model, "--max_steps", "1", "--no_baseline"] if trains else []
        done = command(*words[3:], *more, cwd=place)
        assert done.returncode == 0, done.stderr
    assert len((place / "predicted.csv").read_text().splitlines()) == 181


def test_the_metric_of_the_page(place: Path) -> None:
    path = place / "checkout" / "metrics" / "balanced_accuracy"
    metric = evaluate.load(str(path), keep_in_memory=True)
    found = metric.compute(predictions=[0, 1, 1], references=[0, 1, 0])
    assert found == {"balanced_accuracy": 0.75}


@pytest.mark.trains
def test_the_verb_of_the_page(
    place: Path,
    tiny_model: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(place)
    run = finetune.train("tickets.py", output_dir="runs/verb", model=tiny_model, **TINY)
    checkout = place / "checkout" / "finetune"
    function = module(checkout / "pipeline" / "hyperparameters.py")
    assert function.hyperparameters(run)["learning_rate"] == "5e-05"
    monkeypatch.setitem(sys.modules, "finetune.pipeline.hyperparameters", function)
    assert module(checkout / "cli" / "hyperparameters.py").main([str(run.path)]) == 0
    assert re.search(r"global_batch_size +16\n", capsys.readouterr().out)
    assert Run.load(run.path).manifest == run.manifest
    lines = re.findall(r'^    ("(?:pipeline.)?hyperparameters": .*)$', PAGE, re.MULTILINE)
    (verb,), (home,) = (ast.literal_eval("{" + line + "}").items() for line in lines)
    monkeypatch.setitem(dispatch.VERBS, *verb)
    monkeypatch.setitem(vars(finetune)["_HOME"], *reversed(home))
    name = "finetune.cli.hyperparameters"
    monkeypatch.setitem(sys.modules, name, module(checkout / "cli" / "hyperparameters.py"))
    assert cli.main(["hyperparameters", str(run.path)]) == 0
    assert re.search(r"global_batch_size +16\n", capsys.readouterr().out)
    assert "  hyperparameters  show the training arguments" in dispatch.usage()
    assert finetune.hyperparameters(run)["learning_rate"] == "5e-05"
    del vars(finetune)["hyperparameters"]  # a name that was asked for stays
