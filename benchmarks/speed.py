"""Compare the speed of the stock script, this checkout, and optionally another checkout.

    python benchmarks/speed.py                                  # about 20 minutes on two cores
    python benchmarks/speed.py --tree ../before --rounds 5
    python benchmarks/speed.py --only "training, 256"

All take the embedded MiniLM and the same reviews (IMDB) or sentences (Rotten Tomatoes). Each turn
is a process of its own, and ratios are medians of those of a round: on a shared machine they mean
something, rows per second little.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
from trees import ROOT, TORCHRUN, Finished, processor, run

from finetune.data import embedded
from finetune.data.sources import Source

BATCH, STEPS, PREDICTED = 32, 24, 512
STOCK, THIS, OTHER = "stock", "this checkout", "the other"


@dataclass(frozen=True)
class Case:
    """A measured training or prediction."""

    name: str
    data: str
    max_length: int
    trains: bool = True
    processes: int = 1
    words: bool = False  # labels words, not texts


CASES = (
    Case("training, 256 tokens", "embedded:imdb", 256),
    Case("training, 64 tokens", "embedded:rotten-tomatoes", 64),
    Case("training, 256 tokens, two processes", "embedded:imdb", 256, processes=2),
    Case("training, 64 tokens, two processes", "embedded:rotten-tomatoes", 64, processes=2),
    Case("training of words, 64 tokens", "embedded:rotten-tomatoes", 64, words=True),
    Case("prediction, 256 tokens", "embedded:imdb", 256, trains=False),
    Case("prediction, 512 tokens", "embedded:imdb", 512, trains=False),
)


@dataclass(frozen=True)
class Bench:
    """Runs cases in a directory.

    Attributes:
        scratch: The directory for data, runs and caches.
        trees: The checkouts by name.
    """

    scratch: Path
    trees: dict[str, Path]

    def turn(self, way: str, case: Case) -> Finished:
        """Run a case once, with the stock script or a checkout."""
        data = self._write_rows(case)
        output = self.scratch / way / "run"
        if way == STOCK:
            model = embedded.model_directory() if case.trains else self._model(THIS, case)
            words = [ROOT / "benchmarks/stock.py", data, model, case.max_length]
            if case.trains:
                words += ["--batch", BATCH // case.processes, "--steps", STEPS]
            if case.words:
                words += ["--words"]
        elif case.trains:
            words = [*self._training(data, case), "--max_steps", STEPS, "--output_dir", output]
        else:
            words = ["-m", "finetune", "predict", self._model(way, case), data]
            words += ["--output", output.with_suffix(".csv")]
        launcher = TORCHRUN if case.processes > 1 else ()
        return run([*launcher, *words], self.scratch / way, self.trees.get(way, ROOT))

    def _training(self, data: Path, case: Case) -> list[Any]:
        recipe = "tokens" if case.words else "text"
        flags = f"{recipe} --model embedded:minilm --global_batch_size {BATCH} --eval_strategy no"
        flags += f" --max_length {case.max_length} --save_strategy no --baseline false"
        flags += " --load_best_model_at_end false --eval_samples 32 --use_cpu true"
        return ["-m", "finetune", *flags.split(), "--dataset", data]

    def _model(self, way: str, case: Case) -> Path:
        """Return a run of a few steps of a checkout, to predict with."""
        output = self.scratch / way / f"model-{case.max_length}"
        if not output.exists():
            words = self._training(self._write_rows(case), case)
            words += ["--max_steps", 2, "--output_dir", output]
            run(words, self.scratch / way, self.trees[way])
        return output

    def _write_rows(self, case: Case) -> Path:
        count = 2000 if case.trains else PREDICTED
        path = self.scratch / f"{case.data.partition(':')[2]}-{count}-{case.words}.parquet"
        if path.exists():
            return path
        rows = Source(case.data).load()["train"].shuffle(seed=1).select(range(count))
        if case.words:
            tokens = [text.split() for text in rows["text"]]
            tags = [["B-film" if word == "film" else "O" for word in row] for row in tokens]
            datasets.Dataset.from_dict({"tokens": tokens, "ner_tags": tags}).to_parquet(path)
        else:
            labels = ["good" if label else "bad" for label in rows["label"]]
            rows.select_columns(["text"]).add_column("label", labels).to_parquet(path)
        return path


def measure(bench: Bench, case: Case, ways: Sequence[str], rounds: int) -> None:
    """Run a case in turns and print a line for the stock script and each checkout."""
    turns: dict[str, list[Finished]] = {way: [] for way in ways}
    for number in range(rounds + 1):  # round 0 fills the caches
        for way in ways:
            finished = bench.turn(way, case)
            if number:
                turns[way].append(finished)
    rates = {way: [_rate(finished) for finished in turns[way]] for way in ways}
    print(f"\n{case.name}\n{'':16} samples/s  times {ways[0]}  MiB  of its memory")
    for way in ways:
        ratios = [rate / base for rate, base in zip(rates[way], rates[ways[0]], strict=True)]
        memory, base_memory = (
            statistics.median(turn.memory for turn in turns[name]) for name in (way, ways[0])
        )
        print(
            f"{way:16} {statistics.median(rates[way]):9.1f}  {statistics.median(ratios):5.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})  {memory:,.0f}  {memory / base_memory:.2f}",
            flush=True,
        )


def _rate(finished: Finished) -> float:
    rates = re.findall(r"([\d,.]+) (?:samples/s|rows/s|rows a second)", finished.output)
    return float(rates[-1].replace(",", ""))


def main() -> None:
    """Print a table for each case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tree", type=Path, help="another checkout to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    trees = {THIS: ROOT, **({OTHER: options.tree} if options.tree else {})}
    datasets.disable_progress_bars()
    print(processor())
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch), trees)
        for case in CASES:
            if options.only in case.name:
                measure(bench, case, [STOCK, *reversed(trees)], options.rounds)


if __name__ == "__main__":
    main()
