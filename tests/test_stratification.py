"""Rows of several labels split off so that each label keeps its share, and none leaves training."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from finetune import TextClassification
from finetune.data import stratification, targets

RARE = {"one": 1, "two": 2, "three": 3, "five": 5, "many": 200}


class Texts(TextClassification):
    """Of a file."""

    dataset: str = ""


@pytest.mark.parametrize("seed", range(5))
def test_labels_of_two_rows_or_more_stay_in_training(tmp_path: Path, seed: int) -> None:
    labels: list[list[str]] = [[] for _ in range(400)]
    generator = np.random.default_rng(seed)
    for name, count in RARE.items():
        if count > 1:
            for row in generator.choice(400, count, replace=False):
                labels[row].append(name)
    frame = pd.DataFrame({"text": [f"text {row}" for row in range(400)], "label": labels})
    frame.to_json(path := tmp_path / "rows.jsonl", orient="records", lines=True)
    splits = Texts(dataset=str(path), split_seed=seed).splits
    names = targets.class_names(splits["train"])
    train, test = (targets.strata(splits[name]) for name in ("train", "test"))
    assert train.any(axis=0).all()
    assert abs(test[:, names.index("many")].sum() - 40) <= 2
    bare = [each.any(axis=1) for each in (train, test)]
    assert abs((~bare[1]).mean() - (~bare[0]).mean()) < 0.05  # rows without labels


def test_labels_that_every_row_or_no_row_has() -> None:
    has = np.zeros((50, 3), dtype=bool)
    has[:, 0] = True
    has[::5, 1] = True
    drawn = stratification.iterative(has, 10, seed=0)
    assert len(drawn) == 10
    assert has[drawn].sum(axis=0).tolist() == [10, 2, 0]


def test_rows_without_any_label() -> None:
    assert len(stratification.iterative(np.zeros((30, 4), dtype=bool), 7, seed=0)) == 7


def test_three_hundred_labels_keep_their_shares_better_than_by_lot() -> None:
    generator = np.random.default_rng(0)
    has = generator.random((3000, 300)) < 0.02
    drawn = stratification.iterative(has, 600, seed=0)
    lots = generator.permutation(3000)[:600]
    gaps = [np.abs(has[each].sum(axis=0) - 0.2 * has.sum(axis=0)).mean() for each in (drawn, lots)]
    assert gaps[0] < gaps[1]  # 1.5 rows on average, and 2.5
