"""Test recipes: fields are options, methods are steps, and errors name the option."""

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors import safe_open

from finetune import predicting
from finetune.config.parser import RecipeParser, RunOptions
from finetune.config.settings import Settings
from finetune.errors import UserError
from finetune.pipeline.preparation import load_and_check, with_epochs
from finetune.recipe import ImageRecipe, Recipe, TextRecipe, catalog, option
from finetune.rules.check import check_command
from finetune.rules.options import OptionValues
from finetune.training.arguments import FinetuneArguments
from recipes.text import Text
from tests.conftest import ROOT
from tests.hub.repositories import UNCASED


class Reviews(TextRecipe):
    max_length: int = 32
    temperature: float = option(1.0, "a custom option")


# ---- the contract ----------------------------------------------------------------------------


def test_a_field_declared_again_keeps_its_help() -> None:
    first, again = (
        {field.name: field.metadata["help"] for field in dataclasses.fields(cls)}
        for cls in (TextRecipe, Reviews)
    )
    assert first["max_length"] == again["max_length"]
    assert (TextRecipe().max_length, Reviews().max_length) == (512, 32)


def test_an_override_without_annotation_keeps_the_inherited_type() -> None:
    class Cold(Reviews):
        temperature = 0.5
        max_length = 16

    assert (Cold().temperature, Cold().max_length) == (0.5, 16)
    assert RecipeParser(Cold).read(["--temperature", "2", "--max-length=8"]) == {
        "temperature": 2.0,
        "max_length": 8,
    }
    with pytest.raises(UserError, match=r"--max_length: expected a whole number, found 0\.5"):
        Cold(max_length=0.5)


@pytest.mark.parametrize(
    "name", ["learning_rate", "global_batch_size", "config", "dry_run", "do_train"]
)
def test_a_field_with_a_reserved_name_is_refused(name: str) -> None:
    wrong = type("Wrong", (TextRecipe,), {"__annotations__": {name: float}, name: 0.1})

    with pytest.raises(UserError, match=rf"Wrong: the options {name} are named like training"):
        RecipeParser(wrong)


@pytest.mark.parametrize("name", ["training", "embedded"])
def test_defaults_of_base_classes_are_merged(name: str) -> None:
    upper = type("Upper", (TextRecipe,), {name: {"learning_rate": 1.0, "max_steps": 5}})
    lower = type("Lower", (upper,), {name: {"learning_rate": 2.0}})
    lowest = type("Lowest", (lower,), {})

    above = getattr(TextRecipe, name)
    assert getattr(upper, name) == {**above, "learning_rate": 1.0, "max_steps": 5}
    assert getattr(lower, name) == {**above, "learning_rate": 2.0, "max_steps": 5}
    assert getattr(lowest, name) == getattr(lower, name)
    assert "learning_rate" not in above


# ---- models ----------------------------------------------------------------------------------


@pytest.fixture
def uncased_model(tiny_model: str) -> str:
    """The directory of a model whose weights are stored in bf16."""
    return tiny_model.replace("cased", "uncased")


def test_dropout_reaches_the_model(tiny_model: str) -> None:
    recipe = TextRecipe(model=tiny_model, hidden_dropout=0.3, attention_dropout=0.0)
    model = recipe.build_model(["a", "b"])

    assert model.config.hidden_dropout_prob == 0.3
    assert model.config.attention_probs_dropout_prob == 0.0
    assert model.bert.encoder.layer[0].output.dropout.p == 0.3


def test_weights_are_in_fp32_regardless_of_the_checkpoint(uncased_model: str) -> None:
    assert uncased_model.endswith(UNCASED)
    with safe_open(Path(uncased_model) / "model.safetensors", framework="pt") as stored:
        assert {stored.get_tensor(key).dtype for key in stored.keys()} == {  # noqa: SIM118
            torch.bfloat16
        }

    model = TextRecipe(model=uncased_model).build_model(["a", "b"])

    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


# ---- the catalog -----------------------------------------------------------------------------


