"""One meaning of a file: training, ``evaluate --data`` and ``predict`` see the same rows in it."""

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

import finetune
from finetune import Recipe, Run, UserError
from finetune.cli import predict
from finetune.data import files
from finetune.pipeline.evaluate import evaluate
from finetune.recipe import catalog

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.trains]

#: The name of a file, what it holds, and the texts in it.
WELL_FORMED: dict[str, tuple[str, str, list[str | None]]] = {
    "empty": ("a.csv", "text,label\nx,good\n,bad\ny,good\n", ["x", None, "y"]),
    "quoted empty": ("a.csv", 'text,label\nx,good\n"",bad\n', ["x", None]),
    "words": ("a.csv", "text,label\nNA,good\nnull,bad\nNone,bad\nnan,bad\n", [
        "NA", "null", "None", "nan",
    ]),
    "byte order mark": ("a.csv", "\ufefftext,label\nx,good\n\ufeffy,bad\n", ["x", "y"]),
    "CRLF": ("a.csv", 'text,label\r\nx,good\r\n"y\r\nz",bad\r\n', ["x", "y\r\nz"]),
    "CR": ("a.csv", "text,label\rx,good\ry,bad", ["x", "y"]),
    "blank lines": ("a.csv", "\ntext,label\n\nx,good\n\n\ny,bad\n\n", ["x", "y"]),
    "upper-case suffix": ("A.CSV", "text,label\nx,good\n,bad\n", ["x", None]),
    "no last newline": ("a.csv", 'label,text\ngood,"x, y"', ["x, y"]),
    "quotes": ("a.csv", 'text,label\n"a ""b""",good\nd "e" f,bad\n', ['a "b"', 'd "e" f']),
    "columns without names": ("a.csv", ",text,label,\n0,x,good,\n1,,bad,\n", ["x", None]),
    "lone quotes": ("a.tsv", 'text\tlabel\n"x\tgood\n"y\tbad\nz\tgood\n', ['"x', '"y', "z"]),
    "a quote at the end": ("a.csv", 'label,text\ngood,"x\nbad,y\n', ['"x', "y"]),
    "lines in quotes": ("a.csv", 'text,label\n"x\n\ny, z",good\n"w",bad\n', ["x\n\ny, z", "w"]),
    "separator line": ("a.csv", "sep=,\ntext,label\nx,good\n", ["x"]),
    "tabs": ("a.tsv", "text\tlabel\nx, y\tgood\n\tbad\n", ["x, y", None]),
    "null": ("a.jsonl", '\ufeff{"text": "x", "label": "good"}\n\n{"text": null, "label": "bad"}\r\n'
             '{"label": "bad"}\n', ["x", None, None]),
    "semicolons": ("a.csv", "text;label\nx, y;good\n;bad\n", ["x, y", None]),
    "another separator": ("a.csv", "sep=|\ntext|label\nx|good\n", ["x"]),
    "Latin 1": ("a.csv", "text,label\nx,good\n\udce9t\udce9,bad\n", ["x", "été"]),
    "UTF-16": ("a.csv", "\udcff\udcfe" + "\0".join("text,label\nx,good\n") + "\0", ["x"]),
    "a JSON array": ("a.json", '[{"text": "x", "label": "good"},\n{"text": null, "label": "bad"}]',
                     ["x", None]),
    "JSON columns": ("a.json", '{"text": {"0": "x", "1": "y"}, "label": {"0": "good", "1": "bad"}}',
                     ["x", "y"]),
    "JSON in JSON": ("a.json", '{"version": 1, "data": [{"text": "x", "label": "good"}]}', ["x"]),
    "JSON lines": ("a.json", '{"text": "x", "label": "good"}\n{"text": "y", "label": "bad"}\n',
                   ["x", "y"]),
    "upper-case JSON lines": ("A.JSONL", '{"text": "x", "label": "good"}\n', ["x"]),
}  # fmt: skip
MALFORMED = {
    "NUL": ("a.csv", "text,label\nw,good\nx\0y,good\n", "a.csv, line 3: the column 'text' holds a"),
    "too few fields": ("a.csv", "text,label\nx,good\ny\n", "a.csv, line 3: expected 2 fields"),
    "too many fields": ("a.csv", 'text,label\n"x\ny",good\nz,,bad\n', "a.csv, line 4: expected 2"),
    "an open quote": ("a.csv", 'label,text\ngood,"x\nbad\n', "a.csv, line 2: the file ends in"),
    "one name twice": ("a.csv", "text,text,label\nx,y,good\n", "columns are called 'text': rename"),
    "no rows": ("a.csv", "text,label\n", "a.csv holds no rows"),
    "nothing": ("a.csv", "", "a.csv holds no rows"),
    "semicolons": ("a.csv", "text;label\nx, y;good\nx;y;bad\n", "line 2: expected 1 field as"),
    "no array": ("a.json", '"x"', "a.json: expected an array of objects"),
    "JSON cut off": ("a.json", '[{"text": "x"},', "a.json, line 1: "),
    "two readings": ("a.csv", "text,label\n" + '"x, y\nz",good\n' * 4, "csv_quoting none (8 rows"),
    "no JSON": ("a.jsonl", '{"text": "x", "label": "good"}\n{"text: "y"}\n', "a.jsonl, line 2: "),
    "no object": ("a.jsonl", '"x"\n', "a.jsonl, line 1: expected an object"),
    "huge integer": ("a.jsonl", '{"text": "x", "n": ' + "9" * 5000 + "}\n", "line 1: an int"),
}  # fmt: skip
#: A third of the texts begin with a quotation mark; read as quotes they leave 150 of 300 rows.
LONE_QUOTES = "text\tlabel\n" + "".join(
    ('"' if n % 3 == 0 else "") + f"place {n} was {word}\t{label}\n"
    for n in range(300)
    for word, label in [(("awful", "bad"), ("great", "good"))[n % 2]]
)


