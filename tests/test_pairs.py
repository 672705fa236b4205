"""Runs on several columns of text: pairs, joined columns, and what is refused."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import transformers

import finetune
from finetune import Run, TextRecipe, UserError, cli

pytestmark = [pytest.mark.usefixtures("one_thread", "without_report"), pytest.mark.trains]
FACTS = ("the soup was cold", "the tea was hot", "the room was small", "the staff was kind")


class Pairs(TextRecipe):
    training = dict(
        global_batch_size=16,
        learning_rate=3e-3,
        num_train_epochs=2,
        precision="fp32",
        disable_tqdm=True,
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 pairs, of the same fact or of two, at different places."""
    path = tmp_path_factory.mktemp("data") / "pairs.csv"
    rows = []
    for number in range(200):
        one, other = number % 4, (number + number // 4 % 2) % 4
        rows.append(
            {
                "premise": f"at {number} {FACTS[one]}",
                "guess": f"{FACTS[other]} there",
                "title": f"place {number}",
                "verdict": "same" if one == other else "other",
            }
        )
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def pairs(table: Path, model: str, columns: str = "premise,guess", **options: Any) -> Pairs:
    usual: dict[str, Any] = {"max_length": 24, "hidden_dropout": 0.0}
    return Pairs(
        dataset=str(table),
        model=model,
        text_columns=columns,
        label_column="verdict",
        **(usual | options),
    )


@pytest.fixture(scope="module")
def run(table: Path, tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    directory = tmp_path_factory.mktemp("runs") / "pairs"
    return finetune.train(pairs(table, tiny_model), output_dir=str(directory), baseline=False)


def test_the_model_reads_pairs(run: Run, table: Path, tiny_model: str) -> None:
    frame, found = pd.read_csv(table), run.predictions
    rows = frame.iloc[found["id"]]
    assert found["text"].tolist() == (rows["premise"] + "\n" + rows["guess"]).tolist()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model)
    whole = tokenizer(rows["premise"].tolist(), rows["guess"].tolist())["input_ids"]
    assert found["tokens"].tolist() == [len(each) for each in whole]
    recipe = pairs(table, tiny_model)
    first, types = (recipe.prepared["test"][0][each] for each in ("input_ids", "token_type_ids"))
    assert (
        first
        == tokenizer(
            *rows.iloc[0][["premise", "guess"]], truncation="longest_first", max_length=24
        ).input_ids
    )
    assert set(types) == {0, 1}


def test_pipeline_and_predict_are_the_evaluation(run: Run, table: Path, tmp_path: Path) -> None:
    classify = transformers.pipeline("text-classification", model=str(run.path), device="cpu")
    rows = pd.read_csv(table).iloc[run.predictions["id"]]
    both = [
        {"text": one, "text_pair": other}
        for one, other in zip(rows["premise"], rows["guess"], strict=True)
    ]
    by_pipeline = [each["label"] for each in classify(both, truncation=True)]
    labels = run.predictions["prediction"].tolist()
    assert by_pipeline == labels
    rows.to_csv(tmp_path / "rows.csv", index=False)
    finetune.predict_file(run, tmp_path / "rows.csv", output=tmp_path / "out.csv")
    assert pd.read_csv(tmp_path / "out.csv")["label"].tolist() == labels
    tuples = [(each["text"], each["text_pair"]) for each in both]
    assert finetune.predict(run, tuples)["label"].tolist() == labels
    assert finetune.predict(run, rows)["label"].tolist() == labels
    printed = (run.path / "README.md").read_text(encoding="utf-8")
    assert 'classify({"text": premise, "text_pair": guess})' in printed


def test_the_command_line_reads_pairs(
    run: Run,
    table: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    row = pd.read_csv(table).iloc[int(run.predictions["id"][0])]
    label = run.predictions["prediction"][0]
    words = ["--text", row["premise"], "--text", row["guess"]]
    assert cli.main(["predict", str(run.path), *words]) == 0
    assert label in capfd.readouterr().out
    assert cli.main(["predict", str(run.path), *words[:2]]) == 2
    assert "reads 2 texts (premise, guess)" in capfd.readouterr().err
    (tmp_path / "lines").write_text(f"{row['premise']}\t{row['guess']}\n", encoding="utf-8")
    with (tmp_path / "lines").open("rb") as file:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=file))
        assert cli.main(["predict", str(run.path), "-"]) == 0
    assert label in capfd.readouterr().out
    renamed = pd.read_csv(table).rename(columns={"premise": "a", "guess": "b"})
    renamed.to_csv(tmp_path / "renamed.csv", index=False)
    evaluate = ["evaluate", str(run.path), "--data", str(tmp_path / "renamed.csv")]
    assert cli.main([*evaluate, "--text_columns", "a,b"]) == 0
    capfd.readouterr()
    assert cli.main([*evaluate, "--text_columns", "a,b,title"]) == 2
    assert "reads 2 (premise, guess)" in capfd.readouterr().err
    assert cli.main([*evaluate, "--text_column", "a"]) == 2
    assert "name as many by --text_columns" in capfd.readouterr().err
    assert cli.main(evaluate) == 2
    assert "--text_columns" in capfd.readouterr().err
    dry = ["text", "--dataset", str(table), "--text_columns", "premise,guess", "--dry_run"]
    assert cli.main([*dry, "--label_column", "verdict", "--model", str(run.path)]) == 0
    assert "premise, guess, a pair of the tokenizer" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_columns": "premise,gues"}, r"--text_columns: no column 'gues' .*guess"),
        (
            {"text_columns": "premise,premise"},
            "--text_columns: 'premise' is named by --text_columns already",
        ),
        ({"text_columns": "premise,verdict"}, "verdict"),
        ({"long_texts": "windows"}, r"--long_texts windows: reads one column"),
        ({"truncation": "head_tail"}, r"--truncation head_tail: expected head or tail"),
        ({"max_length": 4}, r"--max_length 4: 2 columns, .* need 5 tokens or more"),
        ({"text_column": "title"}, r"--text_column title and --text_columns .*: give one"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_read_is_refused(
    table: Path, tiny_model: str, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    given = {"columns": options.pop("text_columns", "premise,guess"), **options}
    with pytest.raises(UserError) as refused:
        pairs(table, tiny_model, **given).trainer(output_dir=str(tmp_path / "run"))
    assert re.search(message, str(refused.value)), refused.value


@pytest.mark.parametrize("side", ["premise", "guess"])
def test_a_pair_with_an_empty_side_is_refused_or_dropped(
    table: Path, tiny_model: str, tmp_path: Path, side: str
) -> None:
    frame = pd.read_csv(table)
    frame.loc[[3, 8], side] = None
    frame.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(UserError, match=rf"{side}.*(line|lines) 5"):
        _ = pairs(tmp_path / "rows.csv", tiny_model).splits
    recipe = pairs(tmp_path / "rows.csv", tiny_model, drop_invalid=True)
    assert sum(map(len, recipe.splits.values())) == 198


def test_two_pairs_of_the_same_text_joined_are_not_the_same(
    tiny_model: str, tmp_path: Path
) -> None:
    frame = pd.DataFrame(
        {
            "premise": ["a b", "a"] * 10 + [f"text {number}" for number in range(60)],
            "guess": ["c", "b c"] * 10 + ["d"] * 60,
            "verdict": ["same", "other"] * 40,
        }
    )
    frame.to_csv(tmp_path / "rows.csv", index=False)
    recipe = pairs(tmp_path / "rows.csv", tiny_model)
    assert recipe.splits  # no contradiction between them, which would be refused or dropped
    assert sum(map(len, recipe.splits.values())) == 62
