"""The losses of numbers: of each row the mean over its targets."""

import pytest
import torch

from finetune.tasks.number_losses import LOSSES


def test_losses_by_hand() -> None:
    outputs, targets = torch.tensor([[0.5, 3.0], [1.0, 1.0]]), torch.tensor([[0.0, 0.0], [1, 1]])
    found = {name: loss(outputs, targets).tolist() for name, loss in LOSSES.items()}
    assert list(found) == ["mse", "mae", "huber"]  # the first is the default
    assert found["mse"] == [pytest.approx((0.25 + 9) / 2), 0]
    assert found["mae"] == [pytest.approx((0.5 + 3) / 2), 0]
    assert found["huber"] == [pytest.approx((0.125 + 2.5) / 2), 0]
