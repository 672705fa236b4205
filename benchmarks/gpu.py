"""Shapes of BERT on one GPU in bf16, against the stock script with ``bf16=True``.

The weights are random and so are the tokens, which all rows have in the same number: it is the
arithmetic that is measured. ``share of peak`` is what the model asks for (its formula, without what
is computed twice) over the rate of a bf16 matrix product on the same card; ``idle`` is the share of
a step in which no kernel ran, in a profiled training of its own.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import turns

SHAPES: dict[str, dict[str, int]] = {
    "bert-base": dict(
        hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072
    ),
    "bert-large": dict(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    ),
}
LENGTHS = (128, 256, 512)
TOKENS_A_STEP = 32_768
STEPS = 20


def measure(rounds: int) -> list[dict[str, Any]]:
    """Return a line for each shape, length and way; none without a GPU."""
    import torch

    if not torch.cuda.is_available():
        print("gpu: this machine has none", flush=True)
        return []
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        for shape, sizes in SHAPES.items():
            model = saved_model(Path(directory) / shape, sizes)
            for length in LENGTHS:
                lines += _compared(f"{shape}, {length} tokens", model, length, rounds)
    return lines


def _compared(case: str, model: str, length: int, rounds: int) -> list[dict[str, Any]]:
    batch = TOKENS_A_STEP // length
    given = (model, length, batch)
    ways = turns.take({"stock": (of_stock, given), "ours": (of_ours, given)}, rounds, warm_up=1)
    rows = batch * STEPS
    return [
        {
            "case": case,
            "way": name,
            "rows/s": rows / way.seconds,
            "times stock": ways["stock"].seconds / way.seconds,
        }
        for name, way in ways.items()
    ]


def saved_model(directory: Path, sizes: dict[str, int]) -> str:
    """Return a model of random weights, with the tokenizer of the embedded one."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    from finetune.data import embedded

    tokenizer = AutoTokenizer.from_pretrained(str(embedded.model_directory()))
    config = BertConfig(vocab_size=len(tokenizer), **sizes)
    BertForSequenceClassification(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


def _rows(length: int, count: int) -> Any:
    """Random tokens, as the tokenizers of both ways would leave them."""
    import numpy as np
    from datasets import Dataset

    generator = np.random.default_rng(0)
    ids = generator.integers(1000, 30_000, (count, length))
    return Dataset.from_dict(
        {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "labels": generator.integers(0, 2, count),
            "length": np.full(count, length),
        }
    )


def of_stock(model: str, length: int, batch: int) -> Callable[[], float]:
    """Return steps of the library's trainer with default arguments and bf16."""
    from training import QUIET
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    tokenizer = AutoTokenizer.from_pretrained(model)
    trainer = Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(model, num_labels=2),
        args=TrainingArguments(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=batch,
            max_steps=STEPS,
            bf16=True,
            **QUIET,
        ),
        train_dataset=_rows(length, batch * STEPS),
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    return lambda: float(trainer.train().training_loss)


def of_ours(model: str, length: int, batch: int) -> Callable[[], float]:
    """Return the same of the toolkit."""
    trainer = _ours(model, length, batch, STEPS)
    return lambda: float(trainer.train().training_loss)


def _ours(model: str, length: int, batch: int, steps: int, **more: Any) -> Any:
    from datasets import DatasetDict
    from training import QUIET

    from finetune import TextRecipe

    class Tokens(TextRecipe):
        """Random tokens."""

        @property
        def labels(self) -> list[str]:
            return ["a", "b"]

        @property
        def prepared(self) -> DatasetDict:
            rows = _rows(length, batch * steps)
            return DatasetDict(train=rows, validation=rows)

    return Tokens(model=model).trainer(
        output_dir=tempfile.mkdtemp(),
        global_batch_size=batch,
        max_steps=steps,
        load_best_model_at_end=False,
        **QUIET,
        **more,
    )
