"""What the families of models in ``transformers`` do differently: positions, dropouts, padding.

Their heads read the token that stands for a text: the first one (BERT, RoBERTa, DeBERTa ...), the
rightmost that is not padding (GPT-2, Llama, Qwen, Gemma), the last one (XLNet, which is padded on
the left), the one that ends the text (T5, BART).
"""

import copy
import re
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoModelForSequenceClassification,
    PretrainedConfig,
)

from finetune.errors import UserError

#: Weights of a family that its head leaves out; DDP would wait for their gradients.
UNUSED = {"big_bird": ("bert.pooler.",), "xlnet": ("transformer.mask_emb",)}
#: Families that overflow in bf16 and fp16: DeBERTa (not v2 and v3) masks with fp32's lowest number.
OVERFLOWING = frozenset({"deberta"})
#: Dropouts, and those of heads and activations, which an option sets only where they are above 0.
_DROPOUT = re.compile(r"dropout|pdrop")
_HEAD_DROPOUT = re.compile(r"classif|cls|summary|pooler|activation|qa")


def _position_tables(config: PretrainedConfig) -> list[torch.nn.Embedding]:
    """Return the tables, without weights, in which a model looks positions up."""
    auto: Any = AutoModelForSequenceClassification  # which has no annotations
    try:
        with torch.device("meta"):
            modules = auto.from_config(copy.deepcopy(config)).named_modules()
    except Exception as error:  # whatever is in config.json
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"--model {config.name_or_path}: expected a text model that transformers has a head "
            "for sequence classification on, of type bert or llama for instance; found type "
            f"'{config.model_type}': {reason}"
        ) from error
    return [
        module
        for name, module in modules
        if re.search(r"pos[^.]*$|\bwpe$", name) and isinstance(module, torch.nn.Embedding)
    ]


def positions(config: PretrainedConfig) -> int | None:
    """Return the most tokens that a model has learned positions for; None where it has none:
    relative and rotary positions go on beyond those that were trained.

    Raises:
        UserError: If ``transformers`` cannot make a classifier of texts of the configuration.
    """
    limits = [
        # the first position follows that of padding in RoBERTa, an offset in BART
        table.num_embeddings
        - (0 if table.padding_idx is None else table.padding_idx + 1)
        - getattr(table, "offset", 0)
        for table in _position_tables(config)
    ]
    return min([*limits, getattr(config, "max_position_embeddings", limits[0])]) if limits else None


def outputs_of_head(config: PretrainedConfig) -> list[str]:
    """Return the names of the outputs that a model was fine-tuned for; empty without a head."""
    heads = ("ForSequenceClassification", "ForImageClassification")
    if not any(name.endswith(heads) for name in config.architectures or []):
        return []
    return [str(name) for _, name in sorted((config.id2label or {}).items())]


def dropouts(config: PretrainedConfig, option: str) -> dict[str, float]:
    """Return the dropouts of ``attention_dropout``, or ``hidden_dropout``, by their names here."""
    return {
        name: value
        for name, value in config.get_text_config().to_dict().items()
        if _DROPOUT.search(name)
        and isinstance(value, (int, float))
        and ("att" in name) == (option == "attention_dropout")
        and (value > 0 or not _HEAD_DROPOUT.search(name))
    }


def set_dropout(config: PretrainedConfig, option: str, probability: float | None) -> None:
    """Set a dropout, under whatever names the family has it; None leaves everything as it is.

    Raises:
        UserError: If it is above 0 and the family has no such dropout.
    """
    text = config.get_text_config()
    names = [] if probability is None else list(dropouts(config, option))
    if probability and all(map(_HEAD_DROPOUT.search, names)):
        present = filter(_DROPOUT.search, text.to_dict())
        raise UserError(
            f"--{option} {probability}: a model of type '{config.model_type}' has no such dropout, "
            f"only {', '.join(sorted(present)) or 'none at all'}"
        )
    for name in names:
        setattr(text, name, probability)


def set_up(config: PretrainedConfig, pad_token_id: int | None) -> None:
    """Make a configuration, in place, that of a classifier whose outputs do not depend on the
    batch, which is padded with ``pad_token_id``; None for what the configuration says.
    """
    text = config.get_text_config()
    if pad_token_id is not None and (
        text.pad_token_id is None  # else it may be what positions are counted from
        or all(table.padding_idx is None for table in _position_tables(config))
    ):
        text.pad_token_id = config.pad_token_id = pad_token_id
    # what generation would go on from: of no use here, and as large as all hidden states
    for name in ("use_cache", "use_mems_eval"):
        if hasattr(text, name):
            setattr(text, name, False)
    if config.model_type == "big_bird":
        # sparse attention turns into full attention for good at the first short batch: results
        # would depend on the order of batches
        config.attention_type = "original_full"


def tokenizer_settings(config: PretrainedConfig) -> dict[str, Any]:
    """Return the keyword arguments of a tokenizer that the head of the family needs.

    Passed to ``from_pretrained`` they are saved with the tokenizer; set later they are not.
    """
    kind = type(config)
    is_decoder = kind in MODEL_FOR_CAUSAL_LM_MAPPING and kind not in MODEL_FOR_MASKED_LM_MAPPING
    # such heads look for a special token: a text that spells it out would end there
    settings: dict[str, Any] = {"split_special_tokens": is_decoder or config.is_encoder_decoder}
    if config.model_type == "xlnet":  # its head reads the last token; its tokenizer lacks segments
        names = ["input_ids", "token_type_ids", "attention_mask"]
        return {**settings, "padding_side": "left", "model_input_names": names}
    return {**settings, "padding_side": "right"}
