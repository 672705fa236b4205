"""Batches of images: decoded where they are collated, in the workers of a data loader if any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import BaseImageProcessor

from finetune.data import ROW
from finetune.data.augmentation import Augmentation
from finetune.data.images import decoded
from finetune.errors import UserError

#: What the column row number is called in prepared rows of training: their crops are drawn from it.
DRAWN_FROM = "augmented_id"


@dataclass(frozen=True)
class Collator:
    """Makes ``pixel_values``, shape ``(rows, channels, height, width)``, and ``labels``."""

    processor: BaseImageProcessor
    augmentation: Augmentation
    targets: Callable[[list[Any]], np.ndarray]

    def set_epoch(self, epoch: int, seed: int = 42) -> None:
        """Draw other crops and flips; a training loop of one's own calls it as an epoch begins."""
        self.augmentation.set_epoch(epoch, seed)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Return the batch of prepared rows.

        Raises:
            UserError: if an image cannot be decoded, or they are not brought to one size.
        """
        pixels = [self._pixels(row) for row in rows]
        if len({each.shape for each in pixels}) > 1:
            height, width = pixels[0].shape[1:]
            raise UserError(
                f"the image processor {type(self.processor).__name__} does not bring images to one "
                f"size ({width} x {height} pixels and others): expected one with do_resize"
            )
        return {
            "pixel_values": torch.from_numpy(np.stack(pixels)),
            "labels": torch.from_numpy(self.targets([row["label"] for row in rows])),
        }

    def _pixels(self, row: dict[str, Any]) -> np.ndarray:
        """Return an image as the model takes it; one of training is cropped and flipped first."""
        number = row.get(DRAWN_FROM, row.get(ROW))
        image = decoded(row["image"], f"row {number}")
        if DRAWN_FROM in row:
            image = self.augmentation(image, row[DRAWN_FROM])
        return np.asarray(self.processor(image)["pixel_values"][0], dtype=np.float32)
