"""Batches: rows of texts by a budget of tokens, padding included, and images.

Images are decoded where they are collated, in training randomly cropped and flipped. Crops and
flips are drawn from the seed, the epoch and the row alone. No generator is shared, so one process
and three, accumulation and a resumed run see the same pixels.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import BaseImageProcessor, TrainerCallback

from finetune.data.images import decode
from finetune.errors import UserError

#: Rows are padded to a multiple of this many tokens: matrix products are faster for it.
PADDED_TO = 8
#: The name of the column ``_row`` in prepared training rows: their crops are drawn from it.
DRAWN_FROM = "augmented_id"


def cut(lengths: Sequence[int] | np.ndarray, budget: int) -> list[int]:
    """Return the number of rows of each batch, in order, of the ``lengths`` in tokens of rows.

    The longest is the first, to which those of its batch are padded; ``budget`` is the tokens of a
    batch, and a longer row is a batch of its own.
    """
    sizes = list[int]()
    start = 0
    while start < len(lengths):
        sizes.append(min(max(1, budget // max(1, int(lengths[start]))), len(lengths) - start))
        start += sizes[-1]
    return sizes


def lengths_of(rows: Any, column: str) -> np.ndarray | None:
    """Return the column that holds the length of each row, shape ``(rows,)``; None without one."""
    if column not in (getattr(rows, "column_names", None) or ()):
        return None
    return np.asarray(rows[column][:])


def padded(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the padded length of each row, shape ``(rows,)``."""
    return -(-np.asarray(lengths) // PADDED_TO) * PADDED_TO


@dataclass(frozen=True, eq=False)
class Augmentation(TrainerCallback):
    """Random crops and flips of training images; as a callback of ``Trainer`` of each epoch others.

    Attributes:
        crop_scale: The least share of its area that a crop keeps of an image; 1 for no crops.
        horizontal_flip: Whether every other image is mirrored, left to right.
        state: Seed and epoch, shape ``(2,)``, int64, shared with the workers of a data loader.
    """

    crop_scale: float
    horizontal_flip: bool
    state: torch.Tensor = field(
        default_factory=lambda: torch.zeros(2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
    )

    def set_epoch(self, epoch: int, seed: int = 42) -> None:
        """Draw other crops and flips from here on; a custom training loop calls it for an epoch."""
        self.state.copy_(torch.tensor([seed, epoch]))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the seed of the arguments; an epoch that is resumed has begun before."""
        seed = args.seed if args.data_seed is None else args.data_seed
        self.set_epoch(math.floor(state.epoch or 0), seed)

    def __call__(self, image: Image.Image, row: int) -> Image.Image:
        """Return the image as it is seen in this epoch; ``row`` is its number in the data."""
        seed, epoch = self.state.tolist()
        generator = np.random.default_rng([seed, epoch, row])
        flips = generator.random() < 0.5  # drawn first: whether images are cropped changes nothing
        if self.crop_scale < 1:
            image = image.crop(self._box(generator, *image.size))
        if self.horizontal_flip and flips:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return image

    def _box(
        self, generator: np.random.Generator, width: int, height: int
    ) -> tuple[int, int, int, int]:
        """Return left, top, right and bottom of a crop, drawn until it is inside the image."""
        for _ in range(10):
            area = width * height * generator.uniform(self.crop_scale, 1)
            # width to height relative to that of the image, as in Szegedy et al. (2015)
            ratio = width / height * math.exp(generator.uniform(*np.log((3 / 4, 4 / 3))))
            wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < wide <= width and 0 < high <= height:
                left = int(generator.integers(width - wide + 1))
                top = int(generator.integers(height - high + 1))
                return left, top, left + wide, top + high
        return 0, 0, width, height


@dataclass(frozen=True)
class Collator:
    """Makes ``pixel_values``, shape ``(rows, channels, height, width)``, and ``labels``."""

    processor: BaseImageProcessor
    augmentation: Augmentation
    targets: Callable[[list[Any]], np.ndarray]

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Return the batch of prepared rows; refuse images that do not get the same size."""
        pixels = [self._pixels(row) for row in rows]
        if len({image.shape for image in pixels}) > 1:
            name = type(self.processor).__name__
            raise UserError(f"{name} does not bring images to one size: expected do_resize")
        return {
            "pixel_values": torch.from_numpy(np.stack(pixels)),
            "labels": torch.from_numpy(self.targets([row["label"] for row in rows])),
        }

    def _pixels(self, row: dict[str, Any]) -> np.ndarray:
        image = decode(row["image"])
        if DRAWN_FROM in row:
            image = self.augmentation(image, row[DRAWN_FROM])
        return np.asarray(self.processor(image)["pixel_values"][0], dtype=np.float32)
