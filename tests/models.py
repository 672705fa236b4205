"""Small models and tensors for the tests of replaced layers."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from finetune.models.cpu import attention, unpadded


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def small_model(kind: str, **settings: Any) -> Any:
    """Return a classifier with two layers and without dropout."""
    config = AutoConfig.for_model(kind, vocab_size=60, num_labels=3, pad_token_id=0)
    sizes = dict(hidden_size=32, dim=32, embedding_size=32, intermediate_size=40, hidden_dim=40)
    counts = dict(num_hidden_layers=2, n_layers=2, num_attention_heads=4, n_heads=4)
    names = "hidden_dropout_prob attention_probs_dropout_prob dropout attention_dropout"
    for name, value in (sizes | counts | dict.fromkeys(names.split(), 0.0) | settings).items():
        if hasattr(config, name):
            setattr(config, name, value)
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(config)


def count_tokens(model: torch.nn.Module) -> list[int]:
    """Return a list to which each forward pass appends the token count of the first layer."""
    counts: list[int] = []
    (layers,) = (module for module in model.modules() if isinstance(module, torch.nn.ModuleList))
    layers[0].register_forward_hook(lambda _, args, __: counts.append(args[0][..., 0].numel()))
    return counts


def unpadded_bert() -> tuple[Any, list[int]]:
    """Return a BERT whose layers get no padding, and the list of :func:`count_tokens`."""
    model = small_model("bert")
    attention.use(model)
    assert unpadded.use(model)
    return model, count_tokens(model)


def padded_pair() -> dict[str, torch.Tensor]:
    mask = (torch.arange(90) < torch.tensor([90, 2])[:, None]).long()
    return dict(input_ids=torch.full((2, 90), 7) * mask, attention_mask=mask)
