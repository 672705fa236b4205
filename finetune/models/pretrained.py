"""Load models, tokenizers and image processors from the Hub, a directory or a package.

``embedded:minilm`` is a text encoder from an installed package. ``embedded:vit`` is a small Vision
Transformer with random weights; it is built from a configuration and needs no download.
"""

import contextlib
import json
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import shorten
from types import MethodType
from typing import Any, Literal, TypeGuard

import torch
from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError
from safetensors.torch import load_model
from transformers import (
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BaseImageProcessor,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    logging,
)
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from finetune.data import embedded
from finetune.errors import UserError, first_line
from finetune.models import families, head, layers, loaded_weights
from finetune.runtime import hub

#: The values of ``problem_type`` in ``transformers``.
ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]
#: Attribute of a model: whether its last layer is new, not continued from the checkpoint.
FRESH_HEAD = "_has_fresh_head"
_SMALL_VIT = embedded.PREFIX + "vit"
_SIDE = 28  # its image size in pixels
_SMALL_VIT_CONFIG = {
    "image_size": _SIDE,
    "patch_size": 7,
    "hidden_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 192,
    "initializer_range": 0.1,  # not pretrained: with 0.02 it learns half as fast
}


def load_config(
    model: str, revision: str | None = None, *, reads_images: bool = False
) -> PretrainedConfig:
    """Return the configuration of a model.

    Args:
        model: The model, as for :func:`load_classifier`.
        revision: Commit, tag or branch on the Hub; None for the newest.
        reads_images: Whether it has to be an image model.

    Raises:
        UserError: If the configuration cannot be loaded, needs code from the Hub, or, with
            ``reads_images``, if ``transformers`` has no image classifier for it.
    """
    if model == _SMALL_VIT:
        vit: PretrainedConfig = AutoConfig.for_model("vit", **_SMALL_VIT_CONFIG)
        return vit
    with loading(model, revision) as source:
        config: PretrainedConfig = AutoConfig.from_pretrained(**source)
        stored, _ = PretrainedConfig.get_config_dict(**source, local_files_only=True)
    attention = stored.get("attn_implementation") or stored.get("_attn_implementation")
    if "/" in str(attention):
        raise UserError(
            f"--model {model}: attn_implementation '{attention}' in config.json "
            "is code from the Hub, which is never run; remove it from config.json"
        )
    if reads_images and type(config) not in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
        raise UserError(
            f"--model {model}: expected an image model such as ViT, DeiT, Swin, ConvNeXT or "
            f"ResNet, or {_SMALL_VIT}; found type '{config.model_type}'"
        )
    return config


