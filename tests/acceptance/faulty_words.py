"""The recipe `faulty.py` for words with labels."""

from finetune import TokenRecipe
from tests.acceptance.faulty import Faulty


class FaultyWords(TokenRecipe, Faulty):
    """Nine steps in each epoch, a checkpoint after every third step."""

    training = Faulty.training
