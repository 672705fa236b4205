"""Recipes: the contract, those of text and images, metrics, and the catalog that finds them."""

from finetune.recipe.base import Recipe
from finetune.recipe.options import option
from finetune.recipe.pretrained import ImageRecipe, TextRecipe

#: Their old names, which go in release 0.2.
ImageClassification, TextClassification = ImageRecipe, TextRecipe

__all__ = ["ImageRecipe", "Recipe", "TextRecipe", "option"]
