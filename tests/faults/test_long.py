"""Test that the memory of a long training does not grow."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.faults
STEPS, WARM = 2000, 500
MAX_MIB = 50  # MiB
MEASURED = """

def measured(step):
    import psutil

    if step in (%d, %d):
        print("resident", psutil.Process().memory_info().rss >> 20, flush=True)
"""


def test_2000_steps_with_evaluations_and_checkpoints_keep_their_memory(
    words: list[str], tmp_path: Path
) -> None:
    recipe = tmp_path / "measured.py"
    text = Path(words[0]).read_text(encoding="utf-8")
    text = text.replace('act(f"end of step', 'measured(state.global_step); act(f"end of step')
    recipe.write_text(text + MEASURED % (WARM, STEPS), encoding="utf-8")
    flags = ["--max_steps", STEPS, "--eval_steps", 50, "--save_steps", 50, "--save_total_limit", 2]
    typed = [recipe, *words[1:], "--output_dir", tmp_path / "run", *flags]
    done = subprocess.run(
        [sys.executable, "-m", "finetune", *map(str, typed)],
        capture_output=True, text=True, timeout=580, check=True,
    )  # fmt: skip
    warm, end = map(int, re.findall(r"resident (\d+)", done.stdout))
    assert end - warm < MAX_MIB, f"{warm} MiB after {WARM} steps, {end} MiB after {STEPS}"
