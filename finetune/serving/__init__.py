"""Serve the model of a run or an export over HTTP."""
