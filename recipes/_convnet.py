"""The small convolutional network of PyTorch's MNIST example, as the model of a recipe."""

import torch
from torch import nn
from torch.nn import functional


class ConvNet(nn.Module):
    """32 and 64 filters of 3 x 3, max-pool, dropout, 9216-128-classes, log-softmax.

    Args:
        classes: The number of classes.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Sequential(
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(9216, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, classes),
            nn.LogSoftmax(dim=1),
        )

    def forward(
        self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Return ``logits`` (log-probabilities, ``(rows, classes)``) and, with labels, ``loss``.

        Args:
            pixel_values: Shape ``(rows, 1, 28, 28)``, normalised.
            labels: Shape ``(rows,)``.
        """
        logits = self.head(self.features(pixel_values))
        if labels is None:
            return {"logits": logits}
        return {"loss": functional.nll_loss(logits, labels), "logits": logits}
