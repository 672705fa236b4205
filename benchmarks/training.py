"""Steps of the stock script, of the toolkit and of the toolkit of another tree, in turns.

The stock script is what the tutorials of Hugging Face say: ``Trainer`` with its default arguments
and ``DataCollatorWithPadding``.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turns import ROOT, Turns, Work, take

#: Nothing but steps is timed.
QUIET: dict[str, Any] = dict(
    save_strategy="no",
    eval_strategy="no",
    logging_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
#: Embedded texts, the tokens that they are truncated to, and the steps of a turn.
CASES = {"long reviews": ("imdb", 256, 8), "sentences": ("rotten-tomatoes", 64, 32)}
BATCH = 32


def measure(rounds: int, other: Path | None) -> list[dict[str, Any]]:
    """Return a line for each way; two processes have one core each."""
    lines = []
    with tempfile.TemporaryDirectory() as directory:
        for name, (data, max_length, steps) in CASES.items():
            file = Path(directory) / f"{data}.parquet"
            write_rows(data, BATCH * steps, file)
            job = (str(file), max_length, steps)
            ways = {"stock": [Work(stock, job)], "toolkit": [Work(toolkit, job)]}
            if other:
                ways["toolkit of the other tree"] = [Work(toolkit, job, other)]
            lines += compared(f"training, {name}", take(ways, rounds, warm_up=1), BATCH * steps)
            pairs = {"toolkit": ROOT} | ({"toolkit of the other tree": other} if other else {})
            # below those that the system gives to whoever asks for any
            ports = (20_000 + os.getpid() % 10_000, 30_000 + os.getpid() % 2_000)
            ways = {
                way: [Work(toolkit, (*job, rank, port), tree) for rank in (0, 1)]
                for port, (way, tree) in zip(ports, pairs.items(), strict=False)
            }
            ways = {"one process of one core": [Work(toolkit, (*job, 0, 0))]} | ways
            title = f"training in two processes, {name}"
            lines += compared(title, take(ways, rounds, warm_up=1), BATCH * steps)
    return lines


def compared(case: str, turns: dict[str, Turns], rows: int) -> list[dict[str, Any]]:
    """Return a line of speed and memory for each way, against the first."""
    base = next(iter(turns.values()))
    return [
        {
            "case": case,
            "way": name,
            "rows/s": rows / way.seconds,
            "times the first": 1 / way.ratio(base),
            "times, processor": base.processor_seconds / way.processor_seconds,
            "MiB": way.memory,
            "of its memory": way.memory / base.memory,
        }
        for name, way in turns.items()
    ]


def write_rows(data: str, rows: int, file: Path) -> None:
    """Write that many distinct embedded texts with their labels, drawn by a seed."""
    from finetune.data import embedded

    table = embedded.read(f"embedded:{data}")["train"].to_pandas()[["text", "label"]]
    table.drop_duplicates("text").sample(rows + 200, random_state=1).to_parquet(file)


def stock(file: str, max_length: int, steps: int) -> Callable[[], float]:
    """Return the steps of the tutorial's script."""
    trainer = stock_trainer(
        file,
        max_length,
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=BATCH,
        max_steps=steps,
        **QUIET,
    )
    return lambda: float(trainer.train().training_loss)


def stock_trainer(file: str, max_length: int, callbacks: Any = None, **arguments: Any) -> Any:
    """Return the trainer of the tutorial's script over a Parquet file."""
    from datasets import load_dataset
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    from finetune.data import embedded

    model = str(embedded.model_directory())
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = load_dataset("parquet", data_files=file, split="train")
    return Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(model, num_labels=2),
        args=TrainingArguments(**arguments),
        train_dataset=rows.map(
            lambda batch: tokenizer(batch["text"], truncation=True, max_length=max_length),
            batched=True,
        ),
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        callbacks=callbacks,
    )


def toolkit(
    file: str, max_length: int, steps: int, rank: int | None = None, port: int = 0
) -> Callable[[], float]:
    """Return the same of a recipe with its defaults; by one of two processes with a port."""
    one_core: dict[str, Any] = {} if rank is None else {"num_threads": 1, "use_cpu": True}
    if port:
        values = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
        values |= {"MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1"}
        os.environ |= {name: str(value) for name, value in values.items()}
    from finetune import TextRecipe

    recipe = TextRecipe(
        dataset=file, model="embedded:minilm", max_length=max_length, eval_samples=100
    )
    trainer = recipe.trainer(
        output_dir=tempfile.mkdtemp(),
        global_batch_size=BATCH,
        max_steps=steps,
        load_best_model_at_end=False,
        **QUIET,
        **one_core,
    )
    return lambda: float(trainer.train().training_loss)
