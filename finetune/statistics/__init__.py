"""Numbers about predictions: arrays in, intervals, calibration, comparisons and baselines out."""
