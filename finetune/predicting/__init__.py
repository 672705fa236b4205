"""Predictions for files of any size: read in chunks, predicted by length, written in order."""

#: Of the files that can be written.
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
