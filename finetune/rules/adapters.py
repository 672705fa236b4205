"""Rules about adapters and frozen layers."""

from importlib.util import find_spec

from finetune.rules.options import Mistakes, OptionValues
from finetune.runtime import DISTRIBUTION


def _require_adapter(options: OptionValues) -> Mistakes:
    if options.adapter is not None and find_spec("peft") is None:
        yield f"--adapter lora needs peft: pip install '{DISTRIBUTION}[adapters]'"
    if options.adapter is not None and options.freeze:
        yield f"--freeze {options.freeze}: --adapter lora freezes all but the head"
    if options.adapter is not None and options.head == "mean":
        yield "--head mean: --adapter lora cannot store its layer; give --head probe"
    for name, value in options.typed.items():
        if name.startswith("lora_") and options.adapter is None:
            yield f"--{name} {value}: needs --adapter lora"


RULES = (_require_adapter,)
