"""What is done with many outputs of a model: gathered, written, turned into statistics and a page.

    python benchmarks/bench.py scale        # about a quarter of an hour on two cores
    python benchmarks/scale.py              # the same, without the table
    python benchmarks/scale.py "200,000"    # those with this in their name

Texts, labels and logits are made up: how long it takes depends on how many there are. Each is
measured once, in a process of its own; MiB are its peak beyond what the imports take, and include
the logits.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from turns import peak_memory

Measured = dict[str, Any]
_SEED, _WORDS, _SKILL = 7, 12, 3.0


def logits_of(rows: int, classes: int, skill: float = _SKILL, seed: int = 0) -> np.ndarray:
    """Logits of classes of which a few are frequent, shape `(rows, classes)`, float32."""
    generator = np.random.default_rng([_SEED, seed])
    found = generator.standard_normal((rows, classes), dtype=np.float32)
    found[np.arange(rows), labels_of(rows, classes)] += skill
    return found


def labels_of(rows: int, classes: int, seed: int = 0) -> np.ndarray:
    """Classes by their number, the first ones a few times as frequent as the last."""
    chosen = np.random.default_rng([_SEED, seed, 1]).random(rows) ** 2 * classes
    return chosen.astype(np.int64)


def texts_of(labels: np.ndarray, seed: int = 0) -> list[str]:
    """Return a dozen words for each label, of which one has to do with it."""
    words = np.random.default_rng([_SEED, seed, 2]).integers(20_000, size=(len(labels), _WORDS))
    return [
        " ".join([f"class{label % 500}", *(f"word{each}" for each in row)])
        for label, row in zip(labels.tolist(), words.tolist(), strict=True)
    ]


def recipe_over(rows: int, classes: int, train_rows: int) -> Any:
    """Return what the results of a run need of a recipe, over made-up texts."""
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

    from finetune.recipe.scoring import Scoring
    from finetune.tasks.single_label import SingleLabel

    class Compared(SingleLabel):
        """One label a row, beside made-up outputs: how long a fit takes is measured by itself."""

        def baselines(self, splits: Any, *given: Any, **others: Any) -> Any:
            shares = np.bincount(splits["train"]["label"][:], minlength=classes) / train_rows
            logarithms = np.log(np.maximum(shares, 1e-9))
            yield "majority class", np.broadcast_to(logarithms, (rows, classes))
            yield "a model with less skill", logits_of(rows, classes, _SKILL / 2, 1)

    names = [f"class {number}" for number in range(classes)]
    features = Features(id=Value("int64"), text=Value("string"), label=ClassLabel(names=names))

    def split(count: int, seed: int) -> Any:
        labels = labels_of(count, classes, seed)
        columns = {"id": np.arange(count), "text": texts_of(labels, seed), "label": labels}
        return Dataset.from_dict(columns, features)

    task = Compared(labels=names)
    splits = DatasetDict(train=split(train_rows, 1), validation=split(2000, 2), test=split(rows, 0))
    return SimpleNamespace(
        kind=task,
        splits=splits,
        known_scoring=dict(task.metrics),
        compute_metrics=Scoring(**task.metrics),
        input_column="text",
        split_seed=42,
        targets=lambda name: task.targets(splits[name]["label"][:]),
        whole_lengths=lambda name: np.random.default_rng(_SEED).integers(4, 80, len(splits[name])),
    )


def run_in(directory: Path, over: Any, **changes: Any) -> Any:
    """Return a run that is about to write its results."""
    from finetune.runs.run import Run
    from finetune.training.manifest import Data, Launch, Manifest, Process

    sizes = {name: len(rows) for name, rows in over.splits.items()}
    about = {"recipe": "example_outputs", "options": {"dataset": "made-up"}, **changes}
    Manifest(
        **about,
        status="running",
        command="python -m finetune example_outputs",
        embedded_overrides={},
        arguments={"metric_for_best_model": "f1"},
        labels=over.kind.labels,
        scoring=over.known_scoring,
        data=Data(source="made-up", rows=sizes, fingerprint=f"{_SEED} {sizes}"),
        launch=Launch(
            parallel_mode="one device",
            world_size=1,
            machines=1,
            n_gpu=0,
            device="cpu",
            precision="fp32",
        ),
        versions={},
        git_revision=None,
        process=Process(host="here", pid=1),
        task=over.kind.name,
    ).write(directory)
    return Run(directory)


def of_results(rows: int, classes: int) -> Measured:
    """Write the predictions, statistics, card and page of a run, then compare it with itself."""
    import scipy.stats  # noqa: F401
    import sklearn.metrics  # noqa: F401
    import torch  # noqa: F401
    from evaluate import EvaluationModule  # noqa: F401
    from transformers import Trainer  # noqa: F401
    from transformers.trainer_utils import PredictionOutput

    from finetune.pipeline import compare
    from finetune.pipeline.assess import assess
    from finetune.reporting import card, page
    from finetune.runs import predictions
    from finetune.training.manifest import Metrics

    before = peak_memory()
    recipe = recipe_over(rows, classes, 20_000)
    with tempfile.TemporaryDirectory() as name:
        run = run_in(Path(name), recipe)
        validated = PredictionOutput(
            logits_of(2000, classes, seed=2), recipe.targets("validation"), {}
        )
        tested = PredictionOutput(logits_of(rows, classes), recipe.targets("test"), {})
        validated.label_ids[:] = labels_of(2000, classes)  # those that the logits are of
        times = [_now()]

        def done() -> None:
            times.append(_now())

        tokens = recipe.whole_lengths("test")
        kept = predictions.write(
            run.path, recipe.kind, recipe.splits["test"], tested.predictions, tokens
        )
        tested = tested._replace(predictions=kept)
        done()
        Metrics(validation={}, test={"accuracy": 0.0, "f1": 0.0}).write(run.path)
        assess(run, recipe, validated, tested, baseline=True, progress=lambda event: None)
        run.update(status="finished", steps=1, train_seconds=1.0)
        done()
        del validated, tested
        card.write(run)
        page.write(run)
        done()
        peak = peak_memory() - before
        compare.compare([run, run])
        done()
        steps = ("write", "statistics", "page", "compare")
        seconds = dict(zip(steps, np.diff(times, axis=0), strict=True))
        sizes = {
            f"{each}, MB": round((run.path / each).stat().st_size / 1e6, 2)
            for each in ("metrics.json", "report.html", "predictions.parquet", "logits.npy")
            if (run.path / each).exists()
        }
    whole = {"MiB": peak, "MiB with compare": peak_memory() - before}
    took = {f"{name}, s": _shown(each) for name, each in seconds.items()}
    took["statistics and page, s"] = _shown(seconds["statistics"] + seconds["page"])
    return {**took, **whole, **sizes}


def _now() -> np.ndarray:
    return np.array([time.perf_counter(), time.process_time()])


def _shown(seconds: np.ndarray) -> str:
    """Return seconds of the clock, and of the processor: others may use the machine."""
    return f"{seconds[0]:.1f} ({seconds[1]:.1f} CPU)"


def of_evaluation(rows: int, classes: int) -> Measured:
    """Predict with our trainer and a model that costs nothing."""
    import torch
    from datasets import Dataset

    from finetune.training.arguments import argument_values
    from finetune.training.loss import GlobalLoss
    from finetune.training.trainer import build_trainer

    class Made(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits = torch.nn.Parameter(torch.randn(64, classes))

        def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
            return {"logits": self.logits[x]}

    labels = labels_of(rows, classes)
    dataset = Dataset.from_dict({"x": labels % 64, "labels": labels})
    parts = dict(
        model=Made(),
        train_dataset=dataset,
        eval_dataset=dataset,
        compute_loss_func=GlobalLoss(
            lambda logits, target: torch.nn.functional.cross_entropy(
                logits, target, reduction="none"
            )
        ),
    )
    with tempfile.TemporaryDirectory() as name:
        given = {"output_dir": name, "precision": "fp32", "use_cpu": True, "disable_tqdm": True}
        values = argument_values({}, {**given, "per_device_eval_batch_size": 32})
        trainer = build_trainer(lambda: parts, values.build(), lambda model, arguments: model)
        before, started = peak_memory(), _now()
        trainer.predict(dataset)
        seconds = _now() - started
    return {"s": _shown(seconds), "MiB": peak_memory() - before}


def of_baseline(rows: int, classes: int, train_rows: int) -> Measured:
    """Fit TF-IDF and its classifier, and predict."""
    import sklearn.feature_extraction.text
    import sklearn.linear_model
    import sklearn.naive_bayes  # noqa: F401

    from finetune.statistics import baselines

    train, test = labels_of(train_rows, classes, 1), labels_of(rows, classes)
    texts, others = texts_of(train, 1), texts_of(test)
    before, started = peak_memory(), _now()
    terms = baselines.terms_of(texts, others, 42, *baselines.bounds(classes))
    baselines.classifier(terms.train, train[terms.rows], classes)(terms.test)
    seconds = _now() - started
    return {"s": _shown(seconds), "MiB": peak_memory() - before, "bounded": ", ".join(terms.limits)}


class Free:
    """A model that costs nothing, in place of :class:`finetune.predicting.predictor.Predictor`."""

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


def of_prediction(rows: int, suffix: str) -> Measured:
    """Predict a file with a model that costs nothing: what is left is reading and writing."""
    import psutil
    import pyarrow as pa
    import pyarrow.parquet as pq

    from finetune.pipeline.predict import predict_file
    from finetune.predicting import request

    request.Predictor = Free  # type: ignore[assignment,misc]
    process, seen = psutil.Process(), dict[int, float]()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        source = home / f"rows{suffix}"
        texts = [f'said "number {n}",\nand more of it ' * 4 for n in range(rows)]
        table = pa.table({"id": np.arange(rows), "text": texts})
        if suffix == ".parquet":
            pq.write_table(table, source, row_group_size=100_000)
        else:
            table.to_pandas().to_csv(source, index=False)
        del texts, table
        run = run_in(home / "run", recipe_over(10, 2, 10), recipe="sentiment", options={})
        (run.path / "model.safetensors").touch()

        def tell(event: Any) -> None:
            if event.rows and event.rows // 50_000 > len(seen):
                seen[event.rows] = process.memory_info().rss / 2**20

        started = _now()
        predict_file(run, source, home / f"predicted{suffix}", progress=tell, precision="fp32")
        seconds = _now() - started
    later = list(seen.values())
    return {
        "s": _shown(seconds),
        "MiB at 50,000": later[0],
        "MiB, most after": max(later),
        "of that at 50,000": max(later) / later[0],
    }


_RESULTS, _BASELINE = "results, 8,000 x 2,000", "TF-IDF, 8,000 x 2,000"
CASES: dict[str, tuple[Callable[..., Measured], tuple[Any, ...]]] = {
    "evaluation, 16,000 x 2,000": (of_evaluation, (16_000, 2000)),
    _RESULTS: (of_results, (8000, 2000)),
    "results, 50,000 x 2,000": (of_results, (50_000, 2000)),
    "results, 200,000 x 5": (of_results, (200_000, 5)),
    "predict, 1,000,000 rows, .csv": (of_prediction, (1_000_000, ".csv")),
    "predict, 1,000,000 rows, .parquet": (of_prediction, (1_000_000, ".parquet")),
    _BASELINE: (of_baseline, (8000, 2000, 20_000)),
}


def measure(wanted: str = "") -> dict[str, Measured]:
    """Measure the cases with that in their name."""
    context, found = multiprocessing.get_context("spawn"), {}
    for name, (work, given) in CASES.items():
        if wanted in name:
            with context.Pool(1) as pool:
                found[name] = pool.apply(work, given)
            print(name, json.dumps(found[name], default=float), flush=True)
    if {_RESULTS, _BASELINE} <= found.keys():
        parts = (found[_RESULTS]["statistics, s"], found[_BASELINE]["s"])
        whole = sum(float(each.split()[0]) for each in parts)
        found["statistics with TF-IDF, 8,000 x 2,000"] = {"s": whole}
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("case", nargs="?", default="")
    measure(parser.parse_args().case)
