"""Test that losses are finite for large logits and computed in fp32.

`tests/acceptance/test_tasks.py` compares their values with hand-written losses.
"""

from collections.abc import Callable

import pytest
import torch

from finetune.tasks import losses
from finetune.training.steps import GlobalLoss

ROWS, CLASSES = 12, 5
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
SINGLE_LABEL = (losses.cross_entropy, losses.focal, losses.soft_labels)
ALL = (*SINGLE_LABEL, losses.binary_cross_entropy, losses.binary_focal, losses.huber)


def batch(loss: Loss) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(ROWS, CLASSES, generator=generator, dtype=torch.float64)
    if loss in SINGLE_LABEL:
        return logits, torch.randint(CLASSES, (ROWS,), generator=generator)
    return logits, (torch.rand(ROWS, CLASSES, generator=generator) < 0.4).float()


@pytest.mark.parametrize("loss", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1e4, 1e30])
def test_large_logits_have_finite_losses_and_gradients(
    loss: Loss, dtype: torch.dtype, size: float
) -> None:
    logits, targets = batch(loss)
    large = (size * logits.sign()).to(dtype).requires_grad_()
    values = GlobalLoss(loss).training_losses(large, targets)
    values.sum().backward()  # type: ignore[no-untyped-call]
    assert values.isfinite().all()
    assert large.grad is not None
    assert large.grad.isfinite().all()


@pytest.mark.parametrize("loss", ALL)
def test_losses_of_bf16_logits_are_computed_in_fp32(loss: Loss) -> None:
    logits, targets = batch(loss)
    rounded = logits.bfloat16()
    expected = loss(rounded.float(), targets)
    for losses_of in (GlobalLoss(loss).training_losses, GlobalLoss(loss).evaluation_losses):
        values = losses_of(rounded, targets)
        assert (values.dtype, values.shape) == (torch.float32, (ROWS,))
        torch.testing.assert_close(values, expected, rtol=0, atol=0)
