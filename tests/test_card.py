"""The model card of a run, as the Hub's library reads it back."""

from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.constants import HF_HUB_CACHE

from finetune.reporting import card
from tests.runs import trained, write_run


def test_a_model_card_is_read_back_with_the_metrics_of_the_run(tmp_path: Path) -> None:
    options = {**trained().manifest.options, "model": "embedded:minilm"}
    run = write_run(tmp_path / "reviews", options=options)
    found = ModelCard.load(card.write(run))
    data = found.data
    assert (data.library_name, data.pipeline_tag) == ("transformers", "text-classification")
    assert (data.base_model, data.license) == (
        "sentence-transformers/all-MiniLM-L6-v2",
        "apache-2.0",
    )
    results = {each.metric_type: each for each in data.eval_results}
    assert {name: each.metric_value for name, each in results.items()} == {
        name: run.metrics["test"][name] for name in ("accuracy", "f1")
    }
    assert {each.dataset_split for each in data.eval_results} == {"test"}
    assert data.datasets is None  # a local file
    assert run.manifest["command"] in found.text
    assert 'pipeline("text-classification", model="reviews", truncation=True)' in found.text
    assert "3 of 153 train rows that are exact duplicates" in found.text
    assert "Of a text longer than 64 tokens the first 64 are read; without" in found.text
    run.update(options={**options, "truncation": "tail"})
    assert "tokens the last 64 are read; without" in ModelCard.load(card.write(run)).text
    assert str(tmp_path) not in found.text.replace(run.manifest["command"], "")


@pytest.mark.parametrize(
    ("options", "base", "licence", "datasets"),
    [
        ({"dataset": "Yelp/yelp", "model": "google/bert"}, "google/bert", None, ["Yelp/yelp"]),
        ({"dataset": "Yelp/yelp", "model": "BASE"}, "google/other", "mit", ["Yelp/yelp"]),
        ({"dataset": "", "model": "NOWHERE"}, None, None, None),
    ],
)
def test_base_model_licence_and_data_where_they_are_known(
    tmp_path: Path,
    options: dict[str, str],
    base: str | None,
    licence: str | None,
    datasets: list[str] | None,
) -> None:
    (tmp_path / "BASE").mkdir()
    (tmp_path / "BASE" / "README.md").write_text(
        "---\nlicense: mit\nbase_model: google/other\n---\n# a base\n"
    )
    (tmp_path / "NOWHERE").mkdir()
    for place in ("BASE", "NOWHERE"):
        options = {
            name: str(tmp_path / place) if value == place else value
            for name, value in options.items()
        }
    run = write_run(tmp_path / "run", options={**options, "max_length": 64})
    if base == "google/bert":
        _to_cache("google/bert", "# a card without metadata\n")
    found = ModelCard.load(card.write(run))
    assert (found.data.base_model, found.data.license, found.data.datasets) == (
        base,
        licence,
        datasets,
    )
    assert ("it could not be determined" in found.text) == (licence is None)


def test_the_licence_of_a_model_on_the_hub_is_read_from_its_card(tmp_path: Path) -> None:
    _to_cache("google/licensed", "---\nlicense: apache-2.0\n---\n# a base\n")
    run = write_run(tmp_path / "run", options={"dataset": "", "model": "google/licensed"})
    data = ModelCard.load(card.write(run)).data
    assert (data.base_model, data.license) == ("google/licensed", "apache-2.0")


def _to_cache(name: str, text: str) -> None:
    """As if the card had been fetched before."""
    folder = Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    revision = "0" * 40
    (folder / "snapshots" / revision).mkdir(parents=True)
    (folder / "snapshots" / revision / "README.md").write_text(text)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(revision)
