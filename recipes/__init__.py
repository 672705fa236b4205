"""Recipes: one readable page for each task. Copy one to make your own."""
