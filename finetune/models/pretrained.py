"""Tokenizers and encoders of ``transformers``, from the Hub, a local directory or the embedded
package.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

import torch
from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError
from safetensors.torch import load_model
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from finetune.data import embedded
from finetune.errors import UserError
from finetune.models import families, head
from finetune.runtime import hub

#: What ``transformers`` calls kinds of labels.
ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]
#: Files with the vocabularies of tokenizers, one of which is enough.
_VOCABULARIES = (
    *("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model", "spm.model"),
)
#: The attribute of a model that names the weights that no checkpoint had.
_FRESH = "_weights_without_checkpoint"


def load_config(model: str, revision: str | None = None, **changes: Any) -> PretrainedConfig:
    """Return the configuration of ``model``, named and pinned as for :func:`load_classifier`, with
    some attributes set.

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

    Args:
        model: Its name.
        revision: On the Hub.
        truncation_side: Where long texts are cut, ``right`` or ``left``; saved with the tokenizer.
        max_length: Tokens that ``truncation=True`` leaves, saved with the tokenizer, so that a
            ``pipeline()`` cuts where the training did; None for what the tokenizer says.

    Raises:
        UserError: If it cannot be loaded, or no file has its vocabulary.
    """
    config = load_config(model, revision)
    settings = families.tokenizer_settings(config)
    if max_length is not None:
        settings["model_max_length"] = max_length
    files = [*_VOCABULARIES]
    with loading(model, revision) as source:
        try:
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                **source, truncation_side=truncation_side, **settings
            )
            files += tokenizer.vocab_files_names.values()  # of bytes there are none
            needs_file = bool(tokenizer.vocab_files_names)
        except (OSError, ValueError):
            if _has_any(source, files):
                raise
            needs_file = True
        # transformers 5 makes a tokenizer of five tokens without any of them, and says nothing
        if needs_file and not _has_any(source, files):
            raise UserError(
                f"--model {model}: no file of a tokenizer is there (expected one of "
                f"{', '.join(dict.fromkeys(files))}). Save the tokenizer that the model was "
                "trained with beside its config.json: "
                f"AutoTokenizer.from_pretrained(NAME).save_pretrained({model!r})"
            )
        families.set_pad_token(tokenizer, config, model)
    return tokenizer


def _has_any(source: Mapping[str, Any], files: Sequence[str]) -> bool:
    """Return whether a model has one of these files, after ``transformers`` has looked for them."""
    name, revision = source["pretrained_model_name_or_path"], source.get("revision")
    if hub.names_repository(name):
        paths = [try_to_load_from_cache(name, file, revision=revision) for file in files]
        return any(isinstance(path, str) for path in paths)
    return any((Path(name) / file).exists() for file in files)


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
        labels: The names of the outputs; they go into the configuration, for ``pipeline()``. A
            single output without a name if there are none. A head that was trained for the same
            names is continued, one for others is replaced.
        revision: Commit, tag or branch on the Hub; the newest if None.
        problem_type: What the labels are, ``single_label_classification`` for instance, as the
            configuration has it; None for what it says.
        hidden_dropout: Probability, or None for the model's own.
        attention_dropout: Likewise.
        pad_token_id: What batches are padded with, by which decoders find the end of a text; None
            for what the configuration says.

    Raises:
        UserError: if the model cannot be loaded, has no head for texts or no such dropout.
    """
    config = load_config(model, revision, **outputs(labels, problem_type))
    families.require_head(model, config)
    families.set_dropout(config, "hidden_dropout", hidden_dropout)
    families.set_dropout(config, "attention_dropout", attention_dropout)
    families.set_up(config, pad_token_id)
    return load_with_head(AutoModelForSequenceClassification, model, config, revision)


def outputs(labels: Sequence[str], problem_type: ProblemType | None) -> dict[str, Any]:
    """Return the attributes of a configuration for a head with these labels."""
    names = list(labels) or ["LABEL_0"]
    attributes: dict[str, Any] = {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: index for index, name in enumerate(names)},
    }
    return attributes if problem_type is None else {**attributes, "problem_type": problem_type}


