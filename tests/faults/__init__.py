"""What a run survives, each tried from outside."""
