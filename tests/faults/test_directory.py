"""One run, one directory: who has it is known by a lock, whatever a file says."""

import contextlib
import dataclasses
import io
import multiprocessing
import os
import platform
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from finetune import Run, UserError, cli
from finetune.pipeline import resumption
from finetune.runtime import distributed
from finetune.training import checkpoint
from finetune.training.checkpoint import occupy, refuse_foreign
from tests.faults.conftest import Faulty
from tests.warm import in_warm_processes

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")


@pytest.fixture
def running(whole: Callable[..., Path], tmp_path: Path) -> Path:
    """A run whose process ended without a word, or runs on a machine that this one cannot see."""
    run = shutil.copytree(whole(), tmp_path / "run")
    elsewhere = dataclasses.replace(Run.load(run).manifest.process, host="another-machine", pid=1)
    Run.load(run).update(status="running", process=elsewhere)
    (run / ".lock").touch()
    return run


def test_a_run_whose_process_is_gone_is_stale(running: Path) -> None:
    process = dataclasses.replace(Run.load(running).manifest.process, host=platform.node())
    Run.load(running).update(process=process)
    assert Run.load(running).status == "stale"
    with FileLock(running / ".lock"):
        assert Run.load(running).status == "running"
    assert Run.load(running).manifest.status == "running"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("writable", [False, True])
def test_a_run_of_another_user_is_refused_and_not_moved(running: Path, writable: bool) -> None:
    """In a directory for everybody: one that only its owner writes to, and one that all do."""
    with tempfile.TemporaryDirectory() as shared:
        os.chmod(shared, 0o777)
        run = Path(shutil.copytree(running, Path(shared, "run")))
        os.chmod(run, 0o777 if writable else 0o755)

        sentence = of_nobody(take, run)

        expected = "cannot be locked: " if writable else "cannot be written to"
        assert expected in sentence
        assert os.listdir(shared) == ["run"]


def take(run: Path) -> None:
    refuse_foreign(run)
    occupy(run, moves_aside=True)


def of_nobody(work: Callable[[Path], object], run: Path) -> str:
    """What another user gets, or is told."""
    processes = multiprocessing.get_context("fork")
    told = processes.Queue()

    def child() -> None:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        try:
            told.put(str(work(run)))
        except UserError as error:
            told.put(str(error))

    process = processes.Process(target=child)
    process.start()
    sentence: str = told.get(timeout=60)
    process.join()
    return sentence


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_checkpoint_that_may_not_be_read_is_not_called_damaged(
    whole: Callable[..., Path],
) -> None:
    with tempfile.TemporaryDirectory() as shared:
        os.chmod(shared, 0o777)
        run = Path(shutil.copytree(whole(), Path(shared, "run")))
        os.chmod(run, 0o777)
        newest = checkpoint.list_checkpoints(run)[0] / "optimizer.pt"
        newest.chmod(0o600)
        told = of_nobody(lambda run: resumption.find("last", run, renames=True), run)
        assert told == f"{newest} cannot be read: Permission denied"
        assert newest.exists()


