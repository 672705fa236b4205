"""The losses of rows: their values, gradients, and that they stay finite."""

from collections.abc import Callable

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn import functional

from finetune.tasks import losses
from finetune.tasks.regression import Regression

ROWS, CLASSES = 12, 5
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
OF_CLASSES = (
    losses.cross_entropy,
    losses.focal,
    losses.soft_labels,
    losses.squared_earth_movers_distance,
)
OF_LABELS = (losses.binary_cross_entropy, losses.binary_focal)
EVERY = (*OF_CLASSES, *OF_LABELS)


def batch(loss: Loss, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(ROWS, CLASSES, generator=generator, dtype=torch.float64)
    if loss in OF_CLASSES:
        return logits, torch.randint(CLASSES, (ROWS,), generator=generator)
    return logits, (torch.rand(ROWS, CLASSES, generator=generator) < 0.4).float()


@pytest.mark.parametrize("loss", EVERY)
def test_each_row_has_a_loss_of_its_own(loss: Loss) -> None:
    logits, targets = batch(loss)
    found = loss(logits, targets)
    assert found.shape == (ROWS,)
    assert (found >= 0).all()
    each = [loss(logits[row : row + 1], targets[row : row + 1]) for row in range(ROWS)]
    torch.testing.assert_close(torch.cat(each), found)


@pytest.mark.parametrize("loss", EVERY)
def test_gradients_are_those_of_the_value(loss: Loss) -> None:
    logits, targets = batch(loss)
    assert gradcheck(lambda some: loss(some, targets), logits.requires_grad_())


@pytest.mark.parametrize("loss", EVERY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1e4, 1e30])
def test_large_logits_have_finite_losses_and_gradients(
    loss: Loss, dtype: torch.dtype, size: float
) -> None:
    logits, targets = batch(loss)
    large = (size * logits.sign()).to(dtype).requires_grad_()
    found = loss(large, targets)
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert found.isfinite().all()
    assert large.grad is not None
    assert large.grad.isfinite().all()


@pytest.mark.parametrize("loss", EVERY)
def test_bf16_logits_are_computed_with_in_fp32(loss: Loss) -> None:
    logits, targets = batch(loss)
    rounded = logits.bfloat16()
    found = loss(rounded, targets)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, loss(rounded.float(), targets), rtol=0, atol=0)


def test_cross_entropy_is_that_of_torch() -> None:
    logits, targets = batch(losses.cross_entropy)
    expected = functional.cross_entropy(logits, targets, reduction="none")
    torch.testing.assert_close(losses.cross_entropy(logits, targets), expected)


def test_binary_losses_by_hand() -> None:
    logits = torch.tensor([[0.9, 0.2]], dtype=torch.float64).logit()
    targets = torch.tensor([[1.0, 1.0]])
    found = losses.binary_focal(logits, targets)
    expected = (0.1**2 * 0.105360516 + 0.8**2 * 1.609437912) / 2
    assert found.item() == pytest.approx(expected, rel=1e-8)
    assert losses.binary_cross_entropy(logits, targets).item() == pytest.approx(
        (0.105360516 + 1.609437912) / 2, rel=1e-8
    )


def test_positive_weights_are_those_of_torch() -> None:
    logits, targets = batch(losses.binary_cross_entropy)
    weights = torch.tensor([1.0, 3.0, 0.5, 19.0, 2.0], dtype=torch.float64)
    found = losses.binary_cross_entropy(logits, targets, weights)
    expected = functional.binary_cross_entropy_with_logits(
        logits, targets.double(), pos_weight=weights, reduction="none"
    ).mean(dim=1)
    torch.testing.assert_close(found, expected)
    focused = losses.binary_focal(logits, targets, weights)
    only_positive = torch.ones_like(targets)
    torch.testing.assert_close(
        losses.binary_focal(logits, only_positive, torch.full((CLASSES,), 3.0)),
        3 * losses.binary_focal(logits, only_positive),
    )
    assert (focused < found).all()


def test_soft_labels_by_hand() -> None:
    # the target of class 1 of 3 is softmax(-1, 0, -1)
    logits = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64).log()
    beside = 0.36787944117 / (1 + 2 * 0.36787944117)
    expected = -(beside * (-1.609437912 - 1.203972804) + (1 - 2 * beside) * -0.693147181)
    found = losses.soft_labels(logits, torch.tensor([1]))
    assert found.item() == pytest.approx(expected, rel=1e-8)


def test_squared_earth_movers_distance_by_hand() -> None:
    # cumulative 0.2, 0.7, 1.0 against 0, 1, 1
    logits = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64).log()
    found = losses.squared_earth_movers_distance(logits, torch.tensor([1]))
    assert found.item() == pytest.approx(0.2**2 + 0.3**2)


def test_losses_of_numbers_by_hand() -> None:
    outputs, targets = torch.tensor([[0.5, 3.0], [1.0, 1.0]]), torch.tensor([[0.0, 0.0], [1, 1]])
    found = {name: loss(outputs, targets).tolist() for name, loss in Regression.losses.items()}
    assert list(found) == ["mse", "mae", "huber"]  # the first is the default
    assert found["mse"] == [pytest.approx((0.25 + 9) / 2), 0]
    assert found["mae"] == [pytest.approx((0.5 + 3) / 2), 0]
    assert found["huber"] == [pytest.approx((0.125 + 2.5) / 2), 0]
