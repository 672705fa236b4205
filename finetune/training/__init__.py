"""Training and exact evaluation of the parts of a recipe; it never sees the recipe itself."""
