"""One more layer, through which the head of an encoder reads the mean of the last hidden states.

The heads of BERT and RoBERTa read the state of the first token. That of most encoders says less
about a text than the mean over all tokens, which sentence encoders are trained to be compared by.
The model stays one of ``transformers``: it has one more layer, and no other code or files.
"""

import copy
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from finetune.models import loaded_weights
from finetune.models.pretrained import FRESH_HEAD

#: Families whose layers add, then normalize, and whose head is a linear layer, tanh, and the last
#: layer, of the first state.
FAMILIES = ("bert", "camembert", "roberta", "xlm-roberta")
#: The weight of the mean; the token's own state, which is added to it, has weight 1.
_MEAN_WEIGHT = 100.0


def can_have(config: PretrainedConfig | None) -> bool:
    """Return whether a model with this configuration can have the layer; None is not known."""
    return config is not None and config.model_type in FAMILIES


def append(model: Any) -> PreTrainedModel:
    """Return a model with one more layer, all weights of ``model``, and this first state: the mean
    of the last hidden states of ``model`` over the tokens, with mean 0 and variance 1.

    The attention of the new layer is the same for every token, its values are the states, and what
    follows returns them unchanged. The hidden layer of the head starts as the identity.

    Args:
        model: A text classifier of one of :data:`FAMILIES`.
    """
    config = copy.deepcopy(model.config)
    config.num_hidden_layers += 1
    longer: PreTrainedModel = type(model)(config).train(model.training)
    longer.load_state_dict(longer.state_dict() | model.state_dict())
    base: Any = longer.base_model
    head: Any = base.pooler or longer.classifier
    layer = base.encoder.layer[-1]
    attention, after_attention = layer.attention.self, layer.attention.output.dense
    with torch.no_grad():
        linears = [attention.query, attention.value, after_attention, layer.output.dense]
        for linear in (*linears, head.dense):
            linear.weight.zero_()
            linear.bias.zero_()
        attention.value.weight.fill_diagonal_(1)
        after_attention.weight.fill_diagonal_(_MEAN_WEIGHT)
        head.dense.weight.fill_diagonal_(1)
    for name in (loaded_weights.ATTRIBUTE, FRESH_HEAD):
        setattr(longer, name, getattr(model, name, None))
    return longer
