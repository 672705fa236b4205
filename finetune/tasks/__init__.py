"""Tasks: what a kind of label implies, each kind in one place; nobody else asks what kind it is."""
