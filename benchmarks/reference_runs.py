"""Losses, weights and metrics of ten reference runs, against the recorded ones.

    python benchmarks/reference_runs.py                          # prints what differs
    python benchmarks/reference_runs.py --only "sentiment fp32"
    python benchmarks/reference_runs.py --record                 # writes reference_runs.json

Each training is a process of the command line. The fp32 runs are trained again without dropout and
CPU kernels (`exact`): their figures agree up to rounding on any processor, on the recorded one to
the bit. Recorded are every logged loss and score by step, the norm of every weight, a digest of all
weights, the metrics and their intervals.

Exit status 1 if an `exact` figure differs by more than 1e-6 of its size.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

ROOT, RECORD = Path(__file__).parent.parent, Path(__file__).with_suffix(".json")
TOLERANCE, STEPS = 1e-6, 24
SPEED = ("runtime", "per_second", "flos", "memory_mib")
SHORT = ("--train_samples=512", "--eval_samples=200", f"--max_steps={STEPS}")
LONG = ("--train_samples=192", "--eval_samples=100", f"--max_steps={STEPS // 3}")
SAVING = ("--save_strategy=steps", "--eval_strategy=steps", f"--eval_steps={STEPS // 2}")
SAVING += (f"--save_steps={STEPS // 2}",)
#: By name: the recipe and its flags; "in two processes" and "resumed" say how it is trained.
REFERENCES: dict[str, tuple[str, ...]] = {
    "sentiment": ("sentiment", *SHORT),
    "sentiment in two processes": ("sentiment", *SHORT),
    "sentiment resumed": ("sentiment", *SHORT, *SAVING),
    "yelp with accumulation": ("yelp", *LONG, "--gradient_accumulation_steps=2"),
    "mnist": ("mnist", *SHORT),
}
Figures = dict[str, float | str]


def references() -> dict[str, list[str]]:
    """Return the words of each training, by name."""
    runs = {}
    for name, (recipe, *flags) in REFERENCES.items():
        dropout = [] if recipe == "mnist" else ["--hidden_dropout=0"]
        words = [recipe, "--embedded", *flags, "--logging_steps=1", "--disable_tqdm=true"]
        exact = [*words, "--precision=fp32", *dropout, "--cpu_kernels=off"]
        runs[f"{name} fp32 exact"] = exact
        runs |= {f"{name} {bits}": [*words, f"--precision={bits}"] for bits in ("fp32", "bf16")}
    return runs


def train(name: str, words: list[str], home: Path) -> Path:
    """Train a reference run in an empty directory; return its own."""
    run, command = home / "run", [sys.executable, "-m"]
    if "in two processes" in name:
        command += ["torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m"]
    command += ["finetune", *words, f"--output_dir={run}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HOME": str(home.parent / "cache")}
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    log = home / "log"
    for stage in (["kill"] if "resumed" in name else []) + ["train"]:
        with log.open("w") as file:
            process = subprocess.Popen(
                command, cwd=home, env=environment, stdout=file, stderr=subprocess.STDOUT
            )
            checkpoint = run / f"checkpoint-{STEPS // 2}" / "checkpoint.json"
            while stage == "kill" and not checkpoint.exists() and process.poll() is None:
                time.sleep(0.01)
            if stage == "kill":
                process.kill()
                command += ["--resume"]
            if process.wait() and stage == "train":
                raise SystemExit(f"{name}: exit status {process.returncode}\n{log.read_text()}")
    return run


def figures(run: Path) -> Figures:
    """Return the figures of a finished run by name."""
    history = json.loads((run / "run.json").read_text("utf-8"))["history"]
    metrics = json.loads((run / "metrics.json").read_text("utf-8"))
    weights, digest = load_file(run / "model.safetensors"), hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].tobytes())
    values: dict[str, Any] = {
        f"{name} at step {entry['step']}": value
        for entry in history
        for name, value in entry.items()
        if name != "step" and not name.endswith(SPEED) and isinstance(value, int | float)
    }
    values |= {f"norm of {name}": np.linalg.norm(array) for name, array in weights.items()}
    for split in ("validation", "test"):
        values |= {f"{split} {name}": value for name, value in metrics[split].items()}
    for name, estimate in metrics["statistics"]["metrics"].items():
        for end in ("low", "high"):
            if isinstance(estimate.get(end), int | float):
                values[f"statistics.metrics.{name}.{end}"] = estimate[end]
    rounded: Figures = {name: float(f"{value:.9g}") for name, value in values.items()}
    return rounded | {"digest of the weights": digest.hexdigest()}


def largest_difference(old: Figures, new: Figures) -> tuple[float, str]:
    """Return the largest difference relative to the recorded value (at least 1e-3), and its name.

    A figure that is missing differs infinitely; interval ends and digests are not compared.
    """
    differences = [(0.0, "")]
    for name, value in old.items():
        if not isinstance(value, str) and not name.startswith("statistics."):
            other = new.get(name)
            size = max(abs(value), 1e-3)
            difference = abs(other - value) / size if isinstance(other, float) else float("inf")
            differences.append((difference, name))
    return max(differences)


def main() -> int:
    """Record or compare; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name}")
    parser.add_argument("--only", default="", help="part of the names of the runs")
    options = parser.parse_args()
    if options.record and options.only:
        parser.error("--record writes all runs: leave --only out")
    recorded = {} if options.record else json.loads(RECORD.read_text("utf-8"))["runs"]
    runs: dict[str, Figures] = {}
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        for name, words in references().items():
            if options.only not in name:
                continue
            (home := Path(scratch) / name.replace(" ", "-")).mkdir()
            runs[name] = new = figures(train(name, words, home))
            if options.record:
                print(f"{name}: {len(new)} figures", flush=True)
                continue
            old = recorded[name]
            difference, place = largest_difference(old, new)
            same = old["digest of the weights"] == new["digest of the weights"]
            moved = sum(new.get(key) != old[key] for key in old if key.startswith("statistics."))
            print(
                f"{name}: weights {'identical' if same else 'differ'}, largest relative "
                f"difference {difference:.2g} {place}, {moved} interval ends differ",
                flush=True,
            )
            failed |= name.endswith("exact") and difference > TOLERANCE
    if options.record:
        from bench import machine

        content = {"machine": machine(), "steps": STEPS, "runs": runs}
        RECORD.write_text(json.dumps(content, indent=0) + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
