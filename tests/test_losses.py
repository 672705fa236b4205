"""Losses stay finite for large logits, and are computed in fp32.

Their values are held by hand-written losses in `tests/acceptance/test_tasks.py`.
"""

from collections.abc import Callable

import pytest
import torch

from finetune.tasks import losses

ROWS, CLASSES = 12, 5
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
OF_CLASSES = (
    losses.cross_entropy,
    losses.focal,
    losses.soft_labels,
    losses.squared_earth_movers_distance,
)
EVERY = (*OF_CLASSES, losses.binary_cross_entropy, losses.binary_focal)


def batch(loss: Loss) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(ROWS, CLASSES, generator=generator, dtype=torch.float64)
    if loss in OF_CLASSES:
        return logits, torch.randint(CLASSES, (ROWS,), generator=generator)
    return logits, (torch.rand(ROWS, CLASSES, generator=generator) < 0.4).float()


@pytest.mark.parametrize("loss", EVERY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1e4, 1e30])
def test_large_logits_have_finite_losses_and_gradients(
    loss: Loss, dtype: torch.dtype, size: float
) -> None:
    logits, targets = batch(loss)
    large = (size * logits.sign()).to(dtype).requires_grad_()
    values = loss(large, targets)
    values.sum().backward()  # type: ignore[no-untyped-call]
    assert values.isfinite().all()
    assert large.grad is not None
    assert large.grad.isfinite().all()


@pytest.mark.parametrize("loss", EVERY)
def test_bf16_logits_are_computed_with_in_fp32(loss: Loss) -> None:
    logits, targets = batch(loss)
    rounded = logits.bfloat16()
    values = loss(rounded, targets)
    assert (values.dtype, values.shape) == (torch.float32, (ROWS,))
    torch.testing.assert_close(values, loss(rounded.float(), targets), rtol=0, atol=0)
