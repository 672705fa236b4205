"""Recipes: the contract, text recipes, their metrics, and the catalog that finds them."""

from finetune.recipe.base import Recipe
from finetune.recipe.options import option
from finetune.recipe.text import TextClassification

__all__ = ["Recipe", "TextClassification", "option"]
