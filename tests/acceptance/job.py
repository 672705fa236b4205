"""Train cases in turn in every process of a launch: `-m tests.acceptance.job CASES.json`.

A case has keywords of `finetune.train` (`options`, and `by_rank` for those that differ), a `port`
for its process group, variables in `environment`, and the working directory of each rank in
`directories`. A case that fails must be the last one: its error ends the job. No `report.html` is
written: it takes longer than these trainings, and has tests of its own.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import finetune
from finetune.reporting import page


def main(path: str) -> None:
    rank = int(os.environ["RANK"])
    page.write = lambda run: run.path  # type: ignore[assignment]
    for case in json.loads(Path(path).read_text(encoding="utf-8")):
        environment = {"MASTER_PORT": str(case["port"]), "TORCHELASTIC_USE_AGENT_STORE": "False"}
        os.environ |= environment | case.get("environment", {})
        os.chdir(case.get("directories", ["."] * (rank + 1))[rank])
        options: dict[str, Any] = case["options"] | case.get("by_rank", [{}] * (rank + 1))[rank]
        finetune.train(case["recipe"], **options)


if __name__ == "__main__":
    main(sys.argv[1])
