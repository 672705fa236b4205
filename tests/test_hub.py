"""Test a Hub data set that has configurations and unusual split names."""

from pathlib import Path

from tests.conftest import Command
from tests.hub import Hub
from tests.hub.repositories import TICKETS


def test_a_configuration_and_split_names_can_be_chosen(
    hub: Hub, command: Command, tiny_model: str, tmp_path: Path
) -> None:
    environment = hub.environment(tmp_path / "home")
    check = ["check", "text", "--dataset", TICKETS, "--model", tiny_model]
    german = [*check, "--dataset_config", "de"]

    assert "--dataset_config NAME chooses" in command(*check, env=environment).stdout
    no_train = command(*german, env=environment)
    hint = "has no train split (it has: fit, held_out); choose another with --dataset_splits train="
    assert hint in " ".join(no_train.stdout.split())
    named = command(*german, "--dataset_splits", "train=fit,test=held_out", env=environment)
    assert "train         54" in named.stdout, named.stdout + named.stderr
    assert "test          20" in named.stdout
    other = command(*german, "--dataset_splits", "train=fit,test=none", env=environment)
    assert "not read: held_out" in other.stdout, other.stdout + other.stderr
    assert "test          12" in other.stdout
