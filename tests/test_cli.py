"""The command line: it answers at once, refuses in one message, and leaves nothing half made."""

import builtins
import gc
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from finetune import cli
from finetune.cli import dispatch, imports
from finetune.errors import UserError
from finetune.recipe import catalog
from finetune.runtime import hub
from finetune.runtime.version import __version__
from recipes.yelp import Yelp
from tests.conftest import ROOT

RECIPES = catalog.names()
LIBRARIES = {"torch", "transformers", "datasets", "accelerate", "numpy", "sklearn", "pandas"}


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def without_hub(home: Path, endpoint: str) -> dict[str, str]:
    """The environment of someone who has no cache, and no Hub at `endpoint`."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HF_") and not name.lower().endswith("_proxy")
    }
    return environment | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home)}


def refusal(
    words: Sequence[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The lines of standard error of a command that ends with status 2."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


# ---- help, list, version ---------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--help"], ["list"], ["--version"], []])
def test_the_light_commands_import_no_library(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "finetune", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    imported = re.findall(r"\| +(\w+)[\w.]*$", done.stderr, flags=re.MULTILINE)

    assert done.returncode == 0
    assert "finetune" in imported
    assert LIBRARIES & set(imported) == set()


def test_help_names_verbs_and_recipes() -> None:
    text = dispatch.usage()

    assert len(RECIPES) >= 3
    for name in RECIPES:
        assert f" {name} {catalog.summary(name)} " in " ".join(text.split())
    for verb in dispatch.VERBS:
        assert re.search(rf"^  {verb} ", text, flags=re.MULTILINE)


def test_list_has_a_line_for_each_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == RECIPES


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0

    assert capsys.readouterr().out == f"finetune {__version__}\n"


@pytest.mark.parametrize("words", ["list", "--help", "yelp --help"])
def test_a_reader_that_has_read_enough_is_no_error(words: str) -> None:
    """As under `| head -1`; here the reader is gone before the first line."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "finetune", *words.split()],
        cwd=ROOT,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)

    assert done.stderr == ""
    assert done.returncode == 0


