"""Statistics, a page and predictions of many rows and classes, each once.

python benchmarks/scale.py          # about ten minutes on two cores
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from trees import processor, run

#: Test rows, classes, and whether a row has one label or several.
STATISTICS = ((8_000, 2_000, 1), (200_000, 5, 1), (50_000, 2_000, 1), (50_000, 2_000, 0))
TRAINED, PAGE, PREDICTED = 20_000, 200_000, 1_000_000


def statistics(rows: int, classes: int, has_one: bool) -> None:
    """Print what the statistics of made-up logits take, and of one label the baselines too."""
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

    from finetune.statistics import metrics
    from finetune.statistics.baselines import Source
    from finetune.tasks.classes import MultiLabel, SingleLabel

    generator = np.random.default_rng(0)
    names = [f"class {number}" for number in range(classes)]
    task = SingleLabel(labels=names) if has_one else MultiLabel(labels=names)
    logits = generator.standard_normal((rows, classes), dtype=np.float32)
    labels = generator.integers(classes, size=rows)
    logits[np.arange(rows), labels] += 2
    features = Features(text=Value("string"), label=ClassLabel(names=names))
    splits = DatasetDict(
        {
            split: Dataset.from_dict({"text": write_texts(numbers), "label": numbers}, features)
            for split, numbers in {"train": np.arange(TRAINED) % classes, "test": labels}.items()
        }
    )
    targets = labels if has_one else generator.random((rows, classes), dtype=np.float32) < 0.01
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    scored, known = (
        task.scored(targets, logits),
        metrics.find_metrics(task.label_kind, task.metrics),
    )
    task.statistics(scored, known, None)
    if has_one:
        source = Source(splits=splits, column="text", seed=0, fit=True, note=print)
        for _, outputs in task.baselines(source):
            metrics.estimate_difference(task.scored(labels, outputs), scored, known)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"{time.perf_counter() - started:.1f} s, {memory / 2**10:,.0f} MiB beyond the logits")


def write_texts(labels: np.ndarray) -> list[str]:
    """Return a dozen words for each label, of which one has to do with it."""
    words = np.random.default_rng(1).integers(20_000, size=(len(labels), 12))
    rows = zip(labels.tolist(), words.tolist(), strict=True)
    return [f"class{label} " + " ".join(f"word{word}" for word in row) for label, row in rows]


def main() -> None:
    """Print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--statistics", type=int, nargs=3, help=argparse.SUPPRESS)
    if (given := parser.parse_args().statistics) is not None:
        return statistics(*given)
    print(processor())
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        for rows, classes, has_one in STATISTICS:
            words = [Path(__file__).resolve(), "--statistics", rows, classes, has_one]
            kind = "with baselines" if has_one else "several labels a row"
            line = run(words, home / "statistics").output.splitlines()[-1]
            print(f"statistics, {rows:,} rows, {classes:,} classes, {kind}: {line}", flush=True)
        labels = np.arange(2000) % 5
        table = pd.DataFrame({"text": write_texts(labels), "label": [f"c{n}" for n in labels]})
        table.to_csv(home / "rows.csv", index=False)
        flags = "--model embedded:minilm --max_length 16 --max_steps 2 --baseline false"
        words = ["-m", "finetune", "text", "--dataset", home / "rows.csv", *flags.split()]
        run([*words, "--output_dir", home / "run"], home / "cli")
        path = home / "run" / "predictions.parquet"
        rows_of_page = pd.read_parquet(path).sample(PAGE, replace=True, random_state=0)
        rows_of_page.to_parquet(path, index=False)
        page = run(["-m", "finetune", "report", home / "run"], home / "cli")
        size = (home / "run" / "report.html").stat().st_size / 1e6
        print(f"page of {PAGE:,} rows: {page.seconds:.1f} s, {size:.1f} MB", flush=True)
        data, output = home / "million.parquet", home / "predicted.parquet"
        table.sample(PREDICTED, replace=True, random_state=0).to_parquet(data, index=False)
        predicted = run(["-m", "finetune", "predict", home / "run", data, "--output", output], home)
        print(
            f"predictions of {PREDICTED:,} rows of 16 tokens: {predicted.seconds:.0f} s, "
            f"{predicted.memory:,.0f} MiB"
        )


if __name__ == "__main__":
    main()
