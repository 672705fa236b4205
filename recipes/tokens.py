"""Entities in texts: words with tags, as of CoNLL, or spans, as of Prodigy, without code.

python -m finetune tokens --dataset path/to/conll --model NAME       # train, dev and test files
python -m finetune tokens --dataset spans.jsonl --model embedded:minilm
torchrun --nproc_per_node=2 -m finetune tokens --dataset spans.jsonl --model NAME
"""

from finetune import TokenRecipe


class Tokens(TokenRecipe):
    """Entities in texts of your own, without code."""

    training = dict(global_batch_size=32)
