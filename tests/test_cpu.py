"""What is fast on a CPU says the same as what it replaces."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from transformers import (
    BertForSequenceClassification,
)

from finetune.models.cpu import attention, layers, unpadded
from finetune.recipe import catalog
from tests.models import drawn, padded_pair, small, unpadded_bert, watched_layer

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


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch's attention to leave anything to."""
    monkeypatch.setattr(attention, "sdpa_attention_forward", None)
    monkeypatch.setattr(attention, "FASTER_DTYPES", attention.DTYPES)


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


@pytest.mark.usefixtures("alone")
def test_a_mask_may_be_another_for_each_token() -> None:
    tensors = [drawn(3, 2, 40, 8) + each for each in range(3)]
    near = (torch.arange(40)[:, None] - torch.arange(40)).abs() < 5
    mask = near.expand(3, 1, 40, 40).clone()
    mask[1, :, :, 20:] &= torch.arange(40)[:, None] > 24  # and not the same in each sequence
    mask[1] |= torch.eye(40, dtype=torch.bool)
    both(Layer(), *tensors, mask=mask)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("product", [300.0, -300.0])
def test_products_may_be_large(product: float) -> None:
    """All products are alike, so that each token attends to all alike."""
    ones = torch.ones(1, 2, 50, 8).bfloat16()
    value = drawn(1, 2, 50, 8).bfloat16().requires_grad_()
    output, _ = attention.forward(Layer(), product * ones, ones, value, None, scaling=1 / 8)
    mean = value.float().mean(2, keepdim=True).expand(value.shape).transpose(1, 2)
    assert_close(output.float(), mean, rtol=0, atol=1e-2)
    output.sum().backward()
    assert value.grad is not None
    assert_close(value.grad, ones, rtol=0, atol=2e-2)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("padded", [False, True])
def test_its_gradients_are_those_of_torch(padded: bool) -> None:
    seen = torch.arange(200) < torch.tensor([200, 3, 64])[:, None]
    mask = seen[:, None, None, :].expand(3, 1, 200, 200) if padded else None
    gradient, found = drawn(3, 200, 2, 8), []
    for ours in (True, False):
        # views of one tensor that are not contiguous, as a model has them
        whole = drawn(3, 3, 200, 16).requires_grad_()
        tensors = [each.view(3, 200, 2, 8).transpose(1, 2) for each in whole]
        if ours:
            output, _ = attention.forward(Layer(), *tensors, mask)
        else:
            output = torch.nn.functional.scaled_dot_product_attention(*tensors, attn_mask=mask)
            output = output.transpose(1, 2)
        output.backward(gradient)
        found.append(whole.grad)
    assert_close(*found, rtol=1e-4, atol=1e-5)


def test_what_is_not_plain_is_left_to_torch() -> None:
    causal = Layer()
    causal.is_causal = True
    both(causal, *(drawn(2, 4, 9, 8) + each for each in range(3)))
    shared = Layer()
    shared.num_key_value_groups = 2
    both(shared, drawn(2, 4, 9, 8), drawn(2, 2, 9, 8), drawn(2, 2, 9, 8))
    rotated = [drawn(2, 4, 9, 8) for _ in range(2)]  # in fp32, as EuroBERT's are under autocast
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, _ = attention.forward(Layer(), *rotated, drawn(2, 4, 9, 8).bfloat16(), None)
    assert found.dtype == torch.bfloat16


LENGTHS = {
    "short and long": [150, 3, 17, 64, 1, 65, 39, 149, 8],
    "some as long as with what fills them up": [96, 96, 64, 64, 32, 5, 96, 128, 1],
    "many of a length": [40] * 9 + [3] * 8,
}


