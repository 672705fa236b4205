"""Speed and memory against the stock script and another checkout; `make bench` runs it.

    python benchmarks/bench.py                       # every case; about an hour on two cores
    python benchmarks/bench.py training              # one of them; --help names them
    python benchmarks/bench.py training --other ../before --rounds 5

Ways that are compared take turns, each in a process of its own, and the medians count; see
`turns.py`. Ratios are worth something, seconds are those of this machine.
"""

import argparse
import contextlib
import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import odd_files
import prediction
import preparation
import results
import start
import training

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
CASES = {
    "training": training.measure,
    "prediction": prediction.measure,
    "preparation": preparation.measure,
    "start": start.measure,
    "odd-files": odd_files.measure,
    "results": results.measure,
}
_LARGEST = f"preparation, {preparation.SIZES[-1]:,} rows"
_MANY = f"prediction, {prediction.ROWS:,} rows"
#: The beginning of the case and of the way, the column, and the most that the figure may be.
LIMITS = (
    (_LARGEST, preparation.TOOLKIT, "times map", 1.15),
    (_LARGEST, preparation.TOOLKIT, "MiB beyond imports", 2048),
    (_LARGEST, preparation.SECOND, "s", 5),
    (_LARGEST, preparation.FEW, "s", 5),
    ("check, 25,000", "", "s", 15),
    ("check --deep, 25,000", "", "s", 150),
    (_MANY, "", "most after, of that", 1.05),
    ("results", "8,000 rows", "statistics, s", 20),
    ("results", "50,000 rows", "MiB", 2048),
    ("results", "200,000 rows", "statistics, s", 15),
    ("results", "200,000 rows", "report.html, MB", 3),
    ("start to first step", "toolkit", "times stock", 1.0),
    ("odd files", "", "rows that differ", 0),
)


def main() -> int:
    """Print a table for each case and the limits, and write all figures as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("case", nargs="?", choices=[*CASES, "all"], default="all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--other", type=Path, help="another checkout, in turns with this one")
    parser.add_argument("--output", type=Path, default=Path("bench.json"))
    options = parser.parse_args()
    other = options.other.resolve() if options.other else None
    figures: dict[str, Any] = {"machine": machine()}
    print(", ".join(f"{name} {value}" for name, value in figures["machine"].items()), flush=True)
    lines = []
    for name, measure in CASES.items():
        if options.case in (name, "all"):
            with contextlib.redirect_stdout(sys.stderr):  # only tables are asked for
                figures[name] = measure(options.rounds, other)
            options.output.write_text(json.dumps(figures, indent=2, default=str) + "\n", "utf-8")
            lines += figures[name]
            show(figures[name])
    limits = held_against_limits(lines)
    show(limits)
    print(f"\nall figures: {options.output}")
    return int(any(line["held"] == "NO" for line in limits))


def held_against_limits(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a line for each limit of the figures that were measured."""
    return [
        {
            "case": "limits",
            "way": f"{line['case']}: {line['way']}, {column}",
            "measured": line[column],
            "limit": most,
            "held": "yes" if line[column] <= most else "NO",
        }
        for case, way, column, most in LIMITS
        for line in lines
        if line["case"].startswith(case) and line["way"].startswith(way) and column in line
        if "other tree" not in line["way"]
    ]


def show(lines: list[dict[str, Any]]) -> None:
    """Print a table for each case in the lines."""
    for case in dict.fromkeys(line["case"] for line in lines):
        rows = [line for line in lines if line["case"] == case]
        columns = [name for name in rows[0] if name not in ("case", "way")]
        print(f"\n**{case}**\n\n| | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}")
        for row in rows:
            print(f"| {row['way']} | {' | '.join(_cell(row[name]) for name in columns)} |")
    sys.stdout.flush()


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def machine() -> dict[str, Any]:
    """Return what the figures were measured on."""
    import torch

    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "AVX512-BF16": torch.cpu.get_capabilities().get("avx512_bf16", False),
        "AMX": torch.cpu._is_amx_tile_supported(),
        **{name: version(name) for name in ("torch", "transformers", "accelerate")},
    }


if __name__ == "__main__":
    sys.exit(main())
