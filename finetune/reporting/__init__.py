"""What a person looks at once a run is over: the report, its plots, the model card."""
