"""Fewer layers of the base model (row G6)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, pipeline

import finetune
from recipes.text import Text
from tests.acceptance.conftest import Finished, Trained, flags, once
from tests.families import write

#: The list of layers of each family, and how its configuration calls their number.
STACKS = {
    "bert": ("bert.encoder.layer", "num_hidden_layers"),
    "deberta": ("deberta.encoder.layer", "num_hidden_layers"),
    "distilbert": ("distilbert.transformer.layer", "n_layers"),
    "gpt2": ("transformer.h", "n_layer"),
    "longformer": ("longformer.encoder.layer", "num_hidden_layers"),
    "modernbert": ("model.layers", "num_hidden_layers"),
    "mpnet": ("mpnet.encoder.layer", "num_hidden_layers"),
    "qwen2": ("model.layers", "num_hidden_layers"),
    "roberta": ("roberta.encoder.layer", "num_hidden_layers"),
}
#: Of four layers, these are kept; with one for each layer in their order, not in that of the rest.
KEPT = [0, 2, 3]
MORE: dict[str, dict[str, Any]] = {
    "longformer": dict(attention_window=[16, 8, 16, 4]),
    "qwen2": dict(use_sliding_window=True, max_window_layers=3),
}


@pytest.mark.contract("G6")
@pytest.mark.parametrize("family", STACKS)
def test_layers_are_those_of_the_base(family: str, reviews: Path, tmp_path: Path) -> None:
    """The first, the last and those evenly between: as if the others were removed by hand."""
    stack, name = STACKS[family]
    options = {name: 4, "num_hidden_layers": 4, **MORE.get(family, {})}
    base = write(family, tmp_path / "base", **options)
    recipe = Text(dataset=str(reviews), model=str(base), layers=3, max_length=32)
    model: Any = recipe.build_model(["bad", "good"]).eval()
    model.save_pretrained(tmp_path / "saved")
    loaded: Any = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    config = recipe.model_config
    assert json.loads((tmp_path / "saved" / "config.json").read_text())[name] == 3
    assert config is not None
    assert config.num_hidden_layers == 3
    full: Any = Text(dataset=str(reviews), model=str(base)).build_model(["bad", "good"]).eval()
    layers = full.get_submodule(stack)
    weights = {key: w for key, w in model.state_dict().items() if not key.startswith(stack)}
    full.load_state_dict(weights, strict=False)  # the same new head
    full.set_submodule(stack, torch.nn.ModuleList([layers[number] for number in KEPT]))
    for field in ("layer_types", "attention_window"):
        if isinstance(items := getattr(full.config, field, None), list):
            setattr(full.config, field, [items[number] for number in KEPT])
            assert getattr(loaded.config, field) == getattr(full.config, field)
    full.config.num_hidden_layers = 3
    texts = ["the food was great and the room was stale " * 3, "dull"]
    tokenize = recipe.processing_class()
    batch = dict(tokenize(texts, padding=True, truncation=True, return_tensors="pt"))
    with torch.no_grad():
        expected, outputs, again = (m(**batch)["logits"] for m in (full, model, loaded))
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(again, expected)
    assert (outputs[0] - outputs[1]).abs().max() > 1e-4


@pytest.fixture(scope="session")
def deep_bert(shared_directory: Path) -> Path:
    """The directory of a BERT with 12 layers."""
    return once(
        shared_directory / "deep_bert", lambda path: write("bert", path, num_hidden_layers=12)
    )


@pytest.mark.contract("G6")
def test_a_run_with_fewer_layers(
    trained: Trained, reviews: Path, deep_bert: Path, tmp_path: Path
) -> None:
    """Its directory loads with `pipeline`, and answers as `predict`; a resume with other layers is
    refused. `test_teacher.py` has a resume with the same ones.
    """
    options: dict[str, Any] = dict(dataset=str(reviews), model=str(deep_bert), layers=6)
    run = trained("layers", "text", **options, adapter="lora", num_train_epochs=1, baseline=False)
    assert AutoConfig.from_pretrained(run.path).num_hidden_layers == 6
    notes = [note for note in run.manifest.data.notes if note.startswith("--layers")]
    assert notes == ["--layers 6: of layers 0 to 11, 0, 2, 4, 7, 9, 11 are kept"]
    texts = run.predictions["text"][:20].tolist()
    answers: Any = pipeline("text-classification", str(run.path))(texts)
    predicted = finetune.predict(run, texts, precision="fp32")
    assert predicted["label"].tolist() == [answer["label"] for answer in answers]
    scores = [answer["score"] for answer in answers]
    np.testing.assert_allclose(predicted["probability"], scores, atol=1e-5)
    with pytest.raises(finetune.UserError, match="was trained with layers 6, now it is 3") as info:
        finetune.train(
            "text", **options | dict(layers=3), adapter="lora", num_train_epochs=2, max_length=64,
            precision="fp32", resume=True, output_dir=str(run.path), allow_changed="layers",
        )  # fmt: skip
    assert "another --output_dir" in str(info.value)
    assert finetune.Run.load(run.path).manifest.status == "finished"


@pytest.mark.contract("G6")
def test_the_default_learning_rate_is_for_the_layers_that_are_kept(
    reviews: Path, deep_bert: Path, tmp_path: Path
) -> None:
    """BERT-base has 86 million parameters in its layers, a quarter of them 21."""
    base = tmp_path / "base"
    base.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (base / name).write_bytes((deep_bert / name).read_bytes())
    AutoConfig.for_model("bert").save_pretrained(base)
    rates = []
    for layers in (None, 3):
        recipe = Text(dataset=str(reviews), model=str(base), layers=layers, head="probe")
        rates.append(recipe.training_defaults({}, is_loaded=True)["learning_rate"])
    assert rates == [3e-5, 1e-4]


RECIPE = """
from finetune import TextRecipe

class Mine(TextRecipe):
    def build_model(self, labels):
        return super().build_model(labels)
"""


@pytest.mark.contract("G6", "F4")
@pytest.mark.parametrize(
    ("family", "layers", "fragment"),
    [
        ("bert", 3, "--layers 3: expected at most 2, the model has 2 layers"),
        ("bert", 0, "--layers 0: expected 1 or more"),
        ("t5", 1, "transformer.decoder.block"),
        ("albert", 1, "expected one list of num_hidden_layers = 2 layers, found none"),
        ("mine", 1, "the recipe overrides build_model()"),
    ],
)
def test_models_without_such_layers_are_refused(
    family: str, layers: int, fragment: str, reviews: Path, tmp_path: Path,
    cli: Callable[..., Finished],
) -> None:  # fmt: skip
    recipe = "text"
    if family == "mine":
        recipe, family = str(tmp_path / "mine.py"), "bert"
        (tmp_path / "mine.py").write_text(RECIPE)
    base = write(family, tmp_path / "base")
    options = flags(dataset=reviews, model=base, layers=layers, max_length=32)
    cli(recipe, *options, "--dry_run").refused(fragment)
