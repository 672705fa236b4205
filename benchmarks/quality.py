"""Scores of the default run beside those of cheap rivals and of the stock ``Trainer``'s defaults.

    python benchmarks/quality.py DIRECTORY                          # test rows; hours on two cores
    python benchmarks/quality.py DIRECTORY --only banking77-10
    python benchmarks/quality.py DIRECTORY --held_out validation --flags "--learning_rate 2e-4"

DIRECTORY has ``banking77/train.csv`` and ``test.csv`` (Casanueva et al., 2020, CC BY 4.0), with the
columns ``text`` and ``category``; the other sets are those of ``--embedded``. Runs are appended to
``--results``, a file of JSON lines, and a run that is in it is not repeated. A seed samples the
training rows and is the seed of the training.

With ``--held_out validation`` 2,000 of the rows that are not trained on take the place of the test
rows: that is how defaults were chosen. Test rows are for the final table.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student
from trees import processor, run

from finetune.data import embedded

#: The default arguments of ``transformers.Trainer`` and a random head.
STOCK = "--head random --learning_rate 5e-5 --num_train_epochs 3 --warmup_steps 0"
HELD_OUT = 2_000
Frames = tuple[pd.DataFrame, pd.DataFrame]


@dataclass(frozen=True)
class Case:
    """A data set with a number of training rows.

    Attributes:
        name: The name of the data and the number of rows; of Banking77, for each class.
        read: Returns training and test rows; None for the rows that the recipe has.
        rows: The training rows to sample; None for all.
        metric: The metric that is compared.
        flags: Flags of the run.
        seeds: The number of samples.
        column: The column of labels.
        by_class: Whether ``rows`` are those of each class.
        recipe: The recipe and its own flags.
    """

    name: str
    read: Callable[[Path], Frames] | None
    rows: int | None
    metric: str = "accuracy"
    flags: str = ""
    seeds: int = 3
    column: str = "label"
    by_class: bool = False
    recipe: str = "text --model embedded:minilm"


def banking77(directory: Path) -> Frames:
    """Return questions of customers of a bank, with 77 intents."""
    train, test = (
        pd.read_csv(directory / "banking77" / f"{part}.csv") for part in ("train", "test")
    )
    return train, test


def words_of_intents(directory: Path) -> Frames:
    """Return the same questions with the frequent words of their intent's name as labels."""
    frames = banking77(directory)
    words = frames[0]["category"].str.lower().str.split("_")
    frequent = words.explode().value_counts()
    names = set(frequent.index[frequent >= 500]) - {"my", "or", "by", "not", "for", "to", "of"}
    for frame in frames:
        lists = frame["category"].str.lower().str.split("_")
        frame["label"] = lists.map(lambda words: ";".join(sorted(names.intersection(words))))
    return frames


def sentences(directory: Path) -> Frames:
    """Return sentences of film reviews (Rotten Tomatoes); 1,706 of them are test rows."""
    return _reviews("rotten-tomatoes", 1_706)


def reviews(directory: Path) -> Frames:
    """Return film reviews (IMDB); 2,000 of them are test rows."""
    return _reviews("imdb", 2_000)


def numbers(directory: Path) -> Frames:
    """Return film reviews with 0 or 1 as a number."""
    frames = reviews(directory)
    for frame in frames:
        frame["label"] = (frame["label"] == "positive").astype(float)
    return frames


def _reviews(name: str, test_rows: int) -> Frames:
    rows = embedded.read(f"embedded:{name}")["train"]
    frame = pd.DataFrame({"text": rows["text"][:], "label": rows["label"][:]})
    frame["label"] = frame["label"].map({0: "negative", 1: "positive"})
    order = np.random.default_rng(0).permutation(len(frame))
    return frame.iloc[order[test_rows:]], frame.iloc[order[:test_rows]]


_LONG = "--max_length 256"
CASES = (
    Case("banking77-5", banking77, 5, column="category", by_class=True),
    Case("banking77-10", banking77, 10, column="category", by_class=True),
    Case("banking77-30", banking77, 30, column="category", by_class=True),
    Case("banking77-all", banking77, None, column="category", seeds=1),
    Case("sentences-100", sentences, 100),
    Case("sentences-1000", sentences, 1_000),
    Case("sentences-6000", sentences, 6_000, seeds=1),
    Case("reviews-500", reviews, 500, flags=_LONG),
    Case("reviews-4000", reviews, 4_000, flags=_LONG, seeds=1),
    Case("words-1000", words_of_intents, 1_000, "f1_macro", "--label_separator ; --drop_invalid"),
    Case("numbers-1000", numbers, 1_000, "r2", f"--task regression {_LONG}"),
    # their own networks, with random weights
    Case("digits, mnist", None, None, recipe="mnist --embedded"),
    Case("digits, image", None, None, recipe="image --embedded"),
)


def sample(case: Case, directory: Path, seed: int, held_out: str) -> Frames:
    """Return the training rows of a seed, and the rows to score."""
    assert case.read is not None
    train, test = case.read(directory)
    order = np.random.default_rng(seed).permutation(len(train))
    if held_out == "validation":
        test, order = train.iloc[order[:HELD_OUT]], order[HELD_OUT:]
    rows = train.iloc[order]
    if case.by_class:
        rows = rows.groupby(case.column).head(case.rows)
    return rows if case.rows is None or case.by_class else rows.iloc[: case.rows], test


