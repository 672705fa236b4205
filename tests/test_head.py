"""Test that the last layer of every family is found, folded and scaled."""

import copy
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from finetune.models import head, mean_layer
from tests.conftest import ROOT
from tests.families import build
from tests.warm import Servers

#: Families with and without a bias in the last layer.
BIAS = ["bert", "roberta", "distilbert", "xlnet", "t5", "bart", "electra", "albert", "deberta-v2"]
NO_BIAS = ["gpt2", "llama"]
INPUT_IDS = torch.tensor([[5, 6, 7, 8, 2], [9, 10, 11, 12, 2], [13, 5, 14, 6, 2]])


def tiny(family: str, width: int) -> Any:
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    names = {number: f"target {number}" for number in range(width)}
    return build(family, **ids, vocab_size=50, num_labels=width, id2label=names).eval()


def outputs(model: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=INPUT_IDS)["logits"]
    return logits


@pytest.mark.parametrize(
    "family",
    ["bert", "roberta", "xlm-r", "distilbert", "electra", "deberta-v2", "deberta-v3"],
)
def test_one_more_layer_returns_the_mean_of_the_states_without_padding(family: str) -> None:
    model = tiny(family, 3)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    ids = INPUT_IDS[:2] * mask
    longer: Any = mean_layer.append(model).eval()
    layers = model.config.num_hidden_layers
    assert [layers, longer.config.num_hidden_layers] == [2, 3]
    with torch.no_grad():
        states = model.base_model(ids, mask).last_hidden_state
        first = longer.base_model(ids, mask).last_hidden_state[:, 0]
    for row, length in enumerate((5, 3)):
        mean = states[row, :length].mean(dim=0)
        expected = (mean - mean.mean()) / mean.std(correction=0)
        assert first[row] == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("family", BIAS + NO_BIAS)
def test_a_model_returns_folded_outputs(family: str, width: int, tmp_path: Path) -> None:
    model = tiny(family, width)
    before, layer = outputs(model), head.last_linear(model, width)
    assert (layer.bias is not None) == (family in BIAS)
    scale, shift = np.array([3.0, 0.01][:width]), np.array([100.0, -2.0][:width])
    if family in NO_BIAS:
        with pytest.raises(AssertionError):
            head.fold(layer, scale, shift)
        shift *= 0
    head.fold(layer, scale, shift)
    expected = before.double() * torch.tensor(scale) + torch.tensor(shift)
    torch.testing.assert_close(outputs(model).double(), expected, rtol=1e-5, atol=1e-6)
    model.save_pretrained(tmp_path)
    reloaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    for name, weights in reloaded.state_dict().items():
        assert torch.equal(weights, model.state_dict()[name]), name
    # not identical: kernels differ for weights at other places in memory
    torch.testing.assert_close(outputs(reloaded), outputs(model))


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_scaling_keeps_outputs_and_weights_bit_identical(family: str, tmp_path: Path) -> None:
    model = tiny(family, 2)
    layer = head.last_linear(model, 2)
    if layer.bias is not None:
        layer.bias.data += torch.tensor([70.0, 0.3])
    before, plain = outputs(model), copy.deepcopy(model.state_dict())
    head.scale_outputs(layer, np.array([64.0, 0.125]))
    assert torch.equal(outputs(model), before)
    name = next(name for name in plain if name.endswith(("classifier.weight", "score.weight")))
    assert torch.equal(layer.weight * torch.tensor([[64.0], [0.125]]), plain[name])
    for key, value in model.state_dict().items():
        assert torch.equal(value, plain[key])
    model.save_pretrained(tmp_path)
    reloaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    for key, value in reloaded.state_dict().items():
        assert torch.equal(value, plain[key])
    torch.testing.assert_close(outputs(reloaded), before)
    scaled_weight = layer.weight.detach().clone()
    model.load_state_dict({key: value.clone() for key, value in plain.items()})
    assert torch.equal(layer.weight, scaled_weight)
    head.scale_outputs(layer, np.array([4.0, 0.5]))
    assert torch.equal(outputs(model), before)
    assert torch.equal(layer.weight * torch.tensor([[4.0], [0.5]]), plain[name])


def test_scaled_outputs_are_computed_in_float32_under_autocast() -> None:
    layer = torch.nn.Linear(8, 1)
    torch.nn.init.constant_(layer.bias, 2000.0)
    states = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    exact = layer(states).detach()
    head.scale_outputs(layer, np.array([4.0]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scaled = layer(states)
    assert scaled.dtype == torch.float32
    torch.testing.assert_close(scaled.detach(), exact)  # bf16 numbers are 2000, 2008, ...


def test_a_step_moves_scaled_outputs_by_their_scale() -> None:
    changes = []
    for scale in (None, 1024.0):
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 1)
        if scale:
            head.fold(layer, np.array([scale]), np.zeros(1))
            head.scale_outputs(layer, np.array([scale]))
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, weight_decay=0.1)
        before = layer(torch.ones(1, 4))
        (before / (scale or 1)).square().sum().backward()
        optimizer.step()
        changes.append((layer(torch.ones(1, 4)) - before).item() / (scale or 1))
    assert changes[0] == pytest.approx(changes[1], rel=1e-6)


SHARDED = """
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, set_model_state_dict
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from finetune.models import head, mean_layer

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
for width in (1, 3):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, width))
    rows = torch.randn(4, 8)
    before = model(rows).detach()
    plain = {name: value.clone() for name, value in model.state_dict().items()}
    head.scale_outputs(model[1], np.array([64.0, 0.25, 2.0][:width]))
    fully_shard(model, mesh=mesh)
    assert torch.equal(model(rows), before)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    assert all(torch.equal(whole[name], plain[name]) for name in plain)
    set_model_state_dict(model, get_model_state_dict(model))
    assert torch.equal(model(rows), before)
    scale, shift = np.linspace(0.5, 7.0, 8), np.linspace(-2.0, 1.0, 8)
    before = model[0](rows).detach()
    head.fold(model[0], scale, shift)
    expected = before * torch.tensor(scale).float() + torch.tensor(shift).float()
    torch.testing.assert_close(model[0](rows).detach(), expected)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.processes
def test_the_last_layer_of_a_sharded_model_is_scaled_and_folded(
    tmp_path: Path, warm: Servers
) -> None:
    (tmp_path / "sharded.py").write_text(SHARDED, encoding="utf-8")
    process = subprocess.run(
        warm.torchrun([], os.environ, module="sharded"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-2000:]
