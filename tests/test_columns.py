"""The recipe `text`: which columns are taken, and other names for labels."""

import csv
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from finetune import UserError, cli
from finetune.recipe import catalog
from recipes.text import Text

WORDS = ["printer", "login", "cable"]
QUEUES = ["hardware", "access", "network"]


def table(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


def tickets(path: Path, **more: Sequence[object]) -> str:
    """A number, a subject, a text and a queue; further columns as given, repeated."""
    rows = [
        [
            1000 + n,
            f"{WORDS[n % 3]} again",
            f"The {WORDS[n % 3]} in room {n} is broken since monday",
            QUEUES[n % 3],
            *(values[n % len(values)] for values in more.values()),
        ]
        for n in range(120)
    ]
    return table(path, ["number", "subject", "body", "queue", *more], rows)


def test_obvious_columns_are_taken_and_told(tmp_path: Path) -> None:
    path = tickets(tmp_path / "tickets.csv")
    recipe = Text(dataset=path, label_column="queue")
    assert recipe.labels == sorted(QUEUES)
    assert recipe.splits["train"]["text"][0].startswith("The ")
    assert "columns: 'body' is the text, 'queue' the label" in recipe.notes
    assert (recipe.text_column, recipe.label_column) == ("body", "queue")  # written to run.json


def test_a_usual_name_decides_between_several(tmp_path: Path) -> None:
    path = tickets(tmp_path / "tickets.csv", label=["low", "high"])
    recipe = Text(dataset=path)
    assert recipe.labels == ["high", "low"]


def test_columns_that_are_not_obvious_are_listed_with_an_example(tmp_path: Path) -> None:
    long = [f"a second text of many words, number {n}" for n in range(120)]
    path = tickets(tmp_path / "tickets.csv", content=long, priority=["low", "high"])
    with pytest.raises(UserError) as refused:
        _ = Text(dataset=path).splits
    told = str(refused.value)
    assert "--text_column: several columns could be the text (body, content)" in told
    assert "--label_column: several columns could be the label (subject, queue, priority)" in told
    assert "\n  number: '1000'" in told
    assert "\n  body: 'The printer in room 0 is broken since monday'" in told


def test_what_is_wrong_with_the_only_column_that_is_called_label_is_told(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    rows = [{"text": f"the food of place {n} was fine", "label": n % 2} for n in range(40)]
    rows += [{**row, "text": f"{row['text']}, too", "label": str(row["label"])} for row in rows]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"holds both (0|1|'0'|'1') and"):
        _ = Text(dataset=str(path)).splits


def test_named_columns_are_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finetune.data.columns._values", pytest.fail)
    recipe = Text(dataset=tickets(tmp_path / "t.csv"), text_column="body", label_column="queue")
    assert recipe.labels == sorted(QUEUES)


def test_a_file_without_texts_is_refused(tmp_path: Path) -> None:
    path = table(tmp_path / "numbers.csv", ["a", "b"], [[n, n % 7] for n in range(100)])
    with pytest.raises(UserError, match="--text_column: no column is clearly a text"):
        _ = Text(dataset=path, label_column="b").splits


def test_the_recipe_runs_without_code(
    tmp_path: Path, tiny_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tickets(tmp_path / "tickets.csv")
    words = ["text", "--dataset", path, "--model", tiny_model, "--label_column", "queue"]
    assert cli.main([*words, "--dry_run"]) == 0
    assert "columns: 'body' is the text, 'queue' the label" in capsys.readouterr().out


# ---- other names for labels ----------------------------------------------------------------------


def test_labels_are_renamed_and_merged(tmp_path: Path) -> None:
    path = tickets(tmp_path / "tickets.csv")
    recipe = Text(
        dataset=path,
        label_column="queue",
        label_map="hardware=device, network = device",
    )
    assert recipe.labels == ["access", "device"]
    names = [recipe.labels[label] for label in recipe.splits["test"]["label"]]
    texts = recipe.splits["test"]["text"]
    assert all(
        ("login" in text) == (name == "access") for text, name in zip(texts, names, strict=True)
    )


def test_numbers_are_named_in_the_order_of_the_recipe(tmp_path: Path) -> None:
    rows = [[f"the food of place {n} was fine", n % 2] for n in range(60)]
    path = table(tmp_path / "reviews.csv", ["review", "mood"], rows)
    options = {"dataset": path, "text_column": "review", "label_column": "mood"}
    sentiment = catalog.find("sentiment")(**options, label_map="0=negative,1=positive")
    assert sentiment.labels == ["positive", "negative"]


@pytest.mark.parametrize(
    ("label_map", "told"),
    [
        ("hardware", "expected LABEL=NAME,LABEL=NAME, found 'hardware'"),
        ("hardware=a,hardware=b", "'hardware' is given two names"),
        ("hardwear=a", "no label 'hardwear' in the data (labels: 'access', 'hardware', 'network')"),
    ],
)
def test_a_map_that_cannot_be_is_refused(tmp_path: Path, label_map: str, told: str) -> None:
    path = tickets(tmp_path / "tickets.csv")
    with pytest.raises(UserError) as refused:
        _ = Text(dataset=path, label_column="queue", label_map=label_map).splits
    assert told in str(refused.value)


# ---- labels of other kinds -----------------------------------------------------------------------

KINDS: dict[str, tuple[str, list[Any]]] = {
    "lists": ("multi_label", [["bad", "long"], [], ["bad"], ["good"]]),
    "lists of many": ("multi_label", [["bad", f"room {n // 8}"] for n in range(120)]),
    "fractions": ("regression", [n / 7 for n in range(120)]),
    "grades": ("regression", [n % 10 / 2 for n in range(120)]),
    "classes": ("single_label", [f"queue-{n % 40}" for n in range(120)]),
}


def comments(path: Path, **columns: Sequence[Any]) -> str:
    texts = [f"{WORDS[n % 3]} of room {n} is broken" for n in range(120)]
    rows: dict[str, Any] = {
        name: [values[n % len(values)] for n in range(120)] for name, values in columns.items()
    }
    frame = pd.DataFrame({"comment": texts, **rows})
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    return str(path)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_only_other_column_is_the_label(kind: str, suffix: str, tmp_path: Path) -> None:
    task, values = KINDS[kind]
    recipe = Text(dataset=comments(tmp_path / f"a.{suffix}", number=range(120), rated=values))
    recipe.load()
    assert (recipe.task, recipe.label_column) == (task, "rated")
    assert "columns: 'comment' is the text, 'rated' the label" in recipe.notes


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    "values",
    [
        range(120),
        [f"a{n * 7919:x}" for n in range(120)],
        [f"2024-01-{n % 28 + 1}" for n in range(120)],
        [datetime(2024, 1, n % 28 + 1) for n in range(120)],
        [f"another text {n}" for n in range(120)],
        [[f"word {n}", f"token {n}"] for n in range(120)],
        [[]],
        [None],
    ],
)
def test_a_column_that_is_no_label_is_not_taken(
    values: Sequence[Any], suffix: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="--label_column: no column is clearly a label"):
        Text(dataset=comments(tmp_path / f"a.{suffix}", other=values)).load()


def test_two_columns_that_could_be_the_label_are_asked(tmp_path: Path) -> None:
    scores, other = ([n / by for n in range(120)] for by in (7, 9))
    with pytest.raises(UserError, match=r"several columns could be the label \(score, weight\)"):
        Text(dataset=comments(tmp_path / "a.csv", score=scores, weight=other)).load()
    lists: Sequence[Any] = KINDS["lists"][1]
    with pytest.raises(UserError, match=r"several columns could be the label \(queue, tags\)"):
        Text(dataset=comments(tmp_path / "a.csv", queue=QUEUES, tags=lists)).load()
    for named in ({"tags": lists}, {"queue": QUEUES}, {"score": other}):
        recipe = Text(dataset=comments(tmp_path / "a.csv", label=scores, **named))
        recipe.load()
        assert recipe.label_column == "label"
