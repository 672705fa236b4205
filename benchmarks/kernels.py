"""Measures each kernel of `finetune/models/cpu/` alone and all together against the library's own.

    make bench CASE=kernels
    python benchmarks/kernels.py                  # the same; about half an hour on two cores
    python benchmarks/kernels.py --quick          # small shapes, one round: does it run?

Prints Markdown tables: the processor, one forward pass in inference on one thread (as `predict`
computes its batches), and one training step (forward and backward pass, all threads). Ways
take turns, each in a process of its own, see `turns.py`; ratios are medians over the rounds, above
1 is faster. A kernel that is slower than plain bf16 for a shape is not to be taken there:
MOST_TOKENS of the padding-free layers and `precision.prefers_bf16` say so. Here every kernel
that is alone takes every shape, and the way "as set" goes by these.
"""

import argparse
import json
import operator
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import turns

Line = dict[str, Any]
Shape = tuple[int, int]
#: Rows of a batch, and tokens of its longest row.
SHAPES: list[Shape] = [(rows, tokens) for rows in (1, 8, 32) for tokens in (32, 128, 256)]
QUICK: list[Shape] = [(1, 16), (3, 16)]
#: Tokens that are computed in a turn of each shape, at least.
TOKENS, TOKENS_QUICK = 8192, 16
MOST_PASSES = 64
#: Precision, and the kernels that are on.
INFERENCE: dict[str, tuple[str, tuple[str, ...]]] = {
    "plain fp32": ("fp32", ()),
    "plain bf16": ("bf16", ()),
    "fp32, packing": ("fp32", ("packing",)),
    "fp32, allocator": ("fp32", ("allocator",)),
    "fp32, all as set": ("fp32", ("all",)),
    "bf16, attention": ("bf16", ("attention",)),
    "bf16, packing": ("bf16", ("packing",)),
    "bf16, allocator": ("bf16", ("allocator",)),
    "bf16, all as set": ("bf16", ("all",)),
}
TRAINING: dict[str, tuple[str, tuple[str, ...]]] = {
    "plain fp32": ("fp32", ()),
    "plain bf16": ("bf16", ()),
    "fp32, dropout": ("fp32", ("dropout",)),
    "fp32, padding-free layers": ("fp32", ("attention", "unpadded")),
    "fp32, allocator": ("fp32", ("allocator",)),
    "fp32, all as set": ("fp32", ("all",)),
    "bf16, attention": ("bf16", ("attention",)),
    "bf16, dropout": ("bf16", ("dropout",)),
    "bf16, attention, padding-free layers": ("bf16", ("attention", "unpadded")),
    "bf16, allocator": ("bf16", ("allocator",)),
    "bf16, all as set": ("bf16", ("all",)),
}


def of_inference(
    precision: str, on: tuple[str, ...], shapes: list[Shape], tokens: int
) -> Callable[[], list[float]]:
    """Return what times one pass over full rows of each shape, in seconds."""
    import torch

    from finetune.models.cpu import allocator, attention, kernels, packing

    torch.set_num_threads(1)
    model, bf16 = _model().eval(), precision == "bf16"
    if bf16:
        model.to(torch.bfloat16)
    if "all" in on:
        kernels.for_inference(model, bf16=bf16)
    else:
        _take_every_shape()
    if "attention" in on:
        attention.use(model)
    if "packing" in on:
        packing.pack(model)
    if "allocator" in on:
        allocator.keep_large_blocks()
    batches = [_batch(*shape, whole=True) for shape in shapes]

    def once(batch: dict[str, torch.Tensor]) -> None:
        with torch.inference_mode():
            model(**batch)

    return lambda: [_seconds(once, batch, tokens) for batch in batches]


def of_training(
    precision: str, on: tuple[str, ...], shapes: list[Shape], tokens: int
) -> Callable[[], list[float]]:
    """Return what times a forward and backward pass over padded rows of each shape, in s."""
    import torch

    from finetune.models.cpu import allocator, attention, dropout, kernels, unpadded

    model, bf16 = _model().train(), precision == "bf16"
    if "all" in on:
        kernels.for_training(model, bf16=bf16, recomputes=False)
    else:
        _take_every_shape()
    if "attention" in on:
        attention.use(model)
    if "unpadded" in on:
        assert unpadded.use(model)
    if "dropout" in on:
        dropout.use(model)
    if "allocator" in on:
        allocator.keep_large_blocks()
    batches = [_batch(*shape, whole=False) for shape in shapes]

    def once(batch: dict[str, torch.Tensor]) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = model(**batch).logits.float().square().mean()
        loss.backward()
        model.zero_grad()

    return lambda: [_seconds(once, batch, tokens) for batch in batches]


