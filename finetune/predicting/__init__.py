"""Predict files of any size: read in chunks, predicted by length, written in order."""
