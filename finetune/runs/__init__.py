"""The directory of a run, and what is written into it."""
