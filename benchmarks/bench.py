"""Measures the toolkit against the stock script and the stock pipeline; `make bench` runs it.

    python benchmarks/bench.py                  # every case; about two hours on two cores
    python benchmarks/bench.py training         # one of them; --help names them
    python benchmarks/bench.py training --rounds 5 --output bench.json

Ways that are compared take turns, each in a process of its own, and the medians count; see
`turns.py`. Ratios are worth something, seconds are those of this machine.
"""

import argparse
import contextlib
import json
import math
import operator
import os
import platform
import socket
import statistics
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import checking
import gpu
import kernels
import limits
import predict
import preparation
import preparing
import scale
import start
import tasks
import training
import turns
from training import LONG, SHORT

BATCH = 32
#: Validation accuracy to be reached: most of the way from chance to where an epoch ends.
TARGET = 0.75
Line = dict[str, Any]


def of_training(rounds: int) -> list[Line]:
    """Rows a second and peak memory, on long reviews and on short sentences."""
    lines: list[Line] = []
    for (data, max_length), steps in ((LONG, 8), (SHORT, 32)):
        given = (data, max_length, BATCH, steps)
        ways = turns.take(
            {
                "stock": (training.of_stock, given),
                "stock, padded to the limit": (training.of_stock, (*given, True)),
                "ours": (training.of_ours, given),
            },
            rounds,
            warm_up=1,
        )
        case = f"training, {data.removeprefix('embedded:')}, {max_length} tokens"
        lines += against("stock", case, ways, BATCH * steps)
    return lines


