"""Record the figures of reference runs, or compare those of this checkout with the record.

    python benchmarks/reference_figures.py --record      # write reference_figures.json
    python benchmarks/reference_figures.py               # print differences from it
    python benchmarks/reference_figures.py --only "sentiment fp32"

Each run is a new process. The fp32 runs are repeated without dropout and CPU kernels (`exact`).
The record has, for each run, logged losses and scores by step, the norms of all weights, a digest
of the weights, the metrics and the ends of their intervals. Figures are bit-identical on the
recorded processor, and equal up to rounding on others.

The exit status is 1 if an `exact` figure differs by more than 1e-6 of its size.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import sys
import tempfile
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from trees import TORCHRUN, processor, run

RECORD = Path(__file__).with_suffix(".json")
STEPS, TOLERANCE = 24, 1e-6
#: Suffixes of names in the history that measure speed and differ between runs.
_SPEED = ("runtime", "per_second", "flos")
Figures = dict[str, float | str]


@dataclass(frozen=True)
class Reference:
    """A reference run.

    Attributes:
        name: The printed name.
        recipe: The name of the recipe.
        flags: The flags of the training.
        processes: 1, or 2 with torchrun.
        resumed: Whether to kill the run at its checkpoint in the middle, and resume it.
    """

    name: str
    recipe: str
    flags: str
    processes: int = 1
    resumed: bool = False


SHORT = f"--train_samples 512 --eval_samples 200 --max_steps {STEPS}"
LONG = f"--train_samples 192 --eval_samples 100 --max_steps {STEPS // 3}"
HALF = "--save_strategy steps --eval_strategy steps"
HALF += f" --save_steps {STEPS // 2} --eval_steps {STEPS // 2}"
RANDOM = "--head random"
ACCUMULATION = "--gradient_accumulation_steps 2"
REFERENCES = (
    Reference("sentiment", "sentiment", f"{SHORT} {RANDOM}"),
    Reference("sentiment from a probe", "sentiment", SHORT),
    Reference("sentiment in two processes", "sentiment", f"{SHORT} {RANDOM}", processes=2),
    Reference("sentiment resumed", "sentiment", f"{SHORT} {HALF} {RANDOM}", resumed=True),
    Reference("yelp with accumulation", "yelp", f"{LONG} {ACCUMULATION} {RANDOM}"),
    Reference("yelp from a probe", "yelp", f"{LONG} {ACCUMULATION}"),
    Reference("mnist", "mnist", SHORT),
)
PRECISIONS = {
    "fp32 exact": "--precision fp32 --cpu_kernels off",
    "fp32": "--precision fp32",
    "bf16": "--precision bf16",
}


def list_references() -> list[Reference]:
    """Return the reference runs in each precision; `exact` ones are first."""
    runs = []
    for (precision, flags), reference in itertools.product(PRECISIONS.items(), REFERENCES):
        if precision == "fp32 exact" and reference.recipe != "mnist":
            flags = f"{flags} --hidden_dropout 0"
        name = f"{reference.name} {precision}"
        runs.append(replace(reference, name=name, flags=f"{reference.flags} {flags}"))
    return runs


def train(reference: Reference, scratch: Path) -> Path:
    """Train a reference run; return its directory."""
    directory = scratch / reference.name.replace(" ", "-")
    words = [*(TORCHRUN if reference.processes > 1 else ()), "-m", "finetune", reference.recipe]
    words += ["--embedded", *reference.flags.split(), "--logging_steps", "1"]
    words += ["--disable_tqdm", "true", "--output_dir", str(directory)]
    if reference.resumed:
        run(words, scratch, kill_at=directory / f"checkpoint-{STEPS // 2}" / "checkpoint.json")
        words.append("--resume")
    run(words, scratch)
    return directory


def read_figures(directory: Path) -> Figures:
    """Return the figures of a finished run by name."""
    manifest, metrics = (
        json.loads((directory / name).read_text(encoding="utf-8"))
        for name in ("run.json", "metrics.json")
    )
    weights, digest = load_file(directory / "model.safetensors"), hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].tobytes())
    values: dict[str, Any] = {
        f"{name} at step {entry['step']}": value
        for entry in manifest["history"]
        for name, value in entry.items()
        if name != "step" and not name.endswith(_SPEED) and isinstance(value, int | float)
    }
    values |= {f"norm of {n}": np.linalg.norm(w.astype(float)) for n, w in weights.items()}
    for split in ("validation", "test"):
        values |= {f"{split} {name}": value for name, value in metrics[split].items()}
    for name, estimate in metrics["statistics"]["metrics"].items():
        ends = {end: estimate[end] for end in ("low", "high") if estimate[end] is not None}
        values |= {f"statistics.metrics.{name}.{end}": value for end, value in ends.items()}
    rounded: Figures = {name: float(f"{value:.9g}") for name, value in values.items()}
    return rounded | {"digest of the weights": digest.hexdigest()}


def largest_difference(old: Figures, new: Figures) -> tuple[float, str]:
    """Return the largest difference, relative to the recorded value (at least 1e-3), and its name.

    The difference of a missing figure is infinite. Interval ends and digests are not compared.
    """
    differences = [(0.0, "")]
    for name, value in old.items():
        if isinstance(value, str) or name.startswith("statistics."):
            continue
        other = new.get(name)
        size = max(abs(value), 1e-3)
        difference = abs(other - value) / size if isinstance(other, float) else float("inf")
        differences.append((difference, name))
    return max(differences)


def main() -> int:
    """Record or compare; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name}")
    parser.add_argument("--only", default="", help="runs whose name contains this")
    options = parser.parse_args()
    if options.record and options.only:
        parser.error("--record writes all runs: remove --only")
    recorded = {} if options.record else json.loads(RECORD.read_text(encoding="utf-8"))["runs"]
    runs: dict[str, Figures] = {}
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        for reference in list_references():
            if options.only not in reference.name:
                continue
            runs[reference.name] = new = read_figures(train(reference, Path(scratch)))
            if options.record:
                print(f"{reference.name}: {len(new)} figures", flush=True)
                continue
            old = recorded[reference.name]
            difference, name = largest_difference(old, new)
            are_equal = old["digest of the weights"] == new["digest of the weights"]
            changed = sum(new.get(key) != old[key] for key in old if key.startswith("statistics."))
            print(
                f"{reference.name}: weights {'identical' if are_equal else 'differ'}, largest "
                f"relative difference {difference:.2g} {name}, {changed} interval ends differ",
                flush=True,
            )
            failed |= reference.name.endswith("exact") and difference > TOLERANCE
    if options.record:
        libraries = {name: version(name) for name in ("torch", "transformers", "accelerate")}
        machine = {"processor": processor(), **libraries}
        content = {"machine": machine, "steps": STEPS, "runs": runs}
        RECORD.write_text(json.dumps(content, indent=0) + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