def load_with_head(
    auto: Any, model: str, config: PretrainedConfig, revision: str | None
) -> PreTrainedModel:
    """Return ``model`` as a class ``auto`` loads it, with the head of a configuration, which
    continues one for the same labels.
    """
    trained = families.outputs_of_head(load_config(model, revision))
    with loading(model, revision) as source:
        classifier: PreTrainedModel
        classifier, info = auto.from_pretrained(
            **source,
            config=config,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    resized = (name for name, *_ in info["mismatched_keys"])
    replaced = head.continue_head(classifier, trained, list((config.id2label or {}).values()))
    setattr(classifier, _FRESH, replaced.union(info["missing_keys"], resized))
    families.freeze_unused(classifier)
    # BERT's checkpoints name the weights of LayerNorm gamma and beta. transformers would save them
    # under these names again, and Trainer, which reads its own checkpoints without renaming, would
    # leave every LayerNorm out of the best model and of a resumed run. None would not do, it stands
    # for the names that the checkpoints of a family have on the Hub.
    classifier._weight_conversions = []  # type: ignore[assignment]
    return classifier


def load_weights(model: torch.nn.Module, path: Path) -> torch.nn.Module:
    """Return ``model``, which may be none of the library's, with the weights of a safetensors file.

    Raises:
        UserError: if the file is not there, is damaged, or is of another model.
    """
    try:
        load_model(model, path)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{path} cannot be loaded: {_reason(error)}") from error
    return model


def is_fresh(model: torch.nn.Module, layer: torch.nn.Linear) -> bool:
    """Return whether the weights of a layer are random: no checkpoint had them, or in another size.

    Args:
        model: From :func:`load_classifier`; of another that is taken for granted.
        layer: Of the model.
    """
    names = (name for name, weight in model.named_parameters() if weight is layer.weight)
    fresh = getattr(model, _FRESH, None)
    return fresh is None or next(names) in fresh


def identity(model: str) -> str:
    """Return a hash of the configuration in a model directory."""
    facts = {**load_config(model).to_dict(), "transformers_version": None, "_name_or_path": None}
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def commit(model: str, revision: str | None = None) -> str | None:
    """Return the commit of a model on the Hub as it lies in the cache; None if it is not there."""
    if not hub.names_repository(model):
        return None
    path = try_to_load_from_cache(model, "config.json", revision=revision)
    return Path(path).parent.name if isinstance(path, str) else None


def describe(model: str) -> str:
    """Return where a model comes from, in a few words."""
    if model.startswith(embedded.PREFIX):
        return embedded.describe(model)
    return f"{model} ({'Hub' if hub.names_repository(model) else 'local'})"


@contextmanager
def loading(model: str, revision: str | None) -> Iterator[dict[str, Any]]:
    """Give what ``from_pretrained`` takes, and refuse what it cannot load."""
    source: str | Path = model
    if not model:
        raise UserError("--model: this recipe names no model of its own, give one")
    if model == embedded.PREFIX + "minilm":
        source = embedded.model_directory()
    elif not hub.names_repository(model):
        source = Path(model).expanduser()
        if not (source / "config.json").exists():
            raise UserError(
                f"--model {model}: expected a directory that holds a config.json, or "
                f"{embedded.PREFIX}minilm (texts) or {embedded.PREFIX}vit (images)"
            )
    if revision is not None and not hub.names_repository(model):
        raise UserError(f"--model_revision {revision}: {model} is not from the Hub")
    pinned = {} if revision is None else {"revision": revision}
    try:
        yield {"pretrained_model_name_or_path": str(source), "trust_remote_code": False, **pinned}
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever is in its files
        raise UserError(f"--model {model} cannot be loaded: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return in a line what is wrong with the files of a model."""
    if isinstance(error, pickle.UnpicklingError):
        return (
            "its weights are a pickle that holds more than tensors; nothing in it was run. "
            "Expected model.safetensors"
        )
    if "trust_remote_code" in str(error):
        return (
            "it needs code of its own (auto_map in its configuration), which is never run; "
            "expected a model of a type that transformers has"
        )
    line = str(error).strip().partition("\n")[0]
    is_plain = isinstance(error, (OSError, RuntimeError, ValueError))
    return line if is_plain else f"{type(error).__name__}: {shorten(line, 200)}"