@pytest.fixture(scope="module")
def run(uneven_reviews: Path, tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return finetune.train(
        "yelp",
        dataset=str(uneven_reviews),
        model=tiny_model,
        max_steps=1,
        baseline=False,
        output_dir=str(tmp_path_factory.mktemp("runs") / "reviews"),
    )


def write(directory: Path, name: str, content: str) -> str:
    path = directory / name
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    return str(path)


@pytest.mark.parametrize("case", WELL_FORMED)
def test_all_three_see_the_same_rows(
    case: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, content, texts = WELL_FORMED[case]
    path, output = write(tmp_path, name, content), tmp_path / "predicted.csv"
    present = [text for text in texts if text is not None]
    evaluated: list[Dataset] = []
    over = Recipe.over
    monkeypatch.setattr(
        Recipe, "over", lambda self, rows: evaluated.append(rows) or over(self, rows)
    )

    trained = catalog.find("yelp")(dataset=path, drop_invalid=True).load()["train"]
    evaluate(run, path, drop_invalid=True)
    predict.main([str(run.path), path, "--output", str(output), "--precision", "fp32"])

    assert trained["text"][:] == present
    assert evaluated[0]["text"][:] == present
    with output.open(newline="", encoding="utf-8") as file:
        predicted = list(csv.DictReader(file))
    assert [row["text"] for row in predicted] == [text or "" for text in texts]
    assert [row["predicted label"] in run.labels for row in predicted] == [
        text is not None for text in texts
    ]
    labels = [row["label"] for row, text in zip(predicted, texts, strict=True) if text is not None]
    assert [trained.features["label"].names[label] for label in trained["label"]] == labels
    assert [run.labels[label] for label in evaluated[0]["label"]] == labels


@pytest.mark.parametrize("case", MALFORMED)
def test_all_three_refuse_the_same_files(case: str, run: Run, tmp_path: Path) -> None:
    name, content, message = MALFORMED[case]
    path, said = write(tmp_path, name, content), []
    for read in (
        lambda: catalog.find("yelp")(dataset=path).load(),
        lambda: evaluate(run, path),
        lambda: predict.main([str(run.path), path, "--output", f"{path}.csv"]),
    ):
        with pytest.raises(UserError) as raised:
            read()
        said.append(str(raised.value).partition("\n")[0])

    assert message in said[0]
    assert said[1:] == said[:1] * 2


def test_quoting_can_be_chosen(run: Run, tmp_path: Path) -> None:
    path, seen = write(tmp_path, "a.csv", 'text,label\n"x, y\nz",good\n'), {}
    for quoting in ("minimal", "none"):
        recipe = catalog.find("yelp")(dataset=path, csv_quoting=quoting, drop_invalid=True)
        output = tmp_path / f"{quoting}.jsonl"
        predict.main([str(run.path), path, "--output", str(output), "--csv_quoting", quoting])
        predicted = [row["text"] for chunk in files.chunks(output) for row in chunk.dictionaries()]
        assert predicted == recipe.load()["train"]["text"][:]
        seen[quoting] = predicted

    assert seen == {"minimal": ["x, y\nz"], "none": ['"x', 'z"']}
    assert evaluate(run, path, csv_quoting="minimal").rows == 1
    with pytest.raises(UserError, match="the model does not know: ' y'"):
        evaluate(run, path, csv_quoting="none")


def test_the_quoting_of_the_run_is_that_of_other_files(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", 'text,label\n"x" y,good\n"z",bad\n')
    literal = Run(shutil.copytree(run.path, tmp_path / "run"))
    (options := literal.manifest.options)["csv_quoting"] = "none"
    literal.update(options=options)

    for each, expected in ((run, ["x y", "z"]), (literal, ['"x" y', '"z"'])):
        output = tmp_path / "predicted.jsonl"
        finetune.predict_file(each, path, output)
        (chunk,) = files.chunks(output)
        assert [row["text"] for row in chunk.dictionaries()] == expected
    assert "closing quotation mark" in evaluate(run, path).notes[0]
    assert "closing quotation mark" not in str(evaluate(literal, path).notes)


def test_quotes_that_are_text_are_told_by_all_three(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "a.tsv", LONE_QUOTES)
    told = (
        "a.tsv: read 300 rows, one per line, with quotation marks as text; as quotes around fields "
        "they would leave 150 rows (--csv_quoting minimal)"
    )

    for _ in range(2):  # the second time from the cache
        recipe = catalog.find("yelp")(dataset=path)
        assert sum(recipe.splits.num_rows.values()) == 300
        assert recipe.notes == [told]
    evaluation = evaluate(run, path)
    assert evaluation.rows == 300
    assert evaluation.notes == [told]
    predicted = finetune.predict_file(run, path, tmp_path / "predicted.csv")
    assert predicted.rows == 300
    assert predicted.notes[0] == told
    predict.main([str(run.path), path])
    assert told in capfd.readouterr().err


@pytest.mark.parametrize("words", [["a.jsonl"], ["-"], ["--text", "x"]])
def test_a_quoting_without_effect_is_refused(
    words: list[str], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a.jsonl", '{"text": "x"}\n')
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UserError, match="--csv_quoting"):
        predict.main([str(run.path), *words, "--csv_quoting", "none"])


def test_rows_with_an_empty_field_are_refused_by_training_and_evaluation(
    run: Run, tmp_path: Path
) -> None:
    path = write(tmp_path, "a.csv", 'text,label\nx,good\n,bad\n"",bad\n')

    for rows, read in (
        ("train rows", lambda: catalog.find("yelp")(dataset=path).load()),
        ("rows", lambda: evaluate(run, path)),
    ):
        with pytest.raises(UserError, match=f"2 of 3 {rows} without a text: lines 3, 4;"):
            read()


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_a_missing_field_is_written_back_as_missing(
    run: Run, tmp_path: Path, suffix: str, capfd: Any
) -> None:
    path, output = write(tmp_path, "a.csv", "n,text\n1,x\n,\n"), tmp_path / f"predicted{suffix}"

    predict.main([str(run.path), path, "--output", str(output)])

    found = files.chunks(output)
    rows = [row for chunk in found for row in chunk.dictionaries()]
    assert [rows[0]["n"], rows[0]["text"]] == ["1", "x"]
    assert rows[1] == dict.fromkeys(["n", "text", "label", "probability"])
    assert "1 row without a value in 'text': their predictions are empty" in capfd.readouterr().out