@pytest.mark.parametrize("kind", sorted(unpadded.KNOWN))
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_layers_without_padding_say_the_same(kind: str, lengths: list[int]) -> None:
    """Logits and gradients, and each token is computed once."""
    rows, tokens = len(lengths), max(lengths)
    generator = torch.Generator().manual_seed(0)
    mask = (torch.arange(tokens) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(5, 60, (rows, tokens), generator=generator) * mask
    labels, found = torch.randint(3, (rows,), generator=generator), []
    for without in (False, True):
        model = small(kind)
        if without:
            attention.use(model)
            assert unpadded.use(model)
        seen = watched_layer(model)
        output = model(ids, attention_mask=mask, labels=labels)
        output.loss.backward()
        found.append([output.logits, *(each.grad for each in model.parameters())])
    assert seen == [unpadded.computed(np.array(lengths), tokens)]
    assert sum(lengths) < seen[0] < min(sum(lengths) + 65, rows * tokens)
    assert_close(*found, rtol=1e-5, atol=1e-7)


def test_hidden_states_that_are_asked_for_have_their_padding() -> None:
    model, seen = unpadded_bert()
    states = model(**padded_pair(), output_hidden_states=True).hidden_states
    assert [each.shape for each in states] == [(2, 90, 32)] * 3
    assert seen == [180]
    model(**padded_pair())
    model.set_attn_implementation("sdpa")
    model(**padded_pair())
    assert seen == [180, 128, 180]


def test_recomputed_layers_keep_their_padding() -> None:
    """A checkpoint may hand them a mask that does not know what it stands for."""
    model, seen = unpadded_bert()
    model.train().activation_checkpointing_enable(dict(use_reentrant=True))
    model.enable_input_require_grads()
    model(**padded_pair()).logits.sum().backward()
    assert set(seen) == {180}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("ernie", {}),
        ("bert", dict(attention_probs_dropout_prob=0.1)),
        ("distilbert", dict(attention_dropout=0.1)),
        ("bert", dict(is_decoder=True)),
        ("bert", dict(chunk_size_feed_forward=9)),
    ],
)
def test_what_is_not_known_to_be_the_same_keeps_its_padding(
    kind: str, settings: dict[str, Any]
) -> None:
    model = small(kind, **settings)
    attention.use(model)
    assert not unpadded.use(model)
    seen = watched_layer(model)
    model(**padded_pair())
    assert seen == [180]


def test_rows_that_begin_with_padding_keep_it() -> None:
    """The head reads the state of their first token."""
    model, seen = unpadded_bert()
    mask = (torch.arange(90) >= torch.tensor([0, 88])[:, None]).long()
    model(torch.full((2, 90), 7) * mask, attention_mask=mask)
    assert seen == [180]


def test_a_model_of_two_trainers_is_hooked_once() -> None:
    model, _ = unpadded_bert()
    before = model(**padded_pair()).logits
    for again in (model, copy.deepcopy(model)):
        assert not unpadded.use(again)
        assert_close(again(**padded_pair()).logits, before)


class OfAUser(BertForSequenceClassification):
    """It may ask for the states of each layer, and pool them."""


def test_models_that_others_wrote_keep_their_padding() -> None:
    model = OfAUser(small("bert").config)
    attention.use(model)
    assert not unpadded.use(model)


# ---- dropout -------------------------------------------------------------------------------------


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_dropout_drops_as_often_as_it_says(probability: float) -> None:
    torch.manual_seed(0)
    ones = torch.ones(1000, 1001)
    found = layers.Dropout(probability)(ones)
    share = (found == 0).float().mean().item()
    assert share == pytest.approx(
        probability, abs=4 * (probability * (1 - probability) / 1e6) ** 0.5
    )
    assert found.mean().item() == pytest.approx(1, abs=0.02)
    assert found.max().item() == pytest.approx(1 / (1 - probability), rel=1e-4)
    dropped = (found == 0).double()  # neither neighbours nor rows go together
    for other in (dropped[:, 1:], dropped[1:]):
        same = dropped[: other.shape[0], : other.shape[1]]
        together = torch.corrcoef(torch.stack([same.reshape(-1), other.reshape(-1)]))[0, 1]
        assert abs(together) < 0.005


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
    ("training", "replaced", "attends"),
    [
        ({"precision": "bf16"}, True, attention.NAME),
        ({"precision": "fp32"}, True, attention.NAME),
        ({"precision": "bf16", "torch_compile": True}, False, "sdpa"),
    ],
)
def test_a_trainer_on_a_cpu_uses_them(
    training: dict[str, Any],
    replaced: bool,
    attends: str,
    uneven_reviews: Path,
    tiny_model: str,
    tmp_path: Path,
) -> None:
    recipe = catalog.find("yelp")(dataset=str(uneven_reviews), model=tiny_model)
    trainer = recipe.trainer(output_dir=str(tmp_path), use_cpu=True, **training)
    dropouts = [each for each in trainer.model.modules() if isinstance(each, torch.nn.Dropout)]
    assert {type(each) is layers.Dropout for each in dropouts} == {replaced}
    inputs = next(iter(trainer.get_train_dataloader()))["input_ids"]
    assert inputs.shape[1] % 8 == 0
    assert trainer.model.config._attn_implementation == attends
    assert attention.NAME not in trainer.model.config.to_json_string()  # other machines lack it
    assert unpadded.use(trainer.model) != replaced  # they see none already
