"""The stand-in for the Hub serves the real libraries, which download each file exactly once."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import HANGS
from tests.hub import Hub, build_repositories, serve
from tests.hub.repositories import CASED, MNIST, SENTIMENT, UNCASED, YELP

LOAD = """
import json, sys
from datasets import load_dataset
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

answer = {}
for name in sys.argv[1].split(","):
    data = load_dataset(name)
    answer[name] = {
        "rows": {split: len(rows) for split, rows in data.items()},
        "columns": data["train"].column_names,
        "first": {k: v for k, v in data["train"][0].items() if k != "image"},
        "names": getattr(data["train"].features.get("label"), "names", None),
    }
    if "image" in data["train"].features:
        image = data["train"][0]["image"]
        answer[name]["image"] = [image.format, image.mode, *image.size]
    if "division" in data["train"].features:
        answer[name]["divisions"] = sorted(set(data["train"]["division"]))
        kept = data["train"].filter(lambda row: row["division"] != "neutral")
        answer[name]["kept"] = len(kept)
    if "text" in data["train"].features:
        pairs = set(zip(data["train"]["label"], data["train"]["text"]))
        answer[name]["distinct"] = len(pairs)
for name in sys.argv[2].split(","):
    tokenizer = AutoTokenizer.from_pretrained(name)
    config = AutoConfig.from_pretrained(name)
    model, info = AutoModelForSequenceClassification.from_pretrained(
        name, num_labels=5, output_loading_info=True
    )
    answer[name] = {
        "tokens": tokenizer.convert_ids_to_tokens(tokenizer("The Food was AWFUL!")["input_ids"]),
        "lengths": [tokenizer.model_max_length, config.max_position_embeddings],
        "vocabulary": [len(tokenizer), config.vocab_size],
        "dtype": str(model.dtype),
        "missing": sorted(info["missing_keys"]),
    }
print(json.dumps(answer))
"""

API = """
import json, sys
from huggingface_hub import HfApi, HfFileSystem
from huggingface_hub.errors import (
    EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError
)

yelp, cased = sys.argv[1:]
api = HfApi()
file = "yelp_review_full/test-00000-of-00001.parquet"
info = api.dataset_info(yelp, files_metadata=True)
tree = list(api.list_repo_tree(yelp, repo_type="dataset", recursive=True, expand=True))
paths = api.get_paths_info(yelp, [file, "yelp_review_full", "absent"], repo_type="dataset")
with HfFileSystem().open(f"datasets/{yelp}/{file}", block_size=1000) as stream:
    start = stream.read(4)
    stream.seek(-4, 2)
    end = stream.read()

def refusal(call):
    try:
        call()
    except (EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError) as error:
        return type(error).__name__