def test_two_files_with_the_same_name_are_two_recipes(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{name}/task.py") for name in ("First", "Second")]
    for path in map(Path, paths):
        path.parent.mkdir()
        path.write_text(
            f"from finetune import TextRecipe\nclass {path.parent.name}(TextRecipe): pass"
        )
    recipes = [catalog.find(path) for path in paths]
    assert [cls.__name__ for cls in recipes] == ["First", "Second"]
    assert [catalog.origin(cls) for cls in recipes] == paths


def test_the_batch_size_of_a_subclass_replaces_that_of_its_base() -> None:
    class Tokens(TextRecipe):
        """Steps with a number of tokens."""

        training = dict(max_tokens_per_batch=512)

    class Rows(Tokens):
        """Steps with a number of rows."""

        training = dict(global_batch_size=16)

    assert Rows.training["global_batch_size"] == 16
    assert "max_tokens_per_batch" not in Rows.training
    assert "global_batch_size" not in Tokens.training


def test_an_option_follows_those_that_it_needs() -> None:
    """Options are added to a recipe one by one: the task must be there before the separator."""

    class Single(TextRecipe):
        """A recipe for one label each."""

        task: Literal["auto", "single_label", "multi_label", "regression", "ordinal"] = (
            "single_label"
        )

    typed: dict[str, Any] = dict(
        label_separator=";", task="multi_label", dataset="a.csv", model="b"
    )
    settings = Settings.from_keywords(Single, typed)
    assert settings.report.sentences("error") == []
    assert vars(settings.recipe).items() >= typed.items()


@pytest.mark.parametrize(("fsdp", "count"), [("full_shard", 1), ("", 0)])
def test_an_adapter_is_not_sharded(fsdp: str, count: int) -> None:
    """Without accelerators the command line refuses `--fsdp` alone, so it cannot show this."""
    mistakes: tuple[str, ...] = ()
    try:
        check_command(OptionValues(adapter="lora", fsdp=fsdp, typed={}))
    except UserError as error:
        mistakes = error.mistakes
    message = "--adapter lora is not supported with --fsdp: use DistributedDataParallel"
    assert mistakes == (message,) * count


def test_mistakes_in_the_options_of_a_recipe_come_at_once() -> None:
    """Ranges and combinations alike; a recipe's own option of the same name has no rules."""
    with pytest.raises(UserError) as error:
        TextRecipe(stride=-1, long_texts="windows", text_columns="a,b", label_order="x,y,x")
    flags = [mistake.split()[0] for mistake in error.value.mistakes]
    assert flags == ["--stride", "--long_texts", "--label_order"]

    class Own(Recipe):
        stride: int = option(-1, "a custom option")

    assert Own(stride=-2).stride == -2


def test_rules_read_options_that_exist() -> None:
    """To a rule, an option that a recipe does not have is None: a misspelled one would be, too."""
    names = {"typed", "overridden"}
    for cls in (TextRecipe, ImageRecipe, FinetuneArguments, RunOptions, predicting.Options):
        names |= {field.name for field in dataclasses.fields(cls)}
    words = set()
    for path in (ROOT / "finetune" / "rules").glob("*.py"):
        words |= set(re.findall(r"\boptions\.([a-z]\w*)", path.read_text(encoding="utf-8")))
    assert len(words) > 40
    assert words - names == set()


def test_a_number_of_epochs_that_time_decides_changes_no_other_default(
    uneven_reviews: Path, tiny_model: str
) -> None:
    """Where rows are few, as what is set decides for the rest."""
    for rows in (48, 173):
        recipe = Text(
            dataset=str(uneven_reviews), model=tiny_model, max_length=64, train_samples=rows
        )
        options = dict(output_dir="unused", learning_rate=1e-4, warmup_steps=0)
        settings = load_and_check(Settings.from_keywords(recipe, options))
        before, after = settings.values, with_epochs(settings, 1.5).values
        assert after.num_train_epochs == 1.5
        assert (before.load_best_model_at_end, before.global_batch_size) == (
            after.load_best_model_at_end,
            after.global_batch_size,
        )
        assert not after.load_best_model_at_end
        assert after.global_batch_size == (8 if rows == 48 else 32)
