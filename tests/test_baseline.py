"""The baselines: what they predict, and what happens where they cannot be fitted."""

import numpy as np

from finetune.statistics.baseline import bag_of_words, majority


def test_majority_is_the_most_frequent_class_of_training() -> None:
    assert majority([2, 0, 2, 1], 3).tolist() == [2, 2, 2]


def test_bag_of_words_learns_words() -> None:
    train = [f"place {number} was {('dull', 'lovely')[number % 2]}" for number in range(40)]
    fitted = bag_of_words(train, [number % 2 for number in range(40)], ["lovely", "dull"], seed=0)
    assert fitted is not None
    predicted, rows = fitted
    assert predicted.tolist() == [1, 0]
    assert rows == 40


def test_bag_of_words_of_a_large_set_is_fitted_on_a_share() -> None:
    train = [f"{('dull', 'lovely')[number % 2]} thing" for number in range(100)]
    fitted = bag_of_words(train, np.arange(100) % 2, ["lovely"], seed=0, most_rows=30)
    assert fitted is not None
    assert fitted[1] == 30


def test_texts_without_words_have_no_bag_of_words() -> None:
    assert bag_of_words(["A C G T", "T G C A"], [0, 1], ["A A"], seed=0) is None
