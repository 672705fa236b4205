"""The directory of a run and its files."""
