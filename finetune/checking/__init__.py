"""What is wrong or suspicious in rows, before a model is trained on them: rows in, findings out."""
