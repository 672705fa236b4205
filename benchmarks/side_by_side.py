"""Trains the reference runs of two trees of this repository side by side and compares them.

    python benchmarks/side_by_side.py ../before .                     # every case
    python benchmarks/side_by_side.py ../before . --case equal        # to the bit, kernels off
    python benchmarks/side_by_side.py ../before . --case close        # kernels on
    python benchmarks/side_by_side.py ../before . --case speed --rounds 5
    python benchmarks/side_by_side.py ../before . --case equal --only "sentiment fp32"

For a change that is to leave results and speed as they were. Each training and each prediction is
a process of its own, started from an empty directory with `PYTHONPATH=TREE` and this interpreter;
both trees are driven by their command line alone. Where that has no `--cpu_kernels`, the kernels
are replaced by functions that do nothing before the command line starts.

Exit status 1 if something is out of bounds.
"""

import argparse
import contextlib
import json
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from reference_runs import (
    Failed,
    Reference,
    Tree,
    predict,
    references,
    speed_references,
    train,
    write_rows,
)
from run_differences import (
    Arrays,
    compare,
    read_interval_ends,
    read_logits,
    read_losses,
    read_probabilities,
    read_table,
    read_weights,
)

FP32, BF16_LOGITS, INTERVAL_ENDS = 1e-6, 5e-3, 0.005
TRAINING, TRAINING_IN_TWO, PREDICTION, MEMORY = 1.05, 1.09, 1.03, 1.12
STEPS, PREDICTED = 24, 2000
CASES = ("equal", "close", "speed")
_RATE = re.compile(r"([\d,.]+) (?:rows a second|rows/s|samples/s)")


