"""The files that `benchmarks/odd_files.py` writes are read as they were written."""

from pathlib import Path

import pytest

from benchmarks import odd_files
from finetune.data.sources import Source
from finetune.errors import Report

#: What is said of each.
TOLD = {
    "index_column.csv": ["left out the first column, without a name, which only numbers the rows"],
    "line_ends.csv": ["400 rows in 628 lines, as quoted fields contain line breaks"],
    "semicolons.csv": ["read as fields separated by semicolons (--csv_separator)"],
    "windows_1252.csv": ["read as cp1252, as in 'honoré' (--encoding)"],
    "utf_16.csv": [
        "read as utf-16, as in 'honoré' (--encoding), fields separated by tabs (--csv_separator)"
    ],
    "export.xlsx": [],
    "compressed.tsv.gz": [],
    "null_labels.jsonl": [],
}


def test_every_file_is_tested() -> None:
    assert list(odd_files.FILES) == list(TOLD)


@pytest.mark.parametrize("name", TOLD)
def test_what_is_read_is_what_was_written(name: str, tmp_path: Path) -> None:
    written = odd_files.FILES[name](tmp_path, odd_files.rows())
    assert not odd_files.differs(tmp_path / name, written)
    assert odd_files.differs(tmp_path / name, written.assign(body="x"))
    report = Report()
    Source(str(tmp_path / name)).load(report)
    assert report.sentences("info") == [f"{name}: {each}" for each in TOLD[name]]