def test_a_run_that_is_removed_while_it_trains_is_told(
    words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    remove = tmp_path / "remove.py"
    text = Path(words[0]).read_text(encoding="utf-8")
    told = 'import shutil; state.global_step == 16 and shutil.rmtree(args.output_dir); fault(f"step'
    remove.write_text(text.replace('fault(f"step', told), encoding="utf-8")
    assert cli.main([str(remove), *words[1:], "--output_dir", str(tmp_path / "run")]) == 1
    assert f"{tmp_path / 'run' / 'run.json'} was removed while the run was in progress" in (
        capfd.readouterr().err
    )


@pytest.mark.faults
def test_nothing_is_written_through_a_link_in_a_run(faulty: Faulty, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert faulty(run, fault="step 4,SIGTERM") == 75
    (treasure := tmp_path / "treasure").write_text("untouched", encoding="utf-8")
    names = ("config.json", "tokenizer.json", "tokenizer_config.json")
    names += ("training_args.bin", "model.safetensors", "metrics.json", "predictions.parquet")
    for name in names:
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(treasure)
    assert faulty(run, "--resume") == 0
    assert treasure.read_text(encoding="utf-8") == "untouched"
    assert not [name for name in names if (run / name).is_symlink()]


@pytest.mark.faults
def test_a_signal_while_the_report_is_written_is_told(
    faulty: Faulty,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def write(run: Run) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            pass

    run = tmp_path / "run"
    monkeypatch.setattr("finetune.reporting.page.write", write)
    assert faulty(run, "--max_steps", "3") == 75
    said = capfd.readouterr().out
    assert f"to write it: python -m finetune report {run}" in said
    assert Run.load(run).status == "finished"
    assert faulty(run, "--max_steps", "3", "--resume") == 0
    assert "nothing is left to train" in capfd.readouterr().out


# ---- machines with a disk each -------------------------------------------------------------------


def agree(directory: str) -> tuple[int, list[str]] | str:
    """In one of two processes: what it goes on from, in a directory of its own."""
    from finetune.pipeline.preparation import resumption  # as the training does

    distributed.join_process_group(None, 60, use_cpu=True)
    mine = Path(directory, str(distributed.ranks().rank))
    try:
        found = resumption.agree_on_checkpoint(resumption.find("resume", mine, renames=True), mine)
        assert found is not None
        return found.step, found.notes
    except UserError as error:
        return str(error)
    finally:
        distributed.leave()


@pytest.mark.faults
@pytest.mark.processes
def test_machines_go_back_to_what_is_whole_on_all(
    whole: Callable[..., Path], tmp_path: Path
) -> None:
    for rank in range(2):
        shutil.copytree(whole(), tmp_path / str(rank))
        Run.load(tmp_path / str(rank)).update(status="running")
    for name in ("checkpoint-18/optimizer.pt", "checkpoint-15/scheduler.pt"):
        (tmp_path / "1" / name).unlink()
    shutil.rmtree(tmp_path / "0" / "checkpoint-12")
    found = in_warm_processes(2, agree, str(tmp_path))
    assert [each[0] for each in found] == [9, 9]
    assert ["scheduler.pt" in note for note in found[1][1]] == [False, True]
    shutil.rmtree(tmp_path / "1")
    for told in in_warm_processes(2, agree, str(tmp_path)):
        assert isinstance(told, str)
        assert "the ranks have checkpoints of steps [18, 0], and none is complete on every" in told


def resume(command: list[str], directory: str) -> tuple[int, str]:
    """In one of two processes, each a machine: exit status, and what was printed."""
    rank = os.environ["RANK"]
    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        place = ["--output_dir", str(Path(directory, rank))]
        status = cli.main([*command, *place, "--save_on_each_node", "--ddp_timeout=60"])
    return status, printed.getvalue()


@pytest.mark.faults
@pytest.mark.processes
def test_a_machine_that_is_finished_goes_on_with_one_that_is_not(
    words: list[str], tmp_path: Path
) -> None:
    flags = ["--max_steps=6", "--num_threads=1", "--disable_tqdm=true", "--resume"]
    runs = [tmp_path / "0", tmp_path / "1"]
    for killed in (None, runs[1], None):
        if killed is not None:  # after the last checkpoint, before the results
            Run.load(killed).update(status="running")
            for name in ("metrics.json", "model.safetensors", "predictions.parquet"):
                (killed / name).unlink()
        before = [(run / "run.json").read_bytes() for run in runs if run.exists()]
        ended = in_warm_processes(2, resume, [*words, *flags], str(tmp_path))
        assert [status for status, _ in ended] == [0, 0], ended
        assert [Run.load(run).manifest.status for run in runs] == ["finished", "finished"]
        assert (runs[0] / "metrics.json").read_bytes() == (runs[1] / "metrics.json").read_bytes()
    assert before == [(run / "run.json").read_bytes() for run in runs]
    assert "nothing is left to train" in ended[0][1]