def load_tokenizer(
    model: str, revision: str | None, truncation_side: str, max_length: int, *, labels_words: bool
) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model.

    Truncation side and maximum are saved with the tokenizer, so that ``pipeline()`` truncates as
    in training.

    Args:
        model: The model, as for :func:`load_classifier`.
        revision: Commit, tag or branch on the Hub; None for the newest.
        truncation_side: The end that long texts lose: ``right`` or ``left``.
        max_length: The tokens that they keep.
        labels_words: Whether words are tokenized one by one, each as after a blank.

    Raises:
        UserError: If the tokenizer cannot be loaded or has no vocabulary or no padding token.
    """
    config = load_config(model, revision)
    settings = families.tokenizer_settings(config)
    settings |= {"truncation_side": truncation_side, "model_max_length": max_length}
    if labels_words:
        settings["add_prefix_space"] = True
    with loading(model, revision) as source:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(**source, **settings)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if labels_words and hasattr(getattr(backend, "pre_tokenizer", None), "add_prefix_space"):
        backend.pre_tokenizer.add_prefix_space = True  # type: ignore[union-attr]
    # without files, transformers 5 returns a tokenizer of special tokens and at most "▁"
    if len(tokenizer) <= len(tokenizer.all_special_tokens) + 1:
        raise UserError(
            f"--model {model}: expected a tokenizer file such as tokenizer.json, vocab.txt or "
            "spiece.model, found none. Save the tokenizer that the model was trained with: "
            f"AutoTokenizer.from_pretrained(NAME).save_pretrained({model!r})"
        )
    pad_token_id: Any = config.get_text_config().pad_token_id
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
        if pad_token_id in range(len(tokenizer)):
            tokenizer.pad_token = tokenizer.convert_ids_to_tokens(pad_token_id)
    if tokenizer.pad_token is None:
        raise UserError(
            f"--model {model}: the tokenizer has no padding or end-of-sequence token; "
            "add pad_token to its tokenizer_config.json"
        )
    return tokenizer


def load_processor(model: str, revision: str | None = None) -> BaseImageProcessor:
    """Return the Pillow image processor of a model, even if torchvision is installed.

    Raises:
        UserError: If the processor cannot be loaded or has no Pillow version.
    """
    if model == _SMALL_VIT:
        from transformers import ViTImageProcessorPil

        return ViTImageProcessorPil(size={"height": _SIDE, "width": _SIDE})
    auto: Any = AutoImageProcessor  # has no type annotations
    with loading(model, revision) as source:
        processor: BaseImageProcessor = auto.from_pretrained(**source, backend="pil")
    return processor


def load_classifier(
    model: str,
    labels: Sequence[str],
    revision: str | None = None,
    *,
    reads_images: bool = False,
    labels_words: bool = False,
    hidden_dropout: float | None = None,
    attention_dropout: float | None = None,
    pad_token_id: int | None = None,
    layer_count: int | None = None,
    is_run: bool = False,
) -> PreTrainedModel:
    """Return a model with a classification head, in fp32 regardless of the checkpoint's dtype.

    Args:
        model: A name on the Hub, a local directory, ``embedded:minilm`` or ``embedded:vit``.
        labels: The names of the outputs; if empty, there is one output without a name. A head that
            was trained for the same names is continued, any other is replaced.
        revision: Commit, tag or branch on the Hub; None for the newest.
        reads_images: Whether it is an image model. The arguments below are for texts only.
        labels_words: Whether the outputs are for each token, not for the text.
        hidden_dropout: Probability, or None for that of the configuration.
        attention_dropout: Probability, or None for that of the configuration.
        pad_token_id: The token that pads batches; decoders find the end of a text by it. None for
            that of the configuration.
        layer_count: How many layers to keep, see :func:`finetune.models.layers.cut`; None for all.
        is_run: Whether it is the directory of a run, which must have all weights.

    Raises:
        UserError: If the model cannot be loaded, lacks weights, or has no such classifier or no
            such dropout.
    """
    labels = list(labels) or ["LABEL_0"]
    config = load_config(model, revision, reads_images=reads_images)
    trained = families.outputs_of_head(config)
    config.id2label = dict(enumerate(labels))
    config.label2id = {name: index for index, name in enumerate(labels)}
    auto: Any = AutoModelForImageClassification  # has no type annotations
    if model == _SMALL_VIT:
        small: PreTrainedModel = auto.from_config(config)
        return layers.cut(small, layer_count)
    if not reads_images:
        auto = AutoModelForSequenceClassification
        if labels_words:
            auto = AutoModelForTokenClassification
        families.set_dropout(config, "hidden_dropout", hidden_dropout)
        families.set_dropout(config, "attention_dropout", attention_dropout)
        families.set_up(config, pad_token_id)
    with loading(model, revision) as source:
        options = dict(ignore_mismatched_sizes=True, output_loading_info=True)
        loaded = auto.from_pretrained(**source, config=config, dtype=torch.float32, **options)
    classifier: PreTrainedModel = loaded[0]
    if hasattr(classifier, "peft_config"):
        raise UserError(_describe_adapter(model))
    order = head.match_outputs(trained, labels)
    layer = None
    with contextlib.suppress(UserError):  # without such a layer only a new head is possible
        layer = head.last_linear(classifier, len(labels))
    weights = loaded_weights.compare(classifier, model, layer, loaded[1], is_run=is_run)
    if weights.has_new_head:
        order = None
    if layer is not None and not weights.has_new_head:
        with torch.no_grad():
            for weight in layer.parameters():
                weight.copy_(torch.zeros_like(weight) if order is None else weight[order])
            if order is None:
                std = getattr(config, "initializer_range", 0.02)
                torch.nn.init.normal_(layer.weight, std=std)
    classifier = layers.cut(classifier, layer_count)
    setattr(classifier, FRESH_HEAD, order is None)
    # DDP would wait for gradients of weights that the head does not use
    unused = families.UNUSED.get(config.model_type, ())
    for name, parameter in classifier.named_parameters():
        if name.startswith(unused):
            parameter.requires_grad_(False)
    return classifier


def is_pretrained(model: torch.nn.Module) -> TypeGuard[PreTrainedModel]:
    """Return whether the weights of the base model have been trained.

    A new model of ``transformers`` has norms whose scales are all 1 and biases that are all 0.
    """
    base = getattr(model, getattr(model, "base_model_prefix", ""), None)
    if not isinstance(model, PreTrainedModel) or not isinstance(base, torch.nn.Module):
        return False
    vectors = [weight for weight in base.parameters() if weight.dim() == 1 and len(weight) > 1]
    return any(bool((weight != weight[0]).any()) for weight in vectors)


def save_own_names(model: torch.nn.Module) -> None:
    """Let ``model``, if it is one of ``transformers``, save its weights under the names they have.

    BERT's checkpoints call the weights of LayerNorm gamma and beta, and transformers 5 saves them
    under these names again. ``Trainer`` does not rename when it loads its own checkpoints, so the
    best model and a resumed run would lack every LayerNorm.
    """
    if isinstance(model, PreTrainedModel):
        # a method, and so that of its copy in a copy of the model
        model.save_pretrained = MethodType(_save_pretrained, model)  # type: ignore[method-assign]


def _save_pretrained(model: PreTrainedModel, *args: Any, **kwargs: Any) -> None:
    kwargs.setdefault("save_original_format", False)
    type(model).save_pretrained(model, *args, **kwargs)


def load_weights(model: torch.nn.Module, path: Path) -> torch.nn.Module:
    """Load a safetensors file into ``model``, any torch module, in place and return the model.

    Raises:
        UserError: If the file cannot be read or does not fit the model.
    """
    try:
        load_model(model, path)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{path} cannot be loaded: {_reason(error)}") from error
    return model


def commit(model: str, revision: str | None = None) -> str | None:
    """Return the commit of a Hub model in the local cache; None if it is not cached."""
    if not hub.names_repository(model):
        return None
    path = try_to_load_from_cache(model, "config.json", revision=revision)
    if isinstance(path, str):
        return Path(path).parent.name
    return None


@contextlib.contextmanager
def loading(model: str, revision: str | None) -> Iterator[dict[str, Any]]:
    """Yield arguments for ``from_pretrained``, hide its bars, turn errors into ``UserError``."""
    source: str | Path = model
    if not model:
        raise UserError("--model: expected a model, because this recipe has no default")
    if not hub.names_repository(model):
        if revision is not None:
            raise UserError(
                f"--model_revision {revision}: expected a model on the Hub, found {model}"
            )
        is_packaged = model == embedded.PREFIX + "minilm"
        source = embedded.model_directory() if is_packaged else Path(model).expanduser()
        if (source / "adapter_config.json").exists():
            raise UserError(_describe_adapter(model))
        if not (source / "config.json").exists():
            raise UserError(
                f"--model {model}: expected a directory with a config.json, or "
                f"{embedded.PREFIX}minilm (texts) or {_SMALL_VIT} (images)"
            )
    pinned = {} if revision is None else {"revision": revision}
    has_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield {"pretrained_model_name_or_path": str(source), "trust_remote_code": False, **pinned}
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # damaged files raise any exception
        raise UserError(f"--model {model} cannot be loaded: {_reason(error)}") from error
    finally:
        if has_bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _describe_adapter(model: str) -> str:
    return (
        f"--model {model}: expected a whole model, found an adapter of peft. Merge it first: "
        f"PeftModel.from_pretrained(BASE, {model!r}).merge_and_unload().save_pretrained(DIRECTORY)"
    )


def _reason(error: Exception) -> str:
    if isinstance(error, pickle.UnpicklingError):
        return (
            "its weights are a pickle with more than tensors, which is never run; use safetensors"
        )
    if "trust_remote_code" in str(error):
        return (
            "it needs custom code (auto_map in its configuration), which is never run; "
            "expected a model type that transformers supports"
        )
    reason = shorten(f"{type(error).__name__}: {first_line(error)}", 400)
    if isinstance(error, (SafetensorError, json.JSONDecodeError)):
        reason += "; a file is damaged or cut off: copy or download the model again"
    return reason
