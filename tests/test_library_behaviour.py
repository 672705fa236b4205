"""Private members of the libraries do what they are relied on for."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import evaluate
import huggingface_hub.constants
import pytest
import torch
import torch.distributed as dist
from accelerate.data_loader import prepare_data_loader
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import FullyShardedDataParallelPlugin
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

from finetune.config.parser import RecipeParser
from finetune.errors import Report
from finetune.models.cpu import attention
from finetune.models.cpu.packing import PackedLinear
from finetune.recipe import scoring
from finetune.runtime import hub
from finetune.training.sampler import GlobalBatchSampler
from recipes.yelp import Yelp
from tests.conftest import ROOT
from tests.library_members import resolve

pytestmark = pytest.mark.usefixtures("one_thread")

# ---- behaviour: transformers ---------------------------------------------------------------------


@pytest.fixture
def bert() -> BertForSequenceClassification:
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=20,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            attn_implementation="sdpa",
        )
    ).eval()


def test_weights_keep_the_names_that_the_model_has(bert: BertForSequenceClassification) -> None:
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import revert_weight_conversion

    def saved() -> set[str]:
        return set(revert_weight_conversion(bert, dict(bert.state_dict())))

    bert._weight_conversions = get_model_conversion_mapping(bert, add_legacy=True)
    assert "bert.embeddings.LayerNorm.gamma" in saved()
    bert._weight_conversions = []
    assert saved() == set(bert.state_dict())


def test_a_family_with_other_names_on_the_hub_needs_an_empty_list() -> None:
    """Of a ViT, None stands for the names that checkpoints of the family have."""
    from transformers import ViTConfig, ViTForImageClassification
    from transformers.core_model_loading import revert_weight_conversion

    sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    vit = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, **sizes))

    def saved() -> set[str]:
        return set(revert_weight_conversion(vit, dict(vit.state_dict())))

    assert saved() != set(vit.state_dict())
    vit._weight_conversions = []
    assert saved() == set(vit.state_dict())


SEEN = torch.tensor([[1, 1, 1], [1, 1, 0]])


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Those that our attention was called with."""
    found: list[torch.Tensor] = []
    ours = attention.forward

    def forward(module: Any, query: Any, key: Any, value: Any, mask: Any, **others: Any) -> Any:
        found.append(mask)
        return ours(module, query, key, value, mask, **others)

    monkeypatch.setattr(attention, "forward", forward)
    return found


def test_attention_is_chosen_by_name(
    bert: BertForSequenceClassification, masks: list[torch.Tensor]
) -> None:
    assert bert.config._attn_implementation == "sdpa"
    before = bert(input_ids=SEEN).logits
    attention.use(bert)
    assert bert.config._attn_implementation == attention.NAME
    torch.testing.assert_close(bert(input_ids=SEEN).logits, before)
    assert len(masks) == 1


def test_a_mask_is_true_where_a_token_is_seen(
    bert: BertForSequenceClassification, masks: list[torch.Tensor]
) -> None:
    attention.use(bert)
    bert(input_ids=SEEN, attention_mask=SEEN)
    assert torch.equal(masks[0], SEEN.bool()[:, None, None].expand(2, 1, 3, 3))


def test_the_parser_makes_actions_of_the_fields() -> None:
    parser = RecipeParser(Yelp)
    options = parser.read(["--learning-rate", "0.5", "--bf16"], Report())
    assert options == {"learning_rate": 0.5, "bf16": True}
    assert {"learning_rate", "max_length", "embedded"} <= set(parser.defaults)
    with pytest.raises(argparse.ArgumentTypeError, match="Truthy value expected: got x but "):
        resolve("transformers.hf_argparser:string_to_bool")("x")


def test_small_functions_answer() -> None:
    assert isinstance(
        resolve(
            "transformers.integrations.integration_utils:get_available_reporting_integrations"
        )(),
        list,
    )
    trackers = "transformers.integrations.integration_utils:INTEGRATION_TO_CALLBACK"
    assert {"wandb", "tensorboard", "mlflow"} <= set(resolve(trackers))
    helpers = "transformers.utils.import_utils:"
    assert resolve(f"{helpers}is_in_notebook")() is False
    assert isinstance(resolve(f"{helpers}is_torch_tf32_available")(), bool)
    assert resolve("torch.utils._pytree:tree_map")(abs, (-1, [-2])) == (1, [2])
    hashed = resolve("datasets.fingerprint:Hasher").hash
    assert hashed(["a", 1]) == hashed(["a", 1]) != hashed(["a", 2])
    PartialState(cpu=True)  # a trainer makes one
    assert PartialState._shared_state
    assert hasattr(AcceleratorState._shared_state, "keys")


# ---- behaviour: accelerate, torch ----------------------------------------------------------------


