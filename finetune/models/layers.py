"""Keep some of the layers of a model, for a smaller and faster one."""

import copy
from dataclasses import replace
from operator import attrgetter
from textwrap import shorten

import numpy as np
from torch.nn import Module, ModuleList
from transformers import PreTrainedModel

from finetune.errors import UserError
from finetune.models import loaded_weights


def cut(model: PreTrainedModel, count: int | None) -> PreTrainedModel:
    """Return a model with ``count`` layers of ``model``, and all its other weights.

    The layers are evenly spaced from the first to the last: of 12 layers 0, 2, 4, 7, 9 and 11, with
    which DistilBERT was started (Sanh et al., 2019). The configuration says so; lists with an item
    for each layer, such as ``layer_types``, keep the items of these layers.

    Args:
        model: A classifier, which may be without weights, on the meta device.
        count: The number of layers; None for all.

    Raises:
        UserError: If the model has fewer layers, or not one list of layers that can be cut.
    """
    config = copy.deepcopy(model.config)
    text = config.get_text_config()
    total = getattr(text, "num_hidden_layers", 0)
    if count is None or count == total:
        return model
    flag = f"--layers {count}"
    if count > total > 0:
        raise UserError(f"{flag}: expected at most {total}, the model has {total} layers")
    numbers = np.linspace(0, total - 1, count).round().astype(int).tolist()
    try:
        stack = find_stack(model, total)
        for name, value in text.to_dict().items():
            if isinstance(value, (list, tuple)) and len(value) == total:
                setattr(text, name, [value[number] for number in numbers])
        text.num_hidden_layers = count
        type(config).from_dict(config.to_dict())  # as the saved model will be loaded
        # XLNet has a weight on the CPU that was made on the meta device
        device = max((weight.device for weight in model.parameters()), key=attrgetter("type"))
        with device:  # a new model, because modules read their number when they are made
            smaller: PreTrainedModel = type(model)(config).train(model.training)
        weights = {}
        for owner in (model, smaller):
            for name, weight in owner.state_dict().items():
                if name.startswith(f"{stack}.") == (owner is smaller):
                    weights[name] = weight
        smaller.load_state_dict(weights)
        for new, old in enumerate(numbers):
            layer = model.get_submodule(f"{stack}.{old}")
            new_layer = smaller.get_submodule(f"{stack}.{new}")
            new_layer.load_state_dict(layer.state_dict())
            _require_same(layer, new_layer, (old, new))
    except Exception as error:  # a configuration or a model may refuse another number in any way
        reason = shorten(str(error), 300)
        raise UserError(
            f"{flag}: not supported for a model of type '{config.model_type}': {reason}"
        ) from error
    sentence = f"{flag}: of layers 0 to {total - 1}, {', '.join(map(str, numbers))} are kept"
    marks = replace(loaded_weights.get(model), layers=sentence)
    setattr(smaller, loaded_weights.ATTRIBUTE, marks)
    return smaller


def find_stack(model: Module, total: int) -> str:
    """Return the name of the list of all layers of a model."""
    names: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, ModuleList) and len(module) == total:
            names.append(name)
    if len(names) == 1:
        return names[0]
    found = ", ".join(names) or "none"
    raise UserError(f"expected one list of num_hidden_layers = {total} layers, found {found}")


def _require_same(layer: Module, new_layer: Module, numbers: tuple[int, int]) -> None:
    """Require that two layers differ in their weights and their ``numbers`` only."""
    modules = zip(layer.named_modules(), new_layer.modules(), strict=True)
    for (name, module), new_module in modules:
        for attribute, value in vars(module).items():
            new_value = vars(new_module).get(attribute)
            is_plain = isinstance(value, (bool, int, float, str, list, tuple))
            if is_plain and value != new_value and (value, new_value) != numbers:
                raise UserError(
                    f"{name}.{attribute} would change from {value} to {new_value} in layer "
                    f"{numbers[0]}"
                )
