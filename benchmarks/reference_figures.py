"""Records the figures of the reference runs, or holds this tree against the recorded ones.

    python benchmarks/reference_figures.py --record      # writes reference_figures.json
    python benchmarks/reference_figures.py               # prints what differs from it
    python benchmarks/reference_figures.py --only "sentiment fp32"

The runs are those of `reference_runs.py`, and the fp32 runs again without dropout and CPU kernels
(`exact`). Recorded of each: every logged loss and score by step, the norm of every weight, a digest
of all weights, the metrics, and the interval ends of the metrics. `side_by_side.py` compares two
checkouts value by value; this needs only the file, on any processor: there figures agree up to
rounding, on the recorded processor to the bit.

Exit status 1 if an `exact` figure differs by more than 1e-6 of its size.
"""

import argparse
import dataclasses
import hashlib
import json
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from reference_runs import Reference, Tree, references, train
from run_differences import read_interval_ends, read_losses, read_weights

RECORD = Path(__file__).with_suffix(".json")
STEPS, TOLERANCE = 24, 1e-6
Figures = dict[str, float | str]


def exact_references() -> list[Reference]:
    """Return the fp32 runs without dropout; they run without CPU kernels."""
    runs = []
    for reference in references(STEPS):
        if reference.precision == "fp32":
            dropout = () if reference.recipe == "mnist" else ("--hidden_dropout", "0")
            name, flags = f"{reference.name} exact", (*reference.flags, *dropout)
            runs.append(dataclasses.replace(reference, name=name, flags=flags))
    return runs


def figures(run: Path) -> Figures:
    """Return the figures of a finished run by name."""
    weights = read_weights(run)
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].tobytes())
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    ends = read_interval_ends(run)
    values: dict[str, Any] = {name: float(array[0]) for name, array in read_losses(run).items()}
    values |= {f"norm of {name}": np.linalg.norm(array) for name, array in weights.items()}
    for split in ("validation", "test"):
        values |= {f"{split} {name}": value for name, value in metrics[split].items()}
    values |= {
        name: array[0] for name, array in ends.items() if name.startswith("statistics.metrics.")
    }
    rounded: Figures = {name: float(f"{value:.9g}") for name, value in values.items()}
    return rounded | {"digest of the weights": digest.hexdigest()}


def largest_difference(old: Figures, new: Figures) -> tuple[float, str]:
    """Return the largest difference relative to the recorded value (at least 1e-3), and its name.

    A figure that is missing differs infinitely; interval ends and digests are not compared.
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name}")
    parser.add_argument("--only", default="", help="part of the names of the runs")
    options = parser.parse_args()
    if options.record and options.only:
        parser.error("--record writes all runs: leave --only out")
    recorded = {} if options.record else json.loads(RECORD.read_text(encoding="utf-8"))["runs"]
    runs: dict[str, Figures] = {}
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        tree = Tree("tree", Path(__file__).parent.parent, Path(scratch) / "tree")
        for number, reference in enumerate([*exact_references(), *references(STEPS)]):
            if options.only not in reference.name:
                continue
            exact = reference.name.endswith("exact")
            directory = Path(scratch) / str(number)
            run, _ = train(tree, reference, directory, kernels=not exact)
            runs[reference.name] = new = figures(run)
            if options.record:
                print(f"{reference.name}: {len(new)} figures", flush=True)
                continue
            old = recorded[reference.name]
            difference, name = largest_difference(old, new)
            same = old["digest of the weights"] == new["digest of the weights"]
            moved = sum(new.get(key) != old[key] for key in old if key.startswith("statistics."))
            print(
                f"{reference.name}: weights {'identical' if same else 'differ'}, largest relative "
                f"difference {difference:.2g} {name}, {moved} interval ends differ",
                flush=True,
            )
            failed |= exact and difference > TOLERANCE
    if options.record:
        libraries = {name: version(name) for name in ("torch", "transformers", "accelerate")}
        machine = {"processor": processor(), **libraries}
        content = {"machine": machine, "steps": STEPS, "runs": runs}
        RECORD.write_text(json.dumps(content, indent=0) + "\n", encoding="utf-8")
    return int(failed)


def processor() -> str:
    """Return the name of the processor, as Linux gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    sys.exit(main())
