"""What the user looks at after a run: the report, its plots and the model card."""
