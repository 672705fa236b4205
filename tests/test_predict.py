"""Predictions of new rows: right, in order, with every column, in bounded memory, resumable."""

import csv
import dataclasses
import io
import itertools
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset, Features, Value
from PIL import Image
from safetensors.torch import save_model

import finetune
from finetune import Run, TextRecipe, UserError
from finetune.cli import predict
from finetune.data import read as read_module
from finetune.pipeline.events import Seldom
from finetune.predicting import engine, inputs
from finetune.recipe import catalog
from tests.conftest import ROOT, Command
from tests.runs import trained
from tests.warm import Servers

pytestmark = pytest.mark.usefixtures("one_thread")
HOSTILE = [
    'she said "great", twice',
    "two\nlines, and a\r\nthird",
    "awful \U0001f600 食べ物 é",
    "",
    "tab\there, 'quotes' and \\backslash",
    '"',
    " leading and trailing ",
    "carriage\rreturn",
    "NA",
    "great " * 400,
]


class Shouting(TextRecipe):
    """A recipe that changes the text before it is tokenized."""

    def prepare(self, dataset: Any) -> Any:
        louder = dataset.map(lambda row: {"text": row["text"].replace("awful", "great")})
        return super().prepare(louder)


@pytest.fixture(scope="module")
def run(uneven_reviews: Path, tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Four epochs on reviews that are good or bad: its probabilities are not all a half."""
    return finetune.train(
        "yelp",
        dataset=str(uneven_reviews),
        model=tiny_model,
        max_length=64,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        learning_rate=1e-2,
        num_train_epochs=4,
        global_batch_size=16,
        precision="fp32",
        train_sampling_strategy="random",
        disable_tqdm=True,
        eval_samples=60,
        output_dir=str(tmp_path_factory.mktemp("runs") / "reviews"),
    )


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 rows."""
    monkeypatch.setattr(inputs, "CHUNK_ROWS", 16)


def said(run: Run, *words: str | Path) -> int:
    return predict.main([str(run.path), *map(str, words), "--precision", "fp32"])


def refusal(run: Run, *words: str | Path) -> str:
    with pytest.raises(UserError) as error:
        said(run, *words)
    return str(error.value)


def direct(run: Run, texts: Sequence[str]) -> np.ndarray:
    """Probabilities, one text at a time by the library alone."""
    model, tokenizer = run.model(), run.recipe().processing_class()
    found = []
    for text in texts:
        batch = tokenizer(text, truncation=True, max_length=64, return_tensors="pt")
        with torch.inference_mode():
            found.append(model(**batch).logits.softmax(-1)[0].numpy())
    return np.stack(found)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    frame = pd.DataFrame(rows)
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            separator = "\t" if path.suffix == ".tsv" else ","
            writer = csv.writer(file, delimiter=separator, lineterminator="\r\n")
            writer.writerow(rows[0])
            writer.writerows(row.values() for row in rows)
    return path


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


def numbered(count: int) -> list[dict[str, Any]]:
    words = ("awful", "great", "dull", "lovely")
    return [
        {"n": n, "text": f"the food of place {n} was " + " ".join([words[n % 4]] * (1 + n % 13))}
        for n in range(count)
    ]


# ---- what is predicted ---------------------------------------------------------------------------


def test_probabilities_are_those_of_the_evaluation_in_training(run: Run, tmp_path: Path) -> None:
    tested = run.predictions
    assert len(tested) == 40
    assert tested["probability of good"].std() > 0.2
    source = tmp_path / "test.parquet"
    tested[["id", "text"]].to_parquet(source)

    for precision, tolerance in (("fp32", 1e-5), ("bf16", 0.02)):
        output = tmp_path / f"{precision}.parquet"
        words = [run.path, source, "--output", output, "--all_probabilities"]
        predict.main([*map(str, words), "--precision", precision])
        predicted = pd.read_parquet(output)

        assert list(predicted["text"]) == list(tested["text"])
        assert np.mean(predicted["label"] == tested["prediction"]) >= 0.995
        for name in ("bad", "good"):
            column = f"probability of {name}"
            assert np.allclose(predicted[column], tested[column], rtol=0, atol=tolerance)


def test_logits_are_those_of_the_model_alone(run: Run) -> None:
    predictor = engine.Predictor(run, "fp32", batch_tokens=100)
    recipe = run.recipe()
    tokens = recipe.processing_class()(HOSTILE, truncation=True, max_length=64)
    rows = [dict(zip(tokens, row, strict=True)) for row in zip(*tokens.values(), strict=True)]
    with torch.inference_mode():
        expected = torch.cat(
            [run.model()(**recipe.data_collator()([row])).logits for row in rows]
        ).numpy()

    assert np.abs(predictor.texts(HOSTILE) - expected).max() < 1e-5


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("written", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_columns_order_and_hostile_texts_survive(
    run: Run, tmp_path: Path, small_chunks: None, kind: str, written: str
) -> None:
    rows = [{"n": n, "text": text, "more": f"x,{n}"} for n, text in enumerate(HOSTILE * 4)]
    output = tmp_path / f"out{written}"

    assert said(run, write(tmp_path / f"in{kind}", rows), "--output", output) == 0

    found = read(output)
    typed = kind in (".jsonl", ".parquet") and written in (".jsonl", ".parquet")
    assert list(found[0]) == ["n", "text", "more", "label", "probability"]
    missing = "" if kind in (".csv", ".tsv") else None  # an empty field is a missing text
    texts = [None if text == missing else text for text in HOSTILE]
    assert [None if row["text"] == missing else row["text"] for row in found] == texts * 4
    assert [row["n"] for row in found] == [n if typed else str(n) for n in range(len(rows))]
    expected = direct(run, HOSTILE)
    for row, text, probabilities in zip(found, texts * 4, np.tile(expected, (4, 1)), strict=True):
        if text is None:
            assert row["label"] in ("", None)
            assert row["probability"] in ("", None)
        else:
            assert row["label"] == run.labels[probabilities.argmax()]
            assert float(row["probability"]) == pytest.approx(probabilities.max(), abs=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({f"in{kind}", output.name})


def test_the_lines_of_a_text_file(run: Run, tmp_path: Path, capfd: Any) -> None:
    (tmp_path / "in.txt").write_text(
        "great\u2028food\n\nawful \U0001f600\r\nlast", encoding="utf-8"
    )

    said(run, tmp_path / "in.txt", "--all_probabilities")

    printed = io.StringIO(capfd.readouterr().out, newline="")
    rows = list(csv.DictReader(printed, delimiter="\t"))
    texts = ["great\u2028food", "", "awful \U0001f600", "last"]
    assert [row["text"] for row in rows] == texts
    assert float(rows[-1]["probability of bad"]) == pytest.approx(
        direct(run, ["last"])[0, 0], abs=1e-5
    )


@pytest.mark.parametrize("terminal", [True, False])
def test_escapes_are_shown_on_a_terminal_and_kept_in_a_pipe(
    terminal: bool, run: Run, tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.txt").write_text("great\x1b[2Jfood\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)

    said(run, tmp_path / "in.txt")

    printed = capfd.readouterr().out
    assert ("great\x1b[2Jfood\t" in printed) is not terminal
    assert (r"great\x1b[2Jfood" + "\t" in printed) is terminal


def test_without_a_terminal_there_is_a_line_now_and_then(
    run: Run, tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the work of a minute; and nothing of a moment's."""
    source = write(tmp_path / "in.csv", numbered(40))

    said(run, source, "--output", tmp_path / "quick.csv")
    assert capfd.readouterr().err == ""

    ticks = itertools.count(step=20.0)  # seconds, at each event
    monkeypatch.setattr("finetune.cli.predict.Seldom", partial(Seldom, clock=lambda: next(ticks)))
    said(run, source, "--output", tmp_path / "slow.csv", "--batch_tokens", "64")
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert all(re.fullmatch(r"[\d,]+ rows predicted \(\d+%\)", line) for line in lines)


def test_a_missing_text_gets_no_label_and_is_told(run: Run, tmp_path: Path, capfd: Any) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "great"}\n{"text": null}\n{"other": [1]}\n{"text": ""}\n')

    said(run, source)

    captured = capfd.readouterr()
    rows = [json.loads(line) for line in captured.out.splitlines()]
    assert [row["label"] is None for row in rows] == [False, True, True, False]
    assert rows[2] == {"text": None, "other": [1], "label": None, "probability": None}
    assert "2 rows without a value in 'text': their predictions are empty" in captured.err


@pytest.mark.parametrize(
    ("first", "told"),
    [
        ("I like this soup so much", "; if the first line is a row, add a line with the names of"),
    ],
)
def test_a_first_line_without_names_is_told(
    first: str, told: str, run: Run, tmp_path: Path
) -> None:
    (source := tmp_path / "in.csv").write_text(f"{first}\n{first}\n")
    assert f"no column 'text' in {source}{told}" in refusal(run, source)


def test_a_file_that_is_replaced_is_told_before(run: Run, tmp_path: Path, capfd: Any) -> None:
    source, output = write(tmp_path / "in.csv", numbered(3)), tmp_path / "out.csv"
    for before in (False, True):
        said(run, source, "--output", output)
        told = f"--output {output} exists: replaced when all rows are done"
        assert (told in capfd.readouterr().err) is before


def test_blank_lines_of_a_single_column_are_rows_without_a_text(run: Run, tmp_path: Path) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text('text\ngreat\n\n"two\nlines"\n\r\nawful\n')

    said(run, source, "--output", output)

    found = read(output)
    assert [row["text"] for row in found] == ["great", "", "two\nlines", "", "awful"]
    assert [row["label"] == "" for row in found] == [False, True, False, True, False]


def test_a_labelled_file_keeps_its_labels(
    run: Run, tmp_path: Path, uneven_reviews: Path, capfd: Any
) -> None:
    output = tmp_path / "out.csv"

    said(run, uneven_reviews, "--output", output)

    found, given = pd.read_csv(output), pd.read_csv(uneven_reviews)
    assert list(found) == ["text", "label", "predicted label", "probability"]
    assert list(found["label"]) == list(given["label"])
    assert (found["label"] == found["predicted label"]).mean() > 0.9
    assert (
        "the input already has 'label': the predictions are in 'predicted label'"
        in capfd.readouterr().out
    )


def test_calibrated_divides_the_logits(
    run: Run, tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "in.csv", numbered(8))
    fitted, real = None, run.manifest
    monkeypatch.setattr(
        Run, "manifest", property(lambda self: dataclasses.replace(real, temperature=fitted))
    )
    assert "has no temperature: none improves its probabilities" in refusal(
        run, source, "--calibrated"
    )
    fitted = 3.0

    said(run, source, "--calibrated", "--output", tmp_path / "out.parquet", "--all_probabilities")

    raw = direct(run, [row["text"] for row in numbered(8)])
    expected = raw ** (1 / 3) / (raw ** (1 / 3)).sum(1, keepdims=True)
    found = pd.read_parquet(tmp_path / "out.parquet")
    assert np.allclose(found[["probability of bad", "probability of good"]], expected, atol=1e-5)


def test_one_text_is_answered_in_a_line(run: Run, capsys: Any) -> None:
    said(run, "--text", "the food was great great great")

    line = capsys.readouterr().out
    expected = direct(run, ["the food was great great great"])[0]
    assert line == f"good  {expected[1]:.4f}  (bad {expected[0]:.4f})\n"


def test_a_recipe_with_a_preparation_of_its_own_is_asked(run: Run) -> None:
    class Loud(Run):
        def recipe(self, *, scores: bool = True) -> Shouting:
            return Shouting(model=str(self.path), max_length=64)

    texts = ["the food was awful", "it was awful awful", "great"]
    found = engine.Predictor(Loud(run.path), "fp32").texts(texts)
    expected = engine.Predictor(run, "fp32").texts([t.replace("awful", "great") for t in texts])

    assert np.allclose(found, expected, atol=1e-5)


def test_batches_are_of_like_length_and_hold_every_row_once() -> None:
    lengths = np.random.default_rng(0).integers(1, 300, 500)

    found = engine.batches(lengths, budget=1000)

    assert sorted(np.concatenate(found)) == list(range(500))
    for batch in found:
        assert len(batch) * lengths[batch].max() <= 1000
    padded = sum(len(batch) * lengths[batch].max() for batch in found)
    assert padded < 1.03 * lengths.sum()
    assert [list(batch) for batch in engine.batches([5, 2000, 5], 10)] == [[1], [0, 2]]


# ---- recipes that are not for text ---------------------------------------------------------------


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Run:
    recipe = catalog.find("mnist")(dataset="embedded:digits")
    labels = list("0123456789")
    run = Run(tmp_path_factory.mktemp("runs") / "mnist")
    torch.manual_seed(0)
    arguments = {"remove_unused_columns": False}
    facts = {"recipe": "mnist", "options": {"dataset": ""}, "labels": labels}
    dataclasses.replace(trained().manifest, **facts, arguments=arguments).write(run.path)
    save_model(recipe.build_model(labels), str(run.path / "model.safetensors"))
    return run


def test_a_model_that_reads_no_text_says_so(digits: Run, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a\n")
    with pytest.raises(UserError, match="mnist does not read text: no column 'image' in"):
        finetune.predict_file(digits, tmp_path / "lines.txt", tmp_path / "out.csv")


def test_pictures_of_a_folder(digits: Run, tmp_path: Path, small_chunks: None) -> None:
    generator = np.random.default_rng(0)
    folder, pixels = tmp_path / "digits", {}
    folder.mkdir()
    for number in range(40):
        name = f"{number:02d}.{('png', 'PNG')[number % 2]}"
        pixels[name] = generator.integers(0, 256, (28, 28), dtype=np.uint8)
        mode = "RGB" if number % 3 else "L"
        Image.fromarray(pixels[name]).convert(mode).save(folder / name, "PNG")
    (folder / "notes.md").write_text("no picture")

    said(digits, folder, "--output", tmp_path / "out.csv", "--all_probabilities")

    found = pd.read_csv(tmp_path / "out.csv", dtype={"label": str})
    assert list(found)[:4] == ["file", "label", "probability", "probability of 0"]
    assert list(found["file"]) == sorted(pixels)
    images = [{"image": Image.fromarray(pixels[name]), "label": 0} for name in found["file"]]
    batch = digits.recipe().data_collator()(images)
    with torch.inference_mode():
        logits = digits.model()(pixel_values=batch["pixel_values"])["logits"]
    assert np.allclose(found.iloc[:, 3:], logits.softmax(-1), atol=1e-5)

    whole = io.BytesIO()
    Image.fromarray(pixels["00.png"]).save(whole, "JPEG")
    (folder / "a.jpg").write_bytes(whole.getvalue()[: whole.tell() // 2])
    assert "a.jpg cannot be decoded as an image: image file is truncated" in refusal(digits, folder)
    (folder / "a.jpg").unlink()
    (folder / "a.png").write_bytes(b"no picture")
    assert "a.png cannot be decoded as an image" in refusal(digits, folder)
    Image.new("L", (30, 28)).save(folder / "a.png")
    assert "expected images of 28 x 28 pixels, found (30, 28)" in refusal(digits, folder)


def test_pictures_in_a_table(digits: Run, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (5, 28, 28), dtype=np.uint8)
    source, output = tmp_path / "digits.parquet", tmp_path / "out.parquet"
    features = Features({"image": datasets.Image(), "n": Value("int64")})
    rows = {"image": [Image.fromarray(each) for each in pixels], "n": range(5)}
    Dataset.from_dict(rows, features=features).to_parquet(source)

    said(digits, source, "--output", output)

    found = pd.read_parquet(output)
    assert list(found) == ["image", "n", "label", "probability"]
    assert list(found["image"]) == list(pd.read_parquet(source)["image"])
    images = [{"image": Image.fromarray(each), "label": 0} for each in pixels]
    batch = digits.recipe().data_collator()(images)
    with torch.inference_mode():
        logits = digits.model()(pixel_values=batch["pixel_values"])["logits"]
    assert np.allclose(found["probability"], logits.softmax(-1).max(-1).values, atol=1e-5)
    assert "a column holds bytes, which a text file cannot" in refusal(digits, source)


def test_a_regression_predicts_a_number(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    facts = {"recipe": str(ROOT / "examples" / "regression.py"), "options": {}, "labels": []}
    facts["task"] = "regression"
    dataclasses.replace(trained().manifest, **facts, arguments={}).write(run.path)
    catalog.find(facts["recipe"])  # imported here, so that it may be named
    model = run.recipe().build_model([])
    save_model(model, str(run.path / "model.safetensors"))
    values = np.random.default_rng(0).random((5, 20)).tolist()
    source = write(tmp_path / "in.jsonl", [{"inputs": each} for each in values])

    said(run, source, "--output", tmp_path / "out.jsonl")

    found = [row["prediction"] for row in read(tmp_path / "out.jsonl")]
    with torch.inference_mode():
        assert np.allclose(found, model(torch.tensor(values))["logits"].numpy()[:, 0], atol=1e-5)
    assert "predicts a number" in refusal(run, source, "--all_probabilities")


# ---- interrupted, and gone on with ---------------------------------------------------------------


@pytest.fixture
def interrupted(
    run: Run, tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> tuple[Path, Path]:
    """Ctrl-C in the third of five chunks: the input and the output, of which there was one."""
    source, output = write(tmp_path / "in.csv", numbered(80)), tmp_path / "out.csv"
    output.write_text("of yesterday\n")
    texts, calls = engine.Predictor.texts, iter(range(5))

    def until_the_third(self: engine.Predictor, *arguments: Any) -> np.ndarray:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return texts(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(engine.Predictor, "texts", until_the_third)
        with pytest.raises(KeyboardInterrupt):
            said(run, source, "--output", output)
    assert output.read_text() == "of yesterday\n"
    told = capfd.readouterr().out
    assert f"interrupted; to resume: python -m finetune predict {run.path}" in told
    assert told.endswith("--resume\n")
    return source, output


def test_resuming_does_only_the_rest(
    run: Run, interrupted: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    source, output = interrupted
    texts, done = engine.Predictor.texts, []

    def counted(self: engine.Predictor, some: Sequence[str], *rest: Any) -> np.ndarray:
        done.append(len(some))
        return texts(self, some, *rest)

    monkeypatch.setattr(engine.Predictor, "texts", counted)

    said(run, source, "--output", output, "--resume")

    assert done == [16, 16, 16]
    assert "80 rows saved to" in (told := capfd.readouterr().out)
    assert "(32 of them before resuming)" in told
    whole = output.with_name("whole.csv")
    said(run, source, "--output", whole)
    assert output.read_bytes() == whole.read_bytes()
    assert [row["n"] for row in read(output)] == [str(n) for n in range(80)]
    assert not output.with_name("out.csv.part").exists()


def test_what_is_no_longer_the_same_is_not_gone_on_with(
    run: Run, interrupted: tuple[Path, Path]
) -> None:
    source, output = interrupted

    assert "holds an interrupted prediction: add --resume" in refusal(
        run, source, "--output", output
    )
    assert "--resume: the columns added has changed" in refusal(
        run, source, "--output", output, "--resume", "--all_probabilities"
    )
    source.write_text(source.read_text() + "80,one more\n")
    assert f"--resume: INPUT {source} has changed" in refusal(
        run, source, "--output", output, "--resume"
    )
    assert output.with_name("out.csv.part").exists()


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected a file, a folder of images"),
        (["in.csv", "--text", "a"], '--text "one sentence" stands for INPUT'),
        (["nowhere.csv"], "no such file or directory: nowhere.csv"),
        (["in.csv", "--text_column", "txt"], "no column 'txt' in in.csv; did you mean 'text'? "
         "(available: n, text)"),
        (["in.csv", "--output", "out.xls"], "--output out.xls: expected a file ending in .csv"),
        (["in.csv", "--output", "in.csv"], "--output in.csv is the input"),
        (["in.csv", "--output", "hard.csv"], "--output hard.csv is the input"),
        (["in.csv", "--output", "soft.csv"], "--output soft.csv is the input"),
        (["in.csv", "--output", "no/out.csv"], "no such directory: no"),
        (["in.csv", "--resume"], "--resume: needs --output"),
        (["-", "--resume", "--output", "a.csv"], "an INPUT that can be read again"),
        (["in.csv", "--batch_tokens", "0"], "--batch_tokens 0: expected 1 or more"),
        (["in.csv", "--outptu", "a.csv"], "unknown option --outptu; did you mean '--output'?"),
        (["ragged.csv"], "ragged.csv, line 3: expected 2 fields as in the first line, found 1"),
        (["latin.csv", "--encoding", "utf-8"], "latin.csv is not utf-8 throughout"),
        (["twice.csv"], "two columns are called 'text'"),
        (["head.csv"], "head.csv holds no rows"),
        (["numbers.jsonl"], "numbers.jsonl, line 2: expected a text in 'text', found 5"),
        (["broken.jsonl"], "broken.jsonl, line 2: a text has no closing quotation mark"),
        (["half.jsonl"], r"half.jsonl, line 2: \ud83d is half of a character"),
        (["--text", "caf\udce9"], r"--text: \udce9 is half of a character"),
        (["in.csv", "--output", "."], "--output . is a directory: name a file in it"),
        (["in.csv", "--output", "run/predictions.parquet"], "holds the test predictions of a run"),
        ([""], "expected a file, a folder"),
        (["in.csv.xz"], "expected a file ending in .csv, .tsv, .jsonl"),
        (["in.csv.xz"], "it is compressed: unxz -k in.csv.xz"),
        (["in.csv", "--encoding", "utf9"], "did you mean 'utf-8'"),
        (["-", "--encoding", "utf-8"], "--encoding utf-8: - is no file"),
        (["semicolons.csv"], "by semicolons: --csv_separator ';'"),
        (["empty"], "empty holds no images (.png, .jpg, "),
        (["."], ". is a directory without images, and predict reads one file; for each of 4 files"),
        (["i*.csv"], "i*.csv is a pattern, and predict reads one file; for each of 1 file: for f"),
        (["rows*.csv"], "rows*.csv: no file has such a name"),
    ],
)  # fmt: skip
def test_mistakes_are_told(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small_chunks: None,
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("in.csv"), numbered(3))
    Path("hard.csv").hardlink_to("in.csv")
    Path("soft.csv").symlink_to("in.csv")
    Path("empty").mkdir()
    Path("ragged.csv").write_text("n,text\n1,a\n2\n")
    Path("latin.csv").write_bytes("text\ncafé\n".encode("latin1"))
    Path("twice.csv").write_text("text,text\na,b\n")
    Path("in.csv.xz").touch()
    Path("head.csv").write_text("text\n")
    Path("numbers.jsonl").write_text('{"text": "a"}\n{"text": 5}\n')
    Path("broken.jsonl").write_text('{"text": "a"}\n{"text: 5}\n')
    Path("semicolons.csv").write_text("n;text\n1;a;b\n")
    trained().manifest.write(Path("run"))
    Path("half.jsonl").write_text('{"text": "\\u00e9"}\n{"text": "a", "by": "\\ud83d"}\n')
    Path("more.jsonl").write_text('{"text": "a"}\n' * 16 + '{"text": "a", "more": 1}\n')

    assert message in refusal(run, *words)


@pytest.mark.parametrize(
    ("dataset", "output", "splits"),
    [
        ("data/own.csv", "data/own.csv", None),
        ("data/own.csv", "hard.csv", None),
        ("data/o*.csv", "data/own.csv", None),
        ("data", "data/own.csv", "train=own"),
        ("data", "data/test.csv", "train=own"),
    ],
)
def test_the_data_of_the_run_is_not_written_over(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dataset: str,
    output: str,
    splits: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for name in ("in.csv", "data/own.csv", "data/test.csv", "data/more.csv"):
        write(Path(name), numbered(3))
    Path("hard.csv").hardlink_to("data/own.csv")
    options = {**run.manifest.options, "dataset": dataset, "dataset_splits": splits}
    manifest = dataclasses.replace(run.manifest, options=options)
    monkeypatch.setattr(Run, "manifest", property(lambda self: manifest))
    with pytest.raises(UserError, match=rf"--output {output} is data that .* was trained on"):
        finetune.predict_file(run, "in.csv", output)
    finetune.predict_file(run, "in.csv", "data/more.csv")
    assert list(read(Path("data/own.csv"))[0]) == ["n", "text"]


def test_the_loop_over_several_files_can_be_typed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "two parts").mkdir()
    for name in "ab":
        write(tmp_path / "two parts" / f"{name}.csv", numbered(2))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "python").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "python").chmod(0o755)
    _, loop = refusal(run, "two parts").split(" files: ")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    typed = subprocess.run(["bash", "-c", loop], env=environment, capture_output=True, check=True)
    words = typed.stdout.decode().splitlines()
    for name in "ab":
        assert f"two parts/{name}.csv" in words
        assert f"{name}.predicted.csv" in words
    with pytest.raises(UserError, match=r"for f in 'two parts'/\*\.csv"):
        finetune.predict_file(run, "two parts", "out.csv")


def test_the_help_names_all_that_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        predict.main(["--help"])
    told = capsys.readouterr().out
    assert [suffix for suffix in read_module.READABLE if suffix not in told] == []


def test_a_mistake_leaves_nothing_behind_that_is_in_the_way(run: Run, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": 5}\n')
    assert "expected a text" in refusal(run, source, "--output", output)
    source.write_text('{"text": "great"}\n')
    said(run, source, "--output", output)
    assert json.loads(output.read_text())["text"] == "great"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"ok\n\xff\xd8\n", "line 2: not UTF-8"),
        (b"\xff\xfeo\0k\0\n\0", "line 1: not UTF-8"),
    ],
)
def test_standard_input_in_another_encoding(
    content: bytes, message: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").write_bytes(content)
    with (tmp_path / "in").open() as source:
        monkeypatch.setattr(sys, "stdin", source)
        refused = refusal(run, "-", "--output", tmp_path / "out.csv")

    assert refused.startswith(f"standard input, {message}")


def test_a_run_without_a_model_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path)
    dataclasses.replace(trained().manifest, status="interrupted").write(run.path)

    assert "has no model (status 'interrupted'): expected a finished run; to " in refusal(
        run, "--text", "a"
    )


# ---- processes -----------------------------------------------------------------------------------


def test_help_imports_no_library() -> None:
    check = (
        "import sys\nfrom finetune import cli\n"
        "try: cli.main(['predict', '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'pandas', 'pyarrow', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert "--all_probabilities" in done.stdout


def test_two_processes_write_what_one_writes(run: Run, command: Command, tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", numbered(3000))
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    said(run, source, "--output", one)

    words = ["predict", run.path, source, "--output", two, "--precision", "fp32"]
    done = command(*words, launcher="torchrun")

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("3,000 rows saved to") == 1
    assert [row["n"] for row in read(two)] == [str(n) for n in range(3000)]
    assert two.read_bytes() == one.read_bytes()
    assert not two.with_name("two.csv.part").exists()


def test_standard_input_is_written_to_a_file(run: Run, tmp_path: Path, warm: Servers) -> None:
    words = ["predict", str(run.path), "-", "--output", str(tmp_path / "out.csv")]
    subprocess.run(
        warm.words("finetune", words, os.environ),
        input="\ufeffgreat\nawful\n",
        encoding="utf-8",
        cwd=ROOT,
        check=True,
    )
    assert list(pd.read_csv(tmp_path / "out.csv")["text"]) == ["great", "awful"]


def test_standard_input_is_answered_before_it_ends(run: Run, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "finetune", "predict", str(run.path), "-"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        bufsize=1,
    )
    with process:
        alarm = threading.Timer(100, process.kill)  # instead of waiting for an answer for ever
        alarm.start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("the food was great\n")
        assert process.stdout.readline() == "text\tlabel\tprobability\n"
        assert process.stdout.readline().startswith("the food was great\tgood\t")
        process.stdin.write("the food was awful \U0001f600")
        process.stdin.close()
        assert process.stdout.readline().startswith("the food was awful \U0001f600\tbad\t")
    alarm.cancel()
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.processes
def test_a_file_of_100_000_rows_in_bounded_memory(run: Run, tmp_path: Path) -> None:
    """Beside 1,100 rows in the same process; each has characters that are only carried along."""
    code = """if True:
        import resource, sys
        from finetune.cli import predict
        run, *files = sys.argv[1:]
        for file in files:
            predict.main([run, file, "--output", file + ".csv", "--precision", "fp32"])
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
    """
    words = ("great", "awful", "dull", "lovely")
    sizes, files = (1_100, 100_000), []
    for count in sizes:
        files.append(tmp_path / f"{count}.csv")
        with files[-1].open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["n", "note", "text"])
            for n in range(count):
                writer.writerow([n, f'"{n}"\n\U0001f600,' * 100, f"{words[n % 4]} {n % 5000}"])

    done = subprocess.run(
        [sys.executable, "-c", code, str(run.path), *map(str, files)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    small, large = (int(line) for line in done.stdout.splitlines() if line.isdigit())
    assert large - small < 100  # MiB; the texts have 100 in the file and 400 in memory
    for count, source in zip(sizes, files, strict=True):
        with Path(f"{source}.csv").open(newline="", encoding="utf-8") as file:
            numbers = []
            for row in csv.DictReader(file):
                n = len(numbers)
                numbers.append(int(row["n"]))
                assert row["text"] == f"{words[n % 4]} {n % 5000}"
                assert row["note"].startswith(f'"{n}"\n\U0001f600,')
                assert row["label"] in ("good", "bad")
        assert numbers == list(range(count))
