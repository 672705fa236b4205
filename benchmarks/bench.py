"""Runs the benchmarks, one after the other; `make bench` and `make bench CASE=start` do.

python benchmarks/bench.py [CASE]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

CASES = ("speed", "start", "preparation", "odd_files", "scale")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("case", nargs="?", choices=CASES, help="(default: all of them)")
    given = parser.parse_args()
    statuses = [
        subprocess.run([sys.executable, Path(__file__).with_name(f"{case}.py")], check=False)
        for case in ([given.case] if given.case else CASES)
    ]
    sys.exit(max(status.returncode for status in statuses))
