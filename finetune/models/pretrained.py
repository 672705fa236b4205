"""Models, tokenizers and image processors of ``transformers``: from the Hub, a local directory or
an installed package.

``embedded:minilm`` is an encoder of texts. ``embedded:vit`` is a small Vision Transformer that is
built from a configuration: it needs no download and has learned nothing yet.
"""

import json
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

import torch
from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError
from safetensors.torch import load_model
from transformers import (
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BaseImageProcessor,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    logging,
)

from finetune.data import embedded
from finetune.errors import UserError
from finetune.models import families, head
from finetune.runtime import hub

#: What ``transformers`` calls kinds of labels.
ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]
#: Set on a model whose last layer is random: no checkpoint had it, or with another size.
FRESH_HEAD = "_has_fresh_head"
_SMALL_VIT = embedded.PREFIX + "vit"
_SIDE = 28  # pixels of its images


def load_config(model: str, revision: str | None = None, **changes: Any) -> PretrainedConfig:
    """Return the configuration of ``model``, named and pinned as for :func:`load_classifier`.

    Raises:
        UserError: If it cannot be loaded, or asks for code from the Hub.
    """
    with loading(model, revision) as source:
        config: PretrainedConfig = AutoConfig.from_pretrained(**source, **changes)
    if "/" in str(config._attn_implementation):
        raise UserError(
            f"--model {model}: its config.json asks for code from the Hub, attn_implementation "
            f"'{config._attn_implementation}', which is not run: take it out of config.json"
        )
    return config


def load_tokenizer(
    model: str,
    revision: str | None = None,
    truncation_side: str = "right",
    max_length: int | None = None,
) -> PreTrainedTokenizerBase:
    """Return the tokenizer of ``model``, named and pinned as for :func:`load_classifier`.

    Texts are cut at the end or, with the ``truncation_side`` ``left``, at the beginning, to
    ``max_length`` tokens (None: what the tokenizer says). Both are saved with the tokenizer, so
    that a ``pipeline()`` cuts where the training did.

    Raises:
        UserError: If it cannot be loaded, no file has its vocabulary, or no token pads.
    """
    config = load_config(model, revision)
    settings = families.tokenizer_settings(config)
    if max_length is not None:
        settings["model_max_length"] = max_length
    with loading(model, revision) as source:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            **source, truncation_side=truncation_side, **settings
        )
    # without any file transformers 5 makes a tokenizer of special tokens and at most "▁"
    if len(tokenizer) <= len(tokenizer.all_special_tokens) + 1:
        raise UserError(
            f"--model {model}: no file of a tokenizer is there, like tokenizer.json, vocab.txt or "
            "spiece.model. Save the tokenizer that the model was trained with beside its "
            f"config.json: AutoTokenizer.from_pretrained(NAME).save_pretrained({model!r})"
        )
    pad_token_id: Any = config.get_text_config().pad_token_id
    if tokenizer.pad_token is None and pad_token_id in range(len(tokenizer)):
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(pad_token_id)
    elif tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token is None:
        raise UserError(
            f"--model {model}: its tokenizer has no padding token, and none that ends a text; "
            "add pad_token to its tokenizer_config.json"
        )
    return tokenizer


def load_processor(model: str, revision: str | None = None) -> BaseImageProcessor:
    """Return the image processor of ``model``, on Pillow also where torchvision is installed.

    Raises:
        UserError: If it cannot be loaded, or there is none on Pillow.
    """
    if model == _SMALL_VIT:
        from transformers import ViTImageProcessorPil

        half = [0.5, 0.5, 0.5]  # of red, green and blue
        size = {"height": _SIDE, "width": _SIDE}
        return ViTImageProcessorPil(size=size, image_mean=half, image_std=half)
    auto: Any = AutoImageProcessor  # which has no annotations
    with loading(model, revision) as source:
        processor: BaseImageProcessor = auto.from_pretrained(**source, backend="pil")
    return processor


def load_image_config(model: str, revision: str | None = None, **changes: Any) -> PretrainedConfig:
    """Return the configuration of ``model``, with some attributes set.

    Raises:
        UserError: If it cannot be loaded, or its family does not classify images.
    """
    if model == _SMALL_VIT:
        config: PretrainedConfig = AutoConfig.for_model(
            "vit",
            image_size=_SIDE,
            patch_size=7,
            hidden_size=96,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=192,
            initializer_range=0.1,  # it starts from nothing: with 0.02 it learns half as fast
            **changes,
        )
        return config
    config = load_config(model, revision, **changes)
    if type(config) not in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
        raise UserError(
            f"--model {model}: a model of type '{config.model_type}' does not classify images; "
            f"expected one like ViT, DeiT, Swin, ConvNeXT or ResNet, or {_SMALL_VIT}"
        )
    return config


def load_classifier(
    model: str,
    labels: Sequence[str],
    revision: str | None = None,
    problem_type: ProblemType | None = None,
    hidden_dropout: float | None = None,
    attention_dropout: float | None = None,
    pad_token_id: int | None = None,
) -> PreTrainedModel:
    """Return ``model`` with a classification head, in fp32 whatever the checkpoint says.

    Args:
        model: A name on the Hub, a local directory, or ``embedded:minilm``.
        labels: The names of the outputs, for ``pipeline()``; a single output without a name if
            there are none. A head that was trained for the same names is continued, one for others
            is replaced.
        revision: Commit, tag or branch on the Hub; the newest if None.
        problem_type: What the labels are; None for what the configuration says.
        hidden_dropout: Probability, or None for the model's own.
        attention_dropout: Likewise.
        pad_token_id: What batches are padded with, by which decoders find the end of a text; None
            for what the configuration says.

    Raises:
        UserError: If the model cannot be loaded, has no head for texts or no such dropout.
    """
    config = load_config(model, revision, **_head_attributes(labels, problem_type))
    families.set_dropout(config, "hidden_dropout", hidden_dropout)
    families.set_dropout(config, "attention_dropout", attention_dropout)
    families.set_up(config, pad_token_id)
    return _load_with_head(AutoModelForSequenceClassification, model, config, revision)


