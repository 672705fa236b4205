"""What a run survives, broken from outside."""
