"""Handwritten digits, on the small convolutional network of PyTorch's MNIST example.

python -m finetune mnist
python -m finetune mnist --embedded             # no Hub: 5,000 of the digits

It shows a recipe with a custom collator, loss and model.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from finetune import Recipe, UserError

if TYPE_CHECKING:
    import torch
    from datasets import DatasetDict

MEAN, DEVIATION = 0.1307, 0.3081
SIDE = 28  # pixels


class Mnist(Recipe):
    """MNIST (LeCun et al., 1998): 70,000 digits of 28 x 28 pixels."""

    input_column = "image"
    label_names = tuple("0123456789")
    training = dict(
        global_batch_size=64,
        learning_rate=1e-3,
        num_train_epochs=1,
        remove_unused_columns=False,  # the collator reads the column `image`
    )
    embedded = dict(dataset="embedded:digits", num_train_epochs=10)

    dataset: str = "ylecun/mnist"

    def prepare(self, dataset: "DatasetDict") -> "DatasetDict":
        return dataset  # the collator decodes images

    def build_model(self, labels: Sequence[str]) -> "torch.nn.Module":
        from recipes._convnet import ConvNet

        return ConvNet(len(labels))

    def data_collator(self) -> Callable[[list[dict[str, Any]]], dict[str, "torch.Tensor"]]:
        return collate

    def loss(self, logits: "torch.Tensor", labels: "torch.Tensor") -> "torch.Tensor":
        from torch.nn.functional import nll_loss

        return nll_loss(logits, labels, reduction="none")


def collate(rows: list[dict[str, Any]]) -> dict[str, "torch.Tensor"]:
    """Return ``pixel_values``, normalised, shape ``(rows, 1, 28, 28)``, and ``labels``."""
    import numpy as np
    import torch

    images = [row["image"].convert("L") for row in rows]  # greyscale, whatever the mode of the file
    if other := [image.size for image in images if image.size != (SIDE, SIDE)]:
        raise UserError(f"expected images of {SIDE} x {SIDE} pixels, found {other[0]}")
    pixels = np.stack([np.asarray(image, dtype=np.float32) for image in images]) / 255
    return {
        "pixel_values": torch.from_numpy((pixels - MEAN) / DEVIATION).unsqueeze(1),
        "labels": torch.tensor([row["label"] for row in rows]),
    }
