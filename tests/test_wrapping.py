"""Help pages are as wide as the terminal."""

import shlex

import pytest

from finetune.cli import dispatch, evaluate, predict
from finetune.cli.parser import Parser
from finetune.config import wrapping


def test_prose_is_wrapped_and_a_long_command_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    command = 'python -m finetune predict runs/yelp --text "The soup was cold." --output some.csv'
    text = f"Words that are\nwrapped {'again ' * 12}\n\n- an item\n\n    {command}   # why\n"
    monkeypatch.setenv("COLUMNS", "50")
    lines = wrapping.prose(text).splitlines()
    assert max(map(len, lines)) <= 48
    assert lines[0].startswith("Words that are wrapped again")
    assert "- an item" in lines
    assert "    # why" in lines
    as_typed = "\n".join(lines[lines.index("    # why") + 1 :])
    assert shlex.split(as_typed.replace("\\\n", "")) == shlex.split(command)
    monkeypatch.setenv("COLUMNS", "120")
    assert f"    {command}   # why" in wrapping.prose(text).splitlines()


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("verb", [evaluate, predict])
def test_a_help_page_fits(
    columns: int,
    verb: object,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        verb.main(["--help"])  # type: ignore[attr-defined]
    usage, _, page = capsys.readouterr().out.partition("\n\n")
    assert usage.startswith("usage: ")
    assert max(map(len, page.splitlines())) <= columns
    assert max(map(len, dispatch.usage().splitlines()[4:])) <= columns


def test_a_flag_is_read_with_dashes_and_shown_without() -> None:
    parser = Parser("report", None)
    parser.add_argument("--two_words", type=int, default=3)
    assert parser.parse_args([]).two_words == 3
    assert parser.parse_args(["--two-words", "4"]).two_words == 4
    assert "--two-words" not in parser.format_help()
