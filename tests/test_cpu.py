"""Test that the CPU kernels return the results of the code they replace, or fall back to it."""

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForTokenClassification,
    BertForSequenceClassification,
)
from transformers.models.bert.modeling_bert import BertEncoder

from finetune.models.cpu import attention, layers, unpadded
from finetune.recipe import catalog
from tests.models import count_tokens, padded_pair, randn, small_model, unpadded_bert

Shape = tuple[int, int, int, int]


def states_of(*shape: int) -> list[torch.Tensor]:
    """Return different queries, keys and values."""
    return [randn(*shape) + offset for offset in range(3)]


class Layer(torch.nn.Module):
    is_causal = False


def compare(layer: Layer, *tensors: torch.Tensor, mask: torch.Tensor | None = None) -> None:
    """Assert that our attention and torch's return the same."""
    output, _ = attention.forward(layer, *tensors, mask)
    causal = layer.is_causal and mask is None
    expected = torch.nn.functional.scaled_dot_product_attention(
        *tensors, attn_mask=mask, is_causal=causal, enable_gqa=tensors[0].shape != tensors[1].shape
    )
    assert_close(output, expected.transpose(1, 2), rtol=1e-5, atol=1e-5)


@pytest.fixture
def no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make calls of torch's attention fail, and use ours in fp32 too."""
    monkeypatch.setattr(attention, "sdpa_attention_forward", None)
    monkeypatch.setattr(attention, "FASTER_DTYPES", attention.DTYPES)


def padding() -> torch.Tensor:
    visible = torch.arange(130) < torch.tensor([130, 1, 64, 7, 8, 99, 2])[:, None]
    return visible[:, None, None, :].expand(7, 1, 130, 130)


def differing() -> torch.Tensor:
    """Return a mask that differs between tokens, and between sequences."""
    near = (torch.arange(40)[:, None] - torch.arange(40)).abs() < 5
    mask = near.expand(3, 1, 40, 40).clone()
    mask[1, :, :, 20:] &= torch.arange(40)[:, None] > 24
    mask[1] |= torch.eye(40, dtype=torch.bool)
    return mask


SHAPES: list[Shape] = [(1, 2, 1, 4), (3, 2, 17, 8), (5, 3, 200, 8), (2, 1, 600, 4)]


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize(
    ("shape", "mask"),
    [
        *((shape, None) for shape in SHAPES),
        ((7, 2, 130, 8), padding()),
        ((3, 2, 40, 8), differing()),
    ],
)
def test_attention_is_that_of_torch(shape: Shape, mask: torch.Tensor | None) -> None:
    compare(Layer(), *states_of(*shape), mask=mask)


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("product", [300.0, -300.0])
def test_products_may_be_large(product: float) -> None:
    """All attention scores are equal, so the output is the mean of the values."""
    ones = torch.ones(1, 2, 50, 8).bfloat16()
    value = randn(1, 2, 50, 8).bfloat16().requires_grad_()
    output, _ = attention.forward(Layer(), product * ones, ones, value, None, scaling=1 / 8)
    mean = value.float().mean(2, keepdim=True).expand(value.shape).transpose(1, 2)
    assert_close(output.float(), mean, rtol=0, atol=1e-2)
    output.sum().backward()
    assert value.grad is not None
    assert_close(value.grad, ones, rtol=0, atol=2e-2)


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("padded", [False, True])
def test_gradients_are_those_of_torch(padded: bool) -> None:
    visible = torch.arange(200) < torch.tensor([200, 3, 64])[:, None]
    mask = visible[:, None, None, :].expand(3, 1, 200, 200) if padded else None
    gradient, gradients = randn(3, 200, 2, 8), []
    for is_ours in (True, False):
        # views of one tensor that are not contiguous, as in a model
        states = randn(3, 3, 200, 16).requires_grad_()
        tensors = [state.view(3, 200, 2, 8).transpose(1, 2) for state in states]
        if is_ours:
            output, _ = attention.forward(Layer(), *tensors, mask)
        else:
            output = torch.nn.functional.scaled_dot_product_attention(*tensors, attn_mask=mask)
            output = output.transpose(1, 2)
        output.backward(gradient)
        gradients.append(states.grad)
    assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_torch_computes_attention_that_ours_does_not_support() -> None:
    causal = Layer()
    causal.is_causal = True
    compare(causal, *states_of(2, 4, 9, 8))
    shared = Layer()
    shared.num_key_value_groups = 2
    compare(shared, randn(2, 4, 9, 8), randn(2, 2, 9, 8), randn(2, 2, 9, 8))
    rotated = [randn(2, 4, 9, 8) for _ in range(2)]  # fp32, as in EuroBERT under autocast
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = attention.forward(Layer(), *rotated, randn(2, 4, 9, 8).bfloat16(), None)
    assert output.dtype == torch.bfloat16