print(json.dumps({
    "sha": [info.sha, api.dataset_info(yelp, revision=info.sha).sha],
    "siblings": [s.rfilename for s in info.siblings],
    "tree": [entry.path for entry in tree],
    "top": [entry.path for entry in api.list_repo_tree(yelp, repo_type="dataset")],
    "paths": [entry.path for entry in paths],
    "checksums": len({info.siblings[1].lfs.sha256, paths[1].lfs.sha256, tree[2].lfs.sha256}),
    "magic": [start.decode(), end.decode()],
    "model": [s.rfilename for s in api.model_info(cased).siblings],
    "refusals": [
        refusal(lambda: api.model_info(yelp)),
        refusal(lambda: api.dataset_info("nobody/nothing")),
        refusal(lambda: api.dataset_info(yelp, revision="v2")),
        refusal(lambda: api.hf_hub_download(cased, "absent.bin")),
        refusal(lambda: list(api.list_repo_tree(cased, "absent"))),
    ],
}))
"""

MODEL_FILES = [
    "README.md",
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
]
DATASET_FILES = {
    YELP: [
        "README.md",
        "yelp_review_full/test-00000-of-00001.parquet",
        "yelp_review_full/train-00000-of-00001.parquet",
    ],
    SENTIMENT: ["README.md", "sentiment_reviews.csv"],
    MNIST: [
        "README.md",
        "mnist/test-00000-of-00001.parquet",
        "mnist/train-00000-of-00001.parquet",
    ],
}


@pytest.fixture
def hub_server(tmp_path: Path) -> Iterator[Hub]:
    build_repositories(tmp_path / "repositories")
    with serve(tmp_path / "repositories") as hub:
        yield hub


def run(script: str, *arguments: str, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=HANGS, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_libraries_load_everything_once_and_then_offline(hub_server: Hub, tmp_path: Path) -> None:
    arguments = [f"{YELP},{SENTIMENT},{MNIST}", f"{CASED},{UNCASED}"]
    environment = hub_server.environment(tmp_path / "home")
    loaded = run(LOAD, *arguments, environment=environment)

    yelp = loaded[YELP]
    assert yelp["rows"] == {"train": 400, "test": 100}
    assert yelp["columns"] == ["label", "text"]
    assert yelp["names"] == ["1 star", "2 star", "3 stars", "4 stars", "5 stars"]
    assert yelp["distinct"] == 396
    sentiment = loaded[SENTIMENT]
    assert sentiment["rows"] == {"train": 680}
    assert sentiment["columns"] == ["Unnamed: 0", "review", "polarity", "division"]
    assert sentiment["divisions"] == ["negative", "neutral", "positive"]
    assert sentiment["kept"] == 590
    assert isinstance(sentiment["first"]["polarity"], float)
    mnist = loaded[MNIST]
    assert mnist["rows"] == {"train": 300, "test": 100}
    assert mnist["columns"] == ["image", "label"]
    assert mnist["names"] == [str(digit) for digit in range(10)]
    assert mnist["image"] == ["PNG", "L", 28, 28]

    cased, uncased = loaded[CASED], loaded[UNCASED]
    assert cased["tokens"][:4] == ["[CLS]", "The", "F", "##o"]
    assert uncased["tokens"] == ["[CLS]", "the", "food", "was", "awful", "!", "[SEP]"]
    assert (cased["dtype"], uncased["dtype"]) == ("torch.float32", "torch.bfloat16")
    for model in (cased, uncased):
        assert model["lengths"] == [512, 512]
        assert model["vocabulary"][0] == model["vocabulary"][1]
        assert model["missing"] == ["classifier.bias", "classifier.weight"]

    for name, files in DATASET_FILES.items():
        assert hub_server.downloads(name) == dict.fromkeys(files, 1)
    for name in (CASED, UNCASED):
        assert hub_server.downloads(name) == dict.fromkeys(MODEL_FILES[1:], 1)
    # The data set viewer, on a host name of its own, is all that is asked for beyond the server.
    assert [target for _, target in hub_server.requests if not target.startswith("/")] == [
        f"{hub_server.url.replace('://', '://datasets-server.')}/info?dataset={name}"
        for name in DATASET_FILES
    ]

    answered = len(hub_server.requests)
    offline = run(LOAD, *arguments, environment=environment | {"HF_HUB_OFFLINE": "1"})
    assert offline == loaded
    assert len(hub_server.requests) == answered


def test_api_answers_as_the_hub_does(hub_server: Hub, tmp_path: Path) -> None:
    answer = run(API, YELP, CASED, environment=hub_server.environment(tmp_path / "home"))
    sha = hub_server.repositories[YELP].commit
    test = "yelp_review_full/test-00000-of-00001.parquet"
    assert answer == {
        "sha": [sha, sha],
        "siblings": DATASET_FILES[YELP],
        "tree": ["yelp_review_full", *DATASET_FILES[YELP]],
        "top": ["yelp_review_full", "README.md"],
        "paths": ["yelp_review_full", test],
        "checksums": 1,
        "magic": ["PAR1", "PAR1"],
        "model": MODEL_FILES,
        "refusals": [
            "RepositoryNotFoundError",
            "RepositoryNotFoundError",
            "RevisionNotFoundError",
            "RemoteEntryNotFoundError",
            "RemoteEntryNotFoundError",
        ],
    }
    assert ("POST", f"/api/datasets/{YELP}/paths-info/main") in hub_server.requests
    assert set(hub_server.downloads(YELP)) == {test}


def test_repositories_are_the_same_each_time(hub_server: Hub, tmp_path: Path) -> None:
    build_repositories(tmp_path / "again")
    with serve(tmp_path / "again") as again:
        assert {name: repository.commit for name, repository in again.repositories.items()} == {
            name: repository.commit for name, repository in hub_server.repositories.items()
        }
