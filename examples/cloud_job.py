# /// script
# requires-python = ">=3.11"
# dependencies = ["trainer-recipes[embedded]"]
# ///
"""Train on a machine that may be gone in a minute; the same command continues on the next one.

    uv run examples/cloud_job.py --store /mnt/bucket/reviews --repo me/reviews \\
        text --dataset reviews.csv --model google-bert/bert-base-uncased

``--store`` is a directory that outlives the machine, such as a mounted bucket. The run is on the
local disk. Each complete checkpoint is copied to the store, and the next machine begins with these
copies. The store needs neither locks nor renaming, which many object stores do not have. With
``--repo``, the model of a finished run is pushed to the Hub.

The exit status is 75 after a signal, and after ``--stop_after`` minutes: run the same command
again. docs/cloud.md has the commands of Hugging Face Jobs, and says how to name a wheel.
"""

import argparse
import filecmp
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

SEAL = "checkpoint.json"  # is written last; a checkpoint without it is never used
SECONDS = 5  # between two looks for a new checkpoint


def copy(source: Path, target: Path) -> None:
    """Copy a file or a directory: contents only, and seals last."""
    if source.is_dir():
        for path in sorted(source.iterdir(), key=lambda path: path.name == SEAL):
            copy(path, target / path.name)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def save(run: Path, store: Path, *, is_final: bool = False) -> None:
    """Copy new checkpoints and the files beside them; delete what the run has deleted."""
    has_news = is_final
    checkpoints = [seal.parent for seal in run.glob(f"checkpoint-*/{SEAL}")]
    for checkpoint in checkpoints:
        seal, copied_seal = checkpoint / SEAL, store / checkpoint.name / SEAL
        if not copied_seal.exists() or not filecmp.cmp(seal, copied_seal, shallow=False):
            copied_seal.unlink(missing_ok=True)
            copy(checkpoint, copied_seal.parent)
            print(f"copied {checkpoint.name} to {store}", flush=True)
            has_news = True
    if has_news and run.exists():
        for path in run.iterdir():
            if not path.name.startswith((".", "checkpoint-")):
                copy(path, store / path.name)
    if checkpoints:  # they are in the store now
        for copied in store.glob("checkpoint-*"):
            if not (run / copied.name).exists():
                shutil.rmtree(copied)


def train(words: list[str], run: Path, store: Path, minutes: float) -> int:
    """Train, save to the store, and return the exit status. A signal or the time stops it."""
    command = [sys.executable, "-m", "finetune", *words, "--output_dir", str(run), "--resume"]
    # in a session of its own: a signal to the group would reach it twice, and end it at once
    training = subprocess.Popen(command, start_new_session=True)
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)

    def stop(number: int, frame: FrameType | None) -> None:
        for name in signals:
            signal.signal(name, signal.SIG_IGN)
        training.terminate()

    for name in signals:
        signal.signal(name, stop)
    signal.setitimer(signal.ITIMER_REAL, 60 * minutes)
    while training.poll() is None:
        try:
            training.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            try:
                save(run, store)
            except OSError as error:  # a file was deleted meanwhile, or the store does not answer
                print(f"not copied yet: {error}", file=sys.stderr, flush=True)
    save(run, store, is_final=True)
    return training.returncode


def main() -> int:
    """Continue the run in the store, and push the model of a finished run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", type=Path, required=True, help="a directory that stays")
    parser.add_argument("--repo", help="push the model to this repository of the Hub")
    parser.add_argument("--stop_after", type=float, default=20, metavar="MINUTES")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="a recipe and its options")
    options = parser.parse_args()
    run = Path("runs", options.store.name)
    if options.store.exists() and not run.exists():
        copy(options.store, run)
    status = train(options.words, run, options.store, options.stop_after)
    if status == 0 and options.repo:
        push = [sys.executable, "-m", "finetune", "push", str(run), "--repo", options.repo, "--yes"]
        status = subprocess.run(push).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
