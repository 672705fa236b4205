"""Load models of ``transformers`` and change their heads; ``cpu/`` makes them fast on a CPU."""
