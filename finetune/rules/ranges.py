"""The range of each option."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from finetune.data.comma_list import split_values
from finetune.rules.options import Mistakes, OptionValues

_SPLIT = (
    "a share above 0 and below 1, or a number of rows, 2 or more",
    lambda size: 0 < size < 1 or (size >= 2 and size % 1 == 0),
)
_SHARE = ("0 or more and below 1", lambda share: 0 <= share < 1)
_POSITIVE = ("more than 0 and finite", lambda number: 0 < number < math.inf)
_NUMBER = (  # of an option that is a number, if it is not in the table
    "0 or more and finite",
    lambda value: not isinstance(value, (int, float)) or 0 <= value < math.inf,
)
_COUNT = ("1 or more", lambda number: number >= 1)
#: What is expected of an option, for messages, and a test of a value of the right type.
_RANGES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "train_samples": _COUNT,
    "eval_samples": _COUNT,
    "test_size": _SPLIT,
    "validation_size": _SPLIT,
    "time_format": (
        "number, or a form of dates such as %d.%m.%Y",
        lambda text: text == "number" or "%" in text,
    ),
    # two more seeds are derived from it
    "split_seed": ("a number from 0 to 2**32 - 3", lambda seed: 0 <= seed <= 2**32 - 3),
    "teacher_weight": ("a share above 0, at most 1", lambda share: 0 < share <= 1),
    "teacher_temperature": _POSITIVE,
    "label_separator": ("a character such as ';'", bool),
    "max_length": ("at least 3 tokens", lambda tokens: tokens >= 3),
    "preprocessing_num_workers": _COUNT,
    "hidden_dropout": _SHARE,
    "attention_dropout": _SHARE,
    "crop_scale": ("a share of the area, above 0, at most 1", lambda share: 0 < share <= 1),
    "layers": _COUNT,
    "lora_targets": ("names of layers, with commas", lambda names: bool(split_values(names))),
    "lora_rank": _COUNT,
    "lora_alpha": _POSITIVE,
    "lora_dropout": _SHARE,
    "freeze": (
        "embeddings, base, or the number of layers to freeze, 1 or more",
        lambda text: text in ("embeddings", "base") or (str(text).isdecimal() and int(text) > 0),
    ),
    "adam_beta1": _SHARE,
    "adam_beta2": _SHARE,
    "batch_tokens": _COUNT,
    "ddp_timeout": _COUNT,
    "early_stopping_patience": _COUNT,
    "global_batch_size": _COUNT,
    "gradient_accumulation_steps": _COUNT,
    "label_smoothing_factor": _SHARE,
    "max_minutes": _POSITIVE,
    "max_steps": ("1 or more", lambda steps: steps >= 1 or steps == -1),  # -1 is unset
    "max_tokens_per_batch": _COUNT,
    "num_threads": _COUNT,
    "num_train_epochs": _POSITIVE,
    "per_device_eval_batch_size": _COUNT,
    "per_device_train_batch_size": _COUNT,
    "profile": _COUNT,
    "save_total_limit": _COUNT,
    "seed": ("0 or more and below 4294967296", lambda seed: 0 <= seed < 2**32),
}


def _require_range(options: OptionValues) -> Mistakes:
    for name, value in vars(options).items():
        expected, is_allowed = _RANGES.get(name, _NUMBER)
        if value is not None and not is_allowed(value):
            if isinstance(value, float):
                value = f"{value:g}"
            yield f"--{name} {value}: expected {expected}"


RULES = (_require_range,)
