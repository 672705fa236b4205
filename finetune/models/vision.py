"""Image processors and image classifiers of ``transformers``, from the Hub or a local directory.

``embedded:vit`` is a small Vision Transformer that is built from a configuration: it needs no
download and has learned nothing yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageClassification,
    BaseImageProcessor,
    PretrainedConfig,
    PreTrainedModel,
)

from finetune.data import embedded
from finetune.errors import UserError
from finetune.models import pretrained
from finetune.models.pretrained import ProblemType

SMALL = embedded.PREFIX + "vit"
_SIDE, _CHANNELS = 28, 3  # pixels; red, green and blue
_SMALL = dict(
    image_size=_SIDE,
    patch_size=7,
    hidden_size=96,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=192,
    initializer_range=0.1,  # it starts from nothing: with 0.02 it learns half as fast
)


def load_processor(model: str, revision: str | None = None) -> BaseImageProcessor:
    """Return the image processor of ``model``, on Pillow also where torchvision is installed; named
    and pinned as for :func:`load_classifier`.

    Raises:
        UserError: if it cannot be loaded, or there is none on Pillow.
    """
    if model == SMALL:
        from transformers import ViTImageProcessorPil

        half = [0.5] * 3
        size = {"height": _SIDE, "width": _SIDE}
        return ViTImageProcessorPil(size=size, image_mean=half, image_std=half)
    auto: Any = AutoImageProcessor  # which has no annotations
    with pretrained.loading(model, revision) as source:
        processor: BaseImageProcessor = auto.from_pretrained(**source, backend="pil")
    return processor


def load_config(model: str, revision: str | None = None, **changes: Any) -> PretrainedConfig:
    """Return the configuration of ``model``, with some attributes set.

    Raises:
        UserError: If it cannot be loaded, or its family does not classify images.
    """
    if model == SMALL:
        config: PretrainedConfig = AutoConfig.for_model("vit", **_SMALL, **changes)
        return config
    config = pretrained.load_config(model, revision, **changes)
    if type(config) not in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
        raise UserError(
            f"--model {model}: a model of type '{config.model_type}' does not classify images; "
            f"expected one like ViT, DeiT, Swin, ConvNeXT or ResNet, or {SMALL}"
        )
    if (channels := getattr(config, "num_channels", _CHANNELS)) != _CHANNELS:
        raise UserError(
            f"--model {model}: it takes images of {channels} channels; images are read as RGB, "
            f"which has {_CHANNELS}"
        )
    return config


def load_classifier(
    model: str,
    labels: Sequence[str],
    revision: str | None = None,
    problem_type: ProblemType | None = None,
) -> PreTrainedModel:
    """Return ``model`` with a head for these labels, in fp32 whatever the checkpoint says.

    Args:
        model: A name on the Hub, a local directory, or ``embedded:vit``.
        labels: The names of the classes; they go into the configuration, for ``pipeline()``. A head
            that was trained for the same names is continued, one for others is replaced.
        revision: Commit, tag or branch on the Hub; the newest if None.
        problem_type: Goes into the configuration, or None for what is there.

    Raises:
        UserError: if the model cannot be loaded, or does not classify images.
    """
    config = load_config(model, revision, **pretrained.outputs(labels, problem_type))
    auto: Any = AutoModelForImageClassification  # which has no annotations
    if model == SMALL:
        classifier: PreTrainedModel = auto.from_config(config)
        return classifier
    return pretrained.load_with_head(auto, model, config, revision)


def batch_norms(model: torch.nn.Module) -> int:
    """Return how many layers normalise by the statistics of the micro-batch."""
    return sum(
        isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in model.modules()
    )
