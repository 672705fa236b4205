"""`predict` against `pipeline(batch_size=32)` on long reviews, and the memory of a million rows.

For the million rows a model that costs nothing takes the place of the trained one.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from training import compared
from turns import ROOT, Work, take

TEXTS, ROWS = 128, 1_000_000


def measure(rounds: int, other: Path | None) -> list[dict[str, Any]]:
    """Return a line for each way and each number of tokens, and for a million rows."""
    import finetune
    from finetune.data import embedded

    lines = []
    reviews = embedded.read("embedded:imdb")["train"].shuffle(seed=1).select(range(TEXTS))
    trees = {"": ROOT} | ({" of the other tree": other} if other else {})
    with tempfile.TemporaryDirectory() as directory:
        run = finetune.train(
            "yelp", embedded=True, max_steps=20, eval_strategy="no", load_best_model_at_end=False,
            baseline=False, eval_samples=64, output_dir=f"{directory}/run", disable_tqdm=True,
        )  # fmt: skip
        for max_length in (256, 512):
            job = (str(run.path), list(reviews["text"]), max_length)
            ways = {"pipeline": [Work(pipeline, job)]}
            for precision in ("fp32", "bf16"):
                for which, tree in trees.items():
                    work = Work(predict, (*job, precision), tree)
                    ways[f"predict, {precision}{which}"] = [work]
            turns = take(ways, rounds, warm_up=1)
            exact = turns["pipeline"].answers[0]
            for line in compared(f"prediction, {max_length} tokens", turns, TEXTS):
                difference = np.abs(turns[line["way"]].answers[0] - exact).max()
                lines.append(line | {"largest difference": float(difference)})
        for suffix in (".csv", ".parquet"):
            work = Work(predict_many, (str(run.path), directory, suffix))
            lines.append(take({"": [work]}, 1)[""].answers[0])
    return lines


def pipeline(run: str, texts: list[str], max_length: int) -> Callable[[], np.ndarray]:
    """Return what computes probabilities by the library's pipeline, shape ``(rows, classes)``."""
    import transformers

    transformers.logging.set_verbosity_error()
    pipe = transformers.pipeline(
        "text-classification", model=run, batch_size=32, truncation=True, max_length=max_length
    )
    names = [pipe.model.config.id2label[number] for number in range(pipe.model.num_labels)]

    def turn() -> np.ndarray:
        by_label = [{row["label"]: row["score"] for row in rows} for rows in pipe(texts, top_k=99)]
        return np.array([[row[name] for name in names] for row in by_label])

    return turn


def predict(
    run: str, texts: list[str], max_length: int, precision: str
) -> Callable[[], np.ndarray]:
    """Return the same by the toolkit, with a model that is loaded already."""
    from scipy.special import softmax

    import finetune
    from finetune.predicting.predictor import Predictor

    predictor = Predictor(finetune.Run.load(run), precision)
    predictor.recipe.max_length = max_length
    return lambda: np.asarray(softmax(predictor.predict(texts), axis=1))


class Free:
    """A model that costs nothing, in place of the toolkit's ``Predictor``."""

    def __init__(self, *options: Any) -> None:
        self.rows = 0

    def stream(
        self, chunks: Iterable[list[str]], progress: Callable[[int], object], **options: Any
    ) -> Iterator[np.ndarray]:
        """Yield logits by the length of a text."""
        for texts in chunks:
            lengths = np.array([len(text) for text in texts])
            yield np.stack([lengths % 3, lengths % 2], axis=1).astype(np.float32)
            self.rows += len(texts)
            progress(self.rows)


def predict_many(run: str, directory: str, suffix: str) -> Callable[[], dict[str, Any]]:
    """Return what predicts a file of a million rows, and the memory at 50,000 and after."""
    import pandas as pd
    import psutil

    import finetune
    from finetune.predicting import request

    request.Predictor = Free  # type: ignore[assignment,misc]
    source, output = (Path(directory) / f"{name}{suffix}" for name in ("rows", "predicted"))
    texts = [f'said "number {n}",\nand more of it ' * 4 for n in range(ROWS)]
    table = pd.DataFrame({"id": range(ROWS), "text": texts})
    if suffix == ".csv":
        table.to_csv(source, index=False)
    else:
        table.to_parquet(source, row_group_size=100_000)
    del texts, table

    def turn() -> dict[str, Any]:
        process, memory = psutil.Process(), list[float]()

        def watch(event: Any) -> None:
            if getattr(event, "rows", 0) // 50_000 > len(memory):
                memory.append(process.memory_info().rss / 2**20)

        finetune.predict_file(run, source, output, progress=watch, precision="fp32")
        return {
            "case": f"prediction, {ROWS:,} rows, {suffix}",
            "way": "a model that costs nothing",
            "MiB at 50,000": memory[0],
            "most after, of that": max(memory) / memory[0],
        }

    return turn
