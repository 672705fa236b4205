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
from finetune.models import families, head, pretrained
from finetune.models.pretrained import ProblemType, loading

SMALL = embedded.PREFIX + "vit"
_SIDE, _CHANNELS = 28, 3  # pixels; red, green and blue
_BATCH_NORMS = (
    *(torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d),
    torch.nn.SyncBatchNorm,
)
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
    """Return the image processor of ``model``, on Pillow also where torchvision is installed.

    Args:
        model: See :func:`load_classifier`.
        revision: Likewise.

    Raises:
        UserError: if it cannot be loaded, or there is none on Pillow.
    """
    if model == SMALL:
        from transformers import ViTImageProcessorPil

        half = [0.5] * 3
        size = {"height": _SIDE, "width": _SIDE}
        return ViTImageProcessorPil(size=size, image_mean=half, image_std=half)
    with loading(model, revision) as source:
        auto: Any = AutoImageProcessor  # which has no annotations
        processor: BaseImageProcessor = auto.from_pretrained(**source, backend="pil")
    return processor


def load_config(
    model: str, labels: Sequence[str] = (), revision: str | None = None
) -> PretrainedConfig:
    """Return the configuration of ``model`` for a head with these labels.

    Args:
        model: A name on the Hub, or a directory.
        labels: Names of the classes.
        revision: Commit, tag or branch on the Hub; the newest if None.

    Raises:
        UserError: If it cannot be loaded, or its family does not classify images.
    """
    head: dict[str, Any] = {
        "num_labels": len(labels),
        "id2label": dict(enumerate(labels)),
        "label2id": {name: index for index, name in enumerate(labels)},
    }
    if model == SMALL:
        config: PretrainedConfig = AutoConfig.for_model("vit", **_SMALL, **head)
        return config
    config = pretrained.load_config(model, revision, **(head if labels else {}))
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
    config = load_config(model, labels, revision)
    if problem_type is not None:
        config.problem_type = problem_type
    if model == SMALL:
        auto: Any = AutoModelForImageClassification  # which has no annotations
        classifier: PreTrainedModel = auto.from_config(config)
    else:
        with loading(model, revision) as source:
            classifier = AutoModelForImageClassification.from_pretrained(
                **source, config=config, dtype=torch.float32, ignore_mismatched_sizes=True
            )
        trained = families.outputs_of_head(pretrained.load_config(model, revision))
        head.continue_head(classifier, trained, labels)
    # As in `pretrained.load_classifier`: Trainer reads its own checkpoints without renaming.
    classifier._weight_conversions = []  # type: ignore[assignment]
    return classifier


def batch_norms(model: torch.nn.Module) -> int:
    """Return how many layers normalise by the statistics of the micro-batch."""
    return sum(isinstance(module, _BATCH_NORMS) for module in model.modules())
