"""Recipes: the base class, text, token and image recipes, their metrics, and how they are found."""

from finetune.recipe.base import Recipe
from finetune.recipe.options import option
from finetune.recipe.pretrained import ImageRecipe, TextRecipe
from finetune.recipe.tokens import TokenRecipe

#: Deprecated names, to be removed in release 0.2.
ImageClassification, TextClassification = ImageRecipe, TextRecipe

__all__ = ["ImageRecipe", "Recipe", "TextRecipe", "TokenRecipe", "option"]
