"""One run, one directory: who has it is known by a lock, whatever a file says."""

import contextlib
import dataclasses
import io
import json
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

import finetune
from finetune import Run, UserError, cli
from finetune.pipeline import resumption
from finetune.runtime import distributed, lock
from finetune.training import checkpoint
from finetune.training.directory import clear_way, occupy
from finetune.training.manifest import Process
from tests.faults.conftest import Faulty, assert_same
from tests.runs import trained
from tests.warm import in_warm_processes

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")
ELSEWHERE = Process(host="another-machine", pid=1, started="2026-01-02T03:04:05+00:00")


@pytest.fixture
def running(tmp_path: Path) -> Path:
    """A run of another machine, whose lock this one does not see."""
    manifest = dataclasses.replace(trained().manifest, status="running", process=ELSEWHERE)
    manifest.write(tmp_path / "run")
    (tmp_path / "run" / ".lock").touch()
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def released(tmp_path: Path) -> object:
    yield
    lock.release(tmp_path / "run")


def test_a_run_whose_process_is_gone_is_stale(running: Path) -> None:
    Run.load(running).update(process=dataclasses.replace(ELSEWHERE, host=platform.node()))
    assert Run.load(running).status == "stale"
    with FileLock(running / ".lock"):
        assert Run.load(running).status == "running"
    assert Run.load(running).manifest.status == "running"


def test_a_run_that_was_moved_aside_can_be_resumed_at_once(faulty: Faulty, tmp_path: Path) -> None:
    assert faulty(tmp_path / "run", fault="step 4,SIGTERM") == 75
    clear_way(tmp_path / "run")
    assert not lock.is_mine(tmp_path / "run.1")
    assert lock.is_mine(tmp_path / "run")
    assert not lock.is_held(tmp_path / "run.1")


def test_the_number_of_a_process_that_is_used_again_is_not_the_run(running: Path) -> None:
    recycled = dataclasses.replace(ELSEWHERE, host=platform.node(), pid=os.getpid())
    Run.load(running).update(process=recycled)
    assert Run.load(running).status == "stale"
    occupy(running)
    assert lock.is_mine(running)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("writable", [False, True])
def test_a_run_of_another_user_is_refused_and_not_moved(running: Path, writable: bool) -> None:
    """In a directory for everybody: one that only its owner writes to, and one that all do."""
    with tempfile.TemporaryDirectory() as shared:
        os.chmod(shared, 0o777)
        run = Path(shutil.copytree(running, Path(shared, "run")))
        os.chmod(run, 0o777 if writable else 0o755)

        sentence = of_nobody(clear_way, run)

        expected = "cannot be locked: " if writable else "cannot be written to"
        assert expected in sentence
        assert os.listdir(shared) == ["run"]


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


def test_a_directory_that_is_a_link_to_nothing_is_refused(
    faulty: Faulty, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "gone")
    assert faulty(tmp_path / "run") == 2
    assert f"run is a link to nothing: {tmp_path / 'gone'}" in capfd.readouterr().err


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


@pytest.mark.parametrize("content", ["", "[]", "{}"])
def test_a_manifest_that_is_broken_stops_no_resume(
    faulty: Faulty, whole: Callable[..., Path], content: str, tmp_path: Path
) -> None:
    """What a run was made by is in its checkpoints, too."""
    run = tmp_path / "run"
    shutil.copytree(whole(), run)
    for path in checkpoint.list_checkpoints(run)[:2]:
        shutil.rmtree(path)
    (run / "run.json").write_text(content)
    assert faulty(run, "--resume", "--seed", "7") == 2
    assert (run / "run.json").read_text() == content
    assert faulty(run, "--resume") == 0
    assert_same(run, whole())


@pytest.mark.faults
def test_nothing_is_written_through_a_link_in_a_run(faulty: Faulty, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert faulty(run, fault="step 4,SIGTERM") == 75
    (treasure := tmp_path / "treasure").write_text("untouched", encoding="utf-8")
    names = (".reserve", "config.json", "tokenizer.json", "tokenizer_config.json")
    names += ("training_args.bin", "model.safetensors", "metrics.json", "predictions.parquet")
    for name in names:
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(treasure)
    assert faulty(run, "--resume") == 0
    assert treasure.read_text(encoding="utf-8") == "untouched"
    assert not [name for name in names if (run / name).is_symlink()]


@pytest.mark.faults
@pytest.mark.parametrize("name", ["run.json", ".lock", "checkpoint-18/checkpoint.json"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(
    faulty: Faulty, whole: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    run = shutil.copytree(whole(), tmp_path / "run")
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    assert faulty(run, "--resume") == 0


@pytest.mark.parametrize("name", ["run.json", "metrics.json", "predictions.parquet"])
def test_a_file_of_a_run_that_is_none_is_one_sentence(
    whole: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    run = shutil.copytree(whole(), tmp_path / "run")
    (run / name).unlink()
    (run / name).mkdir()
    with pytest.raises(UserError, match=f"{name} is damaged"):
        assert [Run.load(run).manifest, Run.load(run).metrics, Run.load(run).predictions]


@pytest.mark.parametrize(
    "harm",
    [{"arguments": 5}, {"history": {}}, {"labels": "a"}, {"scoring": {"f1": 1}}, {"recipe": None}],
)
def test_a_manifest_of_another_shape_is_one_sentence(
    whole: Callable[..., Path], tmp_path: Path, harm: dict[str, object]
) -> None:
    run = shutil.copytree(whole(), tmp_path / "run")
    content = json.loads((run / "run.json").read_text(encoding="utf-8"))
    (run / "run.json").write_text(json.dumps(content | harm), encoding="utf-8")
    (name,) = harm
    expected = f"{name} is |expected the name of a recipe and its metrics"
    with pytest.raises(UserError, match=f"run.json is damaged: ({expected})"):
        finetune.report(run)


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
    assert f"its report was not written; to write it: python -m finetune report {run}" in (
        capfd.readouterr().out
    )


# ---- machines with a disk each -------------------------------------------------------------------


def agree(directory: str) -> tuple[int, list[str]] | str:
    """In one of two processes: what it goes on from, in a directory of its own."""
    from finetune.pipeline.train import resumption  # as the training does

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
        assert "rank 1 has no complete checkpoint there, and rank 0 has checkpoint-18" in told


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


def test_one_machine_agrees_with_itself(whole: Callable[..., Path]) -> None:
    found = resumption.find("last", whole(), renames=False)
    assert resumption.agree_on_checkpoint(found, whole()) is found
