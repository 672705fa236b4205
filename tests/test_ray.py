"""Test the examples and the docs about Ray, on a local Ray with two workers."""

import ast
import os
import re
import shlex
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
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """Options of a training that has the same numbers in any number of processes."""
    data.write_reviews(tmp_path / "reviews.csv")
    data.write_bert(tmp_path / "bert")
    sources = dict(dataset=str(tmp_path / "reviews.csv"), model=str(tmp_path / "bert"))
    return sources | dict(precision="fp32", optim="sgd", learning_rate=0.1, num_train_epochs=2)


def run(code: str, *words: str, status: int = 0) -> str:
    """Run code in a new Ray with three cores, of which Ray Data keeps one; return its output."""
    start = "import ray, runpy, sys; ray.init(num_cpus=3, include_dashboard=False)\n"
    words = (sys.executable, "-c", start + code, *words)
    environment = os.environ | QUIET
    process = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=HANGS)
    assert process.returncode == status, process.stdout + process.stderr
    return process.stdout + process.stderr


def run_example(name: str, places: dict[str, Any], *words: str, status: int = 0) -> str:
    """Run the command of the page that starts an example, with other words."""
    (line,) = re.findall(rf"^    python examples/{name}.py (.*)$", PAGE, re.M)
    typed = [str(places.get(word, word)) for word in shlex.split(line)]
    code = (
        f"sys.argv.pop(0); runpy.run_path({str(ROOT / f'examples/{name}.py')!r}, {{}}, '__main__')"
    )
    return run(code, name, *filter(None, typed), *words, status=status)


def test_workers_train_the_weights_of_torchrun(
    options: dict[str, Any], command: Command, tmp_path: Path
) -> None:
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    result = command("text", *flags, "--output_dir", tmp_path / "torchrun", launcher="torchrun")
    assert result.returncode == 0, result.stderr
    one = finetune.train("text", **options, output_dir=str(tmp_path / "one"))
    places = {"sentiment": "text", "--embedded": "", "/shared/runs/sentiment": tmp_path / "trainer"}
    printed = run_example("ray_train", places, *flags)
    metrics = ast.literal_eval(re.findall(r"^\{'test_loss.*\}$", printed, re.M)[0])
    (block,) = [code for code in re.findall(r"```python\n(.*?)```", PAGE, re.S) if "ray" in code]
    chosen = options | dict(output_dir=str(tmp_path / "run"), resume=True)
    block = re.sub(r"(?m)^options = .*", lambda _: f"options = {chosen!r}", block)
    run(block.replace("sentiment", "text"))
    of_torchrun, of_ray = (finetune.Run.load(tmp_path / name) for name in ("torchrun", "run"))
    assert of_torchrun.manifest.launch.world_size == of_ray.manifest.launch.world_size == 2
    for name, value in of_torchrun.metrics.test.items():
        assert metrics[f"test_{name}"] == of_ray.metrics.test[name] == value
        assert value == pytest.approx(one.metrics.test[name], abs=1e-6)
    names = ("torchrun", "trainer", "run", "one")
    weights, *others, of_one = [load_file(tmp_path / f"{name}/model.safetensors") for name in names]
    for key, value in weights.items():
        for other in others:
            np.testing.assert_array_equal(other[key], value)
        np.testing.assert_allclose(of_one[key], value, rtol=1e-5, atol=1e-6)


def test_workers_predict_as_one_process(options: dict[str, Any], tmp_path: Path) -> None:
    """Files with a missing text, with none, and without a row; the data has a column `label`."""
    trained = finetune.train("text", **options, output_dir=str(tmp_path / "one"))
    texts = [*pd.read_csv(options["dataset"])["text"]] * 15
    texts[7], texts[1024:2048] = None, [None] * 1024
    rows = pa.table({"id": range(3600), "text": texts, "label": [["a"], None] * 1800})
    (tmp_path / "rows").mkdir()
    for number, part in enumerate([rows[:1200], rows[:0], rows[1200:3000], rows[3000:]]):
        pq.write_table(part, tmp_path / "rows" / f"{number}.parquet")
    places = {"reviews/": tmp_path / "rows", "predicted/": tmp_path / "out", "8": 2}
    places["/shared/runs/yelp/export"] = finetune.export(trained).path
    run_example("ray_predict", places, "--rows", "1024")
    tables = [pq.read_table(file) for file in sorted((tmp_path / "out").iterdir())]
    assert [len(table) for table in tables] == [1024, 1024, 1024, 528]
    assert len({str(table.schema.remove_metadata()) for table in tables}) == 1
    answers = pa.concat_tables(tables).to_pandas()
    assert pa.Table.from_pandas(answers[rows.column_names]).to_pylist() == rows.to_pylist()
    expected = finetune.predict(trained, texts, engine="onnxruntime", precision="fp32")
    present = [text is not None for text in texts]
    assert answers["predicted label"].notna().tolist() == present
    assert answers["predicted label"][present].equals(expected["label"][present])
    np.testing.assert_allclose(
        answers["probability"][present], expected["probability"][present], 1e-6
    )
    assert "expected fewer than 3" in run_example("ray_predict", places | {"8": 3}, status=2)
