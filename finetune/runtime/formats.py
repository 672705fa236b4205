"""What the name of a file says of its format: rows as text or Arrow, compressed or not; and text
from elsewhere that a spreadsheet or a terminal must show, not run.
"""

import contextlib
import re
from pathlib import Path

#: Formats of rows that training, ``evaluate --data`` and ``predict`` read, by suffix.
FILES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".arrow", ".feather", ".xlsx")
SPREADSHEET = ".xlsx"
#: Formats of text, of which a file may be compressed.
TEXTS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".txt")
#: What separates the fields of two of them, and how quotation marks are read in these.
SEPARATORS = {".csv": ",", ".tsv": "\t"}
QUOTING = ("auto", "minimal", "none")
#: With which a formula begins, also written in full width.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001
#: What moves the cursor, changes colours or reverses text, and halves of characters.
_COMMANDS = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
COMPRESSIONS = (".gz", ".bz2", ".zst", ".zip")


def suffix(path: str | Path) -> str:
    """Return the suffix of a file in lower case, without that of a compression: ``.csv`` of
    ``tickets.CSV.gz``. A compressed file that is no text keeps both, ``.parquet.gz``.
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


def stem(path: str | Path) -> str:
    """Return the name of a file without these suffixes."""
    return Path(Path(path).stem if compression(path) else path).stem


def escape_formula(cell: object) -> object:
    """Return a cell that no spreadsheet runs, by the rule of OWASP; numbers stay as they are."""
    if not isinstance(cell, str) or not cell.startswith(_FORMULAS):
        return cell
    with contextlib.suppress(ValueError):
        float(cell)
        return cell
    return f"'{cell}"


def visible(text: str, keep: str = "\n\t") -> str:
    r"""Return ``text`` with control and direction characters escaped, like ``\x1b``."""
    return _COMMANDS.sub(lambda m: m[0] if m[0] in keep else ascii(m[0])[1:-1], text)
