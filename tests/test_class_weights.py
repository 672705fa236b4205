"""Weights of classes: how they are written, and what they are."""

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

from finetune import UserError
from finetune.tasks import losses as weights

NAMES = ["bad", "fair", "good"]
LABELS = np.array([0] * 2 + [1] * 6 + [2] * 16)


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    found = weights.class_weights("balanced", NAMES, LABELS)
    expected = compute_class_weight("balanced", classes=np.arange(3), y=LABELS)
    np.testing.assert_allclose(found, expected, rtol=1e-15)
    assert found[LABELS].mean() == pytest.approx(1)


def test_named_weights_keep_their_ratios_and_are_1_on_average() -> None:
    found = weights.class_weights("bad=9, good=0.5", NAMES, LABELS)
    np.testing.assert_allclose(found / found[1], [9, 1, 0.5])
    assert found[LABELS].mean() == pytest.approx(1)


def test_positive_weights_are_the_negatives_for_each_positive() -> None:
    targets = np.array([[1, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]], dtype=np.float32)
    np.testing.assert_allclose(weights.class_weights("balanced", NAMES, targets), [3, 1, 1])
    np.testing.assert_allclose(weights.class_weights("bad=2.5", NAMES, targets), [2.5, 1, 1])


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("balance", ["balance: no class 'balance'; did you mean 'balanced'?"]),
        ("bda=2,nice=3", ["bda=2: no class 'bda'; did you mean 'bad'?", "nice=3: no class 'nice'"]),
        ("bad=2,bad=3", ["bad=3: expected one weight from 1e-06 to 1000000 of 'bad'"]),
        *(
            (f"bad={weight}", [f"bad={weight}: expected one weight from 1e-06 to 1000000 of 'bad'"])
            for weight in ("0", "nan", "much", "1e60", "1e-300")  # float32 cannot hold the last
        ),
    ],
)
def test_what_is_no_weight_is_refused(text: str, problems: list[str]) -> None:
    expected = "(expected balanced, none or NAME=WEIGHT,NAME=WEIGHT with 'bad', 'fair', 'good')"
    with pytest.raises(UserError) as error:
        weights.class_weights(text, NAMES, LABELS)
    mistakes = [f"--class_weights {problem} {expected}" for problem in problems]
    assert list(error.value.mistakes) == mistakes


def test_a_weight_without_effect_is_refused() -> None:
    with pytest.raises(UserError, match="no training row is of the class 'new'"):
        weights.class_weights("new=3", [*NAMES, "new"], LABELS)
