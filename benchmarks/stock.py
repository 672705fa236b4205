"""Train and predict as in the tutorials of Hugging Face; ``speed.py`` compares with this.

This uses ``Trainer`` with its default arguments and ``DataCollatorWithPadding`` (transformers,
"Fine-tuning a pretrained model"), and ``pipeline`` with a batch size.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import pandas as pd
import torch
from datasets import Dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    pipeline,
)


class Clock(TrainerCallback):
    """Measures samples/s over all steps but the first ones, which select kernels."""

    def __init__(self, warmup: int) -> None:
        self.warmup = warmup

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock after the first steps, and stop it after the last."""
        if state.global_step not in (self.warmup, state.max_steps):
            return
        if args.device.type != "cpu":
            torch.accelerator.synchronize(args.device)
        if state.global_step == self.warmup:
            self.started = time.perf_counter()
        else:
            rows = (state.max_steps - self.warmup) * args.train_batch_size * args.world_size
            self.rate = rows / (time.perf_counter() - self.started)


def train(data: str, model: str, max_length: int, warmup: int = 1, **arguments: Any) -> float:
    """Train on a parquet file with the columns ``text`` and ``label``; return samples/s."""
    clock = Clock(warmup)
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = Dataset.from_parquet(data).class_encode_column("label")
    rows = rows.map(
        lambda batch: tokenizer(batch["text"], truncation=True, max_length=max_length),
        batched=True,
    )
    trainer = Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(model, num_labels=2),
        args=TrainingArguments(**arguments),
        train_dataset=rows,
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        callbacks=[clock],
    )
    trainer.train()
    return clock.rate


def predict(data: str, model: str, max_length: int) -> None:
    """Predict the texts of a parquet file and print samples/s."""
    texts = pd.read_parquet(data)["text"].tolist()
    classify = pipeline("text-classification", model=model, truncation=True, max_length=max_length)
    started = time.perf_counter()
    classify(texts, batch_size=32, top_k=None)
    print(f"throughput: {len(texts) / (time.perf_counter() - started):.1f} samples/s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data")
    parser.add_argument("model")
    parser.add_argument("max_length", type=int)
    parser.add_argument("--batch", type=int, help="batch size of a process; predict if missing")
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    if options.batch:
        rate = train(
            options.data, options.model, options.max_length,
            per_device_train_batch_size=options.batch, max_steps=options.steps, save_strategy="no",
            logging_strategy="no", report_to="none", output_dir="stock", use_cpu=True,
        )  # fmt: skip
        if int(os.environ.get("RANK", 0)) == 0:
            print(f"throughput: {rate:.1f} samples/s")
    else:
        predict(options.data, options.model, options.max_length)