def _model() -> Any:
    """MiniLM-L6 with a head, as the recipes train it: no dropout of the attention."""
    import torch

    from finetune.cli import console
    from finetune.models.pretrained import load_classifier

    console.quiet()
    torch.manual_seed(0)
    return load_classifier("embedded:minilm", ["no", "yes"], attention_dropout=0.0)


def _take_every_shape() -> None:
    from finetune.models.cpu import unpadded

    unpadded.MOST_TOKENS = 1.0


def _batch(rows: int, tokens: int, *, whole: bool) -> dict[str, Any]:
    """Rows of one length, or from half of it to all of it, as a random order has them."""
    import torch

    lengths = torch.full((rows,), tokens) if whole else torch.linspace(tokens, tokens / 2, rows)
    mask = (torch.arange(tokens) < lengths.int()[:, None]).long()
    ids = torch.randint(1000, 20_000, (rows, tokens), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids * mask, "attention_mask": mask}


def _seconds(once: Callable[[Any], None], batch: dict[str, Any], tokens: int) -> float:
    passes = min(MOST_PASSES, max(1, tokens // batch["input_ids"].numel()))
    once(batch)  # of a shape that was not the last one
    began = time.perf_counter()
    for _ in range(passes):
        once(batch)
    return (time.perf_counter() - began) / passes


def measure(rounds: int, shapes: list[Shape] = SHAPES, tokens: int = TOKENS) -> list[Line]:
    """Return a line for each way and shape: milliseconds, and how often as fast as plain."""
    lines: list[Line] = []
    for case, make, ways in (
        ("inference, one forward pass, one thread", of_inference, INFERENCE),
        ("training, one forward and backward pass", of_training, TRAINING),
    ):
        works = {name: (make, (*way, shapes, tokens)) for name, way in ways.items()}
        found = turns.take(works, rounds, warm_up=1)
        took = {name: list(zip(*way.answers, strict=True)) for name, way in found.items()}
        for number, (rows, length) in enumerate(shapes):
            for name in ways:
                mine = took[name][number]
                lines.append(
                    {
                        "case": case,
                        "way": name,
                        "rows": rows,
                        "tokens": length,
                        "ms": 1000 * statistics.median(mine),
                        **{
                            f"times {plain}": _ratio(took[plain][number], mine)
                            for plain in ("plain bf16", "plain fp32")
                        },
                    }
                )
    return lines


def _ratio(plain: Iterable[float], mine: Iterable[float]) -> float:
    return statistics.median(map(operator.truediv, plain, mine))


def processor() -> list[str]:
    """Return the processor, what it has for bf16, and the versions that were measured."""
    from importlib.metadata import version

    info = Path("/proc/cpuinfo")
    pairs = [line.partition(":")[::2] for line in _text(info).splitlines()]
    known = {name.strip(): value.strip() for name, value in reversed(pairs)}
    flags = known.get("flags", "").split()
    has = {"AMX": "amx_tile", "AMX-BF16": "amx_bf16", "AVX512-BF16": "avx512_bf16"}
    return [
        f"processor: {_model_name() or known.get('model name', 'unknown')}, {os.cpu_count()} cores",
        ", ".join(f"{name}: {'yes' if flag in flags else 'no'}" for name, flag in has.items()),
        ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers")),
    ]


def _model_name() -> str:
    try:
        lines = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    named = [line.partition(":")[2].strip() for line in lines.splitlines() if "Model name" in line]
    return named[0] if named else ""


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def show(lines: list[Line]) -> None:
    """Print the processor and a Markdown table for each case."""
    print("", *processor(), sep="\n")
    for case in dict.fromkeys(line["case"] for line in lines):
        these = [line for line in lines if line["case"] == case]
        columns = [name for name in these[0] if name != "case"]
        print(f"\n**{case}**\n")
        print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
        for line in these:
            cells = (line[name] for name in columns)
            shown = (f"{each:.3g}" if isinstance(each, float) else str(each) for each in cells)
            print(f"| {' | '.join(shown)} |", flush=True)


def main() -> None:
    """Print the tables, and write all figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small shapes, one round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", metavar="FILE", help="write all figures there, as JSON")
    given = parser.parse_args()
    lines = measure(1, QUICK, TOKENS_QUICK) if given.quick else measure(given.rounds)
    show(lines)
    if given.output:
        found = {"processor": processor(), "kernels": lines}
        Path(given.output).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
