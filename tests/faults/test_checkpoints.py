"""A checkpoint that is damaged is named and passed over; a whole one goes on to the bit."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from finetune import Run, UserError
from finetune.pipeline import resumption
from finetune.pipeline.launch import in_fresh_processes
from finetune.runtime import distributed
from finetune.training import checkpoint
from tests.faults.conftest import STEPS, Faulty, assert_same

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")
PARTS = (
    *("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"),
    *("config.json", "loss_since_log.json", "checkpoint.json"),
)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "one bit flipped": flip,
}


@pytest.fixture(scope="module")
def killed(whole: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run as it is after step 9, with the checkpoints of steps 3, 6 and 9."""
    run = shutil.copytree(whole(), tmp_path_factory.mktemp("killed") / "run")
    for path in checkpoint.committed(run)[:3]:
        shutil.rmtree(path)
    for name in ("model.safetensors", "metrics.json", "predictions.parquet"):
        (run / name).unlink()
    Run.load(run).update(status="running")
    return run


@pytest.fixture
def run(killed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(killed, tmp_path / "run")


def test_what_a_system_leaves_in_a_checkpoint_is_no_damage(run: Path) -> None:
    for name in (".DS_Store", "._optimizer.pt", ".nfs0001", "notes.txt", "Thumbs.db"):
        (run / "checkpoint-9" / name).write_bytes(b"\0")
    assert checkpoint.problem(run / "checkpoint-9") is None
    (run / "checkpoint-9" / "shards").mkdir()
    (run / "checkpoint-9" / "shards" / ".metadata").write_bytes(b"\0")
    assert checkpoint.problem(run / "checkpoint-9") == (
        "shards/.metadata was not there when it was saved"
    )


def test_a_whole_checkpoint_has_no_problem(killed: Path) -> None:
    known = checkpoint.committed(killed)
    assert [path.name for path in known] == ["checkpoint-9", "checkpoint-6", "checkpoint-3"]
    assert [checkpoint.problem(path) for path in known] == [None] * 3


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("part", PARTS)
def test_damage_is_named_and_the_one_before_is_taken(run: Path, part: str, damage: str) -> None:
    DAMAGES[damage](run / "checkpoint-9" / part)
    found = resumption.find("last", run, touch=True)
    assert found is not None
    assert found.path == run / "checkpoint-6"
    (note,) = found.notes
    assert note.startswith(f"{run / 'checkpoint-9'} is damaged (")
    assert note.endswith("): renamed to damaged-checkpoint-9")
    assert part in note
    assert (run / "damaged-checkpoint-9").is_dir()


def added(directory: Path) -> str:
    (directory / "scaler.pt").write_bytes(b"\0")
    return "scaler.pt was not there when it was saved"


def renumbered(directory: Path) -> str:
    path = directory / "trainer_state.json"
    path.write_text(path.read_text().replace('"global_step": 9', '"global_step": 8'))
    return "trainer_state.json does not match its checksum"


def renamed(directory: Path) -> str:
    shutil.rmtree(directory)
    shutil.copytree(directory.with_name("checkpoint-6"), directory)
    return "checkpoint.json is of step 6"


def emptied(directory: Path) -> str:
    shutil.rmtree(directory)
    directory.mkdir()
    return "it has no checkpoint.json"


def reconfigured(directory: Path) -> str:
    path = directory / "checkpoint.json"
    path.write_text(path.read_text().replace('"seed": 42', '"seed": 43'))
    return "checkpoint.json was changed"


@pytest.mark.parametrize("change", [added, renumbered, renamed, emptied, reconfigured])
def test_a_change_is_named(run: Path, change: Callable[[Path], str]) -> None:
    said = change(run / "checkpoint-9")
    found = resumption.find("last", run, touch=True)
    assert found is not None
    assert found.path == run / "checkpoint-6"
    assert said in found.notes[0]


def test_a_run_whose_newest_checkpoint_is_damaged_goes_on_from_the_one_before(
    faulty: Faulty, run: Path, whole: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    flip(run / "checkpoint-9" / "optimizer.pt")
    assert faulty(run, "--resume") == 0
    said = capfd.readouterr().out
    assert "optimizer.pt does not match its checksum): renamed to damaged-checkpoint-9" in said
    assert Run.load(run).manifest.steps_before == 6
    assert_same(run, whole())


def test_where_no_checkpoint_is_whole_that_is_said_and_nothing_else_changes(
    faulty: Faulty, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    manifest = (run / "run.json").read_bytes()
    for path in checkpoint.committed(run):
        flip(path / "rng_state.pth")
    for flags in (("--resume",), ("--resume_from_checkpoint", "last")):
        assert faulty(run, *flags) == 2
        said = capfd.readouterr().err
        assert said.startswith(f"error: {' '.join(flags)}: no ")
        assert len(said.splitlines()) == 1
        assert said.count("rng_state.pth does not match its checksum") == 3
    assert len(checkpoint.committed(run)) == 3  # or a third try would start from the beginning
    assert (run / "run.json").read_bytes() == manifest


def test_a_path_to_a_damaged_checkpoint_is_refused_and_a_whole_one_named(
    faulty: Faulty, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (run / "checkpoint-9" / "scheduler.pt").unlink()
    assert faulty(run, "--resume_from_checkpoint", str(run / "checkpoint-9")) == 2
    assert capfd.readouterr().err == (
        f"error: --resume_from_checkpoint {run / 'checkpoint-9'} is damaged (scheduler.pt is "
        f"missing); {run / 'checkpoint-6'} is whole\n"
    )


def test_a_dry_run_renames_nothing(faulty: Faulty, run: Path) -> None:
    flip(run / "checkpoint-9" / "optimizer.pt")
    assert faulty(run, "--resume", "--dry_run") == 0
    assert (run / "checkpoint-9").is_dir()


def test_what_was_never_committed_is_no_checkpoint(
    faulty: Faulty, run: Path, whole: Callable[..., Path]
) -> None:
    """As a kill in the middle of a save leaves it, between any two of its files."""
    half = shutil.copytree(whole() / "checkpoint-12", run / ".uncommitted" / "checkpoint-12")
    (half / "checkpoint.json").unlink()
    (half / "rng_state.pth").unlink()
    assert faulty(run, "--resume") == 0
    assert Run.load(run).manifest.steps_before == 9
    assert not (run / ".uncommitted").exists()
    assert_same(run, whole())


def test_a_checkpoint_that_was_being_replaced_is_put_back(run: Path) -> None:
    (run / ".uncommitted").mkdir()
    (run / "checkpoint-9").rename(run / ".uncommitted" / "checkpoint-9.replaced")
    found = resumption.find("last", run, touch=True)
    assert found is not None
    assert found.path == run / "checkpoint-9"


def test_a_model_alone_cannot_be_resumed(
    faulty: Faulty, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert faulty(run, "--save_only_model", "true", fault="step 4,SIGTERM") == 75
    capfd.readouterr()
    assert faulty(run, "--save_only_model", "true", "--resume") == 2
    assert "was saved with --save_only_model: it has no optimizer state" in capfd.readouterr().err


def test_a_best_checkpoint_that_is_gone_is_told_before_training(
    faulty: Faulty, whole: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = ("--learning_rate", "1e-5", "--metric_for_best_model", "accuracy")
    run = shutil.copytree(whole(*flags), tmp_path / "run")
    best = Run.load(run).manifest.best_step
    assert best == 3
    Run.load(run).update(status="running")
    shutil.rmtree(run / "checkpoint-3")
    assert faulty(run, *flags, "--resume", "--dry_run") == 0
    assert "the best checkpoint so far, checkpoint-3, cannot be loaded (it is gone)" in (
        capfd.readouterr().out
    )


def test_the_newest_the_best_and_no_half_one_are_kept(
    faulty: Faulty, whole: Callable[..., Path]
) -> None:
    flags = ("--learning_rate", "1e-5", "--metric_for_best_model", "accuracy")
    for limit, kept in (("1", {3}), ("2", {3, STEPS}), ("3", {3, 15, STEPS})):
        run = whole(*flags, "--save_total_limit", limit)
        assert {checkpoint.number(path) for path in checkpoint.committed(run)} == kept
        assert not (run / ".uncommitted").exists()


def test_a_damaged_best_checkpoint_is_not_loaded_at_the_end(
    faulty: Faulty, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    worse = ("--learning_rate", "3e-2", "--metric_for_best_model", "accuracy")  # the first is best
    assert faulty(run, *worse, fault="step 13,SIGTERM") == 75
    best = Run.load(run).path / "checkpoint-3"
    flip(best / "model.safetensors")
    assert faulty(run, *worse, "--resume") == 0
    assert "the best checkpoint so far, checkpoint-3, cannot be loaded" in capfd.readouterr().out
    weights = [load_file(run / place / "model.safetensors") for place in ("", "checkpoint-3")]
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert Run.load(run).manifest.best_step != 3


def test_checkpoints_after_the_one_that_is_resumed_are_set_aside(
    faulty: Faulty, whole: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(whole(), tmp_path / "run")
    Run.load(run).update(status="interrupted")
    (run / "metrics.json").unlink()
    older = str(run / "checkpoint-6")
    assert faulty(run, "--resume_from_checkpoint", older) == 0
    assert "checkpoint-9 is not of this continuation: renamed to later-checkpoint-9" in (
        capfd.readouterr().out
    )
    assert_same(run, whole())


def test_rotation_counts_in_steps_and_never_below_two(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / "checkpoint-7-mine").mkdir()
    checkpoint.rotate(tmp_path, 1, tmp_path / "checkpoint-9")
    assert {path.name for path in tmp_path.iterdir()} == {
        "checkpoint-9", "checkpoint-100", "checkpoint-7-mine"
    }  # fmt: skip


def test_a_trainer_of_a_notebook_verifies_too(run: Path, words: list[str]) -> None:
    flip(run / "checkpoint-9" / "optimizer.pt")
    from finetune.recipe import catalog

    trainer = catalog.find(words[0])(dataset=words[2], model=words[4]).trainer(output_dir=str(run))
    with pytest.raises(UserError, match=re.escape("checkpoint-9 is damaged: optimizer.pt")):
        trainer.train(resume_from_checkpoint=str(run / "checkpoint-9"))
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == STEPS


# ---- sharded states ------------------------------------------------------------------------------


def save_shards(directory: str) -> str | None:
    """In one of two processes: save half of a tensor, commit, and return what is wrong with it."""
    import torch.distributed.checkpoint as sharded
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    distributed.join_process_group(None, 60, use_cpu=True)
    staged, final = Path(directory, ".uncommitted", "checkpoint-3"), Path(directory, "checkpoint-3")
    whole = torch.arange(64.0).reshape(8, 8)
    mesh = init_device_mesh("cpu", (2,))
    state = {"weight": distribute_tensor(whole, mesh, [Shard(0)])}
    sharded.save(state, checkpoint_id=staged / "pytorch_model_fsdp_0")
    if distributed.ranks().rank == 0:
        (staged / checkpoint.STATE).write_text('{"global_step": 3}')
        checkpoint.commit(staged, final, 2, {})
    distributed.gather(None)
    found = {"weight": distribute_tensor(torch.zeros(8, 8), mesh, [Shard(0)])}
    sharded.load(found, checkpoint_id=final / "pytorch_model_fsdp_0")
    assert torch.equal(found["weight"].full_tensor(), whole)
    distributed.leave()
    return checkpoint.problem(final)


@pytest.mark.faults
@pytest.mark.processes
def test_shards_of_every_rank_are_committed_and_verified(tmp_path: Path) -> None:
    """As FSDP saves them, by ``torch.distributed.checkpoint``."""
    assert in_fresh_processes(2, save_shards, str(tmp_path)) == [None, None]
    final = tmp_path / "checkpoint-3"
    shards = sorted(final.rglob("*.distcp"))
    assert len(shards) == 2
    content = shards[1].read_bytes()
    shards[1].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert (
        checkpoint.problem(final) == f"{shards[1].relative_to(final)} does not match its checksum"
    )
    shards[1].unlink()
    assert checkpoint.problem(final) == f"{shards[1].relative_to(final)} is missing"
