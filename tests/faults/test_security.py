"""Test that run files are not written through links, have umask modes, and shards run no code.

`tests/acceptance/test_safety.py` tests code in data, models, runs and checkpoints.
"""

import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as sharded
from torch.distributed.checkpoint.api import CheckpointException

import finetune
from finetune import Run, UserError, cli
from finetune.runs.checkpoints import refuse_code
from finetune.runtime.files import replacing

pytestmark = pytest.mark.usefixtures("one_thread")


class Hostile:
    """An object that creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.marker}'",)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_hostile_shards_run_nothing_and_those_of_torch_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As FSDP saves them; torch unpickles shards unless the environment forbids it (`Trainer`)."""
    shards, marker = tmp_path / "checkpoint-3" / "pytorch_model_fsdp_0", tmp_path / "marker"
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.zeros(1, 3)).sum().backward()
    optimizer.step()
    state = {"model": layer.state_dict(), "optimizer": optimizer.state_dict(), "n": 3}
    sharded.save(state, checkpoint_id=shards, no_dist=True)
    refuse_code(tmp_path / "checkpoint-3")
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")
    sharded.load(state, checkpoint_id=shards, no_dist=True)

    shutil.rmtree(shards)
    sharded.save({**state, "n": Hostile(marker)}, checkpoint_id=shards, no_dist=True)
    with pytest.raises(CheckpointException, match="weights_only"):
        sharded.load(state, checkpoint_id=shards, no_dist=True)
    (shards / ".metadata").write_bytes(pickle.dumps(Hostile(marker)))
    with pytest.raises(UserError, match=r"\.metadata holds more than tensors.*posix\.system"):
        refuse_code(tmp_path / "checkpoint-3")
    (shards / ".metadata").write_bytes(b"no pickle")
    with pytest.raises(UserError, match=r"\.metadata holds more than .*was not written by torch"):
        refuse_code(tmp_path / "checkpoint-3")
    assert not marker.exists()


@pytest.fixture
def umask() -> Iterator[None]:
    """The umask of a group that shares its files."""
    before = os.umask(0o002)
    yield
    os.umask(before)


@pytest.fixture
def run(whole: Callable[..., Path], tmp_path: Path) -> Run:
    return Run.load(shutil.copytree(whole(), tmp_path / "run"))


def test_a_report_is_written_beside_links_and_with_the_modes_of_the_umask(
    run: Run, tmp_path: Path, umask: None
) -> None:
    (treasure := tmp_path / "treasure").write_text("untouched", encoding="utf-8")
    written = [run.path / name for name in ("report.html", "README.md")]
    for path in written:
        for name in (path, path.with_suffix(".tmp"), path.with_name(f"{path.name}.tmp")):
            name.unlink(missing_ok=True)
            name.symlink_to(treasure)
    finetune.report(run)
    assert treasure.read_text(encoding="utf-8") == "untouched"
    for path in written:
        assert not path.is_symlink()
        assert path.stat().st_mode & 0o777 == 0o664, path
    assert not list(run.path.rglob(".*.tmp"))


def test_a_prediction_is_written_through_no_link(run: Run, tmp_path: Path, umask: None) -> None:
    (treasure := tmp_path / "treasure").write_text("untouched", encoding="utf-8")
    (source := tmp_path / "in.csv").write_text("text\nfine\n", encoding="utf-8")
    (output := tmp_path / "out.csv").symlink_to(treasure)
    finetune.predict_file(run, source, output)
    assert treasure.read_text(encoding="utf-8") == "untouched"
    assert not output.is_symlink()
    assert output.stat().st_mode & 0o777 == 0o664
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (tmp_path / "out.csv.part").symlink_to(elsewhere)
    with pytest.raises(UserError, match=f"out.csv.part is a link to {elsewhere}: remove the link"):
        finetune.predict_file(run, source, output, resume=True)
    assert list(elsewhere.iterdir()) == []


def test_names_of_files_that_are_being_written_cannot_be_guessed(tmp_path: Path) -> None:
    with replacing(tmp_path / "a.json") as one, replacing(tmp_path / "a.json") as other:
        assert one != other
        assert one.parent == tmp_path
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([one.name, other.name])
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.usefixtures("umask", "without_report")
def test_every_file_of_a_training_has_the_modes_of_the_umask(
    words: list[str], tmp_path: Path
) -> None:
    assert cli.main([*words, "--output_dir", str(tmp_path / "run"), "--max_steps=3"]) == 0
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    modes = {path: path.stat().st_mode & 0o777 for path in files}
    assert {path.name for path in modes} >= {"model.safetensors", "optimizer.pt", "run.json"}
    assert {path: oct(mode) for path, mode in modes.items() if mode != 0o664} == {}
