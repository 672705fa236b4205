"""The attention of predictions on a CPU is that of torch."""

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoConfig, AutoModelForSequenceClassification, BertConfig

from finetune import allocator
from finetune.predicting import attention, packing

Shape = tuple[int, int, int, int]


class Layer(torch.nn.Module):
    is_causal = False


def both(layer: Layer, *tensors: torch.Tensor, mask: torch.Tensor | None = None) -> None:
    """Assert that ours and torch's attention give the same."""
    mine, _ = attention.forward(layer, *tensors, mask)
    causal = layer.is_causal and mask is None
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *tensors, attn_mask=mask, is_causal=causal, enable_gqa=tensors[0].shape != tensors[1].shape
    )
    assert_close(mine, theirs.transpose(1, 2), rtol=1e-5, atol=1e-5)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch's attention to leave anything to."""
    monkeypatch.setattr(attention, "sdpa_attention_forward", None)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("shape", [(1, 2, 1, 4), (3, 2, 17, 8), (5, 3, 200, 8), (2, 1, 600, 4)])
def test_it_is_that_of_torch(shape: Shape) -> None:
    both(Layer(), *(drawn(*shape) + each for each in range(3)))


@pytest.mark.usefixtures("alone")
def test_padding_is_not_seen() -> None:
    tensors, lengths = [drawn(7, 2, 130, 8) + each for each in range(3)], [130, 1, 64, 7, 8, 99, 2]
    seen = torch.arange(130) < torch.tensor(lengths)[:, None]
    mask = seen[:, None, None, :].expand(7, 1, 130, 130)
    both(Layer(), *tensors, mask=mask)


def test_what_is_not_plain_is_left_to_torch() -> None:
    causal = Layer()
    causal.is_causal = True
    both(causal, *(drawn(2, 4, 9, 8) + each for each in range(3)))
    shared = Layer()
    shared.num_key_value_groups = 2
    both(shared, drawn(2, 4, 9, 8), drawn(2, 2, 9, 8), drawn(2, 2, 9, 8))


@pytest.mark.usefixtures("alone")
def test_a_model_that_uses_it_says_the_same(tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_labels=3
    )
    model = AutoModelForSequenceClassification.from_config(config).eval()
    ids = torch.randint(50, (4, 21), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([21, 5, 1, 20])
    mask = (torch.arange(21) < lengths[:, None]).long()
    before = [model(ids, attention_mask=each).logits for each in (mask, None)]
    attention.use(model)
    assert model.config._attn_implementation == attention.NAME
    with torch.inference_mode():
        after = [model(ids, attention_mask=each).logits for each in (mask, None)]
    assert_close(after, before, rtol=1e-5, atol=1e-5)
    model.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path)._attn_implementation != attention.NAME


def test_a_model_with_another_attention_keeps_it() -> None:
    model = AutoModelForSequenceClassification.from_config(
        BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2),
        attn_implementation="eager",
    )
    attention.use(model)
    assert model.config._attn_implementation == "eager"
    attention.use(torch.nn.Linear(2, 2))


def test_layers_that_are_not_only_called_are_not_packed() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    packing.pack(layer)
    assert type(layer.linear1) is torch.nn.Linear
    model = AutoModelForSequenceClassification.from_config(
        BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    )
    model.classifier.register_forward_hook(lambda module, inputs, output: output * 2)
    packing.pack(model)
    assert type(model.classifier) is torch.nn.Linear
    assert type(model.bert.pooler.dense) is packing.PackedLinear


def test_thresholds_of_the_user_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    assert not allocator.keep_large_blocks()