def load_image_classifier(
    model: str,
    labels: Sequence[str],
    revision: str | None = None,
    problem_type: ProblemType | None = None,
) -> PreTrainedModel:
    """Return ``model``, which may be ``embedded:vit``, with a head as :func:`load_classifier` does.

    Raises:
        UserError: If it cannot be loaded, or does not classify images.
    """
    auto: Any = AutoModelForImageClassification  # which has no annotations
    config = load_image_config(model, revision, **_head_attributes(labels, problem_type))
    if model == _SMALL_VIT:
        classifier: PreTrainedModel = auto.from_config(config)
        return classifier
    return _load_with_head(auto, model, config, revision)


def _head_attributes(labels: Sequence[str], problem_type: ProblemType | None) -> dict[str, Any]:
    names = list(labels) or ["LABEL_0"]
    return {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: index for index, name in enumerate(names)},
        **({} if problem_type is None else {"problem_type": problem_type}),
    }


def _load_with_head(
    auto: Any, model: str, config: PretrainedConfig, revision: str | None
) -> PreTrainedModel:
    """Return ``model`` with the head of a configuration; one for the same labels is continued."""
    trained = families.outputs_of_head(load_config(model, revision))
    with loading(model, revision) as source:
        classifier: PreTrainedModel = auto.from_pretrained(
            **source, config=config, dtype=torch.float32, ignore_mismatched_sizes=True
        )
    labels = list((config.id2label or {}).values())
    order = head.match_outputs(trained, labels)
    setattr(classifier, FRESH_HEAD, order is None)
    if len(trained) == len(labels):  # else the library has made a new one
        layer = head.last_linear(classifier, len(labels))
        with torch.no_grad():
            for weight in layer.parameters():
                weight.copy_(torch.zeros_like(weight) if order is None else weight[order])
            if order is None:
                std = getattr(config, "initializer_range", 0.02)
                torch.nn.init.normal_(layer.weight, std=std)
    # of weights that the head of a family leaves out no gradient is expected
    unused = families.UNUSED.get(config.model_type, ())
    for name, parameter in classifier.named_parameters():
        if name.startswith(unused):
            parameter.requires_grad_(False)
    # BERT's checkpoints name the weights of LayerNorm gamma and beta. transformers would save them
    # under these names again, and Trainer, which reads its own checkpoints without renaming, would
    # leave every LayerNorm out of the best model and of a resumed run. None would not do, it stands
    # for the names that the checkpoints of a family have on the Hub.
    classifier._weight_conversions = []  # type: ignore[assignment]
    return classifier


def load_weights(model: torch.nn.Module, path: Path) -> torch.nn.Module:
    """Return ``model``, which may be none of the library's, with the weights of a safetensors file.

    Raises:
        UserError: If the file cannot be read or is of another model.
    """
    try:
        load_model(model, path)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{path} cannot be loaded: {_reason(error)}") from error
    return model


def commit(model: str, revision: str | None = None) -> str | None:
    """Return the commit of a model on the Hub as it lies in the cache; None if it is not there."""
    if not hub.names_repository(model):
        return None
    path = try_to_load_from_cache(model, "config.json", revision=revision)
    return Path(path).parent.name if isinstance(path, str) else None


@contextmanager
def loading(model: str, revision: str | None) -> Iterator[dict[str, Any]]:
    """Give what ``from_pretrained`` takes, without its bars, and refuse what it cannot load."""
    source: str | Path = model
    if not model:
        raise UserError("--model: this recipe names no model of its own, give one")
    if not hub.names_repository(model):
        if revision is not None:
            raise UserError(f"--model_revision {revision}: {model} is not from the Hub")
        is_packaged = model == embedded.PREFIX + "minilm"
        source = embedded.model_directory() if is_packaged else Path(model).expanduser()
        if not (source / "config.json").exists():
            raise UserError(
                f"--model {model}: expected a directory that holds a config.json, or "
                f"{embedded.PREFIX}minilm (texts) or {_SMALL_VIT} (images)"
            )
    pinned = {} if revision is None else {"revision": revision}
    has_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield {"pretrained_model_name_or_path": str(source), "trust_remote_code": False, **pinned}
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever is in its files
        raise UserError(f"--model {model} cannot be loaded: {_reason(error)}") from error
    finally:
        if has_bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _reason(error: Exception) -> str:
    if isinstance(error, pickle.UnpicklingError):
        return "its weights are a pickle of more than tensors, which is not run; use safetensors"
    if "trust_remote_code" in str(error):
        return (
            "it needs code of its own (auto_map in its configuration), which is never run; "
            "expected a model of a type that transformers has"
        )
    line = str(error).strip().partition("\n")[0]
    is_damaged = isinstance(error, (SafetensorError, json.JSONDecodeError))
    hint = "; a file is damaged or cut off: copy or download the model again" * is_damaged
    return shorten(f"{type(error).__name__}: {line}", 400) + hint
