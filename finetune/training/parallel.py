"""DataParallel that copies the model to its replicas once an evaluation, not for every batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class DataParallel(nn.DataParallel[nn.Module]):
    """``torch.nn.DataParallel`` whose replicas are kept while no gradient is asked for.

    They serve until ``train()`` or ``eval()``, which ``Trainer`` calls before each evaluation.
    """

    _kept: list[nn.Module] | None = None

    def train(self, mode: bool = True) -> DataParallel:
        """Forget the replicas too: the weights may have changed since."""
        self._kept = None
        return super().train(mode)

    def replicate(
        self, module: nn.Module, device_ids: Sequence[int | torch.device]
    ) -> list[nn.Module]:
        """Return a replica for each device; fewer rows than devices use the first of them."""
        if self.training or torch.is_grad_enabled():
            self._kept = None
            return list(super().replicate(module, device_ids))
        if self._kept is None:
            self._kept = list(super().replicate(module, self.device_ids))
        return self._kept[: len(device_ids)]
