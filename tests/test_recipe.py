"""The contract of a recipe: fields are options, methods are steps, and mistakes have names."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset, DatasetDict
from safetensors import safe_open
from transformers import PreTrainedModel

from finetune.config.parser import RecipeParser
from finetune.errors import Report, UserError
from finetune.recipe import Recipe, TextRecipe, catalog, option
from tests.hub.repositories import UNCASED

RECIPES = catalog.names()
STEPS = ("load", "split", "prepare", "build_model", "data_collator", "loss", "compute_metrics")
IMPORT_ALL = """
import sys
from finetune.recipe import catalog

for name in catalog.names():
    print(name, catalog.find(name).__name__, catalog.summary(name))
heavy = {"torch", "transformers", "datasets", "accelerate", "evaluate", "numpy"} & set(sys.modules)
assert not heavy, heavy
"""


class Reviews(TextRecipe):
    max_length: int = 32
    temperature: float = option(1.0, "an option of its own")


def helps(cls: type[Recipe]) -> dict[str, str]:
    return {each.name: each.metadata["help"] for each in dataclasses.fields(cls)}


def write(path: Path, *classes: str, before: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    bodies = "\n\n".join(
        f"class {name}(TextRecipe):\n    dataset: str = 'data of {name}'" for name in classes
    )
    head = f'"""A recipe of its own."""\n{before}\nfrom finetune import TextRecipe'
    path.write_text(f"{head}\n\n{bodies}\n")
    return path


# ---- the contract ----------------------------------------------------------------------------


def test_fields_are_options_with_their_help() -> None:
    recipe = Reviews(temperature=2.0)

    assert (recipe.max_length, recipe.temperature) == (32, 2.0)
    assert helps(Reviews)["temperature"] == "an option of its own"
    options = RecipeParser(Reviews).read(["--temperature", "3", "--max-length", "9"], Report())
    assert options == {"temperature": 3.0, "max_length": 9}
    assert "an option of its own (default: 1.0)" in " ".join(RecipeParser(Reviews).help().split())


def test_rows_without_an_id_get_their_number() -> None:
    """It stands in the predictions, which are written after the training."""

    class Made(Recipe):
        def load(self) -> DatasetDict:
            numbers = [float(n) for n in range(40)]
            return DatasetDict(train=Dataset.from_dict({"text": numbers, "label": numbers}))

    splits = Made().splits

    assert sorted(each for rows in splits.values() for each in rows["id"]) == list(range(40))
    for rows in splits.values():
        assert rows["id"][:] == rows["text"][:]


def test_an_option_with_choices_has_one_of_them() -> None:
    options = RecipeParser(Reviews).read(["--csv-quoting", "none"], Report())
    assert options == {"csv_quoting": "none"}
    for options in ({"csv_quoting": "minimum"}, {"csv_quoting": None}):
        with pytest.raises(UserError, match=r"--csv_quoting .*: expected auto, minimal or none"):
            Reviews(**options)


def test_a_field_declared_again_keeps_its_help() -> None:
    assert helps(Reviews)["max_length"] == helps(TextRecipe)["max_length"]
    assert Reviews().max_length == 32
    assert TextRecipe().max_length == 512


def test_a_field_declared_again_may_have_another_help() -> None:
    class Other(TextRecipe):
        max_length: int = option(64, "tokens of a title")

    assert helps(Other)["max_length"] == "tokens of a title"
    assert Other().max_length == 64


def test_options_are_keywords() -> None:
    with pytest.raises(TypeError, match="positional"):
        Reviews("data")  # type: ignore[misc]
    with pytest.raises(TypeError, match="max_lenght"):
        Reviews(max_lenght=3)  # type: ignore[call-arg]


def test_embedded_is_no_option_of_a_recipe_itself() -> None:
    with pytest.raises(UserError) as refusal:
        catalog.find("sentiment")(embedded=True)  # type: ignore[call-arg]
    said = str(refusal.value)
    assert said.startswith("Sentiment(embedded=...): 'embedded' is an option of finetune.train")
    assert "dataset='embedded:rotten-tomatoes', model='embedded:minilm', text_column='text'" in said
    assert "learning_rate" not in said


def test_an_override_without_annotation_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"Wrong.max_length overrides .* write `max_length: int = "):

        class Wrong(TextRecipe):
            max_length = 32


def test_an_override_without_annotation_is_refused_two_classes_down() -> None:
    with pytest.raises(
        UserError, match=r"Wrong.temperature .* write `temperature: float = \.\.\.`"
    ):

        class Wrong(Reviews):
            temperature = 0.5


@pytest.mark.parametrize(
    "name", ["learning_rate", "global_batch_size", "config", "dry_run", "do_train"]
)
def test_a_field_that_is_taken_is_refused_by_name(name: str) -> None:
    wrong = type("Wrong", (TextRecipe,), {"__annotations__": {name: float}, name: 0.1})

    with pytest.raises(UserError, match=rf"Wrong: the options {name} are training arguments"):
        RecipeParser(wrong)


@pytest.mark.parametrize("name", ["training", "embedded"])
def test_defaults_merge_down_the_classes(name: str) -> None:
    upper = type("Upper", (TextRecipe,), {name: {"learning_rate": 1.0, "max_steps": 5}})
    lower = type("Lower", (upper,), {name: {"learning_rate": 2.0}})
    lowest = type("Lowest", (lower,), {})

    above = getattr(TextRecipe, name)
    assert getattr(upper, name) == {**above, "learning_rate": 1.0, "max_steps": 5}
    assert getattr(lower, name) == {**above, "learning_rate": 2.0, "max_steps": 5}
    assert getattr(lowest, name) == getattr(lower, name)
    assert "learning_rate" not in above


@pytest.mark.parametrize("step", ["load", "prepare", "build_model", "data_collator"])
def test_a_step_that_is_missing_is_named(step: str) -> None:
    class Bare(Recipe):
        pass

    arguments = {"prepare": [None], "build_model": [["a", "b"]]}
    with pytest.raises(NotImplementedError, match="Bare must say how to"):
        getattr(Bare(), step)(*arguments.get(step, []))


# ---- the recipes that come with the toolkit --------------------------------------------------


def test_recipes_are_discovered() -> None:
    assert len(RECIPES) >= 3
    assert {"mnist", "sentiment", "yelp"} <= set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_keeps_the_contract(name: str) -> None:
    cls = catalog.find(name)

    assert issubclass(cls, Recipe)
    assert catalog.find(name) is cls
    assert catalog.origin(cls) == cls.short_name() == name
    assert all(helps(cls).values())
    assert all(callable(getattr(cls, step)) for step in STEPS)
    assert cls.training["global_batch_size"] > 0
    assert cls.training["metric_for_best_model"] == "f1"
    assert cls.embedded["dataset"].startswith("embedded:")
    assert len(cls.label_names) >= 2 or name in (
        "image",
        "text",
    )  # whose labels are those of the data
    RecipeParser(cls)  # none of its options is a training argument
    names = {each.name for each in dataclasses.fields(cls)} | set(RecipeParser(cls).defaults)
    assert set(cls.training) | set(cls.embedded) <= names


def test_importing_every_recipe_imports_no_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_the_summary_is_a_sentence_that_fits_a_line(name: str) -> None:
    assert 20 < len(catalog.summary(name)) <= 100
    assert catalog.summary(name).endswith(".")


# ---- models ----------------------------------------------------------------------------------


@pytest.fixture
def uncased_model(tiny_model: str) -> str:
    """The directory of the model whose weights are stored in bf16."""
    return tiny_model.replace("cased", "uncased")


def test_dropout_reaches_the_model(tiny_model: str) -> None:
    recipe = TextRecipe(model=tiny_model, hidden_dropout=0.3, attention_dropout=0.0)
    model = recipe.build_model(["a", "b"])

    assert model.config.hidden_dropout_prob == 0.3
    assert model.config.attention_probs_dropout_prob == 0.0
    assert model.bert.encoder.layer[0].output.dropout.p == 0.3


def test_hidden_dropout_is_that_of_the_model_and_attention_has_none(tiny_model: str) -> None:
    stored = json.loads((Path(tiny_model) / "config.json").read_text())
    config = TextRecipe(model=tiny_model).build_model(["a", "b"]).config

    assert config.hidden_dropout_prob == stored["hidden_dropout_prob"] == 0.1
    assert stored["attention_probs_dropout_prob"] == 0.1
    assert config.attention_probs_dropout_prob == 0.0


def test_weights_are_in_fp32_whatever_the_checkpoint_says(uncased_model: str) -> None:
    assert uncased_model.endswith(UNCASED)
    with safe_open(Path(uncased_model) / "model.safetensors", framework="pt") as stored:
        assert {stored.get_tensor(key).dtype for key in stored.keys()} == {  # noqa: SIM118
            torch.bfloat16
        }

    model = TextRecipe(model=uncased_model).build_model(["a", "b"])

    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_label_names_travel_in_the_saved_config(tiny_model: str, tmp_path: Path) -> None:
    names = ["1 star", "2 star", "3 stars"]
    model = TextRecipe(model=tiny_model).build_model(names)
    assert isinstance(model, PreTrainedModel)
    model.save_pretrained(tmp_path)

    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["id2label"] == {"0": "1 star", "1": "2 star", "2": "3 stars"}
    assert saved["label2id"] == {"1 star": 0, "2 star": 1, "3 stars": 2}
    assert model.classifier.out_features == 3


def test_the_seed_decides_the_head(tiny_model: str) -> None:
    def head(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        weight = TextRecipe(model=tiny_model).build_model(["a", "b"]).classifier.weight
        assert isinstance(weight, torch.Tensor)
        return weight

    assert torch.equal(head(42), head(42))
    assert not torch.equal(head(42), head(43))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("", r"--model: this recipe names no model of its own"),
        ("./nowhere", r"--model ./nowhere: expected a directory that holds a config.json"),
        ("nobody/nothing", r"--model nobody/nothing cannot be loaded"),
    ],
)
def test_models_that_cannot_be_had(model: str, message: str) -> None:
    recipe = TextRecipe(model=model)

    with pytest.raises(UserError, match=message):
        recipe.build_model(["a", "b"])
    with pytest.raises(UserError, match=message):
        recipe.processing_class()


# ---- the catalog -----------------------------------------------------------------------------


def test_a_recipe_is_found_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "mine" / "titles.py", "Titles")

    cls = catalog.find(str(path))

    assert cls().dataset == "data of Titles"
    assert catalog.origin(cls) == str(path)
    assert cls.short_name() == "titles"
    assert catalog.find(catalog.origin(cls)) is cls
    monkeypatch.chdir(tmp_path)
    assert catalog.find("mine/titles.py") is cls


def test_a_base_class_that_is_imported_is_no_recipe_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "child.py", "Child", before="from recipes.yelp import Yelp")

    assert catalog.find(str(path)).__name__ == "Child"


def test_a_recipe_of_the_toolkit_is_not_taken_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "yelp.py", "Decoy")
    write(tmp_path / "recipes" / "yelp.py", "Decoy")
    monkeypatch.chdir(tmp_path)

    assert catalog.find("yelp").__name__ == "Yelp"


@pytest.mark.parametrize(
    ("classes", "found"), [((), "found none"), (("First", "Second"), "found First, Second")]
)
def test_a_file_defines_one_recipe(classes: tuple[str, ...], found: str, tmp_path: Path) -> None:
    path = write(tmp_path / "several.py", *classes)

    with pytest.raises(UserError, match=f"expected one class derived from Recipe .*{found}"):
        catalog.find(str(path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "yepl",
            r"unknown recipe 'yepl'; did you mean 'yelp'\? \(available: image, mnist, ",
        ),
        ("_convnet", r"unknown recipe '_convnet'"),
        ("nowhere/mine.py", r"recipe file not found: nowhere/mine.py"),
    ],
)
def test_unknown_recipes(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        catalog.find(name)


def test_two_files_of_one_name_are_two_recipes(tmp_path: Path) -> None:
    first = write(tmp_path / "a" / "task.py", "First")
    second = write(tmp_path / "b" / "task.py", "Second")

    found = [catalog.find(str(path)) for path in (first, second)]

    assert [cls.__name__ for cls in found] == ["First", "Second"]
    assert [catalog.origin(cls) for cls in found] == [str(first), str(second)]


def test_a_recipe_named_like_the_standard_library_shadows_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "json.py", "Json", before="import json\nassert json.dumps([]) == '[]'")

    assert catalog.find(str(path)).__name__ == "Json"
    assert sys.modules["json"] is json


def test_a_recipe_imports_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "words_beside_it.py").write_text("WORDS = ['a']\n")
    path = write(tmp_path / "uses.py", "Uses", before="from words_beside_it import WORDS")

    assert catalog.find(str(path)).__name__ == "Uses"


def test_a_step_imports_what_lies_beside_the_recipe(tmp_path: Path) -> None:
    """What needs torch is imported inside the step that uses it, as `mnist` does its network."""
    (tmp_path / "network_beside_it.py").write_text("NETWORK = 'a network'\n")
    path = write(tmp_path / "lazy.py", "Lazy")
    with path.open("a") as stream:
        stream.write(
            "\n    def build_model(self, labels):\n"
            "        from network_beside_it import NETWORK\n\n        return NETWORK\n"
        )

    assert catalog.find(str(path))().build_model(["a", "b"]) == "a network"


def test_a_recipe_that_fails_is_not_kept_half_made(tmp_path: Path) -> None:
    path = write(tmp_path / "fails.py", "Fails", before="raise ValueError('on its own account')")
    for _ in range(2):
        with pytest.raises(UserError, match=r"fails\.py, line 2: ValueError: on its own"):
            catalog.find(str(path))


def test_packages_register_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "headline_tasks.py", "Headlines")
    info = tmp_path / "headline_tasks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: headline-tasks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[finetune.recipes]\nheadlines = headline_tasks\nheadlines2 = headline_tasks:Headlines\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    assert catalog.names() == [*RECIPES, "headlines", "headlines2"]
    assert catalog.summary("headlines") == "from headline_tasks"
    assert catalog.find("headlines").__name__ == "Headlines"
    assert catalog.find("headlines2") is catalog.find("headlines")


def test_the_batch_that_is_named_last_puts_the_others_aside() -> None:
    class Tokens(TextRecipe):
        """Steps of tokens."""

        training = dict(max_tokens_per_batch=512)

    class Rows(Tokens):
        """Steps of rows."""

        training = dict(global_batch_size=16)

    assert Rows.training["global_batch_size"] == 16
    assert "max_tokens_per_batch" not in Rows.training
    assert "global_batch_size" not in Tokens.training
