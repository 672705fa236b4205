"""Runs of two trees are compared bit by bit, and whatever is altered in one of them is seen."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file

from benchmarks.run_differences import (
    Arrays,
    compare,
    read_interval_ends,
    read_logits,
    read_losses,
    read_table,
    read_weights,
)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs that are the same."""
    old = tmp_path / "old"
    old.mkdir()
    history = [
        {"step": 1, "loss": 0.7, "rows_per_second": 31.0, "memory_mib": 900.0},
        {"step": 1, "eval_loss": 0.6, "eval_runtime": 2.3},
    ]
    (old / "run.json").write_text(json.dumps({"history": history}), encoding="utf-8")
    accuracy = {"value": 0.5, "low": 0.25, "high": 0.75}
    metrics = {"test": {"loss": 0.6}, "statistics": {"metrics": {"accuracy": accuracy}}}
    (old / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    weights = {"head": np.arange(6, dtype=np.float32).reshape(2, 3)}
    save_file(weights, old / "model.safetensors")
    table = pd.DataFrame({"text": ["good", "bad"], "probability of bad": [0.25, 0.9]})
    table["probability of good"] = 1 - table["probability of bad"]
    table.to_parquet(old / "predictions.parquet")
    return old, shutil.copytree(old, tmp_path / "new")


def everything(run: Path) -> dict[str, Arrays]:
    return {
        "losses": read_losses(run),
        "weights": read_weights(run),
        "predictions": read_table(run / "predictions.parquet"),
        "interval ends": read_interval_ends(run),
    }


def altered(runs: tuple[Path, Path]) -> set[str]:
    """Which parts of the two runs are not the same."""
    old, new = map(everything, runs)
    return {part for part in old if not compare(old[part], new[part]).identical}


def test_speed_is_no_part_of_the_losses(runs: tuple[Path, Path]) -> None:
    assert read_losses(runs[0]) == {"loss at step 1": [0.7], "eval_loss at step 1": [0.6]}


def test_the_same_runs_have_the_same_bits(runs: tuple[Path, Path]) -> None:
    assert altered(runs) == set()


def test_one_bit_of_one_weight_is_seen(runs: tuple[Path, Path]) -> None:
    weights = load_file(runs[1] / "model.safetensors")
    weights["head"][1, 2] = np.nextafter(weights["head"][1, 2], np.float32(9))
    save_file(weights, runs[1] / "model.safetensors")
    assert altered(runs) == {"weights"}
    found = compare(*map(read_weights, runs))
    assert (found.place, found.old, found.new) == ("head", 5, weights["head"][1, 2])
    assert 0 < found.largest < 1e-6


def test_a_zero_of_another_sign_has_other_bits_and_is_as_large(runs: tuple[Path, Path]) -> None:
    found = compare({"a": np.array([0.0])}, {"a": np.array([-0.0])})
    assert not found.identical
    assert found.largest == 0


@pytest.mark.parametrize(
    ("file", "before", "after", "part"),
    [
        ("run.json", '"loss": 0.7', '"loss": 0.7000000000000001', "losses"),
        ("run.json", '"eval_loss"', '"eval_lost"', "losses"),
        ("metrics.json", '"high": 0.75', '"high": 0.76', "interval ends"),
        ("metrics.json", '"high"', '"upper"', "interval ends"),
    ],
)
def test_a_number_that_is_another_or_missing_is_seen(
    runs: tuple[Path, Path], file: str, before: str, after: str, part: str
) -> None:
    text = (runs[1] / file).read_text(encoding="utf-8")
    assert text.count(before) == 1
    (runs[1] / file).write_text(text.replace(before, after), encoding="utf-8")
    assert altered(runs) == {part}


def test_what_only_the_new_run_has_is_no_difference(runs: tuple[Path, Path]) -> None:
    table = pd.read_parquet(runs[1] / "predictions.parquet").assign(language="en")
    table.to_parquet(runs[1] / "predictions.parquet")
    assert altered(runs) == set()


@pytest.mark.parametrize(
    "other",
    [{}, {"a": np.zeros(3)}, {"a": np.array([1.0, np.nan])}, {"a": np.array(["1", "2"], object)}],
    ids=["missing", "of another shape", "not a number", "text"],
)
def test_what_cannot_be_subtracted_differs_without_bound(other: Arrays) -> None:
    found = compare({"a": np.array([1.0, 2.0])}, other)
    assert found.largest == np.inf
    assert not found.identical


def test_nothing_is_not_the_same_as_nothing() -> None:
    with pytest.raises(ValueError, match="nothing to compare"):
        compare({}, {})
    with pytest.raises(ValueError, match="nothing to compare"):
        compare({"a": np.zeros(0)}, {"a": np.zeros(0)})


def test_logits_are_those_of_the_probabilities_but_for_their_mean(runs: tuple[Path, Path]) -> None:
    logits = read_logits(runs[0] / "predictions.parquet")["logits"]
    np.testing.assert_allclose(logits.mean(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose(logits[:, 0] - logits[:, 1], np.log([0.25 / 0.75, 0.9 / 0.1]))
