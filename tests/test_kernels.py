"""What a kernel does not know is left to the libraries, and so is everything by one switch."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close
from transformers import AutoModelForTokenClassification
from transformers.models.bert.modeling_bert import BertEncoder

import finetune
from finetune import UserError
from finetune.cli.screen import Screen
from finetune.models.cpu import allocator, attention, dropout, exchange, kernels, packing, unpadded
from finetune.pipeline.evaluate import evaluate
from finetune.predicting.predictor import Predictor
from finetune.recipe import TextRecipe, catalog
from finetune.runtime import distributed, precision
from finetune.training.arguments import FinetuneArguments, resolve_values
from tests.models import drawn, padded_pair, small, watched_layer

Model = torch.nn.Module
LAYER = SimpleNamespace(is_causal=False)
SHAPE = (3, 2, 9, 8)
SEEN = torch.ones(3, 1, 9, 9, dtype=torch.bool).tril()


# ---- attention -----------------------------------------------------------------------------------


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our attention fails where it is taken."""
    monkeypatch.setattr(attention, "_FewSequences", None)


@pytest.mark.usefixtures("left")
@pytest.mark.parametrize(
    "mask",
    [
        torch.zeros(3, 1, 9, 9).masked_fill(~SEEN, float("-inf")),
        SEEN.expand(3, 2, 9, 9),
        SEEN[:1],
        SEEN[:, :, -1:],
        SEEN[0, 0],
    ],
    ids=["of numbers", "for each head", "one for all", "one for every token", "without rows"],
)
def test_a_mask_of_another_kind_is_left_to_torch(mask: torch.Tensor) -> None:
    tensors = [drawn(*SHAPE) + each for each in range(3)]
    found, _ = attention.forward(LAYER, *tensors, mask)
    assert_close(found, scaled_dot_product_attention(*tensors, attn_mask=mask).transpose(1, 2))


@pytest.mark.usefixtures("left")
@pytest.mark.parametrize(
    "named",
    [
        {"dropout": 0.5},
        {"is_causal": True},
        {"position_bias": torch.zeros(1, 2, 9, 9)},
        {"sliding_window": 4},
        {"s_aux": torch.zeros(2)},
        {"output_attentions": True},
    ],
    ids=lambda named: next(iter(named)),
)
def test_an_attention_that_asks_for_more_is_left_to_torch(named: dict[str, Any]) -> None:
    attention.forward(LAYER, *(drawn(*SHAPE) for _ in range(3)), None, **named)


@pytest.mark.usefixtures("left")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_an_attention_in_another_dtype_is_left_to_torch(dtype: torch.dtype) -> None:
    found, _ = attention.forward(LAYER, *(drawn(*SHAPE).to(dtype) for _ in range(3)), None)
    assert found.dtype == dtype


@pytest.mark.usefixtures("left")
def test_keys_of_another_length_are_left_to_torch() -> None:
    query, key = drawn(*SHAPE), drawn(3, 2, 12, 8)
    found, _ = attention.forward(LAYER, query, key, key, None)
    assert found.shape == (3, 9, 2, 8)


def test_a_window_is_in_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "sdpa_attention_forward", None)
    monkeypatch.setattr(attention, "FASTER_DTYPES", attention.DTYPES)
    near = SEEN & SEEN.mT.roll(1, 0)
    near |= torch.eye(9, dtype=torch.bool)
    tensors = [drawn(*SHAPE) + each for each in range(3)]
    found, _ = attention.forward(LAYER, *tensors, near, sliding_window=4, position_ids=near)
    expected = scaled_dot_product_attention(*tensors, attn_mask=near).transpose(1, 2)
    assert_close(found, expected, rtol=1e-5, atol=1e-5)


# ---- layers without padding ----------------------------------------------------------------------


def with_a_second_list(model: Any) -> None:
    model.classifier.more = torch.nn.ModuleList([torch.nn.Linear(2, 2)])


def with_other_layers(model: Any) -> None:
    model.bert.encoder.layer[1] = torch.nn.Identity()