def test_a_prepared_loader_keeps_its_batches() -> None:
    def sampler(epoch: int) -> GlobalBatchSampler:
        found = GlobalBatchSampler(8, global_batch_size=4, seed=1)
        found.set_epoch(epoch)
        return found

    loader = DataLoader(torch.arange(8), batch_sampler=sampler(0))  # type: ignore[arg-type]
    prepared = prepare_data_loader(loader, num_processes=1, process_index=0)
    for epoch in (0, 3):
        prepared.set_epoch(epoch)
        assert [batch.tolist() for batch in prepared] == list(sampler(epoch))
    assert list(sampler(0)) != list(sampler(3))


def test_the_plugin_of_fsdp_has_its_attributes() -> None:
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap"
    )
    assert plugin.fsdp_version == 2
    assert plugin.transformer_cls_names_to_wrap is None
    plugin.set_state_dict_type("FULL_STATE_DICT")
    assert "FULL_STATE_DICT" in str(plugin.state_dict_type)


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_ddp_hands_its_buckets_to_a_hook() -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    seen = []

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # torch judges annotations
        seen.append((state, bucket.index(), bucket.is_last(), bucket.buffer().numel()))
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer() + 1)
        return future

    model.register_comm_hook("state", hook)
    model(torch.zeros(1, 3)).sum().backward()
    assert seen == [("state", 0, True, 3 * 2 + 2)]
    assert model.module.weight.grad is not None
    assert torch.equal(model.module.weight.grad, torch.ones(2, 3))


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="no oneDNN")
def test_a_packed_layer_multiplies() -> None:
    linear, rows = torch.nn.Linear(16, 8), torch.randn(4, 16)
    with torch.no_grad():
        torch.testing.assert_close(PackedLinear(linear)(rows), linear(rows))


def test_a_mask_is_applied() -> None:
    kept = torch.tensor([True, False])
    found = torch.ops.aten.native_dropout_backward(torch.tensor([1.0, 2.0]), kept, 4.0)
    assert found.tolist() == [4.0, 0.0]


def test_a_profiler_event_has_its_fields() -> None:
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile,
        torch.profiler.record_function("ours"),
    ):
        torch.ones(2) + 1
    profile.step()
    assert profile.step_num == 1
    events = {event.name: event for event in profile.events()}
    outer, inner = events["ours"], events["aten::add"]
    device_type = resolve("torch._C._autograd:DeviceType")
    assert outer.device_type == inner.device_type == device_type.CPU
    assert outer.thread == inner.thread
    assert outer.time_range.start <= inner.time_range.start
    assert inner.time_range.end <= outer.time_range.end
    assert inner in outer.cpu_children
    assert not inner.is_async
    assert not inner.is_user_annotation
    averages = {each.key: each for each in profile.key_averages()}
    assert averages["aten::add"].count == 1
    assert averages["aten::add"].self_cpu_time_total > 0
    assert averages["aten::add"].self_device_time_total == 0


# ---- behaviour: datasets, evaluate, the caches ---------------------------------------------------


def test_the_caches_are_laid_out_as_assumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hub.caches({"HF_HOME": huggingface_hub.constants.HF_HOME}) == {
        "hub": Path(huggingface_hub.constants.HF_HUB_CACHE),
        "datasets": Path(datasets.config.HF_DATASETS_CACHE),
    }
    assert hub.offline() == huggingface_hub.constants.HF_HUB_OFFLINE
    wanted = {"model": "some/Model-x", "dataset": "some/MyReviews"}
    monkeypatch.setattr(hub, "caches", lambda: {"hub": tmp_path, "datasets": tmp_path})
    assert len(hub.missing(wanted)) == 2
    folder = resolve("huggingface_hub.file_download:repo_folder_name")
    snake = resolve("datasets.naming:camelcase_to_snakecase")
    snapshot = tmp_path / folder(repo_id="some/Model-x", repo_type="model") / "snapshots" / "abc"
    files = [snapshot / name for name in ("model.safetensors", "config.json", "tokenizer.json")]
    cached = tmp_path / f"some___{snake('MyReviews')}" / "default" / "0.0.0" / "abc"
    for file in (*files, cached / datasets.config.DATASET_INFO_FILENAME):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert hub.missing(wanted) == []


@pytest.mark.parametrize("name", scoring.Scoring(accuracy={}, f1={}).arguments)
def test_a_metric_is_called(name: str) -> None:
    module = scoring.load(name)
    assert module.compute(predictions=[1, 0], references=[1, 0]) == {name: 1.0}
    assert set(module.features) == {"predictions", "references"}


def test_a_metric_is_copied_by_its_content(tmp_path: Path) -> None:
    source = (ROOT / "metrics" / "accuracy" / "accuracy.py").read_text(encoding="utf-8")
    path = tmp_path / "a_metric_of_ours" / "a_metric_of_ours.py"
    path.parent.mkdir()
    scores = []
    for spelled in ('"accuracy"', '"another"'):
        path.write_text(source.replace('{"accuracy": float', f"{{{spelled}: float"))
        module = evaluate.load(str(path.parent), keep_in_memory=True)
        scores += module.compute(predictions=[1], references=[1])
    assert scores == ["accuracy", "another"]
