"""Predictions of new rows and evaluations on other data: right, in order, with every column."""

import csv
import io
import json
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from scipy import stats
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax, softmax
from sklearn import metrics as sklearn_metrics
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    pipeline,
)
from transformers.models.auto.image_processing_auto import AutoImageProcessor

import finetune
from tests.acceptance import data, native_loop
from tests.acceptance.conftest import TRAINING, Commands, Finished, flags
from tests.acceptance.test_data import COMPRESSORS
from tests.jobs import wait_until

TEXT_RUNS = ["single_label_run", "multi_label_run", "regression_run", "ordinal_run"]
SHORT = TRAINING | dict(num_train_epochs=1, max_steps=2, baseline=False)


def logits(run: finetune.Run, texts: Sequence[str]) -> np.ndarray:
    """Return the logits of the saved model for texts, one at a time, with `transformers` only."""
    model = AutoModelForSequenceClassification.from_pretrained(run.path).eval()
    return native_loop.logits(model, run.path, texts, 64).double().numpy()


def answers(run: finetune.Run, texts: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Return the class and the probabilities of each text, with `transformers` only."""
    probabilities = softmax(logits(run, texts), axis=1)
    return [run.labels[i] for i in probabilities.argmax(axis=1)], probabilities


def new_texts(rows: int = 12) -> list[str]:
    """Return texts of 6 to 30 words that are in no training data."""
    return [text for text, _ in data.labelled_sentences(rows, list(data.WORDS), seed=99)]


# ---- E4: the values ------------------------------------------------------------------------------


@pytest.mark.contract("E4", "B4", "E1")
@pytest.mark.parametrize("run", TEXT_RUNS, indirect=True)
def test_predictions_are_those_of_the_saved_model(run: finetune.Run) -> None:
    """Labels and probabilities are those of a hand-written forward pass and of `pipeline()`.

    So are those of the test rows in `predictions.parquet`.
    """
    texts, names = [*new_texts(40), *run.predictions["text"]], list(run.labels)
    outputs = logits(run, texts)
    answers = pipeline("text-classification", model=str(run.path), device="cpu")(
        texts, truncation=True, top_k=None
    )
    scores = [{answer["label"]: answer["score"] for answer in row} for row in answers]
    by_pipeline = np.array([[row[name] for name in names] for row in scores])
    assert list(AutoConfig.from_pretrained(run.path).id2label.values()) == names
    kind = "prediction" if run.manifest.task == "regression" else "probability"
    recorded = run.predictions[[f"{kind} of {name}" for name in names]]
    np.testing.assert_allclose(recorded, by_pipeline[40:], rtol=1e-5, atol=1e-5)
    if run.manifest.task == "regression":
        predictions = finetune.predict(run, texts, precision="fp32")
        assert list(predictions) == ["text", "prediction of stars", "prediction of price"]
        for values in (outputs, by_pipeline):
            np.testing.assert_allclose(
                predictions.iloc[:, 1:].to_numpy(), values, rtol=1e-5, atol=1e-4
            )
        assert run.metrics.test["r2"] > 0.1
        return
    predictions = finetune.predict(run, texts, precision="fp32", all_probabilities=True)
    columns = [f"probability of {name}" for name in names]
    is_multi_label = run.manifest.task == "multi_label"
    assert list(predictions) == [
        "text",
        "label",
        *([] if is_multi_label else ["probability"]),
        *columns,
    ]
    assert predictions["text"].tolist() == texts
    probabilities = expit(outputs) if is_multi_label else softmax(outputs, axis=1)
    for values in (probabilities, by_pipeline):
        np.testing.assert_allclose(predictions[columns].to_numpy(), values, atol=1e-5)
    if is_multi_label:
        decided = [[names[i] for i in np.flatnonzero(row > 0.5)] for row in probabilities]
        assert [list(labels) for labels in predictions["label"]] == decided
        assert len({*map(tuple, decided)}) > 1
        assert decided[40:] == [list(labels) for labels in run.predictions["prediction"]]
    else:
        assert predictions["label"].tolist() == [names[i] for i in probabilities.argmax(axis=1)]
        np.testing.assert_allclose(predictions["probability"], probabilities.max(axis=1), atol=1e-5)
        assert predictions["label"].nunique() > 1


@pytest.mark.contract("E4", "B1")
def test_images_of_a_folder_are_predicted(
    image_run: finetune.Run, tmp_path: Path, cli: Callable[..., Finished]
) -> None:
    """Files at any depth are sorted by name; values are those of the saved model."""
    data.write_photos(tmp_path / "new", rows=10)
    output = tmp_path / "photos.csv"
    words = ["--output", output, "--all_probabilities", "--precision", "fp32"]
    assert cli("predict", image_run.path, tmp_path / "new", *words).status == 0
    predictions = pd.read_csv(output)
    columns = ["probability of down", "probability of up"]
    assert list(predictions) == ["file", "label", "probability", *columns]
    files = sorted(str(p.relative_to(tmp_path / "new")) for p in (tmp_path / "new").rglob("*.png"))
    assert predictions["file"].tolist() == files
    processor = AutoImageProcessor.from_pretrained(image_run.path)
    model = AutoModelForImageClassification.from_pretrained(image_run.path).eval()
    images = [Image.open(tmp_path / "new" / name).convert("RGB") for name in files]
    with torch.inference_mode():
        outputs = model(**processor(images, return_tensors="pt")).logits.numpy()
    np.testing.assert_allclose(predictions[columns].to_numpy(), softmax(outputs, axis=1), atol=1e-5)
    assert predictions["label"].tolist() == [("down", "up")[i] for i in outputs.argmax(axis=1)]
    one = [tmp_path / "new" / files[0], "--output", tmp_path / "one.csv"]
    assert cli("predict", image_run.path, *one).status == 0
    assert pd.read_csv(tmp_path / "one.csv")["label"].tolist() == predictions["label"].tolist()[:1]


@pytest.mark.contract("E4")
def test_calibrated_divides_the_logits_by_the_temperature(
    single_label_run: finetune.Run, copy_run: Callable[..., finetune.Run]
) -> None:
    """Probabilities are those of the logits divided by the temperature in `run.json`."""
    run, texts = copy_run(single_label_run), new_texts()
    path = run.path / "run.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"temperature": 2.5}))
    options: dict[str, Any] = dict(precision="fp32", all_probabilities=True)
    predictions = finetune.predict(run.path, texts, calibrated=True, **options)
    expected = softmax(logits(run, texts) / 2.5, axis=1)
    columns = ["probability of bad", "probability of good"]
    np.testing.assert_allclose(predictions[columns].to_numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(predictions["probability"], expected.max(axis=1), atol=1e-5)
    plain = finetune.predict(run.path, texts, **options)
    labels, probabilities = answers(run, texts)
    np.testing.assert_allclose(plain[columns].to_numpy(), probabilities, atol=1e-5)
    assert plain["label"].tolist() == predictions["label"].tolist() == labels
    path.write_text(json.dumps(manifest | {"temperature": None}))
    with pytest.raises(finetune.UserError, match="--calibrated"):
        finetune.predict(run.path, texts, calibrated=True)


@pytest.mark.contract("E4")
@pytest.mark.parametrize(
    ("run", "flag"),
    [
        ("multi_label_run", "calibrated"),
        ("regression_run", "calibrated"),
        ("regression_run", "all_probabilities"),
    ],
    indirect=["run"],
)
def test_options_that_need_one_class_a_row(run: finetune.Run, flag: str) -> None:
    """They are refused by name for other tasks."""
    with pytest.raises(finetune.UserError, match=f"--{flag}"):
        finetune.predict(run, ["a text"], **{flag: True})


@pytest.mark.contract("E4", "F4")
def test_options_of_a_file_are_refused_where_there_is_none(
    image_run: finetune.Run, tmp_path: Path
) -> None:
    """They would have no effect on rows in Python and a folder of images."""
    data.write_photos(tmp_path / "new", rows=2)
    with pytest.raises(finetune.UserError, match="--encoding, --sheet: not for the data"):
        finetune.predict(image_run, ["a.png"], encoding="cp1252", sheet="a")
    with pytest.raises(finetune.UserError, match=r"--csv_separator: not for .*new"):
        finetune.predict_file(image_run, tmp_path / "new", tmp_path / "a.csv", csv_separator=";")


def train_on_noise(bert: Path, folder: Path, **options: Any) -> finetune.Run:
    """Train on rows of which one in eight has the other label."""
    other = {"bad": "good", "good": "bad"}
    rows = [
        (text, label if number % 8 else other[label])
        for number, (text, label) in enumerate(data.labelled_sentences(600, seed=5))
    ]
    data.write_csv(folder / "noisy.csv", ["text", "label"], rows)
    options = TRAINING | dict(dataset=str(folder / "noisy.csv"), model=str(bert)) | options
    return finetune.train("text", output_dir=str(folder / "run"), baseline=False, **options)


@pytest.fixture(scope="module")
def smoothed_run(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> finetune.Run:
    """A run that is underconfident, since its labels were smoothed."""
    options: dict[str, Any] = dict(label_smoothing_factor=0.4, num_train_epochs=6)
    folder = tmp_path_factory.mktemp("smoothed")
    return train_on_noise(bert, folder, validation_size=0.3, **options)


@pytest.fixture(scope="module")
def calibrated_run(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> finetune.Run:
    """A run whose probabilities are as they should be, as far as 40 rows can tell."""
    options: dict[str, Any] = dict(label_smoothing_factor=0.2, num_train_epochs=8)
    folder = tmp_path_factory.mktemp("calibrated")
    return train_on_noise(bert, folder, validation_size=40, **options)


@pytest.mark.contract("E4", "E2")
@pytest.mark.parametrize(
    ("run", "kind"),
    [
        ("smoothed_run", "fitted"),
        ("ordinal_run", "fitted"),
        ("calibrated_run", "no gain"),
        ("single_label_run", "at a bound"),
    ],
    indirect=["run"],
)
def test_temperature_is_fitted_on_validation(run: finetune.Run, kind: str) -> None:
    """It minimizes the log loss on validation; 1 without a significant gain, None at a bound.

    The bounds are 0.05 and 20.
    """
    rows = run.recipe().splits["validation"]
    outputs = logits(run, rows["text"][:])
    true = np.array(rows["label"][:])

    def loss(logarithm: float) -> float:
        chosen = log_softmax(outputs / np.exp(logarithm), axis=1)[np.arange(len(true)), true]
        return float(-chosen.mean())

    best = minimize_scalar(loss, bounds=(np.log(0.05), np.log(20)), method="bounded")
    fitted = float(np.exp(best.x))
    if kind == "fitted":
        assert run.manifest.temperature == pytest.approx(fitted, rel=1e-2)
    else:
        assert run.manifest.temperature == {"no gain": 1.0, "at a bound": None}[kind]


# ---- E4: formats, columns, order -----------------------------------------------------------------

TABLE = [
    {"number": "007", "text": "kitchen 1: the food was great", "note": 'said "no", twice'},
    {"number": "1.50", "text": "garden 2: the staff was rude, and\nstale", "note": "NA"},
    {"number": "-3", "text": "cellar 3: the menu was fine é 食", "note": " padded "},
    {"number": "1e3", "text": "counter 4: the room was awful", "note": "; | , '"},
]


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows in the format of the file name, without the toolkit."""
    packed = path.suffix if path.suffix in COMPRESSORS else ""
    suffix = Path(path.name.removesuffix(packed)).suffix
    frame, buffer = pd.DataFrame(rows), io.BytesIO()
    if suffix in (".csv", ".tsv"):
        frame.to_csv(buffer, index=False, sep="\t" if suffix == ".tsv" else ",")
    elif suffix == ".jsonl":
        buffer.write("".join(json.dumps(row) + "\n" for row in rows).encode())
    elif suffix == ".json":
        buffer.write(json.dumps(list(rows)).encode())
    elif suffix == ".parquet":
        frame.to_parquet(buffer, index=False)
    elif suffix == ".arrow":
        table = pa.Table.from_pandas(frame, preserve_index=False)
        with pa.ipc.new_file(buffer, table.schema) as writer:
            writer.write_table(table)
    else:
        frame.to_excel(buffer, index=False)
    path.write_bytes(COMPRESSORS[packed](buffer.getvalue()))
    return path


def read_table(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, without the toolkit."""
    if path.suffix == ".parquet":
        return pd.read_parquet(path).to_dict("records")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


@pytest.mark.contract("E4", "C1")
@pytest.mark.parametrize(
    ("source", "output"),
    [
        *((f"in{suffix}", "out.csv") for suffix in (".csv", ".tsv", ".json", ".jsonl", ".arrow")),
        *((f"in.csv{suffix}", "out.tsv") for suffix in (".gz", ".bz2", ".zst", ".zip")),
        ("in.jsonl.gz", "out.jsonl"),
        ("in.parquet", "out.csv"),
        ("in.xlsx", "out.jsonl"),
        ("in.csv", "out.jsonl"),
        ("in.csv", "out.parquet"),
        ("in.parquet", "out.parquet"),
        ("in.jsonl", "out.tsv"),
    ],
)
def test_any_format_in_and_out(
    single_label_run: finetune.Run, tmp_path: Path, source: str, output: str
) -> None:
    """Columns, their order and all cells are kept; the predictions are added after them."""
    write_table(tmp_path / source, TABLE)
    result = finetune.predict_file(
        single_label_run, tmp_path / source, tmp_path / output, precision="fp32"
    )
    assert (result.output, result.rows, result.rows_before) == (tmp_path / output, 4, 0)
    assert result.precision == "fp32"
    assert result.samples_per_second > 0
    rows = read_table(tmp_path / output)
    assert list(rows[0]) == ["number", "text", "note", "label", "probability"]
    assert [{name: row[name] for name in TABLE[0]} for row in rows] == TABLE
    labels, probabilities = answers(single_label_run, [row["text"] for row in TABLE])
    assert [row["label"] for row in rows] == labels
    written = [float(row["probability"]) for row in rows]
    np.testing.assert_allclose(written, probabilities.max(axis=1), atol=1e-5)


@pytest.mark.contract("E4")
@pytest.mark.parametrize("output", ["out.csv", "out.jsonl", "out.parquet"])
def test_labels_of_a_row_in_each_format(
    multi_label_run: finetune.Run, tmp_path: Path, output: str
) -> None:
    """The labels of a row are a list, in a CSV as JSON."""
    texts = new_texts()
    write_table(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    finetune.predict_file(
        multi_label_run, tmp_path / "in.jsonl", tmp_path / output, precision="fp32"
    )
    cells = [row["label"] for row in read_table(tmp_path / output)]
    lists = [json.loads(cell) if output == "out.csv" else list(cell) for cell in cells]
    decided = expit(logits(multi_label_run, texts)) > 0.5
    assert lists == [[multi_label_run.labels[i] for i in np.flatnonzero(row)] for row in decided]


@pytest.mark.contract("E4")
def test_thousands_of_rows_of_every_length_keep_their_order(
    single_label_run: finetune.Run, tmp_path: Path
) -> None:
    """Rows are batched by length, but written in the order of the file."""
    texts = [f"{text} {'and so on ' * (n % 17)}" for n, text in enumerate(new_texts(2500))]
    write_table(tmp_path / "in.csv", [{"n": n, "text": text} for n, text in enumerate(texts)])
    finetune.predict_file(
        single_label_run, tmp_path / "in.csv", tmp_path / "out.parquet", precision="fp32"
    )
    predictions = pd.read_parquet(tmp_path / "out.parquet")
    assert predictions["n"].astype(int).tolist() == list(range(2500))
    assert predictions["text"].tolist() == texts
    chosen = [0, 1, 1022, 1023, 1024, 1025, 2047, 2048, 2499, *range(50, 2500, 97)]
    labels, probabilities = answers(single_label_run, [texts[n] for n in chosen])
    np.testing.assert_allclose(
        predictions["probability"][chosen], probabilities.max(axis=1), atol=1e-5
    )
    assert predictions["label"][chosen].tolist() == labels


@pytest.mark.contract("E4", "E8")
def test_columns_of_the_input_are_never_replaced(
    single_label_run: finetune.Run, tmp_path: Path
) -> None:
    """An input with `id`, `label` and `probability` keeps them; the new columns have a prefix."""
    rows = [
        {"label": "x", "id": 9 - n, "text": text, "probability": 7 + n, "tokens": "t"}
        for n, text in enumerate(new_texts(3))
    ]
    write_table(tmp_path / "in.jsonl", rows)
    result = finetune.predict_file(
        single_label_run, tmp_path / "in.jsonl", tmp_path / "out.jsonl", precision="fp32"
    )
    predictions = read_table(tmp_path / "out.jsonl")
    assert list(predictions[0]) == [*rows[0], "predicted label", "predicted probability"]
    assert [{name: row[name] for name in rows[0]} for row in predictions] == rows
    labels, _ = answers(single_label_run, [row["text"] for row in rows])
    assert [row["predicted label"] for row in predictions] == labels
    assert any("predicted label" in note for note in result.notes)


@pytest.mark.contract("E4")
@pytest.mark.parametrize(
    ("source", "content", "missing"),
    [
        ("in.csv", "n,text\n1,great food\n2,\n3,awful food\n", [1]),
        ("in.csv", 'text\ngreat food\n\n"two\nlines"\n', [1]),
        ("in.jsonl", '{"text": "a"}\n{"text": null}\n{"n": 1}\n{"text": ""}\n', [1, 2]),
        ("in.jsonl", '{"text": "a"}\n{"text": NaN}\n{"text": null}\n{"text": ""}\n', [1, 2]),
        ("in.jsonl", '{"text": NaN}\n{"text": NaN}\n{"text": NaN}\n{}\n', [0, 1, 2, 3]),
        ("in.txt", "great food\n\nawful food\n", []),
    ],
)
def test_a_row_without_a_text_has_no_prediction(
    single_label_run: finetune.Run, tmp_path: Path, source: str, content: str, missing: list[int]
) -> None:
    """Its fields are empty, such rows are counted, and all other rows are predicted."""
    (tmp_path / source).write_text(content)
    result = finetune.predict_file(single_label_run, tmp_path / source, tmp_path / "out.parquet")
    predictions = pd.read_parquet(tmp_path / "out.parquet")
    assert np.flatnonzero(predictions["label"].isna()).tolist() == missing
    assert np.flatnonzero(predictions["probability"].isna()).tolist() == missing
    assert len(predictions) == result.rows == 3 + (source == "in.jsonl")
    count = re.compile(rf"\b{len(missing)} rows?\b")
    assert any(count.search(note) for note in result.notes) is bool(missing)


@pytest.mark.contract("E4", "F4")
def test_a_parquet_file_without_rows_is_refused(
    single_label_run: finetune.Run, cli: Callable[..., Any], bert: Path, tmp_path: Path
) -> None:
    source = tmp_path / "none.parquet"
    pq.write_table(pa.schema([("text", pa.string()), ("label", pa.string())]).empty_table(), source)
    with pytest.raises(finetune.UserError, match=r"none\.parquet has no rows"):
        finetune.predict_file(single_label_run, source, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
    with pytest.raises(finetune.UserError, match=r"none\.parquet has no rows"):
        finetune.evaluate(single_label_run, data=str(source))
    result = cli("text", "--dataset", source, "--model", bert, "--output_dir", tmp_path / "run")
    assert result.status == 2
    assert "none.parquet has no rows" in result.stderr
    assert not (tmp_path / "run").exists()


MAPS = pa.map_(pa.string(), pa.int64())
IDS = b'{"text": "a", "id": "A1"}\n{"text": "b", "id": 7}\n{"text": "c", "id": "007"}\n'
EMPTY = b'{"text": "a", "meta": {}, "nested": {"a": {}}}\n'
INFINITE = b'{"text": "a", "x": Infinity, "y": [-Infinity]}\n{"text": "b", "x": 1.5, "y": null}\n'
NOT_A_NUMBER = b'{"text": "a", "x": NaN, "y": [NaN, 1]}\n{"text": "b", "x": 1.5, "y": null}\n'


@pytest.mark.contract("E4", "E8")
@pytest.mark.parametrize(
    ("source", "output", "column", "values"),
    [
        (IDS, "out.parquet", "id", ["A1", "7", "007"]),
        (IDS, "out.csv", "id", ["A1", "7", "007"]),
        (IDS, "out.jsonl", "id", ["A1", 7, "007"]),
        (EMPTY, "out.parquet", "meta", ["{}"]),
        (EMPTY, "out.parquet", "nested", ['{"a": {}}']),
        (INFINITE, "out.jsonl", "x", [np.inf, 1.5]),
        (INFINITE, "out.jsonl", "y", [[-np.inf], None]),
        (INFINITE, "out.csv", "y", ["[-Infinity]", ""]),
        (NOT_A_NUMBER, "out.jsonl", "x", [None, 1.5]),
        (NOT_A_NUMBER, "out.jsonl", "y", [[None, 1], None]),
        (NOT_A_NUMBER, "out.csv", "x", ["", "1.5"]),
        (NOT_A_NUMBER, "out.csv", "y", ["[null, 1.0]", ""]),
        (pa.array([[("k", 1), ("j", 2)], None, []], MAPS), "out.parquet", "column", None),
        (pa.array([{"m": [("k", 1)]}], pa.struct([("m", MAPS)])), "out.parquet", "column", None),
    ],
)
def test_values_and_types_of_the_input_are_kept(
    single_label_run: finetune.Run,
    tmp_path: Path,
    source: bytes | pa.Array,
    output: str,
    column: str,
    values: list[Any] | None,
) -> None:
    """Ids of mixed types, infinity and maps are kept (`values` is None). Parquet cannot store empty
    structs, so these become JSON; in text files NaN is null.
    """
    path = tmp_path / ("in.jsonl" if isinstance(source, bytes) else "in.parquet")
    if isinstance(source, bytes):
        path.write_bytes(source)
    else:
        pq.write_table(pa.table({"text": ["a"] * len(source), "column": source}), path)
    finetune.predict_file(single_label_run, path, tmp_path / output)
    if isinstance(source, bytes):
        assert [row[column] for row in read_table(tmp_path / output)] == values
    else:
        assert pq.read_table(tmp_path / output)[column].combine_chunks().equals(source)


@pytest.mark.contract("E4", "E8")
@pytest.mark.parametrize("kind", [list, datasets.Dataset.from_list], ids=["list", "Dataset"])
def test_integers_beside_missing_ones_stay_exact_in_python(
    single_label_run: finetune.Run, kind: Callable[..., Any]
) -> None:
    """Those of polars do; pandas alone would convert them to floats."""
    rows = [{"text": "a", "id": 1234567890123456789, "x": 0.5}, {"text": "b"}]
    frame = finetune.predict(single_label_run, kind(rows))
    assert frame["id"].tolist() == [1234567890123456789, None]
    assert frame["x"].dtype == np.float64


@pytest.mark.contract("E4", "F4")
def test_rows_that_are_written_to_an_open_file_cannot_be_resumed(
    single_label_run: finetune.Run, tmp_path: Path
) -> None:
    """Neither can those of standard input; no row is written."""
    source = write_table(tmp_path / "in.csv", TABLE)
    file = io.StringIO(newline="")
    with pytest.raises(finetune.UserError, match="--resume"):
        finetune.predict_file(single_label_run, source, file, resume=True)
    assert file.getvalue() == ""
    with pytest.raises(finetune.UserError, match="--resume"):
        finetune.predict_file(single_label_run, "-", tmp_path / "out.csv", resume=True)


@pytest.mark.contract("E4", "F4")
@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (["in.csv", "--output", "out.xls"], ["out.xls", ".csv", ".tsv", ".jsonl", ".parquet"]),
        (["in.csv", "--output", "in.csv"], ["--output", "in.csv"]),
        (["in.csv", "--output", "none/out.csv"], ["--output", "none"]),
        (["in.csv", "--output", "RUN/suspects.csv"], ["--output", "part of a run"]),
        (["in.csv", "--output", "RUN/predictions.parquet"], ["--output", "part of a run"]),
        (["in.csv", "--text_column", "txt"], ["--text_column", "'txt'", "in.csv", "'text'"]),
        (["gone.csv"], ["gone.csv"]),
        (["in.csv", "--text", "a text"], ["--text", "INPUT"]),
        (["in.csv", "--resume"], ["--resume", "--output"]),
        (["in.csv", "--batch_tokens", "0"], ["--batch_tokens", "0"]),
        (["--text", "a text", "--resume"], ["--resume", "INPUT"]),
        (["gone.csv", "--output", "a.csv", "--batch_tokens", "0"], ["gone.csv", "--batch_tokens"]),
        (["in.csv", "--output", "none/a.csv", "--text_column", "txt"], ["none/a.csv", "'txt'"]),
        (
            ["in.csv", "--image_column", "a", "--csv_separator", ";;", "--encoding", "foo"],
            ["--image_column", "--csv_separator ;;", "--encoding foo"],
        ),
        ([], ["INPUT", "--text"]),
        (["late.csv", "--output", "out.csv"], ["late.csv", "line 4"]),
        (
            ["-", "--csv_quoting", "none", "--csv_separator=;", "--encoding=cp1252", "--sheet=a"],
            ["--csv_quoting, --csv_separator, --encoding, --sheet: not for the standard input"],
        ),
    ],
)
def test_what_cannot_be_predicted_is_refused(
    single_label_run: finetune.Run,
    tmp_path: Path,
    cli: Callable[..., Finished],
    words: list[str],
    fragments: list[str],
) -> None:
    """Each mistake names the file or flag; exit status 2, and nothing is written."""
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd" / "in.csv").write_text("n,text\n1,great food\n")
    (tmp_path / "cwd" / "late.csv").write_text("n,text\n1,a\n2,b\n3,c,d\n")
    paths = [word.replace("RUN", str(single_label_run.path)) for word in words]
    cli("predict", single_label_run.path, *paths).refused(*fragments)
    assert sorted(path.name for path in (tmp_path / "cwd").iterdir()) == ["in.csv", "late.csv"]


@pytest.mark.contract("E4", "C12")
def test_above_50_classes_the_most_probable_ones_are_written(bert: Path, tmp_path: Path) -> None:
    """`predictions.parquet` has five classes and the true one, `logits.npy` has them all.

    `predict` writes the first class, and with an option all classes.
    """
    names = [f"class {n:02d}" for n in range(60)]
    rows = [(f"{text} {n % 60}", names[n % 60]) for n, text in enumerate(new_texts(360))]
    data.write_csv(tmp_path / "in.csv", ["text", "label"], rows)
    options = SHORT | dict(dataset=str(tmp_path / "in.csv"), model=str(bert), learning_rate=1e-2)
    run = finetune.train("text", output_dir=str(tmp_path / "run"), **options)
    table, stored = run.predictions, np.load(run.path / "logits.npy")
    ranks = [f"_{n}" for n in range(2, 6)]
    added = ["label", "prediction", "probability", "label_probability"]
    added += [f"{name}{rank}" for rank in ranks for name in ("prediction", "probability")]
    assert [name for name in table if name in added] == added
    assert (stored.shape, stored.dtype) == ((len(table), 60), np.float16)
    assert (stored.max(axis=1) == 0).all()
    outputs = logits(run, table["text"])
    order, probabilities = (-outputs).argsort(axis=1), softmax(outputs, axis=1)
    lines = np.arange(len(table))
    for place, suffix in enumerate(["", *ranks]):
        assert (table[f"prediction{suffix}"] == np.array(names)[order[:, place]]).mean() > 0.95
        chosen = probabilities[lines, order[:, place]]
        np.testing.assert_allclose(table[f"probability{suffix}"], chosen, rtol=2e-2)
    true = [run.labels.index(label) for label in table["label"]]
    np.testing.assert_allclose(table["label_probability"], probabilities[lines, true], rtol=2e-2)
    np.testing.assert_allclose(stored, outputs - outputs.max(1, keepdims=True), atol=2e-2)
    labels = np.arange(60)
    top, brier = (run.statistics.metrics[name] for name in ("top_5_accuracy", "brier_score"))
    expected = sklearn_metrics.top_k_accuracy_score(true, stored, k=5, labels=labels)
    assert run.metrics.test["top_5_accuracy"] == top["value"] == pytest.approx(expected)
    assert 0 < expected < 1
    ends = stats.binomtest(round(expected * len(true)), len(true)).proportion_ci(method="wilson")
    assert [top["low"], top["high"]] == pytest.approx(ends, abs=1e-6)
    expected = sklearn_metrics.brier_score_loss(true, probabilities, labels=labels)
    assert brier["low"] < brier["value"] < brier["high"]
    assert brier["value"] == pytest.approx(expected, rel=1e-2)
    for name in ("README.md", "report.html"):
        assert "top_5_accuracy" in (run.path / name).read_text(encoding="utf-8")
    plain = finetune.predict(run, table["text"], precision="fp32")
    assert list(plain) == ["text", "label", "probability"]
    assert plain["label"].tolist() == [names[i] for i in probabilities.argmax(axis=1)]
    np.testing.assert_allclose(plain["probability"], probabilities.max(axis=1), atol=1e-5)
    predictions = finetune.predict(run, table["text"], precision="fp32", all_probabilities=True)
    columns = [f"probability of {name}" for name in names]
    assert list(predictions) == ["text", "label", "probability", *columns]
    np.testing.assert_allclose(predictions[columns].to_numpy(), probabilities, atol=1e-5)


# ---- E4: screen, several processes, resume -------------------------------------------------------


@pytest.mark.contract("E4")
def test_one_text_is_answered_in_a_line(
    single_label_run: finetune.Run, cli: Callable[..., Finished]
) -> None:
    """`--text` prints the class and its probability, then the others."""
    text = new_texts(1)[0]
    result = cli("predict", single_label_run.path, "--text", text, "--precision", "fp32")
    bad, good = softmax(logits(single_label_run, [text])[0])
    ranked = sorted([(bad, "bad"), (good, "good")], reverse=True)
    words = result.stdout.replace("(", " ").replace(")", " ").split()
    assert words == [word for score, name in ranked for word in (name, f"{score:.4f}")]


@pytest.mark.contract("E4")
@pytest.mark.parametrize(
    ("source", "separator"), [("in.csv", ","), ("in.tsv", "\t"), ("in.jsonl", "")]
)
def test_without_an_output_rows_are_printed(
    single_label_run: finetune.Run,
    tmp_path: Path,
    cli: Callable[..., Finished],
    source: str,
    separator: str,
) -> None:
    """Standard output has the format of the input and nothing but the rows."""
    write_table(tmp_path / source, TABLE)
    words = ["predict", single_label_run.path, tmp_path / source, "--precision", "fp32"]
    result = cli(*words).succeeded()
    (tmp_path / f"out.{source}").write_text(result.stdout, encoding="utf-8", newline="")
    rows = read_table(tmp_path / f"out.{source}")
    assert [{name: row[name] for name in TABLE[0]} for row in rows] == TABLE
    labels, _ = answers(single_label_run, [row["text"] for row in TABLE])
    assert [row["label"] for row in rows] == labels


@pytest.mark.contract("E4")
def test_lines_of_standard_input(single_label_run: finetune.Run, command: Commands) -> None:
    """The label of each line is written as it arrives, before the input ends."""
    texts = new_texts(3)
    process = command.start(
        "predict", single_label_run.path, "-", "--precision", "fp32", stdin=-1, bufsize=1
    )
    assert process.stdin is not None
    assert process.stdout is not None
    watchdog = threading.Timer(120, process.kill)  # otherwise a missing line would hang the test
    watchdog.start()
    process.stdin.write(f"{texts[0]}\n")
    process.stdin.flush()
    lines = [process.stdout.readline(), process.stdout.readline()]
    rest, _ = process.communicate("\n".join(texts[1:]), timeout=120)
    watchdog.cancel()
    rows = [line.split("\t") for line in ("".join(lines) + rest).splitlines()]
    assert process.returncode == 0
    labels, probabilities = answers(single_label_run, texts)
    assert rows[0] == ["text", "label", "probability"]
    assert [row[:2] for row in rows[1:]] == [list(row) for row in zip(texts, labels, strict=True)]
    printed = [float(row[2]) for row in rows[1:]]
    np.testing.assert_allclose(printed, probabilities.max(axis=1), atol=1e-5)


@pytest.mark.contract("C3", "E4")
@pytest.mark.parametrize("content", [b"one\n\xe9\n", b"one\ntw\0o\n"], ids=["Latin-1", "null"])
def test_bytes_of_standard_input_that_are_no_text_are_refused(
    single_label_run: finetune.Run, cli: Callable[..., Finished], content: bytes
) -> None:
    """The message has their line."""
    result = cli("predict", single_label_run.path, "-", "--precision", "fp32", stdin=content)
    assert result.status == 2
    assert "standard input, line 2" in result.stderr


@pytest.fixture(scope="module")
def many_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV of 5,000 rows."""
    rows = [{"n": n, "text": text} for n, text in enumerate(new_texts(5000))]
    return write_table(tmp_path_factory.mktemp("many") / "in.csv", rows)


@pytest.fixture(scope="module")
def whole_output(
    single_label_run: finetune.Run, many_rows: Path, tmp_path_factory: pytest.TempPathFactory
) -> bytes:
    """The output of one process for these rows, without an interruption."""
    output = tmp_path_factory.mktemp("whole") / "out.csv"
    finetune.predict_file(single_label_run, many_rows, output, precision="fp32")
    return output.read_bytes()


@pytest.mark.contract("A14", "A15", "E4")
def test_several_processes_write_the_same_file(
    single_label_run: finetune.Run, many_rows: Path, whole_output: bytes, command: Commands
) -> None:
    """Two processes write the file of one, byte for byte; rank 0 prints the answer."""
    words = ["predict", single_label_run.path, many_rows, "--output", "out.csv", "--json"]
    words += ["--precision", "fp32", "--num_processes", 2]
    result = command(*words).succeeded()
    assert (command.home / "out.csv").read_bytes() == whole_output
    assert [path.name for path in command.home.iterdir()] == ["out.csv"]
    answer = json.loads(result.stdout)
    assert (answer["output"], answer["rows"], answer["precision"]) == ("out.csv", 5000, "fp32")


@pytest.mark.contract("A14", "E5")
@pytest.mark.slow
def test_several_processes_give_the_scores_of_one(
    single_label_run: finetune.Run, tmp_path: Path, command: Commands
) -> None:
    """Of 41 new rows, which two processes do not share equally; rank 0 prints the answer."""
    labelled(41).to_csv(tmp_path / "new.csv", index=False)
    words = ["evaluate", single_label_run.path, "--data", tmp_path / "new.csv", "--json"]
    answer = json.loads(command(*words, "--num_processes", 2).succeeded().stdout)
    alone = finetune.evaluate(single_label_run, str(tmp_path / "new.csv"))
    assert answer["rows"] == alone.rows == 41
    assert answer["metrics"] == pytest.approx(alone.metrics, rel=1e-5, abs=1e-6)
    assert 0 < alone.metrics["accuracy"] < 1


def predict_until(rows: int, run: finetune.Run | str, source: Path, output: Path) -> int:
    """Predict a file, with Ctrl-C after a number of rows; return how many it was after."""
    counts: list[int] = []

    def interrupt(event: Any) -> None:
        if type(event).__name__ == "Advanced" and event.done >= rows:
            counts.append(event.done)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finetune.predict_file(run, source, output, progress=interrupt, precision="fp32")
    return counts[0]


@pytest.mark.contract("A2", "C1", "E1", "E4")
def test_a_relative_path_may_have_any_characters(
    cli: Callable[..., Finished], bert: Path, tmp_path: Path
) -> None:
    """A colon makes no URI of a path, and brackets no pattern. Other data is not split by time."""
    run, source, output = "exp:lr=2e-5/[a]*?#%20", "v2:[a] *?.parquet", "out:1.parquet"
    folder = tmp_path / "cwd"
    folder.mkdir()
    rows = pd.DataFrame(data.labelled_sentences(1100), columns=["text", "label"])
    rows["day"] = pd.date_range("2020-01-01", periods=1100).strftime("%d.%m.%Y")
    rows.to_parquet(folder / source)
    options = {**TRAINING, "num_train_epochs": 1, "train_samples": 60, "eval_samples": 20}
    options |= {"time_column": "day", "time_format": "%d.%m.%Y"}
    words = ["text", *flags(dataset=source, output_dir=run, model=bert, **options)]
    cli(*words).succeeded()
    cli(*words, "--resume").succeeded()
    cli("evaluate", run).succeeded()
    cli("evaluate", run, "--data", source).succeeded()
    assert len(pd.read_parquet(folder / run / "predictions.parquet")) == 20
    predict_until(1025, run, Path(source), Path(output))
    result = finetune.predict_file(run, source, output, resume=True, precision="fp32")
    assert (result.rows_before, result.rows) == (1024, 1100)
    assert pd.read_parquet(folder / output)["text"].tolist() == rows["text"].tolist()


@pytest.mark.contract("E4")
def test_an_interrupted_prediction_is_resumed(
    single_label_run: finetune.Run, many_rows: Path, whole_output: bytes, tmp_path: Path
) -> None:
    """Ctrl-C leaves no partial output; `resume` does only the rest, and refuses other settings
    and an input that has changed.
    """
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    output.write_text("of yesterday\n")
    fp32 = dict(precision="fp32")
    shutil.copy2(many_rows, source)
    count = predict_until(2500, single_label_run, source, output)
    assert output.read_text() == "of yesterday\n"
    refused: list[tuple[dict[str, Any], str]] = [
        ({}, "--resume"),
        (dict(resume=True, all_probabilities=True), "--resume.*probability of bad"),
        (dict(resume=True, precision="bf16", csv_safe=True), "--csv_safe"),
    ]
    for options, fragment in refused:
        with pytest.raises(finetune.UserError, match=fragment):
            finetune.predict_file(single_label_run, source, output, **(fp32 | options))
    with source.open("a") as file:
        file.write("5000,one more\n")
    with pytest.raises(finetune.UserError, match=r"--resume.*in\.csv"):
        finetune.predict_file(single_label_run, source, output, resume=True, **fp32)
    shutil.copy2(many_rows, source)
    rest = finetune.predict_file(single_label_run, source, output, resume=True, **fp32)
    assert 0 < rest.rows_before <= count < rest.rows == 5000
    assert output.read_bytes() == whole_output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv"]


@pytest.mark.contract("E4")
def test_a_half_written_part_is_predicted_again(
    single_label_run: finetune.Run, many_rows: Path, whole_output: bytes, tmp_path: Path
) -> None:
    """Truncated and empty parts, as after a power cut, do not count as finished."""
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    shutil.copy2(many_rows, source)
    predict_until(4000, single_label_run, source, output)
    parts = sorted((tmp_path / "out.csv.part").glob("[0-9]*"))
    assert len(parts) >= 2
    parts[0].write_bytes(parts[0].read_bytes()[: parts[0].stat().st_size // 2])
    parts[1].write_bytes(b"")
    rest = finetune.predict_file(single_label_run, source, output, resume=True, precision="fp32")
    assert rest.rows_before == 1024 * (len(parts) - 2)
    assert output.read_bytes() == whole_output


@pytest.mark.contract("E4")
def test_a_killed_prediction_is_resumed(
    single_label_run: finetune.Run,
    many_rows: Path,
    tmp_path: Path,
    command: Commands,
    cli: Callable[..., Finished],
) -> None:
    """After SIGKILL at any row there is no output, and `--resume` writes the same bytes."""
    rows = pd.concat([pd.read_csv(many_rows, dtype=str)] * 2)
    rows.to_csv(tmp_path / "in.csv", index=False)
    words = ["predict", single_label_run.path, tmp_path / "in.csv"]
    words += ["--precision", "fp32", "--output"]
    process = command.start(*words, command.home / "out.csv")
    wait_until(lambda: any(path.is_file() for path in command.home.rglob("*")), process)
    process.kill()
    assert process.wait() < 0
    assert not (command.home / "out.csv").exists()
    assert cli(*words, command.home / "out.csv").status == 2
    cli(*words, command.home / "out.csv", "--resume").succeeded()
    finetune.predict_file(
        single_label_run, tmp_path / "in.csv", tmp_path / "whole.csv", precision="fp32"
    )
    assert (command.home / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


# ---- E5 ------------------------------------------------------------------------------------------


def labelled(rows: int = 40, seed: int = 7) -> pd.DataFrame:
    """Return rows of `bad` and `good` that are in no training data; the first is good."""
    pairs = data.labelled_sentences(rows, ("good", "bad"), seed=seed)
    return pd.DataFrame(pairs, columns=["text", "label"])


@pytest.mark.contract("E5")
@pytest.mark.parametrize("run", [*TEXT_RUNS, "image_run"], indirect=True)
def test_its_own_test_set_has_its_metrics_again(run: finetune.Run) -> None:
    """`evaluate RUN` computes the metrics that were recorded."""
    evaluation = finetune.evaluate(run)
    assert (evaluation.source, evaluation.rows) == (str(run.path), len(run.predictions))
    assert dict(evaluation.recorded or {}) == dict(run.metrics.test)
    assert evaluation.metrics == pytest.approx(dict(run.metrics.test), abs=1e-6)
    assert (evaluation.statistics, evaluation.rows_trained_on) == (None, None)


@pytest.mark.contract("E5")
@pytest.mark.parametrize(
    "chosen",
    [["good", "bad"], ["good"], ["bad"]],
    ids=["another order", "only good", "only bad"],
)
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", "frame"])
def test_labels_are_matched_by_name(
    single_label_run: finetune.Run, tmp_path: Path, chosen: list[str], suffix: str
) -> None:
    """For any classes of a file in any order, the scores are those of scikit-learn."""
    frame = labelled()
    frame = frame[frame["label"].isin(chosen)].reset_index(drop=True)
    source: Any = frame
    if suffix != "frame":
        source = str(write_table(tmp_path / f"in{suffix}", frame.to_dict("records")))
    evaluation = finetune.evaluate(single_label_run, source)
    outputs = softmax(logits(single_label_run, frame["text"]), axis=1)
    true, predicted = (frame["label"] == "good").astype(int), outputs.argmax(axis=1)
    assert evaluation.rows == len(frame)
    assert evaluation.recorded is None
    statistics = evaluation.statistics
    assert statistics is not None
    expected = {
        "accuracy": sklearn_metrics.accuracy_score(true, predicted),
        "f1": sklearn_metrics.f1_score(true, predicted, average="macro", zero_division=0),
        "loss": sklearn_metrics.log_loss(true, outputs, labels=[0, 1]),
    }
    assert statistics.confusion is not None
    right = np.trace(statistics.confusion)
    assert evaluation.metrics["accuracy"] == right / len(frame)
    assert len(frame) / 2 < right < len(frame)
    for name, value in expected.items():
        assert evaluation.metrics[name] == pytest.approx(value, abs=1e-5)
        of_table = statistics.metrics["log_loss" if name == "loss" else name]
        assert of_table["value"] == pytest.approx(value, abs=1e-5)
    matrix = sklearn_metrics.confusion_matrix(true, predicted, labels=[0, 1])
    assert statistics.confusion == matrix.tolist()


@pytest.mark.contract("E5")
def test_label_sets_and_columns_are_matched_by_name(
    multi_label_run: finetune.Run, regression_run: finetune.Run, tmp_path: Path
) -> None:
    """Lists of names and target columns may have another order."""
    texts = new_texts(30)
    sets = [[list(data.WORDS)[n % 3], *(["bad"] if n % 2 and n % 3 else [])] for n in range(30)]
    rows = [{"text": text, "labels": names[::-1]} for text, names in zip(texts, sets, strict=True)]
    evaluation = finetune.evaluate(multi_label_run, str(write_table(tmp_path / "sets.jsonl", rows)))
    true = np.array([[name in names for name in multi_label_run.labels] for names in sets])
    decided = logits(multi_label_run, texts) > 0
    for average in ("micro", "macro"):
        value = sklearn_metrics.f1_score(true, decided, average=average, zero_division=0)
        assert evaluation.metrics[f"f1_{average}"] == pytest.approx(value, abs=1e-6)
    numbers = pd.DataFrame(
        {
            "price": [100 + 7.0 * n for n in range(30)],
            "text": texts,
            "stars": [1 + 0.1 * n for n in range(30)],
        }
    )
    numbers.to_csv(tmp_path / "numbers.csv", index=False)
    evaluation = finetune.evaluate(regression_run, str(tmp_path / "numbers.csv"))
    outputs = logits(regression_run, texts)
    errors = np.abs(numbers[["stars", "price"]].to_numpy() - outputs).mean(axis=0)
    assert evaluation.metrics["mae"] == pytest.approx(errors.mean(), rel=1e-5)
    assert evaluation.statistics is not None
    assert evaluation.statistics.targets is not None
    for name, value in zip(["stars", "price"], errors, strict=True):
        assert evaluation.statistics.targets[name]["mae"]["value"] == pytest.approx(value, rel=1e-5)


@pytest.mark.contract("E5")
@pytest.mark.parametrize("seen", [0, 1, 13])
def test_rows_that_were_trained_on_are_counted(
    single_label_run: finetune.Run, tmp_path: Path, cli: Callable[..., Finished], seen: int
) -> None:
    """Training rows are counted, regardless of their label; test rows are not."""
    training = single_label_run.recipe().splits["train"]["text"][:]
    tested = single_label_run.predictions[["text", "label"]]
    trained_on = pd.DataFrame({"text": training[3 : 3 + seen], "label": "good"})
    frame = pd.concat([tested.head(10), trained_on, labelled(6)])
    frame.to_csv(tmp_path / "in.csv", index=False)
    evaluation = finetune.evaluate(single_label_run, str(tmp_path / "in.csv"))
    assert (evaluation.rows, evaluation.rows_trained_on) == (16 + seen, seen)
    counts = re.compile(rf"(?<![\w.-]){seen}\b\D{{1,20}}\b{16 + seen} rows")
    assert any(counts.search(note) for note in evaluation.notes) is bool(seen)
    printed = cli("evaluate", single_label_run.path, "--data", tmp_path / "in.csv").output
    assert bool(counts.search(" ".join(printed.split()))) is bool(seen)


@pytest.mark.contract("E5")
@pytest.mark.trains
def test_all_rows_that_were_trained_on_are_counted(bert: Path, tmp_path: Path) -> None:
    """Of 400 texts, the digests of one or two end with a zero."""
    texts = [f"a film of {number} minutes" for number in range(400)]
    rows = pd.DataFrame({"text": texts, "label": ["bad", "good"] * 200})
    options = dict(model=str(bert), output_dir=str(tmp_path / "run"), baseline=False, max_steps=1)
    run = finetune.train("text", dataset=rows, train_samples=None, **options)
    evaluation = finetune.evaluate(run, rows)
    assert evaluation.rows_trained_on == run.manifest.data.rows["train"] > 250


@pytest.mark.contract("E5")
@pytest.mark.parametrize(
    ("content", "options", "fragments"),
    [
        (
            "text,label\na b,good\nc d,bad\ne f,terrible\n",
            [],
            ["terrible", "line 4", "--label_map"],
        ),
        ("text,label\na b,good\nc d,\n", [], ["line 3", "--drop_invalid"]),
        ("text,score\na b,good\nc d,bad\n", [], ["--label_column", "'label'", "text, score"]),
        ("words,label\na b,good\nc d,bad\n", [], ["--text_column", "'text'", "words, label"]),
        ("text,label\n", [], ["in.csv"]),
        ("text,label\na b,good\n", ["--no_such", "1"], ["--no_such"]),
        (
            "text,label\na b,good\n",
            ["--per_device_eval_batch_size", "0"],
            ["--per_device_eval_batch_size 0: expected 1 or more"],
        ),
        ("text,label\na b,good\n", ["--label_separator", ""], ["--label_separator"]),
    ],
)
def test_data_that_cannot_be_evaluated_is_refused(
    single_label_run: finetune.Run,
    tmp_path: Path,
    cli: Callable[..., Finished],
    content: str,
    options: list[str],
    fragments: list[str],
) -> None:
    """There is one message with the line and what to type; the exit status is 2."""
    (tmp_path / "in.csv").write_text(content)
    cli("evaluate", single_label_run.path, "--data", tmp_path / "in.csv", *options).refused(
        *fragments
    )


@pytest.mark.contract("E5")
def test_other_columns_and_names_of_labels(
    single_label_run: finetune.Run, tmp_path: Path, cli: Callable[..., Finished]
) -> None:
    """`--text_column`, `--label_column`, `--label_map` and `--drop_invalid` read another file."""
    frame = labelled(20).replace({"label": {"good": "1"}})
    frame = frame.rename(columns={"text": "review", "label": "stars"})
    frame.loc[len(frame)] = ["a review without stars", None]
    frame.to_csv(tmp_path / "in.csv", index=False)
    words = ["--text_column", "review", "--label_column", "stars", "--label_map", "1=good"]
    words += ["--drop_invalid", "--data", str(tmp_path / "in.csv")]
    result = cli("evaluate", single_label_run.path, *words).succeeded()
    true = (frame["stars"][:20] == "1").astype(int)
    outputs = logits(single_label_run, frame["review"][:20])
    accuracy = sklearn_metrics.accuracy_score(true, outputs.argmax(axis=1))
    (line,) = [line for line in result.stdout.splitlines() if line.split()[:1] == ["accuracy"]]
    assert line.split()[1] == f"{accuracy:.4f}"
    assert "20 rows" in result.stdout
    assert "line 22" in result.output


@pytest.mark.contract("E5", "E2")
def test_the_evaluation_loss_has_one_definition(smoothed_run: finetune.Run) -> None:
    """It is the plain loss, recorded and evaluated, also with `--label_smoothing_factor`."""
    run = smoothed_run
    assert finetune.evaluate(run).metrics["loss"] == pytest.approx(run.metrics.test["loss"])
    table = run.predictions
    outputs = table[["probability of bad", "probability of good"]].to_numpy()
    plain = sklearn_metrics.log_loss(table["label"], outputs, labels=["bad", "good"])
    assert run.metrics.test["loss"] == pytest.approx(plain, abs=1e-5)


# ---- E8 ------------------------------------------------------------------------------------------


#: Columns of the user: the values of three rows, and in ``predictions.parquet`` if different.
USER_VALUES: dict[str, list[Any]] = {
    "id": [1234567890123456791, None, 1234567890123456793],
    "votes": [1, None, 3],
    "code": ["A1", 7, "007"],
    "tags": [["x", "y"], [], None],
    "meta": [{"k": 1}, {"k": "\u00e9"}, None],
    "empty": [{}, {}, {}],
    "nested": [{"a": {}}, {"a": {}}, None],
    "thumbnail": ["a.jpg", "b.jpg", None],
    **{name: [f"{name} {n}" for n in range(3)] for name in ("text", "texts", "label", "author")},
    **{name: [*"xyz"] for name in ("tokens", "prediction", "labels", "length", "file")},
    **{name: ["a", "b", None] for name in ("_row", "_row (data)", "text (data)", "model_text")},
}
IN_PARQUET = {
    "code": ["A1", "7", "007"],
    "meta": ['{"k": 1}', '{"k": "\u00e9"}', None],
    "empty": ["{}", "{}", "{}"],
    "nested": ['{"a": {}}', '{"a": {}}', None],
}


@pytest.fixture(scope="module")
def own_columns_run(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> finetune.Run:
    """A run on `body` and `queue` of JSON lines that also have the columns of `USER_VALUES`."""
    folder = tmp_path_factory.mktemp("own")
    with (folder / "own.jsonl").open("w", encoding="utf-8") as file:
        for number, (text, label) in enumerate(data.labelled_sentences(120)):
            own = {name: values[number % 3] for name, values in USER_VALUES.items()}
            file.write(json.dumps({"body": text, "queue": label, **own}) + "\n")
    options = TRAINING | dict(dataset=str(folder / "own.jsonl"), model=str(bert), max_steps=1)
    options |= dict(text_column="body", label_column="queue", baseline=False)
    return finetune.train("text", output_dir=str(folder / "run"), **options)


def place_of(text: str) -> int:
    """Return the index of the value of a row, which follows from its text."""
    return [text for text, _ in data.labelled_sentences(120)].index(text) % 3


@pytest.mark.contract("E8")
@pytest.mark.parametrize("column", USER_VALUES)
def test_columns_of_the_user_keep_their_values(own_columns_run: finetune.Run, column: str) -> None:
    """They do under any name, also long integers with missing ones, and nested values."""
    expected = IN_PARQUET.get(column, USER_VALUES[column])
    path = own_columns_run.path / "predictions.parquet"
    rows = pq.read_table(path).to_pylist()
    texts = "model_model_text"  # the data has `text` and `model_text`
    assert [row[column] for row in rows] == [expected[place_of(row[texts])] for row in rows]
    frame = pd.read_parquet(path)
    if column in ("id", "votes"):
        values = frame[column].astype(object).where(frame[column].notna(), None)
        assert values.tolist() == [row[column] for row in rows]
    suspects = pd.read_csv(own_columns_run.path / "suspects.csv", dtype=str, keep_default_na=False)
    assert len(suspects) > 5
    for row in suspects.to_dict("records"):
        value = expected[place_of(row[texts])]
        cell = json.dumps(value) if isinstance(value, list) else value
        assert row[column] == ("" if cell is None else str(cell))


@pytest.mark.contract("C7", "E8")
@pytest.mark.parametrize("column", ["text", "label"])
def test_groups_of_a_column_called_like_one_of_the_toolkit(
    bert: Path, tmp_path: Path, column: str
) -> None:
    """No group is in two splits."""
    sentences = data.labelled_sentences(240)
    rows = [(text, label, f"group {n // 12}") for n, (text, label) in enumerate(sentences)]
    path = data.write_csv(tmp_path / "groups.csv", ["body", "queue", column], rows)
    options = dict(dataset=str(path), text_column="body", label_column="queue", model=str(bert))
    splits = finetune.TextRecipe(**options, group_column=column).splits
    group_of = {text: group for text, _, group in rows}
    groups = [{group_of[text] for text in part["text"]} for part in splits.values()]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 20


@pytest.mark.contract("E8")
def test_columns_of_the_user_keep_their_types(bert: Path, tmp_path: Path) -> None:
    """They have the types of Arrow; bytes are not written to `suspects.csv`."""
    texts, labels = zip(*data.labelled_sentences(120), strict=True)
    own = {
        "unsigned": pa.array([2**64 - 1, None] * 60, pa.uint64()),
        "small": pa.array([1, None] * 60, pa.int8()),
        "place": pa.array([{"x": 1}, None] * 60, pa.struct([("x", pa.int16())])),
        "day": pa.array([1, None] * 60, pa.date32()),
        "price": pa.array([None, 1] * 60, pa.decimal128(12, 2)),
        "file": pa.array([b"\xff", None] * 60, pa.binary()),
        "pieces": pa.array([["a"], None] * 60, pa.list_(pa.string())),
    }
    keyless = pa.array([{}, None] * 60, pa.struct([]))
    source = pa.table({"text": texts, "label": labels, "keyless": keyless, **own})
    options = TRAINING | dict(dataset=source, model=str(bert), max_steps=1, baseline=False)
    run = finetune.train("text", output_dir=str(tmp_path / "run"), **options)
    written = pq.read_table(run.path / "predictions.parquet")
    rows = pa.array([texts.index(text) for text in written.column("text").to_pylist()])
    for name in own:
        assert (
            written.column(name).combine_chunks() == source.column(name).take(rows).combine_chunks()
        )
    assert {*written.column("keyless").to_pylist()} == {"{}", None}  # Parquet has no such type
    suspects = pd.read_csv(run.path / "suspects.csv", dtype=str)
    assert "file" not in suspects
    assert {*suspects["unsigned"].dropna()} == {str(2**64 - 1)}
    assert {*suspects["place"].dropna()} == {'{"x": 1}'}


@pytest.mark.contract("E8", "E2")
def test_columns_of_the_toolkit_are_prefixed_where_the_data_has_their_names(
    own_columns_run: finetune.Run,
) -> None:
    """The verbs read these, not the data's columns of the same names."""
    run = own_columns_run
    table = pd.read_parquet(run.path / "predictions.parquet")
    assert "a.jpg" not in finetune.report(run).page.read_text(encoding="utf-8")
    comparison = finetune.compare([run, run])
    assert comparison.tables[0]["text"].tolist() == table["model_model_text"].tolist()
    assert {*comparison.tables[0]["label"]} == {"bad", "good"}
    assert {*table["model_prediction"]} <= {*table["model_label"]} == {"bad", "good"}
    accuracy = (table["model_prediction"] == table["model_label"]).mean()
    assert run.metrics.test["accuracy"] == pytest.approx(accuracy)
    assert run.statistics.metrics["accuracy"]["value"] == pytest.approx(accuracy)
    assert finetune.evaluate(run).metrics["accuracy"] == pytest.approx(accuracy)
    assert table["model_tokens"].gt(0).all()
    listed = pd.read_csv(run.path / "suspects.csv", dtype=str).set_index("model_model_text")
    predicted = table.set_index("model_model_text")["model_prediction"]
    assert listed["suggested"].tolist() == predicted[listed.index].tolist()
