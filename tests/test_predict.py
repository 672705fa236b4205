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
from finetune.predicting import predictor
from finetune.recipe import catalog
from tests.conftest import ROOT
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


@pytest.mark.parametrize(
    ("kind", "written"),
    [(".csv", ".tsv"), (".tsv", ".jsonl"), (".jsonl", ".parquet"), (".parquet", ".csv")],
)
def test_columns_order_and_hostile_texts_survive(
    run: Run, tmp_path: Path, kind: str, written: str
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


def test_a_recipe_with_a_preparation_of_its_own_is_asked(run: Run) -> None:
    class Loud(Run):
        def recipe(self, *, scores: bool = True) -> Shouting:
            return Shouting(model=str(self.path), max_length=64)

    texts = ["the food was awful", "it was awful awful", "great"]
    found = predictor.Predictor(Loud(run.path), "fp32").predict(texts)
    expected = predictor.Predictor(run, "fp32").predict(
        [t.replace("awful", "great") for t in texts]
    )

    assert np.allclose(found, expected, atol=1e-5)


def test_batches_are_of_like_length_and_hold_every_row_once() -> None:
    lengths = np.random.default_rng(0).integers(1, 300, 500)

    found = predictor.batches(lengths, budget=1000)

    assert sorted(np.concatenate(found)) == list(range(500))
    for batch in found:
        assert len(batch) * lengths[batch].max() <= 1000
    padded = sum(len(batch) * lengths[batch].max() for batch in found)
    assert padded < 1.03 * lengths.sum()
    assert [list(batch) for batch in predictor.batches([5, 2000, 5], 10)] == [[1], [0, 2]]


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


def test_pictures_of_a_folder(digits: Run, tmp_path: Path) -> None:
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
    assert "the column 'image' holds bytes, which a text file" in refusal(digits, source)


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


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["in.csv", "--output", "hard.csv"], "--output hard.csv is the input"),
        (["in.csv", "--output", "soft.csv"], "--output soft.csv is the input"),
        (["in.csv", "--output", "."], "--output . is a directory: name a file in it"),
        (["in.csv", "--output", "run/predictions.parquet"], "holds the test predictions of a run"),
        (["-", "--resume", "--output", "a.csv"], "--resume: needs --output, and an INPUT that can"),
        (["in.csv", "--outptu", "a.csv"], "unknown option --outptu; did you mean '--output'?"),
        (["numbers.jsonl"], "numbers.jsonl, line 2: expected a text in 'text', found 5"),
        (["--text", "caf\udce9"], r"row 1: \udce9 is half of a character"),
        ([""], "INPUT is missing"),
        (["in.csv.xz"], "expected a file ending in .csv, .tsv, .jsonl"),
        (["-", "--encoding", "utf-8"], "--encoding utf-8: - is no file"),
        (["empty"], "empty holds no images (.png, .jpg, "),
        (["i*.csv"], "no such file or directory: i*.csv"),
    ],
)
def test_mistakes_are_told(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("in.csv"), numbered(3))
    Path("hard.csv").hardlink_to("in.csv")
    Path("soft.csv").symlink_to("in.csv")
    Path("empty").mkdir()
    Path("in.csv.xz").touch()
    Path("numbers.jsonl").write_text('{"text": "a"}\n{"text": 5}\n')
    trained().manifest.write(Path("run"))

    assert message in refusal(run, *words)


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
