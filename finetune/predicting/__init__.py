"""From rows to logits, with torch or with the files of an export and an engine.

Reading an export imports neither torch nor transformers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

#: Options of a recipe that say how a file of rows is read; those of the run by default.
FILES = ("csv_quoting", "csv_separator", "encoding", "sheet")
#: These, and the options that name the columns to read.
READING = ("text_column", "text_columns", "image_column", *FILES)


@dataclass(frozen=True)
class Options:
    """Options of a prediction: those in :data:`READING`, and how it is computed and written."""

    text_column: str | None = None
    text_columns: str | Sequence[str] | None = None
    image_column: str | None = None
    csv_quoting: Literal["auto", "minimal", "none"] | None = None
    csv_separator: str | None = None
    encoding: str | None = None
    sheet: str | None = None
    all_probabilities: bool = False  # adds the probability of every class
    calibrated: bool = False  # divides logits by the temperature of the run
    #: None for bf16 in text classification where native, else fp32
    precision: Literal["fp32", "bf16"] | None = None
    cpu_kernels: Literal["auto", "off"] | None = None  # None for the setting of the training
    batch_tokens: int | None = None  # with padding; None for 1024 on a CPU, 65536 on a GPU
    csv_safe: bool = False  # escapes what a spreadsheet would run as a formula
    engine: str | None = None  # of :mod:`finetune.exporting`; None for torch
