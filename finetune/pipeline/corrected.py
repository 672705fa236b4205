"""What corrections of the data changed, by a paired comparison with the run before them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from finetune.data.prediction_columns import LABEL
from finetune.errors import UserError, counted
from finetune.pipeline.compare import judging
from finetune.reporting import wording
from finetune.runs.run import Run


def measured(run: Run) -> dict[str, Any] | None:
    """Return what the corrections of a run changed, on the test rows that both runs have with the
    same label.

    Args:
        run: With statistics.

    Returns:
        ``sentence``; and where the run before was found ``run``, ``rows``, ``before``, ``after``
        and ``differences`` by metric, with intervals. None if nothing was corrected.
    """
    done = run.manifest.data.corrections
    if not done:
        return None
    what = "; ".join(
        f"{each['file']} {verb} "
        + ", ".join(counted(count, f"{split} row") for split, count in each[kind].items())
        for each in done
        for kind, verb in (("relabelled", "relabelled"), ("excluded", "left out"))
        if each[kind]
    )
    words = next((each["run"] for each in reversed(done) if each["run"]), "")
    if not words:
        return {"sentence": f"Corrected: {what}."}
    try:
        earlier = _found(run, words)
        if earlier is None:
            return {"sentence": f"Corrected: {what}. The run before, {words}, was not found."}
        return _compared(run, earlier, what)
    except UserError as error:
        return {"sentence": f"Corrected: {what}. No comparison with {words}: {error}"}


def named(run: Run) -> str:
    """Return by what a run is found again, also if it was moved aside: directory and start."""
    return f"{run.path} {run.manifest.process.started}"


def _found(run: Run, words: str) -> Run | None:
    """Return the run that a file names, wherever it was moved aside to."""
    name, _, started = words.rpartition(" ")
    path = Path(name)
    for folder in dict.fromkeys([path.parent, run.path.parent]):
        several = sorted(folder.glob(f"{path.name}.*"), key=lambda each: each.stat().st_mtime)
        for each in [folder / path.name, *reversed(several)]:
            if (each / "run.json").is_file() and each.resolve() != run.path.resolve():
                other = Run.load(each)
                if other.manifest.process.started == started:
                    return other
    return None


def _compared(run: Run, earlier: Run, what: str) -> dict[str, Any]:
    """Return the comparison with another run.

    Raises:
        UserError: if they cannot be compared.
    """
    task = run.kind
    if why := task.unlike(earlier.kind):
        raise UserError(f"the runs have {why}")
    tables = [each.predicted_rows for each in (earlier, run)]
    before, after = earlier.scored(tables[0], task), run.scored(tables[1])
    keys = [name for name in ("id", "text", "digest") if all(name in table for table in tables)]
    first = {row: number for number, row in enumerate(_keys(tables[0], keys))}
    pairs = [
        (first[row], number) for number, row in enumerate(_keys(tables[1], keys)) if row in first
    ]
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    if not len(both):
        raise UserError("they have no test row in common")
    one, other = (np.asarray(each.labels) for each in (before, after))
    same = (one[both[:, 0]] == other[both[:, 1]]).reshape(len(both), -1).all(axis=1)
    both = both[same]
    if not len(both):
        raise UserError(f"they have no test row with the same {LABEL} in common")
    before = task.scored(one[both[:, 0]], before.outputs[both[:, 0]])
    after = task.scored(other[both[:, 1]], after.outputs[both[:, 1]])
    judged, more = judging(run)(before, after)
    headline = [name for name in run.headline if name in more]
    verdict = wording.between(
        "the corrected run", "the run before", more, headline, wording.directions(run.manifest)
    )
    metric = headline[0]
    scores = {
        name: (judged[name]["value"] - more[name]["value"], judged[name]["value"])
        for name in headline
    }
    return {
        "run": str(earlier.path),
        "rows": len(both),
        "before": {name: each[0] for name, each in scores.items()},
        "after": {name: each[1] for name, each in scores.items()},
        "differences": {name: more[name] for name in headline},
        "sentence": f"Corrected: {what}. On the {len(both):,} test rows that {earlier.path} has "
        f"with the same label, {wording.name(metric)} went from {scores[metric][0]:.3f} to "
        f"{scores[metric][1]:.3f}: {verdict}",
    }


def _keys(table: Any, names: list[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(table[name] for name in names), strict=True))
