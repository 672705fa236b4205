"""STAND-IN until the reader lands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset

from finetune.data import conversion, files
from finetune.data.layout import ReadOptions as ReadOptions
from finetune.errors import Report, UserError
from finetune.runtime import formats


def read_file(path: Path, options: ReadOptions, report: Report) -> Dataset:
    if formats.suffix(path) not in formats.FILES:
        known = ", ".join(formats.FILES)
        raise UserError(
            f"cannot read {path}: expected a file ending in {known}{files.how_to_convert(path)}"
        )
    return conversion.rows(path, options, report.info)


def read_text(path: Path, options: ReadOptions) -> str:
    return files.whole(path, options)


def line_numbers(path: Path, rows: Sequence[int], options: ReadOptions) -> tuple[str, list[int]]:
    return files.positions(path, rows, conversion.layout(path, options))
