"""A training loop as in a tutorial: PyTorch, and a tokenizer and a model of `transformers`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, set_seed

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def train(
    model_path: Path, texts: Sequence[str], targets: torch.Tensor, loss_function: Loss, *,
    outputs: int, epochs: int, batch_size: int, learning_rate: float, max_length: int,
) -> tuple[list[float], Any]:  # fmt: skip
    """Train with SGD on batches of consecutive rows, without the incomplete last batch.

    The head is initialized with seed 42. The learning rate falls linearly to 0, gradients are
    clipped to norm 1, and there is no dropout.

    Returns:
        The loss of each step, and the model.
    """
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    set_seed(42)
    model = AutoModelForSequenceClassification.from_pretrained(model_path, num_labels=outputs)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    steps, losses = epochs * (len(texts) // batch_size), []
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for _ in range(epochs):
        for start in range(0, len(texts) - batch_size + 1, batch_size):
            rows = slice(start, start + batch_size)
            options: dict[str, Any] = dict(truncation=True, max_length=max_length)
            batch = tokenizer(texts[rows], padding=True, return_tensors="pt", **options)
            loss = loss_function(model(**batch).logits, targets[rows])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses, model.eval()


@torch.no_grad()
def logits(model: Any, path: Path, texts: Sequence[str], max_length: int) -> torch.Tensor:
    """Return the outputs for texts, one at a time, so without padding."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    rows = [
        tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
        for text in texts
    ]
    return torch.cat([model(**row).logits for row in rows])
