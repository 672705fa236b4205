"""Test that kernels fall back to the libraries for inputs they do not support."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close
from transformers import AutoModelForTokenClassification
from transformers.models.bert.modeling_bert import BertEncoder

from finetune.models.cpu import attention, unpadded
from tests.models import padded_pair, randn, small_model, unpadded_bert

Model = torch.nn.Module
LAYER = SimpleNamespace(is_causal=False)
SHAPE = (3, 2, 9, 8)
VISIBLE = torch.ones(3, 1, 9, 9, dtype=torch.bool).tril()


# ---- attention -----------------------------------------------------------------------------------


@pytest.fixture
def always_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make our attention fail where it is used."""
    monkeypatch.setattr(attention, "_FewSequences", None)


@pytest.mark.usefixtures("always_fallback")
@pytest.mark.parametrize(
    "mask",
    [
        torch.zeros(3, 1, 9, 9).masked_fill(~VISIBLE, float("-inf")),
        VISIBLE.expand(3, 2, 9, 9),
        VISIBLE[:1],
        VISIBLE[:, :, -1:],
        VISIBLE[0, 0],
    ],
    ids=["of numbers", "for each head", "one for all", "one for every token", "without rows"],
)
def test_torch_handles_an_unsupported_mask(mask: torch.Tensor) -> None:
    tensors = [randn(*SHAPE) + offset for offset in range(3)]
    output, _ = attention.forward(LAYER, *tensors, mask)
    assert_close(output, scaled_dot_product_attention(*tensors, attn_mask=mask).transpose(1, 2))


@pytest.mark.usefixtures("always_fallback")
@pytest.mark.parametrize(
    "arguments",
    [
        {"dropout": 0.5},
        {"is_causal": True},
        {"position_bias": torch.zeros(1, 2, 9, 9)},
        {"sliding_window": 4},
        {"s_aux": torch.zeros(2)},
        {"output_attentions": True},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_torch_handles_unsupported_arguments(arguments: dict[str, Any]) -> None:
    attention.forward(LAYER, *(randn(*SHAPE) for _ in range(3)), None, **arguments)


# ---- layers without padding ----------------------------------------------------------------------


def with_a_second_list(model: Any) -> None:
    model.classifier.more = torch.nn.ModuleList([torch.nn.Linear(2, 2)])


def with_other_layers(model: Any) -> None:
    model.bert.encoder.layer[1] = torch.nn.Identity()


def with_a_convolution(model: Any) -> None:
    model.bert.encoder.layer[1].output.dropout = torch.nn.Conv1d(1, 1, 1)


def with_a_hook(model: Any) -> None:
    model.bert.encoder.layer[0].output.register_forward_hook(lambda *args: None)


def with_attention_dropout(model: Any) -> None:
    model.bert.encoder.layer[1].attention.self.dropout.p = 0.1


@pytest.mark.parametrize(
    "change",
    [
        with_a_second_list,
        with_other_layers,
        with_a_convolution,
        with_a_hook,
        with_attention_dropout,
    ],
)
def test_a_model_that_was_changed_keeps_its_padding(change: Callable[[Any], None]) -> None:
    model = small_model("bert")
    attention.use(model)
    change(model)
    assert not unpadded.use(model)


def test_a_head_that_reads_every_token_keeps_the_padding() -> None:
    model = AutoModelForTokenClassification.from_config(small_model("bert").config)
    attention.use(model)
    assert not unpadded.use(model)


@pytest.mark.parametrize(
    "call",
    [
        lambda layer, hidden, mask: layer(hidden, attention_mask=mask),
        lambda layer, hidden, mask: layer(hidden, mask, past_key_values=OneCache()),
        lambda layer, hidden, mask: layer(hidden, mask, head_mask=torch.ones(4)),
        lambda layer, hidden, mask: layer(hidden, mask, hidden),
        lambda layer, hidden, mask: layer(hidden, mask.float()),
        lambda layer, hidden, mask: layer(hidden, mask.expand(-1, 4, -1, -1)),
    ],
    ids=["keyword", "cache", "head mask", "encoder states", "mask of numbers", "mask for heads"],
)
def test_a_layer_with_unsupported_arguments_keeps_its_padding(
    call: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(self: Any, hidden: torch.Tensor, attention_mask: Any, **kwargs: Any) -> Any:
        for layer in self.layer:
            hidden = call(layer, hidden, attention_mask)
        return SimpleNamespace(last_hidden_state=hidden, past_key_values=None)

    monkeypatch.setattr(BertEncoder, "forward", encode)
    expected = small_model("bert")(**padded_pair()).logits
    model, token_counts = unpadded_bert()
    assert_close(model(**padded_pair()).logits, expected, rtol=1e-5, atol=1e-6)
    assert token_counts == [180]


class OneCache:
    """An empty cache; with a cache, a layer may have keys of earlier tokens."""

    def update(self, key: torch.Tensor, value: torch.Tensor, layer: Any) -> Any:
        return key, value


def test_a_model_returns_padded_states_after_a_failed_pass() -> None:
    model, token_counts = unpadded_bert()
    with pytest.raises(IndexError):
        model(**{**padded_pair(), "input_ids": torch.full((2, 90), 999)})
    model.bert(**padded_pair())  # its states of all tokens may be read
    assert token_counts == [180]
