"""One process and two: throughput, seconds per step, share of communication, memory.

    python benchmarks/parallel.py                # the tables of docs/parallel.md, about 15 minutes
    python benchmarks/parallel.py --quick        # fewer steps and one round
    python benchmarks/parallel.py --exchange     # ways to exchange gradients, about a minute

Each line is a launch of its own, of the toolkit's Trainer on MiniLM-L6 over random tokens, so that
nothing but the launch differs. A process computes with one thread, so two processes have the cores
of two. The launches that are compared take turns, round after round, and the medians count: a busy
machine disturbs them alike.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import turns

if TYPE_CHECKING:
    from finetune.training.trainer import Trainer

BATCHES = (32, 64, 128)
LONG, SHORT = 256, 32
WARM_UP = 2


# ---- one launch ----------------------------------------------------------------------------------


def measure(tokens: int, batch: int, steps: int, training: dict[str, Any]) -> dict[str, float]:
    """Train and predict in this process, one of however many there are.

    Args:
        tokens: Of each row.
        batch: Rows of a step, over all processes.
        steps: That are timed.
        training: More training arguments.

    Returns:
        ``step`` in seconds; ``exchange``, the share of a step that it adds; ``predict`` in rows a
        second; ``memory``, the peak of this process in MiB.
    """
    import torch

    from finetune.cli import console
    from finetune.runtime import distributed

    console.quiet()
    distributed.join_process_group(None, 600, use_cpu=not torch.accelerator.is_available())
    with tempfile.TemporaryDirectory() as directory:
        trainer, seconds = _trainer(tokens, batch, steps, directory, training)
        trainer.train()
        rows = trainer.train_dataset.select(range(max(2 * batch, 128)))
        trainer.predict(rows)  # warm
        started = time.perf_counter()
        trainer.predict(rows)
        predicting = time.perf_counter() - started
        with_exchange, without_exchange = _exchange(trainer, steps)
    found = {
        "step": statistics.median(seconds[WARM_UP:]),
        "exchange": max(0.0, 1 - without_exchange / with_exchange),
        "predict": len(rows) / predicting,
        "memory": _peak_memory(),
    }
    distributed.leave()
    return found


def _trainer(
    tokens: int, batch: int, steps: int, directory: str, training: dict[str, Any]
) -> tuple["Trainer", list[float]]:
    """Return a trainer over random tokens, and the list that will have the seconds of each step."""
    import numpy as np
    import torch
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Sequence, Value
    from transformers import TrainerCallback

    from finetune import TextRecipe
    from finetune.runtime import distributed

    rows = max(batch * (steps + WARM_UP), 2 * batch, 128)

    class Tokens(TextRecipe):
        """Random tokens, all rows of one length."""

        model: str = "embedded:minilm"
        attention_dropout: float | None = 0.0

        @property
        def labels(self) -> list[str]:
            return ["a", "b"]

        @property
        def prepared(self) -> DatasetDict:
            generator = np.random.default_rng(0)
            ids = generator.integers(1000, 30000, (rows, tokens))
            columns = {
                "input_ids": ids,
                "attention_mask": np.ones_like(ids),
                "labels": generator.integers(0, 2, rows),
                "length": np.full(rows, tokens),
            }
            whole = Features(
                input_ids=Sequence(Value("int64")),
                attention_mask=Sequence(Value("int64")),
                labels=ClassLabel(names=self.labels),
                length=Value("int64"),
            )
            made = Dataset.from_dict(columns, features=whole)
            return DatasetDict(train=made, validation=made)

    seconds: list[float] = []

    class Clock(TrainerCallback):
        """How long each step took."""

        def on_step_begin(self, *arguments: Any, **others: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *arguments: Any, **others: Any) -> None:
            seconds.append(time.perf_counter() - self.began)

    devices = distributed.devices_in_training(use_cpu=not torch.accelerator.is_available())
    trainer = Tokens().trainer(
        output_dir=directory,
        global_batch_size=batch,
        per_device_eval_batch_size=batch // devices,
        max_steps=steps + WARM_UP,
        eval_strategy="no",
        save_strategy="no",
        load_best_model_at_end=False,
        logging_steps=10_000,
        disable_tqdm=True,
        num_threads=1,
        **training,
    )
    trainer.add_callback(Clock())
    return trainer, seconds


def _exchange(trainer: "Trainer", steps: int) -> tuple[float, float]:
    """Seconds of forward and backward with and without the exchange of gradients, taking turns."""
    import torch

    model = trainer.model_wrapped
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return 1.0, 1.0
    inputs = next(iter(trainer.get_train_dataloader()))
    model.train()

    def seconds(exchange: bool) -> float:
        torch.distributed.barrier()
        started = time.perf_counter()
        with nullcontext() if exchange else model.no_sync():
            trainer.training_step(model, dict(inputs), trainer.args.global_batch_size)
        if trainer.args.device.type != "cpu":
            torch.accelerator.synchronize()
        took = time.perf_counter() - started
        model.zero_grad()
        return took

    pairs = [(seconds(True), seconds(False)) for _ in range(steps)]
    return tuple(map(statistics.median, zip(*pairs, strict=True)))


def exchanges(tokens: int, batch: int, steps: int) -> dict[str, float]:
    """Median seconds of forward and backward, by the way in which gradients are exchanged.

    Each way has a copy of the model of its own, and they take turns.
    """
    import torch
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    from finetune.cli import console
    from finetune.models.pretrained import load_classifier
    from finetune.runtime import distributed, threads

    console.quiet()
    threads.use(1)
    distributed.join_process_group(None, 600, use_cpu=True)

    def wrapped(**options: Any) -> DistributedDataParallel:
        model = load_classifier(
            "embedded:minilm", ["a", "b"], hidden_dropout=None, attention_dropout=0.0
        )
        return DistributedDataParallel(model.train(), **options)

    ways = {
        "none": wrapped(),
        "DDP's own, buckets of 25 MB": wrapped(),
        "buckets of 5 MB": wrapped(bucket_cap_mb=5),
        "one bucket": wrapped(bucket_cap_mb=1000),
        "gradients as views of the buckets": wrapped(gradient_as_bucket_view=True),
        "a static graph": wrapped(static_graph=True),
        "gradients in bf16": wrapped(),
    }
    ways["gradients in bf16"].register_comm_hook(None, _in_bf16)
    generator = torch.Generator().manual_seed(distributed.ranks().rank)
    ids = torch.randint(
        1000, 30000, (batch // distributed.ranks().world_size, tokens), generator=generator
    )
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(WARM_UP + steps):
        for name, model in ways.items():
            torch.distributed.barrier()
            started = time.perf_counter()
            with model.no_sync() if name == "none" else nullcontext():
                cross_entropy(model(input_ids=ids).logits, ids[:, 0] % 2).backward()
            found[name].append(time.perf_counter() - started)
            model.zero_grad()
    distributed.leave()
    return {name: statistics.median(seconds[WARM_UP:]) for name, seconds in found.items()}


def _in_bf16(_, bucket):  # torch refuses annotations other than its own
    """Do what torch's ``bf16_compress_hook`` does, which refuses to over gloo."""
    import torch
    import torch.distributed as dist

    mean = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size())
    future = dist.all_reduce(mean, async_op=True).get_future()
    return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))


