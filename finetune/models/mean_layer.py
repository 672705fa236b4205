"""One more layer, through which the head of an encoder reads the mean of the last hidden states.

The heads of BERT and RoBERTa read the state of the first token. That of most encoders says less
about a text than the mean over all tokens, which sentence encoders are trained to be compared by.
The model stays one of ``transformers``: it has one more layer, and no other code or files.
"""

import copy

import torch
from transformers import PreTrainedModel

from finetune.errors import UserError

#: Families whose layers add, then normalize, and whose head is a linear layer, tanh, and the last
#: layer, of the first state.
FAMILIES = ("bert", "camembert", "roberta", "xlm-roberta")
#: How often the mean is in the state of a token, which has its own share once: so one percent.
_SHARE = 100.0
#: Of a state with variance 1, before the tanh of the head: nearly linear.
_SCALE = 1.0


def append(model: PreTrainedModel) -> PreTrainedModel:
    """Return a model with one more layer, all weights of ``model``, and this first state: the mean
    of the last hidden states of ``model`` over the tokens, with mean 0 and variance 1.

    The attention of the new layer is the same for every token, its values are the states, and what
    follows returns them unchanged. The hidden layer of the head starts as a multiple of the
    identity.

    Args:
        model: A classifier of texts.

    Raises:
        UserError: If the model is of another family.
    """
    config = copy.deepcopy(model.config)
    if config.model_type not in FAMILIES:
        raise UserError(
            f"--head mean: expected a model of the type {', '.join(FAMILIES)}, found "
            f"'{config.model_type}'; use --head probe"
        )
    config.num_hidden_layers += 1
    longer: PreTrainedModel = type(model)(config).train(model.training)
    longer.load_state_dict(longer.state_dict() | model.state_dict())
    base = getattr(longer, longer.base_model_prefix)
    layer = base.encoder.layer[-1]
    attention, normalized = layer.attention.self, layer.attention.output
    linear = (base.pooler or longer.classifier).dense
    with torch.no_grad():
        for module in (
            attention.query,
            attention.value,
            normalized.dense,
            layer.output.dense,
            linear,
        ):
            module.weight.zero_()
            module.bias.zero_()
        attention.value.weight.fill_diagonal_(1)
        normalized.dense.weight.fill_diagonal_(_SHARE)
        linear.weight.fill_diagonal_(_SCALE)
    return longer
