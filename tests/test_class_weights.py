"""Weights of classes: how they are written, and the loss of a step as torch has it."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from finetune import UserError
from finetune.tasks import losses, weights
from finetune.training.loss import GlobalLoss

ROWS, CLASSES = 24, 5
NAMES = ["bad", "fair", "good"]
LABELS = np.array([0] * 2 + [1] * 6 + [2] * 16)


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(ROWS, CLASSES, generator=generator)
    return logits, torch.randint(CLASSES, (ROWS,), generator=generator)


# ---- the option ----------------------------------------------------------------------------------


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    found = weights.of_classes("balanced", NAMES, LABELS)
    expected = compute_class_weight("balanced", classes=np.arange(3), y=LABELS)
    np.testing.assert_allclose(found, expected, rtol=1e-15)
    assert found is not None
    assert found[LABELS].mean() == pytest.approx(1)


def test_a_class_that_does_not_occur_changes_no_balanced_weight() -> None:
    found = weights.of_classes("balanced", [*NAMES, "none"], LABELS)
    assert found is not None
    np.testing.assert_array_equal(found[:3], weights.of_classes("balanced", NAMES, LABELS))
    assert found[3] == 1


def test_named_weights_keep_their_ratios_and_are_1_on_average() -> None:
    found = weights.of_classes("bad=9, good=0.5", NAMES, LABELS)
    assert found is not None
    np.testing.assert_allclose(found / found[1], [9, 1, 0.5])
    assert found[LABELS].mean() == pytest.approx(1)


def test_names_may_hold_an_equals_sign() -> None:
    found = weights.of_classes("a=b=4", ["a=b", "c"], np.array([0, 1]))
    assert found is not None
    np.testing.assert_allclose(found, [1.6, 0.4])


def test_positive_weights_are_the_negatives_for_each_positive() -> None:
    targets = np.array([[1, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]], dtype=np.float32)
    np.testing.assert_allclose(weights.of_positives("balanced", NAMES, targets), [3, 1, 1])
    np.testing.assert_allclose(weights.of_positives("bad=2.5", NAMES, targets), [2.5, 1, 1])


def test_none_are_no_weights() -> None:
    assert weights.of_classes("none", NAMES, LABELS) is None
    assert weights.of_positives("none", NAMES, np.ones((4, 3))) is None


HOW = "expected balanced, none or NAME=WEIGHT,NAME=WEIGHT, found"


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("balance", [f"--class_weights balance: {HOW} 'balance'; did you mean 'balanced'?"]),
        ("bad=2,", [f"--class_weights bad=2,: {HOW} ''"]),
        ("bad", [f"--class_weights bad: {HOW} 'bad'"]),
        (
            "balanced,bad=2",
            ["--class_weights balanced,bad=2: 'balanced' stands alone or is left out"],
        ),
        ("=2", [f"--class_weights =2: {HOW} '=2'"]),
        (
            "bda=2,nice=3",
            [
                "--class_weights: there is no class 'bda'; did you mean 'bad'? "
                "(classes: 'bad', 'fair', 'good')",
                "--class_weights: there is no class 'nice' (classes: 'bad', 'fair', 'good')",
            ],
        ),
        ("bad=2,bad=3", ["--class_weights: 'bad' is given two weights"]),
        *(
            (
                f"bad={each}",
                [f"--class_weights bad={each}: expected a finite weight above 0, found '{each}'"],
            )
            for each in ("-1", "0", "nan", "inf", "much", "1e400")
        ),
    ],
)
def test_what_is_no_weight_is_refused(text: str, messages: list[str]) -> None:
    with pytest.raises(UserError) as error:
        weights.of_classes(text, NAMES, LABELS)
    assert list(error.value.mistakes) == messages


@pytest.mark.parametrize("text", ["bad=1e308", "bad=1e300,good=1e-300", "bad=1e60"])
def test_weights_that_float32_cannot_hold_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="too far apart or too large for float32"):
        weights.of_classes(text, NAMES, LABELS)


def test_weights_of_labels_that_float32_cannot_hold_are_refused() -> None:
    with pytest.raises(UserError, match="--class_weights a=1e39: too far apart or too large"):
        weights.of_positives("a=1e39", ["a", "b"], np.eye(2))


def test_a_weight_without_effect_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"^--class_weights: no training row is of the class 'new'$"
    ):
        weights.of_classes("new=3", [*NAMES, "new"], LABELS)


def test_the_note_names_the_weights_of_up_to_twelve_classes() -> None:
    found = weights.of_classes("balanced", NAMES, LABELS)
    assert found is not None
    assert weights.note("balanced", NAMES, found) == (
        "class weights (balanced): bad 4, fair 1.333, good 0.5; the evaluation loss is not weighted"
    )
    many = weights.note("a=2", [str(each) for each in range(15)], np.ones(15))
    assert many.startswith("class weights: 0 1, 1 1, ")
    assert "11 1 and 3 more; " in many


# ---- the loss of a step --------------------------------------------------------------------------

WEIGHTS = (0.2, 1.0, 7.5, 0.01, 3.0)
WEIGHED = torch.tensor(WEIGHTS)


def over(loss: GlobalLoss, logits: torch.Tensor, labels: torch.Tensor, sizes: list[int]) -> Any:
    """The loss of a step that comes in micro-batches, divided by what they count together."""
    parts = list(zip(logits.split(sizes), labels.split(sizes), strict=True))
    counts = torch.stack([loss.counted(each) for _, each in parts]).sum(dim=0)
    divisor = loss.divisor(counts) * labels.shape[1:].numel()
    return sum(loss({"logits": part}, each, divisor) for part, each in parts)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("sizes", [[24], [12, 12], [1, 23], [10, 3, 11]])
def test_micro_batches_add_up_to_the_weighted_mean_of_torch(
    sizes: list[int], smoothing: float
) -> None:
    logits, labels = batch()
    loss = GlobalLoss(losses.cross_entropy, smoothing, WEIGHTS)
    whole, divided = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    expected = cross_entropy(whole, labels, WEIGHED, label_smoothing=smoothing)
    found = over(loss, divided, labels, sizes)
    torch.testing.assert_close(found, expected)
    expected.backward()
    found.backward()
    torch.testing.assert_close(divided.grad, whole.grad)


def test_the_divisor_is_the_same_bit_by_bit_however_the_rows_are_divided() -> None:
    _, labels = batch(seed=3)
    loss = GlobalLoss(losses.cross_entropy, class_weights=WEIGHTS)
    found = {
        loss.divisor(torch.stack([loss.counted(each) for each in labels.split(size)]).sum(0)).item()
        for size in (1, 3, 5, 24)
    }
    assert len(found) == 1
    assert found.pop() == pytest.approx(WEIGHED[labels].double().sum().item(), rel=1e-6)


def test_the_scale_of_the_weights_changes_nothing() -> None:
    logits, labels = batch(seed=4)
    one, other = (
        GlobalLoss(losses.cross_entropy, 0.1, tuple(scale * each for each in WEIGHTS))
        for scale in (1, 40)
    )
    torch.testing.assert_close(
        over(one, logits, labels, [24]), over(other, logits, labels, [5, 19])
    )


def test_a_batch_without_a_count_is_a_step() -> None:
    logits, labels = batch()
    loss = GlobalLoss(losses.cross_entropy, class_weights=WEIGHTS)({"logits": logits}, labels)
    torch.testing.assert_close(loss, cross_entropy(logits, labels, WEIGHED))


def test_a_class_that_torch_ignores_counts_nothing() -> None:
    logits, labels = batch(seed=5)
    labels[::3] = -100
    loss = GlobalLoss(losses.cross_entropy, class_weights=WEIGHTS)
    torch.testing.assert_close(
        over(loss, logits, labels, [7, 17]), cross_entropy(logits, labels, WEIGHED)
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_of_an_evaluation_is_not_weighted(smoothing: float) -> None:
    logits, labels = batch()
    loss = GlobalLoss(losses.cross_entropy, smoothing, WEIGHTS)
    expected = cross_entropy(logits, labels, label_smoothing=smoothing, reduction="none")
    torch.testing.assert_close(loss.of_rows(logits, labels), expected)
    assert not torch.allclose(loss.in_training(logits, labels), expected)


def test_the_focal_loss_of_a_row_is_weighted_too() -> None:
    logits, labels = batch()
    found = over(GlobalLoss(losses.focal, 0.0, WEIGHTS), logits, labels, [9, 15])
    expected = (losses.focal(logits, labels) * WEIGHED[labels]).sum() / WEIGHED[labels].sum()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("sizes", [[24], [1, 23], [10, 3, 11]])
def test_positive_weights_are_divided_by_the_rows(sizes: list[int]) -> None:
    logits, labels = batch()
    targets = torch.nn.functional.one_hot(labels, CLASSES).float()

    def weighted(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return losses.binary_cross_entropy(logits, targets, WEIGHED)

    loss = GlobalLoss(losses.binary_cross_entropy, training_rows=weighted)
    expected = binary_cross_entropy_with_logits(logits, targets, pos_weight=WEIGHED)
    torch.testing.assert_close(over(loss, logits, targets, sizes), expected)
    plain = binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=1)
    torch.testing.assert_close(loss.of_rows(logits, targets), plain)


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 3)])
def test_rows_of_numbers_all_count(shape: tuple[int, ...]) -> None:
    loss = GlobalLoss(
        lambda logits, labels: (logits - labels).reshape(len(labels), -1).mean(dim=1) ** 2
    )
    labels = torch.full(shape, -100.0)  # a number like any other
    assert loss.counted(labels).tolist() == [ROWS]
    assert over(loss, torch.full(shape, -98.0), labels, [4, 20]).item() == pytest.approx(4)
    # as the library counts them: each target of a row
    share = loss({"logits": torch.full(shape, -98.0)}, labels, num_items_in_batch=labels.numel())
    assert share.item() == pytest.approx(4)
