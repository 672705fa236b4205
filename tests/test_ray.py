"""Test the Ray section of docs/launchers.md, on a local Ray with two workers."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

import finetune
from tests.acceptance import data
from tests.conftest import HANGS, ROOT, Command

pytest.importorskip("ray", reason="needs Ray: pip install '.[ray]'")
pytestmark = [pytest.mark.slow, pytest.mark.contract("H5")]
PAGE = (ROOT / "docs" / "launchers.md").read_text(encoding="utf-8")
TRAIN, PREDICT = re.findall(r"^    python (examples/ray_.*)$", PAGE, re.M)
(BLOCK,) = [code for code in re.findall(r"```python\n(.*?)```", PAGE, re.S) if "ray" in code]
#: Runs a script in a new Ray with three cores, of which Ray Data keeps one.
START = """import ray, runpy, sys
ray.init(num_cpus=3, include_dashboard=False)
runpy.run_path(sys.argv.pop(1), {}, "__main__")"""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """Options of a training that has the same numbers in any number of processes."""
    data.write_reviews(tmp_path / "reviews.csv")
    data.write_bert(tmp_path / "bert")
    sources = dict(dataset=str(tmp_path / "reviews.csv"), model=str(tmp_path / "bert"))
    return sources | dict(precision="fp32", optim="sgd", learning_rate=0.1, num_train_epochs=2)


def run(command: str, places: dict[str, str], status: int = 0) -> str:
    """Run a script with its words, of which those in `places` are replaced."""
    script, *typed = [word for old in command.split() for word in places.get(old, old).split()]
    words = [sys.executable, "-c", START, str(ROOT / script), *typed]
    environment = os.environ | QUIET
    process = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=HANGS)
    assert process.returncode == status, process.stdout + process.stderr
    return process.stdout + process.stderr


def test_workers_train_as_torchrun(
    options: dict[str, Any], command: Command, tmp_path: Path
) -> None:
    flags = " ".join(f"--{name} {value}" for name, value in options.items())
    words = ["text", *flags.split(), "--output_dir", tmp_path / "torchrun"]
    assert command(*words, launcher="torchrun").returncode == 0
    one = finetune.train("text", **options, output_dir=str(tmp_path / "one"))
    places = {"sentiment": "text", "--embedded": flags}
    printed = run(TRAIN, places | {"/shared/runs/sentiment": str(tmp_path / "trainer")})
    metrics = ast.literal_eval(re.findall(r"^\{'test_loss.*\}$", printed, re.M)[0])
    chosen = f"options = {options | dict(output_dir=str(tmp_path / 'run'), resume=True)}"
    block = re.sub("(?m)^options = .*", lambda _: chosen, BLOCK.replace("sentiment", "text"))
    (tmp_path / "block.py").write_text(block)
    run(str(tmp_path / "block.py"), {})
    of_torchrun, of_ray = (finetune.Run.load(tmp_path / name) for name in ("torchrun", "run"))
    assert of_torchrun.manifest.launch.world_size == of_ray.manifest.launch.world_size == 2
    for name, value in of_torchrun.metrics.test.items():
        assert metrics[f"test_{name}"] == of_ray.metrics.test[name] == value
        assert value == pytest.approx(one.metrics.test[name], abs=1e-6)
    names = ("torchrun", "trainer", "run", "one")
    first, trainer, ray, alone = [load_file(tmp_path / f"{n}/model.safetensors") for n in names]
    for key, value in first.items():
        np.testing.assert_array_equal(trainer[key], value)
        np.testing.assert_array_equal(ray[key], value)
        np.testing.assert_allclose(alone[key], value, rtol=1e-5, atol=1e-6)


def test_workers_predict_as_one_process(options: dict[str, Any], tmp_path: Path) -> None:
    """Files with a missing text, with none, and without a row; the data has a column `label`."""
    trained = finetune.train("text", **options, output_dir=str(tmp_path / "one"))
    texts = [*pd.read_csv(options["dataset"])["text"]] * 15
    texts[7], texts[1024:2048] = None, [None] * 1024
    rows = pa.table({"id": range(3600), "text": texts, "label": [["a"], None] * 1800})
    (tmp_path / "rows").mkdir()
    for number, part in enumerate([rows[:1200], rows[:0], rows[1200:3000], rows[3000:]]):
        pq.write_table(part, tmp_path / "rows" / f"{number}.parquet")
    places = {"reviews/": f"{tmp_path}/rows", "predicted/": f"{tmp_path}/out --rows 1024"}
    places["/shared/runs/yelp/export"] = str(finetune.export(trained).path)
    run(PREDICT, places | {"8": "2"})
    tables = [pq.read_table(file) for file in sorted((tmp_path / "out").iterdir())]
    assert [len(table) for table in tables] == [1024, 1024, 1024, 528]
    assert len({str(table.schema.remove_metadata()) for table in tables}) == 1
    answers = pa.concat_tables(tables)
    assert answers.select(rows.column_names).to_pylist() == rows.to_pylist()
    expected = finetune.predict(trained, texts, engine="onnxruntime", precision="fp32")
    labels = answers["predicted label"].to_pandas().fillna("")
    assert labels.tolist() == expected["label"].fillna("").tolist()
    np.testing.assert_allclose(answers["probability"], expected["probability"], 1e-6)
    assert "expected fewer than 3" in run(PREDICT, places | {"8": "3"}, status=2)


def test_workers_predict_entities(tmp_path: Path) -> None:
    """Of texts, or of lists of words; a file without a text has the types of the others."""
    dataset = data.write_conll(tmp_path / "rows.conll")
    data.write_bert(tmp_path / "bert")
    options: dict[str, Any] = dict(dataset=str(dataset), model=str(tmp_path / "bert"))
    options |= dict(precision="fp32", learning_rate=3e-3, num_train_epochs=4, global_batch_size=16)
    trained = finetune.train("tokens", **options, output_dir=str(tmp_path / "one"))
    words: list[Any] = [words for words, _ in data.entity_sentences(60)]
    words[30:40] = [None] * 10
    rows = pa.table({"id": range(60), "tokens": words})
    (tmp_path / "rows").mkdir()
    for number, part in enumerate([rows[:30], rows[30:40], rows[40:]]):
        pq.write_table(part, tmp_path / "rows" / f"{number}.parquet")
    places = {"reviews/": f"{tmp_path}/rows", "predicted/": f"{tmp_path}/out --rows 20"}
    places["/shared/runs/yelp/export"] = str(finetune.export(trained).path)
    run(PREDICT, places | {"8": "2"})
    tables = [pq.read_table(file) for file in sorted((tmp_path / "out").iterdir())]
    assert len({str(table.schema.remove_metadata()) for table in tables}) == 1
    answers = pa.concat_tables(tables)
    assert answers.select(rows.column_names).to_pylist() == rows.to_pylist()
    expected = finetune.predict(trained, rows.to_pandas(), engine="onnxruntime", precision="fp32")
    cells = [None if cell is None else list(cell) for cell in expected["entities"]]
    entities = answers["entities"].to_pylist()
    assert [cell is None for cell in entities] == [cell is None for cell in words]
    for cell, other in zip(entities, cells, strict=True):
        places_of = [
            [(span["start"], span["end"], span["label"]) for span in part or ()]
            for part in (cell, other)
        ]
        assert places_of[0] == places_of[1]
    assert sum(map(len, filter(None, entities))) > 50
