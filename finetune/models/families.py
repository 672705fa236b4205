"""Differences between the model families of ``transformers``: positions, dropout, padding.

A classification head reads the hidden state of one token: the first (BERT, RoBERTa, DeBERTa), the
rightmost that is not padding (GPT-2, Llama, Qwen, Gemma), the last (XLNet, which is padded on the
left), or the end-of-sequence token (T5, BART).
"""

import contextlib
import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedTokenizerBase,
)

from finetune.errors import UserError, first_line

#: Prefixes of weights that the head does not use. DDP would wait for their gradients.
UNUSED = {"big_bird": ("bert.pooler.",), "xlnet": ("transformer.mask_emb",)}
#: Families that overflow in bf16 and fp16: DeBERTa v1 masks with the lowest fp32 number.
OVERFLOWING = frozenset({"deberta"})
#: Families that torch.onnx (2.13) cannot export: their code depends on values of the inputs.
NOT_EXPORTED = frozenset({"longformer", "xlnet"})
#: Names of dropouts, and of those of heads and activations; the latter are set only if above 0.
_DROPOUT = re.compile(r"dropout|pdrop")
_HEAD_DROPOUT = re.compile(r"classif|cls|summary|pooler|activation|qa")


def without_weights(config: PretrainedConfig) -> torch.nn.Module:
    """Return the text or image classifier of a configuration, on the meta device.

    Raises:
        UserError: If ``transformers`` cannot build it.
    """
    auto: Any = AutoModelForSequenceClassification  # which has no annotations
    if type(config) in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
        auto = AutoModelForImageClassification
    try:
        with torch.device("meta"):
            model: torch.nn.Module = auto.from_config(copy.deepcopy(config))
    except Exception as error:  # whatever is in config.json
        reason = first_line(error)
        raise UserError(
            f"--model {config.name_or_path}: expected a text model with a sequence classification "
            f"head in transformers, for example bert or llama; found type '{config.model_type}': "
            f"{reason}"
        ) from error
    return model


def count_layer_parameters(config: PretrainedConfig) -> int:
    """Return the number of parameters of a classifier without its embeddings."""
    model: Any = without_weights(config)
    return int(model.num_parameters(exclude_embeddings=True))


def _position_tables(config: PretrainedConfig) -> list[torch.nn.Embedding]:
    """Return the position embeddings of a model, on the meta device, without weights."""
    tables = []
    for name, module in without_weights(config).named_modules():
        if re.search(r"pos[^.]*$|\bwpe$", name) and isinstance(module, torch.nn.Embedding):
            tables.append(module)
    return tables


def positions(config: PretrainedConfig) -> int | None:
    """Return the maximum number of tokens of a model with learned position embeddings.

    Returns None for relative and rotary positions, which have no such limit.

    Raises:
        UserError: If ``transformers`` cannot build a text classifier from the configuration.
    """
    limits = []
    for table in _position_tables(config):
        # RoBERTa's first position follows the padding index, BART's an offset
        limit = table.num_embeddings - getattr(table, "offset", 0)
        if table.padding_idx is not None:
            limit -= table.padding_idx + 1
        limits.append(limit)
    if limits:
        return min([*limits, getattr(config, "max_position_embeddings", limits[0])])
    return None


def refuse_ids_beyond_embeddings(
    model: Any, tokenizer: PreTrainedTokenizerBase, row: Mapping[str, Sequence[int]], name: str
) -> None:
    """Require a row in the embeddings of ``model`` for each id that its tokenizer can produce.

    Args:
        model: The model, which need not have weights.
        tokenizer: Its tokenizer.
        row: A text or a pair as the tokenizer encodes it, with special tokens.
        name: The value of ``--model``, for the message.

    Raises:
        UserError: With the highest id and the number of rows: torch would raise an ``IndexError``.
    """
    ids = {token_id: token for token, token_id in tokenizer.get_vocab().items()}
    if tokenizer.split_special_tokens:  # then no text has them: Gemma 3 has one without a row
        used = {*row["input_ids"], tokenizer.pad_token_id, tokenizer.unk_token_id}
        for token_id, token in tokenizer.added_tokens_decoder.items():
            if token.special and token_id not in used:
                ids.pop(token_id, None)
    embeddings: Any = None
    with contextlib.suppress(NotImplementedError, AttributeError):
        embeddings = model.get_input_embeddings()
    highest = max(ids)
    if isinstance(embeddings, torch.nn.Embedding) and highest >= embeddings.num_embeddings:
        rows = embeddings.num_embeddings
        raise UserError(
            f"--model {name}: the tokenizer has ids up to {highest:,} (token {ids[highest]!r}), "
            f"and the embeddings have {rows:,} rows, for ids up to {rows - 1:,}. Save the model "
            f"again with embeddings for them: model.resize_token_embeddings({highest + 1})"
        )
    types = max(row.get("token_type_ids", [0]))
    type_count = getattr(getattr(model, "config", None), "type_vocab_size", 0)
    if 0 < type_count <= types:  # DeBERTa has 0, and reads none
        raise UserError(
            f"--model {name}: the tokenizer gives the token type {types}, and the model has "
            f"{type_count} (type_vocab_size). Save the tokenizer again without token types: "
            'tokenizer.model_input_names = ["input_ids", "attention_mask"]'
        )


