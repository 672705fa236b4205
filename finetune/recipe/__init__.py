"""Recipes: the contract, those of text and images, metrics, and the catalog that finds them."""

from finetune.recipe.base import Recipe
from finetune.recipe.image import ImageClassification
from finetune.recipe.options import option
from finetune.recipe.text import TextClassification

__all__ = ["ImageClassification", "Recipe", "TextClassification", "option"]
