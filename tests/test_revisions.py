"""Data and models of the Hub: their commits are recorded, and can be pinned."""

import json
from pathlib import Path

import pytest

from finetune import UserError
from finetune.data.sources import Source
from finetune.models.pretrained import load_tokenizer
from tests.conftest import Command
from tests.hub import Hub
from tests.hub.repositories import CASED, TICKETS, YELP

FLAGS = ["yelp", "--train_samples", "40", "--eval_samples", "10", "--max_steps", "1"]
FLAGS += ["--max_length", "16", "--precision", "fp32", "--no_baseline"]


def test_the_commits_of_data_and_model_are_recorded_and_can_be_pinned(
    hub: Hub, command: Command, tmp_path: Path
) -> None:
    environment = hub.environment(tmp_path / "home")
    first = command(*FLAGS, "--output_dir", tmp_path / "first", env=environment)
    assert first.returncode == 0, first.stderr
    manifest = json.loads((tmp_path / "first" / "run.json").read_text())
    data, model = hub.repositories[YELP].commit, hub.repositories[CASED].commit
    assert (manifest["data"]["revision"], manifest["model_revision"]) == (data, model)

    offline = environment | {"HF_HUB_OFFLINE": "1"}
    pins = ["--dataset_revision", data, "--model-revision", model]
    second = command(*FLAGS, *pins, "--output_dir", tmp_path / "second", env=offline)
    assert second.returncode == 0, second.stderr
    pinned = json.loads((tmp_path / "second" / "run.json").read_text())
    assert (pinned["data"]["revision"], pinned["model_revision"]) == (data, model)
    assert pinned["options"]["dataset_revision"] == data

    other = "0" * 40
    for flag, name in (("--dataset_revision", YELP), ("--model_revision", CASED)):
        refused = command(*FLAGS, flag, other, "--output_dir", tmp_path / "third", env=offline)
        assert refused.returncode == 2
        assert f"'{name}' at revision '{other}' cannot be loaded" in refused.stderr
    unknown = command(
        *FLAGS, "--model_revision", "nowhere", "--output_dir", tmp_path / "third", env=environment
    )
    assert unknown.returncode == 2
    assert "--model google-bert/bert-base-cased cannot be loaded" in unknown.stderr
    assert not (tmp_path / "third").exists()


def test_a_revision_of_something_that_is_not_on_the_hub_is_refused(
    reviews: Path, tiny_model: str
) -> None:
    with pytest.raises(UserError, match=r"--dataset_revision main: does not apply to .* \(local\)"):
        Source(str(reviews), "main").load()
    with pytest.raises(UserError, match=r"--model_revision main: .* is not from the Hub"):
        load_tokenizer(tiny_model, "main")


def test_a_configuration_and_splits_of_other_names_can_be_chosen(
    hub: Hub, command: Command, tiny_model: str, tmp_path: Path
) -> None:
    environment = hub.environment(tmp_path / "home")
    check = ["check", "text", "--dataset", TICKETS, "--model", tiny_model]
    german = [*check, "--dataset_config", "de"]
    names = ["--dataset_splits", "train=fit,test=held_out"]

    unsaid = command(*check, env=environment)
    assert "Config name is missing" in unsaid.stdout
    assert "--dataset_config NAME chooses" in unsaid.stdout
    unnamed = command(*german, env=environment)
    assert "has no train split (it has: fit, held_out); --dataset_splits train=" in unnamed.stdout

    offline = environment | {"HF_HUB_OFFLINE": "1"}
    found = command(*german, *names, env=offline)
    assert "train         54" in found.stdout, found.stdout + found.stderr
    assert "test          20" in found.stdout
    unread = ["--dataset_splits", "train=fit,test=none"]
    found = command(*german, *unread, env=offline)
    assert "not read: held_out" in found.stdout, found.stdout + found.stderr
    assert "test          12" in found.stdout
    other = command(*check, "--dataset_config", "en", *names, env=offline)
    assert f"the data set '{TICKETS}' cannot be loaded: HF_HUB_OFFLINE is set" in (
        other.stdout + other.stderr
    )
