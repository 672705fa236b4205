"""One more layer, through which the head of an encoder reads the mean of the last hidden states.

The heads of BERT and RoBERTa read the state of the first token. That of most encoders says less
about a text than the mean over all tokens, which sentence encoders are trained to be compared by.
The model stays one of ``transformers``: it has one more layer, and no other code or files.
"""

import copy
from dataclasses import replace
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from finetune.models import layers, loaded_weights
from finetune.models.pretrained import FRESH_HEAD

#: The bias of a hidden layer before a ReLU or a GELU, which return numbers well above 0 unchanged:
#: few numbers of a state, whose variance is 1, are below -2. Dropout, which is next, multiplies the
#: bias, too, so it is no larger.
_BIAS = 2.0
#: Families whose layers add, then normalize, and whose head is a linear layer, an activation, and
#: the last layer, of the first state: the name of that linear layer, and its bias.
FAMILIES = {
    "bert": ("bert.pooler.dense", 0.0),
    "camembert": ("classifier.dense", 0.0),
    "deberta-v2": ("pooler.dense", _BIAS),
    "distilbert": ("pre_classifier", _BIAS),
    "electra": ("classifier.dense", _BIAS),
    "roberta": ("classifier.dense", 0.0),
    "xlm-roberta": ("classifier.dense", 0.0),
}
#: The weight of the mean; the token's own state, which is added to it, has weight 1.
_MEAN_WEIGHT = 100.0
#: The linear layers of the new layer that do not stay random, and what they multiply a state by.
#: Without queries, of tokens or of positions, the attention is the same for every token.
_FACTORS = {
    "attention.self.query": 0.0,
    "attention.self.value": 1.0,
    "attention.output.dense": _MEAN_WEIGHT,
    "output.dense": 0.0,
    # DeBERTa-v2, the rest as above
    "attention.self.query_proj": 0.0,
    "attention.self.pos_query_proj": 0.0,
    "attention.self.value_proj": 1.0,
    # DistilBERT
    "attention.q_lin": 0.0,
    "attention.v_lin": 1.0,
    "attention.out_lin": _MEAN_WEIGHT,
    "ffn.lin2": 0.0,
}


def can_have(config: PretrainedConfig | None) -> bool:
    """Return whether a model with this configuration can have the layer; None is not known."""
    if config is None or config.model_type not in FAMILIES:
        return False
    # of DeBERTa; a bias would saturate another activation
    return getattr(config, "pooler_hidden_act", "gelu") == "gelu"


def append(model: Any) -> PreTrainedModel:
    """Return a model with one more layer, all weights of ``model``, and this first state: the mean
    of the last hidden states of ``model`` over the tokens, with mean 0 and variance 1.

    The attention of the new layer is the same for every token, its values are the states, and what
    follows returns them unchanged. The hidden layer of the head starts as the identity, with a bias
    where its activation needs one.

    Args:
        model: A text classifier of one of :data:`FAMILIES`.
    """
    config = copy.deepcopy(model.config)
    config.num_hidden_layers += 1
    longer: PreTrainedModel = type(model)(config).train(model.training)
    longer.load_state_dict(longer.state_dict() | model.state_dict())
    stack = layers.find_stack(longer, config.num_hidden_layers)
    layer = longer.get_submodule(f"{stack}.{config.num_hidden_layers - 1}")
    for name, module in layer.named_modules():
        if name in _FACTORS:
            _multiply_by(module, _FACTORS[name])
    hidden, bias = FAMILIES[config.model_type]
    _multiply_by(longer.get_submodule(hidden), 1.0, bias)
    marks = replace(loaded_weights.get(model), identity={f"{hidden}.weight", f"{hidden}.bias"})
    setattr(longer, loaded_weights.ATTRIBUTE, marks)
    setattr(longer, FRESH_HEAD, getattr(model, FRESH_HEAD, None))
    return longer


def _multiply_by(linear: Any, factor: float, bias: float = 0.0) -> None:
    """Make a linear layer return ``inputs * factor + bias``, in place."""
    with torch.no_grad():
        linear.weight.zero_()
        linear.weight.fill_diagonal_(factor)
        linear.bias.fill_(bias)
