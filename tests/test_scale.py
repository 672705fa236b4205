"""Many rows and many classes: what is computed block by block is what it is as a whole."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax

import finetune
from finetune import Run, UserError
from finetune.config.settings import Settings
from finetune.pipeline import preparation, provenance
from finetune.pipeline.compare import compare
from finetune.runtime import lock
from finetune.statistics import scored
from tests.runs import write_run

MANY = tuple(f"class {number}" for number in range(60))


def logits_of(rows: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits with ties, float32, and labels of which the last class has none."""
    generator = np.random.default_rng(rows)
    labels = generator.integers(classes - 1, size=rows)
    logits = generator.normal(size=(rows, classes)).round(1)
    logits[np.arange(rows), labels] += 1
    logits[:9] = logits[0]
    return logits.astype(np.float32), labels


# ---- a run of many classes -----------------------------------------------------------------------


def test_what_is_kept_has_the_same_most_probable_class() -> None:
    logits, _ = logits_of(200, 60)
    logits[0, :2] = [20.0, 20.0 + 2e-6]
    logits[0, 2:] = -90_000.0
    found = scored.to_float16(logits)
    np.testing.assert_array_equal(found.argmax(axis=1), logits.argmax(axis=1))
    np.testing.assert_array_equal(found == 0, logits == logits.max(axis=1, keepdims=True))
    np.testing.assert_array_equal(scored.to_float16(found), found)
    logits[0, 0], logits[1, 1], logits[2, 2] = np.nan, np.inf, -np.inf
    assert (~np.isfinite(scored.to_float16(logits)).all(axis=1)).nonzero()[0].tolist() == [0, 1, 2]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_run(tmp_path_factory.mktemp("many"), rows=300, names=MANY, skill=3.0)


def test_a_run_of_many_classes_has_the_most_probable_and_logits_beside(many: Run) -> None:
    table, logits = many.predictions, np.load(many.path / "logits.npy")
    assert (logits.dtype, logits.shape) == (np.float16, (300, 60))
    assert "probability of class 1" not in table
    rows = many.scored(table)
    probabilities = softmax(logits.astype(np.float64), axis=1)
    best = np.argsort(-probabilities, axis=1, kind="stable")[:, :5]
    for place, suffix in enumerate(["", "_2", "_3", "_4", "_5"]):
        found = table[f"probability{suffix}"]
        np.testing.assert_allclose(found, probabilities[np.arange(300), best[:, place]])
        assert table[f"prediction{suffix}"].tolist() == [MANY[each] for each in best[:, place]]
    np.testing.assert_allclose(table["label_probability"], rows.summary.of_label)
    written = many.statistics
    assert written.metrics["accuracy"]["value"] == (table.label == table.prediction).mean()
    metrics = dataclasses.replace(many.metrics, statistics=None)
    metrics.write(many.path)
    finetune.report(many)  # from the files alone
    assert many.statistics.metrics == written.metrics
    assert many.statistics.classes == written.classes
    same = compare([many, many])
    assert {each["value"] for each in same.differences[0].values()} == {0.0}
    assert not len(same.disagreements)


def test_a_run_without_its_logits_says_so(many: Run, tmp_path: Path) -> None:
    other = write_run(tmp_path / "run", rows=300, names=MANY, seed=5)
    (other.path / "logits.npy").write_bytes((many.path / "logits.npy").read_bytes())
    with pytest.raises(UserError, match=r"logits.npy is not that of predictions.parquet: "):
        compare([many, other])
    (other.path / "logits.npy").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"logits.npy is damaged: "):
        finetune.report(other)
    np.save(other.path / "logits.npy", np.zeros((300, 59), dtype=np.float16))
    with pytest.raises(UserError, match=r"expected logits of shape \(300, 60\), found float16"):
        finetune.report(other)
    (other.path / "logits.npy").unlink()
    with pytest.raises(UserError, match=r"logits.npy is missing"):
        finetune.report(other)


def test_a_run_of_an_older_release_has_every_column(many: Run, tmp_path: Path) -> None:
    older = write_run(tmp_path / "older", rows=300, names=MANY, skill=3.0)
    logits, table = np.load(older.path / "logits.npy"), older.predictions
    probabilities = softmax(logits.astype(np.float64), axis=1)
    columns = {f"probability of {name}": probabilities[:, n] for n, name in enumerate(MANY)}
    whole = pd.concat([table[["id", "text", "label", "prediction"]], pd.DataFrame(columns)], axis=1)
    whole.to_parquet(older.path / "predictions.parquet")
    (older.path / "logits.npy").unlink()
    finetune.report(older)
    found = compare([many, older])
    assert found.differences[0]["accuracy"]["value"] == 0
    assert not len(found.disagreements)


def test_classes_in_another_order_are_compared_by_name(many: Run, tmp_path: Path) -> None:
    other = write_run(tmp_path / "run", rows=300, names=MANY, skill=3.0)
    logits, order = np.load(other.path / "logits.npy"), np.roll(np.arange(60), 7)
    np.save(other.path / "logits.npy", logits[:, order])
    other.update(labels=[MANY[each] for each in order])
    assert compare([many, other]).differences[0]["log_loss"]["value"] == 0


def test_the_report_shows_the_worst_of_very_many_classes(tmp_path: Path) -> None:
    names = tuple(f"class {number}" for number in range(230))
    run = write_run(tmp_path, rows=500, names=names, skill=4.0)
    assert run.statistics.classes is not None
    assert list(run.statistics.classes) == list(names)
    finetune.report(run)
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "Scores of the 50 classes with the lowest F1" in page
    assert '<a href="metrics.json">' in page
    assert "The most frequent confusions" in page


# ---- the log, and predict ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "steps"),
    [({"max_steps": 5001}, 1 / 500), ({"max_steps": 5000}, 10),
     ({"max_steps": 5001, "logging_steps": 7}, 7)],
)  # fmt: skip
def test_the_loss_of_a_long_run_is_logged_at_shares_of_it(
    options: dict[str, Any], steps: float, reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    given = {
        "dataset": str(reviews),
        "model": tiny_model,
        "output_dir": str(tmp_path / "run"),
        **options,
    }
    prepared = preparation.prepare(Settings.from_keywords("text", given)).settings
    lock.release(prepared.output_dir)
    assert {"logging_steps": 10, **prepared.training}["logging_steps"] == steps


def test_the_history_of_a_long_run_is_thinned() -> None:
    history: list[dict[str, Any]] = [{"step": step, "loss": 1.0} for step in range(1, 8001)]
    history.insert(4000, {"step": 4000, "eval_loss": 1.0})
    history.append({"step": 8000, "train_runtime": 1.0})
    found = provenance.thinned(history)
    assert len([each for each in found if "loss" in each]) <= 1001
    assert [each for each in found if "loss" not in each] == [history[4000], history[-1]]
    assert found[-2]["step"] == 8000
    assert provenance.thinned(history[:900]) == history[:900]
    assert len(json.dumps(found)) < 100_000
