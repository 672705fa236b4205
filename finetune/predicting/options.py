"""Options of a prediction, shared by the command line and :func:`finetune.predict`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from finetune.errors import suggestion
from finetune.models import cpu
from finetune.runs.run import PREDICTIONS
from finetune.runtime.formats import QUOTING
from finetune.training.manifest import MANIFEST

#: Suffixes of the files that can be written.
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")


def _option(default: Any, help: str, **argument: Any) -> Any:
    return field(default=default, metadata={"help": help, **argument})


def _name(help: str) -> Any:
    return _option(None, help, metavar="NAME")


def _flag(help: str) -> Any:
    return _option(False, help, action="store_true")


@dataclass(frozen=True)
class Options:
    """Options of a prediction; the metadata of a field are its ``argparse`` arguments."""

    text_column: str | None = _name(
        "column with the text (default: the run's if INPUT has it, else text)"
    )
    text_columns: str | None = _name(
        "columns with the texts, where the run reads several (default: the run's): "
        "premise,hypothesis"
    )
    image_column: str | None = _name(
        "column with the paths of images, relative to INPUT (default: the run's if INPUT has it, "
        "else image or file)"
    )
    csv_quoting: str | None = _option(
        None,
        "quotation marks in a .csv or .tsv: minimal, around fields; none, part of the text "
        "(default: the run's)",
        choices=QUOTING,
    )
    csv_separator: str | None = _name(
        "what separates the fields of a .csv or .tsv, ';' or tab (default: detected)"
    )
    encoding: str | None = _name("encoding of a file of text (default: detected)")
    sheet: str | None = _name("sheet of a spreadsheet (default: the first with rows)")
    all_probabilities: bool = _flag("add the probability of every class")
    calibrated: bool = _flag("divide logits by the temperature of the run")
    precision: str | None = _option(
        None,
        "precision of the computation (default: bf16 for text classification where the device "
        "supports it natively, else fp32)",
        choices=("fp32", "bf16"),
    )
    cpu_kernels: str | None = _option(
        None,
        "on a CPU: auto for the kernels of this toolkit, off for those of the libraries (default: "
        "as in training)",
        choices=cpu.CHOICES,
    )
    batch_tokens: int | None = _option(
        None,
        "tokens per batch, padding included (default: 1024 on a CPU, 65536 on a GPU)",
        type=int,
        metavar="N",
    )
    csv_safe: bool = _flag(
        "in .csv and .tsv output put an apostrophe before texts that a spreadsheet would run as a "
        "formula (those that begin with = + - @, a tab or a line break)"
    )


def find_mistakes(
    options: Mapping[str, Any], source: str | Path = "", output: str | Path | None = None
) -> list[str]:
    """Return a line for each unknown option, invalid value, and reason against an output file."""
    names = [option.name for option in fields(Options)]
    mistakes = [
        f"unknown option '{name}'{suggestion(name, names)} (available: {', '.join(names)})"
        for name in options
        if name not in names
    ]
    for option in fields(Options):
        value, choices = options.get(option.name), option.metadata.get("choices")
        if choices and value not in (None, *choices):
            mistakes.append(f"--{option.name} {value}: expected {' or '.join(choices)}")
    if (tokens := options.get("batch_tokens")) is not None and tokens < 1:
        mistakes.append(f"--batch_tokens {tokens}: expected 1 or more")
    if output is None:
        return mistakes
    path, other = Path(output).expanduser(), Path(source).expanduser()
    if path.suffix not in SUFFIXES:
        mistakes.append(f"--output {output}: expected a file ending in {', '.join(SUFFIXES)}")
    if path.is_dir() or not path.parent.is_dir():
        mistakes.append(f"--output {output}: expected a file in a directory that exists")
    if path.name == PREDICTIONS and (path.parent / MANIFEST).exists():
        mistakes.append(f"--output {output} holds the test predictions of a run: name another file")
    if path.exists() and other.exists() and path.samefile(other):
        mistakes.append(f"--output {output} is the input: name another file")
    return mistakes
