"""Compare a loaded model with its checkpoint: weights that are new, not used, or lost.

``from_pretrained`` fills weights that the checkpoint lacks with random numbers, and only logs it.
New weights outside of layers and embeddings, like the pooler of a base from masked-language
modeling, are normal: they are trained, also with ``--adapter`` and ``--freeze``.
"""

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch

from finetune.data.labels import list_names
from finetune.errors import UserError

#: Names of embeddings, and of weights in a numbered layer. A base has learned them.
EMBEDDINGS = re.compile(r"(^|\.)(\w*embed\w*|wte|wpe|shared)(\.|$)")
_LAYER = re.compile(r"\.\d+\.")
#: The attribute of a model that has its :class:`LoadedWeights`.
ATTRIBUTE = "_loaded_weights"


@dataclass(frozen=True)
class LoadedWeights:
    """The names of weights that loading created or left out.

    Attributes:
        new: Weights with random values, outside of the head.
        unused: Weights of the checkpoint that the model does not have.
        has_new_head: Whether the last layer was created by loading.
        layers: A sentence about the layers that are kept; empty if all are.
        identity: Weights that are new, and not random: the layer returns its inputs.
    """

    new: frozenset[str] = frozenset()
    unused: frozenset[str] = frozenset()
    has_new_head: bool = False
    layers: str = ""
    identity: Set[str] = frozenset()

    def notes(self) -> list[str]:
        """Return sentences about layers that are left out, new weights and unused weights."""
        sentences = [self.layers] if self.layers else []
        random = self.new - self.identity
        if random:
            sentences.append(f"new weights, trained from random values: {_modules(random)}")
        if self.unused:
            sentences.append(
                f"weights of the checkpoint that are not used: {_modules(self.unused)}"
            )
        return sentences


def compare(
    model: torch.nn.Module,
    name: str,
    last_layer: torch.nn.Module | None,
    info: Mapping[str, Any],
    *,
    is_run: bool,
) -> LoadedWeights:
    """Return what loading created or left out, which :func:`get` returns again for the model.

    Args:
        model: The loaded model.
        name: The value of ``--model``, or the directory of a run.
        last_layer: The layer that returns the logits, if it is known.
        info: The loading info of ``from_pretrained``.
        is_run: Whether a run has saved the model, so that not even the head may be new.

    Raises:
        UserError: If weights are lost: of a base, those of layers and embeddings.
    """
    weights = {key for key, tensor in model.state_dict().items() if tensor.is_floating_point()}
    shapes = {key: sizes for key, *sizes in info["mismatched_keys"]}
    created = (info["missing_keys"] & weights) | shapes.keys()
    last_names = set()
    if last_layer is not None:
        last_weights = set(last_layer.parameters())
        last_names = {key for key, weight in model.named_parameters() if weight in last_weights}
    heads = {key.partition(".")[0] for key in last_names}
    new = {key for key in created if key.partition(".")[0] not in heads}
    lost = created
    if not is_run:
        lost = {key for key in new if EMBEDDINGS.search(key) or _LAYER.search(key) or key in shapes}
    if lost:
        example = min(lost)
        reason = f"{example} is missing in its weights"
        if example in shapes:
            stored_size, size = (" x ".join(map(str, dimensions)) for dimensions in shapes[example])
            reason = f"{example} is {stored_size} in its weights, and {size} by its config.json"
        raise UserError(
            f"--model {name}: expected weights for all layers and embeddings, found none for "
            f"{len(lost):,} of {len(weights):,}, which would be random: {reason}. Save the model "
            "again by save_pretrained of the class that it was trained with, or copy the run again"
        )
    loaded = LoadedWeights(
        frozenset(new), frozenset(info["unexpected_keys"]), bool(created & last_names)
    )
    setattr(model, ATTRIBUTE, loaded)
    return loaded


def get(model: torch.nn.Module) -> LoadedWeights:
    """Return the result of :func:`compare` for a model; nothing is new in other models."""
    loaded: LoadedWeights = getattr(model, ATTRIBUTE, LoadedWeights())
    return loaded


def _modules(names: Iterable[str]) -> str:
    """Return the names of the modules that have the weights, for messages."""
    return list_names(sorted({name.rpartition(".")[0] for name in names}))
