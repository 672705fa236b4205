"""Train and predict as in the tutorials of Hugging Face; ``speed.py`` compares with this.

This uses ``Trainer`` with its default arguments and ``DataCollatorWithPadding`` (transformers,
"Fine-tuning a pretrained model"), and ``pipeline`` with a batch size.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import pandas as pd
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
    """Prints samples/s over all steps but the first, which selects kernels."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock after the first step, and print after the last."""
        if state.global_step == 1:
            self.started = time.perf_counter()
        elif state.global_step == state.max_steps and state.is_world_process_zero:
            rows = (state.max_steps - 1) * args.train_batch_size * args.world_size
            print(f"throughput: {rows / (time.perf_counter() - self.started):.1f} samples/s")


def train(data: str, model: str, max_length: int, **arguments: Any) -> None:
    """Train on a parquet file with the columns ``text`` and ``label``."""
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
        callbacks=[Clock()],
    )
    trainer.train()


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
        train(
            options.data, options.model, options.max_length,
            per_device_train_batch_size=options.batch, max_steps=options.steps, save_strategy="no",
            logging_strategy="no", report_to="none", output_dir="stock", use_cpu=True,
        )  # fmt: skip
    else:
        predict(options.data, options.model, options.max_length)