def _peak_memory() -> float:
    """Of this process in MiB: of the GPU where there is one, or else of all that it had in RAM."""
    import torch

    if torch.cuda.is_available():
        devices = range(torch.cuda.device_count())
        return max(map(torch.cuda.max_memory_allocated, devices)) / 2**20
    return turns.peak_memory()


# ---- all of them ---------------------------------------------------------------------------------


def launched(processes: int, *, devices: int | None = None, **worker: Any) -> dict[str, float]:
    """:func:`measure` or :func:`exchanges` in a launch of its own; what its rank 0 found.

    Args:
        processes: One, or several under torchrun.
        devices: The GPUs that one process may see.
        **worker: The arguments of it.
    """
    start = [sys.executable]
    if processes > 1:
        start += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}  # torchrun would say that it sets it
    if devices is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(devices)))
    with tempfile.TemporaryDirectory() as directory:
        answer = os.path.join(directory, "answer.json")
        subprocess.run(
            [*start, __file__, "--worker", json.dumps({**worker, "answer": answer})],
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        with open(answer, encoding="utf-8") as file:
            return dict(json.load(file))


def in_turns(launches: dict[str, dict[str, Any]], rounds: int) -> dict[str, dict[str, float]]:
    """Return the median of each figure of each launch; the launches take turns."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in launches}
    for _ in range(rounds):
        for name, launch in launches.items():
            found[name].append(launched(**launch))
    return {
        name: {figure: statistics.median(each[figure] for each in seen) for figure in seen[0]}
        for name, seen in found.items()
    }


def lines(tokens: int, batch: int, steps: int, rounds: int, bf16: bool) -> None:
    """Print a line for each launch, and how many times the first one's rows a second it has."""
    import torch

    training = {"precision": "bf16" if bf16 else "fp32"}
    worker = {"tokens": tokens, "batch": batch, "steps": steps, "training": training}
    gpus = torch.cuda.device_count()
    if gpus:
        launches = {"one GPU": {"processes": 1, "devices": 1, **worker}}
        if gpus > 1:
            launches["DataParallel, 2 GPUs"] = {"processes": 1, "devices": 2, **worker}
            launches["DDP, 2 processes"] = {"processes": 2, "devices": 2, **worker}
    else:
        launches = {
            "1 process": {"processes": 1, **worker},
            "DDP, 2 processes": {"processes": 2, **worker},
        }
    found = in_turns(launches, rounds)
    first = next(iter(found.values()))
    for name, seen in found.items():
        ratios = first["step"] / seen["step"], seen["predict"] / first["predict"]
        print(
            "",
            tokens,
            batch,
            name,
            f"{batch / seen['step']:.1f}",
            f"{seen['step']:.3f}",
            f"{ratios[0]:.2f}",
            f"{seen['exchange']:.0%}",
            f"{seen['memory']:,.0f}",
            f"{seen['predict']:.1f}",
            f"{ratios[1]:.2f}",
            "",
            sep=" | ",
            flush=True,
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps, one round")
    parser.add_argument("--exchange", action="store_true", help="only ways to exchange gradients")
    parser.add_argument("--bf16", action="store_true", help="matrix products in bf16")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        answer = given.worker.pop("answer")
        work = exchanges if given.worker.pop("exchange", False) else measure
        found = work(**given.worker)
        if int(os.environ.get("RANK", 0)) == 0:
            with open(answer, "w", encoding="utf-8") as file:
                json.dump(found, file)
        return
    if given.exchange:
        found = launched(2, exchange=True, tokens=SHORT, batch=32, steps=3 if given.quick else 8)
        for name, seconds in found.items():
            print(f" | {name} | {seconds:.3f} | {seconds - found['none']:.3f} | ")
        return
    columns = ["tokens", "batch", "launch", "samples/s", "s/step", "speedup", "exchange", "MiB"]
    columns += ["predict samples/s", "speedup"]
    print("", *columns, "", sep=" | ")
    print("", *("---" for _ in columns), "", sep=" | ")
    steps, rounds = (3, 1) if given.quick else (8, 3)
    for batch in BATCHES:
        lines(SHORT, batch, max(3, steps * 32 // batch), rounds, given.bf16)
    lines(LONG, 32, max(3, steps // 2), rounds, given.bf16)


if __name__ == "__main__":
    main()
