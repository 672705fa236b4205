"""Runs over the same rows with predictions by a seed: copies of a run that was really trained.

The manifest is that of a training; labels, predictions and what is computed from them are replaced
by the functions that wrote them.
"""

import atexit
import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, Features, Value

import finetune
from finetune import Run
from finetune.recipe.scoring import Scoring
from finetune.runs import predictions
from finetune.tasks.assessment import Assessment
from finetune.tasks.ordinal import Ordinal
from finetune.tasks.single_label import SingleLabel
from finetune.training.manifest import Metrics, Statistics

SCORING: dict[str, dict[str, Any]] = {"accuracy": {}, "f1": {"average": "macro"}}


@functools.cache
def trained() -> Run:
    """A run of `sentiment` on 150 short reviews and a tiny BERT, four epochs."""
    from tests.hub import build_repositories
    from tests.hub.repositories import CASED

    directory = tempfile.TemporaryDirectory(prefix="finetune-trained-")
    atexit.register(directory.cleanup)
    place = Path(directory.name)
    build_repositories(place / "hub")
    model = next(path.parent for path in place.rglob("config.json") if CASED in str(path))
    texts = [f"place {number} was {('dull', 'fine')[number % 2]}" for number in range(150)]
    lines = [f"{text},{('bad', 'good')[number % 2]}" for number, text in enumerate(texts)]
    data = place / "reviews.csv"
    data.write_text("\n".join(["text,label", *lines, *lines[:3]]) + "\n", encoding="utf-8")
    return finetune.train(
        "sentiment",
        dataset=str(data),
        model=str(model),
        text_column="text",
        label_column="label",
        max_length=64,
        num_train_epochs=4,
        learning_rate=1e-4,
        logging_steps=1,
        precision="fp32",
        disable_tqdm=True,
        output_dir=str(place / "run"),
    )


def write_run(
    directory: Path,
    *,
    rows: int = 200,
    names: tuple[str, ...] = ("bad", "good"),
    seed: int = 0,
    skill: float = 2.0,
    texts: list[str] | None = None,
    columns: dict[str, list[Any]] | None = None,
    wrong_labels: float = 0.0,
    **manifest: Any,
) -> Run:
    """A finished run over the same rows for every ``seed``, which decides the predictions.

    Of the labels a share is wrong: that of the next class.
    """
    labels = np.random.default_rng(len(names)).integers(len(names), size=rows)
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(rows, len(names)))
    logits[np.arange(rows), labels] += skill
    wrong = np.random.default_rng(rows).random(rows) < wrong_labels
    labels = np.where(wrong, (labels + 1) % len(names), labels)
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
    real = trained().manifest
    facts = {
        "labels": list(names),
        "task": "ordinal" if len(names) == 5 else "single_label",
        "temperature": 1.5,
        "data": dataclasses.replace(real.data, rows={**real.data.rows, "test": rows}),
        **manifest,
    }
    dataclasses.replace(real, **facts).write(directory)
    task = (Ordinal if len(names) == 5 else SingleLabel)(labels=list(names))
    logits = predictions.write(directory, task, table, logits, tokens)
    majority = np.zeros((rows, len(names)))
    majority[:, 0] = 1
    assessment = Assessment(
        task=task,
        outputs=logits,
        labels=labels,
        scoring=SCORING,
        compute=Scoring(**SCORING),
    )
    statistics = {
        **assessment.statistics(temperature=1.5),
        "beyond": {"majority class": assessment.compare_to_baseline(majority)},
    }
    scores = {name: statistics["metrics"][name]["value"] for name in SCORING}
    Metrics(
        validation=scores,
        test={"loss": statistics["metrics"]["log_loss"]["value"], **scores},
        baseline={"majority class": {"accuracy": 0.5, "f1": 0.3}},
        statistics=Statistics(**statistics),
    ).write(directory)
    return Run(directory)