def outputs_of_head(config: PretrainedConfig) -> list[str]:
    """Return the label names of a model's classification head by output; [] without a head."""
    heads = ("ForSequenceClassification", "ForImageClassification", "ForTokenClassification")
    if not any(name.endswith(heads) for name in config.architectures or []):
        return []
    return [str(name) for _, name in sorted((config.id2label or {}).items())]


def dropouts(config: PretrainedConfig, option: str) -> dict[str, float]:
    """Return the attributes, with values, that ``attention_dropout`` or ``hidden_dropout`` sets."""
    is_attention = option == "attention_dropout"
    probabilities = {}
    for name, value in config.get_text_config().to_dict().items():
        if not _DROPOUT.search(name) or not isinstance(value, (int, float)):
            continue
        is_set = value > 0 or not _HEAD_DROPOUT.search(name)
        if is_set and ("att" in name) == is_attention:
            probabilities[name] = value
    return probabilities


def set_dropout(config: PretrainedConfig, option: str, probability: float | None) -> None:
    """Set all :func:`dropouts` of an option in place.

    Args:
        config: The configuration of the model.
        option: ``attention_dropout`` or ``hidden_dropout``.
        probability: None changes nothing.

    Raises:
        UserError: If ``probability`` is above 0 and the family has no such dropout.
    """
    text = config.get_text_config()
    names = [] if probability is None else list(dropouts(config, option))
    if probability and all(map(_HEAD_DROPOUT.search, names)):
        present = filter(_DROPOUT.search, text.to_dict())
        raise UserError(
            f"--{option} {probability}: a model of type '{config.model_type}' has no such dropout; "
            f"found {', '.join(sorted(present)) or 'none'}"
        )
    for name in names:
        setattr(text, name, probability)


def set_up(config: PretrainedConfig, pad_token_id: int | None) -> None:
    """Change ``config`` in place so that a classifier's outputs for a row do not depend on the
    rest of its batch. ``pad_token_id`` pads batches; None keeps that of ``config``.
    """
    text = config.get_text_config()
    if pad_token_id is not None and (
        text.pad_token_id is None  # otherwise positions may be counted from it
        or all(table.padding_idx is None for table in _position_tables(config))
    ):
        text.pad_token_id = config.pad_token_id = pad_token_id
    # caches for generation: not used here, and as large as all hidden states
    for name in ("use_cache", "use_mems_eval"):
        if hasattr(text, name):
            setattr(text, name, False)
    if config.model_type == "big_bird":
        # sparse attention switches to full attention permanently at the first short batch: results
        # would depend on the order of batches
        config.attention_type = "original_full"


def tokenizer_settings(config: PretrainedConfig) -> dict[str, Any]:
    """Return the tokenizer arguments that the classification head of the family needs.

    They are saved with the tokenizer only if they are passed to ``from_pretrained``.
    """
    family = type(config)
    is_decoder = family in MODEL_FOR_CAUSAL_LM_MAPPING and family not in MODEL_FOR_MASKED_LM_MAPPING
    # these heads look for a special token: a text that contains its name would end there
    settings: dict[str, Any] = {"split_special_tokens": is_decoder or config.is_encoder_decoder}
    if config.model_type == "xlnet":  # head reads the last token, tokenizer lacks segments
        names = ["input_ids", "token_type_ids", "attention_mask"]
        return {**settings, "padding_side": "left", "model_input_names": names}
    return {**settings, "padding_side": "right"}
