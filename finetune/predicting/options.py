"""Options of a prediction, shared by the command line and :func:`finetune.predict`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from finetune.errors import suggestion
from finetune.models import cpu
from finetune.runtime.formats import QUOTING


def _option(default: Any, **argument: Any) -> Any:
    return field(default=default, metadata=argument)


@dataclass(frozen=True)
class Options:
    """Options of a prediction; the metadata of a field are its ``argparse`` arguments."""

    text_column: str | None = _option(
        None,
        metavar="NAME",
        help="column with the text (default: the run's if INPUT has it, else text)",
    )
    text_columns: str | None = _option(
        None,
        metavar="NAMES",
        help="columns with the texts, where the run reads several (default: the run's): "
        "premise,hypothesis",
    )
    image_column: str | None = _option(
        None,
        metavar="NAME",
        help="column with the paths of images, relative to INPUT (default: the run's if INPUT has "
        "it, else image or file)",
    )
    csv_quoting: str | None = _option(
        None,
        choices=QUOTING,
        help="quotation marks in a .csv or .tsv: minimal, around fields; none, part of the text "
        "(default: the run's)",
    )
    csv_separator: str | None = _option(
        None,
        metavar="CHARACTER",
        help="what separates the fields of a .csv or .tsv, ';' or tab (default: detected)",
    )
    encoding: str | None = _option(
        None, metavar="NAME", help="encoding of a file of text (default: detected)"
    )
    sheet: str | None = _option(
        None, metavar="NAME", help="sheet of a spreadsheet (default: the first with rows)"
    )
    all_probabilities: bool = _option(
        False, action="store_true", help="add the probability of every class"
    )
    calibrated: bool = _option(
        False, action="store_true", help="divide logits by the temperature of the run"
    )
    precision: str | None = _option(
        None,
        choices=("fp32", "bf16"),
        help="precision of the computation (default: bf16 for text classification where the "
        "device supports it natively, else fp32)",
    )
    cpu_kernels: str | None = _option(
        None,
        choices=cpu.CHOICES,
        help="on a CPU: auto for the kernels of this toolkit, off for those of the libraries "
        "(default: as in training)",
    )
    batch_tokens: int | None = _option(
        None,
        type=int,
        metavar="N",
        help="tokens per batch, padding included (default: 1024 on a CPU, 65536 on a GPU)",
    )
    csv_safe: bool = _option(
        False,
        action="store_true",
        help="in .csv and .tsv output put an apostrophe before texts that a spreadsheet would run "
        "as a formula (those that begin with = + - @, a tab or a line break)",
    )


def find_mistakes(options: Mapping[str, Any]) -> list[str]:
    """Return a line for each unknown option and each invalid value."""
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
    return mistakes
