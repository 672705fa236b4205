"""Models of ``transformers``: loading them, and in ``cpu/`` what makes them fast on a CPU."""