def measure(case: Case, seed: int, flags: str, options: Any, scratch: Path) -> dict[str, Any]:
    """Train once, and return scores of the model and of the baselines, and seconds."""
    words = ["-m", "finetune", *case.recipe.split(), "--output_dir", scratch / "run"]
    words += ["--seed", str(seed), "--split_seed", str(seed), "--save_total_limit", "1"]
    words += shlex.split(f"{case.flags} {flags}")
    if case.read is not None:
        data = scratch / f"{case.name}-{seed}-{options.held_out}"
        if not data.exists():
            data.mkdir()
            train, test = sample(case, options.directory, seed, options.held_out)
            train.to_csv(data / "train.csv", index=False)
            test.to_csv(data / "test.csv", index=False)
        words += ["--dataset", data, "--label_column", case.column]
    started = time.perf_counter()
    run(words, scratch)
    seconds = time.perf_counter() - started
    metrics = json.loads((scratch / "run" / "metrics.json").read_text())
    record = json.loads((scratch / "run" / "run.json").read_text())
    baselines = {name: scores.get(case.metric) for name, scores in metrics["baseline"].items()}
    gaps = {
        name: [gap[case.metric][end] for end in ("value", "low", "high")]
        for name, gap in metrics["statistics"]["differences"].items()
        if case.metric in gap
    }
    return {
        "case": case.name, "seed": seed, "flags": flags, "held_out": options.held_out,
        "score": metrics["test"][case.metric], "baselines": baselines, "gaps": gaps,
        "steps": record["steps"], "seconds": round(seconds),
        "train_seconds": record["train_seconds"],
        "notes": [note for note in record["data"]["notes"] if note.startswith("head:")],
    }  # fmt: skip


def interval(values: list[float]) -> str:
    """Return the mean over seeds, with the 95% interval of the mean by Student's t."""
    if not values:
        return ""
    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{mean:.3f}"
    half = student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return f"{mean:.3f} ± {half:.3f}"


def table(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a Markdown table of runs by case and flags.

    A difference is that to the frozen encoder on the same rows, with its 95% interval for other
    rows: one for each seed.
    """
    yield (
        "| data | flags | score | frozen encoder | difference | TF-IDF | `Trainer`'s defaults | "
        "steps | minutes |"
    )
    yield "|" + " --- |" * 9
    frame = pd.DataFrame(results)
    is_stock = frame["flags"] == STOCK
    stock = frame[is_stock].groupby(["case", "held_out"])["score"].apply(list)
    runs = frame[~is_stock].groupby(["case", "held_out", "flags"], sort=False)
    for (name, held_out, flags), rows in runs:
        cells = [f"{name} ({held_out})", flags or "default", interval(rows["score"].tolist())]
        cells.append(interval(_of_baseline(rows["baselines"], "frozen encoder")))
        gaps = _of_baseline(rows["gaps"], "frozen encoder")
        cells.append(", ".join("{:+.3f} ({:+.3f} to {:+.3f})".format(*gap) for gap in gaps))
        cells.append(interval(_of_baseline(rows["baselines"], "TF-IDF")))
        cells.append(interval(stock.get((name, held_out), [])))
        cells += [f"{rows['steps'].mean():.0f}", f"{rows['seconds'].mean() / 60:.1f}"]
        yield f"| {' | '.join(cells)} |"


def _of_baseline(runs: Iterable[dict[str, Any]], start: str) -> list[Any]:
    """Return the values of a baseline in each run; its name begins with ``start``."""
    values = []
    for run_values in runs:
        values += [value for name, value in run_values.items() if name.startswith(start)]
    return values


def main() -> None:
    """Train what is not in the results yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", nargs="*", help="names of cases")
    parser.add_argument("--seeds", type=int, help="fewer samples")
    parser.add_argument("--flags", nargs="*", default=["", STOCK], help="flags of runs to compare")
    parser.add_argument("--held_out", choices=("test", "validation"), default="test")
    parser.add_argument("--results", type=Path, default=Path("quality.jsonl"))
    options = parser.parse_args()
    results = []
    if options.results.exists():
        results = [json.loads(line) for line in options.results.read_text().splitlines()]
    done = {(r["case"], r["seed"], r["flags"], r["held_out"]) for r in results}
    print(processor())
    with tempfile.TemporaryDirectory() as scratch, options.results.open("a") as file:
        for case in CASES:
            if options.only and case.name not in options.only:
                continue
            if case.read is None and options.held_out == "validation":
                continue  # its test rows are those of the recipe
            for seed in range(min(case.seeds, options.seeds or case.seeds)):
                for flags in options.flags:
                    if flags == STOCK and case.read is None:
                        continue  # those defaults are for pretrained models
                    if (case.name, seed, flags, options.held_out) in done:
                        continue
                    results.append(measure(case, seed, flags, options, Path(scratch)))
                    print(json.dumps(results[-1]), file=file, flush=True)
                    print(results[-1], flush=True)
    print(*table(results), sep="\n")


if __name__ == "__main__":
    main()