# ---- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["yepl"], ["train", "yepl"], ["yepl", "--help"]])
def test_an_unknown_recipe_suggests_the_nearest(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = refusal(words, capsys, monkeypatch)

    assert line.startswith("error: unknown recipe")
    assert "'yepl'; did you mean 'yelp'?" in line
    assert "image, mnist, sentiment, text, yelp" in line


def test_an_unknown_verb_suggests_the_nearest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = refusal(["evalaute", "runs/yelp"], capsys, monkeypatch)

    assert "'evalaute'; did you mean 'evaluate'?" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--verison", "unknown option --verison; did you mean '--version'?"),
        ("list extra", "list: unexpected words: extra"),
        (
            "predict run in.csv --ouput x",
            "predict: unknown option --ouput; did you mean '--output'?",
        ),
        ("compare a b --ouput=x", "compare: unknown option --ouput; did you mean '--output'?"),
        ("mnist --max_length 3", "unknown option --max_length: the recipe 'mnist' has no such "),
        ("yelp --hlep", "unknown option --hlep; did you mean '--help'?"),
    ],
)
def test_a_mistyped_flag_suggests_the_nearest(
    words: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = refusal(words.split(), capsys, monkeypatch)

    assert line.startswith(f"error: {said}")


@pytest.mark.parametrize("verb", ["predict", "evaluate"])
def test_a_mistyped_run_suggests_the_nearest(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sentiment", "other"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").touch()
    monkeypatch.chdir(tmp_path)
    words = ["in.csv"] if verb == "predict" else []

    (line,) = refusal([verb, "runs/sentimnt", *words], capsys, monkeypatch)
    assert line.endswith("did you mean 'runs/sentiment'? (runs: runs/other, runs/sentiment)")
    (line,) = refusal([verb, "sentiment", *words], capsys, monkeypatch)
    assert "did you mean 'runs/sentiment'?" in line


def test_ctrl_c_before_the_training_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(catalog, "find", interrupted)
    assert cli.main(["yelp"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_ctrl_c_while_the_command_line_is_imported_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(name: str, *rest: Any) -> Any:
        if name == "finetune.cli":
            raise KeyboardInterrupt
        return imported(name, *rest)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", interrupted)
    assert cli.main(["list"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import no_such_module", "mine.py, line 2: ModuleNotFoundError: No module named 'no_"),
        ("class Mine(", "mine.py, line 2: '(' was never closed"),
        (
            "from finetune import TextRecipe\n"
            "class Mine(TextRecipe):\n    training = dict(learning_rte=1)",
            "mine.py: `training` names the unknown argument 'learning_rte'; did you mean 'learn",
        ),
        (
            "from finetune import TextRecipe\nclass Mine(TextRecipe):\n    max_length = 3",
            "mine.py: Mine.max_length overrides an option without annotation",
        ),
    ],
)
def test_a_recipe_file_that_cannot_be_used_is_one_line(
    body: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "mine.py").write_text(f'"""Mine."""\n{body}\n')
    monkeypatch.chdir(tmp_path)

    (line,) = refusal(["mine.py"], capsys, monkeypatch)
    assert line.startswith(f"error: {said}")


@pytest.mark.parametrize(
    ("words", "example"),
    [
        (["--embedded", "yelp"], "python -m finetune yelp [flags]"),
        (["train", "--embedded", "yelp"], "python -m finetune yelp [flags]"),
        (["--embedded"], "python -m finetune RECIPE [flags]"),
        (["train"], "python -m finetune RECIPE [flags]"),
    ],
)
def test_the_recipe_comes_first(
    words: list[str],
    example: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (line,) = refusal(words, capsys, monkeypatch)

    assert line.startswith(f"error: the name of a recipe comes first: {example}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere/mine.py"], "recipe file not found: nowhere/mine.py"),
        (["no.such.module"], "no module 'no' (recipe 'no.such.module')"),
        (["yelp", "--embedded", "--train_samples", "0"], "--train_samples 0: expected"),
        (["yelp", "--embedded", "--learning_rte", "1"], "unknown option --learning_rte; did you"),
    ],
)
def test_a_mistake_in_a_recipe_or_an_option_is_one_line(
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (line,) = refusal(words, capsys, monkeypatch)

    assert line.startswith(f"error: {message}")


def test_every_mistake_has_a_line_and_nothing_is_left_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reviews.csv").write_text("words,stars\nfine,1\n")
    monkeypatch.chdir(tmp_path)
    words = ["yelp", "--dataset", "reviews.csv", "--model", "./none"]
    files = sorted(tmp_path.rglob("*"))

    lines = refusal(words, capsys, monkeypatch)

    assert len(lines) == 3
    assert lines[0].startswith("error: --model ./none: expected a directory")
    assert lines[1].startswith("error: --text_column: no column 'text'")
    assert lines[2].startswith("error: --label_column: no column 'label'")
    assert sorted(tmp_path.rglob("*")) == files


# ---- the Hub out of reach --------------------------------------------------------------------


@pytest.mark.processes
def test_the_hub_out_of_reach_is_one_message_before_a_library_is_imported(
    closed_port: int, tmp_path: Path
) -> None:
    """Those retry for half a minute."""
    endpoint = f"http://127.0.0.1:{closed_port}"
    environment = without_hub(tmp_path / "home", endpoint) | {"PYTHONPATH": str(ROOT)}
    (cwd := tmp_path / "cwd").mkdir()

    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "finetune", "yelp"],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    imported = set(re.findall(r"\| +(\w+)[\w.]*$", done.stderr, flags=re.MULTILINE))
    said = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]

    assert done.returncode == 2
    assert done.stdout == ""
    assert "finetune" in imported
    assert (LIBRARIES | {"huggingface_hub"}) & imported == set()
    first, *ways = said
    assert first.startswith(
        "error: the data set 'Yelp/yelp_review_full' and the model 'google-bert/bert-base-cased' "
        f"cannot be loaded: {endpoint} does not answer"
    )
    assert [way.split()[0] for way in ways] == [
        "--embedded",
        "--model",
        "--dataset",
        "HF_ENDPOINT=https://a.mirror",
    ]
    assert "--dataset FILE --model DIRECTORY" in ways[2]
    assert "HF_HOME=" in ways[3]
    assert list(cwd.iterdir()) == []


