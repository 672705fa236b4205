"""Rules about the options of a prediction."""

from finetune.rules.options import Mistakes, OptionValues


def _require_engine_options(options: OptionValues) -> Mistakes:
    if options.engine in (None, "torch"):
        return
    for name, value in {"precision": "fp32", "cpu_kernels": "off"}.items():
        if (typed := getattr(options, name)) not in (None, value):
            yield f"--{name} {typed}: --engine {options.engine} expects {value}"


RULES = (_require_engine_options,)