def with_a_convolution(model: Any) -> None:
    model.bert.encoder.layer[1].output.dropout = torch.nn.Conv1d(1, 1, 1)


def with_a_hook(model: Any) -> None:
    model.bert.encoder.layer[0].output.register_forward_hook(lambda *given: None)


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
    model = small("bert")
    attention.use(model)
    change(model)
    assert not unpadded.use(model)


def test_a_model_without_layers_keeps_its_padding() -> None:
    model = small("bert", num_hidden_layers=0)
    attention.use(model)
    assert not unpadded.use(model)


def test_a_head_that_reads_every_token_keeps_the_padding() -> None:
    model = AutoModelForTokenClassification.from_config(small("bert").config)
    attention.use(model)
    assert not unpadded.use(model)


def unpadded_bert() -> tuple[Any, list[int]]:
    model = small("bert")
    attention.use(model)
    assert unpadded.use(model)
    return model, watched_layer(model)


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
    ids=["by keyword", "with a cache", "and one of heads", "and states", "of numbers", "of heads"],
)
def test_a_layer_that_is_called_in_another_way_keeps_its_padding(
    call: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(self: Any, hidden: torch.Tensor, attention_mask: Any, **others: Any) -> Any:
        for layer in self.layer:
            hidden = call(layer, hidden, attention_mask)
        return SimpleNamespace(last_hidden_state=hidden, past_key_values=None)

    monkeypatch.setattr(BertEncoder, "forward", encode)
    expected = small("bert")(**padded_pair()).logits
    model, seen = unpadded_bert()
    assert_close(model(**padded_pair()).logits, expected, rtol=1e-5, atol=1e-6)
    assert seen == [180]


class OneCache:
    """It caches nothing, but a layer that is handed one may have keys of earlier tokens."""

    def update(self, key: torch.Tensor, value: torch.Tensor, layer: Any) -> Any:
        return key, value


def test_layers_in_another_dtype_keep_their_padding() -> None:
    model, seen = unpadded_bert()
    model.double()(**padded_pair())
    assert seen == [180]


def test_a_model_that_failed_half_way_returns_padded_states_after_it() -> None:
    model, seen = unpadded_bert()
    with pytest.raises(IndexError):
        model(**{**padded_pair(), "input_ids": torch.full((2, 90), 999)})
    model.bert(**padded_pair())  # of which more than the first token may be read
    assert seen == [180]


def test_layers_keep_their_padding_where_there_is_little(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = unpadded_bert()
    model(**padded_pair())
    monkeypatch.setattr(unpadded, "MOST_TOKENS", 0.7)
    model(**padded_pair())
    assert seen == [128, 180]


# ---- dropout -------------------------------------------------------------------------------------


def test_dropout_in_place_stays_torchs() -> None:
    model = torch.nn.Sequential(torch.nn.Dropout(0.5, inplace=True), torch.nn.Dropout(0.5))
    dropout.use(model)
    assert [type(each) for each in model] == [torch.nn.Dropout, dropout.Dropout]
    model[1].inplace = True  # later on
    ones = torch.ones(100)
    assert model[1](ones) is ones
    assert set(ones.tolist()) == {0.0, 2.0}


@pytest.mark.parametrize(
    ("probability", "input"),
    [
        (0.5, torch.ones(4, dtype=torch.float64)),
        (1e-9, torch.ones(4)),
        (1 - 1e-9, torch.ones(4)),
    ],
)
def test_dropout_of_what_is_not_known_is_torchs(probability: float, input: torch.Tensor) -> None:
    torch.manual_seed(0)
    found = dropout.Dropout(probability)(input)
    torch.manual_seed(0)
    assert_close(found, torch.nn.Dropout(probability)(input))


# ---- packing -------------------------------------------------------------------------------------


def test_weights_that_were_packed_can_be_read() -> None:
    model = small("bert").eval()
    dense = model.bert.pooler.dense
    packing.pack(model)
    packed = model.bert.pooler.dense
    assert type(packed) is packing.PackedLinear
    assert torch.equal(packed.weight, dense.weight)
    assert (packed.in_features, packed.out_features) == (32, 32)


@pytest.mark.parametrize("odd", ["float64", "parametrized", "mixed"])
def test_odd_layers_are_not_packed(odd: str) -> None:
    model = small("bert").eval()
    dense = model.classifier
    if odd == "float64":
        dense.double()
    elif odd == "parametrized":
        torch.nn.utils.parametrizations.weight_norm(dense)
    else:
        dense.bias.data = dense.bias.data.bfloat16()
    packing.pack(model)
    assert model.classifier is dense
    assert type(model.bert.pooler.dense) is packing.PackedLinear


@pytest.mark.parametrize("prefers", [True, False])
@pytest.mark.parametrize("bf16", [True, False])
def test_inference_has_our_attention_where_bf16_is_the_faster(
    bf16: bool, prefers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "prefers_bf16", lambda device: prefers)
    model = small("bert").eval()
    kernels.for_inference(model, bf16=bf16)
    assert attention.used_by(model) == (bf16 and prefers)


def test_a_processor_without_bf16_packs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("bert").eval().bfloat16()
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    packing.pack(model)
    assert type(model.classifier) is torch.nn.Linear


# ---- the exchange --------------------------------------------------------------------------------


def test_what_is_exchanged_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(4, 4)
    assert not exchange.expected(model)  # one process
    monkeypatch.setattr(
        distributed, "ranks", lambda: distributed.Ranks(world_size=2, local_world_size=2)
    )
    assert exchange.expected(model)
    assert not exchange.expected(torch.nn.Embedding(9, 4, sparse=True))
    assert not exchange.expected(torch.nn.Linear(4, 4).bfloat16())
    monkeypatch.setattr(exchange.shutil, "disk_usage", lambda path: SimpleNamespace(free=159))
    assert not exchange.expected(model)
    monkeypatch.setattr(
        distributed, "ranks", lambda: distributed.Ranks(world_size=2, local_world_size=1)
    )
    assert not exchange.expected(model)


# ---- the switch ----------------------------------------------------------------------------------


class Frozen(TextRecipe):
    """Only the head is trained."""

    def adapt(self, model: Any, arguments: FinetuneArguments) -> Model:
        model.base_model.requires_grad_(False)
        return super().adapt(model, arguments)


@pytest.fixture
def of_library_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel of ours fails where it is switched on."""
    for module, name in (
        (allocator, "keep_large_blocks"),
        (attention, "use"),
        (dropout, "use"),
        (packing, "pack"),
        (unpadded, "use"),
    ):
        monkeypatch.setattr(module, name, None)


def assert_of_library(model: Model) -> None:
    assert model.config._attn_implementation == "sdpa"
    for module in model.modules():
        assert not type(module).__module__.startswith("finetune.")
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_a_plain_trainer_has_the_models_of_the_library(
    uneven_reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    recipe = catalog.find("yelp")(dataset=str(uneven_reviews), model=tiny_model)
    assert_of_library(recipe.trainer_kwargs()["model"])
    arguments = transformers.TrainingArguments(str(tmp_path), max_steps=1, use_cpu=True)
    trainer = transformers.Trainer(args=arguments, **recipe.trainer_kwargs())
    trainer.train()
    assert_of_library(trainer.model)


@pytest.mark.usefixtures("of_library_only")
@pytest.mark.trains
def test_a_run_without_kernels_is_evaluated_and_predicted_without(
    uneven_reviews: Path, tiny_model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = finetune.train(
        "yelp",
        dataset=str(uneven_reviews),
        model=tiny_model,
        max_steps=2,
        eval_strategy="no",
        cpu_kernels="off",
        baseline=False,
        progress=Screen(),
        use_cpu=True,
        output_dir=str(tmp_path / "run"),
    )
    assert "cpu kernels  off\n" in capfd.readouterr().out
    assert run.manifest["arguments"]["cpu_kernels"] == "off"
    assert evaluate(run).metrics == pytest.approx(run.metrics["test"], abs=1e-6)
    logits = Predictor(run).predict(["so good"])
    assert logits.shape == (1, len(run.labels))
    for wanted in (
        lambda: evaluate(run, cpu_kernels="auto"),
        lambda: Predictor(run, cpu_kernels="auto"),
    ):
        with pytest.raises(TypeError, match="NoneType"):
            wanted()


@pytest.mark.trains
def test_an_adapted_model_is_what_is_trained(
    uneven_reviews: Path, tiny_model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The whole path: its start block, its steps, its evaluation and its predictions."""
    path = tmp_path / "frozen.py"
    path.write_text(
        '"""Only the head."""\n'
        "from finetune import TextRecipe\n\n"
        "class Frozen(TextRecipe):\n"
        "    def adapt(self, model, arguments):\n"
        "        model.base_model.requires_grad_(False)\n"
        "        return super().adapt(model, arguments)\n"
    )
    run = finetune.train(
        str(path),
        dataset=str(uneven_reviews),
        model=tiny_model,
        max_steps=2,
        learning_rate=0.1,
        eval_strategy="no",
        baseline=False,
        precision="fp32",
        progress=Screen(),
        use_cpu=True,
        output_dir=str(tmp_path / "run"),
    )
    said = " ".join(capfd.readouterr().out.split())
    assert (
        "cpu kernels attention, dropout, padding-free encoder layers (sequences packed), "
        "allocator; --cpu_kernels off for those of the libraries" in said
    )
    trained = dict(run.model().named_parameters())
    transformers.set_seed(run.manifest["arguments"]["seed"])
    before = dict(TextRecipe(model=tiny_model).build_model(run.labels).named_parameters())
    changed = {name for name, each in trained.items() if not torch.equal(each, before[name])}
    assert changed == {"classifier.weight", "classifier.bias"}
    assert evaluate(run).metrics == pytest.approx(run.metrics["test"], abs=1e-6)


def test_a_trainer_trains_the_adapted_model(
    uneven_reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    recipe = Frozen(dataset=str(uneven_reviews), model=tiny_model)
    trainer = recipe.trainer(output_dir=str(tmp_path), use_cpu=True)
    learned = [name for name, each in trainer.model.named_parameters() if each.requires_grad]
    assert learned == ["classifier.weight", "classifier.bias"]
    assert dropout.used_by(trainer.model)


def test_the_head_does_not_depend_on_the_kernels(
    uneven_reviews: Path, tiny_model: str, tmp_path: Path
) -> None:
    recipe = catalog.find("yelp")(dataset=str(uneven_reviews), model=tiny_model)
    heads = []
    for choice in ("auto", "off"):
        torch.manual_seed(len(heads))
        trainer = recipe.trainer(output_dir=str(tmp_path), use_cpu=True, cpu_kernels=choice)
        heads.append(trainer.model.classifier.weight)
        assert trainer.model_wrapped is trainer.model
    assert torch.equal(*heads)


def test_a_choice_that_is_misspelt_is_refused() -> None:
    expected = r"--cpu_kernels of: expected auto or off; did you mean 'off'\?"
    with pytest.raises(UserError, match=expected):
        resolve_values({"output_dir": "unused", "cpu_kernels": "of"})


def test_attention_weights_that_are_dropped_are_left_to_torch() -> None:
    model = small("bert", attention_probs_dropout_prob=0.1)
    kernels.for_training(model, bf16=True, recomputes=False)
    assert model.config._attn_implementation == "sdpa"
    assert "attention" not in kernels.names(model)


def test_fp32_keeps_torchs_attention_where_there_is_padding() -> None:
    model = small("ernie")
    kernels.for_training(model, bf16=False, recomputes=False)
    assert "attention" not in kernels.names(model)
    kernels.for_training(model, bf16=True, recomputes=False)
    assert "attention" in kernels.names(model)
