"""What the tutorials of Hugging Face tell people to write, and nothing else.

``Trainer`` with its default arguments and ``DataCollatorWithPadding`` (transformers, "Fine-tuning a
pretrained model"), or every text padded to the longest length that is allowed, as the tutorial's
loop in plain torch does it.
"""

from typing import Any

from datasets import Dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)


def trainer(
    model: str,
    rows: Dataset,
    max_length: int,
    padded: bool = False,
    callbacks: Any = None,
    **arguments: Any,
) -> Trainer:
    """Return a trainer of texts with labels.

    Args:
        model: Directory of a pretrained model.
        rows: With ``text`` and ``label``.
        max_length: In tokens.
        padded: To ``max_length`` from the start.
        callbacks: Of the trainer, to watch it.
        **arguments: Of ``TrainingArguments``: where and how long, the batch and the seed.
    """
    tokenizer = AutoTokenizer.from_pretrained(model)

    def tokenize(batch: dict[str, Any]) -> Any:
        padding = "max_length" if padded else False
        return tokenizer(batch["text"], padding=padding, truncation=True, max_length=max_length)

    return Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(model, num_labels=2),
        args=TrainingArguments(**arguments),
        train_dataset=rows.map(tokenize, batched=True),
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        callbacks=callbacks,
    )
