"""From a source to splits that a model can be trained on: read, label, check, split, tokenize."""