def test_what_is_wanted_of_the_hub_alone_is_named(
    closed_port: int, tmp_path: Path, reviews: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed_port}")
    wanted = hub.missing({"dataset": str(reviews), "model": "some/model"})

    error = hub.unreachable(wanted, packaged="embedded:minilm")

    assert wanted == ["the model 'some/model'"]
    assert str(error).startswith("the model 'some/model' cannot be loaded: http://127.0.0.1")
    assert "HF_HUB_OFFLINE" not in os.environ  # asking sets nothing
    ways = [line.split("  ")[1] for line in str(error).splitlines()[1:-1]]
    assert ways == ["--model embedded:minilm", "--model DIRECTORY"]
    assert "--embedded" in str(hub.unreachable(wanted, embedded=True))
    of_images = str(hub.unreachable(wanted, packaged=catalog.find("image").packaged_model))
    assert "--model embedded:vit  " in of_images
    assert "minilm" not in of_images
    assert "embedded:" not in str(hub.unreachable(wanted))
    of_data = str(hub.unreachable(["the data set 'some/data'"], data="--data FILE"))
    assert "--data FILE" in of_data
    assert "--model" not in of_data


def test_a_recipe_in_a_notebook_names_the_ways_without_the_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for name in ("HF_HUB_CACHE", "HF_DATASETS_CACHE"):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(UserError, match="cannot be loaded: HF_HUB_OFFLINE is set") as refusal:
        Yelp().trainer(max_steps=1)
    assert "--model embedded:minilm" in str(refusal.value)
    with pytest.raises(UserError, match=r"^the data set .* cannot be loaded"):
        _ = Yelp().splits


def test_nothing_is_asked_of_a_hub_that_is_not_needed(
    reviews: Path, tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")

    for wanted in (
        {"dataset": str(reviews), "model": tiny_model},
        {"dataset": "embedded:imdb", "model": "embedded:minilm"},
        {"dataset": "embedded:digits", "model": None},
        {},
    ):
        assert hub.missing(wanted) == []
    assert hub.unreachable([]) is None
    assert "HF_HUB_OFFLINE" not in os.environ


def test_a_hub_that_answers_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        assert hub.unreachable(["the model 'some/model'"]) is None

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set" in str(hub.unreachable(["the model 'some/model'"]))


@pytest.mark.parametrize(
    ("name", "on_the_hub"),
    [
        ("Yelp/yelp_review_full", True),
        ("imdb", True),
        ("./data", False),
        ("/data", False),
        ("~/data", False),
        ("reviews.csv", False),
        ("embedded:imdb", False),
        ("", False),
        (None, False),
    ],
)
def test_names_on_the_hub(name: str | None, on_the_hub: bool) -> None:
    assert hub.names_repository(name) is on_the_hub


def test_garbage_is_not_looked_for_while_libraries_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a_library_to_import.py").write_text("import gc\nlooked = gc.isenabled()\n")
    (tmp_path / "broken_library.py").write_text("import nowhere_at_all\n")
    frozen = gc.get_freeze_count()
    imports.at_once("a_library_to_import")
    assert not sys.modules["a_library_to_import"].looked
    assert gc.isenabled()
    assert gc.get_freeze_count() > frozen
    with pytest.raises(ModuleNotFoundError):
        imports.at_once("broken_library")
    assert gc.isenabled()


@pytest.mark.parametrize(
    "words",
    [
        ("--text-column", "a", "--drop-invalid", "--per-device-eval-batch-size", "8"),
        ("--label_columns", "a,b", "--label-map", "a=b", "--trust-recipe"),
    ],
)
def test_flags_of_evaluate_have_dashes_too(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["evaluate", "no/such/run", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: no/such/run is not the directory of a run")
