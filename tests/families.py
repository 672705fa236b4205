"""Write a tiny random model of each family, and a tokenizer trained on a few sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForSequenceClassification

#: The number of learned positions, without those reserved for padding.
POSITIONS = 64
_BPE = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>")
_BART: dict[str, Any] = dict(
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=40,
    decoder_ffn_dim=40,
)
_DECODER: dict[str, Any] = dict(num_key_value_heads=2, head_dim=8)
_DEBERTA: dict[str, Any] = dict(
    relative_attention=True, position_biased_input=False, pos_att_type=["p2c", "c2p"]
)
_DEBERTA_V2 = _DEBERTA | dict(position_buckets=16, norm_rel_ebd="layer_norm")
#: Family -> model type, tokenizer class, and settings of the configuration.
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("bert", "BertTokenizer", {}),
    "roberta": ("roberta", "RobertaTokenizer", dict(max_position_embeddings=POSITIONS + 2)),
    "xlm-r": ("xlm-roberta", "XLMRobertaTokenizer", dict(max_position_embeddings=POSITIONS + 2)),
    "distilbert": ("distilbert", "DistilBertTokenizer", dict(dim=32, n_layers=2, n_heads=4)),
    "electra": ("electra", "ElectraTokenizer", dict(embedding_size=16)),
    "albert": ("albert", "AlbertTokenizer", dict(embedding_size=16)),
    "mpnet": ("mpnet", "MPNetTokenizer", dict(max_position_embeddings=POSITIONS + 2)),
    "deberta": ("deberta", "DebertaTokenizer", _DEBERTA),
    "deberta-v2": (  # larger models have a convolution
        "deberta-v2",
        "DebertaV2Tokenizer",
        _DEBERTA_V2 | dict(conv_kernel_size=3, conv_act="gelu"),
    ),
    "deberta-v3": ("deberta-v2", "DebertaV2Tokenizer", _DEBERTA_V2 | dict(share_att_key=True)),
    "modernbert": (
        "modernbert",
        "PreTrainedTokenizerFast",
        dict(local_attention=16, global_attn_every_n_layers=2),
    ),
    "bigbird": ("big_bird", "BigBirdTokenizer", dict(block_size=4, num_random_blocks=1)),
    "longformer": (
        "longformer",
        "RobertaTokenizer",
        dict(max_position_embeddings=POSITIONS + 2, attention_window=[16, 16]),
    ),
    "xlnet": ("xlnet", "XLNetTokenizer", dict(d_model=32, n_layer=2, n_head=4, d_inner=40)),
    "t5": (
        "t5",
        "T5Tokenizer",
        dict(d_model=32, d_kv=8, d_ff=40, num_layers=2, num_decoder_layers=2, num_heads=4),
    ),
    "bart": ("bart", "BartTokenizer", _BART),
    "gpt2": ("gpt2", "GPT2Tokenizer", dict(n_embd=32, n_layer=2, n_head=4)),
    "llama": ("llama", "LlamaTokenizer", _DECODER),
    "qwen2": ("qwen2", "Qwen2Tokenizer", _DECODER),
    "qwen3": ("qwen3", "Qwen2Tokenizer", _DECODER),
    "gemma": ("gemma", "GemmaTokenizer", _DECODER),
}
_SIZES: dict[str, Any] = dict(
    hidden_size=32,
    intermediate_size=40,
    hidden_dim=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    sliding_window=16,
    initializer_range=0.2,  # large, so that wrong padding changes the outputs
    init_std=0.2,
)
_SENTENCES = [
    f"the food of place {number} was {word}, {other} and {word}"
    for number in range(40)
    for word, other in (("awful", "dull"), ("bland", "great"), ("lovely", "fine"))
]


def tokenizer_of(name: str) -> Any:
    """Return a tokenizer of the class ``name`` in ``transformers``, trained on a few sentences."""
    if name == "PreTrainedTokenizerFast":  # the class of ModernBERT
        roberta = transformers.RobertaTokenizer().train_new_from_iterator(_SENTENCES, 300)
        names = dict(cls_token="<s>", sep_token="</s>", pad_token="<pad>", unk_token="<unk>")
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=roberta.backend_tokenizer, mask_token="<mask>", **names
        )
    return getattr(transformers, name)().train_new_from_iterator(_SENTENCES, 300)


def build(family: str, **options: Any) -> Any:
    """Return the random model of a family, with options of its configuration."""
    kind, _, settings = FAMILIES[family]
    default = AutoConfig.for_model(kind)
    sizes = {name: value for name, value in _SIZES.items() if hasattr(default, name)}
    if kind != "xlnet":  # its configuration refuses this attribute
        sizes["max_position_embeddings"] = POSITIONS
    if kind == "t5":
        options["decoder_start_token_id"] = options["pad_token_id"]
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**sizes, **settings, **options})
    return AutoModelForSequenceClassification.from_config(config)


def write(family: str, directory: Path, **options: Any) -> Path:
    """Write the model of a family, without a head as on the Hub, and its tokenizer; with options of
    its configuration.
    """
    kind, name, _ = FAMILIES[family]
    tokenizer = tokenizer_of(name)
    special = {
        name: token_id
        for name in ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
        if (token_id := getattr(tokenizer, name)) is not None
    }
    if kind in ("gpt2", "llama", "qwen2", "qwen3"):  # have no padding token on the Hub
        special.pop("pad_token_id", None)
        tokenizer.pad_token = None
    model = build(family, **special, **options, vocab_size=len(tokenizer))
    base = model.base_model if kind != "bart" else model.model
    base.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
