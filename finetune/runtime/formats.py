"""File formats by suffix, and escapes that keep a spreadsheet or a terminal from running untrusted
text.
"""

import contextlib
import re
from pathlib import Path

#: Suffixes of the files that training, ``evaluate --data`` and ``predict`` read.
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".arrow", ".feather", ".xlsx")
#: Suffixes of files with a word a line, and of others that have one if words are labelled.
WORDS, MAYBE_WORDS = (".conll", ".bio", ".iob"), (".txt", ".tsv")
FILES = (*TABLES, *WORDS)
SPREADSHEET = ".xlsx"
#: Suffixes of text files, which may be compressed.
TEXTS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".txt", *WORDS)
#: The usual separator of each format with fields, and the values of ``--csv_quoting``.
SEPARATORS = {".csv": ",", ".tsv": "\t"}
QUOTING = ("auto", "minimal", "none")
#: Characters that begin a formula, full-width forms included.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001
#: Control characters, characters that change the direction of text, and surrogates.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
COMPRESSIONS = (".gz", ".bz2", ".zst", ".zip")


def suffix(path: str | Path) -> str:
    """Return the suffix of a file in lower case, without the suffix of its compression: ``.csv``
    for ``tickets.CSV.gz``. Formats that may not be compressed keep both: ``.parquet.gz``.
    """
    outer = Path(path).suffix.lower()
    if outer not in COMPRESSIONS:
        return outer
    inner = Path(Path(path).stem).suffix.lower()
    if inner in TEXTS:
        return inner
    return inner + outer


def compression(path: str | Path) -> str:
    """Return the compression suffix of a file in lower case; empty if it is not compressed."""
    outer = Path(path).suffix.lower()
    if outer in COMPRESSIONS:
        return outer
    return ""


def stem(path: str | Path) -> str:
    """Return the name of a file without the suffixes of format and compression."""
    if compression(path):
        path = Path(path).stem
    return Path(path).stem


def escape_formula(cell: object) -> object:
    """Return ``cell`` with a leading ``'`` if a spreadsheet would run it as a formula (OWASP)."""
    if not isinstance(cell, str) or not cell.startswith(_FORMULAS):
        return cell
    with contextlib.suppress(ValueError):
        float(cell)
        return cell
    return f"'{cell}"


def visible(text: str, keep: str = "\n\t") -> str:
    r"""Return ``text`` with control and direction characters escaped, e.g. as ``\x1b``."""
    return _CONTROLS.sub(lambda m: m[0] if m[0] in keep else ascii(m[0])[1:-1], text)
