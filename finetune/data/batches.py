"""Build batches of images.

The collator decodes images and, in training, crops and flips them at random. The random numbers
depend only on the seed, the epoch and the row, so one process and three, accumulation and a resumed
run see the same pixels.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import BaseImageProcessor, TrainerCallback

from finetune.data.images import decode
from finetune.errors import UserError

#: The name of ``_row`` in prepared training images, whose crops and flips depend on it.
DRAWN_FROM = "augmented_id"


@dataclass(frozen=True, eq=False)
class Augmentation(TrainerCallback):
    """Random crops and flips of training images; a ``Trainer`` callback that changes every epoch.

    Attributes:
        crop_scale: The smallest share of the area that a crop keeps; 1 for no crops.
        horizontal_flip: Whether to mirror an image, left to right, with probability 0.5.
        state: Seed and epoch, shape ``(2,)``, int64, in memory shared with ``DataLoader`` workers.
    """

    crop_scale: float
    horizontal_flip: bool
    state: torch.Tensor = field(
        default_factory=lambda: torch.zeros(2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
    )

    def set_epoch(self, epoch: int, seed: int = 42) -> None:
        """Set the epoch, which changes crops and flips; a custom training loop must call it."""
        self.state.copy_(torch.tensor([seed, epoch]))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set seed and epoch; of a resumed epoch, ``state.epoch`` is a fraction."""
        seed = args.seed if args.data_seed is None else args.data_seed
        self.set_epoch(math.floor(state.epoch or 0), seed)

    def __call__(self, image: Image.Image, row: int) -> Image.Image:
        """Return the augmented image for the current epoch; ``row`` is its number in the data."""
        seed, epoch = self.state.tolist()
        generator = np.random.default_rng([seed, epoch, row])
        flips = generator.random() < 0.5  # drawn first, so that crops do not change the flips
        if self.crop_scale < 1:
            image = image.crop(self._box(generator, *image.size))
        if self.horizontal_flip and flips:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return image

    def _box(
        self, generator: np.random.Generator, width: int, height: int
    ) -> tuple[int, int, int, int]:
        """Return left, top, right and bottom of a random crop that is inside the image."""
        for _ in range(10):
            area = width * height * generator.uniform(self.crop_scale, 1)
            # the aspect ratio, relative to that of the image, as in Szegedy et al. (2015)
            ratio = width / height * math.exp(generator.uniform(*np.log((3 / 4, 4 / 3))))
            wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < wide <= width and 0 < high <= height:
                left = int(generator.integers(width - wide + 1))
                top = int(generator.integers(height - high + 1))
                return left, top, left + wide, top + high
        return 0, 0, width, height


@dataclass(frozen=True)
class Collator:
    """Collates images: ``pixel_values``, ``(rows, channels, height, width)``, and ``labels``."""

    processor: BaseImageProcessor
    augmentation: Augmentation

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Return the batch; raise a ``UserError`` if processed images differ in size."""
        pixels = []
        for row in rows:
            image = decode(row["image"])
            if DRAWN_FROM in row:
                image = self.augmentation(image, row[DRAWN_FROM])
            values = self.processor(image)["pixel_values"][0]
            pixels.append(np.asarray(values, dtype=np.float32))
        if len({image.shape for image in pixels}) > 1:
            name = type(self.processor).__name__
            raise UserError(f"{name} returns images of several sizes: expected do_resize: true")
        return {
            "pixel_values": torch.from_numpy(np.stack(pixels)),
            "labels": torch.tensor([row["label"] for row in rows]),
        }
