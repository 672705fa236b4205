"""Time training steps of BERT base against the stock script, in this process (`gpu_check.py`).

Every row has the same number of tokens, so that nothing is padded. Both train on the same rows in
bf16, with the defaults of each. The first steps, which allocate memory and select kernels, are
not timed.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import random_bert

ROUNDS = 3


@dataclass(frozen=True)
class Case:
    """A training that is timed.

    Attributes:
        tokens: The number of tokens of each row, with the two special ones.
        rows: The rows of a step.
        steps: The number of steps that are timed, and of those before.
        sizes: The ``BertConfig``; empty for BERT base.
        peak_size: The rows and columns of the matrices for the peak.
    """

    tokens: int
    rows: int = 32
    steps: int = 20
    sizes: dict[str, Any] | None = None
    peak_size: int = 8192

    @property
    def name(self) -> str:
        """The name of the check."""
        return f"speed at {self.tokens} tokens"

    def shrunk(self) -> Case:
        """Return a case that a CPU runs in seconds."""
        return replace(self, rows=4, steps=2, sizes=random_bert.SMALL, peak_size=512)


CASES = (Case(256), Case(64))


def measure(case: Case, directory: Path) -> str:
    """Return a sentence with samples/s of both and the share of the peak of this device."""
    model = directory / f"model-{case.rows}"
    if not model.exists():
        random_bert.write_model(model, case.sizes or {})
    count = case.rows * case.steps * 2 + 300  # and rows for validation and test
    texts = directory / f"rows-{case.tokens}.parquet"
    random_bert.write_texts(texts, count, case.tokens - 2, case.tokens - 2)
    stock_rates, our_rates = [], []
    for _ in range(ROUNDS):
        stock_rates.append(_stock_rate(case, texts, model))
        our_rates.append(_our_rate(case, texts, model))
    stock_rate, our_rate = statistics.median(stock_rates), statistics.median(our_rates)
    ratios = [ours / theirs for ours, theirs in zip(our_rates, stock_rates, strict=True)]
    peak = _matmul_peak(case.peak_size)
    share = our_rate * _operations(model, case.tokens) / peak
    return (
        f"{our_rate:,.0f} samples/s, stock {stock_rate:,.0f}, times {statistics.median(ratios):.2f}"
        f" ({min(ratios):.2f} to {max(ratios):.2f}); {share:.1%} of the bf16 peak, "
        f"{peak / 1e12:,.1f} TFLOP/s"
    )


def _stock_rate(case: Case, texts: Path, model: Path) -> float:
    import stock
    import torch

    with contextlib.redirect_stdout(io.StringIO()):  # the library prints a dictionary
        return stock.train(
            str(texts),
            str(model),
            case.tokens,
            warmup=case.steps,
            per_device_train_batch_size=case.rows,
            max_steps=2 * case.steps,
            bf16=True,
            use_cpu=not torch.cuda.is_available(),
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            output_dir=str(texts.parent / "stock"),
        )


def _our_rate(case: Case, texts: Path, model: Path) -> float:
    import finetune

    run = finetune.train(
        "text",
        dataset=texts,
        model=str(model),
        max_length=case.tokens,
        global_batch_size=case.rows,
        max_steps=2 * case.steps,
        precision="bf16",
        logging_steps=case.steps,  # the device is synchronized then: the second half is timed
        eval_strategy="no",
        save_strategy="no",
        load_best_model_at_end=False,
        eval_samples=32,
        baseline=False,
        disable_tqdm=True,
        output_dir=texts.parent / "speed",
    )
    rates = [e["rows_per_second"] for e in run.manifest.history if "rows_per_second" in e]
    return float(rates[-1])


def _operations(model: Path, tokens: int) -> float:
    """Return the floating-point operations of a training step for one row of ``tokens`` tokens.

    A layer has 4 matrices of the attention and 2 of the feed-forward part; products of queries,
    keys and values are counted too. The backward pass takes twice as many as the forward pass.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model)
    hidden = config.hidden_size
    weights = 4 * hidden**2 + 2 * hidden * config.intermediate_size
    forward = 2 * weights * tokens + 4 * hidden * tokens**2
    return 3.0 * config.num_hidden_layers * forward


def _matmul_peak(size: int) -> float:
    """Return the floating-point operations per second of bf16 products of square matrices."""
    import torch

    from finetune.runtime import distributed

    device = distributed.device()
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    products = 20
    for number in range(products + 5):  # the first five select the kernel
        if number == 5:
            _synchronize(device)
            started = time.perf_counter()
        torch.matmul(left, right)
    _synchronize(device)
    return products * 2 * size**3 / (time.perf_counter() - started)


def _synchronize(device: Any) -> None:
    import torch

    if device.type != "cpu":
        torch.accelerator.synchronize(device)
