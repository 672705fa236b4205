"""From what was typed to a recipe and its training arguments."""
