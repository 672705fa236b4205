"""Exports of runs: ONNX models that answer without torch, checked against their run."""
