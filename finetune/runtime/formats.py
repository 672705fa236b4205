"""What the name of a file says of its format: rows as text or Arrow, compressed or not; and what
its beginning says of its name.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

#: Formats of rows that training, ``evaluate --data`` and ``predict`` read, by suffix.
FILES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".arrow", ".feather", ".xlsx")
#: One with sheets.
SPREADSHEET = ".xlsx"
#: Those that are text, of which a file may be compressed.
TEXTS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".txt")
#: What separates the fields of two of them, and how quotation marks are read in these.
SEPARATORS = {".csv": ",", ".tsv": "\t"}
QUOTING = ("auto", "minimal", "none")
#: With which a formula begins, also written in full width.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001
COMPRESSIONS = (".gz", ".bz2", ".zst", ".zip")
#: How files of other formats begin, by their suffix.
_BEGINNINGS = {
    b"\x1f\x8b": ".gz",
    b"BZh": ".bz2",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"PK\x03\x04": ".zip",
    b"PAR1": ".parquet",
}


def suffix(path: str | Path) -> str:
    """Return the suffix of a file in lower case, without that of a compression.

    ``tickets.CSV.gz`` is a ``.csv``; a compressed file that is no text keeps both, ``.parquet.gz``.
    """
    outer = Path(path).suffix.lower()
    if outer not in COMPRESSIONS:
        return outer
    inner = Path(Path(path).stem).suffix.lower()
    return inner if inner in TEXTS else f"{inner}{outer}"


def compression(path: str | Path) -> str:
    """Return the suffix of the compression of a file in lower case, empty of any other file."""
    outer = Path(path).suffix.lower()
    return outer if outer in COMPRESSIONS else ""


def renamed(path: Path) -> str:
    """Return what a file of text has to be called for what it begins with, such as ``a.csv.gz``;
    empty if that is its name, or not known.
    """
    with path.open("rb") as file:
        beginning = file.read(64)
    new_suffix = next(
        (each for start, each in _BEGINNINGS.items() if beginning.startswith(start)), ""
    )
    is_text = len(beginning) > 4 and all(byte > 8 for byte in beginning)
    if not (new_suffix or is_text):
        return ""
    uncompressed = path.with_suffix("") if compression(path) else path
    if new_suffix == ".zip" and uncompressed == path:
        return f"{path.name}.zip, or to {path.stem}.xlsx if it is a spreadsheet"
    keeps_suffix = new_suffix in ("", *COMPRESSIONS)
    new = f"{uncompressed.name if keeps_suffix else uncompressed.stem}{new_suffix}"
    return new if new.lower() != path.name.lower() else ""


def stem(path: str | Path) -> str:
    """Return the name of a file without these suffixes."""
    name = Path(Path(path).stem) if compression(path) else Path(path)
    return name.stem


def escape_formula(cell: Any) -> Any:
    """Return a cell that no spreadsheet runs, by the rule of OWASP; numbers stay as they are."""
    if not isinstance(cell, str) or not cell.startswith(_FORMULAS):
        return cell
    with contextlib.suppress(ValueError):
        float(cell)
        return cell
    return f"'{cell}"
