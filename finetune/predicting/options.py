"""Options of a prediction, shared by the command line and :func:`finetune.predict`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from finetune.models import cpu
from finetune.runs.run import PREDICTIONS
from finetune.runtime.formats import QUOTING
from finetune.training.manifest import MANIFEST

#: Suffixes of the files that can be written.
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
CHOICES = {"csv_quoting": QUOTING, "precision": ("fp32", "bf16"), "cpu_kernels": cpu.CHOICES}
#: Options of a recipe that say how an input is read; those of the run by default.
READING = (
    *("text_column", "text_columns", "image_column"),
    *("csv_quoting", "csv_separator", "encoding", "sheet"),
)


@dataclass(frozen=True)
class Options:
    """Options of a prediction: those in :data:`READING`, and how it is computed and written.

    Attributes:
        all_probabilities: Whether to add the probability of every class.
        calibrated: Whether to divide logits by the temperature of the run.
        precision: ``fp32`` or ``bf16``; None for bf16 in text classification where the device
            supports it natively, else fp32.
        cpu_kernels: ``auto`` or ``off``; None for the setting of the training.
        batch_tokens: Tokens per batch, padding included; None for 1024 on a CPU, 65536 on a GPU.
        csv_safe: Whether to escape what a spreadsheet would run as a formula.
    """

    text_column: str | None = None
    text_columns: str | None = None
    image_column: str | None = None
    csv_quoting: str | None = None
    csv_separator: str | None = None
    encoding: str | None = None
    sheet: str | None = None
    all_probabilities: bool = False
    calibrated: bool = False
    precision: str | None = None
    cpu_kernels: str | None = None
    batch_tokens: int | None = None
    csv_safe: bool = False


def find_mistakes(
    options: Mapping[str, Any], source: str | Path = "", output: Path | None = None
) -> list[str]:
    """Return a line for each unknown option, invalid value, and reason against an output file."""
    names = [option.name for option in fields(Options)]
    mistakes = [
        f"unknown option '{name}' (available: {', '.join(names)})"
        for name in options
        if name not in names
    ]
    for name, choices in CHOICES.items():
        if options.get(name) not in (None, *choices):
            mistakes.append(f"--{name} {options[name]}: expected {' or '.join(choices)}")
    if (tokens := options.get("batch_tokens")) is not None and tokens < 1:
        mistakes.append(f"--batch_tokens {tokens}: expected 1 or more")
    if output is not None:
        folder, other = output.parent, Path(source).expanduser()
        if output.suffix not in SUFFIXES or output.is_dir() or not folder.is_dir():
            mistakes.append(
                f"--output {output}: expected a file ending in {', '.join(SUFFIXES)}, in a "
                "directory that exists"
            )
        elif (output.name == PREDICTIONS and (folder / MANIFEST).exists()) or (
            output.exists() and other.exists() and output.samefile(other)
        ):
            mistakes.append(f"--output {output} is the input or part of a run: name another file")
    return mistakes
