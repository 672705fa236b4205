"""Statistics, baselines and page of many test rows and classes, by a training of one step.

The texts are made up and the model is a random BERT of one layer: what is measured depends on the
number of rows and classes. MiB are the peak from the statistics on, beyond what there was.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turns import Work, forget_peak, peak_memory, take

#: Test rows and classes.
SIZES = ((8000, 2000), (50_000, 2000), (200_000, 5))
TRAIN_ROWS = 20_000


def measure(rounds: int, other: Path | None) -> list[dict[str, Any]]:
    """Return a line for each size, measured once."""
    return [take({"": [Work(train, size)]}, 1)[""].answers[0] for size in SIZES]


def write_rows(directory: Path, rows: int, classes: int) -> None:
    """Write splits of texts of a dozen words, one of which has to do with the class."""
    import numpy as np
    import pandas as pd

    for number, (split, count) in enumerate(
        {"train": TRAIN_ROWS, "validation": 2000, "test": rows}.items()
    ):
        generator = np.random.default_rng(number)
        labels = (generator.random(count) ** 2 * classes).astype(int)
        words = generator.integers(20_000, size=(count, 12))
        texts = [
            f"class{label % 500} " + " ".join(f"word{word}" for word in row)
            for label, row in zip(labels.tolist(), words.tolist(), strict=True)
        ]
        table = pd.DataFrame({"text": texts, "label": [f"class {label}" for label in labels]})
        table.to_parquet(directory / f"{split}.parquet")


def train(rows: int, classes: int) -> Callable[[], dict[str, Any]]:
    """Return what trains a step and times the parts of its results."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    import finetune
    from finetune.data import embedded
    from finetune.pipeline import assess
    from finetune.reporting import page

    home = Path(tempfile.mkdtemp())
    (home / "data").mkdir()
    write_rows(home / "data", rows, classes)
    tokenizer = AutoTokenizer.from_pretrained(str(embedded.model_directory()))
    sizes = dict(hidden_size=32, num_attention_heads=2, intermediate_size=32, num_hidden_layers=1)
    model = BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), **sizes))
    model.save_pretrained(home / "model")
    tokenizer.save_pretrained(home / "model")
    line: dict[str, Any] = {"case": "results", "way": f"{rows:,} rows, {classes:,} classes"}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            result = function(*arguments, **options)
            line[name] = time.perf_counter() - started
            return result

        return call

    def statistics(*arguments: Any, **options: Any) -> None:
        forget_peak()
        line["MiB"] = -peak_memory()
        original(*arguments, **options)

    original = assess.assess
    assess.assess = timed("statistics, s", statistics)
    page.write = timed("page, s", page.write)

    def turn() -> dict[str, Any]:
        run = finetune.train(
            "text",
            dataset=str(home / "data"),
            model=str(home / "model"),
            max_length=24,
            max_steps=1,
            eval_strategy="no",
            load_best_model_at_end=False,
            output_dir=str(home / "run"),
            disable_tqdm=True,
        )
        line["MiB"] += peak_memory()
        for name in ("metrics.json", "report.html"):
            line[f"{name}, MB"] = (run.path / name).stat().st_size / 1e6
        return line

    return turn
