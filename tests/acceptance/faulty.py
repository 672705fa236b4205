"""A recipe that injects faults: a signal, a loss that is not finite, out of memory, and others.

`FAULT` is `PLACE,ACTION[,RANK[,ATTEMPT]]`, several separated by `;`. A place is `preparation`,
`start` (of the training), `step N` (in the forward pass of the step), `loss N`, `end of step N`,
`end of epoch N`, `batch N` (of the evaluations) or `save N` (between the weights and the optimizer
of the checkpoint). Steps, batches and saves are counted from the start of the process. `ROWS` is a
directory to which the rows of each step are written.
"""

import contextlib
import copy
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from finetune import TextRecipe

#: The timeout in seconds of a process that waits for a signal.
PATIENCE = 120
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


class Faulty(TextRecipe):
    """Nine steps in each epoch, a checkpoint after every third step."""

    training = dict(
        global_batch_size=16,
        learning_rate=3e-3,
        num_train_epochs=2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="steps",
        save_steps=3,
        save_total_limit=9,
        metric_for_best_model="loss",
        precision="fp32",
        num_threads=1,
        baseline=False,
        disable_tqdm=True,
    )

    def prepare(self, dataset: Any) -> Any:
        prepared = super().prepare(dataset)
        act("preparation")
        return prepared

    def processing_class(self) -> Any:
        tokenizer, saves = copy.copy(super().processing_class()), []
        save = tokenizer.save_pretrained

        def save_pretrained(*args: Any, **options: Any) -> Any:
            saves.append(args)
            act(f"save {len(saves)}")
            return save(*args, **options)

        tokenizer.save_pretrained = save_pretrained
        return tokenizer

    def adapt(self, model: Any, arguments: Any) -> Any:
        self.passes = {True: 0, False: 0}
        self.accumulation = arguments.gradient_accumulation_steps
        model = super().adapt(model, arguments)
        model.register_forward_pre_hook(self.before_forward, with_kwargs=True)
        return model

    def trainer_kwargs(self, model: Any = None, arguments: Any = None) -> dict[str, Any]:
        return {**super().trainer_kwargs(model, arguments), "callbacks": [Places()]}

    @property
    def step(self) -> int:
        return (self.passes[True] - 1) // self.accumulation + 1

    def before_forward(self, model: Any, args: Any, batch: dict[str, Any]) -> None:
        self.passes[model.training] += 1
        if model.training and "ROWS" in os.environ:
            rows = zip(batch["input_ids"].tolist(), batch["attention_mask"].tolist(), strict=True)
            tokens = [ids[: sum(mask)] for ids, mask in rows]
            path = Path(os.environ["ROWS"], f"rank{os.environ.get('RANK', '0')}.jsonl")
            with path.open("a") as file:
                file.write(json.dumps([self.step, tokens]) + "\n")
        act(f"step {self.step}" if model.training else f"batch {self.passes[False]}")

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        losses = super().loss(logits, labels)
        if logits.requires_grad:
            for action in actions(f"loss {self.step}"):
                if action == "gradient":  # the loss stays finite
                    logits.register_hook(lambda gradient: gradient * float("inf"))
                else:
                    losses = losses + float(action)
        return losses


class Places(TrainerCallback):
    """Act at the places between the steps."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        act("start")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        act(f"end of step {state.global_step}")

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        act(f"end of epoch {round(state.epoch)}")


def actions(place: str) -> list[str]:
    """Return the actions of `FAULT` for this process at a place."""
    now = [os.environ.get("RANK", "0"), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")]
    faults = [fault.split(",") for fault in os.environ.get("FAULT", "").split(";")]
    return [
        fault[1] for fault in faults if fault[0] == place and all(map(str.__eq__, fault[2:], now))
    ]


def act(place: str) -> None:
    """Run the actions of `FAULT` at a place."""
    for action in actions(place):
        if action.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, action))
        elif action == "wait":
            wait_for_signal()
        elif action == "hang":
            time.sleep(PATIENCE)
        elif action == "hold":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(12)
        elif action == "until ready":
            wait_for_file()
        elif action == "pause":
            time.sleep(2.5)
        elif action == "remove":
            shutil.rmtree(os.environ["DISK"])
        elif action.startswith("fill"):
            fill(Path(os.environ["DISK"]), int(action.removeprefix("fill but ")))
        elif action == "memory":
            torch.empty(1 << 50)
        elif action == "python memory":
            bytearray(1 << 60)
        elif action == "raise":
            raise ValueError(f"broken at {place}")


def fill(disk: Path, free: int) -> None:
    """Write a file until the disk is full, but for so many bytes."""
    with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    os.truncate(disk / "filler", (disk / "filler").stat().st_size - free)


def wait_for_file() -> None:
    """Wait until the file `READY` exists."""
    end = time.monotonic() + PATIENCE
    while not Path(os.environ["READY"]).exists() and time.monotonic() < end:
        time.sleep(0.01)


def wait_for_signal() -> None:
    """Write the file `READY` and wait until a signal arrives."""
    arrived: list[int] = []

    def note(number: int, frame: Any) -> None:
        arrived.append(number)
        handlers[number](number, frame)

    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, note)
    Path(os.environ["READY"]).touch()
    end = time.monotonic() + PATIENCE
    while not arrived and time.monotonic() < end:
        time.sleep(0.01)
    for number, handler in handlers.items():
        signal.signal(number, handler)