VISIBLE = torch.ones(3, 1, 9, 9, dtype=torch.bool).tril()
#: Masks and arguments that our attention does not support.
UNSUPPORTED: dict[str, dict[str, Any]] = {
    "mask of numbers": {"mask": torch.zeros(3, 1, 9, 9).masked_fill(~VISIBLE, float("-inf"))},
    "mask for each head": {"mask": VISIBLE.expand(3, 2, 9, 9)},
    "one mask for all": {"mask": VISIBLE[:1]},
    "one row for every token": {"mask": VISIBLE[:, :, -1:]},
    "mask without rows": {"mask": VISIBLE[0, 0]},
    "dropout": {"dropout": 0.5},
    "causal": {"is_causal": True},
    "position bias": {"position_bias": torch.zeros(1, 2, 9, 9)},
    "sliding window": {"sliding_window": 4},
    "sinks": {"s_aux": torch.zeros(2)},
    "returned attentions": {"output_attentions": True},
}


@pytest.mark.parametrize("arguments", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_torch_handles_what_ours_does_not_support(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_FewSequences", None)  # ours would fail, also in fp32
    monkeypatch.setattr(attention, "FASTER_DTYPES", attention.DTYPES)
    if "mask" in arguments:
        compare(Layer(), *states_of(3, 2, 9, 8), **arguments)
    else:
        attention.forward(Layer(), *states_of(3, 2, 9, 8), None, **arguments)


# ---- layers without padding ----------------------------------------------------------------------

LENGTHS = {
    "short and long": [150, 3, 17, 64, 1, 65, 39, 149, 8],
    "some as long as with padding": [96, 96, 64, 64, 32, 5, 96, 128, 1],
    "many of one length": [40] * 9 + [3] * 8,
}


@pytest.mark.parametrize("kind", sorted(unpadded.KNOWN))
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_layers_without_padding_return_the_same(kind: str, lengths: list[int]) -> None:
    """Logits and gradients are equal, and each token is computed once."""
    rows, tokens = len(lengths), max(lengths)
    generator = torch.Generator().manual_seed(0)
    mask = (torch.arange(tokens) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(5, 60, (rows, tokens), generator=generator) * mask
    labels, results = torch.randint(3, (rows,), generator=generator), []
    for is_unpadded in (False, True):
        model = small_model(kind)
        if is_unpadded:
            attention.use(model)
            assert unpadded.use(model)
        token_counts = count_tokens(model)
        output = model(ids, attention_mask=mask, labels=labels)
        output.loss.backward()
        results.append([output.logits, *(weight.grad for weight in model.parameters())])
    assert token_counts == [unpadded.computed(np.array(lengths), tokens)]
    assert sum(lengths) < token_counts[0] < min(sum(lengths) + 65, rows * tokens)
    assert_close(*results, rtol=1e-5, atol=1e-7)


def test_a_head_for_each_token_returns_the_same() -> None:
    """The states of padding are zero; those of the other tokens have the same logits."""
    results = []
    for is_unpadded in (False, True):
        torch.manual_seed(0)
        config = small_model("bert").config
        model = AutoModelForTokenClassification.from_config(config).eval()
        if is_unpadded:
            attention.use(model)
            assert unpadded.use(model)
        token_counts = count_tokens(model)
        batch = padded_pair()
        results.append(model(**batch).logits[batch["attention_mask"].bool()])
    assert token_counts == [128]
    assert_close(*results, rtol=1e-5, atol=1e-7)


def test_returned_hidden_states_have_their_padding() -> None:
    model, token_counts = unpadded_bert()
    states = model(**padded_pair(), output_hidden_states=True).hidden_states
    assert [state.shape for state in states] == [(2, 90, 32)] * 3
    assert token_counts == [180]
    model(**padded_pair())
    model.set_attn_implementation("sdpa")
    model(**padded_pair())
    assert token_counts == [180, 128, 180]


def test_recomputed_layers_keep_their_padding() -> None:
    """Gradient checkpointing may pass them a mask without the groups of sequences."""
    model, token_counts = unpadded_bert()
    model.train()
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable(dict(use_reentrant=True))
    model.enable_input_require_grads()
    model(**padded_pair()).logits.sum().backward()
    assert set(token_counts) == {180}


class CustomModel(BertForSequenceClassification):
    """A subclass may read the states of each layer, and pool them."""


@pytest.mark.parametrize(
    "make",
    [
        lambda: small_model("ernie"),
        lambda: small_model("bert", attention_probs_dropout_prob=0.1),
        lambda: small_model("distilbert", attention_dropout=0.1),
        lambda: small_model("bert", is_decoder=True),
        lambda: small_model("bert", chunk_size_feed_forward=9),
        lambda: CustomModel(small_model("bert").config),
        lambda: AutoModelForMaskedLM.from_config(small_model("bert").config),
    ],
    ids=["kind", "dropout", "other dropout", "decoder", "chunks", "subclass", "head for masks"],
)
def test_unsupported_models_keep_their_padding(make: Callable[[], Any]) -> None:
    model = make()
    attention.use(model)
    assert not unpadded.use(model)
    token_counts = count_tokens(model)
    model(**padded_pair())
    assert token_counts == [180]


def test_rows_that_start_with_padding_keep_it() -> None:
    """The head reads the state of the first token, which is padding."""
    model, token_counts = unpadded_bert()
    mask = (torch.arange(90) >= torch.tensor([0, 88])[:, None]).long()
    model(torch.full((2, 90), 7) * mask, attention_mask=mask)
    assert token_counts == [180]


def test_a_model_of_two_trainers_is_hooked_once() -> None:
    model, _ = unpadded_bert()
    expected = model(**padded_pair()).logits
    for trained in (model, copy.deepcopy(model)):
        assert not unpadded.use(trained)
        assert_close(trained(**padded_pair()).logits, expected)


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        ("classifier", "more", torch.nn.ModuleList([torch.nn.Linear(2, 2)])),
        ("bert.encoder.layer", "1", torch.nn.Identity()),
        ("bert.encoder.layer.1.output", "dropout", torch.nn.Conv1d(1, 1, 1)),
        ("bert.encoder.layer.0.output", "_forward_hooks", {0: lambda *args: None}),
        ("bert.encoder.layer.1.attention.self.dropout", "p", 0.1),
    ],
)
def test_a_model_that_was_changed_keeps_its_padding(place: str, name: str, value: Any) -> None:
    model = small_model("bert")
    attention.use(model)
    setattr(model.get_submodule(place), name, value)
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
        # transformers 5.24 has the second name
        return SimpleNamespace(last_hidden_state=hidden, past_key_values=None, cache=None)

    monkeypatch.setattr(BertEncoder, "forward", encode)
    expected = small_model("bert")(**padded_pair()).logits
    model, token_counts = unpadded_bert()
    assert_close(model(**padded_pair()).logits, expected, rtol=1e-5, atol=1e-6)
    assert token_counts == [180]


class OneCache:
    """An empty cache; with a cache, a layer may have keys of earlier tokens."""

    def update(self, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return key, value


def test_a_model_returns_padded_states_after_a_failed_pass() -> None:
    model, token_counts = unpadded_bert()
    with pytest.raises(IndexError):
        model(**{**padded_pair(), "input_ids": torch.full((2, 90), 999)})
    model.bert(**padded_pair())  # its states of all tokens may be read
    assert token_counts == [180]


# ---- dropout -------------------------------------------------------------------------------------


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_dropout_drops_with_its_probability(probability: float) -> None:
    torch.manual_seed(0)
    ones = torch.ones(1000, 1001)
    output = layers.Dropout(probability)(ones)
    share = (output == 0).float().mean().item()
    assert share == pytest.approx(
        probability, abs=4 * (probability * (1 - probability) / 1e6) ** 0.5
    )
    assert output.mean().item() == pytest.approx(1, abs=0.02)
    assert output.max().item() == pytest.approx(1 / (1 - probability), rel=1e-4)
    dropped = (output == 0).double()  # neighbours and rows are not correlated
    for shifted in (dropped[:, 1:], dropped[1:]):
        cells = dropped[: shifted.shape[0], : shifted.shape[1]]
        correlation = torch.corrcoef(torch.stack([cells.reshape(-1), shifted.reshape(-1)]))[0, 1]
        assert abs(correlation) < 0.005


def test_dropout_is_reproducible_and_its_gradient_has_the_same_mask() -> None:
    layer, values = layers.Dropout(0.3), torch.ones(7, 9, requires_grad=True)
    torch.manual_seed(1)
    first, second = layer(values), layer(values)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(layer(values), first)
    first.sum().backward()
    assert values.grad is not None
    assert_close(values.grad, first.detach())
    assert layer.eval()(values) is values
    assert not layers.Dropout(1.0)(torch.ones(5)).any()


@pytest.mark.parametrize(
    ("training", "is_replaced", "attention_name"),
    [
        ({"precision": "bf16"}, True, attention.NAME),
        ({"precision": "fp32"}, True, attention.NAME),
        ({"precision": "bf16", "torch_compile": True}, False, "sdpa"),
    ],
)
def test_a_trainer_on_a_cpu_uses_the_kernels(
    training: dict[str, Any],
    is_replaced: bool,
    attention_name: str,
    uneven_reviews: Path,
    tiny_model: str,
    tmp_path: Path,
) -> None:
    recipe = catalog.find("yelp")(dataset=str(uneven_reviews), model=tiny_model)
    trainer = recipe.trainer(output_dir=str(tmp_path), use_cpu=True, **training)
    modules = trainer.model.modules()
    dropouts = [module for module in modules if isinstance(module, torch.nn.Dropout)]
    assert {type(module) is layers.Dropout for module in dropouts} == {is_replaced}
    inputs = next(iter(trainer.get_train_dataloader()))["input_ids"]
    assert inputs.shape[1] % 8 == 0
    assert trainer.model.config._attn_implementation == attention_name
    assert attention.NAME not in trainer.model.config.to_json_string()  # unknown on other machines
    assert unpadded.use(trainer.model) != is_replaced  # only False if already done
