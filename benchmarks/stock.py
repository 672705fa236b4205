"""Train and predict as in the tutorials of Hugging Face; ``speed.py`` compares with this.

This uses ``Trainer`` with its default arguments and ``DataCollatorWithPadding`` (transformers,
"Fine-tuning a pretrained model"), and ``pipeline`` with a batch size. With ``--words`` it labels
words as ``run_ner.py`` of the examples of transformers does.
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
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
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


def train(
    data: str, model: str, max_length: int, *, words: bool, warmup: int = 1, **arguments: Any
) -> float:
    """Train on a parquet file with the columns ``text`` and ``label``, or ``tokens`` and
    ``ner_tags``; return samples/s.
    """
    clock = Clock(warmup)
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = Dataset.from_parquet(data)
    if words:
        names = sorted({tag for tags in rows["ner_tags"] for tag in tags})
        rows = rows.map(
            lambda batch: tokenize_words(batch, tokenizer, names, max_length),
            batched=True,
            remove_columns=rows.column_names,
        )
        collator = DataCollatorForTokenClassification(tokenizer)
        network = AutoModelForTokenClassification.from_pretrained(model, num_labels=len(names))
    else:
        rows = rows.class_encode_column("label").map(
            lambda batch: tokenizer(batch["text"], truncation=True, max_length=max_length),
            batched=True,
        )
        collator = DataCollatorWithPadding(tokenizer)
        network = AutoModelForSequenceClassification.from_pretrained(model, num_labels=2)
    trainer = Trainer(
        model=network,
        args=TrainingArguments(**arguments),
        train_dataset=rows,
        data_collator=collator,
        processing_class=tokenizer,
        callbacks=[clock],
    )
    trainer.train()
    return clock.rate


def tokenize_words(
    batch: Any, tokenizer: Any, names: list[str], max_length: int
) -> dict[str, list[Any]]:
    """Return the tokens of words; the first of each has the id of its tag, the others -100."""
    encoded = tokenizer(
        batch["tokens"], is_split_into_words=True, truncation=True, max_length=max_length
    )
    encoded["labels"] = []
    for row, tags in enumerate(batch["ner_tags"]):
        labels = []
        previous = None
        for word in encoded.word_ids(row):
            is_first = word is not None and word != previous
            labels.append(names.index(tags[word]) if is_first else -100)
            previous = word
        encoded["labels"].append(labels)
    return encoded


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
    parser.add_argument("--words", action="store_true", help="label words")
    options = parser.parse_args()
    if options.batch:
        rate = train(
            options.data, options.model, options.max_length, words=options.words,
            per_device_train_batch_size=options.batch, max_steps=options.steps, save_strategy="no",
            logging_strategy="no", report_to="none", output_dir="stock", use_cpu=True,
        )  # fmt: skip
        if int(os.environ.get("RANK", 0)) == 0:
            print(f"throughput: {rate:.1f} samples/s")
    else:
        predict(options.data, options.model, options.max_length)
