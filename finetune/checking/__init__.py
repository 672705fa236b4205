"""Check rows before a model is trained on them: rows in, findings out."""
