"""What the families of models in ``transformers`` do differently: positions, dropouts, padding.

How their heads find the token that stands for a text was read in the library: the first one
(BERT, RoBERTa, DeBERTa ...), the rightmost that is not padding (GPT-2, Llama, Qwen, Gemma), the
last one (XLNet, which is padded on the left), the one that ends the text (T5, BART).
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from finetune.errors import UserError

#: What the model families call the dropouts that an option sets.
DROPOUTS = {
    "hidden_dropout": (
        *("hidden_dropout_prob", "hidden_dropout", "dropout", "dropout_rate"),
        *("resid_pdrop", "embd_pdrop", "mlp_dropout", "embedding_dropout"),
    ),
    "attention_dropout": ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop"),
}
#: Those of heads and activations, which ``hidden_dropout`` sets where they are above 0.
_HEAD_DROPOUTS = (
    *("classifier_dropout", "classifier_dropout_prob", "seq_classif_dropout", "cls_dropout"),
    *("pooler_dropout", "summary_last_dropout", "summary_first_dropout", "activation_dropout"),
)
#: Families that look positions up in a table: beyond its end there is an error.
_LEARNED_POSITIONS = (
    *("albert", "bart", "bert", "big_bird", "bigbird_pegasus", "biogpt", "canine", "convbert"),
    *("ctrl", "distilbert", "electra", "ernie", "flaubert", "fnet", "gpt2", "gpt_neo", "gptj"),
    *("layoutlm", "mbart", "megatron-bert", "mobilebert", "mra", "mvp", "nystromformer"),
    *("openai-gpt", "opt", "perceiver", "plbart", "rembert", "roc_bert", "roformer"),
    *("squeezebert", "xlm", "yoso"),
)
#: Those of them in which the first positions are left to padding.
_OFFSET_POSITIONS = (
    *("camembert", "data2vec-text", "esm", "ibert", "lilt", "longformer", "luke", "markuplm"),
    *("mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
)
#: Families whose heads look for a special token: the one that ends a text, or that of padding.
_FIND_END = (
    *("bart", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neo", "gpt_neox", "llama", "mbart"),
    *("mistral", "mt5", "opt", "phi3", "qwen2", "qwen3", "t5", "umt5"),
)
#: Those among them that fail where rows of a batch have that token more or less often.
_COUNT_ENDS = ("bart", "bigbird_pegasus", "mbart", "mt5", "mvp", "plbart", "t5", "umt5")
#: Weights of a family that its head leaves out; DDP would wait for their gradients.
_UNUSED = {"big_bird": ("bert.pooler.",), "xlnet": ("transformer.mask_emb",)}
#: Those that have a table only if their configuration says so.
_BIASED_POSITIONS = ("deberta", "deberta-v2")


def positions(config: PretrainedConfig) -> int | None:
    """Return the most tokens that a model has learned positions for; None where it has none.

    Relative and rotary positions go on beyond those that were trained.
    """
    most, kind = getattr(config, "max_position_embeddings", None), config.model_type
    if most is None:
        return None
    if kind in _OFFSET_POSITIONS:
        return int(most) - (config.pad_token_id or 0) - 1  # the first follows that of padding
    biased = kind in _BIASED_POSITIONS and getattr(config, "position_biased_input", True)
    return int(most) if biased or kind in _LEARNED_POSITIONS else None


def require_head(model: str, config: PretrainedConfig) -> None:
    """Refuse a model of a family without a head for texts.

    Raises:
        UserError: if ``transformers`` has no ``ForSequenceClassification`` for it.
    """
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        raise UserError(
            f"--model {model}: transformers has no head for sequence classification on a model of "
            f"type '{config.model_type}'; expected a text model, of type bert or llama for instance"
        )


def outputs_of_head(config: PretrainedConfig) -> list[str]:
    """Return what the outputs of the head are called that a model was trained with; empty if it has
    no head for texts.
    """
    kinds = config.architectures or []
    if not any(each.endswith("ForSequenceClassification") for each in kinds):
        return []
    names = (config.id2label or {}).items()
    return [str(name) for _, name in sorted((int(number), name) for number, name in names)]


def set_dropout(config: PretrainedConfig, option: str, probability: float | None) -> None:
    """Set a dropout, under whatever names the family has it.

    Args:
        config: Changed in place.
        option: A key of :data:`DROPOUTS`.
        probability: None leaves everything as it is.

    Raises:
        UserError: if it is above 0 and the family has no such dropout.
    """
    if probability is None:
        return
    config = config.get_text_config()
    names = [name for name in DROPOUTS[option] if hasattr(config, name)]
    if probability and not names:
        known = [name for name in config.to_dict() if "dropout" in name or name.endswith("pdrop")]
        raise UserError(
            f"--{option} {probability}: a model of type '{config.model_type}' has no such dropout, "
            f"only {', '.join(sorted(known)) or 'none at all'}"
        )
    if option == "hidden_dropout":  # of a head it may be None: then it is that of hidden states
        names += [name for name in _HEAD_DROPOUTS if getattr(config, name, None)]
    for name in names:
        setattr(config, name, probability)


def set_up(config: PretrainedConfig, pad_token_id: int | None) -> None:
    """Make a configuration that of a classifier whose outputs do not depend on the batch.

    Args:
        config: Changed in place.
        pad_token_id: What batches are padded with; None for what the configuration says.
    """
    text = config.get_text_config()
    if pad_token_id is not None and (
        text.pad_token_id is None or text.model_type not in _OFFSET_POSITIONS
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


def freeze_unused(model: PreTrainedModel) -> None:
    """Let no gradient be expected for weights that the head of the family never reaches."""
    unused = _UNUSED.get(model.config.model_type, ())
    for name, parameter in model.named_parameters():
        if name.startswith(unused or ("\0",)):
            parameter.requires_grad_(False)


def overflows(config: PretrainedConfig) -> bool:
    """Return whether a family cannot be trained in bf16 or fp16.

    DeBERTa of the first version masks with the lowest number of fp32; v2 and v3 do not.
    """
    return bool(config.model_type == "deberta")


def refuse_half_precision(model: torch.nn.Module, *, bf16: bool, fp16: bool) -> None:
    """Refuse what a family overflows in.

    Args:
        model: To be trained or predicted with.
        bf16: Whether it is asked for.
        fp16: Likewise.

    Raises:
        UserError: with the precision to use.
    """
    config = getattr(model, "config", None)
    if (bf16 or fp16) and isinstance(config, PretrainedConfig) and overflows(config):
        raise UserError(
            f"--precision {'bf16' if bf16 else 'fp16'}: a model of type '{config.model_type}' "
            "overflows in it; expected --precision fp32"
        )


def remarks(config: PretrainedConfig) -> list[str]:
    """Return what is done differently for a family, for the start of a run."""
    kind, found = config.model_type, []
    if kind == "big_bird":
        found.append(
            "a model of type 'big_bird' attends to all tokens, not to blocks of them: with block-"
            "sparse attention results depend on the order of batches"
        )
    if overflows(config):
        found.append(f"precision fp32: a model of type '{kind}' overflows in bf16 and fp16")
    return found


def end_token(config: PretrainedConfig) -> int | None:
    """Return the number of the token that every row must have equally often; None if there is none
    of that kind.
    """
    text: Any = config.get_text_config()
    return text.eos_token_id if config.model_type in _COUNT_ENDS else None


def tokenizer_settings(config: PretrainedConfig) -> dict[str, Any]:
    """Return the keyword arguments of a tokenizer that the head of the family needs.

    Passed to ``from_pretrained`` they are saved with the tokenizer; set later they are not.
    """
    # a text that spells the token out would end there
    settings: dict[str, Any] = {"split_special_tokens": config.model_type in _FIND_END}
    if config.model_type == "xlnet":  # whose tokenizer leaves the segments out
        names = ["input_ids", "token_type_ids", "attention_mask"]
        return {**settings, "padding_side": "left", "model_input_names": names}
    return {**settings, "padding_side": "right"}


def set_pad_token(tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig, model: str) -> None:
    """Give a tokenizer without a padding token that of the configuration, or the one that ends a
    text.

    Args:
        tokenizer: Changed in place.
        config: Of its model.
        model: Named in the error.

    Raises:
        UserError: if there is no token to pad with.
    """
    if tokenizer.pad_token is not None:
        return
    text: Any = config.get_text_config()
    known = text.pad_token_id
    if known is not None and 0 <= known < len(tokenizer):
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(known)
    elif tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    else:
        raise UserError(
            f"--model {model}: its tokenizer has no padding token, and none that ends a text; "
            "add pad_token to its tokenizer_config.json"
        )
