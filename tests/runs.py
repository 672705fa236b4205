"""Runs that nobody trained: directories in the shape of a real one, from predictions by a seed."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import ClassLabel, Dataset, Features, Value
from scipy.special import softmax

from finetune import Run
from finetune.results import assessment, predictions
from finetune.results.predicted import Predicted
from finetune.scoring import Scoring

SCORING: dict[str, dict[str, Any]] = {"accuracy": {}, "f1": {"average": "macro"}}


def write_run(
    directory: Path,
    *,
    rows: int = 200,
    names: tuple[str, ...] = ("bad", "good"),
    seed: int = 0,
    skill: float = 2.0,
    texts: list[str] | None = None,
    columns: dict[str, list[Any]] | None = None,
    **manifest: Any,
) -> Run:
    """A finished run over the same rows for every ``seed``, which decides the predictions."""
    labels = np.random.default_rng(len(names)).integers(len(names), size=rows)
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(rows, len(names)))
    logits[np.arange(rows), labels] += skill
    texts = texts or [f"review {number} of a place" for number in range(rows)]
    tokens = generator.integers(4, 80, size=rows).tolist()
    features = Features(
        id=Value("int64"), text=Value("string"), label=ClassLabel(names=list(names))
    )
    table = Dataset.from_dict(
        {"id": list(range(rows)), "text": texts, "label": labels.tolist()}, features=features
    )
    for name, values in (columns or {}).items():
        table = table.add_column(name, values)
    run = Run(directory)
    run.update(**{**_manifest(directory, rows, names), **manifest})
    predictions.write(directory, table, logits, tokens)
    majority = np.zeros((rows, len(names)))
    majority[:, 0] = 1
    probabilities = softmax(logits, axis=1)
    predicted = Predicted(list(names), labels, probabilities)
    compute = Scoring(**SCORING)
    statistics = assessment.of_classes(
        predicted,
        logits,
        SCORING,
        compute,
        {"majority class": majority},
        ordered=len(names) == 5,
        temperature=1.5,
    )
    scores = {name: statistics["metrics"][name]["value"] for name in SCORING}
    run.write_metrics(
        {
            "validation": scores,
            "test": {"loss": statistics["metrics"]["log_loss"]["value"], **scores},
            "baseline": {"majority class": {"accuracy": 0.5, "f1": 0.3}},
            "statistics": statistics,
        }
    )
    return run


def _manifest(directory: Path, rows: int, names: tuple[str, ...]) -> dict[str, Any]:
    steps = range(10, 101, 10)
    history: list[dict[str, Any]] = [
        {
            "step": step,
            "epoch": step / 50,
            "loss": 1 / (1 + step / 20),
            "learning_rate": 1e-4 * (1 - step / 100),
            "rows_per_second": 30.0,
            "memory_mib": 900.0 + step,
        }
        for step in steps
    ]
    for step in (50, 100):
        history.append(
            {"step": step, "eval_loss": 0.5, "eval_accuracy": 0.8, "eval_f1": 0.7 + step / 1000}
        )
    return {
        "status": "finished",
        "recipe": "sentiment",
        "command": f"python -m finetune sentiment --output_dir {directory}",
        "options": {"dataset": "reviews.csv", "max_length": 64, "model": "embedded:minilm"},
        "arguments": {"global_batch_size": 32, "learning_rate": 1e-4, "seed": 42},
        "labels": list(names),
        "ordered_labels": len(names) == 5,
        "scoring": SCORING,
        "temperature": 1.5,
        "data": {
            "source": "reviews.csv",
            "rows": {"train": 1000, "validation": 100, "test": rows},
            "fingerprint": "0123456789abcdef",
            "notes": ["dropped 3 exact duplicates"],
        },
        "launch": {
            "parallel_mode": "one device",
            "world_size": 1,
            "machines": 1,
            "n_gpu": 0,
            "device": "cpu",
            "precision": "fp32",
        },
        "versions": {"torch": torch.__version__},
        "git_revision": "0123456789ab",
        "steps": 100,
        "steps_before": 0,
        "best_step": 100,
        "train_seconds": 107.0,
        "speed": {
            "rows_per_second": 30.0,
            "tokens_per_second": 900.0,
            "padding": 0.1,
            "seconds": {"data": 1.0, "step": 100.0},
            "model_flops_per_second": 2e11,
            "peak_flops_per_second": 8e11,
            "share_of_peak": 0.25,
        },
        "train_loss": 0.4,
        "history": history,
    }
