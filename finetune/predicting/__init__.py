"""Predict files of any size: read in chunks, predicted by length, written in order."""

#: Suffixes of the files that can be written.
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