# ---- tables --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A line of a table.

    Attributes:
        what: Is compared.
        old: Value in the old tree.
        new: Value in the new tree.
        difference: Or ratio.
        bound: What it has to keep to; empty if nothing is asked of it.
        ok: Whether it does.
    """

    what: str
    old: str
    new: str
    difference: str
    bound: str
    ok: bool


def difference(what: str, old: Arrays, new: Arrays, bound: float) -> Line:
    """Compare arrays; a bound of 0 asks for the same bits."""
    found = compare(old, new)
    ok = found.largest <= bound and (found.identical or bound > 0)
    shown = "same bits" if found.identical else f"{found.largest:.3g}"
    where = "" if found.identical else f", largest: {found.place}"
    name = f"{what} ({found.count:,} values{where})"
    asked = f"{bound:g}" if bound else "same bits"
    return Line(name, _shown(found.old), _shown(found.new), shown, asked, ok)


def ratio(what: str, old: Sequence[float], new: Sequence[float], bound: float) -> Line:
    """Compare seconds or MiB turn by turn; the median of the ratios counts."""
    median = statistics.median(b / a for a, b in zip(old, new, strict=True))
    medians = (f"{statistics.median(values):.4g}" for values in (old, new))
    return Line(what, *medians, f"{median:.3f}", f"{bound:g}", median <= bound)


def _shown(value: object) -> str:
    return f"{value:.7g}" if isinstance(value, float | np.floating) else str(value)[:20]


def show(title: str, lines: Sequence[Line]) -> None:
    """Print a table."""
    head = ("what", "old", "new", "difference or ratio", "bound", "")
    cells = [
        (line.what, line.old, line.new, line.difference, line.bound, "ok" if line.ok else "NOT OK")
        for line in lines
    ]
    widths = [max(len(row[number]) for row in (head, *cells)) for number in range(len(head))]
    print(f"\n{title}")
    for row in (head, *cells):
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
    sys.stdout.flush()


# ---- cases ---------------------------------------------------------------------------------------


def check_equal(trees: tuple[Tree, Tree], reference: Reference, directory: Path) -> list[Line]:
    """Compare a run of each tree with the kernels off, to the bit."""
    (old, new), predicted = _runs(trees, reference, directory, kernels=False)
    tables = [read_table(run / "predictions.parquet") for run in (old, new)]
    return [
        difference("losses and scores", read_losses(old), read_losses(new), 0),
        difference("weights", read_weights(old), read_weights(new), 0),
        difference("predictions.parquet", *tables, 0),
        difference("output of predict", *map(read_table, predicted), 0),
        difference(
            "interval ends", read_interval_ends(old), read_interval_ends(new), INTERVAL_ENDS
        ),
    ]


def check_close(trees: tuple[Tree, Tree], reference: Reference, directory: Path) -> list[Line]:
    """Compare a run of each tree with the kernels on, within the bound of its precision.

    Interval ends are compared in fp32 only: in bf16 other logits, within their bound, have other
    intervals, which says nothing of the statistics.
    """
    (old, new), predicted = _runs(trees, reference, directory, kernels=True)
    tables = [run / "predictions.parquet" for run in (old, new)]
    losses = [
        {name: value for name, value in read_losses(run).items() if "loss" in name}
        for run in (old, new)
    ]
    if reference.precision != "fp32":
        return [
            difference("test logits", *map(read_logits, tables), BF16_LOGITS),
            difference("predicted logits", *map(read_logits, predicted), BF16_LOGITS),
        ]
    ends = read_interval_ends(old), read_interval_ends(new)
    return [
        difference("losses", *losses, FP32),
        difference("weights", read_weights(old), read_weights(new), FP32),
        difference("test probabilities", *map(read_probabilities, tables), FP32),
        difference("predicted probabilities", *map(read_probabilities, predicted), FP32),
        difference("interval ends", *ends, INTERVAL_ENDS),
    ]


def _runs(
    trees: tuple[Tree, Tree], reference: Reference, directory: Path, kernels: bool
) -> tuple[list[Path], list[Path]]:
    """Return the run of each tree, and what each predicted of the same rows."""
    runs = [train(tree, reference, directory, kernels)[0] for tree in trees]
    rows = write_rows(runs[0], directory)
    pairs = zip(trees, runs, strict=True)
    return runs, [predict(tree, reference, run, rows, kernels)[0] for tree, run in pairs]


def measure_training(
    trees: tuple[Tree, Tree], reference: Reference, directory: Path, rounds: int
) -> list[Line]:
    """Let both trees train in turns; compare seconds of the steps and peak memory."""
    seconds: dict[str, list[float]] = {tree.name: [] for tree in trees}
    memory: dict[str, list[float]] = {tree.name: [] for tree in trees}
    for turn in range(rounds):
        for tree in trees:
            run, finished = train(tree, reference, directory / str(turn), kernels=True)
            manifest = json.loads((run / "run.json").read_text(encoding="utf-8"))
            seconds[tree.name].append(manifest["speed"]["seconds"]["step"])
            memory[tree.name].append(finished.memory)
    bound = TRAINING if reference.processes == 1 else TRAINING_IN_TWO
    return [
        ratio("seconds of the steps", *seconds.values(), bound),
        ratio("peak MiB of a process", *memory.values(), MEMORY),
    ]


def measure_prediction(trees: tuple[Tree, Tree], directory: Path, rounds: int) -> list[Line]:
    """Let both trees predict the same long texts in turns; compare seconds and peak memory."""
    reference = speed_references(4)[0]
    runs = [train(tree, reference, directory, kernels=True)[0] for tree in trees]
    seconds: dict[str, list[float]] = {tree.name: [] for tree in trees}
    memory: dict[str, list[float]] = {tree.name: [] for tree in trees}
    rows = write_rows(runs[0], directory, PREDICTED)
    for _ in range(rounds):
        for tree, run in zip(trees, runs, strict=True):
            output, finished = predict(tree, reference, run, rows, kernels=True)
            output.unlink()
            rate = _RATE.search(finished.output)
            if rate is None:
                raise Failed(f"{tree.name}: no rate in what predict said: {finished.output}")
            seconds[tree.name].append(PREDICTED / float(rate[1].replace(",", "")))
            memory[tree.name].append(finished.memory)
    return [
        ratio(f"seconds for {PREDICTED:,} rows", *seconds.values(), PREDICTION),
        ratio("peak MiB of a process", *memory.values(), MEMORY),
    ]


# ---- the command line ----------------------------------------------------------------------------

Measure = Callable[[Path], list[Line]]


def cases(
    trees: tuple[Tree, Tree], names: Sequence[str], steps: int, rounds: int
) -> Iterator[tuple[str, Measure]]:
    """Yield the title of each table, and what makes it in an empty directory."""
    for reference in references(steps):
        if "equal" in names:
            title = f"kernels off: {reference.name}"
            yield title, lambda directory, it=reference: check_equal(trees, it, directory)
        if "close" in names:
            title = f"kernels on: {reference.name}"
            yield title, lambda directory, it=reference: check_close(trees, it, directory)
    if "speed" in names:
        for reference in speed_references(steps):
            title = f"speed: training, {reference.name}"
            yield (
                title,
                lambda directory, it=reference: measure_training(trees, it, directory, rounds),
            )
        yield "speed: prediction", lambda directory: measure_prediction(trees, directory, rounds)


def main() -> int:
    """Print a table for each case.

    Returns:
        The exit status: 1 if something is out of bounds.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, help="checkout of the tree before the change")
    parser.add_argument("new", type=Path, help="checkout of the tree after it")
    parser.add_argument("--case", action="append", choices=CASES, help="(default: all of them)")
    parser.add_argument("--only", default="", help="part of the titles of the tables wanted")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each training")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each tree, for speed")
    parser.add_argument("--keep", type=Path, help="directory for the runs (default: a temporary)")
    given = parser.parse_args()
    ok, printed = True, 0
    with contextlib.ExitStack() as stack:
        scratch = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        named = {"old": given.old, "new": given.new}
        old, new = (Tree(name, path, scratch / name) for name, path in named.items())
        chosen = given.case or CASES
        for number, (title, measure) in enumerate(
            cases((old, new), chosen, given.steps, given.rounds)
        ):
            if given.only not in title:
                continue
            (directory := scratch / f"case-{number}").mkdir()
            try:
                lines = measure(directory)
            except Failed as failure:
                print(failure, file=sys.stderr)
                lines = [Line("every process ends well", "", "", "failed", "", ok=False)]
            show(title, lines)
            ok, printed = ok and all(line.ok for line in lines), printed + 1
    if not printed:
        parser.error(f"--only {given.only}: no such table")
    print("\neverything is within its bounds" if ok else "\nNOT OK: see the tables")
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