def of_processes(rounds: int) -> list[Line]:
    """One process of one core, two of a job, and two that have nothing to do with each other.

    Turns are short and many, and those of a round are compared: what disturbs one core disturbs
    two twice as often.
    """
    steps = 4
    given, half = (*LONG, BATCH, steps), (*LONG, BATCH // 2, steps)
    port = _free_port()
    ways = turns.take(
        {
            "one process": [(training.of_rank, (0, 1, 0, *given))],
            "two processes": [(training.of_rank, (rank, 2, port, *given)) for rank in (0, 1)],
            "two that share nothing": [(training.of_rank, (0, 1, 0, *half))] * 2,
        },
        4 * rounds,
        warm_up=1,
    )
    lines: list[Line] = []
    first: list[float] = []
    for name, way in ways.items():
        seconds = [max(took for took, _ in turn) for turn in way.answers]
        waited = [statistics.mean(waited for _, waited in turn) for turn in way.answers]
        first = first or seconds
        lines.append(
            {
                "case": f"processes of one core, imdb, {LONG[1]} tokens, {BATCH} rows a step",
                "way": name,
                "rows/s": BATCH * steps / statistics.median(seconds),
                "times, round by round": statistics.median(map(operator.truediv, first, seconds)),
                "exchange": f"{statistics.median(map(operator.truediv, waited, seconds)):.1%}",
                "MiB of a process": way.memory,
            }
        )
    return lines


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def of_preparation(rounds: int) -> list[Line]:
    """Tokenizing 1,000 to 25,000 reviews, nothing cached."""
    lines: list[Line] = []
    for rows in (1000, 5000, 25_000):
        given = (rows, LONG[1])
        ways = turns.take(
            {
                "stock: tokenized": (training.prepared_by_stock, given),
                "ours: checked, split, tokenized": (training.prepared_by_ours, given),
            },
            rounds,
        )
        base = ways["stock: tokenized"]
        lines += [
            {
                "case": "preparation, imdb, cost by rows",
                "way": f"{name}, {rows:,} rows",
                "s": way.seconds,
                "ms a row": 1000 * way.seconds / rows,
                "times the seconds of stock": way.seconds / base.seconds,
            }
            for name, way in ways.items()
        ]
    return lines


def of_splits(rounds: int) -> list[Line]:
    """From the data as read to the raw splits: all rows, and with 1,000 rows of training."""
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as directory:
        for rows in (10_000, 100_000, 650_000):
            path, cache = Path(directory) / str(rows), Path(directory) / "cache"
            given = (str(preparing.compose(path, rows)), str(cache))
            turns.take({"": (preparing.converted, given)}, 1)
            cached = _bytes(cache)
            ways = {
                "all rows": (preparing.raw_splits, (*given, {})),
                "--train_samples 1000": (preparing.raw_splits, (*given, {"train_samples": 1000})),
            }
            for name, way in turns.take(ways, rounds).items():
                answers = way.answers
                phases = [each for each in answers[0] if each not in ("MiB before", "rows")]
                lines.append(
                    {
                        "case": "from read data to raw splits",
                        "way": f"{rows:,} rows, {name}",
                        "s": way.seconds,
                        "processor, s": way.processor_seconds,
                        **{
                            each: statistics.median(answer[each] for answer in answers)
                            for each in phases
                        },
                        "MiB beyond imports": way.memory - answers[0]["MiB before"],
                        "MiB written to the cache": (_bytes(cache) - cached) / 2**20,
                        "training rows": answers[0]["rows"]["train"],
                    }
                )
    first: dict[str, Line] = {}
    for line in lines:
        rows, way = line["way"].split(" rows, ")
        base = first.setdefault(way, line)
        growth = int(rows.replace(",", "")) / int(base["way"].split(" ")[0].replace(",", ""))
        line["exponent"] = (
            math.log(line["processor, s"] / base["processor, s"]) / math.log(growth)
            if growth > 1
            else float("nan")
        )
    return lines


def of_check(rounds: int) -> list[Line]:
    """`check` of the 25,000 long reviews, and what a training does of it."""
    with tempfile.TemporaryDirectory() as directory:
        path = checking.compose(Path(directory))
        given = (str(path), str(Path(directory) / "cache"))
        way = turns.take({"ours": (checking.checked, given)}, rounds)["ours"]
    part = [answer["first tier in a training"] for answer in way.answers]
    return [
        {
            "case": "check, 25,000 long reviews",
            "way": "ours",
            "s": way.seconds,
            "processor, s": way.processor_seconds,
            "first tier in a training, s": statistics.median(part),
        }
    ]


def of_deep(rounds: int) -> list[Line]:
    """`check --deep` of the 25,000 long reviews, and each of its parts by itself."""
    with tempfile.TemporaryDirectory() as directory:
        path = checking.compose(Path(directory))
        given = (str(path), str(Path(directory) / "cache"))
        way = turns.take({"ours": (checking.deep, given)}, rounds)["ours"]
    took = [statistics.median(each) for each in zip(*(a["took"] for a in way.answers), strict=True)]
    parts = way.answers[0]["parts"]
    return [
        {
            "case": "check --deep, 25,000 long reviews",
            "way": "ours",
            "s": took[0],
            "processor, s": took[1],
            **{
                f"{name}, processor, s": statistics.median(
                    answer["parts"][name] for answer in way.answers
                )
                for name in parts
            },
        }
    ]


def _bytes(directory: Path) -> int:
    return sum(each.stat().st_size for each in directory.rglob("*") if each.is_file())


def of_preparation_at_scale(rounds: int) -> list[Line]:
    """Prepare 10,000 to 650,000 rows, against `datasets.map` alone, with as many processes."""
    return preparation.measure(rounds)


def of_tokens(rounds: int) -> list[Line]:
    """Training on rows of 64 to 512 tokens: what is linear is, and attention is not."""
    ways = turns.take(
        {
            f"ours, {length} tokens": (training.of_ours, (LONG[0], length, BATCH, 2))
            for length in (64, 128, 256, 512)
        },
        rounds,
        warm_up=1,
    )
    first = next(iter(ways.values()))
    return [
        {
            "case": "training, imdb, cost by tokens",
            "way": name,
            "s a step": way.seconds / 2,
            "times the first": way.seconds / first.seconds,
            "MiB": way.memory,
        }
        for name, way in ways.items()
    ]


def of_start(rounds: int) -> list[Line]:
    """From the start of a process to its first step, on cached data."""
    found = start.measure(rounds)
    lines = []
    for name, seconds in found.items():
        beside = start.IN_TWO if name.endswith(start.IN_TWO) else ""
        lines.append(
            {
                "case": f"cold start, {start.ROWS:,} cached reviews",
                "way": name,
                "s": seconds,
                "s beyond the imports": seconds - found[start.IMPORTS + beside],
                "times stock": seconds / found[f"stock{beside}"],
            }
        )
    return lines


def of_tasks(rounds: int) -> list[Line]:
    """Training steps of the same tokens and starts, for each task."""
    stepped, started = tasks.steps(rounds), tasks.starts(rounds)
    single = stepped[tasks.SINGLE].answers
    lines: list[Line] = []
    for way, seconds in started.items():
        line: Line = {"case": "tasks, imdb", "way": way, "start, s": seconds}
        line["beyond single label, s"] = seconds - started[tasks.SINGLE]
        if way in stepped:
            took = stepped[way].answers
            tokens = tasks.BATCH * tasks.STEPS * tasks.TOKENS
            line["tokens/s"] = tokens / statistics.median(took)
            line["times, round by round"] = statistics.median(map(operator.truediv, single, took))
        else:
            line |= {"tokens/s": "", "times, round by round": ""}
        lines.append(line)
    return lines


def of_target(_: int) -> list[Line]:
    """Seconds of training until the validation accuracy is reached, of three seeds each."""
    lines: list[Line] = []
    ways = turns.take(
        {way: (training.until, (way, TARGET, 3840)) for way in ("stock", "ours")}, rounds=3
    )
    for name, way in ways.items():
        reached = [seconds for seconds in way.answers if seconds is not None]
        lines.append(
            {
                "case": f"time to {TARGET:.0%} validation accuracy, rotten-tomatoes",
                "way": name,
                "s": statistics.mean(reached) if reached else float("nan"),
                "of each seed": " ".join("never" if s is None else f"{s:.1f}" for s in way.answers),
            }
        )
    for line in lines:
        line["times faster"] = lines[0]["s"] / line["s"]
    return lines


def of_gpu(rounds: int) -> list[Line]:
    """Shapes of BERT on one GPU, in bf16; nothing where there is none."""
    return gpu.measure(rounds)


def of_kernels(rounds: int) -> list[Line]:
    """Each kernel of `finetune/models/cpu/` alone, and all together."""
    return kernels.measure(rounds)


def of_prediction(rounds: int) -> list[Line]:
    """Rows a second against `pipeline(batch_size=32)` on long reviews."""
    import finetune

    directory = tempfile.mkdtemp()
    run = finetune.train(
        "yelp", embedded=True, max_steps=20, eval_strategy="no", baseline=False,
        eval_samples=64, output_dir=directory, disable_tqdm=True,
    )  # fmt: skip
    assert run is not None
    lines: list[Line] = []
    texts = predict.reviews(128)
    for max_length in (256, 512):
        ways = predict.measure(str(run.path), texts, max_length, rounds)
        case = f"prediction, imdb, {max_length} tokens"
        lines += against("pipeline", case, ways, len(texts))
    return lines


def of_scale(_: int) -> list[Line]:
    """Measure evaluation, statistics, page and predictions of many rows and classes, each once."""
    return [
        {"case": f"scale, {name}", "way": "ours", **{k: v for k, v in found.items() if v != ""}}
        for name, found in scale.measure().items()
    ]


def of_accuracy(_: int) -> list[Line]:
    """Accuracy on validation rows after the same steps, of three seeds each."""
    lines = []
    for data, max_length, rows in ((*LONG, 2000), (*SHORT, 3840)):
        for name, make in (("stock", training.scored_stock), ("ours", training.scored_ours)):
            scores = [make(data, max_length, rows, seed) for seed in (1, 2, 3)]
            lines.append(
                {
                    "case": f"accuracy, {data.removeprefix('embedded:')}, {rows} rows, one epoch",
                    "way": name,
                    "accuracy": statistics.mean(scores),
                    "of each seed": " ".join(f"{score:.4f}" for score in scores),
                    "deviation": statistics.stdev(scores),
                }
            )
    return lines


def against(base: str, case: str, ways: dict[str, turns.Way], rows: int) -> list[Line]:
    """Return a line for each way: speed and memory, and how they compare with those of ``base``."""
    stock = ways[base]
    return [
        {
            "case": case,
            "way": name,
            "rows/s": rows / way.seconds,
            f"times {base}": stock.seconds / way.seconds,
            f"times {base}, processor": stock.processor_seconds / way.processor_seconds,
            "MiB": way.memory,
            f"of {base}'s memory": way.memory / stock.memory,
        }
        for name, way in ways.items()
    ]


CASES = {
    "training": of_training,
    "processes": of_processes,
    "prediction": of_prediction,
    "preparation": of_preparation,
    "splits": of_splits,
    "check": of_check,
    "deep": of_deep,
    "preparation-at-scale": of_preparation_at_scale,
    "tokens": of_tokens,
    "start": of_start,
    "tasks": of_tasks,
    "scale": of_scale,
    "target": of_target,
    "accuracy": of_accuracy,
    "gpu": of_gpu,
    "kernels": of_kernels,
}


def machine() -> dict[str, Any]:
    """Return what the figures were measured on."""
    import torch

    info = Path("/proc/cpuinfo")
    names = [
        line.partition(":")[2].strip()
        for line in (info.read_text().splitlines() if info.exists() else ())
        if line.startswith("model name")
    ]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "AVX512-BF16": torch.cpu.get_capabilities().get("avx512_bf16", False),
        "AMX": torch.cpu._is_amx_tile_supported(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        **{name: version(name) for name in ("torch", "transformers", "accelerate")},
    }


def main() -> None:
    """Print a table for each case, and write all figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", nargs="?", choices=[*CASES, "all"], default="all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", default="bench.json")
    given = parser.parse_args()
    found: dict[str, Any] = {"machine": machine()}
    print(", ".join(f"{name} {value}" for name, value in found["machine"].items()), flush=True)
    for name, case in CASES.items():
        if given.case in (name, "all"):
            with contextlib.redirect_stdout(sys.stderr):  # only tables are asked for
                found[name] = case(given.rounds)
            Path(given.output).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
            (kernels.show if name == "kernels" else show)(found[name])
    measured = {name: lines for name, lines in found.items() if name in CASES}
    if judged := limits.judged(measured):
        show(judged)
    print(f"\nall figures: {given.output}")


def show(lines: list[Line]) -> None:
    """Print a table for each case in it."""
    from finetune.cli import console

    for case in dict.fromkeys(line["case"] for line in lines):
        these = [line for line in lines if line["case"] == case]
        columns = [name for name in these[0] if name not in ("case", "way")]
        print(f"\n{case}", flush=True)
        console.table(
            ["", *columns],
            [[line["way"], *(_shown(line[name]) for name in columns)] for line in these],
        )


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


if __name__ == "__main__":
    main()
