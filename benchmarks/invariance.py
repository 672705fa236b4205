"""How far runs of one recipe differ that were launched differently: the largest differences.

    python benchmarks/invariance.py                    # MiniLM, 10 to 25 minutes on two cores

Each launch (processes x accumulation) trains the same recipe for 20 steps over the end of an epoch,
without dropout, and evaluates sets of 1 to 17 rows in batches of 4. What it finds is compared with
one process. The tests do the same with a tiny model (`tests/test_invariance.py`).
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from transformers import PrinterCallback

from finetune import TextRecipe
from finetune.cli import console
from finetune.runtime import distributed

STEPS, GLOBAL_BATCH, EVAL_BATCH = 20, 12, 4
ROWS = {"divide": 144, "do not divide": 139}
SIZES = range(1, 18)
SCORES = ("loss", "accuracy", "f1")
OPTIMIZERS: dict[str, dict[str, Any]] = {
    # clipping would hide a factor in the gradient
    "SGD": dict(optim="sgd", learning_rate=0.1, max_grad_norm=0),
    "AdamW": dict(optim="adamw_torch", learning_rate=1e-4),
}
ORDERS: dict[str, dict[str, Any]] = {
    "random": dict(train_sampling_strategy="random", global_batch_size=GLOBAL_BATCH),
    "like length": dict(train_sampling_strategy="group_by_length", global_batch_size=GLOBAL_BATCH),
    "tokens": dict(max_tokens_per_batch=GLOBAL_BATCH * 48),
}
#: Processes, and the accumulation steps that each launch tries.
LAUNCHES = {1: (1, 2), 2: (1, 2), 3: (1,)}
Case = tuple[str, str, str]


class Reviews(TextRecipe):
    """A text recipe without dropout."""

    training = dict(
        max_steps=STEPS,
        precision="fp32",
        per_device_eval_batch_size=EVAL_BATCH,
        logging_steps=1,
        eval_strategy="no",
        save_strategy="no",
        load_best_model_at_end=False,
        disable_tqdm=True,
        num_threads=1,
    )

    hidden_dropout: float | None = 0.0
    attention_dropout: float | None = 0.0


@dataclass
class Observed:
    """What one process of a launch saw.

    Attributes:
        losses: Logged, of each step, by case.
        weights: The file with the weights at the end, by case.
        evaluations: Logits, labels and metrics for each size of the evaluation set.
    """

    losses: dict[Case, list[float]] = field(default_factory=dict)
    weights: dict[Case, str] = field(default_factory=dict)
    evaluations: dict[int, tuple[np.ndarray, np.ndarray, dict[str, float]]] = field(
        default_factory=dict
    )


def cases(precisions: Mapping[str, bool]) -> Iterator[tuple[Case, dict[str, Any], int]]:
    """Every optimizer, order and number of rows, with its training arguments."""
    for name, bf16 in precisions.items():
        for optimizer, training in OPTIMIZERS.items():
            for order, batch in ORDERS.items():
                for divide, rows in ROWS.items():
                    case = (f"{optimizer}{name}", order, divide)
                    yield case, {**training, "bf16": bf16, **batch}, rows


def observe(
    options: Mapping[str, Any],
    directory: str,
    accumulations: Sequence[int],
    precisions: Mapping[str, bool],
) -> dict[int, Observed]:
    """Train and evaluate every case in this process, one of however many there are.

    Args:
        options: Of the recipe: data and model.
        directory: For the weights.
        accumulations: Micro-batches of a step, to be tried one after the other.
        precisions: Names, and whether they are bf16.
    """
    console.quiet()
    found = {
        accumulation: _observe(options, directory, accumulation, precisions)
        for accumulation in accumulations
    }
    distributed.leave()
    return found


def _observe(
    options: Mapping[str, Any], directory: str, accumulation: int, precisions: Mapping[str, bool]
) -> Observed:
    seen, world_size = Observed(), distributed.ranks().world_size
    for number, (case, training, rows) in enumerate(cases(precisions)):
        trainer = Reviews(train_samples=rows, **options).trainer(
            output_dir=directory, gradient_accumulation_steps=accumulation, **training
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        assert len(losses) == STEPS
        seen.losses[case] = losses
        path = Path(directory) / f"{world_size}x{accumulation}-{number}"
        trainer.save_model(str(path))
        seen.weights[case] = str(path / "model.safetensors")
    recipe = Reviews(**options)
    trainer = recipe.trainer(output_dir=directory)
    for size in SIZES:
        output = trainer.predict(recipe.prepared["test"].select(range(size)))
        assert output.metrics is not None
        metrics = {f"test_{name}": output.metrics[f"test_{name}"] for name in SCORES}
        seen.evaluations[size] = (output.predictions, output.label_ids, metrics)
    return seen


def launched(processes: int, *arguments: Any) -> list[dict[int, Observed]]:
    """:func:`observe` in so many processes of this machine, by rank."""
    if processes == 1:
        return [observe(*arguments)]
    configuration = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        max_restarts=0,
    )
    results = elastic_launch(configuration, observe)(*arguments)
    return [results[rank] for rank in range(processes)]


@dataclass
class Difference:
    """How far one launch is from one process, at most.

    Attributes:
        loss: Between the losses of a step.
        weights: Norm of the difference, as a share of the norm of the weights.
        update: The same as a share of what the training changed.
        allclose: Whether every weight is within ``rtol=1e-5, atol=1e-6``.
    """

    loss: float
    weights: float
    update: float
    allclose: bool


def difference(found: Observed, one: Observed, case: Case, initial: np.ndarray) -> Difference:
    """Of a launch from one process."""
    theirs, ours = flat(found.weights[case]), flat(one.weights[case])
    norm = float(np.linalg.norm(theirs - ours))
    return Difference(
        loss=float(np.abs(np.subtract(found.losses[case], one.losses[case])).max()),
        weights=norm / float(np.linalg.norm(ours)),
        update=norm / float(np.linalg.norm(ours - initial)),
        allclose=bool(np.allclose(theirs, ours, rtol=1e-5, atol=1e-6)),
    )


def flat(path: str) -> np.ndarray:
    """All weights of a file in one vector, in the order of their names."""
    weights = load_file(path)
    return np.concatenate([weights[name].ravel() for name in sorted(weights)]).astype(np.float64)


def evaluation_difference(found: Observed, one: Observed) -> float:
    """Return the largest between predictions, losses and metrics; labels must be equal."""
    largest = 0.0
    for size, (logits, labels, metrics) in one.evaluations.items():
        theirs = found.evaluations[size]
        assert theirs[0].shape == logits.shape, "a row was dropped or counted twice"
        np.testing.assert_array_equal(theirs[1], labels)
        gaps = [np.abs(theirs[0] - logits).max()]
        gaps += [abs(theirs[2][name] - value) for name, value in metrics.items()]
        largest = max(largest, *map(float, gaps))
    return largest


def initial_weights(options: Mapping[str, Any], directory: str) -> np.ndarray:
    """Those that every training starts from."""
    trainer = Reviews(**options).trainer(output_dir=directory)
    path = Path(directory) / "initial"
    trainer.save_model(str(path))
    return flat(str(path / "model.safetensors"))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dataset", default="embedded:rotten-tomatoes")
    parser.add_argument("--model", default="embedded:minilm")
    given = parser.parse_args()
    options = {"dataset": given.dataset, "model": given.model, "eval_samples": 40, "max_length": 64}
    precisions = {"": False, " bf16": True}
    with tempfile.TemporaryDirectory() as directory:
        initial = initial_weights(options, directory)
        found = {
            (processes, accumulation): seen
            for processes, accumulations in LAUNCHES.items()
            for accumulation, seen in launched(
                processes, options, directory, accumulations, precisions
            )[0].items()
        }
        one = found.pop((1, 1))
        columns = ["launch", "optimizer", "order", "rows", "loss", "weights", "update", "allclose"]
        print("", *columns, "", sep=" | ")
        print("", *("---" for _ in columns), "", sep=" | ")
        for (processes, accumulation), seen in found.items():
            for case in one.losses:
                gap = difference(seen, one, case, initial)
                figures = [f"{value:.1e}" for value in (gap.loss, gap.weights, gap.update)]
                close = "yes" if gap.allclose else "no"
                print("", f"{processes} x {accumulation}", *case, *figures, close, "", sep=" | ")
        for (processes, accumulation), seen in found.items():
            gap = evaluation_difference(seen, one)
            print(f"evaluation, {processes} x {accumulation}: at most {gap:.1e}")


if __name__ == "__main__":
    main()
